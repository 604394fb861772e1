"""Which changes of columns are taken, and what the others are told."""

from __future__ import annotations

from typing import Any

import pytest

from harness_pipelines.protocol.evolution import Changes, EvolutionRefused, Evolved, changes_between, evolved
from harness_pipelines.protocol.schemas import Other, SchemaRow, first_names, others
from harness_pipelines.protocol.versions import Version, View, answering_version
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.load import dump_spec
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import iceberg_fields, parse_type

COLUMNS = {
    "id": {"type": "long", "required": True},
    "n": "int",
    "f": "float",
    "d": "decimal(6,2)",
    "s": {"type": "string", "required": True},
    "at": "timestamptz",
    "tags": "struct<a: int, b: list<string>>",
}


def spec(**words: Any) -> TableSpec:
    found = {"table": "shop.orders", "columns": COLUMNS, "layout": {"columns": ["at"]}, **words}
    return TableSpec.model_validate(found)


def change(table: TableSpec, **changes: Any) -> Evolved:
    return evolved(table, iceberg_fields(table.stored), Changes(**changes), next_id=100)


def column(name: str, type_: str, **more: Any) -> Column:
    return Column(name=name, type=parse_type(type_), **more)


def shape(found: Evolved) -> list[tuple[int, str, Any, bool]]:
    return [(f["id"], f["name"], f["type"], f["required"]) for f in found.fields if isinstance(f["type"], str)]


def test_a_column_keeps_its_id_whatever_it_is_called():
    found = change(
        spec(),
        rename=(("n", "count"),),
        drop=("f",),
        widen=(("d", parse_type("decimal(20,2)")), ("count", parse_type("long"))),
        optional=("s",),
        add=(column("note", "string"),),
        order=("note", "s"),
    )

    assert shape(found) == [
        (100, "note", "string", False),
        (5, "s", "string", False),
        (1, "id", "long", True),
        (2, "count", "long", False),
        (4, "d", "decimal(20, 2)", False),
        (6, "at", "timestamptz", False),
    ]
    assert [c.name for c in found.spec.columns] == ["note", "s", "id", "count", "d", "at", "tags"]
    assert found.spec.columns[3].aliases == ("n",)
    assert found.narrows
    assert found.told == (
        "rename n to count",
        "drop f",
        "widen d from decimal(6, 2) to decimal(20, 2)",
        "widen count from int to long",
        "make s optional",
        "add note string",
        "order note, s, id, count, d, at, tags",
    )


def test_ids_inside_of_a_new_column_are_new_too():
    found = change(spec(), add=(column("one", "struct<a: int>"), column("two", "int")))
    one, two = found.fields[-2:]
    assert (one["id"], one["type"]["fields"][0]["id"], two["id"]) == (100, 101, 102)


def test_a_name_that_comes_back_is_an_alias_no_more():
    once = change(spec(), rename=(("n", "m"),))
    back = evolved(once.spec, once.fields, Changes(rename=(("m", "n"),)), next_id=100)
    assert back.spec.columns[1].aliases == ("m",)
    assert back.fields[1]["id"] == 2


def test_the_columns_that_a_view_is_clustered_by_are_written_down():
    found = change(spec(layout={}), add=(column("before", "timestamp"),))
    assert found.spec.layout.columns == found.spec.indexed == spec(layout={}).indexed


@pytest.mark.parametrize(
    ("words", "changes", "why"),
    [
        ({}, {}, "no change was asked for"),
        ({}, {"drop": ("x",)}, "there is no column 'x'; columns: id, n, f, d, s, at, tags"),
        ({}, {"drop": ("tags.a",)}, "'tags.a' lies inside of a column, and fields of structs cannot be changed yet"),
        ({}, {"drop": ("at",)}, "clustered by column 'at', and its regions are cut in it; it cannot be dropped"),
        ({}, {"rename": (("at", "then"),)}, "clustered by column 'at'.*cannot be renamed"),
        ({"key": ["id"]}, {"drop": ("id",)}, "column 'id' is part of the key.*cannot be dropped"),
        ({"key": ["n"]}, {"widen": (("n", parse_type("long")),)}, "column 'n' is part of the key.*cannot be widened"),
        ({}, {"rename": (("n", "s"),)}, "column 'n' cannot become 's': there is such a column"),
        ({}, {"rename": (("n", "S"),)}, "the column is there twice"),
        ({}, {"rename": (("n", "_op"),)}, "the column name '_op' is reserved"),
        ({}, {"add": (column("N", "int"),)}, "there is a column 'n' already"),
        ({}, {"add": (column("x", "int", required=True),)}, "cannot be required: older rows have no value for it"),
        ({}, {"widen": (("n", parse_type("string")),)}, "is int and cannot become string.*it can become long"),
        ({}, {"widen": (("n", parse_type("int")),)}, "is int and cannot become int"),
        ({}, {"widen": (("s", parse_type("int")),)}, "it can become no other type"),
        ({}, {"widen": (("d", parse_type("decimal(20,3)")),)}, r"it can become decimal\(p,2\) with more digits than 6"),
        ({}, {"widen": (("d", parse_type("decimal(5,2)")),)}, r"it can become decimal\(p,2\)"),
        ({}, {"optional": ("n",)}, "column 'n' is optional already"),
        ({}, {"order": ("n", "n")}, "'n' is named twice in the order"),
        ({}, {"order": ("x",)}, "there is no column 'x'"),
        ({"contract": {"columns": {"n": {"ge": 0}}}}, {"drop": ("n",)}, "with these columns the spec would not hold"),
        (
            {"columns": {"a": "string"}, "layout": {}},
            {"add": (column("at", "timestamp"),)},
            "because no column suggested itself; a column that does .at. cannot be added",
        ),
    ],
)
def test_what_older_rows_would_not_survive_is_refused_with_what_would_be_taken(
    words: dict[str, Any], changes: dict[str, Any], why: str
):
    with pytest.raises(EvolutionRefused, match=why):
        change(spec(**words), **changes)


