"""Every value of every type means the same wherever it is stored."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import adbc_driver_manager
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.lakes.iceberg.read.scan import scan
from harness_pipelines.protocol.reading.queries import BufferQuery, BufferStats, LakeColumn, LakeQuery, LakeStats
from harness_pipelines.read.union import read_arrow
from harness_pipelines.spec.arrow import arrow_type, to_arrow
from harness_pipelines.spec.predicate import Predicate
from harness_pipelines.spec.types import DecimalType, Primitive, Type
from harness_pipelines_tests.integration.read.world import IN_A_FOLDER, KEY, World
from harness_pipelines_tests.unit.read.predicates import holds, physical, predicates
from harness_pipelines_tests.unit.read.test_nested_json import exact
from harness_pipelines_tests.unit.read.values import PRIMITIVE_VALUES, primitive_types, tables

pytestmark = IN_A_FOLDER

slow = settings(
    max_examples=20,
    phases=[Phase.explicit, Phase.generate],  # an example takes 0.3 s: looking for a smaller one would take minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
)
MakeWorld = Callable[[list[tuple[str, Type]]], World]


@pytest.fixture
def make_world(dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: list[World] = []

    def make(columns: list[tuple[str, Type]]) -> World:
        made.append(World(dsn, tmp_path_factory.mktemp("lake"), dict(columns)))
        return made[-1]

    yield make
    for world in made:
        world.close()


def halves(world: World, table: pa.Table) -> pa.Table:
    """Put the first half of *table* in the lake and the rest in a segment; returns all of it with coordinates."""
    rows = world.rows(table, partition=0, low=0)
    middle = table.num_rows // 2
    if middle:
        world.append_to_lake(rows.slice(0, middle))
    world.add_segment(rows.slice(middle))
    return rows


@pytest.mark.long
@slow
@given(tables(columns_max=5))
def test_values_of_every_type_come_back_from_both_tiers_as_they_went(make_world, drawn):
    columns, table = drawn
    world = make_world(columns)
    rows = halves(world, table)
    middle = table.num_rows // 2

    plan = world.plan(lake={0: (0, middle)}, buffer={0: (middle, table.num_rows)})
    found = read_arrow(plan, world, coordinates=True, check_lease=lambda: None).rows

    found.validate(full=True)
    assert found.schema.equals(world.schema)
    assert exact(found.sort_by(KEY[1:]).to_pylist()) == exact(rows.to_pylist())


@pytest.mark.long
@slow
@given(st.data())
def test_postgres_and_iceberg_let_through_every_row_for_which_a_predicate_is_true(make_world, data):
    columns, table = data.draw(tables(kinds=primitive_types(), rows_max=12))
    asked = data.draw(st.lists(predicates(dict(columns)), min_size=6, max_size=6))
    world = make_world(columns)
    rows = halves(world, table)

    for predicate in asked:
        assert offsets_by_tier(world, rows.num_rows, predicate) == offsets_by_reference(rows, predicate)


def offsets_by_tier(world: World, count: int, predicate: Predicate) -> list[int]:
    columns = [*(LakeColumn(name=f["name"], field_id=f["id"]) for f in world.fields),
               *(LakeColumn(name=n, field_id=None) for n in world.schema.names[len(world.fields):])]  # fmt: skip
    middle, where = count // 2, to_arrow(predicate)
    query = LakeQuery(table="t", version=1, ranges={0: (0, middle)}, columns=columns, where=predicate)
    files = scan(world.view.metadata_location, query, LakeStats()) if middle else ()
    lake = [conformed(table, world.schema) for table in files]
    buffer = BufferQuery(
        table="t", segments=world.segments, ranges={0: (middle, max(count, middle + 1))}, schema=world.schema,
        where=predicate,
    )  # fmt: skip
    read = [*lake, world.buffer_reader.read(buffer, BufferStats())]
    return sorted(o for t in read for o in t.filter(where).column("_kafka_offset").to_pylist())


def offsets_by_reference(rows: pa.Table, predicate: Predicate) -> list[int]:
    values = zip(*map(physical, rows.columns), strict=True)
    return [i for i, row in enumerate(values) if holds(predicate, dict(zip(rows.column_names, row, strict=True)))]


@pytest.mark.parametrize("kind", [*PRIMITIVE_VALUES, "decimal(18,9)", "decimal(19,9)", "decimal(38,38)"])
def test_the_edges_of_each_type_come_back(make_world, kind):
    type_ = _type(kind)
    table = pa.table({"v": pa.array([*EDGES[kind.partition("(")[0]](kind), None], type=arrow_type(type_))})
    world = make_world([("v", type_)])
    rows = halves(world, table)

    plan = world.plan(lake={0: (0, table.num_rows // 2)}, buffer={0: (table.num_rows // 2, table.num_rows)})
    found = read_arrow(plan, world, coordinates=True, check_lease=lambda: None).rows

    assert exact(found.sort_by(KEY[1:]).to_pylist()) == exact(rows.to_pylist())


def _type(kind: str) -> Type:
    if match := re.fullmatch(r"decimal\((\d+),(\d+)\)", kind):
        return DecimalType(int(match[1]), int(match[2]))
    return Primitive(kind)


def _decimals(kind: str) -> list[Any]:
    type_ = _type(kind)
    assert isinstance(type_, DecimalType)
    digits = (9,) * type_.precision
    return [Decimal((sign, digits, -type_.scale)) for sign in (0, 1)] + [Decimal((0, (0,), -type_.scale))]


def _ints(kind: str) -> list[Any]:
    bits = 31 if kind == "int" else 63
    return [-(2**bits), 2**bits - 1, 0]


def _moments(kind: str) -> list[Any]:
    zone = dt.UTC if kind == "timestamptz" else None
    days = [dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(1582, 10, 10), dt.date(1582, 10, 15), dt.date(1970, 1, 1),
            dt.date(9999, 12, 31)]  # fmt: skip
    last = dt.time(23, 59, 59, 999999, tzinfo=zone)
    return days if kind == "date" else [dt.datetime.combine(day, last) for day in days]


EDGES: dict[str, Callable[[str], list[Any]]] = {
    "boolean": lambda _: [True, False],
    "int": _ints,
    "long": _ints,
    "float": lambda _: [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.401298464324817e-45],
    "double": lambda _: [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308],
    "date": _moments,
    "time": lambda _: pa.array([0, 86_399_999_999], pa.time64("us")).to_pylist(),
    "timestamp": _moments,
    "timestamptz": _moments,
    "string": lambda _: ["", " ", "é\U0001f600", "a\nb\\'\"\t", "\x7f\x01"],
    "binary": lambda _: [b"", b"\x00\xff", b"\\x00"],
    "uuid": lambda _: [b"\0" * 16, b"\xff" * 16, bytes(range(16))],
    "decimal": _decimals,
}


def test_postgres_refuses_a_zero_byte_in_a_string_so_that_codecs_must(make_world):
    world = make_world([("v", Primitive("string"))])

    with pytest.raises(adbc_driver_manager.Error, match="invalid byte sequence"):
        world.add_segment(world.rows(pa.table({"v": ["a\x00b"]}), 0, 0))


@pytest.mark.parametrize("name", ["xmin", "ctid", "n" * 100, 'quo"te', "select", "Grösse", "_c_1"])
def test_a_column_may_have_any_name_that_the_lake_can_have(make_world, name):
    world = make_world([(name, Primitive("long")), ("n" * 100 + "x", Primitive("long"))])
    rows = halves(world, pa.table({name: [1, 2], "n" * 100 + "x": [3, 4]}))

    plan = world.plan(lake={0: (0, 1)}, buffer={0: (1, 2)})
    found = read_arrow(plan, world, where='"' + name.replace('"', '""') + '" >= 1', check_lease=lambda: None).rows

    assert found.sort_by([(name, "ascending")]).equals(rows.select(found.column_names))


def test_an_index_serves_the_newest_rows(make_world):
    world = make_world([("v", Primitive("long"))])
    segment = world.add_segment(*(world.rows(pa.table({"v": range(5000)}), p, 0) for p in range(4)))

    text = "\n".join(
        row[0]
        for row in world.pg.execute(
            f"EXPLAIN SELECT * FROM harness_buffer.{segment.name} "
            "WHERE (_kafka_partition = 2 AND _kafka_offset >= 4900 AND _kafka_offset < 5000)"
        )
    )

    assert f"{segment.name}_coordinates" in text


def test_a_world_keeps_to_its_folder(make_world, tmp_path_factory):
    world = make_world([("v", Primitive("long"))])

    assert Path(world.view.metadata_location.removeprefix("file://")).is_relative_to(world.folder)
