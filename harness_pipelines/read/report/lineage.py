"""Lineage: the origin and current place of a data file, a move's rows or a record.

Asked of the ledger and of the metadata of the lake. Rows are looked at only to say whether there is a record at a
coordinate: in the tables of the buffer, and in the one file of the stream view that its offset leads to.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Protocol

from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.access import HasLakeReads, HasLeases, HasLineage, HasLog, HasSetAside
from harness_pipelines.ports.lake import FileEntry, LakeReads, ViewPast, reachable
from harness_pipelines.ports.ledger import new_lease
from harness_pipelines.protocol.bounds import Bounds, OffsetRange, vector_from_json
from harness_pipelines.protocol.changes.corrections import Wanted
from harness_pipelines.protocol.lake.lineage import (
    FileAsked,
    FileMade,
    MoveAsked,
    Place,
    RecordAsked,
    asked_of,
    may_hold,
    place_of,
)
from harness_pipelines.protocol.topics import place
from harness_pipelines.protocol.versions import Version, ViewName

if TYPE_CHECKING:
    from harness_pipelines.ports.ledger import ReadState, TableRow
    from harness_pipelines.ports.proof import LineageBook


class Ports(HasLakeReads, HasLeases, HasLineage, HasLog, HasSetAside, Protocol):
    """The ports that it uses."""


class FileUnknown(HarnessError):
    """No version that is kept has the file."""

    way_on = "`harness lineage` knows files as far as versions are kept"


class MoveUnknown(HarnessError):
    """The table has no move of that number."""

    way_on = "`harness events TABLE` has the numbers of moves"


class OffsetUnknown(HarnessError):
    """The table does not have this coordinate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveTold:
    """A move as the ledger has it."""

    move_id: int
    stage: str
    trigger: str
    state: str
    attempt: int
    ranges: tuple[OffsetRange, ...]
    rows: int | None
    bytes: int | None
    base_version: int | None
    schema_version: int
    run_id: str | None
    parent_move: int | None
    planned_at: datetime
    committed_at: datetime | None
    error: str | None
    undone_by: int | None  #: the move of the revert that took it back
    version: int | None  #: that it made

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> MoveTold:
        """From a row of the ledger."""
        low, high = vector_from_json(row["lo"]), vector_from_json(row["hi"])
        taken = (OffsetRange(partition=p, low=low[p], high=high[p]) for p in sorted(low) if p in high)
        words = {name: row[name] for name in cls.__slots__ if name != "ranges"}
        return cls(ranges=tuple(r for r in taken if r.span), **words)

    def to_json(self) -> dict[str, Any]:
        words = {name: getattr(self, name) for name in self.__slots__}
        return {**words, "ranges": {str(r.partition): [r.low, r.high] for r in self.ranges}}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedMoves:
    """A checkpoint: old moves of one stage that are no longer in the ledger one by one."""

    stage: str
    kind: str
    moves: int
    first_move: int
    last_move: int
    folded_at: datetime

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> FoldedMoves:
        """From a row of the ledger."""
        return cls(**row)

    def __str__(self) -> str:
        which = f"{self.moves:,} moves from {self.first_move} to {self.last_move}"
        return f"{self.stage}, {self.kind}: {which}, folded into a checkpoint on {self.folded_at:%F}"

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The snapshot that added a file, and what it leads to."""

    snapshot: int | None
    operation: str | None  #: None: the snapshot is expired from the metadata
    told_by: Literal["snapshot", "ledger"] | None  #: the source that names the move
    version: int | None  #: that the snapshot came with; None: the ledger did not publish it by itself
    move_id: int | None = None
    move: MoveTold | None = None  #: None: nothing names it, or the ledger that knew it was lost

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.snapshot,
            "operation": self.operation,
            "expired": self.operation is None,
            "move_id": self.move_id,
            "move_told_by": self.told_by,
            "version": self.version,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTold:
    """A file of a view, and by what it came there."""

    view: ViewName
    entry: FileEntry
    origin: Origin

    def to_json(self) -> dict[str, Any]:
        entry, move = self.entry, self.origin.move
        return {
            "path": entry.path,
            "view": self.view,
            "content": "rows" if entry.is_data else "position deletes",
            "rows": entry.rows,
            "bytes": entry.bytes,
            "partition": entry.partition,
            "offsets": None if entry.low is None else [entry.low, entry.high],
            "sequence": entry.sequence,
            "version": self.origin.version,
            "move_id": self.origin.move_id,
            "stage": move.stage if move else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLineage:
    """Where a file came from, and in which versions it was live."""

    table: str
    file: FileTold
    hidden: FileEntry | None  #: the delete file that hides its rows in the last of these versions
    first: int | None  #: the first and the last kept version that has it; None: no kept version has it
    last: int | None
    head: int
    oldest: int  #: the oldest version that is kept
    folded: FoldedMoves | None = None  #: where its move is, if the ledger does not have it any more

    def to_json(self) -> dict[str, Any]:
        hidden = self.hidden and {"rows": self.hidden.rows, "by": self.hidden.path}
        return {
            "table": self.table,
            "kind": "file",
            "file": {**self.file.to_json(), "hides_in": self.file.entry.hides_in, "hidden": hidden},
            "snapshot": self.file.origin.to_json(),
            "versions": {
                "first": self.first,
                "last": self.last,
                "live": self.last == self.head,
                "oldest_kept": self.oldest,
                "newest": self.head,
            },
            "move": self.file.origin.move and self.file.origin.move.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLineage:
    """A move and what it did to the files of the views."""

    table: str
    move: MoveTold
    added: tuple[FileTold, ...]
    removed: tuple[FileTold, ...] | None  #: None: what was there before is not kept
    complete: bool  #: False: of what it added only what is still kept is known
    has_files: bool  #: a move of ingest has none, nor has one that did not take effect

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "kind": "move",
            "move": self.move.to_json(),
            "files": {
                "added": [file.to_json() for file in self.added],
                "removed": None if self.removed is None else [file.to_json() for file in self.removed],
                "complete": self.complete,
            }
            if self.has_files
            else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLineage:
    """Where a record lies at this instant, and the moves that brought it there."""

    table: str
    asked: RecordAsked
    place: Place
    keyed: bool  #: what the batch view has of a key is its newest record
    version: int
    bounds: Bounds
    record: bool | None  #: False: the log has no record there; None: only opening files, or Kafka, would tell
    files: tuple[FileTold, ...]  #: that have it, or may
    segments: tuple[str, ...]  #: tables of the buffer that have it
    recalled: tuple[str, ...]  #: tables of recalled rows that have it
    quarantined: Mapping[str, Any] | None
    moves: tuple[MoveTold, ...]  #: whose ranges have it, oldest first
    folded: tuple[FoldedMoves, ...] = ()  #: in which others are whose ranges had it

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "kind": "record",
            "partition": self.asked.partition,
            "offset": self.asked.offset,
            "place": self.place,
            "keyed": self.keyed,
            "version": self.version,
            "bounds": self.bounds.to_json(),
            "record": self.record,
            "files": [file.to_json() for file in self.files],
            "segments": list(self.segments),
            "recalled": list(self.recalled),
            "quarantine": self.quarantined,
            "moves": [move.to_json() for move in self.moves],
            "folded": [one.to_json() for one in self.folded],
        }


def lineage(stores: Ports, table: TableRow, what: str) -> FileLineage | MoveLineage | RecordLineage:
    """Where *what* came from: a data file, the number of a move, or ``PARTITION:OFFSET``.

    Raises: UsageError, FileUnknown, MoveUnknown, OffsetUnknown, LakeAway, MetadataMissing; of what only Kafka has, what
    a look into the topic raises.
    """
    match asked_of(what):
        case MoveAsked(move_id):
            return _move(_Look(stores, table), move_id)
        case RecordAsked() as record:
            with _leased(stores, table) as state:
                return _record(stores, table, state, record)
        case FileAsked() as file:
            return _file(_Look(stores, table), file)


class _Look:
    """The kept versions of a table, and the history of its views that they reach."""

    def __init__(self, stores: Ports, table: TableRow, *, only: Version | None = None) -> None:
        """*only*: no other version is looked at."""
        self.table, self.books, self._lake = table, stores.lineage(table), stores.lake_reads
        self.versions = self.books.versions() if only is None else [only]
        self._pasts: dict[ViewName, ViewPast] = {}

    @property
    def head(self) -> Version:
        return self.versions[-1]

    def past(self, view: ViewName) -> ViewPast:
        if view not in self._pasts:
            pins = {v.views[view].snapshot: v.views[view].metadata for v in reversed(self.versions) if view in v.views}
            self._pasts[view] = self._lake.past(self.table.name, pins)
        return self._pasts[view]

    def told(self, view: ViewName, entries: Iterable[FileEntry]) -> tuple[FileTold, ...]:
        """*entries* of *view*, each with its origin, in the order of their paths."""
        files = sorted(entries, key=lambda e: e.path)
        origins = self._origins(view, {e.snapshot for e in files if e.snapshot is not None})
        unknown = Origin(snapshot=None, operation=None, told_by=None, version=None)
        return tuple(FileTold(view=view, entry=e, origin=origins.get(e.snapshot or -1, unknown)) for e in files)

    def _origins(self, view: ViewName, snapshots: set[int]) -> dict[int, Origin]:
        """A snapshot that is expired is one that some version came with: the ledger keeps all versions."""
        made, told = self.books.made_by(view, snapshots), {s: self.past(view).told(s) for s in snapshots}
        by_snapshot = {s: one.move_id for s, one in told.items() if one is not None and one.move_id is not None}
        by_ledger = {s: one.move_id for s, one in made.items() if one.move_id is not None}
        by_either = {**by_ledger, **by_snapshot}
        moves = self.books.moves(by_either.values())
        return {
            s: Origin(
                snapshot=s,
                operation=one.operation if (one := told[s]) else None,
                told_by="snapshot" if s in by_snapshot else "ledger" if s in by_ledger else None,
                version=made[s].version if s in made else None,
                move_id=by_either.get(s),
                move=MoveTold.of(row) if (row := moves.get(by_either.get(s, -1))) else None,
            )
            for s in snapshots
        }

    def folded(self, origin: Origin) -> FoldedMoves | None:
        """Where the move of *origin* is, if the ledger does not have it any more."""
        if origin.move is not None or origin.move_id is None:
            return None
        return next((FoldedMoves.of(row) for row in self.books.folded(move_id=origin.move_id)), None)


# -- a file -------------------------------------------------------------------------------------------------


def _file(look: _Look, asked: FileAsked) -> FileLineage:
    view, snapshot, entry = _found(look, asked)
    past, [file] = look.past(view), look.told(view, [entry])
    having = [v for v in look.versions if view in v.views]
    last = next((v for v in reversed(having) if v.views[view].snapshot == snapshot), None)
    since = file.origin.version or 0
    able = (v for v in having if v.version >= since and past.has(v.views[view].snapshot, entry.path))
    first = next(able) if last else None
    return FileLineage(
        table=look.table.name,
        file=file,
        hidden=past.hiding(snapshot, entry.path) if entry.is_data else None,
        first=first.version if first else None,
        last=last.version if last else None,
        head=look.head.version,
        oldest=look.versions[0].version,
        folded=look.folded(file.origin),
    )


def _found(look: _Look, asked: FileAsked) -> tuple[ViewName, int, FileEntry]:
    """The newest snapshots of all views come first: most files that are asked for are live."""
    scopes: tuple[Callable[[ViewPast], Sequence[int]], ...] = (
        lambda past: past.snapshots[:1],
        lambda past: past.snapshots[1:],
    )
    for scope in scopes:
        for view in look.table.views:
            past = look.past(view)
            if found := past.find(asked, at=scope(past)):
                return view, *found
    name, versions = look.table.name, look.versions
    raise FileUnknown(
        f"{name}: no file {asked.path!r} in its {' and '.join(look.table.views)} view, in versions "
        f"{versions[0].version} to {versions[-1].version} as far as they are kept, nor in what their metadata names "
        "beside them: it was removed since, it is not published yet, or it is of another table or writer. "
        f"`harness audit {name}` lists rows of other writers, `harness explain {name} --json` names the metadata"
    )


# -- a move -------------------------------------------------------------------------------------------------


def _move(look: _Look, move_id: int) -> MoveLineage:
    name = look.table.name
    move = _told(look.books, name, move_id)
    has_files = move.state == "COMMITTED" and move.stage != "ingest"
    steps = list(_steps(look, move)) if has_files else []
    removed = [one.removed for one in steps if one.removed is not None]
    known = bool(steps) or move.version is not None
    return MoveLineage(
        table=name,
        move=move,
        added=tuple(file for one in steps for file in one.added),
        removed=tuple(chain.from_iterable(removed)) if known and len(removed) == len(steps) else None,
        complete=known and all(one.complete for one in steps),
        has_files=has_files,
    )


def without_files(stores: Ports, table: TableRow, move_id: int) -> MoveLineage:
    """The ledger's own knowledge of a published move. Raises: MoveUnknown."""
    move = _told(stores.lineage(table), table.name, move_id)
    return MoveLineage(table=table.name, move=move, added=(), removed=None, complete=False, has_files=True)


