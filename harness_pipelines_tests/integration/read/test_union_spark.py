"""The union read in Spark: the rows of the Arrow read, pushed down, and never without a living lease."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from harness_pipelines.engines.spark import session as spark_session
from harness_pipelines.engines.spark.jdbc import jdbc_options
from harness_pipelines.engines.spark.predicates import to_spark as predicate_to_spark
from harness_pipelines.engines.spark.session import FORMATS, SparkUnreachable, open_spark, unreported
from harness_pipelines.engines.spark.union import to_spark
from harness_pipelines.errors import UsageError
from harness_pipelines.lakes.iceberg.read.scan import pinned
from harness_pipelines.ports.errors import LakeFileMissing
from harness_pipelines.protocol.reading.plan import LakePart, ReadPlan, TailPart
from harness_pipelines.read.union import read_arrow
from harness_pipelines.spec.arrow import arrow_type
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.types import DecimalType, ListType, MapType, Primitive, StructType, Type, parse_type
from harness_pipelines_tests.integration.read.test_union_arrow import PARTITIONS, alive, rows_of, whole_plan
from harness_pipelines_tests.integration.read.world import IN_A_FOLDER, STANDARD, World, coordinates_of, standard_rows
from harness_pipelines_tests.other_catalog import sql_catalog
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.unit.read.predicates import holds, physical, predicates
from harness_pipelines_tests.unit.read.test_nested_json import exact
from harness_pipelines_tests.unit.read.values import PRIMITIVE_VALUES, nested_types, values

pytestmark = IN_A_FOLDER

#: Settings of drawings that are no tests: the values are used later, all in one Spark query.
draws = partial(settings, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
LEASE_ENDED = "lease .* of this read (has )?ended"


def in_sparks_words(value: Any, type_: Type) -> Any:
    """*value* as Spark shows it: UUIDs as text, times as microseconds, maps without order."""
    if value is None:
        return None
    match type_:
        case ListType(element):
            return [in_sparks_words(v, element) for v in value]
        case MapType(key, item):
            entries = value.items() if isinstance(value, dict) else value
            return sorted(((in_sparks_words(k, key), in_sparks_words(v, item)) for k, v in entries), key=repr)
        case StructType(fields):
            return {x.name: in_sparks_words(value[x.name], x.type) for x in fields}
        case Primitive("uuid") if isinstance(value, bytes):
            return str(uuid.UUID(bytes=value))
        case Primitive("time") if not isinstance(value, int):
            return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    return exact(value)


def shown(table: pa.Table, types: Mapping[str, Type]) -> list[list[Any]]:
    """Columns of *table* in offset order, in Spark's words."""
    table = table.sort_by([("_kafka_partition", "ascending"), ("_kafka_offset", "ascending")])
    return [[in_sparks_words(v, kind) for v in table.column(name).to_pylist()] for name, kind in types.items()]


def types_of(world: World) -> dict[str, Type]:
    return {c.name: c.type for c in world.columns}


def test_spark_and_arrow_return_the_same_rows(union, spark):
    plan = whole_plan(union)

    found = to_spark(spark, plan, union, coordinates=True).toArrow()

    assert coordinates_of(found) == rows_of(union)
    expected = read_arrow(plan, union, coordinates=True, check_lease=alive).rows
    assert shown(found, types_of(union)) == shown(expected, types_of(union))
    assert found.schema.names == expected.schema.names


@pytest.mark.parametrize(
    "where",
    [
        "_kafka_offset >= 395",
        "amount > 380.255 and status = 'new'",
        "not (ratio >= 10) or ratio is nan",
        "status not in ('new') or key is null",
        "at >= '2020-09-13T12:33:10Z' and clock < '00:00:00.000395'",
        "status like 'd_n%' and note not like '%99%'",
        "key = '00000000-0000-0000-0000-00000000012c'",
    ],
)
def test_a_where_gives_spark_the_rows_that_it_gives_arrow(union, spark, where):
    plan = whole_plan(union)

    found = to_spark(spark, plan, union, where=where, columns=["_kafka_partition", "_kafka_offset"]).toArrow()

    expected = read_arrow(plan, union, where=where, coordinates=True, check_lease=alive).rows
    assert coordinates_of(found) == coordinates_of(expected)
    assert found.num_rows > 0


