"""The status of tables in the ledger, read as a reader."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import sql as compose

from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.errors import HarnessError
from harness_pipelines.ports import rows
from harness_pipelines.ports.ledger import PartitionStatus, TableDamaged, TableRow, TableUnknown
from harness_pipelines.protocol.claims import LEASE_MAX
from harness_pipelines.protocol.versions import Version

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """What the ledger has of one table."""

    head: Version
    positions: list[PartitionStatus]
    since_tier_s: float
    since_ingest_s: float | None  #: None: nothing was ever committed to the buffer
    claims: list[Row]
    open_moves: list[Row]
    counts: Counts
    apart: Mapping[int, RowlessOffsets]
    refusing: RefusedShare | None
    violations: list[Row]


class Overview:
    """Claims, open moves and quarantined records of one database. Each statement answers for any number of tables."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def facts(self, tables: Collection[TableRow]) -> dict[int, TableFacts | HarnessError]:
        """All facts of *tables* by their ids, or why those of one cannot be read.

        The number of statements does not depend on that of the tables. TableUnknown: it was dropped meanwhile.
        """
        found = _Found(
            since_tier=self._by_table("ledger/since_tier", tables),
            heads=self._by_table("overview/heads", tables),
            positions=self._by_table("reads/positions", tables),
            since_ingest=self._by_table("overview/since_ingest", tables),
            claims=self._by_table("overview/claims", tables, lease_max=LEASE_MAX),
            open_moves=self._by_table("overview/open_moves", tables),
            counts=self._by_table("overview/counts", tables),
            apart=self._by_table("overview/apart", tables),
            refusing=self._by_table("overview/refusing", tables, of_last=REFUSED_OF_LAST),
            violations=self._by_table("overview/violations", tables),
        )
        return {table.table_id: found.of(table) for table in tables}

    def heads(self, tables: Collection[TableRow]) -> dict[int, Version | HarnessError]:
        """The newest versions of *tables* by their ids, or why one cannot be read."""
        found = self._by_table("overview/heads", tables)
        return {table.table_id: _head(table, found[table.table_id]) for table in tables}

    def _by_table(self, statement: str, tables: Collection[TableRow], **more: Any) -> dict[int, list[Row]]:
        """The rows of *statement*, without the ids of the tables that they are kept by."""
        found: dict[int, list[Row]] = {table.table_id: [] for table in tables}
        for row in self.database.rows(statement, {"tables": list(found), **more}):
            found[row["table_id"]].append({name: value for name, value in row.items() if name != "table_id"})
        return found

    def claims(self, table: TableRow) -> list[Row]:
        """Stage, shard, holder, epoch, lease_until, now; whether the lease is alive, and ahead of any that may be."""
        return self._by_table("overview/claims", [table], lease_max=LEASE_MAX)[table.table_id]

    def open_moves(self, table: TableRow) -> list[Row]:
        """Moves that a stage has to finish, or that hold it by name, oldest first."""
        return self._by_table("overview/open_moves", [table])[table.table_id]

    def counts(self, table: TableRow) -> Counts:
        return Counts(**self._by_table("overview/counts", [table])[table.table_id][0])

    def violations(self, table: TableRow) -> list[Row]:
        """How often records broke each check of the contract: check, severity, records, first_at, last_at, since_s."""
        return self._by_table("overview/violations", [table])[table.table_id]

    def quarantined(self) -> dict[int, int]:
        """Records quarantined and not replayed, by id of the tables that have any."""
        return {row["table_id"]: row["records"] for row in self.database.rows("overview/quarantined")}

    def refusing(self, table: TableRow | None = None) -> dict[int, RefusedShare]:
        """Of *table*, or all, the partition that refuses the largest share, by the table's id; none where none does."""
        found: dict[int, list[Row]] = {}
        for row in self.database.rows(
            "overview/refusing", {"tables": [table.table_id] if table else None, "of_last": REFUSED_OF_LAST}
        ):
            found.setdefault(row["table_id"], []).append(row)
        return {number: worst for number, shares in found.items() if (worst := _worst(shares)) is not None}

    def apart(self, table: TableRow) -> dict[int, RowlessOffsets]:
        """Return the offsets that are not rows, by partition; partitions without such offsets are left out."""
        return _apart(self._by_table("overview/apart", [table])[table.table_id])

    def partitions(self) -> dict[int, list[int]]:
        """Partitions of the topic that the ledger knows, by id of the table."""
        return {row["table_id"]: row["partitions"] for row in self.database.rows("overview/partitions")}

    def all_partitions(self, tables: Collection[TableRow]) -> dict[int, list[int]]:
        """Partitions of *tables* by their ids; those below 0 are of adopted rows."""
        found = self._by_table("reads/positions", tables)
        return {number: [int(row["partition"]) for row in rows_of] for number, rows_of in found.items()}

    def since_ingest_s(self, table: TableRow) -> float | None:
        """Since the newest commit to the buffer; None: there was none yet."""
        return _since_ingest(self._by_table("overview/since_ingest", [table])[table.table_id])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The rows of each statement, by the ids of the tables."""

    since_tier: Mapping[int, list[Row]]
    heads: Mapping[int, list[Row]]
    positions: Mapping[int, list[Row]]
    since_ingest: Mapping[int, list[Row]]
    claims: Mapping[int, list[Row]]
    open_moves: Mapping[int, list[Row]]
    counts: Mapping[int, list[Row]]
    apart: Mapping[int, list[Row]]
    refusing: Mapping[int, list[Row]]
    violations: Mapping[int, list[Row]]

    def of(self, table: TableRow) -> TableFacts | HarnessError:
        number = table.table_id
        if not self.since_tier[number]:
            return TableUnknown(f"table {table.name} is not in the ledger any more")
        head = _head(table, self.heads[number])
        if isinstance(head, HarnessError):
            return head
        try:
            return TableFacts(
                head=head,
                positions=[rows.partition_status(row) for row in self.positions[number]],
                since_tier_s=float(self.since_tier[number][0]["since_tier_s"]),
                since_ingest_s=_since_ingest(self.since_ingest[number]),
                claims=self.claims[number],
                open_moves=self.open_moves[number],
                counts=Counts(**self.counts[number][0]),
                apart=_apart(self.apart[number]),
                refusing=_worst(self.refusing[number]),
                violations=self.violations[number],
            )
        except HarnessError as broken:
            return broken


def _head(table: TableRow, found: list[Row]) -> Version | HarnessError:
    if not found:
        return TableDamaged(
            f"{table.name} has no version in harness.versions; `harness fsck {table.name}` names what is missing"
        )
    try:
        return rows.version({"table_id": table.table_id, **found[0]})
    except HarnessError as broken:
        return broken


def _since_ingest(found: list[Row]) -> float | None:
    return float(found[0]["since_ingest_s"]) if found else None


def _apart(found: list[Row]) -> dict[int, RowlessOffsets]:
    names = ("batch", "stream", "buffer", "filtered")
    return {row["partition"]: RowlessOffsets(**{name: row[name] for name in names}) for row in found}


def _worst(found: list[Row]) -> RefusedShare | None:
    """The partition with the largest share, the first one of several."""
    shares = [RefusedShare(partition=r["partition"], offsets=r["offsets"], refused=r["refused"]) for r in found]
    return max(shares, key=lambda one: one.share, default=None)


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
