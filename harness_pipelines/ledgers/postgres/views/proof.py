"""The ledger's accounts of a table's records, for proofs that none is missing. A reader's login suffices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness_pipelines.drivers.postgres import Database, sql
from harness_pipelines.ledgers.postgres.requests.recall import overlays_there
from harness_pipelines.ledgers.postgres.views.status import buffered_rows
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conserved:
    """Rows of a table at one instant."""

    ingested: int
    tiered: int
    buffered: int


@dataclass(frozen=True, slots=True)
class Proof:
    """Moves and quarantined records of one database."""

    database: Database

    def taken(self, table: TableRow) -> Sequence[Row]:
        """The moves that brought records into *table*: those of ingest, or of tier where there is no buffer."""
        return list(self.database.rows("audit/taken", {"table_id": table.table_id, "stage": table.intake.reader}))

    def accepted(self, table: TableRow) -> Sequence[Row]:
        """The commits of other writers that a person accepted."""
        return list(self.database.rows("reconcile/accepted", {"table_id": table.table_id}))

    def quarantined(self, table: TableRow, partition: int, low: int, high: int) -> Sequence[Row]:
        """Quarantined records of ``[low, high)`` with the digests of key and value, by offset."""
        key = {"table_id": table.table_id, "partition": partition, "low": low, "high": high}
        return list(self.database.rows("audit/quarantined", key))

    def overlay_tables(self, table: TableRow) -> frozenset[str]:
        """The tables of recalled rows that are there and not given up."""
        with self.database.session() as connection:
            return overlays_there(connection, table.table_id)

    def quarantined_outside(self, table: TableRow) -> Sequence[Row]:
        """Quarantined records whose partition the table does not have, or whose offset it has not reached."""
        return list(self.database.rows("audit/quarantined_outside", {"table_id": table.table_id}))

    def last_committed(self, table: TableRow, stage: Stage) -> Row | None:
        """The newest committed move of *stage*, if there is one."""
        found = self.database.rows("checks/last_committed", {"table_id": table.table_id, "stage": stage})
        return found[0] if found else None

    def seams(self, table: TableRow) -> Sequence[Row]:
        """Where committed ranges of ingest or tier leave a gap, or overlap."""
        return list(self.database.rows("checks/seams", {"table_id": table.table_id}))

    def conserved(self, table: TableRow) -> Conserved:
        """Rows that ingest took, that tier moved and that are buffered, at one instant."""
        with self.database.reading() as connection:
            connection.execute(sql("checks/repeatable_read"))
            moved = connection.execute(sql("checks/moved_rows"), {"table_id": table.table_id}).fetchone()
            buffered = buffered_rows(connection, table)
        assert moved is not None
        taken = {Stage.INGEST: moved["ingested"], Stage.TIER: moved["tiered"]}
        return Conserved(ingested=taken[table.intake.reader], tiered=moved["tiered"], buffered=buffered)