def test_the_changes_to_another_spec_give_that_spec():
    columns = {
        "id": {"type": "long", "required": True},
        "note": "string",
        "count": {"type": "long", "aliases": ["n"]},
        "d": "decimal(9,2)",
        "s": "string",
        "at": "timestamptz",
        "tags": "struct<a: int, b: list<string>>",
    }
    wanted = spec(columns=columns)

    found = changes_between(spec(), wanted)

    assert found.rename == (("n", "count"),)
    assert found.drop == ("f",)
    assert dict(found.widen) == {"count": parse_type("long"), "d": parse_type("decimal(9,2)")}
    assert found.optional == ("s",)
    assert [c.name for c in found.add] == ["note"]
    made = evolved(spec(), iceberg_fields(spec().stored), found, next_id=100)
    assert made.spec.columns == wanted.columns
    assert not changes_between(wanted, wanted)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({**COLUMNS, "n": {"type": "int", "required": True}}, "column 'n' is optional, and older rows may lack it"),
        ({**COLUMNS, "at": {"type": "timestamptz", "from": "epoch_ms"}}, "is read `from: None`"),
    ],
)
def test_what_no_change_does_is_refused(columns: dict[str, Any], why: str):
    with pytest.raises(EvolutionRefused, match=why):
        changes_between(spec(), spec(columns=columns))


def test_rows_of_another_schema_are_told_by_what_differs():
    table = spec()
    before = iceberg_fields(table.stored)
    after = change(
        table, rename=(("s", "t"),), widen=(("n", parse_type("long")),), add=(column("x", "int"),), drop=("f",)
    ).fields

    assert others(after, before) == (
        Other(name="n", stored="n", type="int"),
        Other(name="t", stored="s", type="string"),
        Other(name="x", stored=None),
    )
    assert others(before, after) == (
        Other(name="n", stored="n", type="long"),
        Other(name="f", stored=None),
        Other(name="s", stored="t", type="string"),
    )
    assert others(before, before) == ()


def test_a_name_that_another_column_had_first_is_told_apart():
    first = iceberg_fields([column("a", "int"), column("b", "int")])
    later = [{**first[0], "name": "c"}, {**first[1]}, {"id": 9, "name": "a", "type": "int", "required": False}]
    history = [
        SchemaRow(schema_version=n, fields=tuple(fields), spec=dump_spec(spec()), starts={})
        for n, fields in enumerate((first, later), 1)
    ]
    assert first_names(history) == {1: "a", 2: "b", 9: "a#9"}


def test_what_is_written_after_a_drop_answers_for_no_older_version(version: Version):
    assert answering_version(version, [later(version, narrowed=1)]) is None
    assert answering_version(version, [later(version, narrowed=0)]) == later(version, narrowed=0)


@pytest.fixture
def version() -> Version:
    from datetime import UTC, datetime

    from harness_pipelines.protocol.bounds import Bounds

    return Version(
        table_id=1,
        version=3,
        stream=View(metadata="m", snapshot=1),
        schema_version=1,
        bounds={0: Bounds(start=0, batch_hi=0, stream_hi=5, buffer_hi=9)},
        move_id=None,
        committed_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def later(version: Version, *, narrowed: int) -> Version:
    from dataclasses import replace

    moved = {p: replace(b, stream_hi=b.buffer_hi) for p, b in version.bounds.items()}
    return replace(version, version=4, schema_version=2, narrowed=narrowed, bounds=moved)
