"""Schemas and bytes that other writers make, and that no writer should."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.avro import AvroReader
from harness_pipelines.formats.schema.avro_numbers import SUSPECT, may_be_suspect
from harness_pipelines.formats.schema.policy import type_of
from harness_pipelines.formats.schema.proto_text import without_options
from harness_pipelines.formats.schema.registry import WrittenSchema
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.wire import GivenSchemas, framed, proto_field, varint, zigzag


def decoded(format_: str, columns: Any, schema: WrittenSchema, *payloads: bytes, **words: Any) -> Decoded:
    spec = TableSpec.model_validate({"table": "a.b", "format": format_, "columns": columns, **words})
    indexes = (0,) if format_ == "protobuf" else None
    values = [framed(payload, indexes=indexes) if indexes else framed(payload) for payload in payloads]
    return RecordCodec(spec, GivenSchemas({1: schema})).decode(values, [None] * len(values))


def said(found: Decoded) -> list[tuple[int, Reason, str]]:
    return [(one.index, one.reason, one.detail) for one in found.refused]


# Protobuf


def test_an_unsigned_number_of_64_bits_is_a_decimal() -> None:
    text = 'syntax = "proto3"; message M { uint64 n = 1; }'
    payloads = [proto_field(1, number) for number in (1, 2**63, 2**64 - 1)]
    found = decoded("protobuf", {"n": "decimal(20,0)"}, WrittenSchema(kind="PROTOBUF", text=text), *payloads)
    assert [row["n"] for row in found.rows.to_pylist()] == [1, 2**63, 2**64 - 1]


PROTO2 = WrittenSchema(
    kind="PROTOBUF",
    text="""
