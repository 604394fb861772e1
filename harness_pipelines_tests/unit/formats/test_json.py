"""The verdicts of the JSON codec, rule by rule."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.columns.chunked import CHUNK_RECORDS
from harness_pipelines.formats.json.objects import JsonCodec
from harness_pipelines.formats.refusals import NESTING_MAX
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import parse_type

UTC = dt.UTC


def codec(columns, **options) -> JsonCodec:
    return JsonCodec(TableSpec(table="a.b", columns=columns).columns, **options)


def decode(column, text: str) -> Decoded:
    """Decode one record whose field ``x`` has the JSON *text*."""
    return codec({"x": column}).decode([f'{{"x": {text}}}'.encode()])


def value(column, text: str):
    decoded = decode(column, text)
    assert decoded.refused == []
    return decoded.rows["x"][0].as_py()


def verdict(column, text: str) -> tuple[str, str]:
    decoded = decode(column, text)
    assert decoded.rows.num_rows == 0 and len(decoded.accepted) == 0
    (refused,) = decoded.refused
    return refused.reason.value, refused.detail


def whole(record: bytes | None, columns=None, **options) -> tuple[str, str]:
    (refused,) = codec(columns or {"x": "int"}, **options).decode([record]).refused
    return refused.reason.value, refused.detail


@pytest.mark.parametrize(
    ("column", "text", "meant"),
    [
        ("boolean", "true", True),
        ("int", "-2147483648", -(2**31)),
        ("long", "9223372036854775807", 2**63 - 1),
        ("long", "-0", 0),
        ("float", "0.1", float(np.float32(0.1))),
        ("float", "3.4028235e38", float(np.finfo(np.float32).max)),
        ("float", "16777217", 16777216.0),
        ("double", "0.1", 0.1),
        ("double", "1", 1.0),
        ("double", "1e-400", 0.0),
        ("decimal(12,2)", "12.30", Decimal("12.30")),
        ("decimal(12,2)", '"12.30"', Decimal("12.30")),
        ("decimal(12,2)", "12.300", Decimal("12.30")),
        ("decimal(12,2)", "1.23e1", Decimal("12.30")),
        ("decimal(12,2)", "-9999999999.99", Decimal("-9999999999.99")),
        ("decimal(17,16)", "0.1000000000000000", Decimal("0.1")),
        (
            "decimal(38,10)",
            "1234567890123456789012345678.0123456789",
            Decimal("1234567890123456789012345678.0123456789"),
        ),
        ("decimal(12,2)", "1." + "0" * 60, Decimal(1)),
        ("decimal(12,2)", "0e50", Decimal(0)),
        ("decimal(38,38)", "1e-38", Decimal("1e-38")),
        ("date", '"2024-02-29"', dt.date(2024, 2, 29)),
        ("time", '"23:59:59.999999"', dt.time(23, 59, 59, 999999)),
        ("time", '"12:30"', dt.time(12, 30)),
        ("timestamp", '"2026-01-31T23:59:59.5"', dt.datetime(2026, 1, 31, 23, 59, 59, 500000)),
        ("timestamp", '"2026-01-31 23:59"', dt.datetime(2026, 1, 31, 23, 59)),
        ("timestamp", '"2026-01-31"', dt.datetime(2026, 1, 31)),
        ("timestamptz", '"2026-01-31T00:00:00Z"', dt.datetime(2026, 1, 31, tzinfo=UTC)),
        ("timestamptz", '"2026-01-31T00:00:00+05:30"', dt.datetime(2026, 1, 30, 18, 30, tzinfo=UTC)),
        ("timestamptz", '"2026-01-31T00:00:00-0800"', dt.datetime(2026, 1, 31, 8, tzinfo=UTC)),
        ("timestamptz", '"2026-01-31t00:00:00z"', dt.datetime(2026, 1, 31, tzinfo=UTC)),
        ("timestamptz", '"0001-01-01T00:00:00Z"', dt.datetime(1, 1, 1, tzinfo=UTC)),
        ("timestamptz", '"9999-12-31T23:59:59.999999Z"', dt.datetime.max.replace(tzinfo=UTC)),
        ({"type": "timestamptz", "from": "epoch_ms"}, "1769817600123", dt.datetime(2026, 1, 31, 0, 0, 0, 123000, UTC)),
        ({"type": "timestamptz", "from": "epoch_s"}, "1769817600", dt.datetime(2026, 1, 31, tzinfo=UTC)),
        ({"type": "timestamp", "from": "epoch_s"}, "-62135596800", dt.datetime(1, 1, 1)),
        ({"type": "timestamp", "from": "epoch_s"}, "253402300799", dt.datetime(9999, 12, 31, 23, 59, 59)),
        ({"type": "timestamptz", "from": "epoch_us"}, "-1", dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
        ({"type": "timestamp", "from": "epoch_ms"}, "0", dt.datetime(1970, 1, 1)),
        ({"type": "timestamp", "from": "epoch_us"}, "253402300799999999", dt.datetime.max),
        ("string", '"\\ud83d\\ude00 \\" \\u00e9 é"', '😀 " é é'),
        ("string", '""', ""),
        ("binary", '"AAH/"', b"\x00\x01\xff"),
        ("binary", '""', b""),
        ("uuid", '"F81D4FAE-7dec-11d0-a765-00a0c91e6bf6"', UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6").bytes),
        ("list<int>", "[1, null]", [1, None]),
        ("list<list<date>>", '[[], null, ["2026-01-31"]]', [[], None, [dt.date(2026, 1, 31)]]),
        (
            "map<string, decimal(3,1)>",
            '{"a": 1.5, "b": null, "": "2"}',
            [("a", Decimal("1.5")), ("b", None), ("", Decimal(2))],
        ),
        ("map<int, string>", '{"-7": "x"}', [(-7, "x")]),
        ("map<date, int>", '{"2026-01-31": 1}', [(dt.date(2026, 1, 31), 1)]),
        ("map<decimal(3,1), int>", '{"1": 1}', [(Decimal("1.0"), 1)]),
        (
            "struct<a: int, b: struct<c: timestamptz>>",
            '{"b": {"c": "2026-01-31T00:00:00Z"}}',
            {"a": None, "b": {"c": dt.datetime(2026, 1, 31, tzinfo=UTC)}},
        ),
        ("struct<a: int, b: struct<c: int>>", "{}", {"a": None, "b": None}),
        ("struct<a: string>", '{"a": "\\u0000"}', {"a": "\x00"}),
        ("list<int>", "null", None),
        ("decimal(5,2)", "null", None),
    ],
)
def test_a_value_that_fits_is_kept_exactly(column, text, meant):
    assert value(column, text) == meant


@pytest.mark.parametrize("column", ["timestamp", "timestamptz", "time", "list<timestamptz>"])
def test_digits_below_a_microsecond_are_cut_off(column):
    zone = "Z" if column.endswith(("tz", "tz>")) else ""
    day = "" if column == "time" else "2026-01-31T"
    text = [f'"{day}23:59:59.123456{more}{zone}"' for more in ("", "7", "999", "000")]
    text = [f"[{t}]" for t in text] if column.startswith("list") else text

    assert len({str(value(column, t)) for t in text}) == 1


@pytest.mark.parametrize(
    ("column", "text", "reason", "detail"),
    [
        ("int", "1.0", "wrong_type", "`x`: expected integer, got number"),
        ("long", "1e3", "wrong_type", "`x`: expected integer, got number"),
        ("long", '"1"', "wrong_type", "`x`: expected integer, got string"),
        ("int", "true", "wrong_type", "`x`: expected integer, got boolean"),
        ("boolean", "1", "wrong_type", "`x`: expected boolean, got integer"),
        ("double", '"1"', "wrong_type", "`x`: expected number, got string"),
        ("string", "1", "wrong_type", "`x`: expected string, got integer"),
        ("list<int>", "{}", "wrong_type", "`x`: expected array, got object"),
        ("struct<a: int>", "[]", "wrong_type", "`x`: expected object, got array"),
        ("decimal(5,2)", "true", "wrong_type", "`x`: expected a number for decimal(5, 2), got boolean"),
        ("decimal(5,2)", "[1]", "wrong_type", "`x`: expected a number for decimal(5, 2), got array"),
        ("decimal(5,2)", '"NaN"', "wrong_type", "`x`: expected a number for decimal(5, 2), got '\"NaN\"'"),
        ("decimal(5,2)", '"null"', "wrong_type", "`x`: expected a number for decimal(5, 2), got '\"null\"'"),
        ("decimal(5,2)", '""', "wrong_type", "`x`: expected a number for decimal(5, 2), got '\"\"'"),
        ("decimal(5,2)", '"1_0"', "wrong_type", "`x`: expected a number for decimal(5, 2), got '\"1_0\"'"),
        (
            "date",
            '"2026-02-30"',
            "wrong_type",
            "`x`: expected a date such as 2026-01-31, years 1 to 9999, got '2026-02-30'",
        ),
        (
            "date",
            '"2026-01-31T00:00:00"',
            "wrong_type",
            "`x`: expected a date such as 2026-01-31, years 1 to 9999, got '2026-01-31T00:00:00'",
        ),
        (
            "time",
            '"24:00:00"',
            "wrong_type",
            "`x`: expected a time such as 23:59:59.123456, without offset, got '24:00:00'",
        ),
        (
            "time",
            '"12:00Z"',
            "wrong_type",
            "`x`: expected a time such as 23:59:59.123456, without offset, got '12:00Z'",
        ),
        (
            "timestamptz",
            '"2026-01-31T00:00:00"',
            "wrong_type",
            "`x`: expected a timestamp with its offset such as "
            "2026-01-31T23:59:59.123456Z, years 1 to 9999, got '2026-01-31T00:00:00'",
        ),
        (
            "timestamp",
            '"2026-01-31T00:00:00Z"',
            "wrong_type",
            "`x`: expected a timestamp such as 2026-01-31T23:59:59.123456, "
            "without offset, years 1 to 9999, got '2026-01-31T00:00:00Z'",
        ),
        ("timestamptz", "1769817600", "wrong_type", "`x`: expected string, got integer"),
        ("long", "9" * 5000, "out_of_range", "`x`: the number does not fit"),
        ({"type": "timestamptz", "from": "epoch_ms"}, '"1"', "wrong_type", "`x`: expected integer, got string"),
        (
            "uuid",
            '"f81d4fae7dec11d0a76500a0c91e6bf6"',
            "wrong_type",
            "`x`: expected a uuid such as f81d4fae-7dec-11d0-a765-00a0c91e6bf6, got 'f81d4fae7dec11d0a76500a0c91e6bf6'",
        ),
        (
            "uuid",
            '"f81d4fae-7dec-11d0-a765-00a0c91e6bfg"',
            "wrong_type",
            "`x`: expected a uuid such as "
            "f81d4fae-7dec-11d0-a765-00a0c91e6bf6, got 'f81d4fae-7dec-11d0-a765-00a0c91e6bfg'",
        ),
        ("binary", '"AA"', "wrong_type", "`x`: invalid base64 encoded string"),
        ("binary", "1", "wrong_type", "`x`: expected string, got integer"),
        ("binary", '"AB=="', "wrong_type", "`x`: base64 whose last letter has bits that no byte takes, got 'AB=='"),
        (
            "binary",
            r'"AA\u0042\u003d"',
            "wrong_type",
            "`x`: base64 whose last letter has bits that no byte takes, got 'AAB='",
        ),
        (
            "list<binary>",
            '["AA==", "/x=="]',
            "wrong_type",
            "`x[...]`: base64 whose last letter has bits that no byte takes, got '/x=='",
        ),
        ("int", "2147483648", "out_of_range", "`x`: expected integer <= 2147483647, got a larger one"),
        (
            "long",
            "-99999999999999999999",
            "out_of_range",
            "`x`: expected integer >= -9223372036854775808, got a smaller one",
        ),
        ("float", "3.5e38", "out_of_range", "`x`: 3.5e+38 does not fit float"),
        ("double", "1e400", "out_of_range", "`x`: the number does not fit"),
        ("decimal(5,2)", "1000", "out_of_range", "`x`: '1000' does not fit decimal(5, 2) exactly"),
        (
            "decimal(38,24)",
            "48363842654553690014174488647355",
            "out_of_range",
            "`x`: '48363842654553690014174488647355' does not fit decimal(38, 24) exactly",
        ),
        ("decimal(5,2)", "1.005", "out_of_range", "`x`: '1.005' does not fit decimal(5, 2) exactly"),
        ("decimal(5,2)", '"1.005"', "out_of_range", "`x`: '1.005' does not fit decimal(5, 2) exactly"),
        ("decimal(5,2)", "1e999999999", "out_of_range", "`x`: '1e999999999' does not fit decimal(5, 2) exactly"),
        (
            "date",
            '"0000-12-31"',
            "out_of_range",
            "`x`: expected a date such as 2026-01-31, years 1 to 9999, got '0000-12-31'",
        ),
        (
            "timestamptz",
            '"9999-12-31T23:59:59-01:00"',
            "out_of_range",
            "`x`: expected a timestamp with its offset such as "
            "2026-01-31T23:59:59.123456Z, years 1 to 9999, got '9999-12-31T23:59:59-01:00'",
        ),
        (
            {"type": "timestamptz", "from": "epoch_ms"},
            "253402300800000",
            "out_of_range",
            "`x`: expected integer <= 253402300799999, got a larger one",
        ),
        ("string", '"a\\u0000b"', "out_of_range", "`x`: 'a\\x00b' holds U+0000, which the buffer cannot store"),
        ("list<int>", '[1, "2"]', "wrong_type", "`x[1]`: expected integer, got string"),
        ("list<decimal(5,2)>", "[1, 1.005]", "out_of_range", "`x[...]`: '1.005' does not fit decimal(5, 2) exactly"),
        (
            "struct<a: struct<b c: int>>".replace("b c", "`b c`"),
            '{"a": {"b c": 1.5}}',
            "wrong_type",
            "`x.a.b c`: expected integer, got number",
        ),
        (
            "list<struct<a: map<string, uuid>>>",
            '[{"a": {"k": "u"}}]',
            "wrong_type",
            "`x[...].a[...]`: expected a uuid such as f81d4fae-7dec-11d0-a765-00a0c91e6bf6, got 'u'",
        ),
        ("map<int, int>", '{"1.0": 1}', "wrong_type", "`x key`: expected the text of a whole number, got '1.0'"),
        ("map<int, int>", '{"0": 1, "-0": 2}', "wrong_type", "`x key`: expected the text of a whole number, got '-0'"),
        ("map<long, int>", r'{"\u002d0": 2}', "wrong_type", "`x key`: expected the text of a whole number, got '-0'"),
        ("map<long, int>", '{"+1": 1}', "wrong_type", "`x key`: expected the text of a whole number, got '+1'"),
        ("map<long, int>", '{"01": 1}', "wrong_type", "`x key`: expected the text of a whole number, got '01'"),
        ("map<long, int>", '{" 1": 1}', "wrong_type", "`x key`: expected the text of a whole number, got ' 1'"),
        ("map<int, int>", '{"2147483648": 1}', "out_of_range", "`x key`: '2147483648' does not fit int32"),
        (
            "map<date, int>",
            '{"today": 1}',
            "wrong_type",
            "`x key`: expected a date such as 2026-01-31, years 1 to 9999, got 'today'",
        ),
        ("map<decimal(2,1), int>", '{"": 1}', "wrong_type", "`x key`: expected a number for decimal(2, 1), got '\"\"'"),
        (
            "map<decimal(2,1), int>",
            '{"1": 1, "1.0": 2}',
            "wrong_type",
            "`x key`: two keys of the map are the same value",
        ),
        (
            "map<timestamptz, int>",
            '{"2026-01-31T00:00:00Z": 1, "2026-01-31T01:00:00+01:00": 2}',
            "wrong_type",
            "`x key`: two keys of the map are the same value",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_path(column, text, reason, detail):
    assert verdict(column, text) == (reason, detail)


@pytest.mark.parametrize(
    ("record", "detail"),
    [
        (b"{", "not JSON: Input data was truncated"),
        (b" ", "not JSON: Input data was truncated"),
        (b'{"x": 1,}', "not JSON: trailing comma in object (byte 8)"),
        (b'{"x": 01}', "not JSON: invalid number (byte 7)"),
        (b'{"x": NaN}', "not JSON: invalid character (byte 6)"),
        (b'{"x": -Infinity}', "not JSON: invalid character (byte 7)"),
        (b'{"y": Infinity}', "not JSON: invalid character (byte 6)"),
        (b'{"x": 1} {"x": 2}', "not JSON: trailing characters (byte 10)"),
        (b'{"x": "text"} garbage', "not JSON: trailing characters (byte 15)"),
        (b"\xef\xbb\xbf{}", "not JSON: it begins with a byte order mark, which JSON has none of"),
        (b'{"x": 1, "y": "\xff"}', "not UTF-8 at byte 15"),
        (b'{"y": "\xed\xa0\x80"}', "not UTF-8 at byte 7"),
        (b'{"y": "\\ud800"}', "not JSON: half of a surrogate pair, \\ud800, at byte 7 stands for no character"),
        (
            b'{"y": "\\ud83d\\ude00\\udE00"}',
            "not JSON: half of a surrogate pair, \\udE00, at byte 19 stands for no character",
        ),
        (b'{"y": "\\\\ud800", }', "not JSON: trailing comma in object (byte 17)"),
        (b"null", "not a JSON object, but null"),
        (b"[1]", "not a JSON object, but array"),
        (b"1", "not a JSON object, but integer"),
        (b"1.5", "not a JSON object, but number"),
        (b'"x"', "not a JSON object, but string"),
    ],
)
def test_what_is_no_json_object_is_malformed(record, detail):
    assert whole(record) == ("malformed", detail)


def test_a_record_without_value_is_named():
    assert whole(None) == ("null_value", "the record has no value")
    assert whole(b"") == ("null_value", "the value is empty")


@pytest.mark.parametrize("type_", ["long", "decimal(5,2)", "string", "timestamptz", "list<int>", "struct<a: int>"])
def test_a_required_field_is_there_and_not_null(type_):
    columns = {"x": {"type": type_, "required": True}, "y": "int"}

    assert whole(b'{"y": 1}', columns) == ("missing_field", "`x`: required, but missing")
    assert whole(b'{"x": null}', columns) == ("missing_field", "`x`: required, but null")


@pytest.mark.parametrize(
    "type_", ["long", "decimal(5,2)", "string", "timestamptz", "uuid", "list<int>", "map<int,int>"]
)
def test_an_optional_field_that_is_not_there_is_null(type_):
    rows = codec({"x": type_}).decode([b"{}", b'{"x": null}']).rows

    assert rows["x"].to_pylist() == [None, None]


def test_unknown_fields_are_ignored_or_refused_at_every_depth():
    columns = {"x": "list<struct<a: int>>"}
    records = [b'{"y": 1}', b'{"x": [{"a": 1, "b": 2}]}', b'{"x": [{"a": 1}]}']

    assert codec(columns).decode(records).rows.num_rows == 3
    strict = codec(columns, unknown_fields="quarantine").decode(records)

    assert [(r.index, r.reason, r.detail) for r in strict.refused] == [
        (0, Reason.UNKNOWN_FIELD, "`y`: no column or field has this name"),
        (1, Reason.UNKNOWN_FIELD, "`x[0].b`: no column or field has this name"),
    ]
    assert strict.accepted.tolist() == [2]


def test_a_value_above_the_limit_is_too_large_and_one_at_the_limit_is_not():
    record = b'{"x": 1}'.ljust(100)

    assert whole(record, value_bytes_max=99) == ("too_large", "the value has 100 bytes; at most 99 are decoded")
    assert codec({"x": "int"}, value_bytes_max=100).decode([record]).refused == []


def test_a_record_of_ten_megabytes_is_a_row():
    text = "é" * 5_000_000

    rows = codec({"x": "string"}).decode([json.dumps({"x": text}, ensure_ascii=False).encode(), b'{"x": "y"}']).rows

    assert rows["x"].to_pylist() == [text, "y"]


def test_nesting_is_limited_whatever_the_callers_stack_and_brackets_in_text_do_not_count():
    def nested(depth: int) -> bytes:
        return b'{"y": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"

    assert codec({"x": "int"}).decode([nested(NESTING_MAX)]).refused == []
    assert whole(nested(NESTING_MAX + 1)) == ("malformed", f"nested more than {NESTING_MAX} deep")
    assert whole(b'{"y": ' + b"[" * 1_000_000) == ("malformed", f"nested more than {NESTING_MAX} deep")
    assert codec({"x": "int"}).decode([b'{"y": "\\"' + b"[" * 1000 + b'"}']).refused == []


def test_the_last_of_two_fields_of_one_name_counts():
    assert codec({"x": "int"}).decode([b'{"x": 1, "x": 2}']).rows["x"].to_pylist() == [2]


@pytest.mark.parametrize(
    "name", ["order-id", "größe", "select", "class", "None", "f0", "a b", "a.b", "it's", "`", "_", "1"]
)
def test_any_field_name_works(name):
    columns = {"f1": "int", name: {"type": f"struct<`{name.replace('`', '``')}`: int>", "required": True}}
    record = {name: {name: 7}, "f1": 1}

    for ascii_only in (True, False):
        rows = codec(columns).decode([json.dumps(record, ensure_ascii=ascii_only).encode()]).rows
        assert rows.to_pylist() == [record]
    assert whole(json.dumps({name: {name: "7"}}).encode(), columns) == (
        "wrong_type",
        f"`{name}.{name}`: expected integer, got string",
    )


@pytest.mark.parametrize("size", [1_000, 100_000])
def test_the_detail_never_holds_a_big_value(size):
    details = [
        verdict("decimal(5,2)", "1" * size)[1],
        verdict("date", f'"{"1" * size}"')[1],
        verdict("string", '"' + "\\u0000" * size + '"')[1],
        whole(json.dumps({"y" * size: 1}).encode(), unknown_fields="quarantine")[1],
    ]

    assert details[0] == f"`x`: '{'1' * 60}'... ({size:,} characters) does not fit decimal(5, 2) exactly"
    assert max(map(len, details)) <= 300


def test_the_detail_can_be_stored_whatever_the_record_holds():
    record = json.dumps({"\x00\n\u202e": 1}).encode()

    assert whole(record, unknown_fields="quarantine") == (
        "unknown_field",
        "`\\x00\\n\\u202e`: no column or field has this name",
    )


def test_the_first_wrong_column_is_the_one_that_is_named():
    columns = {"a": "date", "b": "decimal(3,1)"}

    assert whole(b'{"b": 9.99, "a": "x"}', columns)[1].startswith("`a`: ")


def test_no_records_make_no_rows_of_the_right_columns():
    decoded = codec({"z": "list<int>", "a": {"type": "uuid", "required": True}}).decode([])

    assert decoded.rows.schema == pa.schema(
        [pa.field("z", pa.list_(pa.int32())), pa.field("a", pa.binary(16), nullable=False)]
    )
    assert (decoded.rows.num_rows, decoded.accepted.tolist(), decoded.refused) == (0, [], [])
    assert decoded.accepted.dtype == np.int64


def test_a_batch_of_many_chunks_keeps_its_order_and_is_one_chunk():
    count = 3 * CHUNK_RECORDS + 5
    records: list[bytes | None] = [f'{{"x": {i}, "y": "{i}.5"}}'.encode() for i in range(count)]
    bad = {0: None, CHUNK_RECORDS - 1: b"{", CHUNK_RECORDS: b'{"x": "a"}', count - 1: b'{"y": "1.55"}'}
    for index, record in bad.items():
        records[index] = record

    decoded = codec({"x": "long", "y": "decimal(9,1)"}).decode(records)

    good = [i for i in range(count) if i not in bad]
    assert [(r.index, r.reason.value) for r in decoded.refused] == [
        (0, "null_value"),
        (CHUNK_RECORDS - 1, "malformed"),
        (CHUNK_RECORDS, "wrong_type"),
        (count - 1, "out_of_range"),
    ]
    assert decoded.accepted.tolist() == good
    assert decoded.rows["x"].to_pylist() == good
    assert decoded.rows["y"].to_pylist() == [Decimal(f"{i}.5") for i in good]
    assert decoded.rows["x"].num_chunks == 1


def test_each_record_is_named_with_the_first_rule_that_it_breaks():
    columns = {
        "s": {"type": "struct<a: date, b: map<decimal(2,1), decimal(2,1)>, c: list<uuid>>", "required": True},
        "d": "date",
    }
    broken = [
        ('{"a": "x", "b": {"?": 1}}', "`s.a`"),
        ('{"a": null, "b": {"?": 1.23, "1": 1}}', "`s.b key`"),
        ('{"b": {"1": 1.23, "1.0": 1}}', "`s.b key`: two keys"),
        ('{"b": {"1": 1.23}, "c": ["u"]}', "`s.b[...]`"),
        ('{"c": [null, "u"]}', "`s.c[...]`"),
        ("null", "`s`: required, but null"),
        ("{}", "`d`"),
    ]

    for records in (broken, broken[::-1], *([one] for one in broken)):
        decoded = codec(columns).decode([f'{{"s": {struct}, "d": "x"}}'.encode() for struct, _ in records])
        assert len(decoded.refused) == len(records)
        for refused, (_, place) in zip(decoded.refused, records, strict=True):
            assert refused.detail.startswith(place)


def test_a_batch_in_which_every_record_is_bad_is_refused_record_by_record():
    decoded = codec({"x": "timestamptz"}).decode([b'{"x": "now"}'] * 3000)

    assert decoded.rows.num_rows == 0
    assert [r.index for r in decoded.refused] == list(range(3000))
    assert {r.reason for r in decoded.refused} == {Reason.WRONG_TYPE}


@pytest.mark.parametrize(
    ("kind", "fits", "misfits"),
    [
        ("float", ["3.4028235677973362e38", "-3.4028234663852886e38", "1e-400"], ["3.4028235677973366e38", "-1e39"]),
        ("decimal(4,2)", ["12.34", '"-12.3"', "0", '"007.10"', "1e1"], ["123.4", "1.234", '"1e99"', '"12.34', '"x"']),
        ("decimal(2,2)", ["0.12", '"-0.1"', "0"], ["1", "1.5", '"0.123"']),
        ("decimal(3,0)", ["123", '"-1"', "12e1", '"1."'], ["1234", "1.5"]),
    ],
)
def test_what_is_passed_over_quickly_beside_a_misfit_is_what_fits(kind: str, fits: list[str], misfits: list[str]):
    """One cell that does not fit has all others looked at by another rule than that which makes the column."""
    codec = JsonCodec([Column(name="v", type=parse_type(kind))])
    for bad in misfits:
        values = [f'{{"v":{cell}}}'.encode() for cell in [*fits, bad, *fits]]
        found = codec.decode(values)
        assert [one.index for one in found.refused] == [len(fits)], bad
        assert found.rows.equals(codec.decode([value for i, value in enumerate(values) if i != len(fits)]).rows)
