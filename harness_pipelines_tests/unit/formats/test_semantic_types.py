"""Every semantic type of Debezium and Kafka Connect, in each form that their events have.

Source: Debezium's documentation, "Data type mappings" of its connectors; Kafka Connect's `JsonConverter`.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.avro import AvroReader
from harness_pipelines.formats.schema.policy import type_of
from harness_pipelines.formats.schema.registry import WrittenSchema
from harness_pipelines.formats.schema.writer_schema import NoFit
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.wire import GivenSchemas, avro_bytes, framed

DAY, TIME = dt.date(2017, 9, 15), dt.time(4, 5, 11, 789_000)
LOCAL = dt.datetime(2017, 9, 15, 4, 5, 11, 789_000)
INSTANT = LOCAL.replace(tzinfo=dt.UTC)
DAYS = (DAY - dt.date(1970, 1, 1)).days
OF_DAY_US = ((4 * 60 + 5) * 60 + 11) * 10**6 + 789_000
US = DAYS * 86_400 * 10**6 + OF_DAY_US
UUID = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"
D, K = "io.debezium.", "org.apache.kafka.connect.data."


@dataclass(frozen=True, kw_only=True)
class Semantic:
    """A semantic type, how it is written, and the column that is made for it."""

    name: str
    literal: str  #: Kafka Connect's type
    written: Any
    column: str
    meant: Any
    source: str | None = None  #: `from` without a schema block

    def __str__(self) -> str:
        return self.name


def text(name: str, written: str, column: str = "string", meant: Any = None) -> Semantic:
    return Semantic(
        name=name, literal="string", written=written, column=column, meant=written if meant is None else meant
    )


def number(name: str, literal: str, written: int, column: str, meant: Any, source: str | None) -> Semantic:
    return Semantic(name=name, literal=literal, written=written, column=column, meant=meant, source=source)


EVERY = [
    # time.precision.mode: adaptive, adaptive_time_microseconds
    number(f"{D}time.Date", "int32", DAYS, "date", DAY, "epoch_days"),
    number(f"{D}time.Time", "int32", OF_DAY_US // 1000, "time", TIME, "ms_of_day"),
    number(f"{D}time.MicroTime", "int64", OF_DAY_US, "time", TIME, "us_of_day"),
    number(f"{D}time.NanoTime", "int64", OF_DAY_US * 1000, "time", TIME, "ns_of_day"),
    number(f"{D}time.Timestamp", "int64", US // 1000, "timestamp", LOCAL, "epoch_ms"),
    number(f"{D}time.MicroTimestamp", "int64", US, "timestamp", LOCAL, "epoch_us"),
    number(f"{D}time.NanoTimestamp", "int64", US * 1000, "timestamp", LOCAL, "epoch_ns"),
    # connect
    number(f"{K}Date", "int32", DAYS, "date", DAY, "epoch_days"),
    number(f"{K}Time", "int32", OF_DAY_US // 1000, "time", TIME, "ms_of_day"),
    number(f"{K}Timestamp", "int64", US // 1000, "timestamp", LOCAL, "epoch_ms"),
    # isostring
    text(f"{D}time.IsoDate", "2017-09-15Z", "date", DAY),
    text(f"{D}time.IsoTime", "04:05:11.789Z", "time", TIME),
    text(f"{D}time.IsoTimestamp", "2017-09-15T04:05:11.789Z", "timestamp", LOCAL),
    # all
    text(f"{D}time.ZonedTimestamp", "2017-09-15T04:05:11.789Z", "timestamptz", INSTANT),
    text(f"{D}time.ZonedTime", "04:05:11.789Z"),
    number(f"{D}time.Year", "int32", 2017, "int", 2017, None),
    number(f"{D}time.MicroDuration", "int64", 7, "long", 7, None),
    number(f"{D}time.NanoDuration", "int64", 7, "long", 7, None),
    text(f"{D}time.Interval", "P1Y2M3DT4H5M6.78S"),
    text(f"{D}data.Json", '{"a": 1}'),
    text(f"{D}data.Xml", "<a/>"),
    text(f"{D}data.Enum", "new"),
    text(f"{D}data.EnumSet", "a,b"),
    text(f"{D}data.Ltree", "a.b"),
    text(f"{D}data.TsVector", "'a':1"),
    text(f"{D}data.Uuid", UUID, "uuid", bytes.fromhex(UUID.replace("-", ""))),
    Semantic(name=f"{D}data.Bits", literal="bytes", written=b"\x05\x00", column="binary", meant=b"\x05\x00"),
]
EACH = pytest.mark.parametrize("one", EVERY, ids=str)


def as_json(written: Any) -> Any:
    return base64.b64encode(written).decode() if isinstance(written, bytes) else written


def event(after: Any, block: Any = None) -> bytes:
    body = {"before": None, "after": after, "op": "c"}
    if block is None:
        return json.dumps(body).encode()
    row = {"type": "struct", "field": "after", "fields": [{"type": "int64", "field": "id"}, {"field": "x", **block}]}
    return json.dumps({"schema": {"type": "struct", "fields": [row]}, "payload": body}).encode()


def decoded(columns: Any, *values: bytes, **words: Any) -> Decoded:
    spec = {"table": "a.b", "format": "debezium", "key": ["id"], "columns": {"id": "long", **columns}, **words}
    return RecordCodec(TableSpec.model_validate(spec)).decode(values, [None] * len(values))


def cells(found: Decoded) -> list[Any]:
    assert found.refused == []
    return list(found.rows.column("x").to_pylist())


@EACH
def test_with_a_schema_block(one: Semantic) -> None:
    value = event({"id": 1, "x": as_json(one.written)}, {"type": one.literal, "name": one.name})
    assert cells(decoded({"x": one.column}, value)) == [one.meant]


@EACH
def test_as_plain_json(one: Semantic) -> None:
    column = {"type": one.column, **({"from": one.source} if one.source else {})}
    assert cells(decoded({"x": column}, event({"id": 1, "x": as_json(one.written)}))) == [one.meant]


@EACH
@pytest.mark.parametrize("nested", ["list", "map", "struct"])
def test_inside_of_others_with_a_schema_block(one: Semantic, nested: str) -> None:
    part = {"type": one.literal, "name": one.name}
    block, written, column, meant = {
        "list": ({"type": "array", "items": part}, [as_json(one.written)], f"list<{one.column}>", [one.meant]),
        "map": (
            {"type": "map", "keys": {"type": "int16"}, "values": part},
            [[7, as_json(one.written)]],
            f"map<int, {one.column}>",
            [(7, one.meant)],
        ),
        "struct": (
            {"type": "struct", "fields": [{**part, "field": "y"}]},
            {"y": as_json(one.written)},
            f"struct<y: {one.column}>",
            {"y": one.meant},
        ),
    }[nested]
    assert cells(decoded({"x": column}, event({"id": 1, "x": written}, block))) == [meant]


AVRO = {"int32": "int", "int64": "long", "string": "string", "bytes": "bytes"}


def avro_schema(one: Semantic) -> dict[str, Any]:
    fields = [
        {"name": "id", "type": "long"},
        {"name": "x", "type": ["null", {"type": AVRO[one.literal], "connect.name": one.name}]},
    ]
    after = {"type": "record", "name": "Value", "fields": fields}
    parts = [
        {"name": "before", "type": ["null", after]}, {"name": "after", "type": ["null", "Value"]},
        {"name": "op", "type": "string"},
    ]  # fmt: skip
    return {"type": "record", "name": "Envelope", "fields": parts}


@EACH
def test_in_avro(one: Semantic) -> None:
    schema = avro_schema(one)
    spec = {"table": "a.b", "format": "debezium-avro", "key": ["id"], "columns": {"id": "long", "x": one.column}}
    value = framed(avro_bytes(schema, {"before": None, "after": {"id": 1, "x": one.written}, "op": "c"}))
    found = RecordCodec(TableSpec.model_validate(spec), GivenSchemas.avro(schema)).decode([value], [None])
    assert cells(found) == [one.meant]


@EACH
def test_the_column_that_evolution_makes_for_it(one: Semantic) -> None:
    """As of events; what Kafka Connect's own Timestamp is elsewhere is an instant."""
    text_ = json.dumps(avro_schema(one))
    reader = AvroReader(WrittenSchema(kind="AVRO", text=text_), is_debezium=True)
    [after] = [field.written for field in reader.written.fields if field.name == "after"]
    assert str(type_of(after.fields[1].written)) == one.column
    if one.name == f"{K}Timestamp":
        plain = AvroReader(WrittenSchema(kind="AVRO", text=text_))
        [after] = [field.written for field in plain.written.fields if field.name == "after"]
        assert str(type_of(after.fields[1].written)) == "timestamptz"


