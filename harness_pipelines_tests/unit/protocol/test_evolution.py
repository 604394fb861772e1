"""Which changes of columns are taken, and what the others are told."""

from __future__ import annotations

from typing import Any

import pytest

from harness_pipelines.protocol.schema.evolution import (
    ColumnChanges,
    EvolutionRefused,
    Evolved,
    changes_between,
    evolved,
)
from harness_pipelines.protocol.schema.schemas import (
    DigestLayout,
    Other,
    SchemaRow,
    Slot,
    first_layouts,
    first_names,
    ids_of,
    others,
)
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
    "more": "map<int, struct<x: float, y: list<struct<z: decimal(6,2)>>>>",
}


def spec(**words: Any) -> TableSpec:
    found = {"table": "shop.orders", "columns": COLUMNS, "layout": {"columns": ["at"]}, **words}
    return TableSpec.model_validate(found)


def change(table: TableSpec, **changes: Any) -> Evolved:
    return evolved(table, iceberg_fields(table.stored), ColumnChanges(**changes), next_id=100)


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
    assert [c.name for c in found.spec.columns] == ["note", "s", "id", "count", "d", "at", "tags", "more"]
    assert found.spec.columns[3].aliases == ("n",)
    assert found.narrows
    assert found.told == (
        "rename n to count",
        "drop f",
        "widen d from decimal(6, 2) to decimal(20, 2)",
        "widen count from int to long",
        "make s optional",
        "add note string",
        "order note, s, id, count, d, at, tags, more",
    )


def test_ids_inside_of_a_new_column_are_new_too():
    found = change(spec(), add=(column("one", "struct<a: int>"), column("two", "int")))
    one, two = found.fields[-2:]
    assert (one["id"], one["type"]["fields"][0]["id"], two["id"]) == (100, 101, 102)


def test_a_field_keeps_its_id_inside_of_a_column_and_one_that_comes_back_is_another():
    found = change(
        spec(),
        drop=("tags.a", "more.value.x"),
        widen=(("more.value.y.element.z", parse_type("decimal(9,2)")),),
        add=(column("tags.a", "long"), column("new", "struct<a: int>"), column("more.value.y.element.w", "string")),
        order=("tags.a",),
    )
    tags, more = found.fields[6:8]
    before = iceberg_fields(spec().stored)[6]["type"]["fields"]

    assert [(f["name"], f["id"]) for f in tags["type"]["fields"]] == [("a", 100), ("b", before[1]["id"])]
    assert tags["type"]["fields"][1] == before[1]
    assert str(found.spec.columns[6].type) == "struct<a: long, b: list<string>>"
    assert str(found.spec.columns[7].type) == "map<int, struct<y: list<struct<z: decimal(9, 2), w: string>>>>"
    assert len({*ids_of(found.fields)}) == len([*ids_of(found.fields)])
    assert found.narrows
    assert more["id"] == 8


def test_a_path_means_one_field_or_none():
    dotted = spec(columns={**COLUMNS, "a.b": "int", "a": "struct<`b.c`: int, b: struct<c: int>, d: int>"})
    assert change(dotted, drop=("a.b",)).told == ("drop a.b",)  # the column
    assert change(dotted, add=(column("x.y", "int"),)).spec.columns[-1].name == "x.y"
    with pytest.raises(EvolutionRefused, match="'a.b.c' may mean two fields"):
        change(dotted, drop=("a.b.c",))


def test_a_default_is_a_change_of_the_decoding_and_of_no_field():
    table = spec()
    found = change(table, default=(("n", 5),), add=(column("x", "string", default="y"),))
    assert found.told == ("default of n: 5", "add x string default 'y'")
    assert found.fields[:-1] == tuple(iceberg_fields(table.stored))
    assert [c.default for c in found.spec.columns] == [None, 5, *[None] * 6, "y"]
    gone = evolved(found.spec, found.fields, ColumnChanges(default=(("n", None),)), next_id=200)
    assert gone.told == ("default of n: none",)
    assert gone.spec.columns[1].default is None


def test_a_description_is_the_doc_of_its_field():
    table = spec()
    found = change(
        table, describe=(("count", "How many"),), rename=(("n", "count"),), add=(column("x", "int", description="X"),)
    )
    assert [(f["name"], f["doc"]) for f in found.fields if "doc" in f] == [("count", "How many"), ("x", "X")]
    again = change(found.spec, describe=(("count", None),))
    assert [f["name"] for f in again.fields if "doc" in f] == ["x"]
    assert again.told == ("description of count: none",)
    with pytest.raises(EvolutionRefused, match="only columns have a description"):
        change(table, describe=(("tags.a", "A"),))


def test_a_name_that_comes_back_is_an_alias_no_more():
    once = change(spec(), rename=(("n", "m"),))
    back = evolved(once.spec, once.fields, ColumnChanges(rename=(("m", "n"),)), next_id=100)
    assert back.spec.columns[1].aliases == ("m",)
    assert back.fields[1]["id"] == 2


def test_the_columns_that_a_view_is_clustered_by_are_written_down():
    found = change(spec(layout={}), add=(column("before", "timestamp"),))
    assert found.spec.layout.columns == found.spec.indexed == spec(layout={}).indexed


