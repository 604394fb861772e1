"""Rows as JSON, CSV, Parquet and text."""

from __future__ import annotations

import io
import json
import math
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness_pipelines.errors import UsageError
from harness_pipelines.show.output import to_json
from harness_pipelines.show.rows import json_rows, json_values, table_lines, text_lines, write

ID = uuid.UUID("123e4567-e89b-12d3-a456-426614174000")
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("amount", pa.decimal128(12, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("id", pa.binary(16)),
        ("tags", pa.list_(pa.string())),
        ("by", pa.map_(pa.int32(), pa.decimal128(5, 1))),
        ("in", pa.struct([("x", pa.float64())])),
    ]
)
ROW = {
    "n": 1,
    "amount": Decimal("1.10"),
    "day": date(2026, 1, 2),
    "at": datetime(2026, 1, 2, 3, tzinfo=UTC),
    "name": 'a "b", c',
    "raw": b"\x00\xff",
    "id": ID.bytes,
    "tags": ["x", None],
    "by": [(7, Decimal("2.5"))],
    "in": {"x": 0.5},
}
EXPECTED = {
    "n": 1,
    "amount": "1.10",
    "day": "2026-01-02",
    "at": "2026-01-02T03:00:00+00:00",
    "name": 'a "b", c',
    "raw": "00ff",
    "id": str(ID),
    "tags": ["x", None],
    "by": {"7": "2.5"},
    "in": {"x": 0.5},
}
NOTHING = dict.fromkeys(ROW)


def written(form: str, rows: list[dict[str, object]]) -> bytes:
    batches = [pa.RecordBatch.from_pylist([row], schema=SCHEMA) for row in rows]
    sink = io.BytesIO()
    assert write(pa.RecordBatchReader.from_batches(SCHEMA, batches), form, sink) == len(rows)
    return sink.getvalue()


def test_json_rows_keep_every_digit_and_every_null():
    rows = pa.Table.from_pylist([ROW, NOTHING], schema=SCHEMA)

    assert list(json_rows(rows)) == [EXPECTED, NOTHING]


def test_json_is_one_array_with_one_row_per_line():
    text = written("json", [ROW, NOTHING]).decode()

    assert json.loads(text) == [EXPECTED, NOTHING]
    assert len(text.splitlines()) == 4


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_no_rows_are_still_a_whole_file(form):
    text = written(form, [])

    assert text
    if form == "json":
        assert json.loads(text) == []


def test_csv_tells_null_from_empty_and_writes_nested_values_as_json():
    lines = written("csv", [ROW, {**NOTHING, "name": ""}]).decode().splitlines()

    assert lines[0].replace('"', "") == ",".join(SCHEMA.names)
    assert '"a ""b"", c"' in lines[1]
    assert '"[""x"",null]"' in lines[1]
    assert lines[2] == ',,,,"",,,,,'


def test_parquet_has_the_rows_as_they_are():
    found = pq.read_table(io.BytesIO(written("parquet", [ROW, NOTHING])))

    assert found.equals(pa.Table.from_pylist([ROW, NOTHING], schema=SCHEMA))


def test_a_table_aligns_numbers_right_and_cuts_long_cells():
    rows = pa.table({"n": [5, 12345], "text": ["x" * 100, None]})

    assert table_lines(rows) == [
        "    n  text",
        "-----  " + "-" * 60,
        "    5  " + "x" * 59 + "…",
        "12345  NULL",
    ]


def test_a_cell_cannot_move_the_cursor_and_wide_letters_count_twice():
    lines = text_lines(["a", "b"], [("\x1b[2J", 1), ("東京", 22)])

    assert "\x1b" not in "".join(lines)
    assert lines[-1] == "東京     22"


def test_numbers_that_json_does_not_have_are_named_by_every_command():
    odd = [math.nan, math.inf, -math.inf, -0.0, None, 1.5]
    rows = pa.table(
        {
            "d": pa.array(odd, pa.float64()),
            "f": pa.array(odd, pa.float32()),
            "l": pa.array([[value] for value in odd], pa.list_(pa.float32())),
        }
    )
    named = ["NaN", "Infinity", "-Infinity", -0.0, None, 1.5]
    sink = io.BytesIO()

    write(rows.to_reader(), "json", sink)

    assert [row["d"] for row in json_rows(rows)] == named
    assert [row["f"] for row in json_rows(rows)] == named
    assert [row["l"] for row in json_rows(rows)] == [[value] for value in named]
    assert [row["d"] for row in json.loads(sink.getvalue())] == named
    assert json.loads(to_json({"rows": [{"d": value} for value in odd]}))["rows"] == [{"d": value} for value in named]


def test_a_short_float_has_its_own_digits_not_those_of_a_double():
    rows = pa.table({"f": pa.array([3.14], pa.float32()), "l": pa.array([[0.1]], pa.list_(pa.float32()))})

    assert list(json_rows(rows)) == [{"f": 3.14, "l": [0.1]}]


NESTED = pa.map_(pa.string(), pa.list_(pa.struct([("day", pa.date32()), ("by", pa.map_(pa.int32(), pa.float32()))])))
FAR = 200_000_000  #: days: no year that Python has


def test_values_inside_of_others_are_those_of_a_column_whatever_part_of_it_is_asked_for():
    values: list[Any] = [
        [("a", [{"day": FAR, "by": [(1, 0.1), (2, math.nan)]}, None, {"day": None, "by": None}])],
        None,
        [],
        [("b", None), ("c", [])],
        [("d", [{"day": 0, "by": [(7, None)]}])],
    ]
    column = pa.array(values, NESTED)
    found = json_values(column)
    assert found[0]["a"][0]["by"] == {"1": 0.1, "2": "NaN"}
    assert found[0]["a"][1:] == [None, {"day": None, "by": None}]
    assert found[1:] == [None, {}, {"b": None, "c": []}, {"d": [{"day": "1970-01-01", "by": {"7": None}}]}]
    for low in range(len(values)):
        for size in range(len(values) - low + 1):
            assert json_values(column.slice(low, size)) == found[low : low + size]
    assert json_values(pa.chunked_array([column, column.slice(3)])) == [*found, *found[3:]]


def test_what_only_other_engines_make_is_written_in_every_form_or_refused_by_name():
    rows = pa.table(
        {
            "took": pa.array([pa.MonthDayNano([1, 2, 3_500_000_000]), None]),
            "none": pa.nulls(2),
            "two": pa.array([[1, 2], None], pa.list_(pa.int32(), 2)),
        }
    )
    assert [row["took"] for row in json_rows(rows)] == ["P1M2DT3.5S", None]
    assert "P1M2DT3.5S" in table_lines(rows)[2]
    for form, said in (("csv", b'"P1M2DT3.5S",,"[1,2]"'), ("json", b'"took":"P1M2DT3.5S"')):
        sink = io.BytesIO()
        write(rows.to_reader(), form, sink)
        assert said in sink.getvalue()
    with pytest.raises(UsageError, match="VARCHAR"):
        write(rows.to_reader(), "parquet", io.BytesIO())


def test_a_struct_whose_fields_have_one_name_is_a_list():
    kind = pa.struct([pa.field("", pa.int64()), pa.field("", pa.int64())])
    one = pa.array([1], pa.int64())
    column = pa.StructArray.from_arrays([one, one], fields=list(kind))
    assert json_values(column) == [[1, 1]]
