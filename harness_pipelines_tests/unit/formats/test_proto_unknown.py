"""Protobuf: what its parsers pass over, and times that are none, are refused; the rest of unknown fields is not."""

from __future__ import annotations

from typing import Any

import pytest

from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.unit.formats.batching import assert_alone_as_together
from harness_pipelines_tests.wire import proto_field, proto_float, varint

ROW = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/type/date.proto";
import "google/type/timeofday.proto";
message Row {
  message Part { string name = 1; repeated Part parts = 2; }
  int64 id = 1;
  string text = 2;
  repeated int32 numbers = 3;
  Part part = 4;
  map<string, Part> by_name = 5;
  int32 ByteSize = 6;
  google.protobuf.Timestamp at = 7;
  google.type.TimeOfDay hour = 8;
  google.type.Date day = 9;
}
"""
COLUMNS = {"id": "long", "at": "timestamptz", "hour": "time", "day": "date"}
CLOSED = """
syntax = "proto2";
enum Kind { NEW = 0; OLD = 1; }
message Row {
  optional Kind kind = 1;
  repeated Kind kinds = 2;
  map<string, Kind> by_name = 3;
  optional Kind more = 4;
  required int32 id = 5;
}
"""


def codec(text: str, columns: dict[str, Any]) -> RecordCodec:
    words = {"table": "a.b", "format": "protobuf", "schema": {"text": text}, "columns": columns}
    return RecordCodec(TableSpec.model_validate(words))


def decoded(text: str, columns: dict[str, Any], *payloads: bytes) -> Decoded:
    made = codec(text, columns)
    assert_alone_as_together(made, [(None, payload) for payload in payloads])
    return made.decode(payloads, [None] * len(payloads))


GOOD = proto_field(1, 7)
PART = proto_field(1, "a")
EMPTY_GROUP = varint(1 << 3 | 3) + varint(1 << 3 | 4)


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        (proto_field(1, "text"), "`id`"),
        (proto_field(1, 0.5), "`id`"),
        (EMPTY_GROUP, "`id`"),
        (proto_field(2, 5), "`text`"),
        (proto_float(3, 1.0), "`numbers`"),
        (proto_field(4, 5), "`part`"),
        (proto_field(4, proto_field(1, 5)), "`part.name`"),
        (proto_field(4, PART + proto_field(2, PART + proto_field(2, 5))), "`part.parts.parts`"),
        (proto_field(5, proto_field(1, "k") + proto_field(2, proto_field(1, 5))), "`by_name.name`"),
        (GOOD + proto_field(1, "text"), "`id`"),
    ],
)
def test_a_field_that_is_written_as_another_type_is_malformed(payload, field):
    found = decoded(ROW, COLUMNS, GOOD, payload, GOOD)
    [refused] = found.refused
    assert (refused.index, refused.reason) == (1, Reason.MALFORMED)
    assert refused.detail == f"not Protobuf of Row: {field}: it is written as another type than the schema's"


@pytest.mark.parametrize(
    "payload",
    [
        GOOD + proto_field(99, 5) + proto_field(98, "of a newer schema"),
        GOOD + proto_field(4, PART + proto_field(77, 1)) + proto_field(6, 3),
        GOOD + proto_field(3, varint(1) + varint(2)) + proto_field(3, 3),  # packed and not
    ],
)
def test_fields_that_the_schema_does_not_have_are_left(payload):
    found = decoded(ROW, {"id": "long"}, payload, GOOD)
    assert (found.refused, found.rows.column("id").to_pylist()) == ([], [7, 7])


@pytest.mark.parametrize(
    ("payload", "detail"),
    [
        (proto_field(7, proto_field(2, -1)), "`at`: -1 nanos are no part of a second"),
        (proto_field(7, proto_field(2, 2_000_000_000)), "`at`: 2,000,000,000 nanos are no part of a second"),
        (proto_field(8, proto_field(2, 90)), "`hour`: 0 hours, 90 minutes, 0 seconds, 0 nanos are no time of a day"),
        (proto_field(8, proto_field(3, 60)), "`hour`: 0 hours, 0 minutes, 60 seconds, 0 nanos are no time of a day"),
        (proto_field(8, proto_field(1, -1)), "`hour`: -3600000000 us are not of a day"),
        (proto_field(9, proto_field(1, 2024)), "`day`: year 2024, month 0, day 0 is no date"),
    ],
)
def test_a_time_with_parts_out_of_range_is_no_other_time(payload, detail):
    found = decoded(ROW, COLUMNS, GOOD, payload)
    [refused] = found.refused
    assert (refused.index, refused.reason, refused.detail) == (1, Reason.OUT_OF_RANGE, detail)


OLD = proto_field(1, 1) + proto_field(2, 1) + proto_field(5, 3)


def test_a_number_without_a_name_in_a_closed_enum_is_refused_not_null():
    columns = {"kind": "string", "kinds": "list<string>", "id": "int"}
    found = decoded(CLOSED, columns, OLD, OLD + proto_field(1, 7), OLD + proto_field(2, 9), proto_field(1, 8))
    said = [(one.index, one.reason, one.detail) for one in found.refused]
    assert said == [
        (2, Reason.OUT_OF_RANGE, "`kinds[...]`: enum Kind has no name for 9"),
        (3, Reason.OUT_OF_RANGE, "`kind`: enum Kind has no name for 8"),
    ]
    assert found.rows.to_pylist()[0] == {"kind": "OLD", "kinds": ["OLD"], "id": 3}


def test_a_number_without_a_name_matters_to_its_columns_only_and_is_a_number():
    odd = OLD + proto_field(4, 7)
    assert decoded(CLOSED, {"kind": "string"}, odd).rows.to_pylist() == [{"kind": "OLD"}]
    assert decoded(CLOSED, {"more": "int"}, odd).rows.to_pylist() == [{"more": 7}]


def test_an_entry_whose_number_has_no_name_is_not_left_out():
    odd = OLD + proto_field(3, proto_field(1, "k") + proto_field(2, 9))
    [refused] = decoded(CLOSED, {"kind": "string", "by_name": "map<string, string>"}, OLD, odd).refused
    assert (refused.index, refused.reason) == (1, Reason.MALFORMED)
    assert "`by_name`: an entry has a number that its enum has no name for" in refused.detail


def test_a_list_of_numbers_with_one_without_a_name_is_refused_as_its_order_is_lost():
    odd = proto_field(2, 9) + proto_field(2, 1) + proto_field(5, 3)
    [refused] = decoded(CLOSED, {"kinds": "list<int>"}, odd).refused
    assert refused.reason is Reason.OUT_OF_RANGE


def test_a_required_field_that_is_missing_is_null():
    assert decoded(CLOSED, {"kind": "string", "id": "int"}, proto_field(1, 1)).rows.to_pylist() == [
        {"kind": "OLD", "id": None}
    ]
