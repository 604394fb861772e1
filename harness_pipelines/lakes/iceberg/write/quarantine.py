"""The bytes of a large quarantine in a separate Iceberg table.

Expire moves the oldest there, a bounded batch at a time. Files and metadata are written first; then one transaction
moves the pointer and takes the bytes of exactly these records out of Postgres. What the ledger published last is what
is read and built on, whatever the catalog names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import structlog
from numpy.typing import NDArray
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.drivers.postgres import Database
from harness_pipelines.errors import HarnessError
from harness_pipelines.formats.columns.times import kafka_times
from harness_pipelines.formats.schema.wire import schema_id_of
from harness_pipelines.lakes.iceberg.catalog import Arrangement, StagingCatalog
from harness_pipelines.lakes.iceberg.private.tables import Changes
from harness_pipelines.lakes.iceberg.read.scan import scan
from harness_pipelines.lakes.iceberg.write.commits import tidy
from harness_pipelines.lakes.iceberg.write.corrections import written
from harness_pipelines.lakes.iceberg.write.publish import VIEW_PROPERTIES
from harness_pipelines.ports.lake import QuarantineLedger, QuarantinePlace, reachable
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.upkeep import BytesMoved
from harness_pipelines.protocol.changes.corrections import Coordinate
from harness_pipelines.protocol.claims import Claim
from harness_pipelines.protocol.coordinates import OFFSET, PARTITION
from harness_pipelines.protocol.lake.properties import TABLE
from harness_pipelines.protocol.reading.queries import LakeColumn, LakeQuery, LakeStats
from harness_pipelines.spec.locations import normal
from harness_pipelines.spec.sections.formats import names_schema

log = structlog.get_logger(__name__)
Row = Mapping[str, Any]
BATCH_BYTES, BATCH_RECORDS = 32 * 2**20, 50_000  #: of one file and one transaction: they are held in memory
BATCHES_MAX = 64  #: of one run of expire; the next one continues
RECORD_BYTES_MAX = 256 * 2**20  #: a record from before heads were kept may have more: it stays where it is
STAY_MAX = 20  #: of those, this many are named
SNAPSHOTS = 20  #: kept: the newest is read, the others are for a backup of Postgres that is older
SCHEMA_ID_MAX = 2**31 - 1
OFFSETS_MAX = 2**63 - 1
SCHEMA: Schema = Schema.model_validate(
    {
        "type": "struct",
        "fields": [
            {"id": 1, "name": PARTITION, "type": "int", "required": True},
            {"id": 2, "name": OFFSET, "type": "long", "required": True},
            {"id": 3, "name": "_kafka_timestamp", "type": "timestamptz", "required": False},
            {"id": 4, "name": "reason", "type": "string", "required": True},
            {"id": 5, "name": "detail", "type": "string", "required": True},
            {"id": 6, "name": "key", "type": "binary", "required": False},
            {"id": 7, "name": "value", "type": "binary", "required": False},
            {
                "id": 8,
                "name": "headers",
                "required": True,
                "type": {
                    "type": "list",
                    "element-id": 9,
                    "element-required": True,
                    "element": {
                        "type": "struct",
                        "fields": [
                            {"id": 10, "name": "key", "type": "string", "required": True},
                            {"id": 11, "name": "value", "type": "binary", "required": False},
                        ],
                    },
                },
            },
            {"id": 12, "name": "schema_id", "type": "int", "required": False},
            {"id": 13, "name": "recorded_at", "type": "timestamptz", "required": True},
        ],
    }
)
PROPERTIES: Mapping[str, str] = {
    **{word: said for word, said in VIEW_PROPERTIES.items() if not word.startswith("write.metadata.metrics.")},
    "write.metadata.metrics.default": "counts",
    "write.metadata.metrics.column._kafka_partition": "full",
    "write.metadata.metrics.column._kafka_offset": "full",
    "write.metadata.metrics.column.recorded_at": "full",
    "write.metadata.previous-versions-max": str(SNAPSHOTS),
    "write.parquet.row-group-limit": "2048",  # few are read for one record
}
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class RawBytesMissing(HarnessError):
    """Bytes of quarantined records are missing from the lake."""

    way_on = "`harness fsck TABLE`; restore the files from a copy of the warehouse"


class RawBytes:
    """Moves bytes of the quarantines of one database to one warehouse."""

    def __init__(self, ledger: QuarantineLedger, catalog: StagingCatalog, *, warehouse: str) -> None:
        self.ledger, self._catalog, self._warehouse = ledger, catalog, normal(warehouse)

    def is_due(self, table: TableRow) -> bool:
        """There are more bytes in Postgres than the spec allows."""
        return self.ledger.in_postgres(table, one_max=RECORD_BYTES_MAX) > table.spec.quarantine_mb * 2**20

    def move(self, table: TableRow, claim: Claim, *, dry_run: bool = False) -> BytesMoved:
        """With more in Postgres than the spec allows, move the oldest bytes until half of that is left.

        Raises: QuarantineNameTaken, MovedMeanwhile, FencedOut, MetadataMissing, LakeAway; OutcomeUnknown: the next run
        finds what became of it.
        """
        found = self.ledger.too_large(table, one_max=RECORD_BYTES_MAX, limit=STAY_MAX)
        stay = tuple(f"{one['partition']}:{one['offset']}" for one in found)
        held = self.ledger.in_postgres(table, one_max=RECORD_BYTES_MAX)
        limit = table.spec.quarantine_mb * 2**20
        due = held - limit // 2 if held > limit else 0
        if dry_run or not due:
            return BytesMoved(**self.ledger.due(table, one_max=RECORD_BYTES_MAX, size=due), stay=stay)
        moved = BytesMoved(stay=stay)
        for _ in range(BATCHES_MAX):
            size = min(due - moved.bytes, BATCH_BYTES)
            batch = self.ledger.oldest(table, one_max=RECORD_BYTES_MAX, size=size, records=BATCH_RECORDS)
            if not batch:
                break
            self._move(table, claim, batch)
            records, size = moved.records + len(batch), moved.bytes + sum(one["bytes"] for one in batch)
            moved = replace(moved, records=records, bytes=size)
        log.info("quarantine.moved", table=table.name, **moved.to_json())
        return moved

    def _move(self, table: TableRow, claim: Claim, batch: Sequence[Row]) -> None:
        place = self._place(table)
        with reachable(table.name, f"writing {len(batch):,} quarantined records"):
            new = self._with(table, place, batch)
        ids = [_schema_id(one["value"]) if names_schema(table.spec) else None for one in batch]
        self.ledger.publish(table, claim, batch, old=place, new=new, schema_ids=ids)

    def _place(self, table: TableRow) -> QuarantinePlace:
        """Where the bytes of *table* are; the ledger knows the folder before a file is in it, so that none is lost."""
        folder = f"{self._warehouse}/{table.spec.namespace}/{table.quarantine}-{uuid4().hex[:8]}"
        return self.ledger.place(table, folder=folder)

    def _with(self, table: TableRow, place: QuarantinePlace, batch: Sequence[Row]) -> str:
        """Write a metadata file that has *batch* too, and what it names. Returns its location."""
        identifier = (table.spec.namespace, table.quarantine)
        if place.metadata is None:
            properties = {**PROPERTIES, TABLE: table.name}
            view = self._catalog.stage_new(
                identifier,
                schema=SCHEMA,
                location=str(place.folder),
                properties=properties,
                arrangement=Arrangement.NONE,
            )
        else:
            view = self._catalog.at(identifier, place.metadata)
        with Changes(view) as transaction:
            files = written(view, _rows(view, batch, named=names_schema(table.spec)))
            with transaction.update_snapshot().merge_append() as append:
                for file in files:
                    append.append_data_file(file)
            tidy(transaction, keep=SNAPSHOTS, drop=())
        return view.metadata_location


def _rows(view: Table, batch: Sequence[Row], *, named: bool) -> pa.Table:
    """*batch* in the schema of *view*."""

    def column(word: str, kind: pa.DataType) -> pa.Array:
        return pa.array([one[word] for one in batch], kind)

    headers = [
        [{"key": name, "value": None if value is None else bytes.fromhex(value)} for name, value in one["headers"]]
        for one in batch
    ]
    columns = {
        PARTITION: column("partition", pa.int32()),
        OFFSET: column("offset", pa.int64()),
        "_kafka_timestamp": kafka_times(column("kafka_ms", pa.int64())),
        "reason": column("reason", pa.string()),
        "detail": column("detail", pa.string()),
        "key": column("key", pa.binary()),
        "value": column("value", pa.binary()),
        "headers": pa.array(headers, _HEADERS),
        "schema_id": pa.array([_schema_id(one["value"]) if named else None for one in batch], pa.int32()),
        "recorded_at": column("recorded_at", pa.timestamp("us", "UTC")),
    }
    schema = view.schema().as_arrow()
    return conformed(pa.table(columns).select(schema.names), schema)


def _schema_id(value: bytes | None) -> int | None:
    found = schema_id_of(value)
    return found if found is not None and found <= SCHEMA_ID_MAX else None


# -- reading ------------------------------------------------------------------------------------------------


def read(database: Database, table: TableRow, wanted: Sequence[Coordinate]) -> Iterator[tuple[Coordinate, Row]]:
    """Key, value and headers, as Postgres has them, of the *wanted* records, whose bytes are in the lake.

    In no order, file by file. Raises: RawBytesMissing; LakeFileMissing, LakeFileBroken, LakeUnreadable.
    """
    offsets: dict[int, list[int]] = {}
    for partition, offset in wanted:
        offsets.setdefault(partition, []).append(offset)
    ranges = {partition: (min(found), max(found) + 1) for partition, found in offsets.items()}
    missing = set(wanted)
    for part in _scanned(database, table, ranges, "key", "value", "headers"):
        asked = np.zeros(part.num_rows, np.bool_)
        partitions, places = part[PARTITION].to_numpy(), part[OFFSET].to_numpy()
        for partition, mine in offsets.items():
            asked |= (partitions == partition) & np.isin(places, mine)
        for row in part.filter(pa.array(asked)).to_pylist():
            headers = [[h["key"], None if h["value"] is None else h["value"].hex()] for h in row["headers"]]
            missing.discard((row[PARTITION], row[OFFSET]))
            yield (row[PARTITION], row[OFFSET]), {"key": row["key"], "value": row["value"], "headers": headers}
    if missing:
        partition, offset = min(missing)
        raise RawBytesMissing(
            f"{table.name}: the bytes of {len(missing):,} quarantined records are not in the lake, where the ledger "
            f"says they are, the first at partition {partition}, offset {offset}; nothing was changed. `harness fsck "
            f"{table.name}` names them; bring the files of {table.spec.namespace}.{table.quarantine} back from a copy "
            "of the warehouse"
        )


def stored(database: Database, table: TableRow, partitions: Iterable[int]) -> dict[int, NDArray[np.int64]]:
    """Offsets of all records of *partitions* whose bytes are in the lake, in any order. Raises: as a scan."""
    found: dict[int, list[NDArray[np.int64]]] = {partition: [] for partition in partitions}
    for part in _scanned(database, table, dict.fromkeys(found, (0, OFFSETS_MAX))):
        at = part[PARTITION].to_numpy()
        for partition in np.unique(at).tolist():
            found[partition].append(part[OFFSET].to_numpy()[at == partition])
    return {partition: np.concatenate([np.empty(0, np.int64), *parts]) for partition, parts in found.items()}


def _scanned(
    database: Database, table: TableRow, ranges: Mapping[int, tuple[int, int]], *more: str
) -> Iterable[pa.Table]:
    """Rows of *ranges*, file by file: coordinates, and the columns *more*."""
    metadata = database.rows("quarantine/place", {"table_id": table.table_id})[0]["metadata"]
    if metadata is None:
        return ()
    columns = [LakeColumn(name=name, field_id=None) for name in (PARTITION, OFFSET, *more)]
    query = LakeQuery(table=f"{table.spec.namespace}.{table.quarantine}", version=0, ranges=ranges, columns=columns)
    return scan(metadata, query, LakeStats())


@dataclass(frozen=True, slots=True)
class QuarantinedBytes:
    """`read` and `stored` of one database."""

    database: Database

    def read(self, table: TableRow, wanted: Sequence[Coordinate]) -> Iterator[tuple[Coordinate, Row]]:
        """As the function."""
        return read(self.database, table, wanted)

    def stored(self, table: TableRow, partitions: Iterable[int]) -> dict[int, NDArray[np.int64]]:
        """As the function."""
        return stored(self.database, table, partitions)
