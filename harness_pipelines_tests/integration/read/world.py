"""A table made by hand: an Iceberg view, segments and leases, and plans over them without a ledger's help."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from harness_pipelines.buffers.postgres.reader import BufferReader
from harness_pipelines.buffers.postgres.scans import PostgresScans
from harness_pipelines.buffers.postgres.types import segment_ddl, segment_index, to_copy
from harness_pipelines.lakes.iceberg.read.for_engines import IcebergScans
from harness_pipelines.lakes.iceberg.reads import IcebergReads
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.reading.plan import BufferPart, LakePart, ReadPlan, SegmentRef
from harness_pipelines.spec.arrow import COORDINATES, arrow_schema
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.types import Type, iceberg_fields, parse_type

#: Reads from a store are tested in `integration/tables` and `integration/stores`.
IN_A_FOLDER = pytest.mark.folder("the world writes its files by path, with contents that no writer gives them")

KEY = [("_kafka_partition", "ascending"), ("_kafka_offset", "ascending")]
STANDARD = {
    "id": "long",
    "amount": "decimal(12,2)",
    "status": "string",
    "at": "timestamptz",
    "ratio": "double",
    "key": "uuid",
    "clock": "time",
    "tags": "list<string>",
    "note": "string",
}
_COORDINATE_JSON = (
    ("_kafka_partition", "int", True),
    ("_kafka_offset", "long", True),
    ("_kafka_timestamp", "timestamptz", False),
    ("_op", "string", True),
    ("_schema_version", "int", True),
)


def columns_of(types: Mapping[str, str | Type]) -> list[Column]:
    return [Column(name=n, type=parse_type(t) if isinstance(t, str) else t) for n, t in types.items()]


def _swapped(json: Any, old: str, new: str) -> Any:
    """*json* of a schema with the type *new* wherever it has *old*."""
    if isinstance(json, dict):
        return {k: v if k == "name" else _swapped(v, old, new) for k, v in json.items()}
    if isinstance(json, list):
        return [_swapped(value, old, new) for value in json]
    return new if json == old else json


class World:
    """One table. Its `dsn` names a migrated database, its lake lies under *folder*."""

    def __init__(self, dsn: str, folder: Path, types: Mapping[str, str | Type] = STANDARD) -> None:
        self.dsn, self.folder = dsn, folder
        self.settings = Settings(home=folder, dsn=dsn)
        self.columns = columns_of(types)
        self.name = f"w{uuid.uuid4().hex[:10]}"
        self.pg = psycopg.connect(dsn, autocommit=True)
        self.buffer_reader, self.segment_scans = BufferReader(dsn), PostgresScans()
        self.lake_scans = IcebergScans()
        self.lake_reads = IcebergReads()
        self.segments: list[SegmentRef] = []
        self._seq = itertools.count(1)
        row = self.pg.execute(
            "INSERT INTO harness.tables (namespace, name, spec, cluster_id, topic, topic_id) "
            "VALUES ('w', %s, '{}', 'c', 't', 't') RETURNING table_id",
            [self.name],
        ).fetchone()
        assert row is not None
        self.table_id = int(row[0])
        self._make_view()

    def _make_view(self) -> None:
        # Spark has no `time` in Iceberg tables, so a view holds microseconds.
        user = _swapped(iceberg_fields(self.columns), "time", "long")
        first = 1 + sum(1 for _ in str(user))  # above every id that is taken
        coordinates = [
            {"id": first + i, "name": name, "type": kind, "required": required}
            for i, (name, kind, required) in enumerate(_COORDINATE_JSON)
        ]
        schema = Schema.model_validate({"type": "struct", "fields": [*user, *coordinates]})
        self.catalog = SqlCatalog(
            "memory", uri="sqlite:///:memory:", warehouse=self.folder.as_uri(), init_catalog_tables="true"
        )
        self.catalog.create_namespace("w")
        by_partition = PartitionField(
            source_id=first, field_id=1000, transform=IdentityTransform(), name="_kafka_partition"
        )
        spec = PartitionSpec(by_partition)
        self.view = self.catalog.create_table(("w", self.name), schema=schema, partition_spec=spec)
        shown = {c.name: str(c.type) for c in self.columns}
        stored = self.view.schema().model_dump(mode="json")["fields"]
        types = {f["name"]: f["type"] for f in iceberg_fields(self.columns)}
        self.fields = tuple({**f, "type": types[f["name"]]} for f in stored if f["name"] in shown)

    @property
    def schema(self) -> pa.Schema:
        return arrow_schema(self.columns, coordinates=True)

    def rows(self, user: pa.Table, partition: int, low: int) -> pa.Table:
        """*user* columns as rows of consecutive offsets from *low*."""
        n = user.num_rows
        offsets = np.arange(low, low + n)
        coordinates = {
            "_kafka_partition": pa.array(np.full(n, partition, dtype=np.int32)),
            "_kafka_offset": pa.array(offsets),
            "_kafka_timestamp": pa.array(1_700_000_000_000_000 + offsets * 1000).cast(pa.timestamp("us", "UTC")),
            "_op": pa.array(["put"] * n, pa.string()),
            "_schema_version": pa.array(np.ones(n, dtype=np.int32)),
        }
        arrays = [user.column(c.name).combine_chunks() for c in self.columns] + list(coordinates.values())
        return pa.table(arrays, schema=self.schema)

    def append_to_lake(self, *tables: pa.Table) -> None:
        """One snapshot with one file per table, each of one partition."""
        files = [self._write(table) for table in tables if table.num_rows]
        with self.view.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for file in files:
                append.append_data_file(file)

    def pin(self, metadata: str) -> None:
        """Let Spark find *metadata*, as it would a published version's: by a catalog row."""
        self.pg.execute(
            "INSERT INTO public.iceberg_tables (catalog_name, table_namespace, table_name, metadata_location) "
            "VALUES ('world', %s, %s, %s)",
            [self.name, uuid.uuid4().hex, metadata],
        )

    def _write(self, table: pa.Table) -> DataFile:
        """A data file as Iceberg's Java writers make it. (PyIceberg's writer loses a NULL list of structs.)"""
        schema = self.view.schema()
        plain = _swapped(schema.model_dump(mode="json"), "uuid", "fixed[16]")
        kept = sanitize_column_names(Schema.model_validate(plain))
        kind = schema_to_pyarrow(kept, include_field_ids=True)
        arrays = [stored_as(table.column(f.name), k.type) for f, k in zip(schema.fields, kind, strict=True)]
        path = self.folder / f"{uuid.uuid4().hex}.parquet"
        pq.write_table(pa.table(arrays, schema=kind), path, compression="zstd")
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=pq.read_metadata(path),
            stats_columns=compute_statistics_plan(kept, {}),
            parquet_column_mapping=parquet_path_to_id_mapping(kept),
        )
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path.as_uri(),
            file_format=FileFormat.PARQUET,
            partition=Record(table.column("_kafka_partition")[0].as_py()),
            file_size_in_bytes=path.stat().st_size,
            sort_order_id=None,
            spec_id=self.view.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    def add_segment(self, *tables: pa.Table, is_indexed: bool = True, stores_op: bool = False) -> SegmentRef:
        """A segment with these rows in this order."""
        segment = SegmentRef(name=f"seg_{self.table_id}_{next(self._seq)}", schema_version=1)
        with self.pg.transaction():
            self.pg.execute("SET LOCAL ROLE harness_worker")
            self.pg.execute(segment_ddl(segment.name, self.columns, stores_op=stores_op))
            if is_indexed:
                self.pg.execute(segment_index(segment.name))
        with adbc.connect(self.dsn, autocommit=True) as connection, connection.cursor() as cursor:
            for table in tables:
                if table.num_rows:
                    dropped = ["_schema_version"] if stores_op else ["_op", "_schema_version"]
                    stored = to_copy(table.drop_columns(dropped))
                    cursor.adbc_ingest(segment.name, stored, mode="append", db_schema_name="harness_buffer")
        self.segments.append(segment)
        return segment

    def lease(self, *, lasting: timedelta = timedelta(hours=1)) -> str:
        lease_id = str(uuid.uuid4())
        self.pg.execute(
            "INSERT INTO harness.leases VALUES (%s, %s, 1, '{}', 'test', clock_timestamp() + %s, clock_timestamp())",
            [lease_id, self.table_id, lasting],
        )
        return lease_id

    def end_lease(self, lease_id: str) -> None:
        self.pg.execute("UPDATE harness.leases SET until = clock_timestamp() WHERE lease_id = %s", [lease_id])

    def plan(
        self, *, lake: Mapping[int, tuple[int, int]], buffer: Mapping[int, tuple[int, int]], **changes: Any
    ) -> ReadPlan:
        """A plan of ``[low, high)`` per partition and tier, with a lease."""
        bounds = {
            p: Bounds(
                start=lake.get(p, buffer.get(p, (0, 0)))[0],
                batch_hi=lake.get(p, buffer.get(p, (0, 0)))[0],
                stream_hi=lake[p][1] if p in lake else buffer[p][0],
                buffer_hi=buffer[p][1] if p in buffer else lake[p][1],
            )
            for p in sorted({*lake, *buffer})
        }
        self.pin(self.view.metadata_location)
        stream = LakePart(
            metadata=self.view.metadata_location,
            low={p: r[0] for p, r in lake.items()},
            high={p: r[1] for p, r in lake.items()},
        )
        held = BufferPart(
            segments=tuple(self.segments),
            low={p: r[0] for p, r in buffer.items()},
            high={p: r[1] for p, r in buffer.items()},
        )
        made = ReadPlan(
            table=f"w.{self.name}",
            table_id=self.table_id,
            version=1,
            schema_version=1,
            fields=self.fields,
            bounds=bounds,
            lake=(stream,) if lake else (),
            buffer=held if buffer else None,
            tail=None,
            lease_id=self.lease(),
            lease_until=datetime.now(UTC) + timedelta(hours=1),
        )
        return replace(made, **changes)

    def close(self) -> None:
        self.buffer_reader.close()
        self.pg.close()
        self.catalog.close()


