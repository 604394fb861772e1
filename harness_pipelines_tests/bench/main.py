"""The bench of the main job: one Kafka topic becomes one exactly-once table."""

from __future__ import annotations

from collections.abc import Mapping

from harness_pipelines_tests.bench import executors, freshness, publish, reads, throughput, union
from harness_pipelines_tests.bench.base import Group

#: Groups of figures in the order in which they are measured; what --only names.
FIGURES: Mapping[str, Group] = {
    "throughput": throughput.measure,
    "union": union.measure,
    "freshness": freshness.measure,
    "publish": publish.measure,
    "reads": reads.measure,
    "executors": executors.measure,
}
