"""The same `where` in every engine: Iceberg's and Postgres' push-down, Arrow, Spark. DuckDB says what is right."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from harness_pipelines.engines.spark.predicates import to_spark as predicate_to_spark
from harness_pipelines.engines.spark.union import to_spark
from harness_pipelines.read.union import read_arrow
from harness_pipelines.spec.where import parse_where
from harness_pipelines_tests.integration.read.world import IN_A_FOLDER, World
from harness_pipelines_tests.unit.read.wheres import COLUMNS, Reference, Rendered, rows, table_of, wheres

pytestmark = IN_A_FOLDER

draws = partial(settings, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))


def drawn(count: int) -> list[Rendered]:
    found: list[Rendered] = []

    @seed(28)
    @draws(max_examples=count)
    @given(wheres())
    def draw(one: Rendered) -> None:
        found.append(one)

    draw()
    return found


@pytest.mark.parametrize("count", [40, pytest.param(400, marks=pytest.mark.long)])
def test_every_engine_gives_the_rows_that_duckdb_gives(dsn: str, tmp_path: Any, spark: SparkSession, count: int):
    table = table_of(rows())
    world, reference = World(dsn, tmp_path, dict(COLUMNS)), Reference(table)
    try:
        numbered = world.rows(table, partition=0, low=0)
        for low in (0, 10, 20):
            world.append_to_lake(numbered.slice(low, 10))
        world.add_segment(numbered.slice(30))
        plan = world.plan(lake={0: (0, 30)}, buffer={0: (30, 60)})
        asked = drawn(count)
        expected = [reference.matches(exact) for _, exact in asked]
        for (text, _), rows_ in zip(asked, expected, strict=True):
            found = read_arrow(plan, world, where=text, coordinates=True, check_lease=lambda: None).rows
            assert sorted(found.column("_kafka_offset").to_pylist()) == rows_, text
        frame = to_spark(spark, plan, world, coordinates=True)
        holds = [f.coalesce(predicate_to_spark(parse_where(text, COLUMNS)), f.lit(False)) for text, _ in asked]
        told = frame.select("_kafka_offset", f.array(*holds).alias("holds")).toArrow().to_pylist()
        for i, (text, _) in enumerate(asked):
            assert sorted(row["_kafka_offset"] for row in told if row["holds"][i]) == expected[i], text
        for (text, _), rows_ in list(zip(asked, expected, strict=True))[:4]:  # pushed down
            pushed = to_spark(spark, plan, world, where=text, coordinates=True).toArrow()
            assert sorted(pushed.column("_kafka_offset").to_pylist()) == rows_, text
    finally:
        world.close()
