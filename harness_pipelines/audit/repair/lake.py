"""A ledger older than the lake: it continues from Kafka, or adopts the lake's metadata.

From Kafka, where Kafka still has every record above the ledger's positions: what was published meanwhile is then an
orphan like any other, and expire removes it. Else the newest metadata file is adopted as one version, with its moves.
The batch view follows, see `harness_pipelines.audit.repair.batch_view`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from harness_pipelines.audit.repair.batch_view import BatchPlan, made, plan_batch
from harness_pipelines.audit.repair.foreign import accepted_hi
from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.access import (
    HasBufferRows,
    HasGuard,
    HasLake,
    HasLakeHistories,
    HasLakeReads,
    HasLog,
    HasProof,
    HasReconciler,
    HasSegments,
    HasTables,
    HasWarehouse,
)
from harness_pipelines.ports.errors import LogTruncated, MetadataMissing
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.repair import AdoptedMove, Adoption, LakeHistory, LakeState
from harness_pipelines.ports.source import Watermark, settled
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.history import Continued, NamedMove, PastMove, check_not_shorter, continue_from
from harness_pipelines.protocol.segments import may_hold
from harness_pipelines.protocol.topics import FOREIGN_PARTITION
from harness_pipelines.protocol.versions import Version, ViewName


class Ports(
    HasBufferRows,
    HasLakeHistories,
    HasLake,
    HasLakeReads,
    HasLog,
    HasProof,
    HasReconciler,
    HasSegments,
    HasGuard,
    HasTables,
    HasWarehouse,
    Protocol,
):
    """The ports that it uses."""


class NothingToAdopt(HarnessError):
    """Kafka lost records that the ledger needs, and the lake has no newer state."""

    way_on = "restore the broker, or `harness accept-loss`"


class Way(StrEnum):
    """How a table continues."""

    NONE = "none"  #: ledger and lake agree
    KAFKA = "kafka"
    ADOPT = "adopt"
    BATCH = "batch"  #: they do, but rows of the batch view that were in Postgres are gone


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePlan:
    """The plan to repair a ledger that is older than the lake."""

    way: Way
    why: str = ""
    forgotten: tuple[NamedMove, ...] = ()  #: moves that the lake names and the ledger lost
    retained_from: int = 0  #: the first version from which on every metadata file is there
    adoption: Adoption | None = None
    batch: BatchPlan | None = None  #: None: the batch view stays as it is, or there is none
    again: tuple[OffsetRange, ...] = ()  #: what Kafka is asked for again
    lost: tuple[OffsetRange, ...] = ()  #: what neither lake, buffer nor Kafka have

    @property
    def adopted(self) -> tuple[AdoptedMove, ...]:
        return tuple(self.adoption.moves) if self.adoption else ()

    @property
    def act(self) -> str | None:
        batch = f"; {self.batch.act}" if self.batch else ""
        match self.way:
            case Way.NONE:
                return None
            case Way.BATCH:
                return self.batch.act if self.batch else None
            case Way.KAFKA:
                return f"continue from Kafka; numbers of the lost time never come again{batch}"
            case Way.ADOPT:
                assert self.adoption is not None
                return f"publish {self.adoption.head.metadata} as the next version{batch}"

    def to_json(self) -> dict[str, Any]:
        adopted = None if self.adoption is None else self.adoption.head.metadata
        return {
            "way": self.way,
            "adopted": adopted,
            "batch": self.batch and self.batch.to_json(),
            "moves": [m.move_id for m in self.adopted if m.move_id is not None],
            "again": [_json(r) for r in self.again],
            "lost": [_json(r) for r in self.lost],
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Known:
    """What was read to decide: the ledger's side, the lake's and Kafka's."""

    head: Version
    pointer: str
    history: LakeHistory
    marks: Mapping[int, Watermark]
    starts: Mapping[int, int]
    buffer_hi: Mapping[int, int]
    stream_hi: Mapping[int, int]
    accepted_hi: int  #: where accepted rows of other writers end, in the pseudo-partition
    forgotten: tuple[NamedMove, ...]
    retained_from: int = field(default=0)

    @property
    def named(self) -> str:
        """For people: what the lake names and the ledger does not."""
        return f"move {', '.join(str(one.move_id) for one in self.forgotten[-3:])}"


