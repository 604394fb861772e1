"""Rows as text, JSON, CSV or Parquet."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from datetime import date, time
from decimal import Decimal
from itertools import islice, pairwise
from typing import Any, BinaryIO
from uuid import UUID

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from harness_pipelines.errors import UsageError
from harness_pipelines.show.output import json_float, printable

CELL_CHARS_MAX = 60
GROUP_ROWS, GROUP_BYTES = 65_536, 64 << 20  #: of a row group of Parquet
UUID_BYTES = 16
#: What PyArrow's CSV is written from as it is.
_CSV_TYPES = (
    pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_date,
    pa.types.is_string, pa.types.is_large_string, pa.types.is_dictionary,
)  # fmt: skip


def write(reader: pa.RecordBatchReader, form: str, sink: BinaryIO) -> int:
    """Write all rows of *reader* to *sink* as ``json``, ``csv`` or ``parquet``; return their number."""
    return {"json": _write_json, "csv": _write_csv, "parquet": _write_parquet}[form](reader, sink)


def _write_parquet(reader: pa.RecordBatchReader, sink: BinaryIO) -> int:
    count = 0
    try:
        made = pa.parquet.ParquetWriter(sink, reader.schema, compression="zstd")
    except pa.ArrowNotImplementedError as error:
        raise UsageError(f"Parquet has no form for a column of the result: {error}; cast it to VARCHAR") from error
    with made as writer:
        for rows in _row_groups(reader):
            writer.write_table(rows, row_group_size=rows.num_rows)
            count += rows.num_rows
    return count


def _row_groups(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """The rows in parts that are not small, however small batches are."""
    held: list[pa.RecordBatch] = []
    for batch in reader:
        held.append(batch)
        if sum(one.num_rows for one in held) >= GROUP_ROWS or sum(one.nbytes for one in held) >= GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _write_csv(reader: pa.RecordBatchReader, sink: BinaryIO) -> int:
    count = 0
    with _csv_writer(reader.schema, sink, header=True) as writer:
        for batch in reader:
            writer.write_batch(_flat(batch))
            count += batch.num_rows
    return count


def _csv_writer(schema: pa.Schema, sink: BinaryIO, *, header: bool) -> pa.csv.CSVWriter:
    """Write CSV with quotes where needed; nested values become JSON."""
    flat = _flat(pa.RecordBatch.from_pylist([], schema=schema)).schema
    options = pa.csv.WriteOptions(quoting_style="needed", include_header=header)
    return pa.csv.CSVWriter(sink, flat, write_options=options)


def _write_json(reader: pa.RecordBatchReader, sink: BinaryIO) -> int:
    """Write one array, one row per line."""
    count = 0
    sink.write(b"[")
    for batch in reader:
        for row in json_rows(batch):
            sink.write(b",\n" if count else b"\n")
            sink.write(_json_line(row))
            count += 1
    sink.write(b"\n]\n")
    return count


def _json_line(row: dict[str, Any]) -> bytes:
    return orjson.dumps(row, default=str, option=orjson.OPT_NON_STR_KEYS)


def json_lines(sink: BinaryIO) -> Callable[[pa.Table], None]:
    """Return a writer of rows to *sink*: one JSON object per line."""

    def write(rows: pa.Table) -> None:
        sink.writelines(_json_line(row) + b"\n" for row in json_rows(rows))

    return write


def csv_lines(sink: BinaryIO, *, header: bool) -> Callable[[pa.Table], None]:
    """Return a writer of rows of one schema to *sink* as CSV; with *header* the column names come first."""
    writer: pa.csv.CSVWriter | None = None

    def write(rows: pa.Table) -> None:
        nonlocal writer
        writer = writer or _csv_writer(rows.schema, sink, header=header)
        for batch in rows.to_batches():
            writer.write_batch(_flat(batch))

    return write


def json_rows(rows: pa.Table | pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield each row as plain JSON values.

    Decimals and uuids become text, bytes hex, times ISO 8601, maps objects. Numbers that JSON does not have become
    "NaN", "Infinity" and "-Infinity". A 32-bit float has the shortest digits that identify it, not those of a double.
    """
    names = rows.schema.names
    columns = [json_values(column) for column in rows.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def json_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column as JSON has them. Those inside of others are converted as those of a column."""
    kind = column.type
    if isinstance(column, pa.ChunkedArray) and pa.types.is_nested(kind):
        return [value for chunk in column.chunks for value in json_values(chunk)]
    if pa.types.is_decimal(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        return _text(column).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_timestamp(kind):
        return [None if value is None else value.isoformat() for value in _moments(column)]
    if pa.types.is_floating(kind):
        return _json_floats(column)
    if pa.types.is_map(kind):
        return _maps(column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists(column)
    if pa.types.is_struct(kind):
        names = kind.names
        rows = _rows_of(column)
        is_object = len(set(names)) == len(names)  # DuckDB has structs without names, and JSON no such objects
        return [None if row is None else dict(zip(names, row, strict=True)) if is_object else list(row) for row in rows]
    return [_json_value(value, kind) for value in column.to_pylist()]


def _json_floats(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    if pa.types.is_float64(column.type):
        values = column.to_pylist()
    else:
        values = [None if text is None else float(text) for text in _text(column).to_pylist()]
    return [None if value is None else json_float(value) for value in values]


def _moments(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the times of *column*. Old rows may have times outside of the years that Python supports."""
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):
        from harness_pipelines.formats.columns.times import kafka_times_us

        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        return kafka_times_us(whole).to_pylist()  # type: ignore[no-any-return]


