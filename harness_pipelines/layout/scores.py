"""Score a layout from file metadata: the bytes and files that readers would open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness_pipelines.layout.columns import ColumnValues, IndexedColumn, Mask, Value
from harness_pipelines.layout.files import Extent, FileStats, classify
from harness_pipelines.layout.histogram import CellHistogram
from harness_pipelines.layout.queries import Queries
from harness_pipelines.layout.tree import RegionTree

FILE_COST_BYTES = 4 * 2**20  #: what opening one more file costs a reader, as Spark's openCostInBytes counts it
_AT_ONCE = 2_000_000  # pairs of query and file that are compared in one step
MARGIN = 0.01  #: as a share: what differs by less is the same
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Smaller is better, in every field."""

    probe_ratio: float  #: bytes of the files that a query opens, and what opening costs, against those that it finds
    point_depth: float  #: files whose box holds a row, over existing rows
    staged_share: float  #: bytes not yet clustered, of all
    spread: float  #: file sizes, p95 against p50
    largest: float  #: the largest file against the target

    def better_than(self, other: Score) -> bool:
        """True if this layout is worth publishing in the place of *other*.

        The first field that differs by more than `MARGIN` decides: what readers feel most comes first.
        """
        for mine, theirs in zip(self._fields, other._fields, strict=True):
            if abs(mine - theirs) > MARGIN * max(mine, theirs):
                return mine < theirs
        return False

    @property
    def _fields(self) -> tuple[float, ...]:
        return self.probe_ratio, self.point_depth, self.staged_share, self.spread, self.largest


@dataclass(frozen=True, slots=True)
class Workload:
    """The measures of a layout; two layouts are compared by the same ones."""

    queries: Queries
    shares: npt.NDArray[np.float64]  #: (q,) of all rows, what each query finds
    points: tuple[ColumnValues, ...]  #: per column, existing rows

    @classmethod
    def of(cls, histogram: CellHistogram, queries: Queries, *, rows: int = 2_000, points: int = 500) -> Workload:
        """Shares and points of up to *rows* rows of *histogram*: no more exact than these and its grid."""
        low, high = queries.buckets(histogram.edges)
        sample = histogram.sample(rows)
        inside = np.ones((len(low), len(sample)), dtype=bool)
        for axis in range(sample.shape[1]):
            inside &= (sample[:, axis] >= low[:, axis, None]) & (sample[:, axis] <= high[:, axis, None])
        return cls(queries, inside.sum(axis=1) / max(1, len(sample)), histogram.points(sample[:points]))