def plan_lake(stores: Ports, table: TableRow) -> LakePlan:
    """How *table* continues, with ``Way.NONE`` when the ledger knows all that the lake names.

    Raises: TopicRecreated, LogTruncated, LakeHistoryMissing, HistoryBroken, NothingToAdopt; KafkaUnreachable, LakeAway.
    """
    view = table.effects[Stage.TIER].view
    pointer = stores.tables.pointer(table, view)
    forgotten = tuple(stores.guard.lost(table, stores.tables))
    if not forgotten:
        return _without_recalled(stores, table)
    known = _read(stores, table, view, pointer, forgotten)
    if (against := _against_kafka(table, known)) is None:
        batch = plan_batch(stores, table, known.stream_hi, kept={p: b.batch_hi for p, b in known.head.bounds.items()})
        return LakePlan(
            way=Way.KAFKA,
            batch=batch,
            why=f"the lake names {known.named}, the ledger does not; Kafka still has every record from the ledger's "
            "positions on",
            forgotten=forgotten,
            # What the head's batch view lacks, the older versions lack as well.
            retained_from=known.retained_from if batch is None else known.head.version + 1,
            again=_again(known.buffer_hi, known.marks),
        )
    return _adopting(stores, table, known, against)


def _without_recalled(stores: Ports, table: TableRow) -> LakePlan:
    """Rows that were recalled are in the stream view too: where their table is gone, the batch view is made from it."""
    head = stores.tables.head(table)
    if not (gone := sorted({one.segment for one in head.overlays} - stores.proof.overlay_tables(table))):
        return LakePlan(way=Way.NONE)
    batch_hi = {p: b.batch_hi for p, b in head.bounds.items()}
    return LakePlan(
        way=Way.BATCH,
        why=f"{', '.join(gone)}, which had rows of the batch view, is not in Postgres",
        batch=plan_batch(stores, table, head.stream_hi, kept=batch_hi),
        retained_from=head.version + 1,
    )


def apply_plan(stores: Ports, table: TableRow, plan: LakePlan) -> None:
    """Write what *plan* says, in one transaction. Raises: TableHeld, PointerMoved, HistoryBroken."""
    if plan.way is Way.NONE:
        return
    batch = made(stores, table, plan.batch) if plan.batch else None
    lost, retained_from = plan.forgotten, plan.retained_from
    if plan.way in (Way.KAFKA, Way.BATCH):
        stores.reconciler.go_on(table, lost=lost, retained_from=retained_from, batch=batch)
    elif plan.adoption is not None:
        stores.reconciler.adopt(table, plan.adoption, lost=lost, retained_from=retained_from, batch=batch)


def _read(stores: Ports, table: TableRow, view: ViewName, pointer: str, forgotten: tuple[NamedMove, ...]) -> _Known:
    history = stores.lake_histories.of(table, pointer, view=view)
    positions = {p.partition: p.bounds for p in stores.tables.positions(table)}
    found = settled(table.identity, lambda: stores.log.describe(table.spec.topic))
    marks = stores.log.watermarks(table.spec.topic, found.partitions)
    versions = stores.tables.versions(table)
    named = {v.version: [pins.metadata for pins in v.views.values()] for v in versions}
    there = stores.lake_histories.present([location for locations in named.values() for location in locations])
    gone = [version for version, locations in named.items() if not there.issuperset(locations)]
    return _Known(
        head=stores.tables.head(table),
        pointer=pointer,
        history=history,
        marks=marks,
        starts={p: b.start for p, b in positions.items()},
        buffer_hi={p: b.buffer_hi for p, b in positions.items()},
        stream_hi={p: b.stream_hi for p, b in positions.items()},
        accepted_hi=accepted_hi(stores, table),
        forgotten=forgotten,
        retained_from=max(gone, default=-1) + 1,
    )


