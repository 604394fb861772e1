"""All history in offset order: our stream beside the ways that there were, and Spark's micro-batches over it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import harness_pipelines as hp
from harness_pipelines.engines.spark.kafka import java_properties
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.ports.decoded import decode_batch
from harness_pipelines.ports.source import BATCH_RECORDS_MAX
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.records import PARTITIONS
from harness_pipelines_tests.bench.throughput import QUICK_ROWS, ROWS, backlog, warm_up
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import ALL, environment

TABLE = "streamed"
BATCHES = 8
#: A consumer of its own, so that its memory is known: reads all, keeps nothing, prints rows, seconds and MiB.
CONSUMER = """
import resource, sys, time
import harness_pipelines as hp
with hp.connect() as harness:
    table = harness.table(sys.argv[1])
    list(table.stream("latest", follow=False))  # the JVMs of the peers are warm too
    began = time.monotonic()
    rows = sum(batch.rows.num_rows for batch in table.stream(follow=False))
    took = time.monotonic() - began
    print(rows, took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def measure(run: Run) -> Sequence[Figure]:
    """Rows per second, and the most memory that the consumer's process had."""
    rows, table = run.size(ROWS, QUICK_ROWS), streamed(run)
    run.say(f"bootstrap: {rows:,} rows by our stream")
    ours_s, peak = min(_consumed(table, rows) for _ in range(3))
    run.say("bootstrap: Spark sorts the batch view by offset")
    sorting_s = min(_sorted(run, table, rows) for _ in range(2))
    run.say("bootstrap: Spark's streaming read of the stream view")
    reading_s = min(_iceberg_stream(run, table, rows) for _ in range(2))
    run.say("bootstrap: everything from Kafka")
    kafka_s = _from_kafka(run, table, rows)
    for name, seconds in (("ours", ours_s), ("sorted", sorting_s), ("iceberg", reading_s), ("kafka", kafka_s)):
        run.note(f"bootstrap.{name}", rows / seconds, "rows/s")
    run.note("bootstrap.memory", peak, "MiB")
    return [
        Figure(figure="bootstrap.to_sorted_batch_view", value=sorting_s / ours_s, unit="x", goal=3.0, sense=">="),
        Figure(figure="bootstrap.to_iceberg_stream", value=reading_s / ours_s, unit="x", goal=1.0, sense=">="),
    ]


def streamed(run: Run) -> hp.Table:
    """A table with the backlog in both views; made once per run."""
    if TABLE not in run.shared:
        warm_up(run)
        table = run.table(backlog(run), views="both", layout={"columns": ["amount", "customer"]})
        run.say("moving the backlog to both views")
        run.work(table, ALL)
        run.shared[TABLE] = table
    found: hp.Table = run.shared[TABLE]
    return found


def _consumed(table: hp.Table, rows: int) -> tuple[float, float]:
    settings = table.harness.settings
    command = [sys.executable, "-c", CONSUMER, table.name]
    done = subprocess.run(command, env=environment(settings), capture_output=True, text=True, check=True)
    found, seconds, peak = done.stdout.split()
    assert int(found) == rows, f"{found} rows came, not {rows}"
    return float(seconds), float(peak)


def _sorted(run: Run, table: hp.Table, rows: int) -> float:
    head = run.harness.stores.tables.head(table.row)
    assert head.batch is not None
    frame = run.harness.stores.spark().read.format("iceberg").load(head.batch.metadata)
    began = time.monotonic()
    frame.orderBy("_kafka_partition", "_kafka_offset").write.format("noop").mode("overwrite").save()
    took = time.monotonic() - began
    assert frame.count() == rows
    return took


def _iceberg_stream(run: Run, table: hp.Table, rows: int) -> float:
    """Spark names the view by the catalog; its stream begins with the oldest snapshot."""
    settings = run.harness.settings
    name = f"{settings.catalog_name}.{table.spec.namespace}.{table.row.views['stream']}"
    reader = (
        run.harness.stores.spark().readStream.format("iceberg").option("streaming-skip-overwrite-snapshots", "true")
    )
    return _took(run, lambda: reader.load(name), rows)


def _from_kafka(run: Run, table: hp.Table, rows: int) -> float:
    """Poll and decode all records, as a consumer without a lake does."""
    codec, found = RecordCodec(table.spec), 0
    began = time.monotonic()
    with run.harness.stores.log.reader(table.spec.topic, dict.fromkeys(range(PARTITIONS), 0)) as reader:
        while found < rows:
            for batch in reader.poll(BATCH_RECORDS_MAX, 0.5):
                found += decode_batch(table.row, codec, batch).rows.num_rows
    return time.monotonic() - began


def measure_micro_batches(run: Run) -> Sequence[Figure]:
    """The same records in as many micro-batches by our source and by Spark's Kafka source, decoded by Spark there."""
    from pyspark.sql import functions as f

    from harness_pipelines_tests.bench.records import SPARK_COLUMNS

    rows, table = run.size(ROWS, QUICK_ROWS), streamed(run)
    spark, settings = run.harness.stores.spark(), run.harness.settings
    per_batch = rows // BATCHES
    run.harness.register_spark(spark)

    def ours() -> Any:
        source = spark.readStream.format("harness").option("table", table.name)
        return source.option("maxOffsetsPerTrigger", per_batch).load()

    def kafka() -> Any:
        source = spark.readStream.format("kafka").option("subscribe", table.spec.topic)
        source = source.option("kafka.bootstrap.servers", settings.kafka).option("startingOffsets", "earliest")
        login = {f"kafka.{name}": given for name, given in java_properties(settings.kafka_properties).items()}
        records = source.options(**login).option("maxOffsetsPerTrigger", per_batch).load()
        return records.select(f.from_json(f.col("value").cast("string"), SPARK_COLUMNS).alias("r")).select("r.*")

    run.say(f"micro-batches: {rows:,} records, {per_batch:,} a batch")
    took = {name: min(_took(run, frame, rows) for _ in range(2)) for name, frame in (("ours", ours), ("kafka", kafka))}
    for name, seconds in took.items():
        run.note(f"microbatch.{name}", rows / seconds, "rows/s")
    return [Figure(figure="microbatch.to_kafka", value=took["ours"] / took["kafka"], unit="x", goal=1.5, sense="<=")]


def _took(run: Run, frame: Callable[[], Any], rows: int) -> float:
    """Seconds of the micro-batches that read *rows* to nowhere."""
    checkpoint = run.harness.settings.home / "bench" / "streams"
    shutil.rmtree(checkpoint, ignore_errors=True)
    writer = frame().writeStream.format("noop").option("checkpointLocation", checkpoint.as_uri())
    began = time.monotonic()
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        wait_until(lambda: _has_read(query) >= rows, f"the query has read {rows:,} rows", deadline_s=600)
        return time.monotonic() - began
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)


def _has_read(query: Any) -> int:
    """Rows so far. Raises: AssertionError with what ended the query."""
    if (failure := query.exception()) is not None:
        raise AssertionError(f"the query failed: {failure}")
    return sum(source["numInputRows"] for progress in query.recentProgress for source in progress["sources"])