@pytest.mark.parametrize(
    ("words", "changes", "why"),
    [
        ({}, {}, "no change was asked for"),
        ({}, {"drop": ("x",)}, "there is no column 'x'; columns: id, n, f, d, s, at, tags, more"),
        ({}, {"rename": (("tags.a", "c"),)}, "'tags.a' lies inside of a column.*add a field of the new name"),
        ({}, {"drop": ("tags.c",)}, "there is no column 'tags.c'; columns: tags.a, tags.b"),
        ({}, {"drop": ("tags.b.element",)}, "'tags.b.element' is no field of a struct.*drop what it is in"),
        ({}, {"drop": ("tags.a", "tags.b")}, "a struct keeps one field at least, also in column 'tags'"),
        ({}, {"add": (column("tags.A", "int"),)}, "there is a field 'a' already where 'tags.A' would be"),
        (
            {},
            {"add": (column("tags.b.x", "int"),)},
            "directly in a struct, and 'tags.b' is list<string>; in it are tags.b",
        ),
        ({}, {"add": (column("tags.c.x", "int"),)}, "'tags.c.x' cannot be added.*in it are tags.a, tags.b"),
        ({}, {"add": (column("tags.x", "int", required=True),)}, "has a name and a type only"),
        ({}, {"optional": ("tags.a",)}, "'tags.a' is optional already, as all that lies inside of columns is"),
        ({}, {"widen": (("tags.a", parse_type("string")),)}, "'tags.a' is int.*it can become long. Add a field"),
        ({}, {"widen": (("more.value.x", parse_type("double")),)}, "'more.value.x' is float.*the text of what lies"),
        ({}, {"widen": (("more.key", parse_type("long")),)}, "'more.key' is the key of a map"),
        ({}, {"order": ("tags.b.element",)}, "has no place among others"),
        ({}, {"default": (("tags.a", 1),)}, "only columns have a default"),
        ({}, {"default": (("n", "x"),)}, "the spec would not hold: columns.n.default: .x. is no value of type "),
        (
            {},
            {"add": (column("x", "int", default=1.5),)},
            "columns.x.default: 1.5 does not fit int exactly",
        ),
        ({}, {"drop": ("at",)}, "clustered by column 'at', and its regions are cut in it; it cannot be dropped"),
        ({}, {"rename": (("at", "then"),)}, "clustered by column 'at'.*cannot be renamed"),
        ({"key": ["id"]}, {"drop": ("id",)}, "column 'id' is part of the key.*cannot be dropped"),
        ({"key": ["n"]}, {"widen": (("n", parse_type("long")),)}, "column 'n' is part of the key.*cannot be widened"),
        ({}, {"rename": (("n", "s"),)}, "column 'n' cannot become 's': there is a column 's'"),
        ({}, {"rename": (("n", "S"),)}, "column 'n' cannot become 'S': there is a column 's'"),
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
        "s": {"type": "string", "default": "x"},
        "at": "timestamptz",
        "tags": "struct<new: map<string, int>, b: list<string>, a: long>",
        "more": "map<int, struct<y: list<struct<z: decimal(9,2), w: int>>>>",
    }
    wanted = spec(columns=columns)

    found = changes_between(spec(), wanted)

    assert found.rename == (("n", "count"),)
    assert found.drop == ("f", "more.value.x")
    assert {path: str(type_) for path, type_ in found.widen} == {
        "count": "long", "d": "decimal(9, 2)", "tags.a": "long", "more.value.y.element.z": "decimal(9, 2)",
    }  # fmt: skip
    assert found.optional == ("s",)
    assert found.default == (("s", "x"),)
    assert [c.name for c in found.add] == ["note", "tags.new", "more.value.y.element.w"]
    assert found.order[-3:] == ("tags.new", "tags.b", "tags.a")
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


def test_rows_of_another_schema_have_the_fields_of_structs_by_the_names_that_are_asked_for():
    table = spec()
    before = iceberg_fields(table.stored)
    after = change(table, drop=("tags.a",), add=(column("tags.a", "long"),)).fields
    old = next(f["id"] for f in before[6]["type"]["fields"] if f["name"] == "a")

    [told] = others(after, before)
    assert told == Other(name="tags", stored="tags", type=f"struct<`\x1f{old}`: int, b: list<string>>")
    [told] = others(before, after)
    assert told.type == "struct<b: list<string>, `\x1f100`: long>"


def test_digests_are_made_as_if_no_field_had_come_and_none_had_gone():
    table = spec()
    first = iceberg_fields(table.stored)
    second = change(table, add=(column("tags.c", "int"), column("more.value.w", "int")), order=("tags.c",))
    third = evolved(second.spec, second.fields, ColumnChanges(drop=("tags.a", "more.value.w")), next_id=200)
    history = [
        SchemaRow(schema_version=n, fields=tuple(fields), spec={}, starts={})
        for n, fields in enumerate((first, second.fields, third.fields), 1)
    ]

    assert first_layouts(history[:1]) == {}
    plain = Slot(0, always=True, inside=None), Slot(1, always=True, inside=None)
    assert first_layouts(history[:2]) == {
        7: DigestLayout(slots=(Slot(1, True, None), Slot(2, True, None), Slot(0, False, None))),
        8: DigestLayout(element=DigestLayout(slots=(*plain, Slot(2, always=False, inside=None)))),
    }
    assert first_layouts(history) == {
        7: DigestLayout(slots=(Slot(None, True, None), Slot(1, True, None), Slot(0, False, None))),
        8: DigestLayout(element=DigestLayout(slots=(*plain, Slot(None, always=False, inside=None)))),
    }


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
