"""Chunks: rows that the lake does not have, each a small Parquet file with the columns and field ids of the views."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.lakes.iceberg.checked_io import KEPT
from harness_pipelines.lakes.iceberg.cuts.folder import Place
from harness_pipelines.lakes.iceberg.cuts.manifests import DATA, DELETES, Entry, Stamp, Told, told_of_file
from harness_pipelines.lakes.iceberg.cuts.shape import CutShape
from harness_pipelines.lakes.iceberg.parquet import damage_named, parquet_file, write_rows
from harness_pipelines.lakes.iceberg.read.field_ids import FIELD_ID, by_field_ids
from harness_pipelines.ports.errors import LakeFileBroken, LakeFileMissing, LakeUnreadable
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.serving.cuts import CutImpossible
from harness_pipelines.protocol.coordinates import OFFSET, PARTITION
from harness_pipelines.protocol.cuts import Chunk
from harness_pipelines.protocol.lake.file_digests import FileDamaged
from harness_pipelines.protocol.reading.narrowing import Ranges
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.protocol.reading.selection import table_columns
from harness_pipelines.spec.types import lake_fields

_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")
#: Of the file of a chunk whose rows stay in memory once they were written or read: most cuts write these again, with
#: new ones, while a chunk is small.
SMALL_BYTES = 2**20
SNAPSHOT = "snapshot"  #: in a chunk's entry: the id of the snapshot that named it first; it has none before


def write_chunk(
    table: TableRow, place: Place, shape: CutShape, rows: pa.Table, *, ranges: Ranges, maker: str, sequence: int
) -> Chunk:
    """Write *rows* as one file, by partition and offset. Raises: CutImpossible, OSError, StoreRefused."""
    ordered = _in_order(rows)
    _check_inside(table, ordered, ranges)
    path, sink = place.data_file("chunk"), pa.BufferOutputStream()
    told = write_rows(
        _stored(table, shape, ordered), sink, schema=shape.arrow, statistics=shape.statistics, ids=shape.ids_by_path
    ).to_serialized_dict()
    size = place.put(path, sink.getvalue().to_pybytes())
    if size <= SMALL_BYTES:
        _kept_rows(path, table.schema_version, lambda: ordered)
    entry: dict[str, Any] = {"path": path, "rows": rows.num_rows, "bytes": size}
    entry |= {name: {str(i): count for i, count in (told.get(name) or {}).items()} for name in _COUNTS}
    entry |= {name: {str(i): bound.hex() for i, bound in (told.get(name) or {}).items()} for name in _BOUNDS}
    return Chunk(
        path=path,
        ranges=dict(ranges),
        rows=rows.num_rows,
        bytes=size,
        sequence=sequence,
        maker=maker,
        entry=orjson.dumps(entry).decode(),
    )


def _in_order(rows: pa.Table) -> pa.Table:
    partition, offset = _coordinates(rows)
    step = np.diff(partition)
    if np.all((step > 0) | ((step == 0) & (np.diff(offset) > 0))):
        return rows
    return rows.take(pa.array(np.lexsort((offset, partition))))


def _coordinates(rows: pa.Table) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return rows.column(PARTITION).to_numpy().astype(np.int64), rows.column(OFFSET).to_numpy()


def _check_inside(table: TableRow, rows: pa.Table, ranges: Ranges) -> None:
    """Each row at a place in *ranges*, no two at the same one; a later cut trusts that."""
    partition, offset = _coordinates(rows)
    inside = np.zeros(rows.num_rows, np.bool_)
    for one, (low, high) in ranges.items():
        inside |= (partition == one) & (low <= offset) & (offset < high)
    twice = (np.diff(partition) == 0) & (np.diff(offset) == 0)
    if not np.all(inside) or np.any(twice):
        at = int(np.argmin(inside)) if not np.all(inside) else int(np.argmax(twice))
        raise CutImpossible(
            f"{table.name}: of the rows of {dict(ranges)} one is at partition {partition[at]}, offset {offset[at]}"
            f"{', twice' if np.all(inside) else ''}; no chunk was written"
        )


def _stored(table: TableRow, shape: CutShape, rows: pa.Table) -> pa.Table:
    """*rows* in the columns and types of the views."""
    named = {int(field["id"]): str(field["name"]) for field in table.fields}
    columns = [rows.column(named.get(field.field_id, field.name)) for field in shape.schema.fields]
    return shape.stored_rows(pa.table(columns, names=shape.named.names))


def data_file_of(entry: str) -> DataFile:
    """The file that a chunk's entry speaks of, as a manifest names it."""
    told = orjson.loads(entry)
    counts: dict[str, Any] = {name: {int(i): count for i, count in told[name].items()} for name in _COUNTS}
    bounds: dict[str, Any] = {
        name: {int(i): bytes.fromhex(bound) for i, bound in told[name].items()} for name in _BOUNDS
    }
    return DataFile.from_args(
        content=DataFileContent(told.get("content", DATA)),
        file_path=told["path"],
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=told["rows"],
        file_size_in_bytes=told["bytes"],
        **counts,
        **bounds,
    )


def named_by(chunks: Iterable[Chunk], stamp: Stamp) -> tuple[Chunk, ...]:
    """*chunks* as the cut of *stamp* leaves them: it is the first one to name those that are new."""
    return tuple(_named(chunk, stamp) for chunk in chunks)