def _told(books: LineageBook, name: str, move_id: int) -> MoveTold:
    rows = books.moves([move_id])
    if move_id not in rows and (into := books.folded(move_id=move_id)):
        raise MoveUnknown(
            f"{name} has no move {move_id} in the ledger any more, or never had it: it is older than the table's "
            f"`retention.history`. The moves of then were folded: {', '.join(map(str, map(FoldedMoves.of, into)))}"
        )
    if move_id not in rows:
        raise MoveUnknown(
            f"{name} has no move {move_id} in the ledger: numbers of moves are given over all tables. `harness events "
            f"{name}` names those that were published, `harness status {name}` those that are open"
        )
    return MoveTold.of(rows[move_id])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What a move did to one view."""

    added: tuple[FileTold, ...]
    removed: tuple[FileTold, ...] | None
    complete: bool


def _steps(look: _Look, move: MoveTold) -> Iterator[_Step]:
    """By the two versions that it lies between; where it made none by itself, by the snapshot that names it."""
    if move.version is None:
        for view in look.table.views:
            if (told := look.past(view).of_move(move.move_id)) is not None:
                yield _step(look, view, before=told.parent, after=told.snapshot)
        return
    around = look.books.versions_of([move.version - 1, move.version])
    made, before = around[move.version], around.get(move.version - 1)
    for view, now in made.views.items():
        was = before.views.get(view) if before else None
        if was is None or was.snapshot != now.snapshot:
            yield _step(look, view, before=was.snapshot if was else None, after=now.snapshot)


def _step(look: _Look, view: ViewName, *, before: int | None, after: int) -> _Step:
    past = look.past(view)
    now, was = past.files(after), None if before is None else past.files(before)
    if now is None:  # what is left of it is in the oldest that is kept: files only become fewer
        left = past.files(_oldest_since(look, view, after)) or {}
        return _Step(added=look.told(view, _by(left, after)), removed=None, complete=False)
    if was is None:
        return _Step(added=look.told(view, _by(now, after)), removed=None, complete=False)
    added = [entry for path, entry in now.items() if path not in was]
    removed = [entry for path, entry in was.items() if path not in now]
    return _Step(added=look.told(view, added), removed=look.told(view, removed), complete=True)


def _oldest_since(look: _Look, view: ViewName, snapshot: int) -> int:
    """The snapshot of the oldest kept version that is not older than the one that *snapshot* came with."""
    made = look.books.made_by(view, [snapshot]).get(snapshot)
    since = made.version if made else 0
    found = next((v for v in look.versions if v.version >= since and view in v.views), look.head)
    return found.views[view].snapshot


def _by(files: Mapping[str, FileEntry], snapshot: int) -> list[FileEntry]:
    """Those that *snapshot* added."""
    return [entry for entry in files.values() if entry.snapshot == snapshot]


# -- a record -----------------------------------------------------------------------------------------------


@contextmanager
def _leased(stores: Ports, table: TableRow) -> Iterator[ReadState]:
    """The read state of this instant; nothing of it is removed while the block lasts."""
    holder, lease = f"{socket.gethostname()}:{os.getpid()}", timedelta(seconds=table.spec.retention.lease)
    lease_id = new_lease()
    try:
        yield stores.leases.look(table, holder=holder, lease=lease, lease_id=lease_id)
    finally:
        stores.leases.end(lease_id)


def _record(stores: Ports, table: TableRow, state: ReadState, asked: RecordAsked) -> RecordLineage:
    bounds = _bounds(table, state, asked)
    refused = stores.set_aside(table, Wanted(partition=asked.partition, offset=asked.offset), limit=1)
    held = bool(refused) and refused[0]["state"] == "held"
    has_buffer, version = table.intake.buffered, state.version
    tier = place_of(bounds, asked.offset, has_batch=version.batch is not None, has_buffer=has_buffer)
    if tier == "kafka" and not held:
        _check_log(stores, table, asked)
    books = stores.lineage(table)
    moves = tuple(MoveTold.of(row) for row in books.carried(asked))
    segments = books.holding([s.name for s in state.segments], asked) if tier == "buffer" else []
    overlays = [one.segment for one in version.overlays] if tier == "batch" else []
    record = None if held else _is_record(stores.lake_reads, table, state, asked, tier, in_buffer=bool(segments))
    files = () if held or record is False else _files(_Look(stores, table, only=version), asked, tier, moves)
    return RecordLineage(
        table=table.name,
        asked=asked,
        place="quarantine" if held else tier,
        keyed=bool(table.spec.key),
        version=version.version,
        bounds=bounds,
        record=record,
        files=files,
        segments=tuple(segments),
        recalled=tuple(books.holding(overlays, asked)),
        quarantined=_refusal(refused[0]) if refused else None,
        moves=moves,
        folded=tuple(FoldedMoves.of(row) for row in books.folded(record=asked)),
    )


def _bounds(table: TableRow, state: ReadState, asked: RecordAsked) -> Bounds:
    """Of the partition. Raises: OffsetUnknown."""
    bounds = state.bounds.get(asked.partition)
    if bounds is None:
        known = ", ".join(str(p) for p in sorted(state.bounds))
        raise OffsetUnknown(
            f"{table.name} has no partition {asked.partition} of topic {table.spec.topic}: it has {known}; "
            f"`harness status {table.name}` shows them"
        )
    if asked.offset < bounds.start:
        raise OffsetUnknown(
            f"{table.name} begins at offset {bounds.start} of partition {asked.partition}: offset {asked.offset} never "
            "belonged to it. A table whose spec has another `start` may have it"
        )
    return bounds


def _check_log(stores: Ports, table: TableRow, asked: RecordAsked) -> None:
    """The log must reach over the offset. Raises: OffsetUnknown; KafkaUnreachable, TopicMissing, ..."""
    from harness_pipelines.ports.source import check_topic

    topic = table.spec.topic
    check_topic(table, lambda: stores.log.describe(topic))
    log = stores.log.watermarks(topic, [asked.partition])[asked.partition]
    where = "topic {}, partition {}".format(*place(topic, asked.partition))
    if asked.offset >= log.end:
        raise OffsetUnknown(
            f"{table.name}: no record at offset {asked.offset} yet: {where} ends at {log.end}; ask again once it is "
            "produced (a transaction must be committed)"
        )
    if asked.offset < log.low:
        raise OffsetUnknown(
            f"{table.name}: offset {asked.offset} was not taken, and {where} begins at {log.low} by now: retention "
            f"removed it. `harness status {table.name}` says what the table waits for"
        )


def _is_record(
    lake: LakeReads, table: TableRow, state: ReadState, asked: RecordAsked, tier: Place, *, in_buffer: bool
) -> bool | None:
    """Return whether the log has a record at the coordinate, if one file tells."""
    if tier == "buffer":
        return in_buffer
    if tier == "kafka" or state.version.tiered == "batch":
        return None
    one = {asked.partition: (asked.offset, asked.offset + 1)}
    with reachable(table.name, "looking for the record in the stream view"):
        return lake.stored_in(state.version.stream.metadata, one).rows > 0


def _files(look: _Look, asked: RecordAsked, tier: Place, moves: tuple[MoveTold, ...]) -> tuple[FileTold, ...]:
    """The file of the stream view that has the record, and those of the batch view that may."""
    found: list[FileTold] = []
    if tier not in ("batch", "stream"):
        return ()
    for view, pinned in look.head.views.items():
        live = look.past(view).files(pinned.snapshot) or {}
        if view == "stream":
            found += look.told(view, (e for e in live.values() if e.reaches(asked.partition, asked.offset)))
        elif tier == "batch":
            found += _candidates(look, asked, live.values(), moves)
    return tuple(found)


def _candidates(
    look: _Look, asked: RecordAsked, live: Iterable[FileEntry], moves: tuple[MoveTold, ...]
) -> Iterator[FileTold]:
    stages = {stage for stage, effect in look.table.effects.items() if effect.view == "batch"}
    came = [m.version for m in moves if m.stage in stages and m.undone_by is None]
    keyed = bool(look.table.spec.key)
    for file in look.told("batch", (e for e in live if e.reaches(asked.partition, asked.offset))):
        made = FileMade(version=file.origin.version, ranges=file.origin.move.ranges if file.origin.move else ())
        if may_hold(made, asked, since=came[-1] if came else None, keyed=keyed):
            yield file


def _refusal(row: Mapping[str, Any]) -> dict[str, Any]:
    """Without its raw bytes, which `harness quarantine show` prints."""
    return {word: row[word] for word in ("reason", "detail", "state", "recorded_at")}
