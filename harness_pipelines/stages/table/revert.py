"""Revert: publish a new version with the lake of an old one, on request.

plan: what would go back to the hot tier, and whether it still holds it. publish: one boundary commit. Nothing is staged
beside metadata: the files are those of the old version, and tier moves again what they do not have.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from harness_pipelines.ports.access import HasGuard, HasLake, HasLedger, HasLog, HasTables
from harness_pipelines.ports.ledger import Swap, TableRow
from harness_pipelines.ports.source import check_source
from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.changes.reverts import RevertPlan
from harness_pipelines.protocol.versions import Version, ViewName

log = structlog.get_logger(__name__)


class Ports(HasLake, HasLedger, HasLog, HasGuard, HasTables, Protocol):
    """The ports that it uses."""


def plan_revert(stores: Ports, table: TableRow, *, to: int | None) -> RevertPlan:
    """What reverting *table* to version *to* (``None``: its head, as the ledger knows it) would do; changes nothing.

    Raises: VersionGone; TopicRecreated, KafkaUnreachable, ... for a table without a buffer.
    """
    return stores.ledger.plan_revert(table, to=to, log_from=_log_from(stores, table))


def revert_table(stores: Ports, table: TableRow, *, to: int | None) -> Version:
    """Publish a version that restores version *to*: its files and lake bounds under the buffer's present ones.

    Workers continue by themselves: their claims are fenced and their open moves closed, so they take and plan again.
    Raises: RevertRefused, RevertWaits, VersionGone; MetadataMissing; WarehouseTaken, LedgerOlderThanLake; LakeAway,
    CommitLost; OutcomeUnknown.
    """
    stores.guard.check(table, stores.ledger)

    def build(view: ViewName, base: str, head: Version, target: Version, move_id: int) -> Swap:
        keep = table.spec.retention.snapshots
        return stores.lake.build_revert(table, move_id, view, base=base, head=head, target=target, keep=keep)

    made = stores.ledger.revert(table, to=to, log_from=_log_from(stores, table), build=build)
    log.info("revert.published", table=table.name, version=made.version, revert_of=made.revert_of, move=made.move_id)
    return made


def _log_from(stores: Ports, table: TableRow) -> Vector:
    """Without a buffer: where Kafka begins, by partition; the rows of a reverted range are read from there."""
    if table.intake.buffered:
        return {}
    bounds = {p.partition: p.bounds for p in stores.tables.positions(table)}
    check_source(table, stores.log, {p: b.buffer_hi for p, b in bounds.items()})
    return {p: mark.low for p, mark in stores.log.watermarks(table.spec.topic, bounds).items()}