# Decimals: decimal.handling.mode and decimal.format

NUMERIC, BASE64 = 123.45, base64.b64encode((12345).to_bytes(2, "big")).decode()
BLOCK = {"type": "bytes", "name": f"{K}Decimal", "parameters": {"scale": "2"}}


@pytest.mark.parametrize("type_", ["decimal(9,2)", "decimal(30,2)", "decimal(9,3)"])
def test_a_number_is_a_decimal_and_so_is_base64(type_: str) -> None:
    written = [NUMERIC, BASE64, None, -0.01, 0, 1e3]
    found = decoded({"x": {"type": type_, "from": "base64"}}, *(event({"id": 1, "x": one}, BLOCK) for one in written))
    meant = [Decimal("123.45"), Decimal("123.45"), None, Decimal("-0.01"), Decimal(0), Decimal(1000)]
    assert cells(found) == meant
    for one, value in zip(written, meant, strict=True):  # and alone, where all are of one form
        assert cells(decoded({"x": {"type": type_, "from": "base64"}}, event({"id": 1, "x": one}, BLOCK))) == [value]


def test_a_number_of_any_length_is_exact() -> None:
    value = event({"id": 1, "x": 0}, BLOCK).replace(b'"x": 0', b'"x": 1234567890123456789012345678.91')
    assert cells(decoded({"x": {"type": "decimal(30,2)", "from": "base64"}}, value)) == [
        Decimal("1234567890123456789012345678.91")
    ]


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (1.234, Reason.OUT_OF_RANGE), (10**9, Reason.OUT_OF_RANGE), ("*", Reason.WRONG_TYPE), ("", Reason.WRONG_TYPE),
        (True, Reason.WRONG_TYPE), ([1], Reason.WRONG_TYPE), ({}, Reason.WRONG_TYPE),
        (base64.b64encode(b"\x7f" * 5).decode(), Reason.OUT_OF_RANGE),
    ],
)  # fmt: skip
def test_what_is_no_decimal_is_refused_alone(written: Any, reason: Reason) -> None:
    values = [event({"id": i, "x": one}, BLOCK) for i, one in enumerate([NUMERIC, written, BASE64])]
    found = decoded({"x": {"type": "decimal(9,2)", "from": "base64"}}, *values)
    assert [(one.index, one.reason) for one in found.refused] == [(1, reason)]
    assert found.rows.column("x").to_pylist() == [Decimal("123.45")] * 2


