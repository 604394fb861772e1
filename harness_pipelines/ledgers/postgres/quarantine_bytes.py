"""Where the bytes of quarantined records are, and the commit by which those of some records go to the lake.

It is a boundary commit without a version: the table, the catalog's row of the quarantine, the records, last the claim.
What the ledger published last is what is built on, whatever the catalog names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness_pipelines import faults
from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.ledgers.postgres.boundary import BoundaryFrame, SharedCatalog, gone
from harness_pipelines.ports.errors import MovedMeanwhile, QuarantineNameTaken
from harness_pipelines.ports.lake import QuarantinePlace
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Claim
from harness_pipelines.spec.locations import is_below, normal

Row = Mapping[str, Any]


class QuarantineBytes:
    """The ledger's side of moving them, of the tables of one database."""

    def __init__(self, database: Database, *, catalog: str) -> None:
        self._database, self._catalog = database, SharedCatalog(catalog, database)

    def too_large(self, table: TableRow, *, one_max: int, limit: int) -> list[Row]:
        """Partition and offset of the first records of more than *one_max* bytes that are in Postgres."""
        key = {"table_id": table.table_id, "one_max": one_max, "limit": limit}
        return list(self._database.rows("quarantine/stay", key))

    def in_postgres(self, table: TableRow, *, one_max: int) -> int:
        """Bytes of the records in Postgres that have not more than *one_max*."""
        key = {"table_id": table.table_id, "one_max": one_max}
        held: int = self._database.rows("quarantine/in_postgres", key)[0]["bytes"]
        return held

    def due(self, table: TableRow, *, one_max: int, size: int) -> Row:
        """How many of them, the oldest, have *size* bytes, and how many bytes these have."""
        key = {"table_id": table.table_id, "one_max": one_max, "bytes": size}
        return self._database.rows("quarantine/due", key)[0]

    def oldest(self, table: TableRow, *, one_max: int, size: int, records: int) -> list[Row]:
        """These records, at most *records* of them."""
        key = {"table_id": table.table_id, "one_max": one_max, "bytes": size, "records": records}
        return list(self._database.rows("quarantine/oldest", key, binary=True))

    def place(self, table: TableRow, *, folder: str) -> QuarantinePlace:
        """Where the bytes of *table* are; *folder* where they are in none yet, which is known before a file is in it.

        Raises: QuarantineNameTaken.
        """
        with self._database.transaction() as connection:
            connection.execute(sql("quarantine/choose_folder"), {"table_id": table.table_id, "folder": folder})
            place = _place_of(connection, table)
            key = self._catalog.key(table, table.quarantine)
            found = connection.execute(sql("reads/pointer"), key).fetchone()
            _check_name(table, place, str(found["metadata_location"]) if found else None)
            return place

    def publish(
        self,
        table: TableRow,
        claim: Claim,
        batch: Sequence[Row],
        *,
        old: QuarantinePlace,
        new: str,
        schema_ids: Sequence[int | None],
    ) -> None:
        """Let the catalog name *new*, which has the bytes of *batch* too, and take them out of Postgres.

        *schema_ids* are those that their values name. Raises: QuarantineNameTaken, MovedMeanwhile, FencedOut.
        """
        with self._database.transaction() as connection:
            frame = BoundaryFrame(connection, table, self._catalog)
            frame.lock_table()
            found = frame.lock_quarantine()
            _check_name(table, old, found)
            if found is None:  # it is new, or another engine dropped it: the files are there
                self._catalog.insert(connection, table, table.quarantine, new=new)
            else:
                self._catalog.swap(connection, table, table.quarantine, old=found, new=new)
            self._empty(connection, table, batch, old=old, new=new, schema_ids=schema_ids)
            frame.fence(claim)
            faults.point("expire.quarantine_in_transaction")
        faults.point("expire.quarantine_moved")

    @staticmethod
    def _empty(
        connection: Connection,
        table: TableRow,
        batch: Sequence[Row],
        *,
        old: QuarantinePlace,
        new: str,
        schema_ids: Sequence[int | None],
    ) -> None:
        """Raises: MovedMeanwhile."""
        key = {"table_id": table.table_id}
        places = {"partitions": [one["partition"] for one in batch], "offsets": [one["offset"] for one in batch]}
        followed = connection.execute(sql("quarantine/follow"), {**key, "old": old.metadata, "new": new}).rowcount
        emptied = connection.execute(sql("quarantine/empty"), {**key, **places, "schema_ids": [*schema_ids]}).rowcount
        if (followed, emptied) != (1, len(batch)):
            raise MovedMeanwhile(
                f"{table.name}: of {len(batch):,} quarantined records that were to be moved to the lake {emptied:,} "
                "have their bytes in Postgres still; nothing was written, the next run of expire looks again"
            )


def _place_of(connection: Connection, table: TableRow) -> QuarantinePlace:
    found = connection.execute(sql("quarantine/place"), {"table_id": table.table_id}).fetchone()
    if found is None:
        raise gone("quarantine/place")
    return QuarantinePlace(found["folder"], found["metadata"])


def _check_name(table: TableRow, place: QuarantinePlace, pointer: str | None) -> None:
    """Raises: QuarantineNameTaken."""
    if pointer is None or is_below(normal(pointer), place.root):
        return
    name = f"{table.spec.namespace}.{table.quarantine}"
    raise QuarantineNameTaken(
        f"{table.name}: quarantined records exceed `quarantine_mb` and belong into {name}, but the catalog has "
        f"another table under this name ({pointer}); nothing was moved. Rename or drop that one, expire tries again; "
        "or raise `quarantine_mb`"
    )
