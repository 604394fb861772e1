"""The reference ledger: the commits of the design over plain mappings, through the same pure rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.ledger import (
    Boundary,
    BuildRevert,
    LayoutState,
    MoveDraft,
    PartitionStatus,
    PointerMoved,
    SickTable,
    Stopped,
    Swap,
    TableExists,
    TableRow,
    TableUnknown,
    view_dropped,
)
from harness_pipelines.ports.source import TopicIdentity
from harness_pipelines.protocol.bounds import BoundaryGap, Bounds, Vector, vector_to_json
from harness_pipelines.protocol.changes.reverts import RevertPlan
from harness_pipelines.protocol.claims import Claim, FencedOut, Stage, may_take
from harness_pipelines.protocol.moves import NO_RESULT, Move, MoveClosed, MoveState, check_open, closed_by
from harness_pipelines.protocol.schema.schemas import SchemaRow, check_columns, check_spec
from harness_pipelines.protocol.versions import Version, View, ViewName, advance, check_base, tiered_of
from harness_pipelines.spec.load import dump_spec
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.memory import revert as reverting
from harness_pipelines_tests.memory.state import Books, MemoryState, MoveEntry, ended

OPTIMISTIC_BUILDS = 3
_OPEN = (MoveState.PLANNED, MoveState.QUARANTINED)


class MemoryLedger:
    """`Ledger` in memory."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state
        self._workers: dict[str, tuple[datetime, frozenset[Stage]]] = {}  #: until when they share tables, by holder

    # -- tables ---------------------------------------------------------------------------------------------

    def create_table(
        self,
        spec: TableSpec,
        identity: TopicIdentity,
        *,
        starts: Vector,
        fields: Sequence[Mapping[str, Any]],
        views: Mapping[ViewName, View],
    ) -> TableRow:
        """Record the table, its schema 1, its partitions and version 1, and make its views known to the catalog."""
        with self.state.transaction() as books:
            if any(t.name == spec.table for t in books.tables.values()):
                raise TableExists(f"table {spec.table} exists already; nothing was changed")
            table = TableRow(
                table_id=self.state.next_id(),
                spec=spec,
                identity=replace(identity, partitions=()),
                retained_from=0,
                stopped=None,
                history=(SchemaRow(schema_version=1, fields=tuple(fields), spec=dump_spec(spec), starts={}),),
            )
            books.tables[table.table_id] = table
            for name, view in views.items():
                books.pointers[spec.namespace, table.views[name]] = view.metadata
            books.add_partitions(table, starts)
            first = Version(
                table_id=table.table_id,
                version=1,
                stream=tiered_of(views),
                batch=views.get("batch"),
                schema_version=1,
                bounds={p: Bounds.at(start) for p, start in starts.items()},
                move_id=None,
                committed_at=self.state.now(),
            )
            books.versions[table.table_id] = (first,)
            books.emit(table.table_id, "created", {"version": 1})
            return table

    def update_spec(self, table: TableRow, spec: TableSpec, *, decoding: bool = False) -> TableRow:
        with self.state.transaction() as books:
            found = books.tables[table.table_id]
            check_spec(table.name, read=table.spec, found=found.spec, what="these are settings")
            check_columns(spec, fields=found.fields, schema_version=found.schema_version)
            changed = replace(found, spec=spec)
            books.tables[table.table_id] = changed
            return changed

    def tables(self) -> list[TableRow]:
        return sorted(self.state.books.tables.values(), key=lambda t: (t.spec.namespace, t.spec.name))

    def survey(self, names: Collection[str] | None = None) -> tuple[list[TableRow], list[SickTable]]:
        # What is in memory was read already, so nothing is sick.
        return [table for table in self.tables() if names is None or table.name in names], []

    def table(self, name: str) -> TableRow:
        """The table called ``namespace.name``. Raises: TableUnknown, naming the tables that exist."""
        found = next((t for t in self.tables() if t.name == name), None)
        if found is None:
            known = ", ".join(t.name for t in self.tables()) or "none yet"
            raise TableUnknown(f"no table {name!r}; tables: {known}. `harness table apply FILE` creates one")
        return found

    def stop_table(self, table: TableRow, reason: str | None, *, stage: str | None = None) -> None:
        with self.state.transaction() as books:
            books.tables[table.table_id] = replace(books.tables[table.table_id], stopped=reason)
            books.stopped_stages[table.table_id] = stage

    def stopped(self, table: TableRow) -> Stopped | None:
        books = self.state.books
        why = books.tables[table.table_id].stopped
        return None if why is None else Stopped(why, books.stopped_stages[table.table_id])

    def start_table(self, table: TableRow, was: str) -> bool:
        with self.state.transaction() as books:
            found = books.tables[table.table_id]
            if found.stopped != was:
                return False
            books.tables[table.table_id] = replace(found, stopped=None)
            return True

    def add_partitions(self, claim: Claim, starts: Vector) -> None:
        with self.state.transaction() as books:
            books.add_partitions(books.tables[claim.table_id], starts)
            books.fence(claim, now=self.state.now())

    # -- claims ---------------------------------------------------------------------------------------------

    def claim(self, table: TableRow, stage: Stage, *, shard: int, holder: str, lease: timedelta) -> Claim | None:
        """Take the claim if nobody holds it; ``None`` if somebody does."""
        with self.state.transaction() as books:
            key, now = (table.table_id, stage, shard), self.state.now()
            current = books.claims.get(key)
            if not may_take(current, now=now):
                return None
            epoch = 1 if current is None else current.epoch + 1
            books.claims[key] = Claim(
                table_id=table.table_id, stage=stage, shard=shard, holder=holder, epoch=epoch, lease_until=now + lease
            )
            return books.claims[key]

    def claimed(self, table: TableRow, stage: Stage, *, shard: int) -> tuple[Claim, datetime] | None:
        found = self.state.books.claims.get((table.table_id, stage, shard))
        return None if found is None else (found, self.state.now())

    def release_of(self, table: TableRow, stage: Stage, *, shard: int, holder: str) -> None:
        """Give back whatever claim *holder* has of a stage."""
        found = self.state.books.claims.get((table.table_id, stage, shard))
        if found is not None and found.holder == holder:
            self.release(found)

    def renew(self, claim: Claim, *, lease: timedelta) -> Claim:
        """Extend a claim that is still held. Raises: FencedOut."""
        with self.state.transaction() as books:
            books.fence(claim, now=self.state.now())
            renewed = replace(claim, lease_until=self.state.now() + lease)
            books.claims[claim.table_id, claim.stage, claim.shard] = renewed
            return renewed

    def modes(self) -> dict[int, tuple[str, str | None]]:
        return {number: (table.name, table.spec.mode) for number, table in self.state.books.tables.items()}

    def beat(self, holder: str, stages: Collection[Stage], *, lease: timedelta) -> frozenset[str]:
        now, mine = self.state.now(), frozenset(stages)
        self._workers[holder] = (now + lease, mine)
        return frozenset(one for one, (until, of) in self._workers.items() if of == mine and until > now)

    def leave(self, holder: str) -> None:
        self._workers.pop(holder, None)

    def renew_all(self, claims: Collection[Claim], *, lease: timedelta) -> dict[Claim, Claim | FencedOut]:
        found: dict[Claim, Claim | FencedOut] = {}
        for one in claims:
            try:
                found[one] = self.renew(one, lease=lease)
            except FencedOut as lost:
                found[one] = lost
        return found

    def release_all(self, holder: str, stages: Collection[tuple[int, Stage]]) -> None:
        for claim in list(self.state.books.claims.values()):
            if claim.holder == holder and (claim.table_id, claim.stage) in stages:
                self.release(claim)

    def release(self, claim: Claim) -> None:
        """Give a claim back; its epoch stays known."""
        with self.state.transaction() as books:
            key = (claim.table_id, claim.stage, claim.shard)
            current = books.claims.get(key)
            if current is not None and (current.holder, current.epoch) == (claim.holder, claim.epoch):
                books.claims[key] = replace(current, lease_until=self.state.now())

    # -- moves ----------------------------------------------------------------------------------------------

    def plan_move(self, claim: Claim, draft: MoveDraft) -> Move:
        """Record a move before any file of it is written. Raises: MoveClosed, FencedOut."""
        with self.state.transaction() as books:
            if _open_move(books, claim.table_id, draft.stage, draft.shard, states=(MoveState.PLANNED,)):
                raise MoveClosed(
                    f"{draft.stage} of table {claim.table_id} has an open move of another holder; nothing was planned"
                )
            move = Move(
                move_id=self.state.next_id(),
                table_id=claim.table_id,
                stage=draft.stage,
                shard=draft.shard,
                lo=draft.lo,
                hi=draft.hi,
                base_version=draft.base_version,
                schema_version=draft.schema_version,
                state=MoveState.PLANNED,
                attempt=1,
                epoch=claim.epoch,
                parts=tuple(draft.parts),
                recall=draft.recall,
            )
            books.moves[move.move_id] = MoveEntry(
                move=move, trigger=draft.trigger, run_id=draft.run_id, planned_at=self.state.now()
            )
            books.fence(claim, now=self.state.now())
            return move

    def open_move(self, table: TableRow, stage: Stage, *, shard: int) -> Move | None:
        return _open_move(self.state.books, table.table_id, stage, shard, states=_OPEN)

    def take_attempt(self, claim: Claim, move: Move, *, run_id: str | None) -> Move:
        """Begin the next attempt: same range, same base, same schema, another branch. Raises: MoveClosed, FencedOut."""
        with self.state.transaction() as books:
            entry = books.moves[move.move_id]
            if entry.move.state is not MoveState.PLANNED or entry.move.attempt != move.attempt:
                raise MoveClosed(f"move {move.move_id} is not open in attempt {move.attempt} any more")
            following = replace(entry.move, attempt=move.attempt + 1, epoch=claim.epoch)
            books.moves[move.move_id] = replace(entry, move=following, run_id=run_id)
            books.fence(claim, now=self.state.now())
            return following

    def close_move(self, claim: Claim, move: Move, *, state: MoveState, error: str) -> None:
        """End a move without effect. Raises: FencedOut."""
        with self.state.transaction() as books:
            entry = books.moves[move.move_id]
            if entry.move.state in _OPEN:
                closed = ended(entry, now=self.state.now(), state=state)
                books.moves[move.move_id] = replace(closed, error=closed_by(error, entry.error))
            books.fence(claim, now=self.state.now())

    def note_failure(self, move: Move, *, error: str | None, counts: bool) -> int:
        """Record why an attempt failed; ``None``: of its end nothing is known, and what was noted before stays."""
        with self.state.transaction() as books:
            entry = books.moves[move.move_id]
            if entry.move.state is MoveState.PLANNED and entry.move.attempt == move.attempt:
                said = error[:2000] if error else entry.error or NO_RESULT
                entry = replace(entry, failures=entry.failures + int(counts), error=said)
                books.moves[move.move_id] = entry
            return entry.failures

    def moves(self, table: TableRow, *, stage: Stage | None = None, limit: int = 100) -> list[Mapping[str, Any]]:
        """The latest moves, newest first, as the ledger's rows."""
        mine = [e for e in self.state.books.moves.values() if e.move.table_id == table.table_id]
        wanted = [e for e in mine if stage is None or e.move.stage is stage]
        return [_move_row(e) for e in sorted(wanted, key=lambda e: e.move.move_id, reverse=True)[:limit]]

    # -- versions -------------------------------------------------------------------------------------------

    def head(self, table: TableRow) -> Version:
        return self.state.books.versions[table.table_id][-1]

    def versions(self, table: TableRow) -> list[Version]:
        """All versions that can still be read, oldest first."""
        return [v for v in self.state.books.versions[table.table_id] if v.version >= table.retained_from]

    def version(self, table: TableRow, number: int | None) -> Version | None:
        """One of them; None where it can no longer be read."""
        return next((v for v in self.versions(table) if v.version == number), None)

    def positions(self, table: TableRow) -> list[PartitionStatus]:
        """Bounds of the head and of this instant, by partition."""
        books = self.state.books
        lake = books.lake_of(table.table_id)
        return [
            PartitionStatus(
                partition=p,
                bounds=Bounds(
                    start=at.start, batch_hi=lake[p].batch_hi, stream_hi=lake[p].stream_hi, buffer_hi=at.buffer_hi
                ),
                trim_floor=lake[p].trim_floor,
            )
            for p, at in books.ingest_of(table.table_id).items()
        ]

    def since_tier_s(self, table: TableRow) -> float:
        """Seconds since tier last moved something, or since the table was made, by the clock of the stores."""
        books = self.state.books
        mine = [e for e in books.moves.values() if (e.move.table_id, e.move.stage) == (table.table_id, Stage.TIER)]
        ends = [e.committed_at for e in mine if e.move.state is MoveState.COMMITTED and e.committed_at is not None]
        since = max(ends, default=books.versions[table.table_id][0].committed_at)
        return (self.state.now() - since).total_seconds()

    def pointer(self, table: TableRow, view: ViewName) -> str:
        """The metadata file that the catalog names for *view* now. Raises: TableUnknown for one that was dropped."""
        found = self.state.books.pointers.get((table.spec.namespace, table.views[view]))
        if found is None:
            raise view_dropped(table, view)
        return found

    def layout(self, table: TableRow, version: Version) -> LayoutState | None:
        """How the batch view of *version* is clustered; ``None`` before its first rows."""
        return None if version.layout is None else self.state.books.layouts[table.table_id, version.layout]

    def publish(self, table: TableRow, boundary: Boundary, build: Callable[[str], Swap]) -> Version:
        """The boundary commit of *tier* and *otree*; *build* is called again when the pointer moved meanwhile.

        Raises: FencedOut, MoveClosed, BoundaryGap, ForeignCommit.
        """
        for _ in range(OPTIMISTIC_BUILDS):
            swap = self._built(table, boundary.move, build)
            try:
                return self._publish(table, boundary, lambda _, swap=swap: swap)  # type: ignore[misc]
            except PointerMoved:
                continue
        return self._publish(table, boundary, build)

    def plan_revert(self, table: TableRow, *, to: int | None, log_from: Vector) -> RevertPlan:
        """What `revert` would do now. Raises: VersionGone."""
        return reverting.plan(self.state.books, table, to=to, log_from=log_from)

    def revert(self, table: TableRow, *, to: int | None, log_from: Vector, build: BuildRevert) -> Version:
        """Publish a version that restores version *to*. Raises: RevertRefused, VersionGone."""
        return reverting.commit(self.state, table, to=to, log_from=log_from, build=build)

    def _built(self, table: TableRow, move: Move, build: Callable[[str], Swap]) -> Swap:
        try:
            return build(self.pointer(table, table.effects[move.stage].view))
        except HarnessError:
            _check_open(self.state.books, move)
            raise

    def _publish(self, table: TableRow, boundary: Boundary, build: Callable[[str], Swap]) -> Version:
        move, effect, now = boundary.move, table.effects[boundary.move.stage], self.state.now
        with self.state.transaction() as books:
            pointer = (table.spec.namespace, table.views[effect.view])
            location = books.pointers[pointer]
            _check_open(books, move)
            swap = build(location)
            if swap.old != location:
                raise PointerMoved(f"built on {swap.old}, the catalog is at {location}")
            _ingest_with_move(books, boundary)
            head = books.versions[table.table_id][-1]
            check_base(head, swap.base_snapshot, table=table.name, view=effect.view)
            lake = books.lake_of(table.table_id)
            following = advance(
                head,
                move,
                view=swap.new,
                buffer_hi={p: at.buffer_hi for p, at in books.ingest_of(table.table_id).items()},
                starts={p: at.start for p, at in lake.items()},
                now=now(),
                relaid=swap.layout is not None,
                overlays=boundary.overlays,
            )
            books.pointers[pointer] = swap.new.metadata
            for taken in move.ranges:
                moved = replace(lake[taken.partition], **dict.fromkeys(effect.bounds, taken.high))
                books.lake_positions[table.table_id, taken.partition] = moved
            books.versions[table.table_id] += (following,)
            if swap.layout is not None:
                books.layouts[table.table_id, following.version] = swap.layout
            entry = ended(books.moves[move.move_id], now=now(), state=MoveState.COMMITTED, rows=boundary.rows)
            books.moves[move.move_id] = replace(entry, bytes=boundary.bytes)
            payload = {"version": following.version, "move": move.move_id, "stage": move.stage, "rows": boundary.rows}
            books.emit(table.table_id, "published", payload)
            books.fence(boundary.claim, now=now())
            return following


