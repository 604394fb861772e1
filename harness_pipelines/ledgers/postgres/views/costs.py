"""What the stages of tables did by day, and what that took.

Moves and their records come from the ledger's moves. CPU seconds and the bytes that ingest read are what workers add.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.ports.upkeep import Spent

KEPT_DAYS = 400
COUNT_EVERY_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDay:
    """One stage of one table on one day (UTC)."""

    table: str
    day: date
    stage: str
    moves: int  #: that were committed; of ingest its accounting rows
    records: int  #: of these moves
    bytes: int  #: of the files that they wrote; 0 for ingest
    taken_bytes: int  #: of the values of records that ingest read; 0 for other stages
    cpu_s: float  #: of the threads of workers; what Spark and Postgres take is not in it

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "moves": self.moves,
            "records": self.records,
            "bytes": self.bytes,
            "taken_bytes": self.taken_bytes,
            "cpu_s": round(self.cpu_s, 3),
        }


def count(connection: Connection, tables: Collection[str], *, every_s: float = COUNT_EVERY_S) -> None:
    """Count the moves of *tables* where that was not done for *every_s*, and forget days that are too old."""
    connection.execute(sql("costs/count"), {"tables": list(tables), "every_s": every_s})
    connection.execute(sql("costs/forget"), {"tables": list(tables), "days": KEPT_DAYS})


class Costs:
    """The daily costs of one database; *readers* look them up."""

    def __init__(self, database: Database, readers: Database) -> None:
        self._database, self._readers = database, readers

    def add(self, spent: Sequence[Spent]) -> None:
        """Add what a worker spent since it said so last."""
        given = {
            "names": [one.table for one in spent],
            "stages": [str(one.stage) for one in spent],
            "taken": [one.taken_bytes for one in spent],
            "cpu_s": [one.cpu_s for one in spent],
        }
        self._database.run("costs/add", given)

    def count(self, tables: Collection[str]) -> None:
        """Count the moves of *tables* now."""
        with self._database.transaction() as connection:
            count(connection, tables, every_s=0.0)

    def days(self, tables: Collection[str], *, days: int) -> list[StageDay]:
        """The last *days* of *tables*, today included, the newest first. A day without work has no rows."""
        found = self._readers.rows("costs/days", {"tables": list(tables), "days": days})
        return [
            StageDay(
                table=row["name"],
                day=row["day"],
                stage=row["stage"],
                moves=row["moves"],
                records=row["records"],
                bytes=row["bytes"],
                taken_bytes=row["taken_bytes"],
                cpu_s=row["cpu_s"],
            )
            for row in found
        ]
