"""Replay of a range: decode records of existing rows again on request.

plan: the records of the range, from Kafka, or what of them the table keeps; what each would be by today's decoder, and
what it is. publish: one boundary commit that makes exactly those that differ so, in every view. What comes out equal is
left alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from harness_pipelines.formats.base import Reason
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.ports.access import (
    HasCorrections,
    HasGuard,
    HasLake,
    HasLakeReads,
    HasLedger,
    HasLog,
    HasSchemas,
    HasTables,
)
from harness_pipelines.ports.corrections import Correction, LockedState
from harness_pipelines.ports.decoded import with_coordinates
from harness_pipelines.ports.lake import LakeReads
from harness_pipelines.ports.ledger import RefusedRecord, Swap, TableRow
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.changes.corrections import (
    Change,
    Coordinate,
    CorrectionsMoved,
    Kind,
    RangeRefused,
    RangeWaits,
    change_of,
    settled_below,
)
from harness_pipelines.protocol.digest import as_first, lake_digests, row_digests, shown, value_digests
from harness_pipelines.spec.load import dump_spec
from harness_pipelines.stages.replay.asked import fitting
from harness_pipelines.stages.replay.quarantine import TRIES, check_replayable, who
from harness_pipelines.stages.replay.source import Records, records_of
from harness_pipelines.stages.replay.views import RestoredRows, Rewritten, shown_rewritten, stored_rows

if TYPE_CHECKING:
    from harness_pipelines.protocol.versions import Version, ViewName
    from harness_pipelines.spec.table import TableSpec

log = structlog.get_logger(__name__)
DECODED_TOGETHER = 16_384
SHOWN_MAX = 10


class Ports(HasCorrections, HasLake, HasLakeReads, HasLedger, HasLog, HasSchemas, HasGuard, HasTables, Protocol):
    """The ports that it uses."""


@dataclass(slots=True, kw_only=True)
class RangeReplayed:
    """What became of the records of a range."""

    table: str
    wanted: OffsetRange
    dry_run: bool = False
    records: int = 0  #: decoded
    equal: int = 0  #: as they were: rows, and records that are quarantined still or filtered still
    changes: Counter[Kind] = field(default_factory=Counter)  #: by kind; of a dry run: that would be
    kept: int = 0  #: rows whose record is gone, so that their right value is unknown
    dropped: int = 0  #: records that were given up, and are not looked at
    version: int | None = None  #: published; None: nothing was to be changed, or it was a dry run
    move: int | None = None  #: that was committed with it
    waiting: str | None = None  #: why it would have to wait
    sample: list[dict[str, Any]] = field(default_factory=list)  #: the first differences

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "partition": self.wanted.partition,
            "from": self.wanted.low,
            "to": self.wanted.high,
            "dry_run": self.dry_run,
            "records": self.records,
            "equal": self.equal,
            "changed": self.changes[Kind.REPLACED],
            "added": self.changes[Kind.ADDED],
            "removed": self.changes[Kind.REMOVED],
            "refused": self.changes[Kind.REFUSED],
            "kept": self.kept,
            "dropped": self.dropped,
            "version": self.version,
            "move": self.move,
            "waiting": self.waiting,
            "sample": self.sample,
        }


def replay_range(
    stores: Ports,
    table: TableRow,
    wanted: OffsetRange,
    *,
    decoder: TableSpec | None = None,
    dry_run: bool = False,
    run_id: str | None = None,
) -> RangeReplayed:
    """Decode the records of *wanted* again, and make those rows that differ what they come out as, in one commit.

    *decoder*: as for the replay of quarantined records.
    Raises: RangeRefused, RangeWaits, ReplayRefused where rows are recalled, KeyInTwoPartitions, UsageError;
    TableStopped; CorrectionsMoved, FilesGone, ForeignCommit; TryAgain when a store is away.
    """
    check_replayable(table)
    spec = table.spec if decoder is None else fitting(table, decoder)
    if not dry_run:
        stores.guard.check(table, stores.ledger)
    check_range(table, stores.tables.head(table), wanted)
    records = records_of(stores, table, wanted)
    made = _decoded(stores, table, records, spec)
    told = None if decoder is None else hashlib.sha256(orjson.dumps(dump_spec(spec))).hexdigest()[:16]
    for _ in range(TRIES):
        done, correction, waits = _planned(stores, table, made, wanted, decoder=told)
        done.dry_run = dry_run
        if not correction.changes:
            return done
        if dry_run:
            done.waiting = None if waits is None else str(waits)
            return done
        if waits is not None:
            raise waits
        try:
            version = _publish(stores, table, made, wanted, correction, run_id=run_id)
        except CorrectionsMoved as moved:
            log.info("replay.planned_again", table=table.name, detail=str(moved))
            continue
        done.version, done.move = version.version, version.move_id
        log.info(
            "replay.range_published",
            table=table.name,
            partition=wanted.partition,
            low=wanted.low,
            high=wanted.high,
            version=done.version,
            rows=len(correction.changes),
            move=done.move,
        )
        return done
    raise CorrectionsMoved(f"{table.name}: others correct the same records; nothing was changed, ask again")


def check_range(table: TableRow, head: Version, wanted: OffsetRange) -> None:
    """Raises: RangeRefused."""
    bounds = head.bounds.get(wanted.partition)
    if bounds is None:
        known = ", ".join(map(str, sorted(head.bounds))) or "none yet"
        raise RangeRefused(f"{table.name} has no partition {wanted.partition} in the lake: it has {known}")
    settled = settled_below(head)[wanted.partition]
    if wanted.low < bounds.start:
        raise RangeRefused(
            f"partition {wanted.partition} of {table.name} starts at {bounds.start}; nothing was changed"
        )
    if wanted.high > settled:
        stages = "--stage tier --stage otree" if table.view_set.merged else "--stage tier"
        raise RangeRefused(
            f"{table.name}: the lake has passed the records of partition {wanted.partition} below {settled} only, not "
            f"up to {wanted.high}; nothing was changed. `harness run {table.name} {stages} --until-idle`, then repeat "
            "this"
        )


# -- what the records come out as ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """The records of a range by today's decoder."""

    records: Records
    rows: pa.Table  #: coordinates and user columns, by offset
    digests: Mapping[int, str]  #: of these by offset
    values: Mapping[int, int]  #: the same of their values alone
    refused: Mapping[int, RefusedRecord]  #: those that are no rows; a filtered one only counts where it was a row
    filtered: frozenset[int]  #: of the refused


