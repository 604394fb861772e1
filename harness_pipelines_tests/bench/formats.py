"""The bench of what records are made of: what it costs to decode and judge them, and to put back what was refused."""

from __future__ import annotations

from collections.abc import Mapping

from harness_pipelines_tests.bench import contracts, decode, replay
from harness_pipelines_tests.bench.base import Group

#: Groups of figures in the order in which they are measured; what --only names.
FIGURES: Mapping[str, Group] = {
    "decode": decode.measure,
    "contracts": contracts.measure,
    "replay": replay.measure,
}
