"""A histogram of the rows from file bounds, without reading a row.

The rows of a file are taken to be spread evenly over its box. Boxes of clustered files are small, so what is lost by
that is small too; it is enough to compare layouts of one table, and to draw them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from harness_pipelines.layout.columns import Array, IndexedColumn, check_columns, codes, column_values
from harness_pipelines.layout.files import Extent, FileStats
from harness_pipelines.layout.histogram import CellHistogram, edges_of

POINTS = 20_000  #: that stand for all rows
POINTS_PER_FILE_MAX = 256


def outline(files: Sequence[FileStats], columns: Sequence[IndexedColumn]) -> CellHistogram:
    """The rows of *files* on a grid of all their bounds. The order of the files does not matter.

    Raises: ColumnNotIndexable.
    """
    columns = check_columns(columns)
    files = sorted((file for file in files if file.rows), key=lambda file: file.path)
    points = _points(files)
    owner = np.repeat(np.arange(len(files)), points)
    step = np.concatenate([np.arange(n) for n in points]) if files else np.zeros(0, dtype=np.int64)
    rows = np.array([file.rows for file in files], dtype=np.int64)
    counts = rows[owner] // points[owner] + (step < rows[owner] % points[owner])
    edges = [_edges(files, axis, column) for axis, column in enumerate(columns)]
    cells = np.zeros((len(owner), len(columns)), dtype=np.int32)
    for axis, column in enumerate(columns):
        spread = np.asarray((step + 0.5) * _ratio(len(columns)) ** (axis + 1) % 1.0, dtype=np.float64)
        found = _codes(column, edges[axis], [file.extents[axis] for file in files])
        empty = np.array([(file.extents[axis].nulls or 0) / file.rows for file in files], dtype=np.float64)
        cells[:, axis] = _buckets(found[owner], empty[owner], spread, null=len(edges[axis]) + 2)
    return CellHistogram.of(columns, edges, cells, counts)


def _points(files: Sequence[FileStats]) -> npt.NDArray[np.int64]:
    """Per file how many points stand for its rows."""
    rows = np.array([file.rows for file in files], dtype=np.int64)
    share = np.round(rows / max(1, rows.sum()) * POINTS).astype(np.int64)
    return np.asarray(np.minimum(np.clip(share, 1, POINTS_PER_FILE_MAX), np.maximum(rows, 1)))


def _ratio(dimensions: int) -> float:
    """Powers of it, times 1, 2, 3, ... less their whole part, fill a box evenly (Roberts 2018)."""
    found = 2.0
    for _ in range(40):
        found = (1 + found) ** (1 / (dimensions + 1))
    return 1 / found


def _edges(files: Sequence[FileStats], axis: int, column: IndexedColumn) -> Array:
    bounds = [value for file in files for value in (file.extents[axis].lower, file.extents[axis].upper)]
    return edges_of(column, {value for value in bounds if value is not None})


def _codes(column: IndexedColumn, edges: Array, extents: Sequence[Extent]) -> npt.NDArray[np.int64]:
    """Per file its first and its last bucket, (n, 2); all of them where a bound is not known."""
    sides = [column_values(column, [getattr(extent, side) for extent in extents]) for side in ("lower", "upper")]
    low, high = (codes(values, edges).astype(np.int64) for values in sides)
    low = np.where(sides[0].is_null, 0, low)
    return np.stack([low, np.maximum(np.where(sides[1].is_null, len(edges), high), low)], axis=1)


def _buckets(
    ends: npt.NDArray[np.int64], empty: npt.NDArray[np.float64], spread: npt.NDArray[np.float64], *, null: int
) -> npt.NDArray[np.int64]:
    """The bucket of each point: *null* for the share of its file's rows that is, else somewhere between the ends."""
    low, high = ends.T
    inside = np.clip((spread - empty) / np.maximum(1 - empty, 1e-9), 0, 1 - 1e-9)
    return np.where(spread < empty, null, low + np.floor(inside * (high - low + 1)).astype(np.int64))