def decoded_rows(stores: Ports, table: TableRow, wanted: OffsetRange) -> pa.Table:
    """The rows that the records of *wanted* come out as today, of those records that can be had.

    Raises: RangeRefused; TryAgain when a store is away.
    """
    return _decoded(stores, table, records_of(stores, table, wanted), table.spec).rows


def _decoded(stores: Ports, table: TableRow, records: Records, spec: TableSpec) -> _Made:
    codec = RecordCodec(spec, stores.schemas, due="raise")
    parts: list[pa.Table] = []
    refused: dict[int, RefusedRecord] = {}
    filtered: set[int] = set()
    for first in range(0, max(len(records), 1), DECODED_TOGETHER):
        some = records.slice(first, DECODED_TOGETHER)
        found = codec.decode(some.values, some.keys, some.headers)
        parts.append(
            with_coordinates(
                found.rows,
                partition=records.partition,
                offsets=pa.array(some.offsets[found.accepted]),
                timestamps_ms=pa.array(some.timestamps_ms[found.accepted]),
                columns=table.spec.columns,
            )
        )
        why = {bad.index: (str(bad.reason), bad.detail) for bad in found.refused}
        for at in sorted(set(range(len(some))) - set(found.accepted.tolist()) - why.keys()):
            why[at] = (str(Reason.FILTERED), "the transform's filter does not take it")
            filtered.add(int(some.offsets[at]))
        for at, (reason, detail) in why.items():
            refused[int(some.offsets[at])] = some.refused(at, reason=reason, detail=detail)
    rows = pa.concat_tables(parts)
    named, offsets = as_first(rows, table), rows["_kafka_offset"].to_pylist()
    digests = lake_digests(named, schema_version=table.schema_version)
    return _Made(
        records=records,
        rows=rows,
        digests={o: shown(int(d)) for o, d in zip(offsets, digests, strict=True)},
        values=dict(zip(offsets, lake_digests(named, schema_version=None).tolist(), strict=True)),
        refused=refused,
        filtered=frozenset(filtered),
    )


# -- what has to change -------------------------------------------------------------------------------------


def _planned(
    stores: Ports, table: TableRow, made: _Made, wanted: OffsetRange, *, decoder: str | None
) -> tuple[RangeReplayed, Correction, RangeWaits | None]:
    """The plan of a replay."""
    partition = wanted.partition
    locked = stores.corrections(table).look([(partition, int(o)) for o in made.records.offsets])
    there = _there(stores.lake_reads, table, locked.pointers, wanted)
    done = RangeReplayed(table=table.name, wanted=wanted, records=len(made.records))
    states = {offset: state for (_, offset), state in locked.states.items()}
    changes: dict[int, Change] = {}
    for offset in made.records.offsets.tolist():
        if states.get(offset) == "dropped":
            done.dropped += 1
        elif (change := _change(made, offset, there, states.get(offset))) is None:
            done.equal += 1
        else:
            changes[offset] = change
            done.changes[change.kind] += 1
    done.kept = len(there.digests.keys() - set(made.records.offsets.tolist()))
    done.sample = list(_sample(made, there, changes))
    correction = Correction(
        changes={(partition, offset): change for offset, change in changes.items()},
        states={(partition, offset): states[offset] for offset in changes.keys() & states.keys()},
        refused=[made.refused[o] for o, change in changes.items() if change.digest is None],
        bytes=made.rows.nbytes,
        decoder=decoder,
    )
    return done, correction, _waits(table, correction, locked)


