"""Protobuf: messages by the text of their schema; their bytes are written by hand."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.registry import SchemaUnusable, WrittenSchema
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.unit.formats.batching import assert_alone_as_together
from harness_pipelines_tests.wire import GivenSchemas, framed, proto_field, proto_float, varint

ORDER = """
syntax = "proto3";
package shop;
import "common/money.proto";
import "confluent/meta.proto";
import "confluent/type/decimal.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/type/date.proto";
import "google/type/timeofday.proto";

message Note { string text = 1; }

message Order {
  enum Status { NEW = 0; PAID = 1; }
  message Item { int32 n = 1; optional string name = 2; }
  int64 id = 1;
  optional string customer = 2;
  double amount = 3;
  bool open = 4;
  bytes raw = 5;
  Status status = 6;
  repeated int32 tags = 7;
  map<string, int64> counts = 8;
  repeated Item items = 9;
  google.protobuf.Timestamp at = 10;
  google.protobuf.Int64Value maybe = 11;
  common.Money total = 12 [(confluent.field_meta) = { doc: "with tax" }];
  confluent.type.Decimal price = 13;
  google.type.Date day = 14;
  google.type.TimeOfDay hour = 15;
  uint64 big = 16;
  sint32 zig = 17;
  float small = 18;
  oneof choice { string left = 19; int32 right = 20; }
  repeated google.protobuf.Timestamp seen = 21;
  map<int32, Item> by_number = 22;
  Order parent = 23;
  string code = 24;
}
"""
MONEY = 'syntax = "proto3"; package common; message Money { string currency = 1; int64 cents = 2; }'
KNOWN = WrittenSchema(kind="PROTOBUF", text=ORDER, references={"common/money.proto": MONEY})
COLUMNS = {
    "id": "long", "customer": "string", "amount": "double", "open": "boolean", "raw": "binary", "status": "string",
    "tags": "list<int>", "counts": "map<string, long>", "items": "list<struct<n: int, name: string>>",
    "at": "timestamptz", "maybe": "long", "total": "struct<currency: string, cents: long>", "price": "decimal(9,2)",
    "day": "date", "hour": "time", "big": "long", "zig": "int", "small": "float", "left": "string", "right": "int",
    "seen": "list<timestamp>", "by_number": "map<int, struct<name: string>>", "code": "string",
}  # fmt: skip
EMPTY: dict[str, Any] = {
    "id": 0, "customer": None, "amount": 0.0, "open": False, "raw": b"", "status": "NEW", "tags": [], "counts": [],
    "items": [], "at": None, "maybe": None, "total": None, "price": None, "day": None, "hour": None, "big": 0, "zig": 0,
    "small": 0.0, "left": None, "right": None, "seen": [], "by_number": [], "code": "",
}  # fmt: skip
FIRST = (1,)  #: Order is the second message of its file


def spec(columns: Any, **words: Any) -> TableSpec:
    return TableSpec.model_validate({"table": "a.b", "format": "protobuf", "columns": columns, **words})


@pytest.fixture(scope="module")
def orders() -> RecordCodec:
    """The schema is compiled once for the tests of this module."""
    return RecordCodec(spec(COLUMNS), GivenSchemas({1: KNOWN}))


def rows(codec: RecordCodec, *payloads: bytes) -> Decoded:
    return codec.decode([framed(payload, indexes=FIRST) for payload in payloads], [None] * len(payloads))


def test_what_is_not_there_is_null_where_the_schema_can_tell_and_the_default_where_not(orders):
    assert rows(orders, b"").rows.to_pylist() == [EMPTY]


def test_a_value_of_every_type_comes_back(orders):
    timestamp = proto_field(1, 1_000) + proto_field(2, 1_999)
    item = proto_field(1, 4) + proto_field(2, "pen")
    payload = b"".join([
        proto_field(1, -5), proto_field(2, ""), proto_field(3, 1.5), proto_field(4, True), proto_field(5, b"\x00"),
        proto_field(6, 1), proto_field(7, varint(3) + varint(4)),
        proto_field(8, proto_field(1, "a") + proto_field(2, 7)),
        proto_field(9, item), proto_field(9, b""), proto_field(10, timestamp), proto_field(11, b""),
        proto_field(12, proto_field(1, "EUR") + proto_field(2, 99)),
        proto_field(13, proto_field(1, b"\xff\x38") + proto_field(3, 2)),
        proto_field(14, proto_field(1, 2026) + proto_field(2, 2) + proto_field(3, 28)),
        proto_field(15, proto_field(1, 23) + proto_field(4, 1_000)), proto_field(16, 2**63 - 1), proto_field(17, 5),
        proto_float(18, 0.5), proto_field(19, "l"), proto_field(20, 3), proto_field(21, timestamp),
        proto_field(22, proto_field(1, 9) + proto_field(2, item)), proto_field(24, "c"), proto_field(99, "unknown"),
    ])  # fmt: skip
    second = dt.datetime(1970, 1, 1, 0, 16, 40, 1)
    assert rows(orders, payload).rows.to_pylist() == [{
        "id": -5, "customer": "", "amount": 1.5, "open": True, "raw": b"\x00", "status": "PAID", "tags": [3, 4],
        "counts": [("a", 7)], "items": [{"n": 4, "name": "pen"}, {"n": 0, "name": None}],
        "at": second.replace(tzinfo=dt.UTC), "maybe": 0, "total": {"currency": "EUR", "cents": 99},
        "price": Decimal("-2.00"), "day": dt.date(2026, 2, 28), "hour": dt.time(23, 0, 0, 1), "big": 2**63 - 1,
        "zig": -3, "small": 0.5, "left": None, "right": 3, "seen": [second], "by_number": [(9, {"name": "pen"})],
        "code": "c",
    }]  # fmt: skip


@pytest.mark.parametrize(
    ("payload", "reason", "detail"),
    [
        (proto_field(16, 2**63), Reason.OUT_OF_RANGE, "`big`: expected integer <= 9223372036854775807, got a larger"),
        (proto_field(6, 7), Reason.OUT_OF_RANGE, "`status`: enum shop.Order.Status has no name for 7"),
        (proto_field(24, "a\x00"), Reason.OUT_OF_RANGE, "`code`: 'a\\x00' holds U+0000"),
        (proto_field(24, b"\xff"), Reason.MALFORMED, "not Protobuf of shop.Order: the bytes are no such message"),
        (proto_field(14, proto_field(1, 2026)), Reason.OUT_OF_RANGE, "`day`: year 2026, month 0, day 0 is no date"),
        (proto_field(13, proto_field(1, b"\1") + proto_field(3, 5)), Reason.OUT_OF_RANGE, "`price`: a decimal"),
        (proto_field(10, proto_field(1, 2**60)), Reason.OUT_OF_RANGE, "`at`: "),
        (b"\x0a", Reason.MALFORMED, "not Protobuf of shop.Order"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused_alone(orders, payload, reason, detail):
    found = rows(orders, proto_field(1, 1), payload, proto_field(1, 3))
    assert found.rows.column("id").to_pylist() == [1, 3]
    [refused] = found.refused
    assert (refused.index, refused.reason) == (1, reason)
    assert refused.detail.startswith(detail)


def test_the_message_is_found_by_its_indexes(orders):
    item = RecordCodec(spec({"n": "int", "text": "string"}), GivenSchemas({1: KNOWN}))
    found = item.decode(
        [
            framed(proto_field(1, 5), indexes=(1, 0)),  # Order.Item
            framed(proto_field(1, "hi"), indexes=(0,)),  # Note
            framed(b"", indexes=(7,)),
            framed(b"", indexes=(1, 9)),
            framed(b"")[:5],
            framed(b"", indexes=(1, 0))[:-1],
            framed(varint(200)),
        ],
        [None] * 7,
    )
    assert found.rows.to_pylist() == [{"n": 5, "text": None}, {"n": None, "text": "hi"}]
    assert [(r.index, r.reason, r.detail) for r in found.refused] == [
        (2, Reason.MALFORMED, "the schema has no message at the indexes 7 (schema 1)"),
        (3, Reason.MALFORMED, "the schema has no message at the indexes 1, 9 (schema 1)"),
        (4, Reason.TRUNCATED_HEADER, "it ends within the message's indexes"),
        (5, Reason.TRUNCATED_HEADER, "it ends within the message's indexes"),
        (6, Reason.MALFORMED, "the header has 100 indexes of messages; at most 32 are read"),
    ]


def test_a_recursive_message_is_no_column():
    codec = RecordCodec(spec({"parent": "struct<id: long>"}), GivenSchemas({1: KNOWN}))
    [refused] = codec.decode([framed(b"", indexes=FIRST)], [None]).refused
    assert refused.reason is Reason.UNUSABLE_SCHEMA
    assert refused.detail == "`parent`: shop.Order is within itself; recursive types are no column (schema 1)"


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ('syntax = "proto3"; message A { lang x = 1; }', '"lang" is not defined'),
        ('syntax = "proto3"; import "none.proto"; message A {}', "none.proto"),
        ("{}", "Expected"),
    ],
)
def test_a_schema_that_does_not_compile_refuses_its_records_with_the_reason(text, detail):
    codec = RecordCodec(spec({"x": "long"}), GivenSchemas({1: WrittenSchema(kind="PROTOBUF", text=text)}))
    [refused] = codec.decode([framed(b"", indexes=(0,))], [None]).refused
    assert refused.reason is Reason.UNUSABLE_SCHEMA
    assert detail in refused.detail and "/tmp" not in refused.detail
    with pytest.raises(SchemaUnusable, match="it is not a readable Protobuf schema"):
        RecordCodec(spec({"x": "long"}, schema={"text": text}))


def test_the_files_of_references_stay_where_they_belong():
    known = WrittenSchema(kind="PROTOBUF", text='syntax = "proto3"; message A {}', references={"../evil.proto": ""})
    [refused] = (
        RecordCodec(spec({"x": "long"}), GivenSchemas({1: known})).decode([framed(b"", indexes=(0,))], [None]).refused
    )
    assert "'../evil.proto', which is no path inside" in refused.detail


def test_the_specs_own_schema_names_its_message():
    text = 'syntax = "proto3"; package p; message A { int32 x = 1; } message B { string x = 1; }'
    codec = RecordCodec(spec({"x": "string"}, schema={"text": text, "message": "p.B"}))
    assert codec.decode([proto_field(1, "hi")], [None]).rows.to_pylist() == [{"x": "hi"}]
    with pytest.raises(SchemaUnusable, match=r"the schema has 2 messages \(p.A, p.B\): say which by `message`"):
        RecordCodec(spec({"x": "string"}, schema={"text": text}))
    with pytest.raises(SchemaUnusable, match="the schema has no message p.C; it has p.A, p.B"):
        RecordCodec(spec({"x": "string"}, schema={"text": text, "message": "p.C"}))
    with pytest.raises(SchemaUnusable, match="`x`: the schema's int32 cannot be read as string"):
        RecordCodec(spec({"x": "string"}, schema={"text": text, "message": "p.A"}))


def test_an_older_language_knows_what_is_not_there():
    text = 'syntax = "proto2"; message A { optional int32 x = 1 [default = 5]; optional E e = 2; enum E { ONE = 1; } }'
    codec = RecordCodec(spec({"x": "int", "e": "string"}, schema={"text": text}))
    found = codec.decode([b"", proto_field(1, 0) + proto_field(2, 1)], [None, None])
    assert found.rows.to_pylist() == [{"x": None, "e": None}, {"x": 0, "e": "ONE"}]


def test_a_value_says_that_it_deletes_by_the_name_of_its_enum():
    words = {"key": ["id"], "key_format": "text", "delete": {"field": "status", "values": ["PAID"]}}
    codec = RecordCodec(spec({"id": "long", "code": "string"}, **words), GivenSchemas({1: KNOWN}))
    values = [framed(proto_field(1, 1) + proto_field(6, status), indexes=FIRST) for status in (0, 1)]
    found = codec.decode([*values, None], [None, None, b"3"])
    assert found.rows.to_pylist() == [
        {"_op": "put", "id": 1, "code": ""}, {"_op": "delete", "id": 1, "code": None},
        {"_op": "delete", "id": 3, "code": None},
    ]  # fmt: skip


payloads = st.lists(
    st.sampled_from(range(1, 25)).flatmap(
        lambda n: (
            st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary(max_size=6)
        ).map(lambda value: proto_field(n, value))
    ),
    max_size=5,
).map(b"".join)


@settings(max_examples=100)
@given(st.lists(payloads | st.binary(max_size=10), max_size=6))
def test_the_verdict_on_a_record_never_depends_on_its_batch(parts):
    assert_alone_as_together(CODEC, [(None, framed(payload, indexes=FIRST)) for payload in parts])


CODEC = RecordCodec(spec(COLUMNS), GivenSchemas({1: KNOWN}))
same_sign = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=50)
@given(same_sign, st.floats(), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=9))
def test_numbers_and_text_come_back_exactly(number, real, text):
    payload = proto_field(1, number) + proto_field(3, real) + proto_field(24, text) + proto_field(2, text)
    [row] = rows(CODEC, payload).rows.to_pylist()
    assert (row["id"], row["code"], row["customer"]) == (number, text, text)
    assert row["amount"] == real or (math.isnan(real) and math.isnan(row["amount"]))


def test_a_tombstone_deletes_by_the_message_in_its_key():
    codec = RecordCodec(spec({"id": "long", "code": "string"}, key=["id"]), GivenSchemas({1: KNOWN}))
    found = codec.decode(
        [None, None, None],
        [framed(proto_field(1, 7), indexes=FIRST), framed(proto_field(1, "x"), indexes=(0,)), None],
    )
    assert found.rows.to_pylist() == [{"_op": "delete", "id": 7, "code": None}]
    assert [(r.index, r.reason) for r in found.refused] == [(1, Reason.MISSING_KEY), (2, Reason.MISSING_KEY)]
