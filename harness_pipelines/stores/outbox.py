"""What happened to a table, as it was recorded in the transactions that did it: each event once, in order, no gaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness_pipelines.stores.news import News
from harness_pipelines.stores.ports import TableRow
from harness_pipelines.stores.postgres import Database

EVENTS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened to a table."""

    seq: int  #: 1, 2, 3, ... of the table: who has it has all before it
    event: str  #: created, published, reverted, reconciled, accepted-foreign
    payload: Mapping[str, Any]  #: the version that it made, the move that made it, ...

    def to_json(self) -> dict[str, Any]:
        return {"seq": self.seq, "event": self.event, **self.payload}


class Outbox:
    """The events of the tables of one ledger."""

    def __init__(self, database: Database, news: News) -> None:
        self.database, self._news = database, news

    def events(self, table: TableRow, *, after: int, follow: bool) -> Iterator[Event]:
        """The events behind number *after*; with *follow* those to come are waited for, some milliseconds each.

        Raises: PostgresUnreachable; a consumer goes on behind the last event that it has.
        """
        while True:
            heard = self._news.heard(table.table_id) if follow else 0
            key = {"table_id": table.table_id, "after": after, "limit": EVENTS_AT_ONCE}
            found = self.database.rows("reads/events", key)
            for row in found:
                after = row["seq"]
                yield Event(seq=after, event=row["event"], payload=row["payload"])
            if len(found) == EVENTS_AT_ONCE:
                continue
            if not follow:
                return
            self._news.wait(table.table_id, heard, 60.0)
