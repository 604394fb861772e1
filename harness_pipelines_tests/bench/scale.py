"""The bench of many tables: what one process takes for hundreds of them."""

from __future__ import annotations

from collections.abc import Mapping

from harness_pipelines_tests.bench.base import Group
from harness_pipelines_tests.bench.scaling import tables

#: Groups of figures in the order in which they are measured; what --only names.
FIGURES: Mapping[str, Group] = {
    "busy": tables.measure_busy,
    "hot": tables.measure_hot,
    "idle": tables.measure_idle,
}
