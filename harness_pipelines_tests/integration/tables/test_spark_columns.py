"""The source `harness` knows columns by their ids: what happens to them under an open query swaps no values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import TimestampNTZType, TimestampType

from harness_pipelines.app.spark_source import OpenTables
from harness_pipelines.engines.spark.data_source import source_class
from harness_pipelines.errors import UsageError
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests.rig import TableRig

MakeRig = Callable[..., TableRig]
COLUMNS = {"id": "long", "a": "string", "b": "string", "s": "struct<x: string, y: string>"}
NOON = dt.datetime(2024, 7, 1, 12)


@pytest.fixture
def rig(make_rig: MakeRig) -> TableRig:
    return make_rig(partitions=1, columns=COLUMNS)


def produce(rig: TableRig, *numbers: int) -> None:
    values = [b'{"id":%d,"a":"A%d","b":"B%d","s":{"x":"X%d","y":"Y%d"}}' % (n, n, n, n, n) for n in numbers]
    rig.kafka.produce(rig.topic, 0, values)
    rig.ingest()


def evolve(rig: TableRig, **changes: Any) -> None:
    rig.harness.table(rig.name).evolve(ColumnChanges(**changes))


def column(name: str, kind: str) -> Column:
    return Column(name=name, type=parse_type(kind))


ORDER = {"order": ("id", "b", "a")}
AGAIN: dict[str, Any] = {"drop": ("a",), "add": (column("a", "string"),)}
RENAMED = {"rename": (("a", "c"),)}
INSIDE = {"drop": ("s.x",), "add": (column("s.x", "string"),)}
WIDENED = {"drop": ("a",), "add": (column("n", "long"),)}


@pytest.mark.parametrize("changes", [ORDER, RENAMED], ids=["order", "rename"])
def test_a_view_shows_the_columns_that_it_was_made_with(rig: TableRig, changes: dict[str, Any]):
    produce(rig, 1, 2)
    spark = rig.stores.spark()
    rig.harness.register_spark(spark)
    view = f"v_{rig.topic}"
    spark.sql(f"CREATE TEMP VIEW {view} USING harness OPTIONS (table '{rig.name}')")
    try:
        evolve(rig, **changes)
        [row] = spark.sql(f"SELECT id, a, b FROM {view} WHERE a = 'A1'").collect()
        assert tuple(row) == (1, "A1", "B1")
    finally:
        spark.catalog.dropTempView(view)


@pytest.mark.parametrize("changes", [AGAIN, INSIDE, WIDENED], ids=["drop and add", "a field", "drop"])
def test_a_view_of_columns_that_are_gone_is_refused_by_name(rig: TableRig, changes: dict[str, Any]):
    produce(rig, 1, 2)
    spark = rig.stores.spark()
    rig.harness.register_spark(spark)
    view = f"v_{rig.topic}"
    spark.sql(f"CREATE TEMP VIEW {view} USING harness OPTIONS (table '{rig.name}')")
    try:
        evolve(rig, **changes)
        with pytest.raises(PySparkException, match=f"{rig.name}: column '[as]' .*again"):
            spark.sql(f"SELECT * FROM {view}").collect()
        spark.sql(f"CREATE OR REPLACE TEMP VIEW {view} USING harness OPTIONS (table '{rig.name}')")
        assert len(spark.sql(f"SELECT * FROM {view}").collect()) == 2
    finally:
        spark.catalog.dropTempView(view)


def planned(rig: TableRig, **options: str) -> Any:
    """Without Spark: what its processes do, the source pickled between them."""
    from pyspark import cloudpickle

    source = source_class(OpenTables(rig.harness.settings))({"table": rig.name, **options})
    schema = source.schema()
    return cloudpickle.loads(cloudpickle.dumps(source)), schema


def rows_of(reader: Any, parts: Any) -> list[dict[str, Any]]:
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row["_kafka_offset"])


@pytest.mark.parametrize("way", ["batch", "stream"])
def test_rows_come_under_the_names_and_in_the_order_of_the_plan(rig: TableRig, way: str):
    produce(rig, 1)
    source, schema = planned(rig)
    evolve(rig, **ORDER)
    evolve(rig, **RENAMED, add=(column("more", "int"),))
    rig.kafka.produce(rig.topic, 0, [b'{"id":2,"c":"A2","b":"B2","s":null}'])
    rig.ingest()
    reader = source.reader(schema) if way == "batch" else source.streamReader(schema)
    parts = reader.partitions() if way == "batch" else reader.partitions({"0": 0}, reader.latestOffset())
    found = rows_of(reader, parts)
    assert [list(row)[:4] for row in found] == [["id", "a", "b", "s"]] * 2
    assert [(row["id"], row["a"], row["b"]) for row in found] == [(1, "A1", "B1"), (2, "A2", "B2")]


def test_a_where_of_a_column_whose_name_is_another_ones_now_is_refused(rig: TableRig):
    produce(rig, 1)
    source, schema = planned(rig, columns="id", where="a = 'A1'")
    evolve(rig, **AGAIN)
    with pytest.raises(UsageError, match="column 'a' .*again"):
        source.reader(schema).partitions()


def test_a_schema_that_was_given_is_read_by_its_names(rig: TableRig):
    produce(rig, 1)
    spark = rig.stores.spark()
    rig.harness.register_spark(spark)
    read = spark.read.format("harness").option("table", rig.name)
    [row] = read.schema("b string, id long").load().collect()
    assert tuple(row) == ("B1", 1)
    for wrong in ("b string, nope int", "b long"):
        with pytest.raises(PySparkException, match=f"{rig.name}.*(nope|'b' is string)"):
            read.schema(wrong).load().collect()


def test_a_batch_of_an_old_version_has_its_columns(rig: TableRig):
    produce(rig, 1)
    rig.tier()
    version = rig.table.versions()[-1].version
    evolve(rig, **RENAMED)
    spark = rig.stores.spark()
    rig.harness.register_spark(spark)
    [row] = spark.read.format("harness").options(table=rig.name, at=version).load().collect()
    assert (row["a"], row["b"]) == ("A1", "B1")


@pytest.mark.long
def test_a_query_of_a_stream_keeps_its_columns_while_they_move(rig: TableRig, tmp_path: Path):
    from harness_pipelines_tests.integration.tables.test_spark_source import Sink
    from harness_pipelines_tests.producer import wait_until

    produce(rig, 1)
    sink = Sink(rig, tmp_path)
    query = sink.start(processingTime="0 seconds")
    try:
        wait_until(lambda: bool(query.recentProgress) and query.recentProgress[-1]["batchId"] >= 0, "it runs")
        evolve(rig, **ORDER)
        produce(rig, 2, 3)
        query.processAllAvailable()
    finally:
        query.stop()
    found = sink.spark.read.parquet(str(tmp_path / "rows")).select("id", "a", "b").toArrow().to_pylist()
    assert sorted((r["id"], r["a"], r["b"]) for r in found) == [(n, f"A{n}", f"B{n}") for n in (1, 2, 3)]


# -- one type by every route --------------------------------------------------------------------------------


ZONES = ("America/New_York", "Asia/Kathmandu", "UTC")


@pytest.mark.parametrize(
    ("spec", "zones"),
    [({}, ZONES), ({"buffer": "none"}, ZONES[:1]), pytest.param({"buffer": "none"}, ZONES[1:], marks=pytest.mark.long)],
    ids=["buffer", "no buffer", "no buffer, other zones"],
)
def test_a_timestamp_has_one_type_by_every_route_in_a_session_of_any_zone(
    make_rig: MakeRig, spec: dict[str, Any], zones: tuple[str, ...]
):
    nested = "struct<ts: timestamp, l: list<timestamp>, m: map<string, timestamptz>>"
    rig = make_rig(partitions=1, columns={"id": "long", "ts": "timestamp", "tz": "timestamptz", "n": nested}, **spec)
    noon, at = "2024-07-01T12:00:00", "2024-07-01T12:00:00Z"
    value = orjson.dumps({"id": 1, "ts": noon, "tz": at, "n": {"ts": noon, "l": [noon], "m": {"k": at}}})
    rig.kafka.produce(rig.topic, 0, [value])
    rig.tier() if spec else rig.ingest()
    rig.kafka.produce(rig.topic, 0, [value])
    if not spec:
        rig.ingest()
    spark = rig.stores.spark()
    rig.harness.register_spark(spark)
    for zone in zones:
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            routes = {
                "to_spark": rig.table.to_spark(spark),
                "source": spark.read.format("harness").option("table", rig.name).load(),
            }
            for route, frame in routes.items():
                told = (route, zone)
                assert isinstance(frame.schema["ts"].dataType, TimestampNTZType), told
                assert isinstance(frame.schema["tz"].dataType, TimestampType), told
                rows = frame.where("ts = TIMESTAMP_NTZ '2024-07-01 12:00:00'").toArrow().to_pylist()
                assert [row["ts"] for row in rows] == [NOON, NOON], told
                assert [row["tz"] for row in rows] == [NOON.replace(tzinfo=dt.UTC)] * 2, told
                assert [(row["n"]["ts"], row["n"]["l"]) for row in rows] == [(NOON, [NOON])] * 2, told
                assert [dict(row["n"]["m"])["k"] for row in rows] == [NOON.replace(tzinfo=dt.UTC)] * 2, told
            joined = routes["to_spark"].select("ts").join(routes["source"].select("ts"), "ts")
            assert joined.count() == 4, zone
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
