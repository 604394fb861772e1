"""The reference lake: a view is an immutable list of files, a file is (partition, low, high, rows)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from harness_pipelines.lakes.iceberg.write.checks import ForeignFiles
from harness_pipelines.ports.errors import BaseGone, StagedWrong
from harness_pipelines.ports.ledger import Swap, TableRow, view_names
from harness_pipelines.protocol.lake.files import FilesGone
from harness_pipelines.protocol.moves import Move, check_open, move_of
from harness_pipelines.protocol.versions import Version, View, ViewName
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.memory.state import MemoryState

MAIN = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFile:
    """Rows of one Kafka partition; *low* and *high* are the lowest and highest offset, both included.

    A real file of the batch view mixes partitions; here it is as many files.
    """

    partition: int
    low: int
    high: int
    rows: int
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot:
    """All files of one state of a branch, and those that it added."""

    snapshot: int
    files: tuple[MemoryFile, ...]
    added: tuple[MemoryFile, ...] = ()
    move: tuple[int, int] | None = None  #: move and attempt of the summary


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryView:
    """What one metadata file fixes."""

    location: str
    snapshots: Mapping[int, MemorySnapshot]  #: oldest first
    refs: Mapping[str, int] = field(default_factory=dict)  #: branch -> snapshot

    @property
    def main(self) -> MemorySnapshot:
        return self.snapshots[self.refs[MAIN]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStaged:
    """The files of one attempt, checked against its move."""

    files: tuple[MemoryFile, ...]
    rows: int
    bytes: int = 0


class MemoryLake:
    """Views in memory, and the writer's side beside them."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state

    def make_views(
        self, spec: TableSpec, fields: Sequence[Mapping[str, Any]]
    ) -> tuple[dict[ViewName, View], list[Mapping[str, Any]]]:
        """Empty views, each with its first snapshot; *fields* are given back as they are."""
        views: dict[ViewName, View] = {}
        for name in view_names(spec):
            first = MemorySnapshot(snapshot=self.state.next_id(), files=())
            made = self._save({first.snapshot: first}, {MAIN: first.snapshot})
            views[name] = View(metadata=made.location, snapshot=first.snapshot)
        return views, list(fields)

    def load(self, table: TableRow, metadata: str) -> MemoryView:
        """A view of *table* as *metadata* fixes it."""
        return self.state.views[metadata]

    def make_branch(self, table: TableRow, move: Move, base: View) -> str:
        """Create the branch of an attempt from the move's base. Raises: BaseGone, MoveClosed."""
        view = table.effects[move.stage].view
        current = self._current(table, view)
        if move.branch in current.refs:
            return move.branch
        if base.snapshot not in current.snapshots:
            raise BaseGone(
                f"{table.name}: move {move.move_id} was planned on snapshot {base.snapshot}, which is expired"
            )
        entry = self.state.books.moves.get(move.move_id)
        check_open(move, entry.move if entry else None)
        self._point(table, view, current, self._save(current.snapshots, {**current.refs, move.branch: base.snapshot}))
        return move.branch

    def append_to(
        self,
        table: TableRow,
        branch: str,
        files: Sequence[MemoryFile],
        *,
        move: tuple[int, int] | None,
        view: ViewName = "stream",
    ) -> None:
        """What an engine does: one more snapshot on *branch*, its summary naming *move* and attempt."""
        current = self._current(table, view)
        base = current.snapshots[current.refs[branch]]
        made = MemorySnapshot(snapshot=self.state.next_id(), files=(*base.files, *files), added=tuple(files), move=move)
        snapshots = {**current.snapshots, made.snapshot: made}
        self._point(table, view, current, self._save(snapshots, {**current.refs, branch: made.snapshot}))

    def staged(self, table: TableRow, move: Move, *, rows: int) -> MemoryStaged:
        """What the attempt staged, checked against its move. Raises: StagedWrong."""
        current = self._current(table, table.effects[move.stage].view)
        if move.branch not in current.refs:
            raise StagedWrong(f"{table.name}: branch {move.branch} is gone; the attempt is repeated")
        found = current.snapshots[current.refs[move.branch]]
        if found.move != (move.move_id, move.attempt):
            if rows == 0:
                return MemoryStaged(files=(), rows=0)
            raise StagedWrong(f"{table.name}: branch {move.branch} holds no snapshot of attempt {move.attempt}")
        _check_inside(table, move, found.added, rows=rows)
        return MemoryStaged(files=found.added, rows=rows)

    def build_append(self, table: TableRow, move: Move, staged: MemoryStaged, *, base: str, keep: int) -> Swap:
        """The view with *staged* on top of *base*, without the branch and with the newest *keep* snapshots.

        Raises: ForeignFiles.
        """
        view = self.state.views[base]
        if table.effects[move.stage].view == "stream":
            _check_no_overlap(table, view, move)
        return self._published(table, move, staged, base=base, files=(*view.main.files, *staged.files), keep=keep)

    def build_replace(
        self,
        table: TableRow,
        move: Move,
        staged: MemoryStaged,
        *,
        removed: Mapping[str, str | None],
        base: str,
        keep: int,
    ) -> Swap:
        """The view in which *staged* stands for the files of *removed*. Raises: FilesGone."""
        live = self.state.views[base].main.files
        if missing := sorted(set(removed) - {f.path for f in live}):
            raise FilesGone(f"{table.name}: {missing[0]} is not live any more; nothing was replaced")
        left = tuple(f for f in live if f.path not in removed)
        return self._published(table, move, staged, base=base, files=(*left, *staged.files), keep=keep)

    def _published(
        self, table: TableRow, move: Move, staged: MemoryStaged, *, base: str, files: tuple[MemoryFile, ...], keep: int
    ) -> Swap:
        view = self.state.views[base]
        made = MemorySnapshot(
            snapshot=self.state.next_id(), files=files, added=staged.files, move=(move.move_id, move.attempt)
        )
        refs = {name: at for name, at in view.refs.items() if name != move.branch} | {MAIN: made.snapshot}
        gone = {view.refs[move.branch]} - set(refs.values()) if move.branch in view.refs else set()
        snapshots = {**view.snapshots, made.snapshot: made}
        kept = {*[s for s in snapshots if s not in gone][-keep:], *refs.values()}
        after = self._save({s: at for s, at in snapshots.items() if s in kept}, refs)
        new = View(metadata=after.location, snapshot=made.snapshot)
        return Swap(view=table.effects[move.stage].view, old=base, base_snapshot=view.main.snapshot, new=new)

    def build_revert(
        self, table: TableRow, move_id: int, name: ViewName, *, base: str, head: Version, target: Version, keep: int
    ) -> Swap:
        """The view with the files of *target* on top of *base*, without the branches of moves."""
        wanted = target.views[name]
        view, restored = self.state.views[base], self.state.views[wanted.metadata]
        files = restored.snapshots[wanted.snapshot].files
        made = MemorySnapshot(snapshot=self.state.next_id(), files=files, move=(move_id, 1))
        refs = {name: at for name, at in view.refs.items() if move_of(name) is None} | {MAIN: made.snapshot}
        kept = {*[*view.snapshots, made.snapshot][-keep:], *refs.values()}
        snapshots = {s: at for s, at in {**view.snapshots, made.snapshot: made}.items() if s in kept}
        after = self._save(snapshots, refs)
        new = View(metadata=after.location, snapshot=made.snapshot)
        return Swap(view=name, old=base, base_snapshot=view.main.snapshot, new=new)

    def drop_branches(self, table: TableRow, dead: Sequence[str], *, view: ViewName = "stream") -> bool:
        """Remove the branches of dead attempts, and the snapshots that only they named."""
        current = self._current(table, view)
        refs = {name: at for name, at in current.refs.items() if name not in dead}
        gone = {current.refs[name] for name in dead if name in current.refs} - set(refs.values())
        snapshots = {s: at for s, at in current.snapshots.items() if s not in gone}
        self._point(table, view, current, self._save(snapshots, refs))
        return True

    def _current(self, table: TableRow, view: ViewName) -> MemoryView:
        return self.state.views[self.state.books.pointers[table.spec.namespace, table.views[view]]]

    def _save(self, snapshots: Mapping[int, MemorySnapshot], refs: Mapping[str, int]) -> MemoryView:
        made = MemoryView(location=f"memory:{uuid4().hex}", snapshots=dict(snapshots), refs=dict(refs))
        self.state.views[made.location] = made
        return made

    def _point(self, table: TableRow, view: ViewName, old: MemoryView, new: MemoryView) -> None:
        key = (table.spec.namespace, table.views[view])
        with self.state.transaction() as books:
            assert books.pointers[key] == old.location, "one writer at a time"
            books.pointers[key] = new.location


def _check_inside(table: TableRow, move: Move, files: Sequence[MemoryFile], *, rows: int) -> None:
    where = f"{table.name}: move {move.move_id}, attempt {move.attempt}"
    if (found := sum(file.rows for file in files)) != rows:
        raise StagedWrong(f"{where}: {rows} rows were to be moved, {found} were staged; nothing was published")
    if not move.ranges:  # a relayout, or a compaction: any row of the view
        return
    for file in files:
        p = file.partition
        if not (p in move.lo and move.lo[p] <= file.low and file.high < move.hi[p]):
            raise StagedWrong(
                f"{where}: a file holds offsets {file.low}..{file.high} of partition {p}, outside the move; "
                "nothing was published"
            )


def _check_no_overlap(table: TableRow, view: MemoryView, move: Move) -> None:
    for taken in move.ranges:
        highest = max((f.high for f in view.main.files if f.partition == taken.partition), default=-1)
        if highest >= taken.low:
            raise ForeignFiles(
                f"{table.name}: the stream view holds offset {highest} of partition {taken.partition}, "
                f"but the ledger has published only below {taken.low}. Nothing was written"
            )
