"""Tier: move buffered rows into files of the stream view.

plan: choose ranges, record the move. stage: Spark writes them to the attempt's branch. publish: the boundary commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from harness_pipelines.ports.access import (
    HasBufferRows,
    HasEngine,
    HasLake,
    HasLakeReads,
    HasLedger,
    HasLog,
    HasSegments,
    HasTables,
)
from harness_pipelines.ports.ledger import Boundary, MoveDraft, Swap, TableRow
from harness_pipelines.protocol.bounds import Bounds, Vector, buffered
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.moves import Move, plan_ranges, waited_s
from harness_pipelines.protocol.versions import Version
from harness_pipelines.spec.table import TierRules
from harness_pipelines.stages.run.moving import Moving, Tally
from harness_pipelines.stages.tier.contract import look_again
from harness_pipelines.stages.tier.sources import Attempt, source_of

log = structlog.get_logger(__name__)
MOVE_OFFSETS_MAX = 8_000_000


class Ports(HasBufferRows, HasEngine, HasLake, HasLakeReads, HasLedger, HasLog, HasSegments, HasTables, Protocol):
    """The ports that it uses."""


def trigger(
    stores: Ports,
    table: TableRow,
    *,
    idle: Callable[[Mapping[int, Bounds]], bool] | None = None,
    seen_s: float = 0.0,
) -> str | None:
    """Why tier should move now: ``recovery`` of an open move, ``idle``, or a trigger of the spec; ``None``: need not.

    *idle* says of the bounds whether ingest has nothing left to take; then whatever is buffered is moved at once.
    *seen_s*: for how long the caller has seen no move, whatever the database's clock says.
    """
    if stores.tables.open_move(table, Stage.TIER, shard=0) is not None:
        return "recovery"
    bounds = source_of(table).takeable(stores, table)
    if idle is not None and idle(bounds):
        return "idle" if any(b.buffer_hi > b.stream_hi for b in bounds.values()) else None
    size = sum(int(s["bytes"]) for s in stores.segments.sizes(table) if s["state"] != "retired")
    lag = sum(b.buffer_hi - b.stream_hi for b in bounds.values())
    since_s = waited_s(stores.tables.since_tier_s(table), seen_s=seen_s)
    return due(table.spec.tier, lag=lag, buffered_bytes=size, since_tier_s=since_s)


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
    stores: Ports, table: TableRow, claim: Claim, *, trigger: str, run_id: str | None = None, done: Tally | None = None
) -> Version | None:
    """Move what is buffered to the lake, finishing an open move first; ``None`` when there is nothing to move.

    Raises: MoveStuck, FencedOut, ContractUnusable (NEVER); TryAgain when Spark or a store is away.
    """
    source_of(table).check(table)
    return Moving(stores, table, _Tier(stores, table), tally=done).once(claim, trigger=trigger, run_id=run_id)


@dataclass(frozen=True, slots=True)
class _Tier:
    stores: Ports
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
    stores: Ports,
    table: TableRow,
    claim: Claim,
    *,
    trigger: str,
    run_id: str | None,
    below: Vector | None = None,
    offsets_max: int = MOVE_OFFSETS_MAX,
) -> Move | None:
    """Record a move of everything buffered, or ``None``. *below* caps it per partition."""
    bounds = source_of(table).takeable(stores, table)
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


def stage(stores: Ports, table: TableRow, move: Move) -> Attempt:
    """Write the move's rows to the attempt's branch."""
    return source_of(table).stage(stores, table, move)


# -- publish ------------------------------------------------------------------------------------------------


def publish(stores: Ports, table: TableRow, claim: Claim, move: Move, attempt: Attempt) -> Version:
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
        ingest_to=source_of(table).ingest_to(move),
        epochs=attempt.epochs,
    )
    published = stores.ledger.publish(table, boundary, build)
    log.info("tier.published", table=table.name, version=published.version, rows=boundary.rows, move=move.move_id)
    return published
