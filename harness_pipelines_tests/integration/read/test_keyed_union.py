"""The keyed union read over real stores: Arrow and Spark give what a dictionary gives."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from harness_pipelines.engines.spark import union as module
from harness_pipelines.engines.spark.union import to_spark
from harness_pipelines.protocol.keys import KeyInTwoPartitions
from harness_pipelines.protocol.reading.plan import LakePart, ReadPlan
from harness_pipelines.protocol.reading.selection import Selection
from harness_pipelines.read.union import ArrowReader, read_arrow
from harness_pipelines.spec.types import parse_type
from harness_pipelines.spec.where import parse_where
from harness_pipelines_tests.integration.read.test_union_arrow import alive
from harness_pipelines_tests.integration.read.world import IN_A_FOLDER, World
from harness_pipelines_tests.unit.read.predicates import holds

pytestmark = IN_A_FOLDER

KEY = ("id", "code", "price")
TYPES = {"id": "long", "code": "uuid", "price": "decimal(12,2)", "v": "int", "tags": "list<string>"}
KINDS = {n: parse_type(t) for n, t in TYPES.items()} | {
    "_kafka_partition": parse_type("int"),
    "_kafka_offset": parse_type("long"),
    "_op": parse_type("string"),
}
BATCH_HI, STREAM_HI, BUFFER_HI = {0: 100, 1: 60}, {0: 150, 1: 60}, {0: 200, 1: 140}
SHOWN = ["id", "price", "v", "tags", "_kafka_partition", "_kafka_offset"]
MET = r"key .* is in partition (0 \(offset 1|1 \(offset 3)\) and in partition (0 \(offset 1|1 \(offset 3)\), so nothing"


def key_of(number: int) -> dict[str, Any]:
    """Keys of which some columns are NULL; even numbers live in partition 0, odd ones in 1."""
    return {
        "id": None if number % 3 == 0 else number % 4,
        "code": None if number < 4 else number.to_bytes(16, "big"),
        "price": None if number in (2, 3) else Decimal(number).scaleb(-1).quantize(Decimal("0.01")),
    }


@dataclass(frozen=True, slots=True, eq=False)
class Keyed:
    world: World
    log: list[dict[str, Any]]

    @property
    def plan(self) -> ReadPlan:
        made = self.world.plan(
            lake={p: (0, STREAM_HI[p]) for p in (0, 1)}, buffer={p: (STREAM_HI[p], BUFFER_HI[p]) for p in (0, 1)}
        )
        metadata = made.lake[0].metadata
        parts = (
            LakePart(view="batch", metadata=metadata, low={0: 0, 1: 0}, high=BATCH_HI),
            LakePart(view="stream", metadata=metadata, low={0: BATCH_HI[0]}, high={0: STREAM_HI[0]}),
        )
        return replace(made, lake=parts, key=KEY)

    def state(self, where: str | None = None) -> list[dict[str, Any]]:
        state: dict[Any, dict[str, Any]] = {}
        for row in self.log:
            if row["_kafka_offset"] < BUFFER_HI[row["_kafka_partition"]]:
                state[tuple(row[name] for name in KEY)] = row
        condition = parse_where(where, KINDS) if where else None
        puts = [row for row in state.values() if row["_op"] == "put"]
        return [row for row in puts if condition is None or holds(condition, row)]


def rows_of(world: World, log: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(log), schema=world.schema)


def merged(log: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    state = {tuple(row[name] for name in KEY): row for row in log}
    return [row for row in state.values() if row["_op"] == "put"]


def change(partition: int, offset: int, number: int, v: int | None) -> dict[str, Any]:
    return {
        **key_of(number),
        "v": v,
        "tags": None if v is None else [str(v)],
        "_kafka_partition": partition,
        "_kafka_offset": offset,
        "_kafka_timestamp": None,
        "_op": "delete" if v is None else "put",
        "_schema_version": 1,
    }


@pytest.fixture(scope="module")
def keyed(dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """200 changes of 20 keys per partition: merged below BATCH_HI, each a row above. Leftovers reach over bounds."""
    world = World(dsn, tmp_path_factory.mktemp("lake"), TYPES)
    chance = random.Random(7)
    log = [
        change(p, offset, chance.randrange(20) * 2 + p, chance.choice([None, 20, 200, 300]))
        for p in (0, 1)
        for offset in range(200)
    ]
    for p in (0, 1):
        mine = [row for row in log if row["_kafka_partition"] == p]
        stream = mine[BATCH_HI[p] : STREAM_HI[p] + 10]
        world.append_to_lake(rows_of(world, merged(mine[: BATCH_HI[p]])), rows_of(world, stream))
        world.add_segment(rows_of(world, mine[STREAM_HI[p] - 20 :]), stores_op=True)
    yield Keyed(world, log)
    world.close()


def shown(rows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(repr([row[name] for name in SHOWN]) for row in rows)


WHERES = [
    None,
    "v > 100",
    "v < 100 or id = 2",
    "id is null and v = 200",
    "code = '00000000-0000-0000-0000-00000000000b'",
    "_kafka_offset < 100",
    "_kafka_partition = 1 and price > 1.5 and _op = 'put'",
    "_op = 'delete'",
]


@pytest.mark.parametrize("where", WHERES)
def test_arrow_gives_what_a_dictionary_gives(keyed, where):
    found = read_arrow(keyed.plan, keyed.world, columns=SHOWN, where=where, check_lease=alive).rows
    wanted = Selection(columns=SHOWN, where=where)
    batches = list(ArrowReader.of(keyed.world).batches(keyed.plan, wanted, check_lease=alive))

    assert shown(found.to_pylist()) == shown(keyed.state(where))
    assert shown(pa.Table.from_batches(batches, found.schema).to_pylist()) == shown(keyed.state(where))


@pytest.mark.turns("broadcast_max")
@pytest.mark.parametrize("broadcast_max", [0, 10**6])
@pytest.mark.parametrize("where", WHERES)
def test_spark_gives_what_a_dictionary_gives(keyed, spark, monkeypatch, where, broadcast_max):
    monkeypatch.setattr(module, "BROADCAST_OFFSETS_MAX", broadcast_max)

    found = to_spark(spark, keyed.plan, keyed.world, columns=SHOWN, where=where).toArrow()

    assert found.column_names == SHOWN
    assert shown(found.to_pylist()) == shown(keyed.state(where))


def test_filters_that_are_added_to_a_frame_come_after_the_fold(keyed, spark: SparkSession):
    frame = to_spark(spark, keyed.plan, keyed.world, columns=SHOWN)

    for where in ("v > 100", "v < 100 or id = 2"):
        assert shown(frame.filter(where).toArrow().to_pylist()) == shown(keyed.state(where))
    assert frame.count() == len(keyed.state())


def test_every_use_of_a_frame_after_its_lease_fails(keyed, spark: SparkSession):
    plan = keyed.plan
    keyed.world.end_lease(plan.lease_id)
    cold_only = replace(plan, lake=plan.lake[:1], buffer=None)

    for ended in (plan, cold_only):
        for use in ("count", "collect", "first"):
            with pytest.raises(PySparkException, match="lease .* of this read (has )?ended"):
                getattr(to_spark(spark, ended, keyed.world), use)()


@pytest.mark.parametrize("broadcast_max", [0, 10**6])
def test_a_key_in_two_partitions_is_named(world_of_two, spark, monkeypatch, broadcast_max):
    monkeypatch.setattr(module, "BROADCAST_OFFSETS_MAX", broadcast_max)
    world, plans = world_of_two

    for plan in plans:
        with pytest.raises(KeyInTwoPartitions, match=MET):
            read_arrow(plan, world, check_lease=alive)
        with pytest.raises(PySparkException, match=MET):
            to_spark(spark, plan, world).collect()


@pytest.fixture
def world_of_two(
    dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[World, tuple[ReadPlan, ReadPlan]]]:
    """Two plans with a key in both partitions: both rows hot, and one hot and one cold."""
    world = World(dsn, tmp_path_factory.mktemp("lake"), TYPES)
    world.append_to_lake(rows_of(world, [change(0, 1, 8, 1)]))
    world.add_segment(rows_of(world, [change(1, 3, 8, 2)]), stores_op=True)
    met_cold = replace(world.plan(lake={0: (0, 2)}, buffer={1: (0, 4)}), key=KEY)
    met_cold = replace(met_cold, lake=(replace(met_cold.lake[0], view="batch"),))
    met_hot = replace(met_cold, lake=(replace(met_cold.lake[0], view="stream"),))
    yield world, (met_hot, met_cold)
    world.close()
