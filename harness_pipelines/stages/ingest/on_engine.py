"""Ingest by Spark tasks: the unit of `harness_pipelines.stages.ingest.ingest` on many machines.

The driver makes a frame of ranges, one row per partition; each task reads its range from Kafka and commits it to the
buffer in units, with the driver's claim. The executors need the harness's dependencies; the harness itself is shipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import pyarrow as pa

from harness_pipelines.errors import HarnessError, Recovery, UsageError
from harness_pipelines.formats.contract.checks import judge_of
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.ports.access import HasBufferWriter, HasClose, HasEngine, HasLog, HasSchemas, HasSegments
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import BATCH_RECORDS_MAX, Log, PartitionBatch, below, check_epochs, check_source
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.claims import Claim
from harness_pipelines.stages.ingest.ingest import OpenSegment, alone, bytes_of, check_decodes, ingest_unit

RANGE_OFFSETS_MAX = 500_000  #: per partition and job, so that the claim and the log are looked at in between
SILENT_POLLS_MAX = 60
_DONE = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("reached", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("refresh", pa.string()),
        pa.field("stops", pa.string()),
    ]
)


class Ports(HasBufferWriter, HasClose, HasEngine, HasLog, HasSchemas, HasSegments, Protocol):
    """The ports that it uses."""

    def opener(self, *, elsewhere: bool = False) -> Callable[[], Ports]:
        """Opens the same in another process; *elsewhere*: on another machine."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkIngested:
    """What the tasks of one job took."""

    rows: int
    reached: Mapping[int, int]


class IngestTaskFailed(HarnessError):
    """A task was planned on an older state; the next job starts from what the ledger says."""

    recovery = Recovery.REFRESH


class IngestTaskStopped(HarnessError):
    """A task met an error that a person must correct. The table stops; records ingested before it stay."""

    way_on = "correct what the message names, then start the worker again"


def ingest_on_spark(stores: Ports, table: TableRow, claim: Claim) -> SparkIngested:
    """Take everything between the buffer and the log's ends, at most `RANGE_OFFSETS_MAX` per partition.

    Raises: UsageError, ContractUnusable, TopicRecreated, PartitionsGrown, RecordsLost, BufferFull, ... before the job;
    IngestTaskFailed, IngestTaskStopped, TasksFailed, SparkAway after it.
    """
    judge_of(table.spec)
    if table.spec.evolution == "compatible":
        raise UsageError(
            f"{table.name}: with `evolution: compatible` the columns change where ingest meets a new schema, which "
            "tasks of Spark cannot do; ingest this table on threads (`harness run` without `--ingest-on spark`)"
        )
    known = stores.segments.positions(table)
    check_decodes(table, known)
    positions = {p: found.buffer_hi for p, found in known.items()}
    check_source(table, stores.log, positions, known=positions)
    check_epochs(table, stores.log, {p: (at.buffer_hi, at.leader_epoch) for p, at in known.items()})
    marks = stores.log.watermarks(table.spec.topic, positions)
    ranges = [
        OffsetRange(partition=p, low=low, high=min(marks[p].end, low + RANGE_OFFSETS_MAX))
        for p, low in sorted(positions.items())
        if marks[p].end > low
    ]
    if not ranges:
        return SparkIngested(rows=0, reached={})
    stores.segments.check_room(table, taken=0)
    stores.segments.open_segment(table)
    done = stores.engine.run_tasks(ranges, task(stores.opener(elsewhere=True), table, claim), _DONE)
    if stopped := [row["stops"] for row in done if row["stops"]]:
        raise IngestTaskStopped(stopped[0])
    if trouble := [row["refresh"] for row in done if row["refresh"]]:
        raise IngestTaskFailed(f"{table.name}: {trouble[0]}")
    return SparkIngested(
        rows=sum(row["rows"] for row in done), reached={row["partition"]: row["reached"] for row in done}
    )


def task(
    opener: Callable[[], Ports], table: TableRow, claim: Claim
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """The function that Spark runs over batches of ranges (columns partition, low, high)."""

    def ingest(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        stores = opener()
        try:
            for batch in batches:
                for row in batch.to_pylist():
                    yield pa.RecordBatch.from_pylist([_take(stores, table, claim, OffsetRange(**row))], schema=_DONE)
        finally:
            stores.close()

    return ingest


def _take(stores: Ports, table: TableRow, claim: Claim, wanted: OffsetRange) -> dict[str, object]:
    """Ingest one range. An attempt that finds the bound moved stops: another one did the work."""
    writer = stores.buffer_writer(table, lambda: claim)
    segment, codec = OpenSegment(stores.segments, table), RecordCodec(table.spec, stores.schemas)
    reached, rows, taken = wanted.low, 0, 0
    try:
        for batch in read_range(stores.log, table, wanted):
            stores.segments.check_room(table, taken=taken)
            ask = partial(stores.log.identity_async, table.spec.topic)
            rows += alone(ingest_unit(table, [batch], codec=codec, writer=writer, segment=segment, ask=ask))
            reached, taken = batch.high, bytes_of(batch)
    except HarnessError as error:
        # As a row: Spark would run a task that raises again, and give no more than its words.
        kind = "stops" if error.recovery is Recovery.NEVER else "refresh"
        return {"partition": wanted.partition, "reached": reached, "rows": rows, kind: str(error)}
    finally:
        writer.close()
    return {"partition": wanted.partition, "reached": reached, "rows": rows}


def read_range(stream: Log, table: TableRow, wanted: OffsetRange) -> Iterable[PartitionBatch]:
    """Batches that together are exactly *wanted*. Raises: what the log raises, IngestTaskFailed on silence."""
    silent = 0
    with stream.reader(table.spec.topic, {wanted.partition: wanted.low}, identity=table.identity) as reader:
        while silent < SILENT_POLLS_MAX:
            for batch in reader.poll(BATCH_RECORDS_MAX, 0.5):
                silent = 0
                yield below(batch, wanted.high)
                if batch.high >= wanted.high:
                    return
            silent += 1
    raise IngestTaskFailed(f"partition {wanted.partition}: Kafka was silent before offset {wanted.high}")
