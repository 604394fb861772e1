"""Tier: move buffered rows into files of the stream view.

plan: choose ranges, record the move. stage: Spark writes them to the attempt's branch. publish: the boundary commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from harness_pipelines.formats.contract.checks import judge_of
from harness_pipelines.ports.identity import check_source
from harness_pipelines.ports.lake import NOTHING_STAGED, Staged
from harness_pipelines.ports.ledger import Boundary, MoveDraft, RefusedRecord, StateDraft, Swap, TableRow
from harness_pipelines.ports.source import check_positions
from harness_pipelines.protocol.bounds import Bounds, Vector, buffered
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.moves import Move, plan_ranges
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.protocol.segments import needed
from harness_pipelines.protocol.versions import Version
from harness_pipelines.spec.table import TierRules
from harness_pipelines.stages.ingest.log_epochs import check_epochs, epochs_of
from harness_pipelines.stages.ingest.refusing import One, check_move, note_refused
from harness_pipelines.stages.run.moving import Moving, Tally, make_branch
from harness_pipelines.stages.tier.contract import look_again

if TYPE_CHECKING:
    from harness_pipelines.app.installation import Stores

log = structlog.get_logger(__name__)
MOVE_OFFSETS_MAX = 8_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one attempt staged."""

    staged: Staged
    refused: tuple[RefusedRecord, ...] = ()
    state: StateDraft | None = None  #: of a consumer that moves rows itself
    epochs: Mapping[int, int] = field(default_factory=dict)  #: `buffer: none`: of the last record of each partition


def trigger(
    stores: Stores, table: TableRow, *, idle: Callable[[Mapping[int, Bounds]], bool] | None = None
) -> str | None:
    """Why tier should move now: ``recovery`` of an open move, ``idle``, or a trigger of the spec; ``None``: need not.

    *idle* says of the bounds whether ingest has nothing left to take; then whatever is buffered is moved at once.
    """
    if stores.tables.open_move(table, Stage.TIER, shard=0) is not None:
        return "recovery"
    bounds = takeable(stores, table)
    if idle is not None and idle(bounds):
        return "idle" if any(b.buffer_hi > b.stream_hi for b in bounds.values()) else None
    size = sum(int(s["bytes"]) for s in stores.segments.sizes(table) if s["state"] != "retired")
    lag = sum(b.buffer_hi - b.stream_hi for b in bounds.values())
    return due(table.spec.tier, lag=lag, buffered_bytes=size, since_tier_s=stores.tables.since_tier_s(table))


def due(rules: TierRules, *, lag: int, buffered_bytes: int, since_tier_s: float) -> str | None:
    """Which of the spec's *rules* asks for a move of *lag* offsets now: ``rows``, ``bytes``, ``age``, or none."""
    if lag == 0:
        return None
    if lag >= rules.max_rows:
        return "rows"
    if buffered_bytes >= rules.max_bytes:
        return "bytes"
    return "age" if since_tier_s >= rules.max_age else None


def tier_once(
    stores: Stores, table: TableRow, claim: Claim, *, trigger: str, run_id: str | None = None, done: Tally | None = None
) -> Version | None:
    """Move what is buffered to the lake, finishing an open move first; ``None`` when there is nothing to move.

    Raises: MoveStuck, FencedOut, ContractUnusable (NEVER); TryAgain when Spark or a store is away.
    """
    if table.spec.buffer == "none":
        judge_of(table.spec)  # Spark's tasks would find out attempt by attempt
    return Moving(stores, table, _Tier(stores, table), tally=done).once(claim, trigger=trigger, run_id=run_id)


@dataclass(frozen=True, slots=True)
class _Tier:
    stores: Stores
    table: TableRow
    name: Stage = Stage.TIER

    def plan(self, claim: Claim, *, trigger: str, run_id: str | None, below: Vector | None = None) -> Move | None:
        return plan(self.stores, self.table, claim, trigger=trigger, run_id=run_id, below=below)

    def stage(self, move: Move) -> Attempt:
        return stage(self.stores, self.table, move)

    def publish(self, claim: Claim, move: Move, attempt: Attempt) -> Version:
        return publish(self.stores, self.table, claim, move, attempt)


# -- plan ---------------------------------------------------------------------------------------------------


