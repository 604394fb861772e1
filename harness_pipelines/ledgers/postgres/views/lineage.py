"""Lineage in the ledger: the origin of rows, and the segments that hold a record. Read as a reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from psycopg import Error
from psycopg import sql as compose

from harness_pipelines.drivers.postgres import BUFFER, Asked, Database, named
from harness_pipelines.ports import rows
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.proof import MadeBy
from harness_pipelines.protocol.lake.lineage import RecordAsked
from harness_pipelines.protocol.versions import Version, ViewName

Row = Mapping[str, Any]


class Lineage:
    """Lineage of one table."""

    def __init__(self, database: Database, table: TableRow) -> None:
        self.database, self.table = database, table
        self._key = {"table_id": table.table_id}

    def versions(self) -> list[Version]:
        """The versions whose files are kept, oldest first."""
        return [rows.version(row) for row in self.database.rows("lineage/versions", self._key)]

    def versions_of(self, numbers: Iterable[int]) -> dict[int, Version]:
        """Versions by their number, kept or not."""
        found = self.database.rows("upkeep/versions_of", {**self._key, "versions": list(numbers)})
        return {row["version"]: rows.version(row) for row in found}

    def made_by(self, view: ViewName, snapshots: Iterable[int]) -> dict[int, MadeBy]:
        """Of those of *snapshots* that the ledger published, where each came from."""
        key = {**self._key, "view": view, "snapshots": sorted(set(snapshots))}
        found = self.database.rows("lineage/made_by", key) if key["snapshots"] else []
        return {row["snapshot"]: MadeBy(version=row["version"], move_id=row["move_id"]) for row in found}

    def moves(self, move_ids: Iterable[int]) -> dict[int, Row]:
        """Rows of moves by their number, each with the `version` that it made."""
        wanted = sorted(set(move_ids))
        found = self.database.rows("lineage/moves", {**self._key, "move_ids": wanted}) if wanted else []
        return {row["move_id"]: row for row in found}

    def carried(self, record: RecordAsked) -> list[Row]:
        """Rows of the committed moves whose ranges have the record, oldest first."""
        key = {**self._key, "partition": str(record.partition), "offset": record.offset}
        return list(self.moves(row["move_id"] for row in self.database.rows("lineage/carried", key)).values())

    def folded(self, *, move_id: int | None = None, record: RecordAsked | None = None) -> list[Row]:
        """The checkpoints that the move, or those that had the record, may have gone into: stage, kind, moves,
        first_move, last_move, folded_at."""
        at = (
            {"partition": str(record.partition), "offset": record.offset}
            if record
            else {"partition": None, "offset": None}
        )
        return list(self.database.rows("lineage/folded", {**self._key, **at, "move_id": move_id}))

    def holding(self, segments: Sequence[str], record: RecordAsked) -> list[str]:
        """Those of *segments*, tables of the buffer, that have the record. Raises: SegmentMissing."""
        parts = [
            compose.SQL("SELECT {} AS segment FROM {} WHERE _kafka_partition = {} AND _kafka_offset = {}").format(
                *(compose.Literal(name), compose.Identifier(BUFFER, name)),
                *(compose.Literal(record.partition), compose.Literal(record.offset)),
            )
            for name in segments
        ]
        if not parts:
            return []
        asked = Asked(dsn=self.database.dsn, table=self.table.name, reading=tuple(segments))
        with self.database.reading(table=self.table.name) as connection:
            try:
                found = connection.execute(compose.SQL(" UNION ALL ").join(parts)).fetchall()
            except Error as error:
                if known := named(error, asked):
                    raise known from error
                raise
        return [str(row["segment"]) for row in found]