def _lists(column: Any) -> list[Any]:
    values = iter(json_values(column.flatten()))  # of those lists that are there
    return [None if size is None else list(islice(values, size)) for size in column.value_lengths().to_pylist()]


def _maps(column: Any) -> list[Any]:
    offsets = column.offsets.to_pylist()  # into the keys and values of the array that this one may be a part of
    low, high = offsets[0], offsets[-1]
    keys, values = (json_values(part[low:high]) for part in (column.keys, column.items))
    pairs = [(str(key), value) for key, value in zip(keys, values, strict=True)]
    is_there = column.is_valid().to_pylist()
    ranges = zip(is_there, pairwise(offsets), strict=True)
    return [dict(pairs[begin - low : end - low]) if one else None for one, (begin, end) in ranges]


def _rows_of(column: Any) -> list[tuple[Any, ...] | None]:
    """The values of structs, by the order of their fields."""
    fields = [json_values(field) for field in column.flatten()]
    rows = list(zip(*fields, strict=True)) if fields else [()] * len(column)
    return [row if is_there else None for row, is_there in zip(rows, column.is_valid().to_pylist(), strict=True)]


def _json_value(value: Any, kind: pa.DataType) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, bytes):
        is_uuid = pa.types.is_fixed_size_binary(kind) and kind.byte_width == UUID_BYTES
        return str(UUID(bytes=value)) if is_uuid else value.hex()
    if isinstance(value, pa.MonthDayNano):
        return f"P{value.months}M{value.days}DT{Decimal(value.nanoseconds) / 10**9:f}S"
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _text(column: Any) -> Any:
    return pc.cast(column, pa.string())


def _flat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return *batch* with text in place of types that CSV does not have."""
    return pa.RecordBatch.from_arrays([_flat_column(c) for c in batch.columns], names=batch.schema.names)


def _flat_column(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_decimal(kind) or pa.types.is_time(kind):
        return _text(column)
    if any(is_one(kind) for is_one in _CSV_TYPES):
        return column
    values = json_values(column)
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        values = [None if v is None else orjson.dumps(v, default=str).decode() for v in values]
    return pa.array([None if v is None else str(v) for v in values], pa.string())


def table_lines(rows: pa.Table) -> list[str]:
    """Return rows as aligned columns with a header; numbers align right, long cells end with an ellipsis."""
    right = [_is_number(field.type) for field in rows.schema]
    return _aligned(rows.schema.names, [json_values(column) for column in rows.columns], right)


def text_lines(names: list[str], rows: list[tuple[Any, ...]]) -> list[str]:
    """Return rows of plain Python values as aligned columns."""
    columns = [[row[i] for row in rows] for i in range(len(names))]
    right = [all(v is None or isinstance(v, int | float | Decimal) for v in column) for column in columns]
    return _aligned(names, columns, right)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _aligned(names: list[str], columns: list[list[Any]], right: list[bool]) -> list[str]:
    shown = [[_cell(value) for value in column] for column in columns]
    widths = [max(map(_width, (name, *cells))) for name, cells in zip(names, shown, strict=True)]
    lines = [_line(names, widths, right), "  ".join("-" * width for width in widths)]
    return lines + [_line(cells, widths, right) for cells in zip(*shown, strict=True)]


def _line(cells: Iterable[str], widths: list[int], right: list[bool]) -> str:
    padded = []
    for cell, width, to_right in zip(cells, widths, right, strict=True):
        blank = " " * (width - _width(cell))
        padded.append(blank + cell if to_right else cell + blank)
    return "  ".join(padded).rstrip()


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    text = value if isinstance(value, str) else _shown(value)
    text = printable(text)
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"


def _shown(value: Any) -> str:
    if isinstance(value, Decimal | date | time):
        return str(value)
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _width(text: str) -> int:
    """Return the width of *text* on a terminal in cells."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
