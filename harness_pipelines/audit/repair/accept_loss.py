"""Continue after records that Kafka dropped before they were read: a recorded move without rows.

Nothing but the position changes: in one transaction under the stage's claim, and only from where it was looked at.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol

from harness_pipelines.audit.repair.lake import NothingToAdopt, plan_lake
from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.access import (
    HasBufferRows,
    HasGuard,
    HasLake,
    HasLakeHistories,
    HasLakeReads,
    HasLedger,
    HasLog,
    HasLosses,
    HasProof,
    HasReconciler,
    HasSegments,
    HasTables,
    HasWarehouse,
)
from harness_pipelines.ports.errors import LakeHistoryMissing, LedgerOlderThanLake
from harness_pipelines.ports.lake import NOTHING_STAGED
from harness_pipelines.ports.ledger import Boundary, MoveDraft, Swap, TableRow, claimed_once
from harness_pipelines.ports.source import check_source
from harness_pipelines.protocol.claims import Claim, Stage, StageHeld
from harness_pipelines.protocol.moves import MoveState

TRIGGER = "accept-loss"
LEASE = timedelta(seconds=60)


class Ports(
    HasBufferRows,
    HasLakeHistories,
    HasLake,
    HasLakeReads,
    HasLedger,
    HasLog,
    HasLosses,
    HasProof,
    HasReconciler,
    HasSegments,
    HasGuard,
    HasTables,
    HasWarehouse,
    Protocol,
):
    """The ports that it uses."""


class NothingLost(HarnessError):
    """The records to accept as lost are not lost: Kafka still has them, or they were read."""

    way_on = "start the worker; there is no loss to accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Offsets ``[low, high)`` of one partition that Kafka dropped before they were read."""

    table: str
    partition: int
    low: int
    high: int
    log_start: int
    move_id: int | None = None  #: None: not recorded yet (a dry run)

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "partition": self.partition,
            "low": self.low,
            "high": self.high,
            "log_start": self.log_start,
            "move": self.move_id,
        }


def find_loss(stores: Ports, table: TableRow, *, partition: int, to: int) -> Loss:
    """The loss that would be recorded; writes nothing. Raises: NothingLost, TopicRecreated, KafkaUnreachable, ..."""
    bounds = {p.partition: p.bounds for p in stores.tables.positions(table)}
    if partition not in bounds:
        raise NothingLost(f"{table.name} has no partition {partition}; it has {sorted(bounds)}; nothing was changed")
    marks = stores.log.watermarks(table.spec.topic, bounds)
    check_source(table, stores.log, {partition: max(bounds[partition].buffer_hi, marks[partition].low)})
    low, log_start = table.intake.end(bounds[partition]), marks[partition].low
    where = f"{table.name}: partition {partition}"
    if log_start <= low:
        raise NothingLost(f"{where}: nothing is lost: read up to {low}, Kafka has all from {log_start} on")
    if to <= low:
        raise NothingLost(f"{where}: all below {low} was read; --to must be above it, up to {log_start}")
    if to > log_start:
        raise NothingLost(f"{where}: Kafka still has all from {log_start} on; --to {to} would skip some of it")
    return Loss(table=table.name, partition=partition, low=low, high=to, log_start=log_start)


def accept_loss(stores: Ports, table: TableRow, *, partition: int, to: int) -> Loss:
    """Record the loss of ``[buffer_hi, to)`` and let the table continue after it.

    Raises: NothingLost, StageHeld, FencedOut, BoundaryGap, SchemaMoved, WarehouseTaken, LedgerOlderThanLake; then
    nothing was written.
    """
    loss = find_loss(stores, table, partition=partition, to=to)
    _check_warehouse(stores, table)
    stage = table.intake.reader
    with claimed_once(stores.ledger, table, stage, lease=LEASE) as claim:
        if claim is None:
            raise StageHeld(
                f"{table.name}: a worker holds {stage}; nothing was written. Stop it (Ctrl-C gives the claim back, "
                "else it ends with its lease), then accept the loss again"
            )
        if stage is Stage.TIER:
            move_id = _by_tier(stores, table, claim, loss)
        else:
            move_id = stores.losses.accept(table, claim, partition=partition, low=loss.low, high=loss.high)
    stores.ledger.stop_table(table, None)
    return replace(loss, move_id=move_id)


def _check_warehouse(stores: Ports, table: TableRow) -> None:
    """What the lake has is not lost. Raises: WarehouseTaken, LedgerOlderThanLake."""
    try:
        stores.guard.check(table, stores.ledger)
    except LedgerOlderThanLake:
        with suppress(NothingToAdopt, LakeHistoryMissing):  # it has none of these records: then this is the way on
            plan_lake(stores, table)
            raise


def _by_tier(stores: Ports, table: TableRow, claim: Claim, loss: Loss) -> int:
    """`buffer: none`: the lake's position is the one that reads the log, so an empty tier move passes the loss."""
    blocked = stores.ledger.open_move(table, Stage.TIER, shard=claim.shard)
    if blocked is not None:
        why = f"its records [{loss.low}, {loss.high}) of partition {loss.partition} were accepted as lost"
        stores.ledger.close_move(claim, blocked, state=MoveState.ABANDONED, error=why)
    draft = MoveDraft(
        stage=Stage.TIER,
        shard=claim.shard,
        lo={loss.partition: loss.low},
        hi={loss.partition: loss.high},
        base_version=stores.ledger.head(table).version,
        schema_version=table.schema_version,
        trigger=TRIGGER,
    )
    move = stores.ledger.plan_move(claim, draft)

    def build(base: str) -> Swap:
        return stores.lake.build_append(table, move, NOTHING_STAGED, base=base, keep=table.spec.retention.snapshots)

    passed = Boundary(claim=claim, move=move, rows=0, bytes=0, ingest_to=dict(move.hi))
    stores.ledger.publish(table, passed, build)
    return move.move_id
