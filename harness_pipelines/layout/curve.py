"""The order of rows inside a file of the batch view: along a Morton curve over their region.

So row groups are small boxes too.

A region's extent in a column, which a sample tells, is cut into equal cells; the bits of a row's cells, interleaved,
are its place on the curve. Columns whose values are no numbers (text, UUIDs) take no part, nor does the sample layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness_pipelines.layout.columns import ColumnValues, IndexedColumn
from harness_pipelines.layout.tree import LAYER, RegionTree

CELL_BITS = 6  #: a region has some dozens of row groups at most
LAST = 2**CELL_BITS - 1  #: the cell of NULL and NaN too
_EXACT_MAX, _EXACT_SCALE_MAX = 2**53, 22  #: whole numbers and powers of ten up to these are doubles
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Extents:
    """Where the values of one column lie, by region of a tree."""

    axis: int  #: of the column
    low: Floats
    width: Floats  #: above 0


def extents_of(tree: RegionTree, values: Sequence[ColumnValues]) -> list[Extents]:
    """For each column that takes part: from a sample's *values*, one entry per column of *tree*."""
    leaf = tree.route(values)
    axes = [i for i, c in enumerate(tree.columns) if c.type not in ("string", "uuid") and c != LAYER]
    return [_extents(tree, axis, values[axis], leaf) for axis in axes]


def _extents(tree: RegionTree, axis: int, values: ColumnValues, leaf: Ints) -> Extents:
    known = ~(values.is_null | values.is_nan)
    numbers = _doubles(tree.columns[axis], values.values[known])
    finite = np.isfinite(numbers)
    low, high = np.full(len(tree), np.inf), np.full(len(tree), -np.inf)
    np.minimum.at(low, leaf[known][finite], numbers[finite])
    np.maximum.at(high, leaf[known][finite], numbers[finite])
    empty = high < low
    with np.errstate(over="ignore"):  # from the least to the greatest double is further than a double can tell
        width = np.minimum(high - low, np.finfo(np.float64).max)
    return Extents(axis, np.where(empty, 0.0, low), np.where(empty | (high == low), 1.0, width))


def _doubles(column: IndexedColumn, values: npt.NDArray[Any]) -> Floats:
    """The double next to each value: what the JVM makes of it too, and one further on would be another cell."""
    numbers: Floats = values.astype(np.float64)
    if not (scale := scale_of(column)):
        return numbers
    # A quotient of two exact doubles is rounded once. Python rounds that of any whole numbers so.
    inexact = np.flatnonzero(np.abs(numbers) > _EXACT_MAX) if scale <= _EXACT_SCALE_MAX else np.arange(len(numbers))
    numbers /= 10.0**scale
    numbers[inexact] = [int(value) / 10**scale for value in values[inexact]]
    return numbers


def scale_of(column: IndexedColumn) -> int:
    """Digits behind the point of a decimal, 0 of what is none."""
    return int(column.type.rpartition(",")[2].rstrip(") ")) if column.type.startswith("decimal") else 0


def places(
    tree: RegionTree, values: Sequence[ColumnValues], leaf: Ints, extents: Sequence[Extents]
) -> npt.NDArray[np.int64]:
    """Per row its place on the curve of its region *leaf*, as `RegionTree.route` gives it."""
    cells = [_cells(tree.columns[one.axis], values[one.axis], leaf, one) for one in extents]
    rank = np.zeros(len(leaf), np.int64)
    for bit in range(CELL_BITS):
        for place, cell in enumerate(cells):
            rank |= ((cell >> bit) & 1) << (bit * len(cells) + place)
    return rank


def _cells(column: IndexedColumn, values: ColumnValues, leaf: Ints, extents: Extents) -> npt.NDArray[np.int64]:
    numbers = _doubles(column, values.values)
    with np.errstate(over="ignore", invalid="ignore"):
        share = (numbers - extents.low[leaf]) / extents.width[leaf]
    share[values.is_null | np.isnan(share)] = 1.0
    found: npt.NDArray[np.int64] = np.floor(np.clip(share, 0.0, 1.0) * LAST).astype(np.int64)
    return found
