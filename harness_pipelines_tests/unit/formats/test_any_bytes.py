"""Whatever bytes come, with whatever schema: a row or a refusal that says why, never an exception."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness_pipelines.formats.base import Headers, Reason
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.registry import SchemaUnusable, WrittenSchema
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.unit.formats.mutants import mutated_bytes, mutated_json, mutated_text
from harness_pipelines_tests.wire import GivenSchemas, avro_bytes, framed, proto_field

COLUMNS: Mapping[str, Any] = {
    "id": "long", "b": "boolean", "i": "int", "f": "float", "d": "double", "s": "string", "x": "binary",
    "day": "date", "t": "time", "l": "timestamp", "z": "timestamptz", "u": "uuid", "list": "list<int>",
    "map": "map<string, long>", "keys": "map<int, string>", "st": "struct<a: int, b: list<string>>",
}  # fmt: skip
HEADERS = {"type": "list<struct<key: string, value: binary>>", "from": "headers"}
ROW: Mapping[str, Any] = {
    "id": 7, "b": True, "i": -3, "f": 1.5, "d": 2.5, "s": "text é", "x": "AAE=", "day": "2026-01-31",
    "t": "23:59:59.123456", "l": "2026-01-31T00:00:00", "z": "2026-01-31T00:00:00Z",
    "u": "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "list": [1, 2], "map": {"a": 1}, "keys": {"1": "a"},
    "st": {"a": 1, "b": ["x"]}, "amount": "12.34",
}  # fmt: skip
AVRO: Any = {
    "type": "record", "name": "R", "fields": [
        {"name": "id", "type": "long"}, {"name": "b", "type": ["null", "boolean"]}, {"name": "i", "type": "int"},
        {"name": "f", "type": "float"}, {"name": "d", "type": "double"}, {"name": "s", "type": ["null", "string"]},
        {"name": "x", "type": "bytes"}, {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "t", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "l", "type": {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}},
        {"name": "z", "type": {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}},
        {"name": "u", "type": "string"}, {"name": "list", "type": {"type": "array", "items": "int"}},
        {"name": "map", "type": {"type": "map", "values": "long"}},
        {"name": "keys", "type": {"type": "map", "values": "string"}},
        {"name": "st", "type": ["null", {"type": "record", "name": "S", "fields": [
            {"name": "a", "type": "int"}, {"name": "b", "type": {"type": "array", "items": "string"}}]}]},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}  # fmt: skip
AVRO_ROW = {
    **ROW,
    "x": b"\x00\x01",
    "day": 20484,
    "t": 86_399_123_456,
    "l": 1_769_817_600_000_000,
    "amount": b"\x04\xd2",
}
ENVELOPE: Any = {
    "type": "record", "name": "Envelope", "fields": [
        {"name": "before", "type": ["null", AVRO]}, {"name": "after", "type": ["null", "R"]},
        {"name": "op", "type": "string"},
    ],
}  # fmt: skip
_BODY = """
import "google/protobuf/timestamp.proto"; import "google/type/date.proto"; import "google/type/timeofday.proto";
import "confluent/type/decimal.proto";
message R {
  @ int64 id = 1 ; @ bool b = 2 ; @ sint32 i = 3 ; @ float f = 4 ; @ double d = 5 ; @ string s = 6 ; @ bytes x = 7 ;
  @ google.type.Date day = 8 ; @ google.type.TimeOfDay t = 9 ; @ google.protobuf.Timestamp l = 10 ;
  @ google.protobuf.Timestamp z = 11 ; @ string u = 12 ; repeated int32 list = 13 ; map < string , int64 > map = 14 ;
  map < int32 , string > keys = 15 ; @ S st = 16 ; @ confluent.type.Decimal amount = 17 ;
  message S { @ int32 a = 1 ; repeated string b = 2 ; }
}
"""
PROTO = {
    "protobuf2": 'syntax = "proto2" ; ' + _BODY.replace("@", "optional"),
    "protobuf3": 'syntax = "proto3" ; ' + _BODY.replace("@", ""),
    "editions": 'edition = "2023" ; ' + _BODY.replace("@", ""),
}
_MOMENT = proto_field(1, 1_769_817_600) + proto_field(2, 7)
PROTO_ROW = b"".join([
    proto_field(1, 7), proto_field(2, True), proto_field(3, 5), proto_field(5, 2.5), proto_field(6, "text"),
    proto_field(7, b"\x00\x01"), proto_field(8, proto_field(1, 2026) + proto_field(2, 1) + proto_field(3, 31)),
    proto_field(9, proto_field(1, 23) + proto_field(4, 1)), proto_field(10, _MOMENT), proto_field(11, _MOMENT),
    proto_field(12, ROW["u"]), proto_field(13, 1), proto_field(14, proto_field(1, "a") + proto_field(2, 1)),
    proto_field(15, proto_field(1, 1) + proto_field(2, "a")), proto_field(16, proto_field(1, 1) + proto_field(2, "x")),
    proto_field(17, proto_field(1, b"\x04\xd2") + proto_field(3, 2)),
])  # fmt: skip
BLOCK: Any = {"type": "struct", "fields": [{"type": "struct", "field": "after", "fields": [
    {"type": "int64", "field": "id"}, {"type": "int32", "field": "day", "name": "io.debezium.time.Date"},
    {"type": "int64", "field": "l", "name": "io.debezium.time.MicroTimestamp"},
    {"type": "string", "field": "z", "name": "io.debezium.time.ZonedTimestamp"}, {"type": "string", "field": "s"},
    {"type": "map", "field": "keys", "keys": {"type": "int16"}, "values": {"type": "string"}},
    {"type": "bytes", "field": "amount", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
]}]}  # fmt: skip
BLOCK_ROW = {"id": 7, "day": 20484, "l": 7, "z": ROW["z"], "s": "a", "keys": [[1, "a"]], "amount": "BNI="}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A format: a table of it, a record, and its schema."""

    spec: Mapping[str, Any]
    value: bytes
    key: bytes | None = b'{"id":7}'
    schema: Any = None
    mutated: Callable[[Any, Random], str] = mutated_json
    registry: str | None = None  #: the kind of its schemas
    header: bytes = b""  #: in front of the value
    columns: Mapping[str, Any] = field(default_factory=lambda: {**COLUMNS, "amount": "decimal(9,2)"})


