"""Type strings and Iceberg's JSON form of them."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.errors import UsageError
from harness_pipelines.spec.arrow import COORDINATES, arrow_schema, arrow_type
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import (
    PRIMITIVES,
    DecimalType,
    FieldType,
    ListType,
    MapType,
    Primitive,
    StructType,
    Type,
    TypeSpecError,
    iceberg_fields,
    parse_type,
)
from harness_pipelines.spec.wording import folded

LONG, STRING = Primitive("long"), Primitive("string")
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)


def nested(inner):
    structs = st.lists(st.tuples(names, inner), min_size=1, max_size=3, unique_by=lambda pair: folded(pair[0]))
    return (
        st.builds(ListType, inner)
        | st.builds(MapType, inner, inner)
        | structs.map(lambda fields: StructType(tuple(FieldType(*f) for f in fields)))
    )


decimals = st.integers(1, 38).flatmap(lambda p: st.builds(DecimalType, st.just(p), st.integers(0, p)))
types = st.recursive(st.sampled_from(PRIMITIVES).map(Primitive) | decimals, nested, max_leaves=8)


@given(types)
def test_a_type_is_read_back_from_its_string(type_):
    assert parse_type(str(type_)) == type_


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("long", LONG),
        (" LONG ", LONG),
        ("decimal(12,2)", DecimalType(12, 2)),
        ("Decimal( 12 , 2 )", DecimalType(12, 2)),
        ("list<string>", ListType(STRING)),
        ("map<string,list<long>>", MapType(STRING, ListType(LONG))),
        (
            "list<struct<a: long, b-c: decimal(12,2)>>",
            ListType(StructType((FieldType("a", LONG), FieldType("b-c", DecimalType(12, 2))))),
        ),
        ("struct<`b c`: long, `x``y`: string>", StructType((FieldType("b c", LONG), FieldType("x`y", STRING)))),
        ("struct<long: long, größe: long>", StructType((FieldType("long", LONG), FieldType("größe", LONG)))),
    ],
)
def test_types_are_read_whatever_their_spacing(text, meant):
    assert parse_type(text) == meant


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bigint", r"expected a type, found 'bigint' \(did you mean long\?\); allowed: boolean, int, long, .*struct<"),
        ("lnog", r"found 'lnog' \(did you mean long\?\)"),
        ("varchar", r"did you mean string\?"),
        ("lsit<int>", r"type 'lsit<int>': expected a type, found 'lsit' \(did you mean list\?\)"),
        ("quux", r"expected a type, found 'quux'; allowed: boolean"),
        ("", r"the type is empty"),
        ("decimal", r"a decimal names its digits and those behind the point, such as decimal\(12,2\)"),
        ("bigint", r"did you mean long\?"),
        ("varchar(20)", r"did you mean string\?"),
        ("datetimeoffset", r"did you mean timestamptz\?"),
        ("uint64", r"did you mean decimal\(20,0\)\?"),
        ("decimal(12)", r"expected ',', found '\)'"),
        ("decimal(x,2)", r"expected a number, found 'x'"),
        ("decimal(39,2)", r"a decimal has 1 to 38 digits, and 0 to all of them behind the point"),
        ("decimal(0,0)", r"a decimal has 1 to 38 digits"),
        ("decimal(2,3)", r"0 to all of them behind the point"),
        ("list<int", r"expected '>', found the end"),
        ("list<>", r"expected a type, found '>'"),
        ("int int", r"'int' is a whole type, and 'int' follows it"),
        ("map<string>", r"expected ',', found '>'"),
        ("struct<>", r"expected a name, found '>'"),
        ("struct<a long>", r"expected ':', found 'long'"),
        ("struct<a: int, A: int>", r"the struct has the field 'A' twice, also as 'a' \(names ignore case\)"),
        ("struct<`a: int>", r"cannot be read from '`a: int>' on"),
        ("`int`", r"expected a type"),
        ("list<" * 40 + "int" + ">" * 40, r"nested at most 32 deep"),
    ],
)
def test_a_type_that_cannot_be_read_says_what_was_expected(text, message):
    with pytest.raises(TypeSpecError, match=message) as caught:
        parse_type(text)

    assert isinstance(caught.value, UsageError)


def column(name: str, type_: str | Type, required: bool = False) -> Column:
    return Column(name=name, type=parse_type(type_) if isinstance(type_, str) else type_, required=required)


def test_fields_have_icebergs_json_form_with_columns_numbered_first():
    fields = iceberg_fields(
        [column("id", "long", True), column("tags", "list<map<string, struct<a: int>>>"), column("at", "timestamptz")]
    )

    assert fields == [
        {"id": 1, "name": "id", "type": "long", "required": True},
        {
            "id": 2,
            "name": "tags",
            "required": False,
            "type": {
                "type": "list",
                "element-id": 4,
                "element-required": False,
                "element": {
                    "type": "map",
                    "key-id": 5,
                    "key": "string",
                    "value-id": 6,
                    "value-required": False,
                    "value": {"type": "struct", "fields": [{"id": 7, "name": "a", "type": "int", "required": False}]},
                },
            },
        },
        {"id": 3, "name": "at", "type": "timestamptz", "required": False},
    ]


@given(st.lists(types, min_size=1, max_size=4), st.integers(1, 1000))
def test_every_field_id_is_used_once(kinds, first_id):
    fields = iceberg_fields([column(f"c{i}", kind) for i, kind in enumerate(kinds)], first_id)

    ids: list[int] = []

    def walk(part):
        if isinstance(part, dict):
            ids.extend(value for key, value in part.items() if key == "id" or key.endswith("-id"))
            for value in part.values():
                walk(value)
        elif isinstance(part, list):
            for value in part:
                walk(value)

    walk(json.loads(json.dumps(fields)))
    assert sorted(ids) == list(range(first_id, first_id + len(ids)))


def test_pyiceberg_reads_the_fields():
    from pyiceberg.schema import Schema
    from pyiceberg.types import DecimalType as Decimal

    columns = [column(name, name) for name in PRIMITIVES]
    columns += [column("n", "list<struct<a: decimal(12,2), m: map<int, uuid>>>"), column("order-id", "decimal(38,38)")]

    schema = Schema.model_validate({"type": "struct", "schema-id": 0, "fields": iceberg_fields(columns)})

    assert [field.name for field in schema.fields] == [c.name for c in columns]
    assert schema.find_type("n.element.a") == Decimal(12, 2)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("boolean", pa.bool_()),
        ("int", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("decimal(12,2)", pa.decimal128(12, 2)),
        ("date", pa.date32()),
        ("time", pa.time64("us")),
        ("timestamp", pa.timestamp("us")),
        ("timestamptz", pa.timestamp("us", "UTC")),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("uuid", pa.binary(16)),
        ("list<int>", pa.list_(pa.int32())),
        ("map<string, long>", pa.map_(pa.string(), pa.int64())),
        ("struct<a: int, b c: int>".replace("b c", "`b c`"), pa.struct({"a": pa.int32(), "b c": pa.int32()})),
    ],
)
def test_each_type_has_one_arrow_type(text, kind):
    assert arrow_type(parse_type(text)) == kind


def test_the_schema_keeps_the_order_and_puts_the_coordinates_last():
    columns = [column("z", "int", True), column("a", "string")]

    assert arrow_schema(columns) == pa.schema([pa.field("z", pa.int32(), nullable=False), pa.field("a", pa.string())])
    assert arrow_schema(columns, coordinates=True).names == ["z", "a", *COORDINATES.names]
    assert COORDINATES.names == ["_kafka_partition", "_kafka_offset", "_kafka_timestamp", "_op", "_schema_version"]