def score(
    files: Sequence[FileStats],
    columns: Sequence[IndexedColumn],
    workload: Workload,
    *,
    target_bytes: int,
    staged_share: float,
    of_bytes: int | None = None,
) -> Score:
    """The score of these files. A query that finds nothing counts as finding one row. No files: everything is 0.

    *of_bytes*: what the rows take, by default as much as these files. To compare two layouts of the same rows, give
    one number for both: a layout is not worse because its files are smaller.
    """
    if not files:
        return Score(probe_ratio=0.0, point_depth=0.0, staged_share=0.0, spread=0.0, largest=0.0)
    sizes = np.array([file.bytes for file in files], dtype=np.float64)
    rows = sum(file.rows for file in files)
    opened = min(FILE_COST_BYTES, target_bytes / 4)  # a layout of many small files is not better for its tight boxes
    touched = _per_query(files, columns, workload.queries, sizes + opened)
    matching = np.maximum(workload.shares, 1 / max(1, rows)) * (of_bytes or sizes.sum())
    weights = workload.queries.weights
    half, most = np.percentile(sizes, [50, 95])
    return Score(
        probe_ratio=float((touched / np.maximum(matching, 1.0)) @ weights / weights.sum()) if len(weights) else 1.0,
        point_depth=_point_depth(files, columns, workload.points),
        staged_share=staged_share,
        spread=float(most / max(half, 1.0)),
        largest=float(sizes.max() / target_bytes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Scores layouts of the same rows, all by the same measure."""

    columns: Sequence[IndexedColumn]
    workload: Workload
    target_bytes: int
    of_bytes: int  #: what the rows take

    def score(self, files: Sequence[FileStats], *, staged_bytes: int) -> Score:
        return score(
            files,
            self.columns,
            self.workload,
            target_bytes=self.target_bytes,
            staged_share=staged_bytes / max(sum(f.bytes for f in files), 1),
            of_bytes=self.of_bytes,
        )

    def score_of_regions(self, files: Sequence[FileStats], tree: RegionTree) -> Score:
        """A file that lies in no region of *tree*, by its bounds, is as good as staged."""
        astray = sum(f.bytes for f, path in zip(files, classify(tree, files), strict=True) if path is None)
        return self.score(files, staged_bytes=astray)


def touched_bytes(
    files: Sequence[FileStats], columns: Sequence[IndexedColumn], queries: Queries
) -> npt.NDArray[np.float64]:
    """Per query the bytes of the files that Iceberg's bounds cannot rule out."""
    sizes = np.array([file.bytes for file in files], dtype=np.float64)
    return _per_query(files, columns, queries, sizes)


def _point_depth(
    files: Sequence[FileStats], columns: Sequence[IndexedColumn], points: tuple[ColumnValues, ...]
) -> float:
    n = len(points[0])
    if not n:
        return 0.0
    return float(_per_query(files, columns, Queries(points, points, np.ones(n)), np.ones(len(files))).mean())


def _per_query(
    files: Sequence[FileStats], columns: Sequence[IndexedColumn], queries: Queries, sizes: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    ranked = [_Ranked.of(axis, files, column, queries) for axis, column in enumerate(columns)]
    found = np.empty(len(queries))
    step = max(1, _AT_ONCE // max(1, len(files)))
    for start in range(0, len(queries), step):
        some = slice(start, start + step)
        meets = np.ones((len(found[some]), len(files)), dtype=bool)
        for column in ranked:
            meets &= column.meets(some)
        found[some] = meets @ sizes
    return found


@dataclass(frozen=True, slots=True)
class _Ranked:
    """One column's bounds of files and queries as integers in the same order."""

    lower: Ids  # (f,)
    upper: Ids
    low: Ids  # (q,)
    high: Ids
    unfiltered: Mask  # (q,) the query is open on both sides

    @classmethod
    def of(cls, axis: int, files: Sequence[FileStats], column: IndexedColumn, queries: Queries) -> _Ranked:
        extents = [file.extents[axis] for file in files]
        empty = np.array([_has_no_value(f, e, column) for f, e in zip(files, extents, strict=True)])
        low, high = queries.low[axis], queries.high[axis]
        known = [v for e in extents for v in (e.lower, e.upper) if v is not None]
        known += [*low.values[~low.is_null].tolist(), *high.values[~high.is_null].tolist()]
        rank = {value: i for i, value in enumerate(sorted(set(known)))}
        top = len(rank)
        lower = _ids([e.lower for e in extents], rank, -1)
        upper = _ids([e.upper for e in extents], rank, top)
        return cls(
            np.where(empty, top + 1, lower),
            np.where(empty, -2, upper),
            _ids(_values(low), rank, -1),
            _ids(_values(high), rank, top),
            low.is_null & high.is_null,
        )

    def meets(self, some: slice) -> Mask:
        """(queries, files): by this column, the file may hold a match."""
        inside = (self.lower <= self.high[some, None]) & (self.upper >= self.low[some, None])
        return np.asarray(inside | self.unfiltered[some, None])


def _has_no_value(file: FileStats, extent: Extent, column: IndexedColumn) -> bool:
    nans = extent.nans if column.is_float else 0
    return extent.nulls is not None and nans is not None and extent.nulls + nans == file.rows


def _values(column: ColumnValues) -> list[Value | None]:
    values: list[Value] = column.values.tolist()
    return [None if null else value for value, null in zip(values, column.is_null, strict=True)]


def _ids(values: Sequence[Value | None], rank: dict[Value, int], unknown: int) -> Ids:
    return np.array([unknown if value is None else rank[value] for value in values], dtype=np.int64)


def predicted_files(tree: RegionTree, values: Sequence[ColumnValues], *, bytes_per_row: float) -> list[FileStats]:
    """One file per region in which rows of *values* lie, with the bounds of these.

    Of a sample the bounds are a little too tight: what is no better with them is no better.
    """
    region = tree.route(values)
    order = np.argsort(region, kind="stable")
    starts = np.flatnonzero(np.diff(region[order])) + 1
    paths = tree.paths()
    return [
        FileStats(
            path=paths[region[rows[0]]],
            rows=len(rows),
            bytes=round(len(rows) * bytes_per_row),
            sequence=0,
            extents=tuple(_extent(column.take(rows)) for column in values),
        )
        for rows in np.split(order, starts)
        if len(rows)
    ]


def _extent(values: ColumnValues) -> Extent:
    known = values.values[~(values.is_null | values.is_nan)]
    ends = [known.min(), known.max()] if len(known) else [None, None]
    lower, upper = (end.item() if isinstance(end, np.generic) else end for end in ends)
    return Extent(lower, upper, nulls=int(values.is_null.sum()), nans=int(values.is_nan.sum()))