def test_a_decimal_that_tells_its_scale() -> None:
    parts = [{"type": "int32", "field": "scale"}, {"type": "bytes", "field": "value"}]
    block = {"type": "struct", "name": f"{D}data.VariableScaleDecimal", "fields": parts}
    assert cells(
        decoded(
            {"x": {"type": "decimal(9,3)", "from": "base64"}},
            event({"id": 1, "x": {"scale": 2, "value": BASE64}}, block),
        )
    ) == [Decimal("123.450")]


def test_avro_tells_no_digits_of_a_decimal_that_tells_its_scale() -> None:
    scaled = {
        "type": "record", "name": "VariableScaleDecimal", "connect.name": f"{D}data.VariableScaleDecimal",
        "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    }  # fmt: skip
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": scaled}]}
    reader = AvroReader(WrittenSchema(kind="AVRO", text=json.dumps(schema)))
    with pytest.raises(NoFit, match="does not tell how many digits"):
        type_of(reader.written.fields[0].written)


# Maps whose keys are no text


def test_maps_of_pairs_and_of_objects_may_stand_side_by_side() -> None:
    block = {"type": "map", "keys": {"type": "int16"}, "values": {"type": "string"}}
    written = [[[1, "a"], [2, None]], {"3": "b"}, None, [], {}]
    found = decoded({"x": "map<int, string>"}, *(event({"id": 1, "x": one}, block) for one in written))
    assert cells(found) == [[(1, "a"), (2, None)], [(3, "b")], None, [], []]


@pytest.mark.parametrize("pairs", [[[1, "a"], [1, "b"]], [[None, "a"]], [["x", "a"]], [[1]], [1], [[1, 2, 3]]])
def test_pairs_that_are_none_are_refused_alone(pairs: Any) -> None:
    block = {"type": "map", "keys": {"type": "int16"}, "values": {"type": "string"}}
    found = decoded(
        {"x": "map<int, string>"}, *(event({"id": 1, "x": one}, block) for one in ([[1, "a"]], pairs, {"2": "b"}))
    )
    assert [(one.index, one.reason in {Reason.WRONG_TYPE, Reason.MISSING_FIELD}) for one in found.refused] == [
        (1, True)
    ]
    assert found.rows.column("x").to_pylist() == [[(1, "a")], [(2, "b")]]


# Keys


@pytest.mark.parametrize(
    ("column", "same", "finer"),
    [
        ({"type": "timestamp", "from": "epoch_ns"}, 1_700_000_000_000_001_000, 1_700_000_000_000_001_001),
        ({"type": "timestamptz", "from": "epoch_ns"}, 1_700_000_000_000_001_000, 1_700_000_000_000_001_999),
        ({"type": "time", "from": "ns_of_day"}, 1_000, 1_001),
        ({"type": "timestamptz"}, "2026-01-31T00:00:00.1234560Z", "2026-01-31T00:00:00.1234561Z"),
        ({"type": "timestamp"}, "2026-01-31T00:00:00.123456000", "2026-01-31T00:00:00.123456001"),
        ({"type": "time"}, "00:00:00.1234560", "00:00:00.1234567"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("format_", ["json", "debezium"])
def test_a_key_loses_no_digit(column: Any, same: Any, finer: Any, format_: str) -> None:
    spec = TableSpec.model_validate(
        {"table": "a.b", "format": format_, "key": ["k"], "columns": {"k": column, "v": column}}
    )
    codec = RecordCodec(spec)
    rows: list[Any] = [{"k": same, "v": finer}, {"k": finer, "v": same}]
    values = [json.dumps(row).encode() if format_ == "json" else event(row) for row in rows]
    keys = [json.dumps({"k": one}).encode() for one in (same, finer)]
    found = codec.decode([*values, None, None], [None, None, *keys])
    assert found.accepted.tolist() == [0, 2]  # a value loses it, as it does in a table without a key
    assert [(one.index, one.reason) for one in found.refused] == [(1, Reason.OUT_OF_RANGE), (3, Reason.OUT_OF_RANGE)]
    assert all("digits below a microsecond" in one.detail for one in found.refused)


@pytest.mark.parametrize("logical", ["timestamp-nanos", "local-timestamp-nanos"])
def test_a_key_of_avro_loses_no_digit(logical: str) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "k", "type": {"type": "long", "logicalType": logical}}],
    }
    plain = {"type": "record", "name": "R", "fields": [{"name": "k", "type": "long"}]}
    spec = TableSpec.model_validate({"table": "a.b", "format": "avro", "key": ["k"], "columns": {"k": "timestamp"}})
    values = [framed(avro_bytes(plain, {"k": k})) for k in (1_000, 1_001)]
    found = RecordCodec(spec, GivenSchemas.avro(schema)).decode(values, [None, None])
    assert [(one.index, one.reason) for one in found.refused] == [(1, Reason.OUT_OF_RANGE)]
