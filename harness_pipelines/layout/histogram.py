"""Where rows lie: how many in each cell of a grid, whose lines are the quantiles of each column.

The grid is coarse enough for a driver and exact in its counts; every cut of a tree lies on one of its lines.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness_pipelines.layout.columns import (
    Array,
    ColumnValues,
    IndexedColumn,
    ShapesDiffer,
    Value,
    check_columns,
    codes,
)

Cells = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]
_GOLDEN = 0.6180339887498949  # multiples of it, less their whole part, spread evenly from the first few on


def edges_of(column: IndexedColumn, quantiles: Iterable[Value]) -> Array:
    """Grid lines from approximate *quantiles* (any order, no NULL, no NaN): ascending, without repeats.

    A value that comes twice is a frequent one. It gets a line on either side, so that it has its own cell and its
    rows can end in their own region.
    """
    ordered = sorted(column.as_cut(value) for value in quantiles)
    lines = set(ordered)
    for value, following in itertools.pairwise(ordered):
        if value == following and (after := column.successor(value)) is not None:
            lines.add(after)
    lines.discard(column.least)
    edges = np.empty(len(lines), dtype=column.dtype)
    edges[:] = sorted(lines)
    return edges


def bucket(edges: Sequence[Array], values: Sequence[ColumnValues]) -> Cells:
    """Per row and column the number of edges at or below the value; NaN is ``len(edges) + 1``, NULL ``len(edges) + 2``.

    Returns: (n, d).
    """
    if len(edges) != len(values):
        raise ShapesDiffer(f"expected values of {len(edges)} columns, found {len(values)}")
    return np.stack([codes(v, e) for v, e in zip(values, edges, strict=True)], axis=1)


@dataclass(frozen=True, slots=True)
class CellHistogram:
    """Rows per cell. Made by `of`: the cells are distinct and ascending, so equal data is an equal histogram.

    Where a cell has to stand for its rows, each of their values is taken to be the cell's lower grid line.
    """

    columns: tuple[IndexedColumn, ...]
    edges: tuple[Array, ...]  #: per column its grid lines, ascending
    cells: Cells  #: (n, d) bucket ids
    counts: Counts  #: (n,) rows, each at least 1

    @classmethod
    def of(
        cls, columns: Sequence[IndexedColumn], edges: Sequence[Array], cells: Cells, counts: Counts
    ) -> CellHistogram:
        """From cells in any order, repeated ones too. Raises: ShapesDiffer."""
        d = len(check_columns(columns))
        if len(edges) != d or cells.ndim != 2 or cells.shape != (len(counts), d):
            raise ShapesDiffer(
                f"expected cells of shape ({len(counts)}, {d}), found {cells.shape}, {len(edges)} edge lists"
            )
        for column, lines, ids in zip(columns, edges, cells.T, strict=True):
            if np.any(lines[1:] <= lines[:-1]) or np.any(ids < 0) or np.any(ids > len(lines) + 2):
                raise ShapesDiffer(
                    f"column {column.name!r}: expected ascending edges and buckets 0 to {len(lines) + 2}"
                )
        return cls(tuple(columns), tuple(edges), *_grouped(cells, counts))

    @classmethod
    def count(
        cls, columns: Sequence[IndexedColumn], edges: Sequence[Array], values: Sequence[ColumnValues]
    ) -> CellHistogram:
        """Of rows at hand: what the engine does with ``groupBy(cell).count``. Raises: ShapesDiffer."""
        cells = bucket(edges, values)
        return cls.of(columns, edges, cells, np.ones(len(cells), dtype=np.int64))

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    def merged(self, other: CellHistogram) -> CellHistogram:
        """The rows of both. Raises: ShapesDiffer, where the grids differ."""
        same = all(np.array_equal(a, b) for a, b in zip(self.edges, other.edges, strict=True))
        if self.columns != other.columns or not same:
            raise ShapesDiffer("expected two histograms over the same columns and edges; count both on one grid")
        cells, counts = np.concatenate([self.cells, other.cells]), np.concatenate([self.counts, other.counts])
        return CellHistogram.of(self.columns, self.edges, cells, counts)

    def sample(self, size: int) -> Cells:
        """The cells of up to *size* rows, at equal steps through all rows; the first few of them are a sample too.

        Returns: (size, d), in an order that follows no column: every n-th would otherwise be alike where cells repeat.
        """
        size = min(size, self.rows)
        places = (np.arange(size) + 0.5) * (self.rows / max(1, size))
        spread = np.argsort(np.arange(size) * _GOLDEN % 1.0, kind="stable")
        return self.cells[np.searchsorted(np.cumsum(self.counts), places[spread], side="right")]

    def lines(self, axis: int, buckets: npt.NDArray[Any]) -> ColumnValues:
        """The values of column *axis* that stand for these buckets."""
        column, edges = self.columns[axis], self.edges[axis]
        known = np.empty(len(edges) + 3, dtype=column.dtype)
        known[:] = column.least
        known[1 : len(edges) + 1] = edges
        if column.is_float:
            known[len(edges) + 1] = np.nan
        return ColumnValues(known[buckets], buckets == len(edges) + 2)

    def points(self, cells: Cells) -> tuple[ColumnValues, ...]:
        """Per column the values that stand for *cells* (n, d)."""
        return tuple(self.lines(axis, cells[:, axis]) for axis in range(len(self.columns)))


def _grouped(cells: Cells, counts: Counts) -> tuple[Cells, Counts]:
    order = np.lexsort(cells.T[::-1])
    cells, counts = cells[order].astype(np.int32), counts[order].astype(np.int64)
    kept = counts > 0
    cells, counts = cells[kept], counts[kept]
    if not len(cells):
        return cells, counts
    first = np.flatnonzero(np.r_[True, np.any(cells[1:] != cells[:-1], axis=1)])
    return cells[first], np.add.reduceat(counts, first)
