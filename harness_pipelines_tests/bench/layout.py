"""The bench of the layout: what clustering the batch view by value costs, and what it is worth to readers."""

from __future__ import annotations

from collections.abc import Mapping

from harness_pipelines_tests.bench import (
    layout_batches,
    layout_clustering,
    layout_publish,
    layout_rewrites,
    layout_scans,
)
from harness_pipelines_tests.bench.base import Group

#: Groups of figures in the order in which they are measured; what --only names.
FIGURES: Mapping[str, Group] = {
    "clustering": layout_clustering.measure,
    "rewrites": layout_rewrites.measure,
    "batches": layout_batches.measure,
    "scans": layout_scans.measure,
    "publish": layout_publish.measure,
}