def test_bounds_differ_per_partition(union, spark):
    plan = union.plan(lake={0: (10, 150), 2: (0, 300)}, buffer={0: (260, 260), 1: (250, 251), 2: (300, 420)})

    found = to_spark(spark, plan, union, columns=[], coordinates=True).toArrow()

    expected = [(0, o) for o in range(10, 150)] + [(1, 250)] + [(2, o) for o in range(420)]
    assert coordinates_of(found) == expected


def test_a_temp_view_answers_sql(union, spark):
    to_spark(spark, whole_plan(union), union, coordinates=True).createOrReplaceTempView("union_rows")

    [row] = spark.sql(
        "SELECT count(*) AS n, count(DISTINCT _kafka_partition, _kafka_offset) AS d, sum(id) AS s FROM union_rows "
        "WHERE _kafka_offset >= 100 AND status IS NOT NULL"
    ).collect()

    kept = rows_of(union, lambda p, o: o >= 100 and o % 11 != 10)
    assert (row.n, row.d, row.s) == (len(kept), len(kept), sum(o * 10 + p for p, o in kept))


def of_other_offsets(world: World) -> ReadPlan:
    return world.plan(lake={0: (0, 300), 1: (200, 300)}, buffer=dict.fromkeys(PARTITIONS, (300, 310)))


#: Reads that want no row of offsets 100 to 199 of partition 1: those of which the harness knows it when it makes the
#: frame, and those that Spark narrows later.
NARROWED: Mapping[str, Callable[[SparkSession, World], DataFrame]] = {
    "partition": lambda spark, union: to_spark(spark, whole_plan(union), union, where="_kafka_partition <> 1"),
    "statistics": lambda spark, union: to_spark(spark, whole_plan(union), union, where="id >= 2000"),
    "bounds": lambda spark, union: to_spark(spark, of_other_offsets(union), union),
}
FILTERED: Mapping[str, Callable[[SparkSession, World], DataFrame]] = {
    "filter on the offset": lambda spark, union: to_spark(spark, whole_plan(union), union, coordinates=True).filter(
        "_kafka_offset >= 200"
    ),
    "filter on a column": lambda spark, union: to_spark(spark, whole_plan(union), union).filter("id >= 2000"),
}


@pytest.mark.parametrize("name", [*NARROWED, *FILTERED])
def test_spark_does_not_open_a_file_that_holds_no_wanted_row(union, spark, tmp_path, name):
    narrow = {**NARROWED, **FILTERED}[name]
    victim = next(x for x in pinned(union.view.metadata_location).files if x.partition == 1 and x.low == 100)
    path = Path(victim.path.removeprefix("file://"))
    aside = tmp_path / "aside"
    narrowed, whole = narrow(spark, union), to_spark(spark, whole_plan(union), union)
    path.rename(aside)
    try:
        assert narrowed.count() > 0
        with pytest.raises(PySparkException, match=path.name):
            whole.collect()
        with pytest.raises(LakeFileMissing, match=path.name):  # all that Spark may read is looked at first
            to_spark(spark, whole_plan(union), union)
        if name in NARROWED:
            assert narrow(spark, union).count() > 0
        else:  # what the frame is filtered by later is not known yet
            with pytest.raises(LakeFileMissing, match=path.name):
                narrow(spark, union)
    finally:
        aside.rename(path)


def rows_taken(world: World, work: Callable[[], object]) -> int:
    """Live rows that Postgres fetched from the segments for *work*: a session counts them by its end at the latest."""
    mine = "SELECT current_setting('application_name') AS mine"
    left = f"FROM pg_stat_activity, ({mine}) x WHERE application_name = mine AND pid <> pg_backend_pid()"

    def ended() -> bool:
        """A pool keeps its idle sessions for a minute, and opens another for one that was ended."""
        world.pg.execute(f"SELECT pg_terminate_backend(pid) {left} AND state = 'idle'")
        return not world.pg.execute(f"SELECT 1 {left}").fetchall()

    def taken() -> int:
        wait_until(ended, "the sessions of the world have ended")
        world.pg.execute("SELECT pg_stat_force_next_flush()")
        world.pg.execute("SELECT pg_stat_clear_snapshot()")
        names = [s.name for s in world.segments]
        row = world.pg.execute(
            "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables WHERE relname = ANY(%s)",
            [names],
        ).fetchone()
        assert row is not None
        return int(row[0])

    before = taken()
    work()
    return taken() - before


