"""Map a file to its region by its column bounds; build a tree from files alone.

Bounds need not be tight, only true: text is kept as a prefix, rounded down or up. Where a bound is missing the file may
hold anything, so it lies in a region only if no cut asks for it.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from harness_pipelines.layout.boxes import At, Cut, Slab
from harness_pipelines.layout.columns import IndexedColumn, ShapesDiffer, Value, check_columns
from harness_pipelines.layout.tree import Node, RegionTree

CROSSING_MAX = 0.1  #: share of a part's bytes in files that a cut of `rebuild` may go through


@dataclass(frozen=True, slots=True)
class Extent:
    """A file's statistics of one column. None: it has none."""

    lower: Value | None = None  #: no value of the file is below
    upper: Value | None = None  #: no value of the file is above
    nulls: int | None = None  #: rows that are NULL
    nans: int | None = None  #: rows that are NaN; for a column that is no float it does not matter


class Deletes(Protocol):
    """A file that tells which rows of one data file are hidden."""

    @property
    def path(self) -> str: ...
    @property
    def rows(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStats:
    """A data file of the batch view."""

    path: str
    rows: int
    bytes: int
    sequence: int  #: Iceberg's data sequence number: how old its rows are
    extents: tuple[Extent, ...]  #: per indexed column
    written: int | None = None  #: sequence number of the snapshot that brought it, if its rows are older than that
    hidden: int = 0  #: of its rows, by position deletes; its bounds and NULLs are those of all of them
    deletes: str | None = None  #: the file that tells which

    @property
    def live(self) -> int:
        """Rows that a reader sees."""
        return self.rows - self.hidden

    @property
    def added(self) -> int:
        """Sequence number of the snapshot that brought the file."""
        return self.sequence if self.written is None else self.written


def hiding(file: FileStats, deletes: Deletes | None) -> FileStats:
    """*file* with *deletes* as what hides rows of it; None: nothing does."""
    rows, path = (0, None) if deletes is None else (deletes.rows, deletes.path)
    return file if (file.hidden, file.deletes) == (rows, path) else replace(file, hidden=rows, deletes=path)


def place(tree: RegionTree, file: FileStats) -> str:
    """The path of the smallest part of the tree that certainly holds all rows of *file*: a region or an inner node.

    Raises: ShapesDiffer.
    """
    if len(file.extents) != len(tree.columns):
        raise ShapesDiffer(f"{file.path}: expected bounds of {len(tree.columns)} columns, found {len(file.extents)}")
    return tree.descend(lambda axis, cut: side_of(file, tree.columns[axis], file.extents[axis], cut))


def classify(tree: RegionTree, files: Sequence[FileStats]) -> list[str | None]:
    """Per file the region that holds it wholly, None where it spans several or its bounds do not tell."""
    paths = set(tree.paths())
    return [found if found in paths else None for found in (place(tree, file) for file in files)]


def side_of(file: FileStats, column: IndexedColumn, extent: Extent, cut: Cut) -> str | None:
    """'0' or '1' if all rows of *file* certainly lie on that side of *cut*, else None."""
    nulls, nans = extent.nulls, extent.nans if column.is_float else 0
    if isinstance(cut, Slab):
        slab = nulls if cut is Slab.NULL else nans
        return "0" if slab == 0 else "1" if slab == file.rows else None
    if nulls is not None and nans is not None and nulls + nans == file.rows:
        return "1"
    if extent.lower is not None and extent.lower >= cut.value:
        return "1"
    below = extent.upper is not None and extent.upper < cut.value
    return "0" if below and nulls == 0 and nans == 0 else None


def might_hold(file: FileStats, box: Sequence[Extent]) -> bool:
    """False if certainly no row of *file* lies in *box*; both use the same columns."""
    return all(_might_share(file.rows, there, wanted) for there, wanted in zip(file.extents, box, strict=True))


def _might_share(rows: int, there: Extent, wanted: Extent) -> bool:
    if wanted.nulls != 0 and there.nulls != 0:
        return True
    if wanted.lower is None or there.nulls == rows:
        return False
    below = there.upper is not None and there.upper < wanted.lower
    above = there.lower is not None and wanted.upper is not None and there.lower > wanted.upper
    return not (below or above)


def rebuild(files: Sequence[FileStats], columns: Sequence[IndexedColumn]) -> RegionTree:
    """A tree in which every file of a disjoint set has its own region.

    Files that overlap share a region, unless few bytes (`CROSSING_MAX`) stand in the way of a cut: those files then
    span regions. Where the files came from a tree, one that tells them apart as well is found: a cut through no box
    leaves both sides as divisible as they were. The order of the files does not matter.

    Raises: ColumnNotIndexable, ShapesDiffer.
    """
    columns = check_columns(columns)
    if any(len(file.extents) != len(columns) for file in files):
        raise ShapesDiffer(f"expected bounds of {len(columns)} columns in every file")
    nodes: list[Node] = []
    waiting = [sorted((file for file in files if file.rows), key=lambda file: file.path)]
    while waiting:
        part = waiting.pop()
        found = _dividing(part, columns)
        nodes.append(found)
        if found is not None:
            axis, cut = found
            sides = [side_of(file, columns[axis], file.extents[axis], cut) for file in part]
            waiting += [[f for f, side in zip(part, sides, strict=True) if side == wanted] for wanted in ("1", "0")]
    return RegionTree.of(columns, nodes)


@dataclass(frozen=True, slots=True)
class _Division:
    crossing: int  #: bytes of files on neither side
    smaller: int  #: bytes on the smaller side
    node: tuple[int, Cut]


def _dividing(files: Sequence[FileStats], columns: Sequence[IndexedColumn]) -> Node:
    """The cut that the fewest bytes cross, of these the one with the evenest sides."""
    if len(files) < 2:
        return None
    found = [d for axis, column in enumerate(columns) for d in _divisions(files, axis, column)]
    total = sum(_size(file) for file in files)
    best = min(found, key=lambda d: (d.crossing, -d.smaller), default=None)
    return best.node if best and best.crossing <= CROSSING_MAX * total else None


def _divisions(files: Sequence[FileStats], axis: int, column: IndexedColumn) -> list[_Division]:
    """Per kind of cut on this column the best: at some file's lower bound, a slab, or above the values of all files.

    The last one comes last, so that a slab is chosen where it divides as well: it alone divides files that have values
    from one that has NULL and NaN, which lie above all values.
    """
    lowers = {column.as_cut(f.extents[axis].lower) for f in files if f.extents[axis].lower is not None}
    at_lowers = _line_divisions(files, axis, column, sorted(lowers - {column.least}))
    uppers = [column.as_cut(f.extents[axis].upper) for f in files if f.extents[axis].upper is not None]
    above = column.successor(max(uppers)) if 0 < len(uppers) < len(files) else None
    above_all = [] if above is None else _line_divisions(files, axis, column, [above])
    return at_lowers + _slab_divisions(files, axis, column) + above_all


def _line_divisions(
    files: Sequence[FileStats], axis: int, column: IndexedColumn, lines: Sequence[Value]
) -> list[_Division]:
    sizes = np.array([_size(file) for file in files], dtype=np.int64)
    total = int(sizes.sum())
    first, last = np.array([_sides_at(file, column, file.extents[axis], lines) for file in files]).T
    low = np.cumsum(np.bincount(first, weights=sizes, minlength=len(lines) + 1))[: len(lines)].astype(np.int64)
    high = np.cumsum(np.bincount(last, weights=sizes, minlength=len(lines) + 1)[::-1])[::-1][1:].astype(np.int64)
    smaller = np.minimum(low, high)
    return [
        _Division(total - int(low[i] + high[i]), int(smaller[i]), (axis, At(line)))
        for i, line in enumerate(lines)
        if smaller[i] > 0
    ]


def _slab_divisions(files: Sequence[FileStats], axis: int, column: IndexedColumn) -> list[_Division]:
    found = []
    for slab in Slab if column.is_float else (Slab.NULL,):
        sizes = {"0": 0, "1": 0, None: 0}
        for file in files:
            sizes[side_of(file, column, file.extents[axis], slab)] += _size(file)
        if min(sizes["0"], sizes["1"]) > 0:
            found.append(_Division(sizes[None], min(sizes["0"], sizes["1"]), (axis, slab)))
    return found


def _sides_at(file: FileStats, column: IndexedColumn, extent: Extent, lines: Sequence[Value]) -> tuple[int, int]:
    """The first of *lines* that has the file wholly below, and how many, from the first on, have it wholly above."""
    nulls, nans = extent.nulls, extent.nans if column.is_float else 0
    if nulls is not None and nans is not None and nulls + nans == file.rows:
        return len(lines), len(lines)
    known = extent.upper is not None and nulls == 0 and nans == 0
    first = bisect.bisect_right(lines, extent.upper) if known else len(lines)
    last = 0 if extent.lower is None else bisect.bisect_right(lines, extent.lower)
    return first, last


def _size(file: FileStats) -> int:
    return max(1, file.bytes)


Positions = NDArray[np.int64]  #: of rows in a data file, from 0, ascending