def _ingest_with_move(books: Books, boundary: Boundary) -> None:
    """`buffer: none`: the move itself is the ingest; its refused records are quarantined with it."""
    move = boundary.move
    for partition, high in sorted(boundary.ingest_to.items()):
        at = books.ingest_positions[move.table_id, partition]
        if at.buffer_hi < move.lo[partition]:
            raise BoundaryGap(
                what="the buffer", partition=partition, expected_low=at.buffer_hi, got_low=move.lo[partition]
            )
        epoch = boundary.epochs.get(partition, at.leader_epoch) if high >= at.buffer_hi else at.leader_epoch
        books.ingest_positions[move.table_id, partition] = replace(
            at, buffer_hi=max(at.buffer_hi, high), leader_epoch=epoch
        )
    for record in boundary.refused:
        books.quarantine[move.table_id, record.partition, record.offset] = record


def _open_move(books: Books, table_id: int, stage: Stage, shard: int, *, states: Sequence[MoveState]) -> Move | None:
    wanted = (table_id, stage, shard)
    found = [e.move for e in books.moves.values() if (e.move.table_id, e.move.stage, e.move.shard) == wanted]
    return max((m for m in found if m.state in states), key=lambda m: m.move_id, default=None)


def _check_open(books: Books, move: Move) -> None:
    entry = books.moves.get(move.move_id)
    check_open(move, entry.move if entry else None)


def _move_row(entry: MoveEntry) -> dict[str, Any]:
    move = entry.move
    return {
        "move_id": move.move_id,
        "table_id": move.table_id,
        "stage": str(move.stage),
        "shard": move.shard,
        "lo": vector_to_json(move.lo),
        "hi": vector_to_json(move.hi),
        "base_version": move.base_version,
        "schema_version": move.schema_version,
        "state": str(move.state),
        "attempt": move.attempt,
        "epoch": move.epoch,
        "failures": entry.failures,
        "trigger": entry.trigger,
        "run_id": entry.run_id,
        "rows": move.rows,
        "bytes": entry.bytes,
        "error": entry.error,
        "planned_at": entry.planned_at,
        "committed_at": entry.committed_at,
        "undone_by": entry.undone_by,
    }
