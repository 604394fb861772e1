"""Numbers are never reused: a new history continues versions, events and moves with larger ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from psycopg.types.json import Jsonb

from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.ledgers.postgres import parameters
from harness_pipelines.ports import rows
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.upkeep import FoldedHistory
from harness_pipelines.protocol.lake.history import NamedMove, number_behind
from harness_pipelines.protocol.moves import MoveClosed
from harness_pipelines.protocol.versions import Version


def in_history(connection: Connection, table: TableRow) -> bool:
    """Return whether the table was compared with its lake in this server's history; its row is locked."""
    row = connection.execute(sql("history/of_table"), {"table_id": table.table_id}).fetchone()
    return row is not None and row["history"] == row["ours"]


def next_version(connection: Connection, head: Version) -> Version:
    """The head once more, by a number that no history gave before."""
    now: Any = connection.execute(sql("reads/now")).fetchone()
    number = number_behind(head.version, now=now["now"])
    return replace(head, version=number, move_id=None, revert_of=None, committed_at=now["now"])


def begin_history(connection: Connection, table: TableRow, *, event: str, lost: Sequence[NamedMove]) -> Version:
    """Publish the head of *table*, whose row is locked, as the first version of a history.

    *event* records its cause. Events continue from the number of the version. The caller ends claims.
    """
    key = {"table_id": table.table_id}
    [newest] = connection.execute(sql("ledger/head"), key).fetchall()
    head = rows.version(newest)
    following = next_version(connection, head)
    told = {"base_version": following.version - 1, "schema_version": head.schema_version}
    made: Any = connection.execute(sql("history/insert_move"), {**key, **told}).fetchone()
    following = replace(following, move_id=made["move_id"])
    connection.execute(sql("ledger/insert_version"), parameters.of_version(following))
    tell(connection, following, after=head, event=event, lost=lost)
    connection.execute(sql("history/begin"), key)
    return following


def tell(connection: Connection, following: Version, *, after: Version, event: str, lost: Sequence[NamedMove]) -> None:
    """Write the event of a version whose number lies behind a history that is over; the event's does too."""
    key = {"table_id": following.table_id}
    connection.execute(sql("history/raise_outbox"), {**key, "below": following.version - 1})
    payload = {
        "version": following.version,
        "move": following.move_id,
        "from": after.version + 1,
        "to": following.version - 1,
        "moves": [one.move_id for one in lost],
    }
    connection.execute(sql("ledger/append_outbox"), {**key, "event": event, "payload": Jsonb(payload)})


def nonce_of(database: Database, move_id: int) -> str:
    """The nonce of a move that was reserved. Raises: MoveClosed."""
    if not (found := database.rows("history/nonce", {"move_id": move_id})):
        raise MoveClosed(f"move {move_id} is not in the ledger; nothing was written")
    return str(found[0]["nonce"])


def told_of(database: Database, table: TableRow) -> FoldedHistory | None:
    """How far the history of *table* is folded; None: nothing is."""
    return _told(database.rows("fold/told", {"table_id": table.table_id}))


def also_told(connection: Connection, table: TableRow) -> str:
    """The same as the end of a sentence, in the transaction of *connection*."""
    told = _told(connection.execute(sql("fold/told"), {"table_id": table.table_id}).fetchall())
    return "" if told is None or not told.version else f"; {told}"


def _told(found: Sequence[Any]) -> FoldedHistory | None:
    words = ("version", "versions", "event", "events", "folded_at")
    return FoldedHistory(**{word: found[0][word] for word in words}) if found else None


class TableHistories:
    """Histories of the tables of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def connections(self) -> int:
        """How many were made so far: another one may lead to another server."""
        return self._database.connections

    def ask(self, table: TableRow) -> None:
        """Ask the server something, so that one that was lost is connected to again."""
        self._of(table)

    def known(self, table: TableRow, move_ids: Sequence[int]) -> dict[int, set[str]]:
        """The nonces under which the ledger has, or gave up, each of the moves."""
        found: dict[int, set[str]] = {}
        key = {"table_id": table.table_id, "move_ids": list(move_ids)}
        for row in self._database.rows("history/known", key):
            found.setdefault(row["move_id"], set()).add(row["nonce"] or "")
        return found

    def highest_move(self, table: TableRow) -> int:
        """The largest number that the ledger gave to a move of *table* that writes files; 0 if none."""
        return int(self._database.rows("reconcile/highest_move", {"table_id": table.table_id})[0]["move_id"])

    def begin(self, table: TableRow, *, event: str) -> Version | None:
        """Begin this server's history of the table and fence its workers; None where it has begun already."""
        found = self._of(table)
        if not found or found[0]["history"] == found[0]["ours"]:
            return None
        key = {"table_id": table.table_id}
        with self._database.transaction() as connection:
            connection.execute(sql("ledger/lock_row"), key)
            if in_history(connection, table):  # another worker was first
                return None
            made = begin_history(connection, table, event=event, lost=())
            connection.execute(sql("reconcile/fence_all"), key)
        return made

    def _of(self, table: TableRow) -> Sequence[Any]:
        return self._database.rows("history/of_table", {"table_id": table.table_id})
