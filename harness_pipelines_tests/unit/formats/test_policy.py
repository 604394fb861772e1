"""Records of schemas that a table follows, waits for or refuses, by `evolution` of its spec."""

from __future__ import annotations

from typing import Any

import pandera.pandas as pandera
import pytest

from harness_pipelines.formats.base import Reason
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.policy import SchemaDue
from harness_pipelines.formats.schema.registry import WrittenSchema
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.protocol.schema.policy import tried
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests.wire import GivenSchemas, avro_bytes, framed, proto_field

PLAIN = {"id": {"type": "long", "required": True}, "n": "int"}


def record(*fields: Any, name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


ID, N = {"name": "id", "type": "long"}, {"name": "n", "type": "int"}
OLD = record(ID, N)


def spec(**words: Any) -> TableSpec:
    found = {"table": "a.b", "format": "avro", "columns": PLAIN, "views": "stream", "evolution": "compatible"}
    return TableSpec.model_validate({**found, **words})


def asked(table: TableSpec, schemas: GivenSchemas, value: bytes, key: bytes | None = None) -> ColumnChanges:
    """What the record's schema asks of *table*."""
    with pytest.raises(SchemaDue, match="schema 1 need other columns .*; nothing of them was written") as caught:
        RecordCodec(table, schemas, due="raise").decode([value], [key])
    return caught.value.changes


@pytest.mark.parametrize(
    ("avro", "type_", "value"),
    [
        ("boolean", "boolean", True),
        ("int", "int", 1),
        ("long", "long", 1),
        ("float", "float", 1.5),
        ("double", "double", 1.5),
        ("string", "string", "x"),
        ("bytes", "binary", b"x"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string", "A"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "decimal(9,2)", None),
        ({"type": "int", "logicalType": "date"}, "date", None),
        ({"type": "long", "logicalType": "time-micros"}, "time", None),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamptz", None),
        ({"type": "array", "items": "int"}, "list<int>", [1]),
        ({"type": "map", "values": "long"}, "map<string, long>", None),
        (record({"name": "x", "type": "float"}, name="P"), "struct<x: float>", {"x": 1.5}),
    ],
)
def test_a_new_field_of_avro_becomes_a_column_of_its_type(avro: Any, type_: str, value: Any):
    schema = record(ID, N, {"name": "more", "type": ["null", avro]})
    schemas, table = GivenSchemas.avro(schema), spec()
    sent = framed(avro_bytes(schema, {"id": 1, "n": 2, "more": value}))

    changes = asked(table, schemas, sent)

    assert changes == ColumnChanges(add=(Column(name="more", type=parse_type(type_)),))
    found = RecordCodec(tried(table, changes).spec, schemas, due="raise").decode([sent], [None])
    assert found.rows.to_pylist() == [{"id": 1, "n": 2, "more": value}]


def test_a_struct_follows_field_by_field_and_loses_none():
    def boxed(*inside: dict[str, Any]) -> dict[str, Any]:
        return record(ID, {"name": "box", "type": {"type": "array", "items": record(*inside, name="B")}})

    schema = boxed({"name": "a", "type": "long"}, {"name": "c", "type": ["null", "string"]})
    schemas = GivenSchemas.avro(schema, boxed({"name": "a", "type": "string"}))
    table = spec(columns={"id": PLAIN["id"], "box": "list<struct<b: string, a: int>>"})
    sent = framed(avro_bytes(schema, {"id": 1, "box": [{"a": 2**40, "c": "x"}]}))

    changes = asked(table, schemas, sent)

    assert (changes.drop, changes.order, changes.widen) == ((), (), (("box.element.a", parse_type("long")),))
    assert changes.add == (Column(name="box.element.c", type=parse_type("string")),)
    found = RecordCodec(tried(table, changes).spec, schemas, due="raise").decode([sent], [None])
    assert found.rows.to_pylist() == [{"id": 1, "box": [{"b": None, "a": 2**40, "c": "x"}]}]
    [refused] = RecordCodec(table, schemas, due="raise").decode([framed(sent[5:], 2)], [None]).refused
    assert (
        "field 'box' does not give column 'box': [...].a: the schema's string cannot be read as int" in refused.detail
    )


def test_fields_of_protobuf_become_columns_and_optional_ones_make_optional():
    text = 'syntax = "proto3"; message O { int64 id = 1; optional int64 n = 2; uint32 u = 3; repeated string t = 4; }'
    schemas = GivenSchemas({1: WrittenSchema(kind="PROTOBUF", text=text)})
    table = spec(format="protobuf", columns={**PLAIN, "n": {"type": "int", "required": True}})
    sent = framed(proto_field(1, 7) + proto_field(3, 2**31), indexes=(0,))

    changes = asked(table, schemas, sent)

    found = RecordCodec(tried(table, changes).spec, schemas, due="raise").decode([sent], [None])
    assert found.rows.to_pylist() == [{"id": 7, "n": None, "u": 2**31, "t": []}]


def test_the_row_of_a_change_event_is_followed():
    row = record(ID, N, {"name": "more", "type": ["null", "string"]}, name="Value")
    envelope = record(
        {"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", "Value"]},
        {"name": "op", "type": "string"}, name="Envelope",
    )  # fmt: skip
    schemas, table = GivenSchemas.avro(envelope), spec(format="debezium-avro", key=["id"])
    sent = framed(avro_bytes(envelope, {"op": "c", "before": None, "after": {"id": 1, "n": 2, "more": "x"}}))

    changes = asked(table, schemas, sent, b"")

    assert [column.name for column in changes.add] == ["more"]
    found = RecordCodec(tried(table, changes).spec, schemas, due="raise").decode([sent], [b""])
    assert found.rows.to_pylist() == [{"_op": "put", "id": 1, "n": 2, "more": "x"}]


def test_records_of_a_schema_that_cannot_be_taken_are_refused_and_others_are_not():
    other = record(ID, {"name": "n", "type": "string"})
    schemas = GivenSchemas.avro(OLD, other)
    old, new = avro_bytes(OLD, {"id": 1, "n": 2}), avro_bytes(other, {"id": 1, "n": "2"})

    found = RecordCodec(spec(), schemas, due="raise").decode([framed(old), framed(new, 2), framed(old)], [None] * 3)

    assert found.accepted.tolist() == [0, 2]
    [refused] = found.refused
    assert (refused.index, refused.reason) == (1, Reason.SCHEMA_NOT_TAKEN)
    assert refused.detail.startswith("column 'n' is int and cannot become string")
    assert refused.detail.endswith("(schema 2)")


CHECKED = pandera.DataFrameSchema({"n": pandera.Column(checks=pandera.Check.ge(0), nullable=True)})


def test_a_contract_that_would_lose_its_column_refuses_the_schema():
    other = record(ID, {"name": "count", "type": "int", "aliases": ["n"]})
    table = spec(contract={"module": __name__, "name": "CHECKED"})
    values = [framed(avro_bytes(other, {"id": 1, "count": 2}))]

    [refused] = RecordCodec(table, GivenSchemas.avro(other), due="raise").decode(values, [None]).refused

    assert refused.reason is Reason.SCHEMA_NOT_TAKEN
    assert "the table has no column 'n'" in refused.detail


def test_who_only_reads_takes_the_columns_that_there_are():
    schema = record(ID, N, {"name": "more", "type": "string"})
    schemas = GivenSchemas.avro(schema)
    sent = framed(avro_bytes(schema, {"id": 1, "n": 2, "more": "x"}))
    assert RecordCodec(spec(), schemas).decode([sent], [None]).rows.to_pylist() == [{"id": 1, "n": 2}]


def test_who_puts_records_back_is_told_what_is_to_be_done_first():
    schema = record(ID, N, {"name": "more", "type": "string"})
    sent = framed(avro_bytes(schema, {"id": 1, "n": 2, "more": "x"}))
    [refused] = RecordCodec(spec(), GivenSchemas.avro(schema), due="refuse").decode([sent], [None]).refused
    assert (refused.reason, refused.detail.partition(".")[0]) == (
        Reason.SCHEMA_NOT_TAKEN,
        "it needs other columns (add more string)",
    )


def test_strict_refuses_the_records_of_another_schema_until_the_columns_are_its_own():
    schema = record(ID, N, {"name": "more", "type": "string"})
    schemas, table = GivenSchemas.avro(OLD, schema), spec(evolution="strict")
    values = [framed(avro_bytes(OLD, {"id": 1, "n": 2})), framed(avro_bytes(schema, {"id": 3, "n": 4, "more": "x"}), 2)]

    found = RecordCodec(table, schemas, due="raise").decode(values, [None] * 2)

    assert found.accepted.tolist() == [0]
    assert [(r.reason, r.detail.partition(";")[0]) for r in found.refused] == [
        (Reason.SCHEMA_NOT_TAKEN, "field 'more' has no column")
    ]
    wider = spec(evolution="strict", columns={**PLAIN, "more": "string"})
    assert RecordCodec(wider, schemas).decode(values, [None] * 2).accepted.tolist() == [1]


def test_a_value_that_is_no_record_is_followed_as_the_only_column():
    schemas, table = GivenSchemas.avro("long"), spec(columns={"v": "int"})
    assert asked(table, schemas, framed(avro_bytes("long", 2**40))) == ColumnChanges(widen=(("v", parse_type("long")),))
