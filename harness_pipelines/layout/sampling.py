"""A sample of the rows of a move, for cutting their tree and scoring layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness_pipelines.layout.build import OVERSIZE, split_region
from harness_pipelines.layout.columns import Array, ColumnValues, IndexedColumn
from harness_pipelines.layout.files import FileStats
from harness_pipelines.layout.histogram import CellHistogram, edges_of
from harness_pipelines.layout.queries import Queries, synthetic
from harness_pipelines.layout.rewrites import pieces
from harness_pipelines.layout.scores import Judge, Workload, predicted_files
from harness_pipelines.layout.tree import SIDES, RegionTree, is_layered, layered

EDGES_MAX = 1_024  #: quantiles per column
ROWS = range(50_000, 500_000)  #: how many are drawn, at least and at most
ROWS_PER_FILE = 1_000  #: sizes of files are then even to some 5 %
PIECE_SHARE = 1 / 8  #: of a target file: smaller pieces that wait share a file with their neighbours
TELLING_BYTES = 2**20  #: of a file: some KB more or less are less than a percent
PIECE_ROWS = 20_000  #: up to this many rows are one or two row groups, whose order does not matter


def is_telling(predicted: Sequence[FileStats]) -> bool:
    """Return whether predicted sizes are accurate enough: they leave out a file's bytes beside its rows."""
    return sum(file.bytes for file in predicted) >= TELLING_BYTES * len(predicted)


def share_to_draw(rows: int, *, target_rows: float) -> float:
    """Which share of *rows* is drawn for files of *target_rows*."""
    wanted = min(max(rows / target_rows * ROWS_PER_FILE, ROWS.start), ROWS.stop)
    return min(1.0, wanted / max(rows, 1))


def is_one_piece(rows: int, *, target_rows: float) -> bool:
    """Return whether the waiting *rows* certainly make one file anywhere, so that ordering them gains nothing."""
    return rows <= min(PIECE_ROWS, 2 * PIECE_SHARE * target_rows)


@dataclass(frozen=True)
class Sample:
    """The indexed columns of rows that were drawn evenly. Numbers of rows below are of all rows, drawn or not."""

    columns: tuple[IndexedColumn, ...]
    values: tuple[ColumnValues, ...]  #: per column
    share: float  #: drawn, of all rows
    filters: tuple[tuple[str, ...], ...] = ()  #: sets of columns that readers filter by together, see `synthetic`

    @cached_property
    def histogram(self) -> CellHistogram:
        return histogram_of(self.columns, self.values)

    @cached_property
    def queries(self) -> Queries:
        """Boxes and slabs of several sizes."""
        return synthetic(self.histogram, filters=self.filters)

    def tree(self, *, target_rows: float) -> RegionTree:
        """Regions of about *target_rows* each."""
        return self.cut_again(RegionTree.single(self.columns), "", target_rows=target_rows)

    def cut_again(self, tree: RegionTree, path: str, *, target_rows: float) -> RegionTree:
        """*tree* with the part at *path* made again from the rows that lie there.

        A view gets its sample layer when its rows are more than one file holds.
        """
        rows = len(self.values[0]) / self.share
        if path == "" and is_layered(self.columns) and rows > OVERSIZE * target_rows:
            tree = layered(self.columns)
            for side in SIDES:
                tree = self._cut(tree, side, target_rows)
            return tree
        return self._cut(tree.collapse(path), path, target_rows)

    def _cut(self, tree: RegionTree, path: str, target_rows: float) -> RegionTree:
        [index] = tree.below(path)
        here = tree.route(self.values) == index
        inside = histogram_of(self.columns, [v.take(here) for v in self.values])
        return split_region(tree, path, inside, target_rows=target_rows * self.share, queries=self.queries)

    def counts(self, tree: RegionTree) -> Mapping[str, float]:
        """Rows per region."""
        found = np.bincount(tree.route(self.values), minlength=len(tree)) / self.share
        return dict(zip(tree.paths(), found.tolist(), strict=True))

    def pieces(self, tree: RegionTree, *, target_rows: float) -> RegionTree:
        """The parts of *tree* that these rows go to while they only wait there."""
        return pieces(tree, self.counts(tree), rows_min=target_rows * PIECE_SHARE)

    def files(self, tree: RegionTree, *, target_rows: float) -> list[int]:
        """Per region how many files its rows take: several where they are equal keys, else one."""
        return [max(1, round(rows / target_rows)) for rows in self.counts(tree).values()]

    def predicted(self, tree: RegionTree, taken: Sequence[FileStats]) -> list[FileStats]:
        """The files that these rows, which are those of *taken*, are going to be in: one per region of *tree*."""
        size = sum(f.bytes * f.live // max(1, f.rows) for f in taken)
        return predicted_files(tree, self.values, bytes_per_row=size / max(1, len(self.values[0])))

    def judge(self, *, target_bytes: int, of_bytes: int) -> Judge:
        """Of layouts of these rows, which take *of_bytes*, in files of *target_bytes*."""
        workload = Workload.of(self.histogram, self.queries)
        return Judge(columns=self.columns, workload=workload, target_bytes=target_bytes, of_bytes=of_bytes)


def histogram_of(columns: Sequence[IndexedColumn], values: Sequence[ColumnValues]) -> CellHistogram:
    """Counts on the grid of the rows' own quantiles."""
    edges = [quantile_edges(c, v, count=EDGES_MAX) for c, v in zip(columns, values, strict=True)]
    return CellHistogram.count(columns, edges, values)


def quantile_edges(column: IndexedColumn, values: ColumnValues, *, count: int) -> Array:
    """Grid lines at *count* quantiles of the values that are neither NULL nor NaN; ascending, maybe fewer."""
    known = values.values[~(values.is_null | values.is_nan)]
    if not len(known):
        return edges_of(column, [])
    ordered = np.sort(known)
    at = np.linspace(0, len(ordered) - 1, min(count, len(ordered))).round().astype(int)
    return edges_of(column, ordered[at].tolist())