def kinds() -> Mapping[str, Kind]:
    change = {**COLUMNS, "amount": {"type": "decimal(9,2)", "from": "base64"}}
    event = {"before": None, "after": {**ROW, "amount": "BNI="}, "op": "c"}
    keyed = {"key": ["id"]}
    found = {
        "json": Kind(spec={"format": "json", **keyed}, value=json.dumps(ROW).encode()),
        "json-schema": Kind(
            spec={"format": "json-schema", **keyed}, value=json.dumps(ROW).encode(), registry="JSON",
            schema={"required": ["id"], "properties": {"id": {"type": "integer"}, "s": {"pattern": "t"}}},
            header=framed(b""),
            key=framed(b'{"id":7}'),
        ),
        "avro": Kind(
            spec={"format": "avro", **keyed}, value=avro_bytes(_physical(AVRO), AVRO_ROW), schema=AVRO, registry="AVRO",
            header=framed(b""), key=framed(b"\x0e"),
        ),
        "debezium": Kind(spec={"format": "debezium", **keyed}, value=json.dumps(event).encode(), columns=change),
        "debezium-block": Kind(
            spec={"format": "debezium", **keyed}, columns=change, schema=BLOCK,
            value=json.dumps({"before": None, "after": BLOCK_ROW, "op": "c"}).encode(),
        ),
        "debezium-avro": Kind(
            spec={"format": "debezium-avro", "key_format": "json", **keyed}, schema=ENVELOPE, registry="AVRO",
            value=avro_bytes(_physical(ENVELOPE), {"before": None, "after": AVRO_ROW, "op": "c"}), header=framed(b""),
        ),
        "raw": Kind(
            spec={"format": "raw"}, value=b"text", columns={
                "v": {"type": "string", "from": "raw_value"}, "k": {"type": "binary", "from": "raw_key"}, "h": HEADERS,
            },
        ),
    }  # fmt: skip
    for name, text in PROTO.items():
        found[name] = Kind(
            spec={"format": "protobuf", **keyed, "key_format": "json"}, value=PROTO_ROW, schema=text.split(),
            registry="PROTOBUF", header=framed(b"", indexes=(0,)), mutated=mutated_text,
        )  # fmt: skip
    return found


def _physical(schema: Any) -> Any:
    """*schema* without logical types, by which Apache's library writes numbers and bytes as they are."""
    if isinstance(schema, dict):
        return {word: _physical(value) for word, value in schema.items() if word != "logicalType"}
    return [_physical(one) for one in schema] if isinstance(schema, list) else schema


KINDS = kinds()
EACH = pytest.mark.parametrize("name", KINDS)


