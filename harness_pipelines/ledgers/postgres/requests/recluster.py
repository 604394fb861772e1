"""Requests to rewrite parts of a batch view, in the ledger; any worker's otree stage carries them out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from psycopg.types.json import Jsonb

from harness_pipelines.drivers.postgres import Database, sql
from harness_pipelines.layout.requested import Request
from harness_pipelines.ledgers.postgres.notify import announce
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.requests import Asked, LeftOut, RequestCancelled, RequestLost


class Reclusters:
    """The requests of one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def open(self, table: TableRow) -> list[Request]:
        """Those that are not done, oldest first."""
        return [_request(row) for row in self.database.rows("recluster/open", {"table_id": table.table_id})]

    def is_open(self, table: TableRow, request: Request) -> bool:
        """Whether *request* waits for a worker still. Raises: RequestCancelled, RequestLost."""
        key = {"table_id": table.table_id, "request_id": request.request_id, "upto": request.upto}
        for row in self.database.rows("recluster/is_open", key):
            if row["cancelled"]:
                raise RequestCancelled.of(table, request.request_id)
            return bool(row["is_open"])
        raise RequestLost.of(table, request.request_id)

    def ask(self, table: TableRow, *, paths: tuple[str, ...], upto: int, rebuild: bool) -> Asked:
        """Record a request; an open one for the same parts is gone on with instead."""
        with self.database.transaction() as connection:
            key = {"table_id": table.table_id}
            connection.execute(sql("ledger/lock_table"), key)
            for row in connection.execute(sql("recluster/open"), key):
                found = _request(row)
                if (found.paths, found.rebuild) == (paths, rebuild):
                    return Asked(found, is_new=False)
            wanted = {**key, "paths": Jsonb(list(paths)), "upto": upto, "rebuild": rebuild}
            made = connection.execute(sql("recluster/ask"), wanted).fetchone()
            assert made is not None
            connection.execute(sql("recluster/forget_left_out"), key)  # a person has looked
            announce(connection, table.table_id)
            return Asked(_request(made), is_new=True)

    def end(self, table: TableRow, request: Request) -> None:
        """Close *request*: it is done. A second call changes nothing."""
        self._end(table, request, cancelled=False)

    def cancel(self, table: TableRow, request: Request) -> None:
        """Close *request*: its rest is not wanted. One that has ended stays as it is."""
        self._end(table, request, cancelled=True)

    def _end(self, table: TableRow, request: Request, *, cancelled: bool) -> None:
        key = {"table_id": table.table_id, "request_id": request.request_id, "upto": request.upto}
        self.database.run("recluster/end", {**key, "cancelled": cancelled})

    def leave_out(self, table: TableRow, *, move_id: int, files: Iterable[str], error: str) -> None:
        """Record that the relayout *move_id* of *files* failed in every attempt. A second call changes nothing."""
        given_up = {"move_id": move_id, "table_id": table.table_id, "files": Jsonb(sorted(files)), "error": error}
        self.database.run("recluster/leave_out", given_up)

    def left_out(self, table: TableRow) -> list[LeftOut]:
        """Relayouts that failed in every attempt since the last request for one, oldest first."""
        rows = self.database.rows("recluster/left_out", {"table_id": table.table_id})
        return [LeftOut(row["move_id"], frozenset(row["files"]), row["error"]) for row in rows]


def _request(row: Mapping[str, Any]) -> Request:
    return Request(request_id=row["request_id"], paths=tuple(row["paths"]), upto=row["upto"], rebuild=row["rebuild"])
