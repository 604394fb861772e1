"""Formats, keys and envelopes are recognized from the records alone."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from harness_pipelines.errors import UsageError
from harness_pipelines.formats.infer.proposal import Proposal, propose
from harness_pipelines.formats.schema.registry import NoSchemas, WrittenSchema
from harness_pipelines_tests.unit.formats.infer.test_payloads import chosen
from harness_pipelines_tests.wire import GivenSchemas, avro_bytes, framed, proto_field

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long", "doc": "Its number"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "either", "type": ["int", "string"]},
    ],
}
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
ROW = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]}
EVENT = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "Row"], "default": None},
        {"name": "source", "type": {"type": "record", "name": "S", "fields": [{"name": "table", "type": "string"}]}},
        {"name": "op", "type": "string"},
    ],
}


def of(values: list[Any], keys: list[bytes | None] | None = None, schemas: Any = None) -> Proposal:
    texts = [one if isinstance(one, bytes) or one is None else json.dumps(one).encode() for one in values]
    return propose(texts, keys or [None] * len(texts), schemas or NoSchemas())


# -- keys


@pytest.mark.parametrize(
    ("keys", "rows", "key", "key_format"),
    [
        ([b"1", b"2"], [{"id": 1}, {"id": 2}], ("id",), None),
        ([b'"a"', b'"b"'], [{"id": "a"}, {"id": "b"}], ("id",), None),
        ([b"a", b"b"], [{"id": "a"}, {"id": "b"}], ("id",), "text"),
        ([b'{"id":1}', None], [{"id": 1}, {"id": 2}], ("id",), None),
        ([b'{"b":1,"a":2}', b'{"b":3,"a":4}'], [{"a": 2, "b": 1}, {"a": 4, "b": 3}], ("b", "a"), None),
        ([b"1", b"2"], [{"n": 1, "id": 1}, {"n": 1, "id": 2}], ("id",), None),
        ([b"1", b"3"], [{"id": 1}, {"id": 2}], (), None),
        ([b'{"id":1}', b'{"id":3}'], [{"id": 1}, {"id": 2}], (), None),
        ([b"\xff\x00", b"\xff\x01"], [{"id": 1}, {"id": 2}], (), None),
        ([None, None], [{"id": 1}, {"id": 2}], (), None),
    ],
)
def test_the_key_is_what_the_record_keys_are(keys, rows, key, key_format):
    found = of(rows, keys)

    assert (found.key, found.key_format, found.is_keyed) == (key, key_format, False)


def test_tombstones_make_a_table_with_a_key():
    found = of([{"id": 1}, None], [b"1", b"1"])

    assert (found.key, found.is_keyed) == (("id",), True)
    assert "1 record without a value" in found.notes[0]


def test_tombstones_without_a_known_key_make_none():
    assert not of([{"id": 1}, None], [b"x", b"x"]).is_keyed


@pytest.mark.parametrize(("flags", "deleted"), [(("false", "true"), "true"), ((False, True), True)])
def test_rows_that_say_that_they_are_deleted_make_a_delete_rule(flags, deleted):
    found = of([{"id": 1, "__deleted": flags[0]}, {"id": 2, "__deleted": flags[1]}], [b"1", b"2"])

    assert (found.deleted, found.is_keyed, found.fields.names) == (deleted, True, ("id",))


def test_rows_that_say_that_they_are_deleted_need_a_key_and_keep_their_rule():
    found = of([{"id": 1, "__deleted": "false"}, {"id": 2, "__deleted": "true"}])

    assert (found.deleted, found.is_keyed) == ("true", False)
    assert any("give --key" in one for one in found.notes)


# -- change events


def event(after: dict[str, Any] | None, before: dict[str, Any] | None = None, *, table: str = "t") -> dict[str, Any]:
    op = "c" if before is None else "d" if after is None else "u"
    return {"before": before, "after": after, "op": op, "ts_ms": 1, "source": {"table": table}}


def test_change_events_are_recognized_and_keyed_by_the_record_keys():
    found = of([event({"id": 1, "at": 1_767_225_600_000}), event(None, {"id": 1, "at": None})], [b'{"id":1}'] * 2)

    assert (found.format, found.key, found.is_keyed) == ("debezium", ("id",), True)
    assert chosen(found) == {"id": "long", "at": "timestamp epoch_ms"}


def test_a_schema_block_says_the_columns():
    connect, debezium = "org.apache.kafka.connect.data", "io.debezium"
    fields = [
        {"field": "id", "type": "int32"},
        {"field": "price", "type": "bytes", "name": f"{connect}.Decimal",
         "parameters": {"scale": "2", "connect.decimal.precision": "12"}},
        {"field": "any", "type": "struct", "name": f"{debezium}.data.VariableScaleDecimal", "fields": []},
        {"field": "day", "type": "int32", "name": f"{debezium}.time.Date"},
        {"field": "at", "type": "int64", "name": f"{debezium}.time.MicroTimestamp"},
        {"field": "zoned", "type": "string", "name": f"{debezium}.time.ZonedTimestamp"},
        {"field": "uid", "type": "string", "name": f"{debezium}.data.Uuid"},
        {"field": "state", "type": "string", "name": f"{debezium}.data.Enum"},
        {"field": "blob", "type": "bytes"},
        {"field": "tags", "type": "array", "items": {"type": "string"}},
        {"field": "days", "type": "array", "items": {"type": "int32", "name": f"{debezium}.time.Date"}},
    ]  # fmt: skip
    block = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    row = {"id": 1, "price": "AfQ=", "any": {"scale": 1, "value": "AQ=="}, "day": 1, "at": 1,
           "zoned": "2026-01-01T00:00:00Z", "uid": "123e4567-e89b-12d3-a456-426614174000", "state": "x",
           "blob": "AQ==", "tags": ["a"], "days": [1]}  # fmt: skip
    key = json.dumps({"schema": {"type": "struct"}, "payload": {"id": 1}}).encode()

    found = of([{"schema": block, "payload": event(row)}], [key])

    assert (found.format, found.key) == ("debezium", ("id",))
    assert chosen(found) == {
        "id": "int",
        "price": "decimal(12, 2) base64",
        "any": "decimal(38, 10) base64",
        "day": "date epoch_days",
        "at": "timestamp epoch_us",
        "zoned": "timestamptz",
        "uid": "uuid",
        "state": "string",
        "blob": "binary",
        "tags": "list<string>",
        "days": "list<date> epoch_days",
    }


def test_fields_of_a_schema_block_that_no_table_can_have_are_left_out():
    named = [{"field": name, "type": "int64"} for name in ("id", "ID", "_op")]
    odd = [
        {"field": "inner", "type": "struct", "fields": [{"field": 'a"b', "type": "int32"}]},
        {"field": "twice", "type": "struct", "fields": [{"field": n, "type": "int32"} for n in ("a", "A")]},
        {"field": "map", "type": "map", "keys": {"type": "boolean"}, "values": {"type": "int32"}},
    ]
    block = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": [*named, *odd]}]}

    found = of([{"schema": block, "payload": event({"id": 1})}], [b'{"id":1}'])

    assert chosen(found) == {"id": "long"}
    assert list(found.fields.left_out) == ["ID", "_op", "inner", "twice", "map"]


def test_events_of_several_tables_and_without_keys_are_named():
    found = of([event({"id": 1}), event({"id": 2}, table="u")])

    assert found.key == ()
    assert any("2 tables (t, u)" in one for one in found.notes)
    assert any("do not name the primary key" in one for one in found.notes)


def test_the_block_of_the_converter_is_named_where_there_is_no_envelope():
    found = of([{"schema": {"type": "struct"}, "payload": {"id": 1}}])

    assert chosen(found) == {"payload": "struct<id: long>"}
    assert any("schemas.enable=false" in one for one in found.notes)


# -- schemas


def test_avro_is_read_by_the_schema_that_records_name():
    schemas = GivenSchemas.avro(ORDER, KEY)
    value = framed(avro_bytes(ORDER, {"id": 1, "state": "OPEN", "at": NOON, "either": 1}))

    found = of([value], [framed(avro_bytes(KEY, {"id": 1}), 2)], schemas)

    assert (found.format, found.key, found.key_format) == ("avro", ("id",), None)
    assert chosen(found) == {"id": "long", "state": "string", "at": "timestamptz"}
    assert [one.column.description for one in found.fields.columns] == ["Its number", None, None]
    assert "one of OPEN, PAID" in found.fields.columns[1].note
    assert "union" in found.fields.left_out["either"]


def test_change_events_in_avro_have_the_columns_of_their_row():
    schemas = GivenSchemas.avro(EVENT, KEY)
    one = {"before": None, "after": {"id": 1, "name": "a"}, "source": {"table": "t"}, "op": "c"}

    found = of([framed(avro_bytes(EVENT, one))], [framed(avro_bytes(KEY, {"id": 1}), 2)], schemas)

    assert (found.format, found.key, found.is_keyed) == ("debezium-avro", ("id",), True)
    assert chosen(found) == {"id": "long", "name": "string"}


def test_protobuf_is_read_by_the_schema_that_records_name():
    text = 'syntax = "proto3"; message Order { int64 id = 1; string name = 2; }'
    schemas = GivenSchemas({1: WrittenSchema(kind="PROTOBUF", text=text)})

    found = of([framed(proto_field(1, 7) + proto_field(2, "a"), indexes=(0,))], [None], schemas)

    assert found.format == "protobuf"
    assert chosen(found) == {"id": "long", "name": "string"}


def test_json_with_a_schema_has_the_columns_of_its_values():
    schemas = GivenSchemas({1: WrittenSchema(kind="JSON", text='{"type":"object"}')})

    found = of([framed(b'{"id":1}'), framed(b'{"id":2}')], [framed(b'{"id":1}'), framed(b'{"id":2}')], schemas)

    assert (found.format, found.key) == ("json-schema", ("id",))
    assert chosen(found) == {"id": "long"}


def test_a_schema_that_no_registry_has_is_named():
    found = of([framed(b"\xff\xfe"), framed(b"\xff\xfd")])

    assert found.format == "raw"
    assert "HARNESS_REGISTRY" in found.notes[0]


# -- what has no fields


@pytest.mark.parametrize(
    ("values", "kind"), [([b"a", b"b"], "string"), ([b"\xff", b"b"], "binary"), ([b"a\0"], "binary")]
)
def test_other_values_are_one_column(values, kind):
    found = of(values, [b"k"] * len(values))

    assert found.format == "raw"
    assert chosen(found) == {"value": kind, "key": "string raw_key"}


def test_a_few_values_that_are_no_objects_do_not_hide_the_others():
    found = of([{"id": 1}, {"id": 2}, b"oops"])

    assert (found.format, found.records) == ("json", 3)
    assert "1 record without a JSON object would be quarantined" in found.notes[0]


@pytest.mark.parametrize(("values", "why"), [([], "has no records"), ([None, None], "none of the 2 records")])
def test_nothing_is_proposed_from_nothing(values, why):
    with pytest.raises(UsageError, match=why):
        of(values)


@pytest.mark.parametrize("name", ["_op", "_kafka_offset", 'a"b', "a\\b", "", "x" * 64, "a\nb"])
def test_fields_that_can_be_no_columns_are_left_out_by_name(name):
    found = of([{"id": 1, name: 2}])

    assert chosen(found) == {"id": "long"}
    assert list(found.fields.left_out) == [name]


def test_of_two_names_that_engines_do_not_tell_apart_the_first_is_a_column():
    found = of([{"id": 1, "ID": 2}])

    assert chosen(found) == {"id": "long"}
    assert "no engine tells" in found.fields.left_out["ID"]


def test_nested_fields_that_no_type_takes_are_left_out_of_their_struct():
    found = of([{"a": {"b": 1, "c": 1}}, {"a": {"b": "x", "c": 2}}])

    assert chosen(found) == {"a": "struct<c: long>"}
    assert "without b" in found.fields.columns[0].note


def test_an_object_with_more_fields_than_a_table_has_columns_gives_the_first():
    found = of([{f"f{i}": i for i in range(1_600)}])

    assert len(found.fields.columns) == 1_500
    assert len(found.fields.left_out) == 100


def test_values_that_are_nested_too_deep_are_left_out():
    deep: Any = 1
    for _ in range(40):
        deep = {"a": deep}

    found = of([{"id": 1, "deep": deep}])

    assert chosen(found)["id"] == "long"
