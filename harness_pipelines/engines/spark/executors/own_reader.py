"""Kafka records on Spark executors with the harness's reader, for records that Spark's cannot read.

A producer may send any 64 bits as a record's time. Spark's source makes microseconds of them and raises where they do
not fit, whatever is asked of the record; ours gives NULL, as everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from harness_pipelines.errors import TryAgain
from harness_pipelines.formats.columns.times import kafka_times
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import Log, OpenLog, PartitionBatch, TopicIdentity, below
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_RECORDS = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
_POLL_RECORDS, _POLL_S, _SILENT_POLLS_MAX = 16_384, 0.5, 60


def time_overflows(error: Exception) -> bool:
    """Return whether Spark's Kafka source met a record whose timestamp does not fit into microseconds."""
    said = str(error)
    return "ArithmeticException" in said and "overflow" in said


def read_log(
    spark: SparkSession,
    table: TableRow,
    ranges: Sequence[OffsetRange],
    *,
    open_log: OpenLog,
    settings: Settings,
    headers: bool,
) -> DataFrame:
    """The records of *ranges* as `spark_kafka.read_kafka` has them, one task per range; a lost one raises."""
    from harness_pipelines.engines.spark.executors.functions import in_any_folder
    from harness_pipelines.engines.spark.executors.tasks import ship
    from harness_pipelines.engines.spark.kafka import spark_struct

    ship(spark)
    schema = _RECORDS.append(pa.field("headers", _HEADERS)) if headers else _RECORDS
    frame = spark.createDataFrame([(r.partition, r.low, r.high) for r in ranges], "partition int, low long, high long")
    spread = frame.repartitionByRange(len(ranges), "partition")
    # Executors need no ledger, so they get no address of it.
    work = _reader(open_log, replace(settings, dsn=None), table.spec.topic, table.identity, schema)
    return spread.mapInArrow(in_any_folder(work), spark_struct(schema))


def _reader(
    open_log: OpenLog, settings: Settings, topic: str, identity: TopicIdentity, schema: pa.Schema
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stream = open_log(settings)
        try:
            for given in batches:
                for wanted in given.to_pylist():
                    for batch in _batches(stream, topic, identity, OffsetRange(**wanted)):
                        yield _arrow(batch, schema)
        finally:
            stream.close()

    return read


def _batches(stream: Log, topic: str, identity: TopicIdentity, wanted: OffsetRange) -> Iterator[PartitionBatch]:
    """Batches that together are exactly *wanted*. Raises: what the log raises, TryAgain on silence."""
    silent = 0
    with stream.reader(topic, {wanted.partition: wanted.low}, identity=identity) as reader:
        while silent < _SILENT_POLLS_MAX:
            for batch in reader.poll(_POLL_RECORDS, _POLL_S):
                silent = 0
                yield below(batch, wanted.high)
                if batch.high >= wanted.high:
                    return
            silent += 1
    raise TryAgain(f"partition {wanted.partition}: Kafka was silent before offset {wanted.high}; it is tried again")


def _arrow(batch: PartitionBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        pa.repeat(pa.scalar(batch.partition, pa.int32()), len(batch)),
        pa.array(batch.offsets, pa.int64()),
        kafka_times(pa.array(batch.timestamps_ms, pa.int64())),
        pa.array(batch.keys, pa.binary()),
        pa.array(batch.values, pa.binary()),
    ]
    if "headers" in schema.names:
        told = [None if one is None else [{"key": k, "value": v} for k, v in one] for one in batch.headers]
        columns.append(pa.array(told, _HEADERS))
    return pa.record_batch(columns, schema=schema)