@cache
def text_of(name: str) -> str:
    schema = KINDS[name].schema
    return " ".join(schema) if KINDS[name].registry == "PROTOBUF" else json.dumps(schema)


def codec(name: str, text: str) -> RecordCodec:
    kind = KINDS[name]
    words = {"table": "a.b", "columns": kind.columns, **kind.spec}
    schema = WrittenSchema(kind=kind.registry or "", text=text)
    return RecordCodec(TableSpec.model_validate(words), GivenSchemas({1: schema} if kind.registry else {}))


@cache
def sound(name: str) -> RecordCodec:
    return codec(name, text_of(name))


def whole(name: str, value: bytes, text: str) -> bytes:
    """*value* as it comes: behind its header, or beside its schema block."""
    kind = KINDS[name]
    if kind.schema is BLOCK:
        return b'{"schema":%b,"payload":%b}' % (text.encode("utf-8", "surrogatepass"), value)
    return kind.header + value


def assert_verdicts(
    decoder: RecordCodec, values: Sequence[bytes | None], keys: Sequence[bytes | None], dice: Random
) -> None:
    """Each record is a row, or is refused for a reason that some codec knows."""
    told: list[Headers | None] = [dice.choice((None, [("a", b"1"), ("\ufffd", None)], [("", b"\xff")])) for _ in values]
    found = decoder.decode(values, keys, told)
    assert sorted([*found.accepted.tolist(), *(one.index for one in found.refused)]) == list(range(len(values)))
    assert found.rows.num_rows == len(found.accepted)
    found.rows.validate(full=True)
    for one in found.refused:
        assert one.reason is not Reason.UNDECODABLE, one.detail
        assert one.detail.isprintable() and len(one.detail) <= 300


def check(name: str, seed: int, *, with_schemas: bool) -> None:
    dice, kind = Random(seed), KINDS[name]
    text = kind.mutated(kind.schema, dice) if with_schemas and kind.schema is not None else text_of(name)
    values: list[bytes | None] = [whole(name, kind.value, text)]
    for _ in range(dice.randrange(6)):
        broken = whole(name, mutated_bytes(kind.value, dice), text)
        values.insert(dice.randrange(len(values) + 1), mutated_bytes(broken, dice) if dice.random() < 0.2 else broken)
    values.append(dice.choice((None, b"")))
    keys = [dice.choice((None, kind.key, mutated_bytes(kind.key or b"", dice))) for _ in values]
    decoder = sound(name) if not with_schemas or kind.registry is None else codec(name, text)
    assert_verdicts(decoder, values, keys, dice)


SEEDS = st.integers(0, 2**64 - 1)


@EACH
def test_what_is_whole_is_a_row(name: str) -> None:
    kind = KINDS[name]
    found = sound(name).decode([whole(name, kind.value, text_of(name))], [kind.key], [[("a", b"1")]])
    assert (found.refused, found.rows.num_rows) == ([], 1)


@EACH
@given(seed=SEEDS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_mutated_bytes_are_rows_or_refused(name: str, seed: int) -> None:
    check(name, seed, with_schemas=False)


@EACH
@given(seed=SEEDS)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_mutated_schemas_give_rows_or_refuse_them(name: str, seed: int) -> None:
    if KINDS[name].schema is not None:
        check(name, seed, with_schemas=True)


@pytest.mark.long
@EACH
@given(seed=SEEDS)
@settings(max_examples=2_500, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_mutated_bytes_are_rows_or_refused(name: str, seed: int) -> None:
    check(name, seed, with_schemas=False)


@pytest.mark.long
@EACH
@given(seed=SEEDS)
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_mutated_schemas_give_rows_or_refuse_them(name: str, seed: int) -> None:
    if KINDS[name].schema is not None:
        check(name, seed, with_schemas=True)


@pytest.mark.parametrize("name", ["avro", "json-schema", "debezium-avro"])
@given(seed=SEEDS)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_mutated_schema_of_the_spec_is_taken_or_refused_by_name(name: str, seed: int) -> None:
    kind, dice = KINDS[name], Random(seed)
    text = kind.mutated(kind.schema, dice)
    words = {"table": "a.b", "columns": kind.columns, **kind.spec, "key_format": "json", "schema": {"text": text}}
    spec = TableSpec.model_validate(words)
    try:
        decoder = RecordCodec(spec)
    except SchemaUnusable:
        return
    assert_verdicts(decoder, [kind.value, mutated_bytes(kind.value, dice)], [kind.key] * 2, dice)
