"""What readers touch of real files: their bounds, as manifests have them, against the queries of `layout_data`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness_pipelines.layout.files import FileStats
from harness_pipelines_tests.bench.layout_data import Queries
from harness_pipelines_tests.bench.layout_peers import FileBoxes, geomean, touched


def boxes_of(files: Sequence[FileStats]) -> FileBoxes:
    """The boxes of f *files* over d columns that are never NULL."""
    low = np.array([[extent.lower for extent in file.extents] for file in files], dtype=np.float64)
    high = np.array([[extent.upper for extent in file.extents] for file in files], dtype=np.float64)
    return FileBoxes(low, high, np.array([file.rows for file in files], dtype=np.int64))


def rows_touched(boxes: FileBoxes, asked: Queries) -> float:
    """Rows in the files that a query meets, as the geometric mean over the queries."""
    return geomean(touched(boxes, asked) @ boxes.rows)
