"""The bench of what records are made of: what it costs to decode, transform and judge them, and to replay some."""

from __future__ import annotations

from collections.abc import Mapping

from harness_pipelines_tests.bench import contracts, decode, evolution, refused, replay, transform
from harness_pipelines_tests.bench.base import Group

#: Groups of figures in the order in which they are measured; what --only names.
FIGURES: Mapping[str, Group] = {
    "decode": decode.measure,
    "contracts": contracts.measure,
    "refused": refused.measure,
    "replay": replay.measure,
    "transform": transform.measure,
    "evolution": evolution.measure,
}
