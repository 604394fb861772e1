"""Storage types of user columns in a segment: Iceberg's physical values in cheap Postgres types.

Dates are days, times and timestamps are microseconds, decimals of up to 18 digits are unscaled integers: COPY, ADBC
and JDBC move them without text and without a calendar (the JDBC driver's shifts ten days of 1582). Lists, structs and
maps are JSON text (`nested_json`). A segment is internal: it is read through `segment_rows` + `from_copy` (Arrow) or by
an engine through `scans`, which give back exactly what `to_copy` was given.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from psycopg import sql

from harness_pipelines.buffers.postgres.nested_sql import projected_json
from harness_pipelines.buffers.postgres.wide_rows import REST, beyond_page, packed, unpacked
from harness_pipelines.drivers.conform import unscaled_int64
from harness_pipelines.protocol.coordinates import (
    COORDINATES,
    OFFSET,
    OPERATION,
    PARTITION,
    SCHEMA_VERSION,
    STORED_COORDINATES,
    TIMESTAMP,
)
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.protocol.schema.nested_json import UUID_BYTES, decode_json, encode_json
from harness_pipelines.protocol.schema.schemas import Other
from harness_pipelines.spec.arrow import Named, arrow_type
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import INT64_DIGITS, parse_type

BUFFER_SCHEMA = "harness_buffer"
NAME_BYTES_MAX = 63  #: Postgres cuts longer identifiers off without an error
_SYSTEM_COLUMNS = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid", "oid"})


@lru_cache(maxsize=4096)
def stored_name(name: str) -> str:
    """The name of a column inside a segment: its own, unless Postgres cannot have a column of that name."""
    if name not in _SYSTEM_COLUMNS and len(name.encode()) <= NAME_BYTES_MAX:
        return name
    return f"_c_{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def rest_of(spec: TableSpec) -> tuple[str, ...]:
    """The columns of a table that have a place in `wide_rows.REST` of a segment that is made now."""
    first = {*spec.key, *spec.layout.columns}
    return beyond_page([(c.name, _stored_type(arrow_type(c.type))) for c in spec.columns], first)


def segment_ddl(
    name: str,
    columns: Sequence[Named],
    *,
    rest: Collection[str] = (),
    stores_op: bool = False,
    stores_schema: bool = False,
) -> sql.Composed:
    """Make a segment, without its index (see `segment_index`).

    *rest*: the columns that share one value. *stores_op*: the rows of a keyed table say whether they are puts or
    deletes; all others are puts. *stores_schema*: each row says which schema it was decoded with, as recalled ones do,
    which were together in no segment before.
    No vacuum: nothing in a segment is updated or deleted, it is dropped whole. It is the database's, not the worker's,
    whose triggers and row policies on it would run with the rights of its writers and readers.
    """
    parts = [(PARTITION, "integer NOT NULL"), (OFFSET, "bigint NOT NULL"), (TIMESTAMP, "timestamptz")]
    parts += [(OPERATION, "text NOT NULL")] if stores_op else []
    parts += [(SCHEMA_VERSION, "integer NOT NULL")] if stores_schema else []
    parts += [(stored_name(c.name), postgres_type(arrow_type(c.type))) for c in columns if c.name not in rest]
    parts += [(REST, "json NOT NULL")] if rest else []
    return sql.SQL("SELECT harness.segment_make({}, {}::jsonb)").format(
        sql.Literal(name), sql.Literal(json.dumps(parts))
    )


def segment_index(name: str) -> sql.Composed:
    """Make the index on a segment's coordinates if it is not there: reads of the newest rows in under 1 ms.

    Kept up row by row it costs half of a backlog's ingest rate, made at once about a sixth of that: make it when
    ingest has caught up or when the segment is closed. It waits for writers of the segment and blocks them meanwhile.
    """
    return _index(name, "coordinates", "btree", [PARTITION, OFFSET])


def segment_key_index(name: str, key: Sequence[Named]) -> sql.Composed:
    """Make the index by which rows of a *key* are found in a segment: 2 ms instead of 150 in 1 M rows.

    Kept up row by row it halves the rate once more, as `segment_index` says. It has the columns of bounded size; where
    there is none, the hash of the last one, because a B-tree refuses entries of some 2.7 kB, and ingest with them.
    """
    bounded = [c for c in key if arrow_type(c.type) not in (pa.string(), pa.binary())]
    if not bounded:
        return _index(name, "key", "hash", [stored_name(key[-1].name)])
    return _index(name, "key", "btree", [*(stored_name(c.name) for c in bounded), OFFSET])


def _index(name: str, suffix: str, kind: str, columns: list[str]) -> sql.Composed:
    return sql.SQL("SELECT harness.segment_index({}, {}, {}, {}::text[])").format(
        sql.Literal(name), sql.Literal(suffix), sql.Literal(kind), sql.Literal(columns)
    )


def segment_statistics(name: str, key: Sequence[Named]) -> sql.Composed:
    """ANALYZE of a *key* in a segment: without it Postgres reads the segment through for a hundred keys."""
    return sql.SQL("SELECT harness.segment_statistics({}, {}::text[])").format(
        sql.Literal(name), sql.Literal([stored_name(c.name) for c in key])
    )


def postgres_type(kind: pa.DataType) -> str:
    if pa.types.is_nested(kind):
        return "text"
    if pa.types.is_decimal(kind):
        return "bigint" if kind.precision <= INT64_DIGITS else f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return "bigint"
    return _POSTGRES[kind]


_POSTGRES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.date32(): "integer",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.binary(UUID_BYTES): "uuid",
}

#: Numbers of types that `_physical` does not change.
_STORED_AS_THEY_ARE = frozenset(kind.id for kind in (pa.bool_(), pa.int32(), pa.int64(), pa.string(), pa.binary()))


def to_copy(table: pa.Table, rest: Sequence[str] = ()) -> pa.Table:
    """The form of *table* (coordinates and user columns) that binary COPY into a segment with this *rest* takes.

    `_kafka_timestamp` stays a timestamp. Strings must not hold U+0000, which Postgres cannot store: codecs refuse it.
    """
    names, columns, beyond = [], [], frozenset(rest)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name in beyond:
            continue
        is_same = column.type.id in _STORED_AS_THEY_ARE or name in COORDINATES
        names.append(stored_name(name))
        columns.append(column if is_same else _mapped(column, _physical))
    if rest:
        columns.append(packed([_mapped(table.column(name), _physical) for name in rest], rows=table.num_rows))
        names.append(REST)
    return pa.Table.from_arrays(columns, names=names)


def from_copy(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Turn what ADBC read from a segment into *schema*; columns are matched by position."""
    columns = [
        _mapped(column, lambda array, kind=field.type: _logical(array, kind), kind=field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.table(columns, schema=schema)


def from_rows(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """The same of a few rows that psycopg read; it makes objects of UUIDs and long decimals."""
    columns = [_logical(_few([row[i] for row in rows], field), field.type) for i, field in enumerate(schema)]
    return pa.table(columns, schema=schema)


def _few(values: list[Any], field: pa.Field) -> pa.Array:
    if field.type == pa.binary(UUID_BYTES):
        values = [value and value.bytes for value in values]
    return pa.array(values, type=field.type if field.name == TIMESTAMP else _stored_type(field.type))


@lru_cache(maxsize=256)
def _stored_type(kind: pa.DataType) -> pa.DataType:
    return _physical(pa.array([], type=kind)).type


def _mapped(column: pa.ChunkedArray, change: object, kind: pa.DataType | None = None) -> pa.ChunkedArray:
    assert callable(change)
    chunks = [change(chunk) for chunk in column.chunks]
    if not chunks:
        return pa.chunked_array([], type=kind or change(pa.array([], type=column.type)).type)
    return pa.chunked_array(chunks)


def _physical(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_nested(kind):
        return encode_json(array)
    if pa.types.is_date32(kind):
        return array.view(pa.int32())
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return array.view(pa.int64())
    if pa.types.is_decimal(kind) and kind.precision <= INT64_DIGITS:
        return unscaled_int64(array)
    return array


def _logical(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_nested(kind):
        return decode_json(array, kind)
    if isinstance(array, pa.ExtensionArray):  # uuid, and numeric as text
        array = array.storage
    if array.type == kind:
        return array
    if pa.types.is_decimal(kind) and pa.types.is_int64(array.type):
        validity, words = array.buffers()
        low = np.frombuffer(words, dtype="<i8")[: array.offset + len(array)]
        wide = np.empty((len(low), 2), dtype="<i8")
        wide[:, 0], wide[:, 1] = low, low >> 63
        buffers = [validity, pa.py_buffer(wide)]
        return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, array.offset)
    if (
        pa.types.is_date32(kind)
        or pa.types.is_time64(kind)
        or (pa.types.is_timestamp(kind) and pa.types.is_int64(array.type))
    ):
        return array.view(kind)
    return array.cast(kind)


def segment_rows(
    wanted: pa.Schema, segment: SegmentRef, *, condition: sql.Composable | None = None, stores_op: bool = False
) -> sql.Composed:
    """SELECT of the columns *wanted* (coordinates too) of *segment*, for `from_copy`.

    *condition* names columns as *wanted* does; where the segment has others, they are renamed and widened below it,
    which Postgres sees through: its indexes serve the condition all the same.
    """
    names = [_selected(name, segment, stores_op=stores_op) for name in wanted.names]
    told = {one.name: one for one in segment.others}
    source: sql.Composable = sql.Identifier(BUFFER_SCHEMA, segment.name)
    if segment.packed:
        there = dict(_there(f, told.get(f.name)) for f in wanted if f.name not in COORDINATES)
        source = unpacked(source, there, [stored_name(name) for name in segment.packed])
    if segment.others:
        beside = [*([OPERATION] if stores_op else []), *([SCHEMA_VERSION] if segment.schema_version is None else [])]
        inside: list[sql.Composable] = [sql.Identifier(name) for name in (*STORED_COORDINATES, *beside)]
        inside += [_in_schema(f, told.get(f.name)) for f in wanted if f.name not in COORDINATES]
        source = sql.SQL("(SELECT {} FROM {}) AS in_schema").format(sql.SQL(", ").join(inside), source)
    where = sql.SQL(" WHERE {}").format(condition) if condition is not None else sql.SQL("")
    return sql.SQL("SELECT {} FROM {}{}").format(sql.SQL(", ").join(names), source, where)


def _selected(name: str, segment: SegmentRef, *, stores_op: bool) -> sql.Composed:
    if name == OPERATION and not stores_op:
        return sql.SQL("'put'::text AS {}").format(sql.Identifier(name))
    if name == SCHEMA_VERSION and segment.schema_version is not None:
        return sql.SQL("{}::integer AS {}").format(sql.Literal(segment.schema_version), sql.Identifier(name))
    return sql.Composed([sql.Identifier(stored_name(name))])


def _there(wanted: pa.Field, there: Other | None) -> tuple[str, str]:
    """Name and type in Postgres of what a segment has for the column *wanted*; no name where it has nothing."""
    if there is None:
        return stored_name(wanted.name), postgres_type(wanted.type)
    return stored_name(there.stored) if there.stored else "", postgres_type(_kind_there(wanted, there))


def _kind_there(wanted: pa.Field, there: Other) -> pa.DataType:
    return wanted.type if there.type is None else arrow_type(parse_type(there.type))


def _in_schema(wanted: pa.Field, there: Other | None) -> sql.Composed:
    """A column of a segment of another schema under the name, and in the physical type, that is asked for."""
    name = sql.Identifier(stored_name(wanted.name))
    if there is None:
        return sql.Composed([name])
    physical = sql.SQL(postgres_type(wanted.type))
    if there.stored is None:
        return sql.SQL("NULL::{} AS {}").format(physical, name)
    value: sql.Composable = sql.Identifier(stored_name(there.stored))
    kind = _kind_there(wanted, there)
    if pa.types.is_nested(kind):
        value = value if there.type is None else projected_json(value, kind, wanted.type)
        return sql.SQL("{} AS {}").format(value, name)
    if pa.types.is_decimal(kind) and kind.precision <= INT64_DIGITS < wanted.type.precision:
        value = sql.SQL("({} * {}::numeric)").format(value, sql.Literal(f"1e-{kind.scale}"))
    return sql.SQL("{}::{} AS {}").format(value, physical, name)
