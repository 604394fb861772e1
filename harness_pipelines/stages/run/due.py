"""Find the stages of a table with work, from the ledger alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from harness_pipelines.ports.access import (
    HasBufferRows,
    HasEngine,
    HasLake,
    HasLakeReads,
    HasLedger,
    HasLog,
    HasMirrors,
    HasOverlays,
    HasRecalls,
    HasReclusters,
    HasSegments,
    HasSignOffs,
    HasTables,
)
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.upkeep import TableWork
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.moves import MoveState
from harness_pipelines.protocol.shape import intake_of
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages import compact
from harness_pipelines.stages.otree import otree
from harness_pipelines.stages.tier.tier import due as tier_due

EXPIRE_EVERY_S = 1800.0  #: of a run each; a worker, which has it for nothing, looks every minute


class Ports(
    HasBufferRows,
    HasEngine,
    HasLake,
    HasLakeReads,
    HasLedger,
    HasLog,
    HasMirrors,
    HasOverlays,
    HasRecalls,
    HasReclusters,
    HasSegments,
    HasSignOffs,
    HasTables,
    Protocol,
):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Why a stage is due, and what tells this occasion from another one."""

    why: str
    attempt: int  #: of the open move, 0 if there is none
    position: int  #: sum of the bounds that the stage would advance, or the version that it would rewrite


def due_moves(spec: TableSpec, work: TableWork) -> dict[Stage, Due]:
    """Those of ingest and tier that have work, are not claimed, and are not held by a stuck move."""
    due: dict[Stage, Due] = {}
    waiting = intake_of(spec).waiting(buffered=work.buffered, unread=work.unread or 0)
    if unread := waiting[Stage.INGEST]:
        due[Stage.INGEST] = Due(why=f"{unread} offsets behind the log", attempt=0, position=work.buffer_at)
    tier = work.open.get(Stage.TIER)
    # A run costs seconds and leaves events: by age it comes as often as the objective asks for, which is less often
    # than a worker may move. Half of it is left for the run itself.
    rules = spec.tier.model_copy(update={"max_age": max(spec.tier.max_age, spec.freshness.lake / 2)})
    why = tier_due(rules, lag=waiting[Stage.TIER], buffered_bytes=work.buffered_bytes, since_tier_s=work.since_tier_s)
    if why := ("recovery" if tier else why):
        due[Stage.TIER] = Due(why=why, attempt=tier["attempt"] if tier else 0, position=work.stream_at)
    return {stage: found for stage, found in due.items() if not is_held(work, stage)}


def stages_of(table: TableRow) -> frozenset[Stage]:
    """The continuous stages that the table has."""
    mirrored = {Stage.MIRROR} if table.spec.catalogs else set()
    return frozenset({Stage.INGEST, Stage.EXPIRE, *table.effects, *mirrored})


def is_held(work: TableWork, stage: Stage) -> bool:
    """It is claimed, or a move that failed in every attempt waits for a person."""
    move = work.open.get(stage)
    return stage in work.busy or (move is not None and move["state"] == MoveState.QUARANTINED)


def due_upkeep(stores: Ports, table: TableRow, work: TableWork) -> dict[Stage, Due]:
    """Those of compact, otree and expire that have work and are not claimed. Reads the lake's metadata.

    Raises: what the ledger and the lake raise.
    """
    return {stage: due for stage, due in _upkeep(stores, table, work) if not is_held(work, stage)}


def _upkeep(stores: Ports, table: TableRow, work: TableWork) -> Iterator[tuple[Stage, Due]]:
    version = stores.tables.head(table).version
    if work.since_expire_s is None or work.since_expire_s >= EXPIRE_EVERY_S:
        ago = "never before" if work.since_expire_s is None else f"last {work.since_expire_s:.0f} s ago"
        yield Stage.EXPIRE, Due(why=ago, attempt=0, position=version)
    lags = stores.mirrors.lags([table.name]) if table.spec.catalogs else []
    if behind := [one.catalog for one in lags if one.kind and one.version != one.head]:
        yield Stage.MIRROR, Due(why=f"version {version} for {', '.join(behind)}", attempt=0, position=version)
    triggers: Mapping[Stage, Callable[[Ports, TableRow], str | None]]
    triggers = {Stage.COMPACT: compact.trigger, Stage.OTREE: otree.trigger}
    for stage, trigger in triggers.items():
        if stage in table.effects and (why := trigger(stores, table)):
            move = stores.tables.open_move(table, stage, shard=0)
            yield stage, Due(why=why, attempt=move.attempt if move else 0, position=version)
