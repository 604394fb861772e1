"""The streaming source `harness`: with a sink of Spark's and a checkpoint each record arrives once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from harness_pipelines.read.spark_source import OpenTables
from harness_pipelines.stores.spark_source import OffsetsOfOne, TableStreamReader
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import COORDINATES, Row, TableRig

MakeRig = Callable[..., TableRig]


class Sink:
    """Parquet files that a query writes, and its checkpoint."""

    def __init__(self, rig: TableRig, folder: Path, **options: Any) -> None:
        self.rig, self.folder, self.options = rig, folder, {"table": rig.name, **options}
        self.spark = rig.stores.spark()
        rig.harness.register_spark(self.spark)

    def start(self, **trigger: Any) -> Any:
        stream = self.spark.readStream.format("harness").options(**self.options).load()
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(self.folder / "checkpoint"))
        return writer.trigger(**trigger).start(str(self.folder / "rows"))

    def take_all(self) -> None:
        query = self.start(availableNow=True)
        assert query.awaitTermination(60), query.lastProgress
        assert query.exception() is None

    @property
    def rows(self) -> Counter[Row]:
        """What the sink's own log says is there."""
        found = self.spark.read.parquet(str(self.folder / "rows")).toArrow()
        return Counter(zip(*(found.column(name).to_pylist() for name in (*COORDINATES, "id")), strict=True))


def rows_per_batch(query: Any) -> list[int]:
    found = [sum(source["numInputRows"] for source in progress["sources"]) for progress in query.recentProgress]
    return [rows for rows in found if rows]


@pytest.mark.parametrize("spec", [{}, {"buffer": "none"}], ids=["buffer", "no buffer"])
def test_a_query_that_is_started_again_takes_what_is_new(make_rig: MakeRig, tmp_path: Path, spec: Mapping[str, Any]):
    rig = make_rig(**spec)
    sink = Sink(rig, tmp_path)
    for _ in range(2):
        rig.produce(20)
        rig.tier() if spec else rig.worker(until_idle=True).run()
    sink.take_all()
    assert sink.rows == rig.truth
    rig.produce(15)
    rig.tier() if spec else rig.ingest()
    sink.take_all()
    assert sink.rows == rig.truth
    sink.take_all()
    assert sink.rows == rig.truth


def test_a_query_that_is_killed_between_small_batches_repeats_and_loses_nothing(rig: TableRig, tmp_path: Path):
    rig.produce(100)
    rig.ingest()
    sink = Sink(rig, tmp_path, maxOffsetsPerTrigger=30)
    query = sink.start(processingTime="0 seconds")
    wait_until(lambda: bool(rows_per_batch(query)), "what is there is written")
    rig.produce(100)
    rig.ingest()
    wait_until(lambda: len(rows_per_batch(query)) > 2, "some batches more are written")
    query.stop()
    assert all(rows <= 31 for rows in rows_per_batch(query)[1:])
    rig.tier()
    rig.produce(20)
    rig.ingest()
    for _ in range(2):  # the first run may do no more than the batch that was interrupted
        Sink(rig, tmp_path).take_all()
    assert sink.rows == rig.truth


def test_columns_a_filter_and_a_beginning_are_options(rig: TableRig, tmp_path: Path):
    rig.produce(10)
    rig.ingest()
    rig.tier()
    version = rig.stores.ledger.head(rig.table.row).version
    rig.produce(10)
    rig.ingest()
    sink = Sink(rig, tmp_path, columns="id", where="n >= 25", startingOffsets=version)
    sink.take_all()
    assert sink.rows == Counter(row for row in rig.truth if row[1] >= 10 and row[2] % 100 >= 25)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "no.table"}, "no.table"),
        ({"tabel": "x"}, "has no option 'tabel'"),
        ({"startingOffsets": "{0: 1}"}, "is no token"),
        ({"maxOffsetsPerTrigger": "0"}, "how many offsets"),
        ({"where": "nope = 1"}, "nope"),
    ],
)
def test_wrong_options_end_the_query_with_the_reason(
    rig: TableRig, tmp_path: Path, options: dict[str, str], message: str
):
    sink = Sink(rig, tmp_path, **options)
    with pytest.raises(PySparkException, match=message):
        sink.take_all()
        query = sink.start(availableNow=True)
        query.awaitTermination(60)


def test_a_batch_read_says_what_to_use(rig: TableRig):
    spark = rig.stores.spark()
    rig.harness.register_spark(spark)
    with pytest.raises(PySparkException, match="Table.to_spark"):
        spark.read.format("harness").option("table", rig.name).load().collect()


def test_micro_batches_are_ranges_that_partitions_join_at_their_start(rig: TableRig):
    """Without Spark: what its driver asks."""
    rig.produce(10)
    rig.ingest()
    reads = OpenTables(rig.harness.settings)({"table": rig.name})
    reader = TableStreamReader(reads, max_offsets=6)
    assert reader.latestOffset() == {"0": 10, "1": 10}  # of a query that is new or started again: all that is there
    assert reader.initialOffset() == {"0": 0, "1": 0}
    rig.produce(10)
    rig.ingest()
    assert reader.latestOffset() == {"0": 13, "1": 13}
    assert reader.latestOffset() == {"0": 16, "1": 16}
    parts = [p for p in reader.partitions({"0": 3}, {"0": 6, "1": 6}) if isinstance(p, OffsetsOfOne)]
    assert [(p.partition, p.low, p.high) for p in parts] == [(0, 3, 6), (1, 0, 6)]
    assert reader.partitions({"0": 6, "1": 6}, {"0": 6, "1": 6}) == []
    rows = [r for batch in reader.read(parts[0]) for r in batch.to_pylist()]
    assert [r["_kafka_offset"] for r in rows] == [3, 4, 5]