def stored_as(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """*column* in a view's type, down through what is nested."""
    if column.type == kind:
        return column
    return pa.chunked_array([_stored_as(chunk, kind) for chunk in column.chunks], type=kind)


def _stored_as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.array(_plain(array.to_pylist(), array.type), type=kind)


def _plain(values: Sequence[Any], kind: pa.DataType) -> list[Any]:
    if pa.types.is_time64(kind):
        return list(pa.array(values, kind).cast(pa.int64()).to_pylist())
    if pa.types.is_map(kind):
        return [None if v is None else _plain_entries(v, kind) for v in values]
    if pa.types.is_list(kind):
        return [None if v is None else _plain(v, kind.value_type) for v in values]
    if pa.types.is_struct(kind):
        names = [f.name for f in kind]
        return [None if v is None else tuple(_plain([v[n]], kind.field(n).type)[0] for n in names) for v in values]
    return list(values)


def _plain_entries(entries: Sequence[tuple[Any, Any]], kind: pa.MapType) -> list[tuple[Any, Any]]:
    keys, items = [k for k, _ in entries], [v for _, v in entries]
    return list(zip(_plain(keys, kind.key_type), _plain(items, kind.item_type), strict=True))


def standard_rows(world: World, partition: int, low: int, high: int) -> pa.Table:
    """Rows whose values follow from their coordinates; every eleventh has NULLs, some ratios are NaN."""
    offsets = list(range(low, high))

    def some(values: list[Any]) -> list[Any]:
        return [None if o % 11 == 10 else v for o, v in zip(offsets, values, strict=True)]

    user = {
        "id": [o * 10 + partition for o in offsets],
        "amount": pa.array(some([o * 100 + 25 for o in offsets]), pa.int64()),
        "status": some(["new" if o % 3 else "döne" for o in offsets]),
        "at": some([1_600_000_000_000_000 + o * 1_000_000 for o in offsets]),
        "ratio": some([float("nan") if o % 7 == 3 else o / 8 for o in offsets]),
        "key": some([o.to_bytes(16, "big") for o in offsets]),
        "clock": some([o % 86_400_000_000 for o in offsets]),
        "tags": some([["a", None, str(o)][: o % 4] for o in offsets]),
        "note": [f"note {o} " + "x" * 40 for o in offsets],
    }
    schema = arrow_schema(world.columns)
    arrays = [pa.array(user[f.name], type=f.type) if f.name != "amount" else _money(user["amount"]) for f in schema]
    return world.rows(pa.table(arrays, schema=schema), partition, low)


def _money(cents: Any) -> pa.Array:
    """decimal(12,2) of a number of cents."""
    return pa.array([None if c is None else Decimal(c).scaleb(-2) for c in cents.to_pylist()], pa.decimal128(12, 2))


def coordinates_of(table: pa.Table) -> list[tuple[int, int]]:
    """Sorted (partition, offset) of the rows: doubled rows stay doubled."""
    columns = (table.column("_kafka_partition").to_pylist(), table.column("_kafka_offset").to_pylist())
    return sorted(zip(*columns, strict=True))


COORDINATE_NAMES = tuple(COORDINATES.names)
