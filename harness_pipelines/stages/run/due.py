"""Find the stages of a table with work, from the ledger alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
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
from harness_pipelines.ports.upkeep import TablePulse, TableWork
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.moves import MoveState, waited_s
from harness_pipelines.protocol.shape import intake_of
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages import compact
from harness_pipelines.stages.otree import otree
from harness_pipelines.stages.tier.tier import due as tier_due

STANDBY_S = 15.0  #: how often a worker asks for a claim that, by the ledger's last word, another one has
MIRROR_S = 15.0  #: how often catalogs are asked for that showed the newest version
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
    since_s = waited_s(work.since_tier_s)
    why = tier_due(rules, lag=waiting[Stage.TIER], buffered_bytes=work.buffered_bytes, since_tier_s=since_s)
    if why := ("recovery" if tier else why):
        due[Stage.TIER] = Due(why=why, attempt=tier["attempt"] if tier else 0, position=work.stream_at)
    return {stage: found for stage, found in due.items() if not is_held(work, stage)}


def stages_of(table: TableRow) -> frozenset[Stage]:
    """The continuous stages that the table has."""
    mirrored = {Stage.MIRROR} if table.spec.catalogs else set()
    return frozenset({Stage.INGEST, Stage.EXPIRE, *table.effects, *mirrored})


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a worker knows of one of its tables beyond the ledger's pulse."""

    holder: str  #: the worker, as holder of claims
    ends: Mapping[int, int]  #: of the log, as last seen
    small: str | None = None  #: metadata file of the stream view in which no rewrite was worth its cost
    judged: str | None = None  #: metadata file of the batch view in which nothing was due
    mirrored: int | None = None  #: the version that all catalogs show
    unmoved_s: Mapping[Stage, float] = field(default_factory=dict)  #: for how long it has seen no move of a stage


def rest_s(stage: Stage, spec: TableSpec, seen: TablePulse, known: Known, *, now: float) -> float:
    """Seconds until *stage* may have work; `inf`: not before the ledger or the log say something else.

    *now* is the database's time. For expire it is not asked: that goes by time alone.
    """
    holder = seen.claims.get(stage)
    if holder != known.holder:
        return 0.0 if holder is None else STANDBY_S
    if stage in seen.open:
        return 0.0
    if stage is Stage.TIER:
        return _tier_rest_s(spec, seen, known, now=now)
    if stage is Stage.OTREE:
        return _otree_rest_s(spec, seen, known, now=now)
    if stage is Stage.COMPACT:
        return inf if seen.stream == known.small else 0.0
    if stage is Stage.MIRROR:
        return MIRROR_S if seen.version == known.mirrored else 0.0
    return 0.0


def _tier_rest_s(spec: TableSpec, seen: TablePulse, known: Known, *, now: float) -> float:
    buffered = sum(p.bounds.buffer_hi - p.bounds.stream_hi for p in seen.positions)
    unread = sum(max(known.ends.get(p.partition, 0) - p.bounds.buffer_hi, 0) for p in seen.positions)
    lag = intake_of(spec).waiting(buffered=buffered, unread=unread)[Stage.TIER]
    since_s = waited_s(now - seen.tier_at, seen_s=known.unmoved_s.get(Stage.TIER, 0.0))
    if tier_due(spec.tier, lag=lag, buffered_bytes=seen.buffered_bytes, since_tier_s=since_s):
        return 0.0
    return spec.tier.max_age - since_s if lag else inf


def _otree_rest_s(spec: TableSpec, seen: TablePulse, known: Known, *, now: float) -> float:
    lag = sum(p.bounds.stream_hi - p.bounds.batch_hi for p in seen.positions)
    if seen.asked or lag >= spec.tier.max_rows or (seen.batch is not None and seen.batch != known.judged):
        return 0.0
    if not lag:
        return inf
    if seen.otree_at is None:
        return 0.0
    since_s = waited_s(now - seen.otree_at, seen_s=known.unmoved_s.get(Stage.OTREE, 0.0))
    return max(0.0, spec.freshness.lake - since_s)


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