def plan(
    stores: Stores,
    table: TableRow,
    claim: Claim,
    *,
    trigger: str,
    run_id: str | None,
    below: Vector | None = None,
    offsets_max: int = MOVE_OFFSETS_MAX,
) -> Move | None:
    """Record a move of everything buffered, or ``None``. *below* caps it per partition."""
    bounds = takeable(stores, table)
    lo, hi = plan_ranges(buffered(bounds), offsets_max=offsets_max)
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

    Raises: TopicRecreated, PartitionsGrown, RecordsLost, ... when the log is not the one that the table was made from.
    """
    bounds = {p.partition: p.bounds for p in stores.ledger.positions(table)}
    if table.spec.buffer != "none":
        return bounds
    check_source(table, stores.log, {p: b.buffer_hi for p, b in bounds.items()}, known=bounds)
    marks = stores.log.watermarks(table.spec.topic, bounds)
    # After a revert the log is read again from further below; what it does not have there is named, not tried.
    check_positions(table.spec.topic, {p: b.stream_hi for p, b in bounds.items()}, marks)
    return {p: replace(b, buffer_hi=max(marks[p].end, b.buffer_hi)) for p, b in bounds.items()}


# -- stage --------------------------------------------------------------------------------------------------


def stage(stores: Stores, table: TableRow, move: Move) -> Attempt:
    """Let Spark write the move's rows to the attempt's branch, and check from metadata what it wrote."""
    if table.spec.buffer == "none":
        return _stage_from_kafka(stores, table, move)
    named = segments_of(stores, table, move)
    rows = sum(stores.buffer_rows(table, named, move.ranges).values())
    if rows == 0:
        return Attempt(staged=NOTHING_STAGED)  # gaps only: nothing to write, but the bounds move on
    make_branch(stores, table, move)
    stores.engine.write_segments(table, move, named)
    return Attempt(staged=stores.lake.staged(table, move, rows=rows))


def segments_of(stores: Stores, table: TableRow, move: Move) -> list[SegmentRef]:
    """The segments that may hold rows of *move*. Raises: SchemaMoved."""
    found = needed(stores.segments.all(table), {r.partition: r.low for r in move.ranges})
    return [*table.seen([s.ref for s in found])]


def _stage_from_kafka(stores: Stores, table: TableRow, move: Move) -> Attempt:
    """`buffer: none`: Spark reads the log itself; refused records are published with the move.

    Spark tells no leader epochs, so they are read before and compared after: what it read lies between.
    """
    known = stores.segments.positions(table)
    check_epochs(table, stores.log, {p: (at.buffer_hi, at.leader_epoch) for p, at in known.items()})
    epochs = epochs_of(table, stores.log, move.ranges)
    make_branch(stores, table, move)

    def check(rows: int, refused: int, one: One) -> None:
        check_move(table, rows=rows, refused=refused, one=one, before=stores.segments)

    rows, refused = stores.engine.write_log(table, move, check=check)
    note_refused(table, refused)
    check_source(table, stores.log, move.hi)
    check_epochs(table, stores.log, {p: (move.hi[p], epoch) for p, epoch in epochs.items()})
    return Attempt(staged=stores.lake.staged(table, move, rows=rows), refused=tuple(refused), epochs=epochs)


# -- publish ------------------------------------------------------------------------------------------------


def publish(stores: Stores, table: TableRow, claim: Claim, move: Move, attempt: Attempt) -> Version:
    """Make the staged files part of the table: pointer, bounds, version and move in one transaction.

    Raises: ContractBroken for rows that the contract of today stops at.
    """
    violations = look_again(stores, table, move, attempt.staged)

    def build(base: str) -> Swap:
        return stores.lake.build_append(table, move, attempt.staged, base=base, keep=table.spec.retention.snapshots)

    boundary = Boundary(
        claim=claim,
        move=move,
        rows=attempt.staged.rows,
        bytes=attempt.staged.bytes,
        refused=attempt.refused,
        violations=violations,
        state=attempt.state,
        ingest_to=dict(move.hi) if table.spec.buffer == "none" else {},
        epochs=attempt.epochs,
    )
    published = stores.ledger.publish(table, boundary, build)
    log.info("tier.published", table=table.name, version=published.version, rows=boundary.rows, move=move.move_id)
    return published
