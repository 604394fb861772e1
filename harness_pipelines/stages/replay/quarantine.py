"""Replay: decode quarantined records again on request and add them at their own coordinates.

plan: which records of the quarantine could go back now, which wait, which are still refused. publish: one boundary
commit per batch, which adds the rows to every view. Before it, only files that no reader sees are staged.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from getpass import getuser
from socket import gethostname
from typing import TYPE_CHECKING, Any, Protocol

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from harness_pipelines.formats.base import Reason
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.ports.access import HasCorrections, HasGuard, HasLake, HasLakeReads, HasLedger, HasSchemas
from harness_pipelines.ports.corrections import HELD, Correction, HeldRecord
from harness_pipelines.ports.decoded import with_coordinates
from harness_pipelines.ports.ledger import Swap, TableRow, TableStopped
from harness_pipelines.protocol.changes.corrections import (
    BEFORE_ALL,
    Change,
    Coordinate,
    CorrectionsMoved,
    Kind,
    Wanted,
)
from harness_pipelines.protocol.digest import as_first, lake_digests, shown
from harness_pipelines.protocol.versions import Version, ViewName
from harness_pipelines.spec.load import dump_spec
from harness_pipelines.stages.replay.asked import check_wanted, fitting
from harness_pipelines.stages.replay.views import RestoredRows, shown_in_batch

if TYPE_CHECKING:
    from harness_pipelines.spec.table import TableSpec

log = structlog.get_logger(__name__)
BATCH_RECORDS = 10_000  #: of one boundary commit
TRIES = 5  #: when others settle records of a batch at the same time
SHOWN_MAX = 20
ONLY_A_HEAD = "only its first bytes are kept; while Kafka has the record, `harness replay` of its range decodes it"


class Ports(HasCorrections, HasLake, HasLakeReads, HasLedger, HasSchemas, HasGuard, Protocol):
    """The ports that it uses."""


@dataclass(slots=True, kw_only=True)
class Replayed:
    """The outcome for the selected records."""

    table: str
    dry_run: bool = False
    records: int = 0  #: looked at
    replayed: int = 0  #: rows again; of a dry run: that would be
    refused: Counter[str] = field(default_factory=Counter)  #: still, by reason
    filtered: int = 0  #: records that fit now, and that the transform's filter does not take
    waiting: Counter[str] = field(default_factory=Counter)  #: by why
    way_on: str | None = None  #: for those that wait
    versions: list[int] = field(default_factory=list)
    moves: list[int] = field(default_factory=list)  #: committed, one for each version
    shown: list[dict[str, Any]] = field(default_factory=list)  #: the first that are still refused

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "dry_run": self.dry_run,
            "records": self.records,
            "replayed": self.replayed,
            "refused": dict(self.refused),
            "filtered": self.filtered,
            "waiting": dict(self.waiting),
            "way_on": self.way_on,
            "versions": self.versions,
            "moves": self.moves,
            "still_refused": self.shown,
        }


Progress = Callable[[Replayed], None]


def replay(
    stores: Ports,
    table: TableRow,
    wanted: Wanted,
    *,
    decoder: TableSpec | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    run_id: str | None = None,
) -> Replayed:
    """Decode the *wanted* records of the quarantine again, and put back those that fit now.

    *decoder*: a spec with the table's columns, whose settings decode the values this time only.
    Raises: ReplayRefused where rows are recalled, KeyInTwoPartitions, UsageError; TableStopped; AlreadyThere,
    ForeignCommit; TryAgain when a store is away.
    """
    check_replayable(table)
    spec = table.spec if decoder is None else fitting(table, decoder)
    if not dry_run:
        stores.guard.check(table, stores.ledger)
    done = Replayed(table=table.name, dry_run=dry_run)
    codec = RecordCodec(spec, stores.schemas, due="refuse")
    told = None if decoder is None else hashlib.sha256(orjson.dumps(dump_spec(spec))).hexdigest()[:16]
    for batch in _batches(stores, table, wanted):
        done.records += len(batch)
        _replay_batch(stores, table, batch, codec=codec, decoder=told, run_id=run_id, done=done)
        if progress is not None:
            progress(done)
    return done


def drop(stores: Ports, table: TableRow, wanted: Wanted, *, dry_run: bool = False) -> int:
    """Give up quarantined records: they stay accounted for, and are never rows. Returns how many."""
    check_wanted(table, wanted)
    count, after, corrections = 0, BEFORE_ALL, stores.corrections(table)
    while found := corrections.held_at(wanted, after=after, limit=BATCH_RECORDS):
        count += len(found) if dry_run else corrections.drop(found, by=who())
        after = found[-1]
    return count


def check_replayable(table: TableRow) -> None:
    """Raises: TableStopped."""
    if table.stopped:
        raise TableStopped(f"{table.name} is stopped: {table.stopped}; nothing was put back")


def _batches(stores: Ports, table: TableRow, wanted: Wanted) -> Iterator[list[HeldRecord]]:
    check_wanted(table, wanted)
    after: Coordinate = BEFORE_ALL
    while True:
        found = stores.corrections(table).held(wanted, after=after, limit=BATCH_RECORDS)
        if not found:
            return
        yield found
        after = found[-1].at


# -- one batch ----------------------------------------------------------------------------------------------


def _replay_batch(
    stores: Ports,
    table: TableRow,
    batch: Sequence[HeldRecord],
    *,
    codec: RecordCodec,
    decoder: str | None,
    run_id: str | None,
    done: Replayed,
) -> None:
    rows, refused, filtered = _decoded(table, batch, codec)
    done.filtered += filtered
    for one, reason, detail in refused:
        done.refused[reason] += 1
        if len(done.shown) < SHOWN_MAX:
            partition, offset = one.at
            done.shown.append({"partition": partition, "offset": offset, "reason": reason, "detail": detail})
    for _ in range(TRIES):
        locked = stores.corrections(table).look(_coordinates(rows))
        ready = [at for at in _coordinates(rows) if at in locked.held and at not in locked.waits]
        if not ready or done.dry_run:
            break
        chosen = _only(rows, ready)
        try:
            version = _publish(stores, table, chosen, decoder=decoder, run_id=run_id)
        except CorrectionsMoved as moved:
            log.info("replay.planned_again", table=table.name, detail=str(moved))
            continue
        assert version.move_id is not None
        done.versions.append(version.version)
        done.moves.append(version.move_id)
        log.info("replay.published", table=table.name, version=version.version, rows=len(ready), move=version.move_id)
        break
    else:
        raise CorrectionsMoved(f"{table.name}: others settle the same records; nothing of this batch was put back")
    done.replayed += len(ready)
    for at, waits in locked.waits.items():
        if at in locked.held:
            done.waiting[waits.why] += 1
            done.way_on = waits.way_on


def _decoded(
    table: TableRow, batch: Sequence[HeldRecord], codec: RecordCodec
) -> tuple[pa.Table, list[tuple[HeldRecord, str, str]], int]:
    """Rows with their coordinates, in the order of the batch, what is refused still, and how many are filtered."""
    heads = [(one, str(Reason.TOO_LARGE), ONLY_A_HEAD) for one in batch if not one.whole]
    batch = [one for one in batch if one.whole]
    decoded = codec.decode(
        [one.record.value for one in batch],
        [one.record.key for one in batch],
        [list(one.record.headers) or None for one in batch],
    )
    parts, refused = [], [(batch[bad.index], str(bad.reason), bad.detail) for bad in decoded.refused]
    at = decoded.accepted
    partitions = pa.array([one.record.partition for one in batch], pa.int32()).take(pa.array(at))
    offsets = pa.array([one.record.offset for one in batch], pa.int64()).take(pa.array(at))
    stamps = pa.array([one.kafka_ms for one in batch], pa.int64()).take(pa.array(at))
    for partition in sorted(set(partitions.to_pylist())):
        mine = pc.equal(partitions, partition)
        parts.append(
            with_coordinates(
                decoded.rows.filter(mine),
                partition=partition,
                offsets=offsets.filter(mine),
                timestamps_ms=stamps.filter(mine),
                columns=table.spec.columns,
            )
        )
    if not parts:
        empty = pa.array([], pa.int64())
        parts = [
            with_coordinates(decoded.rows, partition=0, offsets=empty, timestamps_ms=empty, columns=table.spec.columns)
        ]
    return pa.concat_tables(parts), heads + refused, decoded.filtered


def _coordinates(rows: pa.Table) -> list[Coordinate]:
    return list(zip(rows["_kafka_partition"].to_pylist(), rows["_kafka_offset"].to_pylist(), strict=True))


def _only(rows: pa.Table, ready: Sequence[Coordinate]) -> pa.Table:
    chosen = set(ready)
    return rows.filter(pa.array([at in chosen for at in _coordinates(rows)]))


def _publish(stores: Ports, table: TableRow, rows: pa.Table, *, decoder: str | None, run_id: str | None) -> Version:
    named = as_first(rows, table)
    digests = [shown(int(one)) for one in lake_digests(named, schema_version=table.schema_version)]
    changes = {
        at: Change(kind=Kind.ADDED, digest=digest) for at, digest in zip(_coordinates(rows), digests, strict=True)
    }
    correction = Correction(changes=changes, states=dict.fromkeys(changes, HELD), bytes=rows.nbytes, decoder=decoder)

    def build(head: Version, pointers: Mapping[ViewName, str], move_id: int) -> Mapping[ViewName, Swap]:
        shown = dict.fromkeys(pointers, RestoredRows(rows=rows))
        if table.spec.key and "batch" in pointers:
            shown["batch"] = shown_in_batch(stores.lake_reads, table, head, pointers, rows)
        return {
            view: stores.lake.build_correction(
                table, move_id, part.rows, view=view, base=pointers[view], hidden=part.hidden
            )
            for view, part in shown.items()
            if part
        }

    return stores.corrections(table).publish(correction, build, by=who(), run_id=run_id)


def who() -> str:
    try:
        return f"{getuser()}@{gethostname()}"
    except (KeyError, OSError):  # a container's user need not have a name
        return f"unknown@{gethostname()}"