def _against_kafka(table: TableRow, known: _Known) -> str | None:
    """Why the ledger cannot continue from Kafka; ``None`` when it can. Raises: LogTruncated."""
    for partition, high in sorted(known.buffer_hi.items()):
        mark = known.marks[partition]
        if mark.end < high:
            raise LogTruncated(table.spec.topic, partition=partition, expected=high, end=mark.end)
        if mark.low > high:
            return f"Kafka has partition {partition} only from offset {mark.low} on, the ledger ends at {high}"
    try:
        state = known.history.at(known.pointer)
    except MetadataMissing:
        return f"the metadata file that the ledger names, {known.pointer}, is gone"
    if state.gone:
        return f"{len(state.gone)} data files of the ledger's version {known.head.version} are gone"
    reached = state.reached if table.view_set.mixed else {p: e.high for p, e in state.extents.items()}
    if any(high > known.stream_hi.get(p, -1) for p, high in reached.items()):
        return "the catalog names metadata with rows above the ledger's positions"
    if state.foreign_hi > known.accepted_hi:
        return "the catalog names metadata with rows of another writer that the ledger does not know as accepted"
    return None


def _adopting(stores: Ports, table: TableRow, known: _Known, against: str) -> LakePlan:
    if table.view_set.mixed:
        raise NothingToAdopt(
            f"{table.name}: {against}. What the lake has more is not taken over for a table with `views: batch` yet: "
            f"its files mix partitions. Nothing was changed; `harness accept-loss {table.name}` continues after "
            "what is lost, or restore a newer backup"
        )
    state = known.history.newest()
    if (later := max((m.schema_version for m in (*state.moves, *state.accepted)), default=1)) > table.schema_version:
        raise NothingToAdopt(
            f"{table.name}: {against}. The lake has rows of schema {later}, this ledger knows {table.schema_version}: "
            "the columns were changed after the backup was made, and the lake does not tell how records were decoded "
            f"then. Nothing was changed; restore a newer backup, or `harness accept-loss {table.name}` continues after "
            "what is lost"
        )
    check_not_shorter(known.stream_hi, state.moves)
    after = continue_from(known.stream_hi, state.moves, state.extents)
    if dict(after.stream_hi) == dict(known.stream_hi) and state.foreign_hi <= known.accepted_hi:
        raise NothingToAdopt(
            f"{table.name}: {against}, and the lake has nothing newer than version {known.head.version}; nothing was "
            f"changed. `harness accept-loss {table.name}` continues after what is lost"
        )
    starts = _starts(known, state, after)
    buffered = known.buffer_hi if table.intake.buffered else {}
    buffer_hi = {p: max(high, buffered.get(p, -1)) for p, high in after.stream_hi.items()}
    adoption = Adoption(
        pointer=known.pointer,
        head=state.head,
        starts=starts,
        stream_hi=after.stream_hi,
        buffer_hi=buffer_hi,
        moves=(*_accepted(stores, known, state), *_moves(stores, table, known, state, after)),
    )
    return LakePlan(
        way=Way.ADOPT,
        why=f"the lake names {known.named}, the ledger does not, and it cannot continue from Kafka: {against}. "
        "Records that were quarantined in the lost time are lost with the database",
        forgotten=known.forgotten,
        retained_from=known.retained_from,
        adoption=adoption,
        batch=plan_batch(stores, table, after.stream_hi),
        again=_again(buffer_hi, known.marks),
        lost=tuple(
            OffsetRange(partition=p, low=high, high=known.marks[p].low)
            for p, high in sorted(buffer_hi.items())
            if p in known.marks and known.marks[p].low > high
        ),
    )


def _starts(known: _Known, state: LakeState, after: Continued) -> dict[int, int]:
    """A partition that joined in the lost time starts where its first move or row does."""
    starts = dict(known.starts)
    for partition in after.stream_hi:
        first = [m.lo[partition] for m in state.moves if partition in m.lo]
        first += [state.extents[partition].low] if partition in state.extents else []
        starts.setdefault(partition, min(first, default=after.stream_hi[partition]))
    return starts