def test_the_buffer_is_asked_for_no_more_rows_than_match(counted, spark):
    plan = whole_plan(counted)

    newest = rows_taken(counted, lambda: to_spark(spark, plan, counted, where="_kafka_offset >= 390").collect())
    none = rows_taken(counted, lambda: to_spark(spark, plan, counted, where="_kafka_offset < 300").collect())

    assert 0 < newest <= 30
    assert none == 0


def test_the_jvm_has_initialized_icebergs_formats_before_a_session_has_its_first_job(
    endpoints, dsn, tmp_path, monkeypatch
):
    """What a cancelled job interrupts is not initialized again: no write would succeed until Spark was restarted."""
    begun: list[SparkSession] = []
    initialize = spark_session.initialize_formats

    def noted(one: SparkSession) -> None:
        begun.append(one)
        initialize(one)

    monkeypatch.setattr(spark_session, "initialize_formats", noted)
    spark = open_spark(endpoints.fill(Settings(home=tmp_path, dsn=dsn)))
    try:
        assert begun == [spark]
        with unreported(), pytest.raises(AnalysisException, match="UNEXPECTED_STATIC_METHOD"):  # the class is there
            spark.sql(f"SELECT java_method('{FORMATS}', '')")
    finally:
        spark.stop()


def test_a_missing_metadata_file_fails_by_name_when_the_frame_is_made(union, spark):
    plan = whole_plan(union)
    gone = replace(plan.lake[0], metadata=plan.lake[0].metadata + ".gone")

    with pytest.raises(LakeFileMissing, match="metadata.json.gone is gone"):
        to_spark(spark, replace(plan, lake=(gone,)), union)


