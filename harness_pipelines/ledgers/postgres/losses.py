"""Records that Kafka dropped before ingest read them: the position passes them in one commit, by a recorded move."""

from __future__ import annotations

from dataclasses import dataclass

from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.ports import rows
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.bounds import BoundaryGap
from harness_pipelines.protocol.claims import Claim, check_claim
from harness_pipelines.protocol.schema.schemas import check_schema


@dataclass(frozen=True, slots=True)
class Losses:
    """Moves of ingest without rows."""

    database: Database

    def accept(self, table: TableRow, claim: Claim, *, partition: int, low: int, high: int) -> int:
        """Let ingest continue at *high* of *partition* where it stands at *low*; the number of the move.

        Raises: SchemaMoved, BoundaryGap when it stands elsewhere, FencedOut.
        """
        key = {"table_id": table.table_id, "partition": partition, "lo": low, "hi": high}
        with self.database.transaction() as connection:
            # As every commit of ingest: a schema change waits, or we do.
            connection.execute(sql("ledger/share_ingest"), key)
            found = connection.execute(sql("ledger/ingest_positions"), key).fetchall()
            now = next((row["schema_version"] for row in found if row["partition"] == partition), -1)
            check_schema(table.name, planned=table.schema_version, found=now, what="the loss was looked at")
            if connection.execute(sql("ledger/advance_ingest"), key).rowcount != 1:
                raise BoundaryGap(what="the buffer", partition=partition, expected_low=-1, got_low=low)
            move = {"shard": claim.shard, "schema_version": table.schema_version, "epoch": claim.epoch}
            row = connection.execute(sql("audit/begin_accepted"), {**key, **move}).fetchone()
            assert row is not None
            _fence(connection, claim)
        return int(row["move_id"])


def _fence(connection: Connection, claim: Claim) -> None:
    """The last check of every commit: the claim is still ours."""
    key = {"table_id": claim.table_id, "stage": claim.stage, "shard": claim.shard}
    row = connection.execute(sql("ledger/check_claim"), key).fetchone()
    if row is None:
        check_claim(claim, None, now=claim.lease_until)
    else:
        check_claim(claim, rows.claim(row), now=row["now"])
