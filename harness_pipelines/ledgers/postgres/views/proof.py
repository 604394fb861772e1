"""What the ledger says of the records of a table, for those who prove that none is missing. As a reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness_pipelines.drivers.postgres import Database, sql
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

    def quarantined_outside(self, table: TableRow) -> Sequence[Row]:
        """Quarantined records whose partition the table does not have, or whose offset it has not reached."""
        return list(self.database.rows("audit/quarantined_outside", {"table_id": table.table_id}))

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
