"""The reference revert: the same plan and checks as in Postgres."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from harness_pipelines.ports.ledger import BuildRevert, TableRow
from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.changes.reverts import (
    Retained,
    RevertPlan,
    check_revert,
    fenced,
    in_effect,
    plan_revert,
    reverted,
)
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.moves import Move, MoveState, closed_by
from harness_pipelines.protocol.versions import Version, VersionGone
from harness_pipelines_tests.memory.state import Books, LakePosition, MemoryState, MoveEntry, ended


def plan(books: Books, table: TableRow, *, to: int | None, log_from: Vector) -> RevertPlan:
    """What a revert would do. Raises: VersionGone."""
    every, lake = books.versions[table.table_id], books.lake_of(table.table_id)
    head, retained_from = every[-1], books.tables[table.table_id].retained_from
    target = head if to is None else next((v for v in every if v.version == to), None)
    if target is None:
        raise VersionGone(f"{table.name} has no version {to}; the newest is {head.version}")
    unbuffered = table.spec.buffer == "none"
    held = Retained(
        retained_from=retained_from,
        hot="tail" if unbuffered else "buffer",
        hot_from=log_from if unbuffered else {p: at.trim_floor for p, at in lake.items()},
    )
    return plan_revert(
        head,
        target,
        [v for v in every if v.version >= retained_from],
        held,
        starts={p: at.start for p, at in lake.items()},
        moves=[e.move for e in books.moves.values() if e.move.table_id == table.table_id],
        claims=[c for c in books.claims.values() if c.table_id == table.table_id],
    )


def commit(state: MemoryState, table: TableRow, *, to: int | None, log_from: Vector, build: BuildRevert) -> Version:
    """Publish the version that restores *to*. Raises: VersionGone, RevertRefused."""
    with state.transaction() as books:
        planned, now, move_id = plan(books, table, to=to, log_from=log_from), state.now(), state.next_id()
        check_revert(planned)
        pointers = {view: (table.spec.namespace, name) for view, name in table.views.items()}
        bases = {v: books.pointers.get(at, planned.head.views[v].metadata) for v, at in pointers.items()}
        new = {view: build(view, base, planned.head, planned.target, move_id).new for view, base in bases.items()}
        lake = books.lake_of(table.table_id)
        following = reverted(
            planned.head,
            planned.target,
            views=new,
            buffer_hi={p: at.buffer_hi for p, at in books.ingest_of(table.table_id).items()},
            starts={p: at.start for p, at in lake.items()},
            move_id=move_id,
            now=now,
        )
        for view, pointer in pointers.items():
            books.pointers[pointer] = new[view].metadata
        for partition, bounds in following.bounds.items():
            at = lake[partition]
            books.lake_positions[table.table_id, partition] = LakePosition(
                start=at.start,
                batch_hi=bounds.batch_hi,
                stream_hi=bounds.stream_hi,
                trim_floor=min(at.trim_floor, bounds.stream_hi),
            )
        books.versions[table.table_id] += (following,)
        _record(books, planned, following, now=now)
        books.tables[table.table_id] = replace(books.tables[table.table_id], stopped=None)
        payload = {"version": following.version, "revert_of": planned.target.version, "move": move_id}
        books.emit(table.table_id, "reverted", payload)
        for key, claim in books.claims.items():
            if claim.table_id == table.table_id:
                books.claims[key] = fenced(claim, now=now)
        return following


def _record(books: Books, planned: RevertPlan, following: Version, *, now: datetime) -> None:
    """Close the open moves, record the revert's own, and mark the moves that it takes back."""
    table_id, move_id = following.table_id, following.move_id
    assert move_id is not None
    for open_move in planned.open_moves:
        closed = ended(books.moves[open_move.move_id], now=now, state=MoveState.ABANDONED)
        why = closed_by(f"the table was reverted to version {planned.target.version}", closed.error)
        books.moves[open_move.move_id] = replace(closed, error=why)
    move = Move(
        move_id=move_id,
        table_id=table_id,
        stage=Stage.REVERT,
        shard=0,
        lo={r.partition: r.low for r in planned.back},
        hi={r.partition: r.high for r in planned.back},
        base_version=planned.head.version,
        schema_version=following.schema_version,
        state=MoveState.COMMITTED,
        attempt=1,
        epoch=0,
        rows=0,
    )
    books.moves[move_id] = MoveEntry(move=move, trigger="revert", run_id=None, planned_at=now, committed_at=now)
    lineage = in_effect({v.version: v.revert_of for v in books.versions[table_id]}, following.version)
    for version in books.versions[table_id]:
        entry = None if version.move_id is None else books.moves.get(version.move_id)
        if entry is None or entry.move.stage is Stage.REVERT:
            continue
        if (version.version in lineage) != (entry.undone_by is None):
            undone_by = move_id if entry.undone_by is None else None
            books.moves[entry.move.move_id] = replace(entry, undone_by=undone_by)
