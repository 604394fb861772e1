"""Batches appended one after the other: what readers touch against a full relayout, and what is written for it.

The moves of the otree stage by its own rules (`build`, `pieces`, `due`, `split_region`, the judge of its scores) over
files that are arrays of row numbers, so that 50 merges with all that follows from them take minutes and not hours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from harness_pipelines.layout.balance import balanced, depth_max
from harness_pipelines.layout.columns import ColumnValues, IndexedColumn
from harness_pipelines.layout.files import Extent, FileStats, place
from harness_pipelines.layout.rewrites import Rewrite, due
from harness_pipelines.layout.row_hash import row_hash, threshold
from harness_pipelines.layout.sampling import Sample, is_telling, share_to_draw
from harness_pipelines.layout.tree import RegionTree
from harness_pipelines.read.clustering import BUDGET_BYTES, Clustering
from harness_pipelines.spec.table import Layout as LayoutRules
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.layout_data import Dataset, batches_2d, batches_in_order, queries
from harness_pipelines_tests.bench.layout_files import boxes_of, rows_touched
from harness_pipelines_tests.bench.layout_peers import FileBoxes, geomean_ratio

BATCHES = 50
ROWS, QUICK_ROWS = 5_000_000, 20_000
FILES, QUICK_FILES = 500, 100  #: of the target size, once all batches are there
#: Clusters with centres that stay, or travel one side of the square; and rows in order of time.
SCENARIOS: Mapping[str, Callable[..., Iterator[Dataset]]] = {
    "stationary": batches_2d,
    "drifting": partial(batches_2d, drift=1.0),
    "in_order": batches_in_order,
}
LOOKS = 10  #: how often both layouts are read in the course of the batches
SEED = 1
SCAN_GOAL, WRITTEN_GOAL, DEPTH_GOAL = 1.45, 3.6, 1.0
RULES = LayoutRules()  #: as a table has them that sets nothing
TARGET_BYTES = RULES.target_file_mb * 2**20

Rows = npt.NDArray[np.int64]  #: row numbers, in order of arrival


def measure(run: Run) -> Sequence[Figure]:
    """50 batches of each scenario, each moved until nothing is due."""
    rows, files = run.size(ROWS, QUICK_ROWS), run.size(FILES, QUICK_FILES)
    return [figure for name in SCENARIOS for figure in _scenario(run, name, rows=rows, files=files)]


def _scenario(run: Run, name: str, *, rows: int, files: int) -> list[Figure]:
    """Scans and writes of one run of batches; the peer writes the whole view again after each of them."""
    run.say(f"batches: {rows:,} rows in {BATCHES} batches, {name}")
    view = BatchView(rows_per_file=rows / files)
    ratios, waiting, peer_written = [], [], 0
    for number, batch in enumerate(SCENARIOS[name](rows, SEED, count=BATCHES), start=1):
        view.merge(batch)
        while view.relayout():
            pass
        waiting.append(view.waiting)
        peer_written += batch.rows + view.rows
        if number % max(1, BATCHES // LOOKS) == 0:
            ratios.append(_scan_ratio(view))
    run.note(f"batches.{name}.scan_at_worst", max(ratios), "x")
    run.note(f"batches.{name}.scan_at_the_end", ratios[-1], "x")
    run.note(f"batches.{name}.waiting_files_p50", float(np.median(waiting)), "files")
    run.note(f"batches.{name}.waiting_files_max", max(waiting), "files")
    run.note(f"batches.{name}.files", len(view.files), "files")
    run.note(f"batches.{name}.relayouts", view.relayouts, "moves")
    run.note(f"batches.{name}.dropped", view.dropped, "moves")
    run.note(f"batches.{name}.unwritten", view.unwritten, "moves")
    run.note(f"batches.{name}.written_by_full_relayouts", peer_written / rows, "x")
    written = view.written / rows
    return [
        Figure(figure=f"batches.{name}.scan", value=geomean_ratio(ratios), unit="x", goal=SCAN_GOAL, sense="<="),
        Figure(figure=f"batches.{name}.written", value=written, unit="x", goal=WRITTEN_GOAL, sense="<="),
        Figure(figure=f"batches.{name}.depth", value=view.deepest, unit="x", goal=DEPTH_GOAL, sense="<="),
    ]


def _scan_ratio(view: BatchView) -> float:
    """Rows in files that queries of all classes touch, against the same rows rewritten as a whole."""
    classes = queries(view.data, SEED + 1)
    anew = view.written_anew()
    now = boxes_of([file.stats for file in view.files])
    return geomean_ratio([rows_touched(now, one) / rows_touched(anew, one) for one in classes.values()])


# -- the batch view -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class File:
    """A data file: what a manifest says of it, and the rows inside."""

    stats: FileStats
    rows: Rows


@dataclass(slots=True, kw_only=True)
class BatchView:
    """A batch view and its moves, as `harness_pipelines.stages.otree.otree` makes them with Spark and the ledger."""

    rows_per_file: float  #: the target
    files: list[File] = field(default_factory=list)
    written: int = 0  #: rows that all moves wrote, those of dropped ones too
    relayouts: int = 0
    dropped: int = 0  #: relayouts that were staged and not better
    unwritten: int = 0  #: relayouts that were predicted to be worse
    deepest: float = 0.0  #: the tree's depth at worst, against the one above which it is balanced
    _batches: list[Dataset] = field(default_factory=list)
    _data: Dataset | None = None
    _layout: Clustering | None = None
    _sequence: int = 0
    _judged: bool = False  #: the last relayout was dropped, and nothing was merged since

    @property
    def data(self) -> Dataset:
        """All rows so far, in order of arrival."""
        assert self._data is not None, "nothing was merged yet"
        return self._data

    @property
    def rows(self) -> int:
        return self.data.rows

    @property
    def tree(self) -> RegionTree:
        assert self._layout is not None
        return self._layout.tree

    @property
    def waiting(self) -> int:
        """Files that are not clustered: in no region of the tree, or newer than their region's last rewrite."""
        assert self._layout is not None
        settled = {path: self._layout.clustered.get(path, 0) for path in self._layout.tree.paths()}
        homes = (place(self._layout.tree, file.stats) for file in self.files)
        return sum(f.stats.sequence > settled.get(home, 0) for f, home in zip(self.files, homes, strict=True))

    def merge(self, batch: Dataset) -> None:
        """Stage *batch* in pieces; the first one makes the tree."""
        first = 0 if self._data is None else self.rows
        self._data = batch if self._data is None else _joined(self._data, batch)
        rows = np.arange(first, self.rows)
        sample = self._sampled(rows)
        if self._layout is None:
            tree = parts = sample.tree(target_rows=self.rows_per_file)
            self._layout = Clustering(tree=tree, clustered=dict.fromkeys(tree.paths(), self._sequence + 1))
        else:
            parts = sample.pieces(self._layout.tree, target_rows=self.rows_per_file)
        self.files += self._write(rows, parts, sample)
        self._judged = False

    def relayout(self) -> bool:
        """Write again what one move takes of what is due; False when nothing is, or when it was tried in vain."""
        chosen = [] if self._judged else self._due()
        if not chosen:
            return False
        assert self._layout is not None
        paths = {file.path for part in chosen for file in part.files}
        taken = [file for file in self.files if file.stats.path in paths]
        rows = np.sort(np.concatenate([file.rows for file in taken]))
        sample = self._sampled(rows)
        anew = [part.path for part in chosen if not part.waiting]
        tree = self._layout.tree
        for path in anew:
            tree = sample.cut_again(tree, path, target_rows=self.rows_per_file)
        parts = tree.between(anew) if anew else sample.pieces(tree, target_rows=self.rows_per_file)
        judge = sample.judge(target_bytes=TARGET_BYTES, of_bytes=sum(part.bytes for part in chosen))
        before = judge.score(
            [file for part in chosen for file in part.files], staged_bytes=sum(part.staged_bytes for part in chosen)
        )
        expected = sample.predicted(parts, [file.stats for file in taken])
        if anew and is_telling(expected) and before.better_than(judge.score_of_regions(expected, parts)):
            self.unwritten, self._judged = self.unwritten + 1, True
            return False
        staged = self._write(rows, parts, sample)
        fewer = not anew and len(staged) < len(taken)
        after = judge.score_of_regions([file.stats for file in staged], tree if anew else parts)
        if not (fewer or after.better_than(before)):
            self.dropped, self._judged = self.dropped + 1, True
            return False
        self.relayouts += 1
        self.files = [file for file in self.files if file.stats.path not in paths] + staged
        clustered = {p: at for p, at in self._layout.clustered.items() if not p.startswith(tuple(anew))}
        fresh = [p for p in tree.paths() if p.startswith(tuple(anew))]
        clustered |= dict.fromkeys(fresh, self._sequence)
        tree, clustered = balanced(tree, [file.stats for file in self.files], clustered)
        self._layout = Clustering(tree=tree, clustered=clustered)
        self.deepest = max(self.deepest, tree.depth / depth_max(len(tree)))
        return True

    def written_anew(self) -> FileBoxes:
        """The files of all rows so far, written as the first ones are."""
        rows = np.arange(self.rows)
        sample = self._sampled(rows)
        tree = sample.tree(target_rows=self.rows_per_file)
        return boxes_of([file.stats for file in self._files(rows, tree, sample)])

    @property
    def _columns(self) -> list[IndexedColumn]:
        return [IndexedColumn(name, of) for name, of in zip(self.data.names, self.data.types, strict=True)]

    @property
    def _row_bytes(self) -> float:
        return TARGET_BYTES / self.rows_per_file

    def _due(self) -> list[Rewrite]:
        assert self._layout is not None
        return due(
            self._layout.tree,
            [file.stats for file in self.files],
            self._layout.clustered,
            target_bytes=TARGET_BYTES,
            staged_ratio=RULES.staged_ratio,
            budget_bytes=BUDGET_BYTES,
        )

    def _sampled(self, rows: Rows) -> Sample:
        """As the stage draws them: by the hash of a coordinate, here the row's number as offset of partition 0."""
        share = share_to_draw(len(rows), target_rows=self.rows_per_file)
        drawn = rows if share == 1 else rows[row_hash(np.zeros_like(rows), rows) < threshold(share)]
        return Sample(tuple(self._columns), tuple(self._values(drawn)), share)

    def _values(self, rows: Rows) -> list[ColumnValues]:
        return [ColumnValues(column[rows]) for column in self.data.columns]

    def _write(self, rows: Rows, parts: RegionTree, sample: Sample) -> list[File]:
        self._sequence += 1
        self.written += len(rows)
        return list(self._files(rows, parts, sample))

    def _files(self, rows: Rows, parts: RegionTree, sample: Sample) -> Iterator[File]:
        """One file per region of *parts* that has rows, several where they are too many for one."""
        pieces = np.array(sample.files(parts, target_rows=self.rows_per_file))
        region = parts.route(self._values(rows))
        dealt = row_hash(np.zeros_like(rows), rows) % pieces[region]
        index = np.concatenate([[0], np.cumsum(pieces)])[region] + dealt
        order = np.argsort(index, kind="stable")
        ends = np.flatnonzero(np.diff(index[order])) + 1
        for number, inside in enumerate(np.split(rows[order], ends)):
            yield File(self._stats(f"{self._sequence}-{number}", inside), inside)

    def _stats(self, path: str, rows: Rows) -> FileStats:
        inside = [column[rows] for column in self.data.columns]
        extents = tuple(Extent(column.min().item(), column.max().item(), nulls=0, nans=0) for column in inside)
        size = round(len(rows) * self._row_bytes)
        return FileStats(path=path, rows=len(rows), bytes=size, sequence=self._sequence, extents=extents)


def _joined(one: Dataset, other: Dataset) -> Dataset:
    columns = tuple(np.concatenate(pair) for pair in zip(one.columns, other.columns, strict=True))
    return Dataset(name=one.name, names=one.names, types=one.types, columns=columns)
