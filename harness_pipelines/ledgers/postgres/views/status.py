"""The status of tables in the ledger, read as a reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import sql as compose

from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import LEASE_MAX

Row = Mapping[str, Any]
REFUSED_OF_LAST = 10_000  #: offsets of each partition that tell whether a table refuses much
REFUSED_SHARE_MAX = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Sizes of a table's books."""

    quarantined: int  #: records quarantined and not replayed
    filtered: int  #: records that the transform's filter did not take
    readers: int  #: live leases
    oldest_lease_s: float | None  #: since the oldest of them was taken
    lake_rows: int  #: rows of all committed tier moves


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedShare:
    """How many of the last offsets of a partition are quarantined and not replayed, where that is worst."""

    partition: int
    offsets: int  #: that were looked at
    refused: int

    @property
    def share(self) -> float:
        return self.refused / max(self.offsets, 1)

    @property
    def is_much(self) -> bool:
        """More than one producer's slip."""
        return self.share > REFUSED_SHARE_MAX

    def __str__(self) -> str:
        return f"{self.refused:,} of the last {self.offsets:,} offsets of partition {self.partition} are refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowlessOffsets:
    """Offsets of one partition that were taken and are no rows."""

    batch: int  #: refused ones below the batch view's bound
    stream: int  #: refused ones that only the stream view's bound is above
    buffer: int  #: refused ones above both
    filtered: int  #: records that the transform's filter did not take, wherever they lie

    @property
    def refused(self) -> int:
        return self.batch + self.stream + self.buffer


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
        """Records quarantined and not replayed, by id of the tables that have any."""
        return {row["table_id"]: row["records"] for row in self.database.rows("overview/quarantined")}

    def refusing(self, table: TableRow | None = None) -> dict[int, RefusedShare]:
        """Of *table*, or all, the partition that refuses the largest share, by the table's id; none where none does."""
        given = {"table_id": table.table_id if table else None, "of_last": REFUSED_OF_LAST}
        worst: dict[int, RefusedShare] = {}
        for row in self.database.rows("overview/refusing", given):
            one = RefusedShare(partition=row["partition"], offsets=row["offsets"], refused=row["refused"])
            known = worst.get(row["table_id"])
            if known is None or one.share > known.share:
                worst[row["table_id"]] = one
        return worst

    def apart(self, table: TableRow) -> dict[int, RowlessOffsets]:
        """Return the offsets that are not rows, by partition; partitions without such offsets are left out."""
        found = self.database.rows("overview/apart", {"table_id": table.table_id})
        names = ("batch", "stream", "buffer", "filtered")
        return {row["partition"]: RowlessOffsets(**{name: row[name] for name in names}) for row in found}

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