def _named(chunk: Chunk, stamp: Stamp) -> Chunk:
    told = orjson.loads(chunk.entry)
    if told["path"] != chunk.path:
        raise ValueError(f"{chunk.path} has the entry of {told['path']}")
    if SNAPSHOT in told:
        return chunk
    entry = orjson.dumps({**told, SNAPSHOT: stamp.snapshot}).decode()
    return replace(chunk, sequence=stamp.sequence, entry=entry)


def entries_of_chunks(chunks: Sequence[Chunk], stamp: Stamp) -> list[list[Entry]]:
    """The entries of *chunks*, of `named_by`, for each manifest of a cut: of rows, and of what hides some.

    A chunk without rows has none.
    """
    found = [_entry(chunk, stamp) for chunk in chunks if chunk.rows]
    manifests = ([entry for entry in found if entry.content == content] for content in (DATA, DELETES))
    return [entries for entries in manifests if entries]


def _entry(chunk: Chunk, stamp: Stamp) -> Entry:
    """The entry of a chunk. What it says of the file is encoded once, not for each cut that names it again."""
    snapshot = orjson.loads(chunk.entry)[SNAPSHOT]
    is_new = snapshot == stamp.snapshot and chunk.sequence == stamp.sequence
    told = KEPT.get(
        chunk.entry, partial(_told, chunk.entry), kind="chunk", weigh=lambda one: len(chunk.entry) + len(one.encoded)
    )
    return told.entry(
        status=ManifestEntryStatus.ADDED if is_new else ManifestEntryStatus.EXISTING,
        stamp=Stamp(snapshot=snapshot, sequence=chunk.sequence),
    )


def _told(entry: str) -> Told:
    return told_of_file(data_file_of(entry), is_ours=True)


def read_chunk(io: FileIO, plan: ReadPlan, chunk: Chunk) -> pa.Table:
    """The rows of a chunk in the plan's columns and types. Raises: LakeFileMissing, LakeFileBroken, LakeUnreadable."""
    if chunk.bytes > SMALL_BYTES:
        return _read(io, plan, chunk)
    rows = _kept_rows(chunk.path, plan.schema_version, partial(_read, io, plan, chunk))
    columns = table_columns(plan)
    return conformed(rows.select(list(columns)), pa.schema([one.arrow for one in columns.values()]))


def _kept_rows(path: str, schema_version: int, make: Callable[[], pa.Table]) -> pa.Table:
    """Rows of a small chunk in the columns of a schema, all of its coordinates among them."""
    return KEPT.get(path, make, kind=f"rows, schema {schema_version}", weigh=pa.Table.get_total_buffer_size)


def _read(io: FileIO, plan: ReadPlan, chunk: Chunk) -> pa.Table:
    columns = table_columns(plan)
    with _named_errors(plan, chunk.path), damage_named(io, chunk.path):
        source = io.new_input(chunk.path)
        with source.open() as stream:
            rows = parquet_file(stream).read()
            size = len(source)
    if (size, rows.num_rows) != (chunk.bytes, chunk.rows):
        raise LakeFileBroken(
            f"{_said(plan)}: {chunk.path} has {rows.num_rows:,} rows in {size:,} bytes, and was written with "
            f"{chunk.rows:,} in {chunk.bytes:,}; nothing is returned"
        )
    places, types = _by_id(rows.schema), _types(orjson.dumps([dict(field) for field in plan.fields]))
    named = {one.name: places.get(one.field_id, one.name) for one in columns.values()}
    if missing := [name for name, place in named.items() if place not in rows.column_names]:
        raise LakeFileBroken(
            f"{_said(plan)}: {chunk.path} has no column {missing[0]!r}, and was written with it; nothing is returned"
        )
    found = [_shaped(rows.column(named[one.name]), types.get(one.field_id)) for one in columns.values()]
    return conformed(pa.table(found, names=list(columns)), pa.schema([one.arrow for one in columns.values()]))


@lru_cache(64)
def _types(fields: bytes) -> Mapping[int | None, IcebergType]:
    """Types of the user's nested columns by their ids."""
    schema = Schema.model_validate({"type": "struct", "fields": lake_fields(orjson.loads(fields))})
    return {field.field_id: field.field_type for field in schema.fields if not field.field_type.is_primitive}


def _shaped(column: pa.ChunkedArray, kind: IcebergType | None) -> pa.ChunkedArray:
    """*column* of a file with the names of *kind* inside of it, if it is nested."""
    if kind is None or not column.num_chunks:
        return column
    return pa.chunked_array([by_field_ids(chunk, kind) for chunk in column.chunks])


def _by_id(schema: pa.Schema) -> Mapping[int | None, str]:
    """Names of a file's columns by their field ids."""
    return {int((field.metadata or {}).get(FIELD_ID, -1)): field.name for field in schema}


def _said(plan: ReadPlan) -> str:
    return f"{plan.table}, version {plan.version}"


@contextmanager
def _named_errors(plan: ReadPlan, path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise LakeFileMissing(f"{_said(plan)}: {path} is gone ({error}); nothing is returned") from error
    except FileDamaged as error:  # it names the file
        raise LakeFileBroken(f"{_said(plan)}: chunk {error}; nothing is returned") from error
    except pa.ArrowException as error:
        raise LakeFileBroken(f"{_said(plan)}: chunk {path}: {error}; nothing is returned") from error
    except OSError as error:
        raise LakeUnreadable(f"{_said(plan)}: {path} cannot be read: {error}; nothing is returned") from error
