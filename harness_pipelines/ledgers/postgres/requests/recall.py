"""Requests to recall or release rows, in the ledger; any worker's otree stage carries them out.

And which tables of recalled rows there are; what is in them, `harness_pipelines.buffers.postgres.overlays` reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.ledgers.postgres.notify import announce
from harness_pipelines.ports.ledger import Boundary, TableRow
from harness_pipelines.ports.requests import RecallRequest, RequestLost
from harness_pipelines.protocol.lake.overlays import Overlay, OverlayChange, OverlayMissing, OverlayRequest
from harness_pipelines.protocol.moves import Move


class Recalls:
    """The requests of one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def open(self, table: TableRow) -> list[RecallRequest]:
        """Those that are not done, oldest first."""
        return self.open_of([table])[table.table_id]

    def open_of(self, tables: Collection[TableRow]) -> dict[int, list[RecallRequest]]:
        """Those of *tables*, by their ids, in one statement."""
        found: dict[int, list[RecallRequest]] = {table.table_id: [] for table in tables}
        for row in self.database.rows("recalls/open", {"tables": list(found)}):
            found[row["table_id"]].append(_request(row))
        return found

    def find(self, table: TableRow, recall_id: int) -> RecallRequest:
        """The request of that number, open or not. Raises: RequestLost."""
        for row in self.database.rows("recalls/find", {"table_id": table.table_id, "recall": recall_id}):
            return _request(row)
        raise RequestLost.of(table, recall_id)

    def ask(self, table: TableRow, act: OverlayRequest, *, where: str | None, by: str) -> RecallRequest:
        """Record a request; an open one that wants the same is gone on with instead."""
        key = {"table_id": table.table_id}
        with self.database.transaction() as connection:
            connection.execute(sql("ledger/lock_table"), key)
            for row in connection.execute(sql("recalls/open"), {"tables": [table.table_id]}):
                found = _request(row)
                if (found.act, found.where) == (act, where):
                    return found
            wanted = {**key, "act": act, "wanted": where, "asked_by": by}
            made = connection.execute(sql("recalls/ask"), wanted).fetchone()
            assert made is not None
            announce(connection, table.table_id)
            return _request(made)

    def cancel(self, table: TableRow) -> list[int]:
        """Give up the open requests that no move has taken up; returns their numbers."""
        key = {"table_id": table.table_id}
        with self.database.transaction() as connection:
            connection.execute(sql("ledger/lock_table"), key)
            return sorted(row["recall"] for row in connection.execute(sql("recalls/cancel"), key))

    def refuse(self, move: Move, *, detail: str) -> None:
        """The request that *move* answers cannot be done; an attempt that a later one replaced, and a second call,
        change nothing."""
        self._end(move, state="refused", detail=detail)

    def nothing_to_do(self, move: Move) -> None:
        """The request that *move* answers is done: no row matches, or none is recalled. Else as `refuse`."""
        self._end(move, state="done", detail=None)

    def _end(self, move: Move, *, state: str, detail: str | None) -> None:
        ended = {"move_id": move.move_id, "attempt": move.attempt, "state": state, "detail": detail}
        self.database.run("recalls/end_without_effect", ended)


def _request(row: Mapping[str, Any]) -> RecallRequest:
    return RecallRequest(
        recall_id=row["recall"],
        act=OverlayRequest(row["act"]),
        where=row["wanted"],
        state=row["state"],
        asked_at=row["asked_at"],
        asked_by=row["asked_by"],
        move_id=row["move_id"],
        rows=row["rows"],
        bytes=row["bytes"],
        detail=row["detail"],
    )


def recall_done(boundary: Boundary) -> dict[str, Any]:
    """How the request that a move answers ends by its boundary commit: with the rows that went over."""
    change = boundary.overlays or OverlayChange(on=(), then=())
    rows, size = (
        abs(sum(getattr(one, word) for one in change.then) - sum(getattr(one, word) for one in change.on))
        for word in ("rows", "bytes")
    )
    move = boundary.move
    return {
        "recall": move.recall,
        "state": "done",
        "move_id": move.move_id,
        "rows": rows,
        "bytes": size,
        "detail": None,
    }


def overlays_there(connection: Connection, table_id: int) -> frozenset[str]:
    """The tables of recalled rows that are there and not given up."""
    return frozenset(row["segment"] for row in connection.execute(sql("overlays/there"), {"table_id": table_id}))


def check_there(connection: Connection, table: TableRow, overlays: Iterable[Overlay]) -> None:
    """Check that what a version will name exists (S10). Raises: OverlayMissing."""
    if gone := sorted({one.segment for one in overlays} - overlays_there(connection, table.table_id)):
        raise OverlayMissing(
            f"{table.name}: {gone[0]}, a table of recalled rows, is not there; nothing was written. `harness fsck "
            f"{table.name}` names what is missing"
        )
