"""The source `harness` of Spark: a stream brings each record once to a sink of Spark's, a batch has a read's rows."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException

import harness_pipelines as hp
from harness_pipelines.app.spark_source import OpenTables
from harness_pipelines.engines.spark.data_source import Lazy, OffsetsOfOne, TableStreamReader, source_class
from harness_pipelines.ports.ledger import LeaseEnded
from harness_pipelines.read import slices as read_pieces
from harness_pipelines.spec.arrow import COORDINATES as ARROW_COORDINATES
from harness_pipelines_tests.keyed import EVERYTHING, KeyedRig
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.rig import COORDINATES, Row, TableRig

MakeRig = Callable[..., TableRig]
STREAM_S = 300  #: in which a query of Spark ends on a loaded machine


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
        assert query.awaitTermination(STREAM_S), query.lastProgress
        assert query.exception() is None

    @property
    def rows(self) -> Counter[Row]:
        """What the sink's own log says is there."""
        found = self.spark.read.parquet(str(self.folder / "rows")).toArrow()
        return Counter(zip(*(found.column(name).to_pylist() for name in (*COORDINATES, "id")), strict=True))


def lazily(rig: TableRig) -> Lazy:
    return Lazy(pickle.dumps(OpenTables(rig.harness.settings)), {"table": rig.name})


def rows_per_batch(query: Any) -> list[int]:
    found = [sum(source["numInputRows"] for source in progress["sources"]) for progress in query.recentProgress]
    return [rows for rows in found if rows]


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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
        ({"startingOffsets": "{0: 1}"}, "is not a token"),
        ({"maxOffsetsPerTrigger": "0"}, "how many offsets"),
        ({"where": "nope = 1"}, "nope"),
        ({"at": "1"}, "`at` is an option of spark.read"),
    ],
)
def test_wrong_options_end_the_query_with_the_reason(
    rig: TableRig, tmp_path: Path, options: dict[str, str], message: str
):
    sink = Sink(rig, tmp_path, **options)
    with pytest.raises(PySparkException, match=message):
        sink.take_all()
        query = sink.start(availableNow=True)
        query.awaitTermination(STREAM_S)


# -- batches ------------------------------------------------------------------------------------------------


def loaded(rig: TableRig, **options: Any) -> Any:
    spark = rig.stores.spark()
    rig.harness.register_spark(spark)
    return spark.read.format("harness").options(table=rig.name, **options).load()


def rows_of(frame: Any) -> Counter[Row]:
    found = frame.select(*COORDINATES, "id").toArrow()
    return Counter(zip(*(found.column(name).to_pylist() for name in (*COORDINATES, "id")), strict=True))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_pieces, "PIECE_BYTES", 1)
    monkeypatch.setattr(read_pieces, "PIECE_OFFSETS", 7)


@pytest.mark.long
@pytest.mark.parametrize("spec", [{}, {"views": "both"}, {"views": "batch"}, {"buffer": "none"}])
def test_a_batch_has_the_rows_of_a_read_wherever_they_lie(make_rig: MakeRig, spec: Mapping[str, Any]):
    rig = make_rig(**spec)
    assert rows_of(loaded(rig)) == Counter()
    for _ in range(2):
        rig.produce(20)
        rig.worker(until_idle=True).run()
    version = rig.table.versions()[-1].version
    rig.produce(15)
    if rig.table.spec.buffer != "none":
        rig.ingest()
    assert rows_of(loaded(rig)) == rig.truth
    rig.produce(3)
    rig.worker(until_idle=True).run()
    assert rows_of(loaded(rig, at=version)) == rig.read(at=version)


@pytest.mark.long
def test_pieces_are_the_plan_none_of_it_twice(make_rig: MakeRig, small_pieces: None):
    """Without Spark: what its tasks read."""
    rig = make_rig(views="both")
    for last in ("batch", "batch", "stream", "buffer"):
        rig.produce(20)
        rig.ingest()
        if last == "stream":
            rig.tier()
        elif last == "batch":
            rig.worker(until_idle=True).run()
    reads = OpenTables(rig.harness.settings)({"table": rig.name})
    parts = reads.pieces()
    assert len([p for p in parts if p.plan.lake]) >= 3
    buffered = [p.plan.buffer for p in parts if p.plan.buffer]
    assert len(buffered) == 6
    assert all(sum(b.high[p] - b.low[p] for p in b.low) <= 7 for b in buffered)
    found = Counter(
        (r["_kafka_partition"], r["_kafka_offset"], r["id"])
        for part in pickle.loads(pickle.dumps(parts))
        for batch in reads.rows_of(part)
        for r in batch.to_pylist()
    )
    assert found == rig.truth


