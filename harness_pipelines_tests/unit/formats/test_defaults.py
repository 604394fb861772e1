"""Columns with a default: which records get it, in each format, and what a default may be."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from typing import Any

import pytest

from harness_pipelines.formats.base import Decoded
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.spec.load import dump_spec, load_spec_text
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.wording import SpecError
from harness_pipelines_tests.wire import GivenSchemas, avro_bytes, framed, proto_field

UUID = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"
COLUMNS: dict[str, Any] = {
    "id": {"type": "long", "required": True},
    "state": {"type": "string", "required": True, "default": "new", "aliases": ["status"]},
    "total": {"type": "decimal(6,2)", "from": "number", "default": 1.5},
    "at": {"type": "timestamptz", "from": "epoch_ms", "default": "2026-01-31T00:00:00Z"},
}
AT = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)


def spec(columns: Any = COLUMNS, **words: Any) -> TableSpec:
    return TableSpec.model_validate({"table": "shop.orders", "columns": columns, **words})


def decode(made: TableSpec, *records: Any, schemas: GivenSchemas | None = None) -> Decoded:
    values = [r if isinstance(r, bytes) else json.dumps(r).encode() for r in records]
    return RecordCodec(made, schemas).decode(values, [json.dumps({"id": 1}).encode()] * len(values))


def rows(found: Decoded) -> list[tuple[Any, ...]]:
    assert found.refused == []
    return [tuple(v for name, v in row.items() if name != "_op") for row in found.rows.to_pylist()]


@pytest.mark.parametrize("unknown_fields", ["ignore", "quarantine"])
def test_a_field_that_is_missing_has_the_default_and_one_that_is_null_has_not(unknown_fields: str):
    found = decode(
        spec(unknown_fields=unknown_fields),
        {"id": 1},
        {"id": 2, "status": "paid", "total": None, "at": None},
        {"id": 3, "state": "sent", "status": 5, "total": "2.25", "at": 0},
    )
    assert rows(found) == [
        (1, "new", Decimal("1.50"), AT),
        (2, "paid", None, None),
        (3, "sent", Decimal("2.25"), dt.datetime(1970, 1, 1, tzinfo=dt.UTC)),
    ]


def test_a_required_column_with_a_default_may_be_missing_and_never_null():
    found = decode(spec(), {"id": 1}, {"id": 2, "state": None}, {"id": 3, "total": "x"})
    assert [r.index for r in found.refused] == [1, 2]
    assert found.rows.num_rows == 1


def test_change_events_that_lack_a_field_have_its_default_and_deletes_have_none():
    made = spec(format="debezium", key=["id"], views="stream")
    found = decode(
        made,
        {"op": "c", "after": {"id": 1}},
        {"op": "u", "after": {"id": 1, "status": "paid", "total": None}, "before": {"id": 1}},
        {"op": "d", "before": {"id": 1}},
    )
    assert rows(found) == [(1, "new", Decimal("1.50"), AT), (1, "paid", None, AT), (1, None, None, None)]


def test_a_schema_of_avro_without_the_field_gives_the_default_and_null_stays_null():
    old = {"type": "record", "name": "A", "fields": [{"name": "id", "type": "long"}]}
    new = {**old, "fields": [*old["fields"], {"name": "total", "type": ["null", "string"]}]}
    schemas = GivenSchemas.avro(old, new)
    columns = {"id": "long", "total": COLUMNS["total"]}
    values = [framed(avro_bytes(old, {"id": 1})), framed(avro_bytes(new, {"id": 2, "total": None}), 2)]
    assert rows(decode(spec(columns, format="avro"), *values, schemas=schemas)) == [(1, Decimal("1.50")), (2, None)]


def test_a_field_of_protobuf_with_presence_has_the_default_and_one_without_is_what_its_bytes_say():
    text = 'syntax = "proto3"; message M { int64 id = 1; optional int32 a = 2; int32 b = 3; }'
    columns = {"id": "long", **{name: {"type": "int", "default": 7} for name in "abc"}}
    made = spec(columns, format="protobuf", schema={"text": text})
    assert rows(decode(made, proto_field(1, 5), proto_field(1, 5) + proto_field(2, 0))) == [(5, 7, 0, 7), (5, 0, 0, 7)]


@pytest.mark.parametrize(
    ("type_", "default", "value"),
    [
        ("boolean", True, True),
        ("int", -5, -5),
        ("double", 0.25, 0.25),
        ("decimal(30,2)", "12345678901234567890.5", Decimal("12345678901234567890.50")),
        ("date", "2026-01-31", dt.date(2026, 1, 31)),
        ("time", "23:59:59.5", dt.time(23, 59, 59, 500_000)),
        ("timestamp", "2026-01-31", dt.datetime(2026, 1, 31)),
        ("uuid", UUID, uuid.UUID(UUID).bytes),
        ("binary", "00ff", b"\x00\xff"),
    ],
)
def test_a_default_of_each_type_is_kept_with_the_spec(type_: str, default: Any, value: Any):
    made = spec({"id": "long", "x": {"type": type_, "default": default}})
    assert TableSpec.model_validate(dump_spec(made)) == made
    assert rows(decode(made, {"id": 1})) == [(1, value)]


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ("{type: int, default: 1.5}", "1.5 does not fit int exactly"),
        ("{type: int, default: 3000000000}", "does not fit int"),
        ("{type: int, default: zero}", "is no value of type int; write a number"),
        ("{type: string, default: 0}", "is no value of type string; write text"),
        ("{type: date, default: 2026-02-30}", "is no value of type date; write a date"),
        ("{type: 'decimal(4,2)', default: 0.125}", r"does not fit decimal\(4, 2\) exactly"),
        ("{type: list<int>, default: 1}", "only single values can"),
        ("{type: int, default: [1]}", "write a number, text, true or false"),
        ("{type: binary, from: raw_key, default: 00}", "none can be missing"),
    ],
)
def test_a_default_that_does_not_fit_its_column_is_refused_where_it_stands(column: str, why: str):
    with pytest.raises(SpecError, match=why) as caught:
        load_spec_text(f"table: a.b\ncolumns:\n  id: long\n  x: {column}\n", source="t.yaml")
    assert str(caught.value).startswith("t.yaml:4: columns.x.default: ")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"key": ["state"]}, "key column"),
        ({"columns": {"v": {"type": "string", "default": "x"}}, "format": "raw"}, "remove `default`"),
        (
            {
                "columns": {"id": "long", "state": {"type": "string", "default": "x"}},
                "transform": {"derive": {"state": "'x'"}},
            },
            "coalesce",
        ),
    ],
)
def test_what_no_record_lacks_has_no_default(words: dict[str, Any], why: str):
    with pytest.raises(SpecError, match=why):
        spec(words.pop("columns", COLUMNS), **words)