def _moves(stores: Ports, table: TableRow, known: _Known, state: LakeState, after: Continued) -> list[AdoptedMove]:
    """The moves that the ledger lacks: of tier, and the ingest that must have come before them."""
    starts = _starts(known, state, after)
    before = {p: known.stream_hi.get(p, starts[p]) for p in after.stream_hi}
    # Compact may have brought rows from below and above into one file.
    stored_in, metadata = stores.lake_reads.stored_in, state.head.metadata
    fresh = {p: stored_in(metadata, {p: (low, after.stream_hi[p])}).rows for p, low in before.items()}
    made = []
    if after.unnamed:
        untold = sum(fresh.values()) - sum(m.rows for m in after.moves)
        lo, hi = {p: r[0] for p, r in after.unnamed.items()}, {p: r[1] for p, r in after.unnamed.items()}
        made.append(AdoptedMove(move_id=None, stage="tier", lo=lo, hi=hi, rows=untold))
    made += map(_as_named, after.moves)
    if not table.intake.buffered:
        return made
    low = {p: known.buffer_hi.get(p, starts[p]) for p in after.stream_hi}
    ahead = {p: high for p, high in after.stream_hi.items() if high > low[p]}
    if ahead:
        buffered = _buffered(stores, table, {p: (before[p], low[p]) for p in ahead})
        rows = sum(fresh.get(p, 0) - buffered.get(p, 0) for p in ahead)
        made.append(AdoptedMove(move_id=None, stage="ingest", lo={p: low[p] for p in ahead}, hi=ahead, rows=rows))
    return made


def _as_named(move: PastMove) -> AdoptedMove:
    return AdoptedMove(
        move_id=move.move_id,
        stage="tier",
        lo=move.lo,
        hi=move.hi,
        rows=move.rows,
        bytes=move.bytes,
        attempt=move.attempt,
        nonce=move.nonce,
    )


def _accepted(stores: Ports, known: _Known, state: LakeState) -> list[AdoptedMove]:
    """The moves that the ledger lacks by which rows of other writers were accepted.

    One move stands for those whose snapshots have expired: what lies below the first one that is left.
    """
    named = [m for m in state.accepted if m.hi[FOREIGN_PARTITION] > known.accepted_hi]
    low, high = known.accepted_hi, min((m.lo[FOREIGN_PARTITION] for m in named), default=state.foreign_hi)
    made = []
    if high > low and (rows := stores.lake_reads.stored_in(state.head.metadata, {FOREIGN_PARTITION: (low, high)}).rows):
        lo, hi = {FOREIGN_PARTITION: low}, {FOREIGN_PARTITION: high}
        made.append(AdoptedMove(move_id=None, stage="tier", lo=lo, hi=hi, rows=rows))
    return [*made, *map(_as_named, named)]


def _buffered(stores: Ports, table: TableRow, wanted: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """Rows that the ledger's own ingest moves brought into ranges that the lake has by now."""
    ranges = [OffsetRange(partition=p, low=low, high=high) for p, (low, high) in wanted.items() if high > low]
    lows = {r.partition: r.low for r in ranges}
    segments = [s.ref for s in stores.segments.all(table) if s.state != "retired" and may_hold(s.max_hi, lows)]
    return stores.buffer_rows(table, segments, ranges)


def _again(buffer_hi: Mapping[int, int], marks: Mapping[int, Watermark]) -> tuple[OffsetRange, ...]:
    lows = {p: max(buffer_hi.get(p, mark.low), mark.low) for p, mark in marks.items()}
    return tuple(
        OffsetRange(partition=p, low=lows[p], high=mark.end) for p, mark in sorted(marks.items()) if mark.end > lows[p]
    )


def _json(taken: OffsetRange) -> dict[str, int]:
    return {"partition": taken.partition, "low": taken.low, "high": taken.high}
