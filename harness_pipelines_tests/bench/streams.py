"""The bench of streams: bootstraps, the switch to live, waiting, and micro-batches, each beside its peer."""

from __future__ import annotations

from collections.abc import Mapping

from harness_pipelines_tests.bench import streams_bootstrap, streams_live
from harness_pipelines_tests.bench.base import Group

#: Groups of figures in the order in which they are measured; what --only names.
FIGURES: Mapping[str, Group] = {
    "bootstrap": streams_bootstrap.measure,
    "microbatch": streams_bootstrap.measure_micro_batches,
    "switch": streams_live.measure_switch,
    "waiters": streams_live.measure_waiters,
}