def _change(made: _Made, offset: int, there: _There, state: str | None) -> Change | None:
    was = there.digests.get(offset)
    if was is not None and there.values[offset] == made.values.get(offset):
        return None  # decoded with another schema perhaps, and the same
    is_new = state is None and offset not in made.filtered  # a record that was filtered once, or is now, needs no place
    return change_of(was, made.digests.get(offset), refused=is_new)


def _waits(table: TableRow, correction: Correction, locked: LockedState) -> RangeWaits | None:
    for at, waits in locked.waits.items():
        if at in correction.changes:
            return RangeWaits(f"{table.name}: offset {at[1]}: {waits.why}; `{waits.way_on}`, then repeat this")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _There:
    """The rows of a range as a view has them."""

    rows: pa.Table
    digests: Mapping[int, str]  #: by offset
    values: Mapping[int, int]  #: the same of their values alone


def _there(lake: LakeReads, table: TableRow, pointers: Mapping[ViewName, str], wanted: OffsetRange) -> _There:
    """The rows of *wanted* in the view that has all records of a keyed table, too. Raises: RangeRefused."""
    rows = stored_rows(lake, table, pointers["stream" if "stream" in pointers else "batch"], wanted)
    offsets = rows["_kafka_offset"].to_pylist()
    named = as_first(rows, table)
    digests = {o: shown(int(d)) for o, d in zip(offsets, row_digests(named), strict=True)}
    if len(digests) != len(offsets):
        [(offset, count)] = Counter(offsets).most_common(1)
        raise RangeRefused(
            f"{table.name}: there are {count} rows at partition {wanted.partition}, offset {offset}; nothing was "
            f"changed. `harness fsck` and `harness audit {table.name}` say how that came about"
        )
    values = dict(zip(offsets, value_digests(named).tolist(), strict=True))
    return _There(rows=rows, digests=digests, values=values)


def _sample(made: _Made, there: _There, changes: Mapping[int, Change]) -> Iterator[dict[str, Any]]:
    """The first of *changes* for people: what each row was, and is."""
    for offset in sorted(changes)[:SHOWN_MAX]:
        change, found = changes[offset], {"offset": offset, "kind": str(changes[offset].kind)}
        was, now = (_row(rows, offset) for rows in (there.rows, made.rows))
        if change.kind is Kind.REPLACED:
            assert was is not None and now is not None
            differing = [name for name in now if now[name] != was.get(name)]
            found |= {
                "was": {name: was.get(name) for name in differing},
                "now": {name: now[name] for name in differing},
            }
        elif change.kind is Kind.ADDED:
            found |= {"now": now}
        else:
            bad = made.refused[offset]
            found |= {"was": was, "reason": bad.reason, "detail": bad.detail}
        yield found


def _row(rows: pa.Table, offset: int) -> dict[str, Any] | None:
    found = rows.filter(pc.equal(rows["_kafka_offset"], offset)).to_pylist()
    hidden = ("_kafka_partition", "_kafka_offset", "_kafka_timestamp", "_schema_version")
    return {name: value for name, value in found[0].items() if name not in hidden} if found else None


# -- publish ------------------------------------------------------------------------------------------------


def _publish(
    stores: Ports, table: TableRow, made: _Made, wanted: OffsetRange, correction: Correction, *, run_id: str | None
) -> Version:
    offsets = sorted(offset for _, offset in correction.changes)
    rows = made.rows.filter(_among(made.rows, offsets))

    def build(head: Version, pointers: Mapping[ViewName, str], move_id: int) -> Mapping[ViewName, Swap]:
        there = _there(stores.lake_reads, table, pointers, wanted)
        check_unmoved(table, correction.changes, {(wanted.partition, o): d for o, d in there.digests.items()})
        change = Rewritten(
            wanted=wanted,
            old=there.rows.filter(_among(there.rows, offsets)),
            new=rows,
        )
        parts = {view: _in_view(stores.lake_reads, table, head, pointers, change, view=view) for view in pointers}
        return {
            view: stores.lake.build_correction(
                table, move_id, part.rows, view=view, base=pointers[view], hidden=part.hidden
            )
            for view, part in parts.items()
            if part
        }

    return stores.corrections(table).publish(correction, build, by=who(), run_id=run_id)


def _in_view(
    lake: LakeReads,
    table: TableRow,
    head: Version,
    pointers: Mapping[ViewName, str],
    change: Rewritten,
    *,
    view: ViewName,
) -> RestoredRows:
    if table.spec.key and view == "batch":
        return shown_rewritten(lake, table, head, pointers, change)
    return RestoredRows(rows=change.new, hidden=change.hidden(lake, table, pointers[view]))


def check_unmoved(table: TableRow, changes: Mapping[Coordinate, Change], there: Mapping[Coordinate, str]) -> None:
    """The rows that shall be changed are what they were when it was planned. Raises: CorrectionsMoved."""
    if moved := [at for at, change in changes.items() if there.get(at) != change.was]:
        raise CorrectionsMoved(
            f"{table.name}: {len(moved):,} of {len(changes):,} rows are not what they were; nothing was written"
        )


def _among(rows: pa.Table, offsets: Sequence[int]) -> pa.Array:
    return pa.array(np.isin(rows["_kafka_offset"].to_numpy(), offsets))
