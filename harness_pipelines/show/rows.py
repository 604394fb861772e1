"""Rows as text, JSON, CSV or Parquet."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from datetime import date, time
from decimal import Decimal
from typing import Any, BinaryIO
from uuid import UUID

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from harness_pipelines.show.output import json_float, printable

CELL_CHARS_MAX = 60
UUID_BYTES = 16


def write(reader: pa.RecordBatchReader, form: str, sink: BinaryIO) -> int:
    """Write all rows of *reader* to *sink* as ``json``, ``csv`` or ``parquet``; return their number."""
    return {"json": _write_json, "csv": _write_csv, "parquet": _write_parquet}[form](reader, sink)


def _write_parquet(reader: pa.RecordBatchReader, sink: BinaryIO) -> int:
    count = 0
    with pa.parquet.ParquetWriter(sink, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


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
    kind = column.type
    if pa.types.is_decimal(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        return _text(column).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_timestamp(kind):
        return [None if value is None else value.isoformat() for value in _moments(column)]
    if pa.types.is_floating(kind):
        return _json_floats(column)
    values: list[Any] = column.to_pylist()
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return [_json_value(value, kind) for value in values]
    return values


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


def _json_value(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, float):
        return json_float(float(str(np.float32(value))) if pa.types.is_float32(kind) else value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if pa.types.is_map(kind):
        return {str(_json_value(k, kind.key_type)): _json_value(v, kind.item_type) for k, v in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_json_value(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _json_value(value[field.name], field.type) for field in kind}
    if isinstance(value, bytes):
        is_uuid = pa.types.is_fixed_size_binary(kind) and kind.byte_width == UUID_BYTES
        return str(UUID(bytes=value)) if is_uuid else value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _text(column: Any) -> Any:
    return pc.cast(column, pa.string())


def _flat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return *batch* with text in place of types that CSV does not have."""
    return pa.RecordBatch.from_arrays([_flat_column(c) for c in batch.columns], names=batch.schema.names)


def _flat_column(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_nested(kind):
        values = [None if v is None else orjson.dumps(v, default=str).decode() for v in json_values(column)]
        return pa.array(values, pa.string())
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.array(json_values(column), pa.string())
    if pa.types.is_timestamp(kind):
        return pa.array(json_values(column), pa.string())
    if pa.types.is_decimal(kind) or pa.types.is_time(kind):
        return _text(column)
    return column


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
