"""Tier: buffered rows become files of the stream view.

plan: choose ranges, record the move. stage: Spark writes them to the attempt's branch. publish: the boundary commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from harness_pipelines import faults
from harness_pipelines.errors import HarnessError, Recovery, TryAgain
from harness_pipelines.protocol.bounds import Bounds, Vector
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.moves import Move, MoveState, MoveStuck, halve, plan_ranges
from harness_pipelines.protocol.segments import needed
from harness_pipelines.protocol.versions import Version, check_base
from harness_pipelines.stages.ingest import check_source
from harness_pipelines.stores.lake import BaseGone, Staged
from harness_pipelines.stores.ports import Boundary, MoveDraft, RefusedRecord, Swap, TableRow

if TYPE_CHECKING:
    from harness_pipelines.stores.open import Stores

log = structlog.get_logger(__name__)
FAILURES_MAX = 3  #: attempts that failed by themselves before a move is halved
MOVE_OFFSETS_MAX = 8_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one attempt staged."""

    staged: Staged
    refused: tuple[RefusedRecord, ...] = ()


def trigger(stores: Stores, table: TableRow) -> str | None:
    """Why tier should move now: ``recovery`` of an open move, or a trigger of the spec; ``None`` if it need not."""
    if stores.tables.open_move(table, Stage.TIER, shard=0) is not None:
        return "recovery"
    sizes = stores.segments.sizes(table)
    since = (datetime.now(UTC) - stores.tables.head(table).committed_at).total_seconds()
    buffered = sum(int(s["bytes"]) for s in sizes if s["state"] != "retired")
    return due(table, takeable(stores, table), buffered_bytes=buffered, oldest_s=since)


def due(table: TableRow, bounds: Mapping[int, Bounds], *, buffered_bytes: int, oldest_s: float) -> str | None:
    """Which trigger of the spec asks for a move now: ``rows``, ``bytes``, ``age``, or none."""
    rules, lag = table.spec.tier, sum(b.buffer_hi - b.stream_hi for b in bounds.values())
    if lag == 0:
        return None
    if lag >= rules.max_rows:
        return "rows"
    if buffered_bytes >= rules.max_bytes:
        return "bytes"
    return "age" if oldest_s >= rules.max_age else None


def tier_once(
    stores: Stores, table: TableRow, claim: Claim, *, trigger: str, run_id: str | None = None
) -> Version | None:
    """Move what is buffered to the lake, finishing an open move first; ``None`` when there is nothing to move.

    Raises: MoveStuck, FencedOut (NEVER); TryAgain when Spark or a store is away.
    """
    move = _open_or_plan(stores, table, claim, trigger=trigger, run_id=run_id)
    if move is None:
        return None
    faults.point("tier.after_plan")
    try:
        attempt = stage(stores, table, move)
        faults.point("tier.after_files")
        return publish(stores, table, claim, move, attempt)
    except BaseGone as gone:
        stores.ledger.close_move(claim, move, state=MoveState.ABANDONED, error=str(gone))
        return tier_once(stores, table, claim, trigger=trigger, run_id=run_id)
    except HarnessError as error:
        counts = error.recovery is not Recovery.NEVER and not isinstance(error, TryAgain)
        stores.ledger.note_failure(move, error=str(error), counts=counts)
        raise


# -- plan ---------------------------------------------------------------------------------------------------


def _open_or_plan(stores: Stores, table: TableRow, claim: Claim, *, trigger: str, run_id: str | None) -> Move | None:
    found = stores.ledger.open_move(table, Stage.TIER, shard=claim.shard)
    if found is None:
        return plan(stores, table, claim, trigger=trigger, run_id=run_id)
    if found.state is MoveState.QUARANTINED:
        raise MoveStuck(
            f"{table.name}: tier move {found.move_id} of {_shown(found)} failed in every attempt and holds the stage; "
            "see its error in `harness status`, repair the cause, then `harness run --retry-stuck`"
        )
    failures = stores.ledger.note_failure(found, error="the attempt ended without a result", counts=False)
    if failures >= FAILURES_MAX:
        return _smaller(stores, table, claim, found, run_id=run_id)
    return stores.ledger.take_attempt(claim, found, run_id=run_id)


def plan(
    stores: Stores, table: TableRow, claim: Claim, *, trigger: str, run_id: str | None, below: Vector | None = None
) -> Move | None:
    """Record a move of everything buffered, or ``None``. *below* caps it per partition."""
    bounds = takeable(stores, table)
    lo, hi = plan_ranges(bounds, offsets_max=MOVE_OFFSETS_MAX)
    if below is not None:
        lo, hi = {p: lo[p] for p in below}, dict(below)
    if not lo:
        return None
    draft = MoveDraft(
        stage=Stage.TIER,
        shard=claim.shard,
        lo=lo,
        hi=hi,
        base_version=stores.ledger.head(table).version,
        schema_version=table.schema_version,
        trigger=trigger,
        run_id=run_id,
    )
    return stores.ledger.plan_move(claim, draft)


