"""Signed-off ranges of audits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from harness_pipelines.drivers.postgres import Database, sql
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.lake.signoff import SignOff


@dataclass(frozen=True, slots=True)
class SignOffs:
    """Ranges of tables that audits found whole."""

    readers: Database
    database: Database

    def all(self, table: TableRow) -> list[SignOff]:
        """Every range that audits of *table* signed off, by partition and offset; no two overlap."""
        return [SignOff(**row) for row in self.readers.rows("audit/signed", {"table_id": table.table_id})]

    def keep(self, table: TableRow, signed: Sequence[SignOff]) -> None:
        """Record *signed* in place of all that they overlap, in one transaction.

        Raises: MissingRole when the login is no worker; nothing is kept then.
        """
        if not signed:
            return
        with self.database.transaction() as connection:
            connection.execute(sql("audit/lock_signed"), {"table_id": table.table_id})  # or two audits could overlap
            for one in signed:
                where = {"table_id": table.table_id, "partition": one.partition, "low": one.low, "high": one.high}
                connection.execute(sql("audit/forget_signed"), where)
                found = {"rows": one.rows, "refused": one.refused, "digest": one.digest, "evidence": one.evidence}
                judged = {"status": one.status, "witness": one.witness, "version": one.version}
                connection.execute(sql("audit/sign"), {**where, **found, **judged, "audited_at": one.audited_at})

    def now(self) -> datetime:
        """The ledger's clock."""
        found: datetime = self.readers.rows("reads/now")[0]["now"]
        return found
