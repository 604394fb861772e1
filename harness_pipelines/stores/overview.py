"""What the ledger shows to those who watch; as a reader, and nothing here decides anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import sql as compose

from harness_pipelines.protocol.claims import LEASE_MAX
from harness_pipelines.stores.ports import TableRow
from harness_pipelines.stores.postgres import Connection, Database, sql

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Sizes of a table's books."""

    quarantined: int  #: records set aside and not replayed
    filtered: int  #: records that the transform's filter did not take
    readers: int  #: live leases
    lake_rows: int  #: rows of all committed tier moves


class Overview:
    """Claims, open moves and quarantined records of one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def claims(self, table: TableRow) -> list[Row]:
        """Stage, shard, holder, epoch, lease_until, now; whether the lease is alive, and ahead of any that may be."""
        return list(self.database.rows("overview/claims", {"table_id": table.table_id, "lease_max": LEASE_MAX}))

    def open_moves(self, table: TableRow) -> list[Row]:
        """Moves that a stage has to finish, or that hold it by name, oldest first."""
        return list(self.database.rows("overview/open_moves", {"table_id": table.table_id}))

    def counts(self, table: TableRow) -> Counts:
        return Counts(**self.database.rows("overview/counts", {"table_id": table.table_id})[0])

    def violations(self, table: TableRow) -> list[Row]:
        """How often records broke each check of the contract: check, severity, records, first_at, last_at, since_s."""
        return list(self.database.rows("overview/violations", {"table_id": table.table_id}))

    def quarantined(self) -> dict[int, int]:
        """Records set aside and not replayed, by id of the tables that have any."""
        return {row["table_id"]: row["records"] for row in self.database.rows("overview/quarantined")}

    def partitions(self) -> dict[int, list[int]]:
        """Partitions of the topic that the ledger knows, by id of the table."""
        return {row["table_id"]: row["partitions"] for row in self.database.rows("overview/partitions")}

    def since_ingest_s(self, table: TableRow) -> float | None:
        """Since the newest commit to the buffer; None: there was none yet."""
        found = self.database.rows("overview/since_ingest", {"table_id": table.table_id})
        return float(found[0]["since_ingest_s"]) if found else None


def buffered_rows(connection: Connection, table: TableRow) -> int:
    """Rows of the segments in ``[stream_hi, buffer_hi)``, in the transaction of *connection*."""
    key = {"table_id": table.table_id}
    segments = [r["segment"] for r in connection.execute(sql("buffer/segments"), key) if r["state"] != "retired"]
    if not segments:
        return 0
    parts = [
        compose.SQL(
            "SELECT count(*) AS rows FROM {} s JOIN harness.lake_positions l ON l.partition = s._kafka_partition "
            "JOIN harness.ingest_positions i USING (table_id, partition) "
            "WHERE l.table_id = {} AND s._kafka_offset >= l.stream_hi AND s._kafka_offset < i.buffer_hi"
        ).format(compose.Identifier("harness_buffer", name), compose.Literal(table.table_id))
        for name in segments
    ]
    return sum(row["rows"] for row in connection.execute(compose.SQL(" UNION ALL ").join(parts)))