syntax = "proto2";
message M {
  optional string HasField = 1; optional string s = 2; repeated string r = 3; map<string, string> m = 4;
  optional int32 DESCRIPTOR = 5; optional string FromString = 6; optional string __class__ = 7; optional int32 n = 8;
  message Sub { optional string t = 1; } optional Sub sub = 9; repeated Sub subs = 10;
}
""",
)
BAD = b"\xff\xfe"


@pytest.mark.parametrize(
    ("column", "path", "payload"),
    [
        ({"s": "string"}, "s", proto_field(2, BAD)),
        ({"s": "date"}, "s", proto_field(2, BAD)),
        ({"s": "timestamptz"}, "s", proto_field(2, BAD)),
        ({"s": "uuid"}, "s", proto_field(2, BAD)),
        ({"s": "decimal(9,2)"}, "s", proto_field(2, BAD)),
        ({"r": "list<string>"}, "r[...]", proto_field(3, BAD)),
        ({"r": "list<date>"}, "r[...]", proto_field(3, BAD)),
        ({"m": "map<string, string>"}, "m key", proto_field(4, proto_field(1, BAD))),
        ({"m": "map<string, string>"}, "m[...]", proto_field(4, proto_field(1, "a") + proto_field(2, BAD))),
        ({"m": "map<long, string>"}, "m key", proto_field(4, proto_field(1, BAD))),
        ({"sub": "struct<t: string>"}, "sub.t", proto_field(9, proto_field(1, BAD))),
        ({"subs": "list<struct<t: string>>"}, "subs[...].t", proto_field(10, proto_field(1, BAD))),
    ],
)
def test_text_of_proto2_that_is_not_utf8_costs_the_record(column: Any, path: str, payload: bytes) -> None:
    found = decoded("protobuf", {"n": "int", **column}, PROTO2, proto_field(8, 1), payload, proto_field(8, 2))
    assert said(found) == [(1, Reason.MALFORMED, f"`{path}`: the text is not UTF-8")]
    assert found.rows.column("n").to_pylist() == [1, 2]


def test_text_that_no_column_needs_may_be_anything() -> None:
    found = decoded("protobuf", {"n": "int"}, PROTO2, proto_field(2, BAD) + proto_field(8, 3))
    assert found.rows.to_pylist() == [{"n": 3}]


def test_fields_may_have_the_names_of_what_every_message_has() -> None:
    names = {"HasField": "string", "DESCRIPTOR": "int", "FromString": "string", "__class__": "string", "s": "string"}
    found = decoded("protobuf", names, PROTO2, proto_field(1, "a"), b"", proto_field(6, "f") + proto_field(7, "c"))
    nothing = dict.fromkeys(names)
    assert found.rows.to_pylist() == [
        nothing | {"HasField": "a"}, nothing, nothing | {"FromString": "f", "__class__": "c"}
    ]  # fmt: skip


def test_messages_whose_names_differ_by_a_dot_and_a_line_are_both_read() -> None:
    messages = "message b { int32 n = 1; message c { int32 n = 1; } } message b_c { int32 n = 1; }"
    text = f'syntax = "proto3"; package a; {messages}'
    spec = TableSpec.model_validate({"table": "a.b", "format": "protobuf", "columns": {"n": "int"}})
    codec = RecordCodec(spec, GivenSchemas({1: WrittenSchema(kind="PROTOBUF", text=text)}))
    values = [framed(proto_field(1, n), indexes=indexes) for n, indexes in enumerate([(0,), (0, 0), (1,)], 1)]
    assert codec.decode(values, [None] * 3).rows.column("n").to_pylist() == [1, 2, 3]


def test_a_message_that_only_has_the_name_of_a_known_one_is_what_it_says() -> None:
    fake = 'syntax = "proto3"; package confluent.type; message Decimal { string value = 1; string scale = 3; }'
    text = 'syntax = "proto3"; import "confluent/type/decimal.proto"; message M { confluent.type.Decimal d = 1; }'
    schema = WrittenSchema(kind="PROTOBUF", text=text, references={"confluent/type/decimal.proto": fake})
    payload = proto_field(1, proto_field(3, "x"))
    found = decoded("protobuf", {"d": "struct<value: string, scale: string>"}, schema, payload)
    assert found.rows.to_pylist() == [{"d": {"value": "", "scale": "x"}}]
    assert said(decoded("protobuf", {"d": "decimal(9,2)"}, schema, payload))[0][1] is Reason.WRONG_TYPE


# Avro


def avro(schema: Any, **references: str) -> WrittenSchema:
    return WrittenSchema(kind="AVRO", text=json.dumps(schema), references=references)


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": type_} for name, type_ in fields], **more}


ID = ("id", "long")


@pytest.mark.parametrize(
    "words",
    [
        {"logicalType": "decimal", "precision": 9, "scale": None},
        {"logicalType": "decimal", "precision": 9, "scale": "x"},
        {"logicalType": "decimal", "precision": 9, "scale": [2]},
        {"logicalType": "decimal", "precision": 2, "scale": 3},
        {"logicalType": "decimal", "precision": 9, "scale": -1},
        {"logicalType": "decimal", "precision": 0},
        {"logicalType": "decimal", "precision": True, "scale": True},
        {"logicalType": "decimal"},
        {"logicalType": ["decimal"]},
        {"logicalType": {"a": 1}},
        {"logicalType": 7},
        {"connect.name": ["io.debezium.time.Date"]},
        {"connect.name": {}},
    ],
)
@pytest.mark.parametrize("base", ["bytes", "long", "string"])
def test_a_logical_type_that_is_none_does_not_count(words: Any, base: str) -> None:
    schema = avro(record(ID, ("x", {"type": base, **words})))
    x, meant, column = {
        "bytes": (b"\x02\x07", b"\x07", "binary"), "long": (b"\x02", 1, "long"), "string": (b"\x02a", "a", "string")
    }[base]  # fmt: skip
    assert decoded("avro", {"id": "long", "x": column}, schema, b"\x02" + x).rows.to_pylist() == [{"id": 1, "x": meant}]
    assert decoded("avro", {"id": "long"}, schema, b"\x02" + x).rows.to_pylist() == [{"id": 1}]


@pytest.mark.parametrize("aliases", ["abc", 5, [1, "id"], {"id": 1}, None])
def test_aliases_that_are_no_names_do_not_count(aliases: Any) -> None:
    schema = record(("other", "long"))
    schema["fields"][0]["aliases"] = aliases
    found = decoded("avro", {"id": "long", "a": "long"}, avro(schema), b"\x02")
    if not found.refused:
        assert found.rows.to_pylist() == [{"id": 1 if aliases == [1, "id"] else None, "a": None}]


@pytest.mark.parametrize("branches", [["null", record(ID)], [record(ID), "null"], [record(ID)]])
def test_a_union_of_a_record_and_null_is_the_record(branches: list[Any]) -> None:
    at, none = branches.index(record(ID)), None if "null" not in branches else branches.index("null")
    payloads = [varint(at * 2) + b"\x02", varint(at * 2) + b"\x04"]
    if none is not None:
        payloads.insert(1, varint(none * 2))
    for format_, words in (("avro", {}), ("avro", {"key": ["id"]})):
        found = decoded(format_, {"id": "long"}, avro(branches), *payloads, **words)
        assert found.rows.column("id").to_pylist() == [1, 2]
        assert [(one.index, one.reason) for one in found.refused] == (
            [(1, Reason.NULL_VALUE)] if none is not None else []
        )


def test_a_union_as_the_schema_of_keys() -> None:
    words = {"format": "avro", "key": ["id"], "columns": {"id": "long"}}
    codec = RecordCodec(
        TableSpec.model_validate({"table": "a.b", **words}), GivenSchemas({1: avro(["null", record(ID)])})
    )
    found = codec.decode([None, None], [framed(b"\x02\x06"), framed(b"\x00")])
    assert found.rows.to_pylist() == [{"_op": "delete", "id": 3}]
    assert [(one.index, one.reason) for one in found.refused] == [(1, Reason.MISSING_KEY)]


def test_a_decimal_of_kafka_connect_may_have_a_scale_below_0() -> None:
    words = {"logicalType": "decimal", "connect.name": "org.apache.kafka.connect.data.Decimal"}
    schema = avro(record(("x", {"type": "bytes", "precision": 5, "scale": -2, **words})))
    found = decoded("avro", {"x": "decimal(9,0)"}, schema, b"\x02\x7b")
    assert found.rows.to_pylist() == [{"x": Decimal(12_300)}]
    assert str(type_of(AvroReader(schema).written.fields[0].written)) == "decimal(7, 0)"


def test_two_fields_of_one_name_are_no_record() -> None:
    found = decoded(
        "avro", {"id": "long", "x": "long"}, avro(record(ID, ("x", "long"), ("x", "string"))), b"\x02\x04\x02a"
    )
    assert [(one.reason, "two fields of the same name" in one.detail) for one in found.refused] == [
        (Reason.UNUSABLE_SCHEMA, True)
    ]


def test_a_boolean_is_0_or_1_wherever_it_is() -> None:
    nested = ("l", {"type": "array", "items": ["null", "boolean"]})
    schema = avro(record(("b", "boolean"), nested))
    columns = {"b": "boolean", "l": "list<boolean>"}
    found = decoded(
        "avro", columns, schema, b"\x01\x00", b"\x02\x00", b"\x00\x04\x02\x01\x00\x00", b"\x00\x02\x02\xff\x00"
    )
    assert found.rows.to_pylist() == [{"b": True, "l": []}, {"b": False, "l": [True, None]}]
    assert said(found) == [
        (1, Reason.MALFORMED, "`b`: the byte 02 is no boolean"),
        (3, Reason.MALFORMED, "`l[...]`: the byte ff is no boolean"),
    ]


def test_types_of_records_in_other_namespaces_are_found() -> None:
    inner = {"type": "record", "name": "S", "namespace": "b", "fields": [{"name": "q", "type": "boolean"}]}
    plain = {"type": "record", "name": "S", "namespace": "", "fields": [{"name": "q", "type": ["null", "boolean"]}]}
    fields = [("p", "boolean"), ("s", inner), ("t", plain), ("u", {"type": "array", "items": "b.S"})]
    schema = avro({**record(*fields), "namespace": "a"})
    columns = {"p": "boolean", "s": "struct<q: boolean>", "t": "struct<q: boolean>", "u": "list<struct<q: boolean>>"}
    found = decoded("avro", columns, schema, b"\x01\x00\x02\x01\x02\x01\x00")
    assert said(found) == []
    assert found.rows.to_pylist() == [{"p": True, "s": {"q": False}, "t": {"q": True}, "u": [{"q": True}]}]


@pytest.mark.parametrize("index", [b"\x01", b"\x03", b"\x04", b"\x06", b"\x7f", b"\x7e"])
def test_an_index_that_the_schema_has_not_is_no_other_one(index: bytes) -> None:
    """Of a list Python takes the last for -1."""
    symbols = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    schema = avro(record(("e", symbols), ("s", ["null", {"type": "array", "items": "E"}])))
    columns = {"e": "string", "s": "list<string>"}
    sound = b"\x02\x02\x02\x00\x00"
    wrong = [index + b"\x00", b"\x00\x02\x02" + index + b"\x00"]
    found = decoded("avro", columns, schema, sound, *wrong)
    assert found.rows.to_pylist() == [{"e": "B", "s": ["A"]}]
    assert [(at, reason) for at, reason, _ in said(found)] == [(1, Reason.OUT_OF_RANGE), (2, Reason.OUT_OF_RANGE)]
    assert "enum E has no name for" in said(found)[0][2]


@pytest.mark.parametrize("index", [-1, -2, -3, 2, 3, 64, -64, -65, 2**31, -(2**31), 2**62, -(2**62)])
@pytest.mark.parametrize("place", ["field", "element", "value", "inside", "whole", "key"])
def test_an_index_of_a_union_that_it_has_not_is_no_other_one(index: int, place: str) -> None:
    """Of a list Python takes the last for -1."""
    told, either = zigzag(index), ["null", "string"]
    of = {
        "field": (("u", either), "string", told),
        "element": (("u", {"type": "array", "items": either}), "list<string>", b"\x02" + told),
        "value": (("u", {"type": "map", "values": either}), "map<string, string>", b"\x02\x02k" + told),
        "inside": (("u", ["null", {**record(("s", either)), "name": "S"}]), "struct<s: string>", b"\x02" + told),
    }
    texts = (b"\x02a", b"\x02a\x00", b"", b"\x00")  # what a branch of text, or of null, would have read
    if place in of:
        field, type_, start = of[place]
        found = decoded("avro", {"u": type_}, avro(record(field)), *(start + text for text in texts))
    elif place == "whole":
        schema = avro(["null", record(("u", "string"))])
        found = decoded("avro", {"u": "string"}, schema, *(told + text for text in texts))
    else:
        words = {"table": "a.b", "key": ["u"], "format": "json", "key_format": "avro", "columns": {"u": "string"}}
        words["key_schema"] = {"text": json.dumps(["null", record(("u", "string"))])}
        codec = RecordCodec(TableSpec.model_validate(words))
        found = codec.decode([None] * len(texts), [told + text for text in texts])
    assert found.rows.num_rows == 0
    assert {one.reason for one in found.refused} <= {Reason.MALFORMED, Reason.MISSING_KEY}
    assert found.refused[0].reason is Reason.MALFORMED


def test_unions_of_a_type_that_is_named_again_have_no_other_branches_either() -> None:
    inner = {**record(("s", ["null", "string"])), "name": "S"}
    schema = avro(record(("a", inner), ("b", ["null", "S"]), ("c", {"type": "array", "items": "S"})))
    columns = {"a": "struct<s: string>", "b": "struct<s: string>", "c": "list<struct<s: string>>"}
    wrong = [b"\x01\x02x\x02\x00\x00", b"\x00\x02\x01\x02x\x00", b"\x00\x00\x02\x01\x02x\x00"]
    found = decoded("avro", columns, schema, b"\x02\x02x\x02\x00\x02\x00\x00", *wrong)
    assert found.rows.to_pylist() == [{"a": {"s": "x"}, "b": {"s": None}, "c": [{"s": None}]}]
    assert [(at, reason) for at, reason, _ in said(found)] == [(at, Reason.MALFORMED) for at in (1, 2, 3)]


@pytest.mark.parametrize("length", [-1, -3, -(2**31), -(2**63), 4, 2**31, 2**63 - 1])
@pytest.mark.parametrize("avro_type", ["string", "bytes", {"type": "map", "values": "null"}])
def test_a_length_that_the_bytes_have_not_is_malformed(length: int, avro_type: Any) -> None:
    column = {"string": "string", "bytes": "binary"}.get(str(avro_type), "map<string, string>")
    start = b"\x02" if isinstance(avro_type, dict) else b""
    schema = avro(record(("s", avro_type)))
    found = decoded("avro", {"s": column}, schema, start + zigzag(length) + b"abc")
    assert [(at, reason) for at, reason, _ in said(found)] == [(0, Reason.MALFORMED)] or column.startswith("map")
    assert found.rows.num_rows == 0


@pytest.mark.parametrize("kind", ["array", "map"])
def test_a_block_may_tell_its_size(kind: str) -> None:
    """A count below 0 is that of as many elements; the size of the block comes next, and must be what is read."""
    schema = avro(record(("s", {"type": kind, "items" if kind == "array" else "values": "int"})))
    column = "list<int>" if kind == "array" else "map<string, int>"
    one = b"\x0e" if kind == "array" else b"\x02k\x0e"
    two = one + (b"\x0e" if kind == "array" else b"\x02l\x0e")
    sized = [zigzag(-count) + zigzag(len(part)) + part + b"\x00" for count, part in ((2, two), (1, one))]
    payloads = [b"\x04" + two + b"\x00", sized[0], b"\x00", sized[1]]
    found = decoded("avro", {"s": column}, schema, *payloads)
    first = [7, 7] if kind == "array" else [("k", 7), ("l", 7)]
    assert [row["s"] for row in found.rows.to_pylist()] == [first, first, [], first[:1]]


def test_a_type_that_is_defined_where_a_null_stands_is_known_when_numbers_are_looked_at() -> None:
    inner = {**record(("s", "string")), "name": "S"}
    schema = avro(record(("u", ["null", inner]), ("v", ["null", "S"]), ("a", {"type": "array", "items": "int"})))
    text = "\U0001f600" * 3  # its bytes look like a number that is too long
    told = b"\x00\x02" + zigzag(len(text.encode())) + text.encode() + b"\x01\x02\x0e\x00"
    found = decoded("avro", {"v": "struct<s: string>", "a": "list<int>"}, schema, told)
    assert found.rows.to_pylist() == [{"v": {"s": text}, "a": [7]}]


@pytest.mark.parametrize("count", [-(2**63), 2**63 - 1, -(2**62), 2**40])
@pytest.mark.parametrize("kind", ["array", "map"])
def test_a_block_of_more_elements_than_there_are_is_malformed(kind: str, count: int) -> None:
    schema = avro(record(("s", {"type": kind, "items" if kind == "array" else "values": "int"}), ("n", "int")))
    column = "list<int>" if kind == "array" else "map<string, int>"
    sound = b"\x00\x02"
    wrong = [zigzag(count) + b"\x00\x00\x02", zigzag(count) + b"\x02\x00", zigzag(count)]
    found = decoded("avro", {"s": column, "n": "int"}, schema, sound, *wrong, sound)
    assert [row["n"] for row in found.rows.to_pylist()] == [1, 1]
    assert [(at, reason) for at, reason, _ in said(found)] == [(at, Reason.MALFORMED) for at in (1, 2, 3)]


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**40, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("column", ["int", "long", "double", "decimal(20,0)", "list<long>", "timestamp"])
def test_an_int_of_more_than_32_bits_is_no_row(column: str, number: int) -> None:
    words: Any = {"type": column, "from": "epoch_ms"} if column == "timestamp" else column
    avro_type = {"type": "array", "items": "int"} if column.startswith("list") else "int"
    told = b"\x02" + zigzag(number) + b"\x00" if column.startswith("list") else zigzag(number)
    found = decoded("avro", {"n": words}, avro(record(("n", avro_type))), told)
    assert found.rows.num_rows == 0
    assert said(found)[0][1] is (Reason.OUT_OF_RANGE if column == "int" else Reason.MALFORMED)


def test_symbols_of_an_enum_are_no_numbers() -> None:
    schema = avro(record(("e", {"type": "enum", "name": "E", "symbols": ["A"]})))
    assert said(decoded("avro", {"e": "int"}, schema, b"\x00"))[0][1] is Reason.WRONG_TYPE


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"type": "fixed", "name": "F", "size": -1}, "-1 is no size of F"),
        ({"type": "fixed", "name": "F", "size": "4"}, "'4' is no size of F"),
        ("nope", "it has no type nope"),
        ({"type": {"type": {"type": "long"}}}, "something in it is not where Avro has it"),
    ],
)
def test_what_is_wrong_in_a_schema_of_avro_is_told_in_words(field: Any, why: str) -> None:
    [(_, reason, detail)] = said(decoded("avro", {"id": "long"}, avro(record(ID, ("f", field))), b"\x02"))
    assert reason is Reason.UNUSABLE_SCHEMA and why in detail


def test_a_delete_rule_may_ask_for_a_boolean() -> None:
    schema = avro(record(ID, ("gone", "boolean")))
    words: Any = {"key": ["id"], "delete": {"field": "gone", "values": [True]}}
    found = decoded("avro", {"id": "long", "gone": "boolean"}, schema, b"\x02\x01", b"\x04\x00", **words)
    assert found.rows.column("_op").to_pylist() == ["delete", "put"]


@pytest.mark.parametrize("number", [b"\xff" * 10 + b"\x01", b"\xff" * 9 + b"\x02", b"\x80" * 9 + b"\x7f"])
def test_a_number_of_more_than_64_bits_is_malformed(number: bytes) -> None:
    schema = avro(record(ID, ("s", "string")))
    found = decoded("avro", {"id": "long"}, schema, b"\x02\x00", number + b"\x00", b"\x04\x02a")
    assert found.rows.column("id").to_pylist() == [1, 2]
    assert said(found) == [(1, Reason.MALFORMED, "not Avro of R: a number has more than 64 bits")]


@pytest.mark.parametrize("high", range(12))
@pytest.mark.parametrize("around", [b"", b"a", b"a" * 9])
def test_the_quick_look_for_such_numbers_misses_none(high: int, around: bytes) -> None:
    text = around + b"\xff" * high + around
    assert may_be_suspect(text) == (high >= 9)
    assert may_be_suspect(text) or not SUSPECT.search(text)


def test_text_whose_bytes_look_like_such_a_number_is_text() -> None:
    schema = avro(record(ID, ("s", ["null", "string"])))
    text = "数据管道每条记录恰好一次" * 3
    payload = b"\x02\x02" + varint(2 * len(text.encode())) + text.encode()
    longest = b"\xff" * 9 + b"\x01"  # the smallest number that there is
    found = decoded("avro", {"id": "long", "s": "string"}, schema, payload, longest + b"\x00")
    assert found.rows.to_pylist() == [{"id": 1, "s": text}, {"id": -(2**63), "s": None}]


@pytest.mark.parametrize("key", ["int", "long", "date", "decimal(9,2)"])
def test_keys_of_maps_are_read_from_their_text(key: str) -> None:
    schema = avro(record(("m", {"type": "map", "values": "long"})))

    def payload(name: str) -> bytes:
        return b"\x02" + varint(2 * len(name)) + name.encode() + b"\x02\x00"

    good = {"int": "-7", "long": str(2**63 - 1), "date": "2026-01-31", "decimal(9,2)": "1.5"}[key]
    found = decoded("avro", {"m": f"map<{key}, long>"}, schema, payload(good), payload("x"), payload("01x"))
    assert [str(name) for name, _ in found.rows.to_pylist()[0]["m"]] == [{"decimal(9,2)": "1.50"}.get(key, good)]
    assert [one.reason for one in found.refused] == [Reason.WRONG_TYPE] * 2
    assert said(found)[0][2].startswith("`m key`: expected ")


def test_keys_of_maps_that_do_not_fit() -> None:
    schema = avro(record(("m", {"type": "map", "values": "long"})))
    payloads = [b"\x02" + varint(2 * len(name)) + name + b"\x02\x00" for name in (b"2147483648", b"007", b"9" * 400)]
    found = decoded("avro", {"m": "map<int, long>"}, schema, *payloads)
    assert [one.reason for one in found.refused] == [Reason.OUT_OF_RANGE, Reason.WRONG_TYPE, Reason.OUT_OF_RANGE]


# Options of Protobuf

RULES = """
syntax = "proto3";
package shop;
import "confluent/meta.proto";
option (confluent.file_meta) = { doc: "a; b", rules: [ { name: "r" } ] };
option java_package = "com.shop";
/* [ (a) = 1 ] */
message Order {
  option (confluent.message_meta).rules = { name: "checkSsn"; kind: CONDITION; tags: ["a", "]"] };
  int64 id = 1 [(confluent.field_meta) = { rules: [ { expr: "a > [1]" } ] }, deprecated = true, json_name = "i,d"];
  repeated int32 tags = 2 [packed = false, (confluent.field_meta).unknown = "y"];
  string s = 3 [(confluent.field_meta) = { rules: { name: "z" } }];
  enum E { A = 0 [(confluent.enum_value_meta) = { rules: { name: "z" } }]; }
}
"""


def test_options_are_not_read_so_unknown_ones_do_not_matter() -> None:
    schema = WrittenSchema(kind="PROTOBUF", text=RULES)
    payload = proto_field(1, 7) + proto_field(2, 1) + proto_field(2, 2) + proto_field(3, "a")
    found = decoded("protobuf", {"id": "long", "tags": "list<int>", "s": "string"}, schema, payload)
    assert found.rows.to_pylist() == [{"id": 7, "tags": [1, 2], "s": "a"}]


def test_what_an_option_hides_is_left_as_it_was() -> None:
    text = "message M { string s = 1 [default = \"[(a) = 1]\", json_name = 'x']; } // option (a) = 1;\n"
    assert without_options(text) == text
    assert without_options("option (a).b = { c: 1; }; message M {}") == " message M {}"
    assert without_options("int32 n = 1 [(a) = 1];") == "int32 n = 1 ;"
    assert without_options("int32 n = 1 [(a) = {x: [1, 2]}, packed = true];") == "int32 n = 1 [packed = true];"


def test_the_detail_is_the_error_and_not_what_protoc_only_warns_of() -> None:
    text = 'syntax = "proto3"; import "google/protobuf/any.proto"; message M { int32 n = 1 }'
    [one] = decoded("protobuf", {"n": "int"}, WrittenSchema(kind="PROTOBUF", text=text), b"").refused
    assert "Expected" in one.detail and "arning" not in one.detail


@pytest.mark.parametrize("name", ["x" * 300 + ".proto", "harness_main.proto/a", "a\0b", "confluent/meta.proto/x"])
def test_a_schema_may_name_what_no_file_can_be_called(name: str) -> None:
    schema = WrittenSchema(
        kind="PROTOBUF", text='syntax = "proto3"; message M { int32 n = 1; }', references={name: 'syntax = "proto3";'}
    )
    found = decoded("protobuf", {"n": "int"}, schema, b"\x08\x01")
    assert [one.reason for one in found.refused] == [Reason.UNUSABLE_SCHEMA]


def test_a_schema_may_hold_what_is_no_text() -> None:
    schema = WrittenSchema(kind="PROTOBUF", text='syntax = "proto3"; message M { int32 n = 1; } // \ud800')
    assert [one.reason for one in decoded("protobuf", {"n": "int"}, schema, b"").refused] == [Reason.UNUSABLE_SCHEMA]


# Avro: a few bytes


def doubled(leaf: Any, *, times: int) -> Any:
    """A record of records of ..., each with two of the next, the last with a *leaf*."""
    made: Any = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": leaf}]}
    for i in range(1, times):
        fields = [{"name": "a", "type": made}, {"name": "b", "type": f"R{i - 1}"}]
        made = {"type": "record", "name": f"R{i}", "fields": fields}
    return made


NULLS: list[Any] = [{"name": f"n{i}", "type": "null"} for i in range(1_000)]
FLAG_AND_NULLS: Any = {"type": "record", "name": "N", "fields": [{"name": "b", "type": "boolean"}, *NULLS]}


@pytest.mark.parametrize(
    "harmful",
    [
        doubled("null", times=40),
        ["null", doubled("null", times=40)],
        doubled({"type": "fixed", "name": "F", "size": 0}, times=40),
        {"type": "record", "name": "W", "fields": [*NULLS, {"name": "one_more", "type": "null"}]},
        {"type": "array", "items": FLAG_AND_NULLS},
        {"type": "map", "values": ["null", FLAG_AND_NULLS]},
    ],
)
def test_a_schema_by_which_a_few_bytes_never_end_is_refused(harmful: Any) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "d", "type": harmful}]
    schema = WrittenSchema(kind="AVRO", text=json.dumps({"type": "record", "name": "T", "fields": fields}))
    [one] = decoded("avro", {"id": "long"}, schema, b"\x02\x02\x00").refused
    assert one.reason is Reason.UNUSABLE_SCHEMA
    assert "take no bytes, so a few could stand for any number" in one.detail


def test_fields_of_nulls_are_read() -> None:
    fields = [{"name": "id", "type": "long"}, *NULLS[:500], {"name": "d", "type": ["null", doubled("int", times=40)]}]
    schema = WrittenSchema(kind="AVRO", text=json.dumps({"type": "record", "name": "T", "fields": fields}))
    assert decoded("avro", {"id": "long"}, schema, b"\x02\x00").rows.to_pylist() == [{"id": 1}]


# JSON Schema


@pytest.mark.parametrize("number", [b"1e400", b"-1e400", b"9" * 400, b"9" * 5000, b"1.5", b"-0.0"])
@pytest.mark.parametrize("nested", [b'{"id":2,"x":%b}', b'{"id":2,"x":{"y":[%b]}}'])
def test_a_number_of_any_size_is_a_row_or_a_violation(number: bytes, nested: bytes) -> None:
    schema = WrittenSchema(kind="JSON", text='{"type": "object", "properties": {"x": {}}}')
    found = decoded("json-schema", {"id": "long"}, schema, b'{"id":1}', nested % number, b'{"id":3}')
    assert found.rows.column("id").to_pylist() in ([1, 2, 3], [1, 3])
    assert [one.reason for one in found.refused] in ([], [Reason.SCHEMA_VIOLATION])


@pytest.mark.parametrize("text", ["[]", "1", '"a"', "null", "{", '{"type": 5}', '{"$ref": "#/a"}', '{"pattern": "("}',
                                  '{"$schema": "x"}', '{"type": "object", "required": 1}', "\ud800"])  # fmt: skip
def test_what_is_no_json_schema_refuses_its_records(text: str) -> None:
    found = decoded("json-schema", {"id": "long"}, WrittenSchema(kind="JSON", text=text), b'{"id":1}')
    assert [one.reason for one in found.refused] in ([], [Reason.UNUSABLE_SCHEMA])


def referring(steps: int, word: str) -> str:
    """A schema whose references double *steps* times."""
    names = {f"a{i}": {word: [{"$ref": f"#/$defs/a{i + 1}"}, {"not": {"$ref": f"#/$defs/a{i + 1}"}}]}
             for i in range(steps)}  # fmt: skip
    return json.dumps({"$ref": "#/$defs/a0", "$defs": {**names, f"a{steps}": {"type": "object"}}})


@pytest.mark.parametrize("word", ["allOf", "anyOf", "oneOf"])
def test_a_json_schema_that_never_ends_is_refused(word: str) -> None:
    found = decoded("json-schema", {"id": "long"}, WrittenSchema(kind="JSON", text=referring(40, word)), b'{"id":1}')
    [one] = found.refused
    assert one.reason is Reason.UNUSABLE_SCHEMA
    assert "more than 100,000 schemas" in one.detail


def test_a_json_schema_may_refer_to_itself_and_to_others_many_times() -> None:
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}
    for text in (json.dumps(tree), referring(12, "anyOf"), '{"allOf": [{"$ref": "#"}]}'):
        found = decoded("json-schema", {"id": "long"}, WrittenSchema(kind="JSON", text=text), b'{"id":1,"kids":[{}]}')
        assert found.rows.num_rows == 1, text


def test_a_pattern_that_goes_back_for_ever_costs_its_record() -> None:
    schema = WrittenSchema(kind="JSON", text=json.dumps({"properties": {"s": {"pattern": r"^(a|aa)+\1$"}}}))
    values = [b'{"id":1,"s":"%s!"}' % (b"a" * 60), b'{"id":2,"s":"aaa"}']
    found = decoded("json-schema", {"id": "long"}, schema, *values)
    assert [one.index for one in found.refused] == [0]
    assert "backtracking" in found.refused[0].detail


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"not":' * 100_000 + "{}" + "}" * 100_000, "recursion depth"),
        ('{"const": "\\ud800"}', "half of a surrogate pair"),
        ("\ufeff{}", "byte order mark"),
    ],
)
def test_a_json_schema_that_is_no_json_is_told_as_such(text: str, said: str) -> None:
    [one] = decoded("json-schema", {"id": "long"}, WrittenSchema(kind="JSON", text=text), b'{"id":1}').refused
    assert one.reason is Reason.UNUSABLE_SCHEMA
    assert said in one.detail
