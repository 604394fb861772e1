"""What the pages of types and formats say, against the tables of the code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from pyiceberg.schema import Schema

from harness_pipelines.buffers.postgres.types import postgres_type
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.registry import WrittenSchema
from harness_pipelines.formats.transform import _duck
from harness_pipelines.spec.arrow import arrow_type
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import FORMS, iceberg_fields, lake_fields, parse_type
from harness_pipelines_tests.types_page import TypeRow, iceberg_name, table_of, type_rows
from harness_pipelines_tests.unit.formats.test_avro import field, logical, record
from harness_pipelines_tests.wire import GivenSchemas, avro_bytes, framed, proto_field, proto_float


@pytest.mark.parametrize("row", type_rows(), ids=lambda row: row.type)
def test_the_page_of_types_says_what_the_code_does(row: TypeRow):
    kind = parse_type(row.type)
    in_lake = Schema.model_validate(
        {"type": "struct", "fields": lake_fields(iceberg_fields([Column(name="x", type=kind)]))}
    )
    assert row.postgres == postgres_type(arrow_type(kind))
    assert row.iceberg == iceberg_name(str(in_lake.fields[0].field_type))
    assert row.arrow == str(arrow_type(kind))
    if row.type != "uuid":  # bytes, which DuckDB is given and never asked for
        assert row.duckdb == _duck(arrow_type(kind))


def outer(text: str) -> str:
    """The word of a type without its parts."""
    return re.split(r"[<(]", text)[0]


def test_both_pages_have_every_type():
    assert {outer(row.type) for row in type_rows()} == {outer(form) for form in FORMS}
    assert {outer(name) for cells in FORMAT_ROWS for name in named(cells[0])} == {outer(form) for form in FORMS}


# Formats: which written types give which columns

FORMAT_ROWS = table_of("formats.md", "column")
ONE = {"decimal": "decimal(9,2)", "list": "list<long>", "map": "map<string, long>", "struct": "struct<a: long>"}
ITEM = record(field("a", "long"), name="Item")
#: What the page calls a type of Avro: the schema, its physical form and a value.
AVRO: Mapping[str, tuple[Any, Any, Any]] = {
    "boolean": ("boolean", "boolean", True),
    "int": ("int", "int", 1),
    "long": ("long", "long", 1),
    "float": ("float", "float", 0.5),
    "double": ("double", "double", 0.5),
    "decimal": (logical("bytes", "decimal", precision=9, scale=2), "bytes", b"\x01"),
    "date": (logical("int", "date"), "int", 1),
    "time-millis": (logical("int", "time-millis"), "int", 1),
    "local-timestamp-millis": (logical("long", "local-timestamp-millis"), "long", 1),
    "timestamp-millis": (logical("long", "timestamp-millis"), "long", 1),
    "string": ("string", "string", None),
    "enum": ({"type": "enum", "name": "E", "symbols": ["A"]},) * 2 + ("A",),
    "bytes": ("bytes", "bytes", b"\x01"),
    "fixed": ({"type": "fixed", "name": "F", "size": 2},) * 2 + (b"\x01\x02",),
    "array": ({"type": "array", "items": "long"},) * 2 + ([1],),
    "map": ({"type": "map", "values": "long"},) * 2 + ({"a": 1},),
    "record": (ITEM, ITEM, {"a": 1}),
}
#: The same of Protobuf: the type of a field, and the field's bytes.
PROTOBUF: Mapping[str, tuple[str, bytes]] = {
    "bool": ("bool", proto_field(1, True)),
    "integer": ("int64", proto_field(1, 1)),
    "enum": ("E", proto_field(1, 0)),
    "float": ("float", proto_float(1, 0.5)),
    "double": ("double", proto_field(1, 0.5)),
    "string": ("string", b""),
    "bytes": ("bytes", proto_field(1, b"\x01")),
    "BoolValue": ("google.protobuf.BoolValue", proto_field(1, proto_field(1, True))),
    "StringValue": ("google.protobuf.StringValue", b""),
    "BytesValue": ("google.protobuf.BytesValue", proto_field(1, proto_field(1, b"\x01"))),
    "Timestamp": ("google.protobuf.Timestamp", proto_field(1, b"")),
    "google.type.Date": ("google.type.Date", proto_field(1, b"".join(proto_field(n, 1) for n in (1, 2, 3)))),
    "google.type.TimeOfDay": ("google.type.TimeOfDay", proto_field(1, b"")),
    "confluent.type.Decimal": ("confluent.type.Decimal", proto_field(1, proto_field(1, b"\x01"))),
    "repeated": ("repeated int64", proto_field(1, 1)),
    "map": ("map<string, int64>", proto_field(1, proto_field(1, "a") + proto_field(2, 1))),
    "message": ("Item", proto_field(1, b"")),
}
#: Text that is a value of the type of a column.
TEXTS = {
    "decimal": "1.5", "date": "2026-01-31", "time": "12:00:00", "timestamp": "2026-01-31T12:00:00",
    "timestamptz": "2026-01-31T12:00:00Z", "uuid": "00000000-0000-0000-0000-000000000007",
}  # fmt: skip


def named(cell: str) -> list[str]:
    """The types that the first cell of a row names."""
    found: list[str] = re.findall(r"`([^`]+)`", cell)
    return found


def taken(cell: str, words: Mapping[str, Any]) -> set[str]:
    """Those of *words* that *cell* says a column is made of, without being told how by a `from`."""
    plain = re.sub(r"an int(eger)? with `from`|\w+\([^)]*\) with \w+ \w+|\([^)]*\)", "", cell)
    return {word for word in words if re.search(rf"(?<![\w.-]){re.escape(word)}s?(?![\w-])", plain)}


def by_avro(columns: dict[str, str], text: str) -> Iterator[str]:
    """The words of Avro whose values become the column x."""
    known = GivenSchemas.avro(*(record(field("x", schema)) for schema, _, _ in AVRO.values()))
    codec = RecordCodec(TableSpec.model_validate({"table": "a.b", "format": "avro", "columns": columns}), known)
    for schema_id, (word, (_, physical, value)) in enumerate(AVRO.items(), 1):
        sent = avro_bytes(record(field("x", physical)), {"x": text if word == "string" else value})
        if not codec.decode([framed(sent, schema_id)], [None]).refused:
            yield word


def by_protobuf(columns: dict[str, str], text: str) -> Iterator[str]:
    """The same of Protobuf."""
    codec = RecordCodec(
        TableSpec.model_validate({"table": "a.b", "format": "protobuf", "columns": columns}), PROTO_SCHEMAS
    )
    texts = {"string": proto_field(1, text), "StringValue": proto_field(1, proto_field(1, text))}
    for schema_id, (word, (_, payload)) in enumerate(PROTOBUF.items(), 1):
        sent = framed(texts.get(word, payload), schema_id, indexes=(0,))
        if not codec.decode([sent], [None]).refused:
            yield word


def _proto(of: str) -> WrittenSchema:
    imports = "".join(
        f'import "{name}";'
        for name in (
            "confluent/type/decimal.proto", "google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto",
            "google/type/date.proto", "google/type/timeofday.proto",
        )
    )  # fmt: skip
    others = "message Item { int64 a = 1; } enum E { ZERO = 0; }"
    return WrittenSchema(kind="PROTOBUF", text=f'syntax = "proto3"; {imports} message A {{ {of} x = 1; }} {others}')


PROTO_SCHEMAS = GivenSchemas({n: _proto(of) for n, (of, _) in enumerate(PROTOBUF.values(), 1)})


@pytest.mark.parametrize("cells", FORMAT_ROWS, ids=lambda cells: cells[0])
@pytest.mark.parametrize(
    ("at", "words", "takes"), [(2, AVRO, by_avro), (3, PROTOBUF, by_protobuf)], ids=["avro", "protobuf"]
)
def test_a_column_is_made_of_what_the_page_of_formats_says(
    cells: list[str], at: int, words: Mapping[str, Any], takes: Callable[..., Iterator[str]]
):
    said = taken(cells[at], words)
    for name in named(cells[0]):
        kind = outer(name)
        assert set(takes({"x": ONE.get(kind, kind)}, TEXTS.get(kind, "text"))) == said, name