def takeable(stores: Stores, table: TableRow) -> dict[int, Bounds]:
    """Bounds with ``buffer_hi`` as far as tier may take: the buffer's, or with `buffer: none` the log's end.

    Raises: TopicRecreated, RecordsLost, ... when the log is not the one that the table was made from.
    """
    bounds = {p.partition: p.bounds for p in stores.ledger.positions(table)}
    if table.spec.buffer != "none":
        return bounds
    check_source(table, stores.log, {p: b.buffer_hi for p, b in bounds.items()})
    marks = stores.log.watermarks(table.spec.topic, bounds)
    return {p: replace(b, buffer_hi=max(marks[p].end, b.buffer_hi)) for p, b in bounds.items()}


def _smaller(stores: Stores, table: TableRow, claim: Claim, failed: Move, *, run_id: str | None) -> Move | None:
    """After too many failures take half the range; one offset that still fails holds the stage by name."""
    if all(r.span <= 1 for r in failed.ranges):
        stores.ledger.close_move(claim, failed, state=MoveState.QUARANTINED, error="every attempt failed")
        raise MoveStuck(f"{table.name}: tier move {failed.move_id} of {_shown(failed)} failed in every attempt")
    stores.ledger.close_move(claim, failed, state=MoveState.ABANDONED, error="halved after failed attempts")
    return plan(stores, table, claim, trigger="halved", run_id=run_id, below=halve(failed.lo, failed.hi))


# -- stage --------------------------------------------------------------------------------------------------


def stage(stores: Stores, table: TableRow, move: Move) -> Attempt:
    """Let Spark write the move's rows to the attempt's branch, and check from metadata what it wrote."""
    if table.spec.buffer == "none":
        return _stage_from_kafka(stores, table, move)
    named = [s.ref for s in needed(stores.segments.all(table), {r.partition: r.low for r in move.ranges})]
    counts = stores.buffer_rows(named, move.ranges)
    rows = sum(counts.values())
    if rows == 0:  # gaps only: nothing to write, but the bounds move on
        return Attempt(staged=Staged(files=(), rows=0, bytes=0))
    _branch(stores, table, move)
    stores.write_from_segments(table, move, named)
    return Attempt(staged=stores.lake.staged(table, move, rows=rows))


def _stage_from_kafka(stores: Stores, table: TableRow, move: Move) -> Attempt:
    """`buffer: none`: Spark reads the log itself; refused records are published with the move."""
    _branch(stores, table, move)
    rows, refused = stores.write_from_kafka(table, move)
    check_source(table, stores.log, move.hi)
    return Attempt(staged=stores.lake.staged(table, move, rows=rows), refused=tuple(refused))


def _branch(stores: Stores, table: TableRow, move: Move) -> None:
    base = next((v for v in stores.ledger.versions(table) if v.version == move.base_version), None)
    if base is None:
        raise BaseGone(f"{table.name}: version {move.base_version}, the base of move {move.move_id}, is not retained")
    try:
        stores.lake.make_branch(table, move, base.stream)
    except BaseGone:
        _check_head(stores, table)
        raise
    faults.point("tier.during_files")


def _check_head(stores: Stores, table: TableRow) -> None:
    """A new plan helps only where the head's own snapshot is there to build on.

    Raises: ForeignCommit when another writer took it away.
    """
    head, main = stores.ledger.head(table), stores.lake.main_snapshot(table)
    if stores.ledger.head(table).version == head.version:  # so both are of one instant
        check_base(head, main)


# -- publish ------------------------------------------------------------------------------------------------


def publish(stores: Stores, table: TableRow, claim: Claim, move: Move, attempt: Attempt) -> Version:
    """Make the staged files part of the table: pointer, bounds, version and move in one transaction."""

    def build(base: str) -> Swap:
        return stores.lake.build_append(table, move, attempt.staged, base=base, keep=table.spec.retention.snapshots)

    boundary = Boundary(
        claim=claim,
        move=move,
        rows=attempt.staged.rows,
        bytes=attempt.staged.bytes,
        refused=attempt.refused,
        ingest_to=dict(move.hi) if table.spec.buffer == "none" else {},
    )
    published = stores.ledger.publish(table, boundary, build)
    log.info("tier.published", table=table.name, version=published.version, rows=boundary.rows, move=move.move_id)
    return published


def _shown(move: Move) -> str:
    return ", ".join(f"partition {r.partition} [{r.low}, {r.high})" for r in move.ranges)