def test_a_keyed_table_shows_its_state(harness: hp.Harness, kafka: KafkaRig):
    rig = KeyedRig(harness, kafka)
    rig.produce(40)
    rig.worker(until_idle=True).run()
    rig.produce(30)
    rig.ingest()
    names = [*(c.name for c in rig.table.spec.columns), *COORDINATES]
    found = sorted(map(repr, (tuple(row) for row in loaded(rig).select(names).collect())))
    assert found == sorted(map(repr, rig.state(EVERYTHING).values()))


@pytest.mark.long
def test_sql_has_a_view_of_one_cut_and_each_query_of_it_has_its_own_filter(rig: TableRig):
    rig.produce(30)
    rig.ingest()
    spark = rig.stores.spark()
    rig.harness.register_spark(spark)
    view = f"v_{rig.topic}"
    spark.sql(f"CREATE TEMP VIEW {view} USING harness OPTIONS (table '{rig.name}', columns 'id', where 'n >= 10')")

    def ids(where: str) -> list[int]:
        rows = spark.sql(f"SELECT id FROM {view} WHERE ({where}) AND _kafka_partition = 0 ORDER BY id").collect()
        return [row["id"] for row in rows]

    try:
        assert ids("id < 12") == [10, 11]
        assert ids("true") == list(range(10, 30))
        rig.produce(30)
        rig.ingest()
        assert ids("id > 27") == [28, 29]  # the cut of the first query
        assert ids("id > 27 OR id = 11") == [11, 28, 29]
    finally:
        spark.catalog.dropTempView(view)


def test_columns_and_a_filter_of_a_batch_are_options(rig: TableRig):
    for _ in range(2):
        rig.produce(10)
        rig.ingest()
        rig.tier()
    reads = OpenTables(rig.harness.settings)({"table": rig.name, "columns": "id", "where": "id >= 25"})
    parts = reads.pieces()
    assert len({path for part in parts for path in part.files or ()}) == 2  # of four
    rows = [row for part in parts for batch in reads.rows_of(part) for row in batch.to_pylist()]
    assert {row["id"] for row in rows} == set(range(25, 40))
    assert set(rows[0]) == {"id", *ARROW_COORDINATES.names}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": "999"}, "999"),
        ({"at": "2026-13-01"}, "is neither a version, a snapshot nor a time"),
        ({"startingOffsets": "earliest"}, "is an option of spark.readStream; a batch takes `at`"),
        ({"maxOffsetsPerTrigger": "5"}, "is an option of spark.readStream"),
        ({"columns": "nope"}, "nope"),
    ],
)
def test_wrong_options_of_a_batch_fail_with_the_reason(rig: TableRig, options: dict[str, str], message: str):
    with pytest.raises(PySparkException, match=message):
        loaded(rig, **options).collect()


def test_a_batch_whose_lease_ended_fails_by_name(rig: TableRig):
    rig.produce(5)
    rig.ingest()
    reads = OpenTables(rig.harness.settings)({"table": rig.name})
    [part] = reads.pieces()
    rig.stores.leases.end(part.plan.lease_id)
    with pytest.raises(LeaseEnded):
        list(reads.rows_of(part))


IN_A_FOLDER_THAT_IS_GONE = """
import os, pickle, sys, tempfile
folder = tempfile.mkdtemp()
os.chdir(folder)
os.rmdir(folder)
work, given, result = sys.argv[1:]
found = pickle.load(open(given, "rb"))
if work == "plan":
    source = found[0](found[1])
    reader = source.reader(source.schema())
    stream = source.streamReader(source.schema())
    micro_batch = stream.partitions(stream.initialOffset(), stream.latestOffset())
    made = [(reader, reader.partitions()), (stream, micro_batch)]
else:
    made = [[r for part in parts for b in reader.read(part) for r in b.to_pylist()] for reader, parts in found]
from pyspark import cloudpickle
open(result, "wb").write(cloudpickle.dumps(made))
"""


@pytest.mark.long
def test_it_works_in_a_process_whose_folder_spark_has_removed(rig: TableRig, tmp_path: Path):
    rig.produce(20)
    rig.ingest()
    rig.tier()
    rig.produce(5)
    rig.ingest()
    source = source_class(OpenTables(rig.harness.settings))
    given, planned, read = (tmp_path / name for name in ("given", "planned", "read"))
    given.write_bytes(cloudpickle.dumps((source, {"table": rig.name})))
    for words in (("plan", given, planned), ("read", planned, read)):
        subprocess.run([sys.executable, "-c", IN_A_FOLDER_THAT_IS_GONE, *map(str, words)], check=True)
    for rows in pickle.loads(read.read_bytes()):
        assert Counter((r["_kafka_partition"], r["_kafka_offset"], r["id"]) for r in rows) == rig.truth


# -- streams, without Spark ---------------------------------------------------------------------------------


def test_micro_batches_are_ranges_that_partitions_join_at_their_start(rig: TableRig):
    """Without Spark: what its driver asks."""
    rig.produce(10)
    rig.ingest()
    reader = TableStreamReader(lazily(rig), max_offsets=6)
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