USES: Mapping[str, Callable[[DataFrame], object]] = {
    "count": lambda d: d.count(),
    "take": lambda d: d.take(1),
    "limit": lambda d: d.limit(1).collect(),
    "is empty": lambda d: d.isEmpty(),
    "filter": lambda d: d.filter("id = 5 AND amount > 1 AND tags IS NOT NULL").collect(),
    "nothing but a constant": lambda d: d.selectExpr("1").collect(),
    "aggregate": lambda d: d.groupBy("status").agg({"id": "max"}).collect(),
    "distinct": lambda d: d.select("status").distinct().collect(),
    "join": lambda d: d.alias("a").join(d.alias("b"), "id").count(),
    "arrow": lambda d: d.select("id").toArrow(),
}
SHAPES: Mapping[str, Callable[[World, ReadPlan], tuple[ReadPlan, str | None]]] = {
    "lake and buffer": lambda w, plan: (plan, None),
    "lake only": lambda w, plan: (replace(plan, buffer=None), None),
    "buffer pruned": lambda w, plan: (plan, "_kafka_offset < 50"),
    "lake pruned": lambda w, plan: (plan, "_kafka_offset >= 350"),
    "nothing at all": lambda w, plan: (replace(plan, buffer=None, lake=()), None),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_frame_that_is_used_after_its_lease_ended_fails_by_name(union, spark, shape):
    plan, where = SHAPES[shape](union, whole_plan(union))
    frame = to_spark(spark, plan, union, where=where)
    frame.createOrReplaceTempView("leased")
    frame.count()

    union.end_lease(plan.lease_id)

    uses = USES.values() if shape in ("lake and buffer", "lake only") else (USES["take"], USES["filter"])
    for use in (*uses, lambda _: spark.sql("SELECT id FROM leased LIMIT 1").collect()):
        with pytest.raises(PySparkException, match=LEASE_ENDED):
            use(frame)


def test_a_frame_whose_segment_was_dropped_names_its_lease_or_the_segment(world, spark):
    segment = world.add_segment(standard_rows(world, 0, 0, 10))
    plan = world.plan(lake={}, buffer={0: (0, 10)})
    frame = to_spark(spark, plan, world)
    world.pg.execute("DELETE FROM harness.leases WHERE lease_id = %s", [plan.lease_id])
    world.pg.execute(f"DROP TABLE harness_buffer.{segment.name}")

    # Spark Connect resolves the segment's columns again before it runs anything; other masters meet the guard first.
    with pytest.raises(PySparkException, match=f"lease {plan.lease_id} of this read has ended|{segment.name}"):
        frame.collect()


def test_the_tail_comes_from_the_hook(union, spark):
    plan = replace(whole_plan(union), tail=TailPart(topic="t", schema_version=1, low={0: 400}, high={0: 410}))

    def tail_frame(session: SparkSession, part: TailPart) -> DataFrame:
        base = to_spark(session, whole_plan(union), union, coordinates=True, where="_kafka_partition = 0").limit(0)
        row = base.schema
        made = [{"id": o * 10, "_kafka_partition": 0, "_kafka_offset": o, "_op": "put", "_schema_version": 1}
                for o in range(part.low[0], part.high[0])]  # fmt: skip
        return session.createDataFrame(made, row)

    found = to_spark(
        spark, plan, union, columns=["id"], coordinates=["_kafka_partition", "_kafka_offset"],
        where="_kafka_offset >= 399 and id <> 4050", tail_frame=tail_frame,
    ).toArrow()  # fmt: skip

    assert coordinates_of(found) == [(0, o) for o in range(399, 410) if o != 405] + [(1, 399), (2, 399)]
    with pytest.raises(UsageError, match="has a Kafka part"):  # rather than fewer rows
        to_spark(spark, plan, union)


@pytest.fixture
def every_type(dsn: str, tmp_path: Path) -> Iterator[tuple[World, pa.Table]]:
    """All primitive types, decimals and some nested ones: 40 random rows, half of them in the lake."""
    decimals = [DecimalType(18, 18), DecimalType(19, 3), DecimalType(38, 37)]
    kinds: list[Type] = [*map(Primitive, PRIMITIVE_VALUES), *decimals]
    drawn: dict[str, Any] = {}

    @draws(max_examples=1)
    @seed(20261121)
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        drawn["kinds"] = kinds + [data.draw(nested_types()) for _ in range(8)] + [parse_type("struct<a: list<time>>")]
        drawn["values"] = [data.draw(st.lists(values(k), min_size=40, max_size=40)) for k in drawn["kinds"]]

    draw()
    columns = {f"c{i} `x'": kind for i, kind in enumerate(drawn["kinds"])}
    world = World(dsn, tmp_path, columns)
    arrays = [pa.array(v, type=arrow_type(k)) for k, v in zip(columns.values(), drawn["values"], strict=True)]
    rows = world.rows(pa.table(dict(zip(columns, arrays, strict=True))), 0, 0)
    world.append_to_lake(rows.slice(0, 20))
    world.add_segment(rows.slice(20))
    yield world, rows
    world.close()


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_values_of_every_type_are_the_same_in_spark(every_type, spark, zone):
    world, rows = every_type
    plan = world.plan(lake={0: (0, 20)}, buffer={0: (20, 40)})
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        found = to_spark(spark, plan, world, coordinates=True).toArrow()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    assert shown(found, types_of(world)) == shown(rows, types_of(world))


def test_what_spark_writes_is_read_back_without_a_jvm(every_type, spark, dsn, tmp_path):
    world, rows = every_type
    world.segments.clear()
    world.add_segment(rows)
    buffered = world.plan(lake={}, buffer={0: (0, 40)})
    catalog = sql_catalog("harness", dsn=dsn, warehouse=(tmp_path / "spark").as_uri())
    catalog.create_namespace_if_not_exists("w")
    view = catalog.create_table(
        ("w", f"{world.name}__stream"), schema=world.view.schema(), partition_spec=world.view.spec()
    )

    to_spark(spark, buffered, world, coordinates=True).writeTo(f"harness.w.{world.name}__stream").append()

    view.refresh()
    part = LakePart(metadata=view.metadata_location, low={0: 0}, high={0: 40})
    found = read_arrow(replace(buffered, lake=(part,), buffer=None), world, coordinates=True, check_lease=alive).rows
    assert exact(in_order(found)) == exact(in_order(rows))
    catalog.close()


def in_order(table: pa.Table) -> list[list[Any]]:
    """Columns by offset; entries of maps, whose order Spark does not keep, sorted."""
    table = table.sort_by([("_kafka_offset", "ascending")])
    return [[_sorted_maps(v, column.type) for v in column.to_pylist()] for column in table.columns]


def _sorted_maps(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return sorted(((exact(k), _sorted_maps(v, kind.item_type)) for k, v in value), key=repr)
    if pa.types.is_list(kind):
        return [_sorted_maps(v, kind.value_type) for v in value]
    if pa.types.is_struct(kind):
        return {f.name: _sorted_maps(value[f.name], f.type) for f in kind}
    return value


def test_predicates_mean_the_same_in_spark(every_type, spark):
    world, rows = every_type
    plan = world.plan(lake={0: (0, 20)}, buffer={0: (20, 40)})
    primitive = {n: t for n, t in types_of(world).items() if not isinstance(t, ListType | MapType | StructType)}
    asked: list[Any] = []

    @draws(max_examples=60)
    @given(predicates(primitive))
    def draw(predicate: Any) -> None:
        asked.append(predicate)

    draw()
    frame = to_spark(spark, plan, world)
    [counts] = frame.select(*(f.count_if(predicate_to_spark(p)).alias(f"p{i}") for i, p in enumerate(asked))).collect()

    physical_rows = [
        dict(zip(rows.column_names, row, strict=True)) for row in zip(*map(physical, rows.columns), strict=True)
    ]
    for predicate, count in zip(asked, counts, strict=True):
        assert (predicate, count) == (predicate, sum(holds(predicate, row) for row in physical_rows))


def test_spark_that_is_not_there_is_named_without_its_token(tmp_path):
    settings_ = Settings(home=tmp_path, spark="sc://127.0.0.1:1/;token=geheim")

    with pytest.raises(SparkUnreachable, match="Spark Connect at 127.0.0.1:1 is not answering") as caught:
        open_spark(settings_)
    assert "geheim" not in str(caught.value)
    with pytest.raises(UsageError, match="where is Spark\\? Set HARNESS_SPARK"):
        open_spark(Settings(home=tmp_path))


def test_the_harness_catalog_is_known_to_the_session(spark):
    assert spark.conf.get("spark.sql.catalog.harness.cache-enabled") == "false"
    spark.sql("SHOW NAMESPACES IN harness").collect()


def test_columns_of_the_frame_are_those_asked_for(union, spark):
    plan = whole_plan(union)

    assert to_spark(spark, plan, union).columns == list(STANDARD)
    assert to_spark(spark, plan, union, columns=["note", "id"], where="status = 'new'").columns == ["note", "id"]


def test_a_dsn_becomes_a_jdbc_address_and_its_password_is_not_shown():
    dsn = "host=a,b port=1,2 dbname='my db' user=u password=geheim sslmode=require"

    options = jdbc_options(dsn, role="harness_reader")

    address, _, settings = options.url.partition("?")
    assert address == "jdbc:postgresql://a:1,b:2/my%20db"
    assert {"ApplicationName=harness", "connectTimeout=10", "tcpKeepAlive=true"} <= set(settings.split("&"))
    assert all(name.islower() for name in options.properties), "Spark Connect makes other names lower case"
    assert options.properties["password"] == "geheim"
    assert options.properties["sslmode"] == "require"
    assert "-c role=harness_reader" in options.properties["options"]
    assert "geheim" not in repr(options)


def test_a_unix_socket_is_refused_for_jdbc():
    with pytest.raises(UsageError, match="Spark cannot reach Postgres by the Unix socket /run/pg"):
        jdbc_options("host=/run/pg dbname=x user=u", role=None)
