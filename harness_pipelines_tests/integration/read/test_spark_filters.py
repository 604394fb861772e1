"""Filters on a frame mean what Spark and Arrow mean by them, whatever the database would make of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import conninfo, sql
from pyspark.sql import DataFrame, SparkSession

from harness_pipelines.engines.spark.union import to_spark
from harness_pipelines.ledgers.postgres.migrations import migrate
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.read.union import read_arrow
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines_tests.integration.read.test_union_arrow import alive
from harness_pipelines_tests.integration.read.world import IN_A_FOLDER, World

pytestmark = IN_A_FOLDER

TYPES = {"name": "string", "f": "float", "d": "double", "u": "uuid"}
NAMES = ["B", "a", "Z", "b", "ä", "", None, "A"]
REALS = [0.1, -0.0, float("inf"), float("nan"), 1.5, -7.0, None, 3.4e38]
UUIDS = [uuid.UUID(int=n << 124 | 0xAB).bytes for n in range(8)]


@pytest.fixture(scope="session")
def sorted_by_language(dsn: str) -> Iterator[str]:
    """A database in whose collation 'a' stands before 'B', as most have it; the embedded one compares bytes."""
    name = f"by_language_{uuid.uuid4().hex[:10]}"
    made = sql.SQL(
        "CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'und' LOCALE 'C'"
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(made.format(sql.Identifier(name)))
        found = conninfo.make_conninfo(dsn, dbname=name)
        migrate(found)
        with psycopg.connect(found) as there:
            assert there.execute("SELECT 'a' < 'B'").fetchone() == (True,)
        yield found
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def values(world: World, names: Sequence[str | None], reals: Sequence[float | None]) -> pa.Table:
    user = {"name": names, "f": reals, "d": reals, "u": UUIDS[: len(names)]}
    return pa.table({k.name: pa.array(user[k.name], k.type) for k in arrow_schema(world.columns)})


@pytest.fixture(scope="module")
def buffered(sorted_by_language: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Eight rows, all of them in the buffer."""
    world = World(sorted_by_language, tmp_path_factory.mktemp("lake"), TYPES)
    world.add_segment(world.rows(values(world, NAMES, REALS), 0, 0))
    yield world
    world.close()


def names_of(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.column("name").to_pylist()))


WHERES = [
    "f = 0.1", "f in (0.1, 9)", "f <= 0.1", "f != 0.1", "f > 0.1", "f < 1e400", "d < 1e400", "d > -1e400", "f = 0",
    "name < 'a'", "name >= 'b'", "name between 'A' and 'Z'", "name > 'Z' and f is not nan",
    "u >= '10000000-0000-0000-0000-0000000000AB'",
]  # fmt: skip


@pytest.mark.parametrize("where", WHERES)
def test_a_where_finds_in_the_buffer_what_it_finds_in_arrow(buffered: World, spark: SparkSession, where: str):
    plan = buffered.plan(lake={}, buffer={0: (0, 8)})

    expected = names_of(read_arrow(plan, buffered, where=where, check_lease=alive).rows)

    assert names_of(to_spark(spark, plan, buffered, where=where).toArrow()) == expected
    assert expected


OWN = [
    "f = float('0.1')", "f <= float('0.1')", "f <> float('0.1')", "f < float('infinity')", "d < double('infinity')",
    "name < 'a'", "name >= 'b'", "name in ('B', 'a')", "name like 'B%'", "u = '100000000000000000000000000000AB'",
    "u > '1' and u < '3'", "u like '2000%'", "_kafka_timestamp < timestamp '2023-11-14 22:13:20.003Z'",
]  # fmt: skip


@pytest.mark.parametrize("condition", OWN)
def test_a_filter_that_is_added_to_a_frame_is_sparks(buffered: World, spark: SparkSession, condition: str):
    frame = to_spark(spark, buffered.plan(lake={}, buffer={0: (0, 8)}), buffered, coordinates=True)
    without_a_database = spark.createDataFrame(frame.toArrow())

    assert names_of(frame.filter(condition).toArrow()) == names_of(without_a_database.filter(condition).toArrow())


@pytest.fixture(scope="module")
def keyed(sorted_by_language: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, ReadPlan]]:
    """Keys 'B', 'Z' and 'a' in the batch view; the buffer has a newer row of 'B' and the deletion of 'Z'."""
    world = World(sorted_by_language, tmp_path_factory.mktemp("lake"), TYPES)
    world.append_to_lake(world.rows(values(world, ["B", "Z", "a"], [1.0, 1.0, 1.0]), 0, 0))
    newer = world.rows(values(world, ["B", "Z"], [2.0, None]), 0, 3)
    operations = pa.array(["put", "delete"], pa.string())
    newer = newer.set_column(newer.schema.get_field_index("_op"), "_op", operations)
    world.add_segment(newer, stores_op=True)
    plan = world.plan(lake={0: (0, 3)}, buffer={0: (3, 5)})
    yield world, replace(plan, lake=(replace(plan.lake[0], view="batch"),), key=("name",))
    world.close()


def newest(frame: DataFrame) -> list[tuple[Any, Any]]:
    return sorted((row.name, row.f) for row in frame.collect())


@pytest.mark.parametrize("condition", ["name < 'a'", "name <= 'Z'", "name between 'A' and 'Z'"])
def test_a_filter_on_the_key_never_uncovers_a_row_that_was_replaced_or_deleted(
    keyed: tuple[World, ReadPlan], spark: SparkSession, condition: str
):
    world, plan = keyed

    assert newest(to_spark(spark, plan, world, where=condition)) == [("B", 2.0)]
    assert newest(to_spark(spark, plan, world).filter(condition)) == [("B", 2.0)]


@pytest.fixture(scope="module")
def zeros(dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two files in the lake, each with one of the two zeros."""
    world = World(dsn, tmp_path_factory.mktemp("lake"), TYPES)
    for low, reals in ((0, [-0.0, -1.5]), (2, [0.0, 1.5, float("nan")])):
        world.append_to_lake(world.rows(values(world, [repr(x) for x in reals], reals), 0, low))
    yield world
    world.close()


@pytest.mark.parametrize("column", ["f", "d"])
@pytest.mark.parametrize(
    "where",
    ["{} = 0", "{} = -0.0", "{} >= 0", "{} <= -0.0", "{} in (0, 7)", "{} between 0 and 1", "{} < 0", "{} > -0.0"],
)
def test_both_zeros_are_found_in_the_lake_whichever_a_file_has(
    zeros: World, spark: SparkSession, column: str, where: str
):
    plan = zeros.plan(lake={0: (0, 5)}, buffer={})
    asked = where.format(column)

    expected = names_of(read_arrow(plan, zeros, where=asked, check_lease=alive).rows)

    assert names_of(to_spark(spark, plan, zeros, where=asked).toArrow()) == expected
