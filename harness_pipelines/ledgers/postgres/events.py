"""Events of a table, recorded in the transactions that caused them: each once, in order, without gaps."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager

from harness_pipelines.drivers.postgres import Database
from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.ledgers.postgres.history.numbers import told_of
from harness_pipelines.ledgers.postgres.notify import News
from harness_pipelines.ledgers.postgres.states import StateClaim, StateCommit
from harness_pipelines.ports.events import Event
from harness_pipelines.ports.ledger import TableRow

EVENTS_AT_ONCE = 1_000
FOLDED = "folded"  #: the event that stands for all before it
IDLE_S = 15.0  #: a third of a subscriber's lease and less


class EventsFolded(HarnessError):
    """Events behind a consumer's position are no longer in the ledger, which keeps no position for it."""

    way_on = "read the table, then continue behind its last event; the ledger keeps what a `--subscriber` waits for"


class Outbox:
    """The events of the tables of one ledger."""

    def __init__(self, database: Database, news: News) -> None:
        self.database, self._news = database, news

    def events(self, table: TableRow, *, after: int, follow: bool) -> Iterator[Event]:
        """The events behind number *after*; with *follow* those to come are waited for, some milliseconds each.

        An event `folded` stands in front where those from the first one on are folded: its payload has their number.
        Raises: PostgresUnreachable; a consumer continues after the last event that it has. EventsFolded, when some
        behind *after* are folded: a subscriber whose position the ledger keeps never meets that.
        """
        return (event for event in self._events(table, after=after, follow=follow) if event is not None)

    @contextmanager
    def subscription(
        self, held: StateClaim, table: TableRow, *, last: StateCommit | None, after: int, follow: bool
    ) -> Iterator[Subscription]:
        """The events that the subscriber with state *held* has not processed; a new one starts behind *after*.

        Raises: UsageError when the state is not of a subscriber to this table.
        """
        if last is not None:
            after = _cursor(held.name, last, table)
        else:  # known from now on: that it gets no event at all is seen too
            held.commit({}, checkpoint=str(after), payload={"events_of": table.name})
        with closing(self._events(table, after=after, follow=follow)) as events:
            yield Subscription(held, table, events)

    def _events(self, table: TableRow, *, after: int, follow: bool) -> Generator[Event | None]:
        """The same, and None now and then while nothing happens."""
        if (folded := told_of(self.database, table)) is not None and after < folded.event:
            if after > 0:
                raise EventsFolded(
                    f"{table.name}: events {after + 1}-{folded.event} were folded on {folded.folded_at:%Y-%m-%d}, as "
                    "older than its `retention.history`, and no subscriber had asked for them"
                )
            after, payload = folded.event, {"version": folded.version, "events": folded.events}
            yield Event(seq=after, event=FOLDED, payload=payload, table_id=table.table_id)
        while True:
            heard = self._news.heard(table.table_id) if follow else 0
            key = {"table_id": table.table_id, "after": after, "limit": EVENTS_AT_ONCE}
            found = self.database.rows("reads/events", key)
            for row in found:
                after = row["seq"]
                yield Event(seq=after, event=row["event"], payload=row["payload"], table_id=table.table_id)
            if len(found) == EVENTS_AT_ONCE:
                continue
            if not follow:
                return
            self._news.wait(table.table_id, heard, IDLE_S)
            yield None


class Subscription:
    """Iterate over it once: whoever asks for the next event says that the one before is dealt with.

    The ledger keeps where the subscriber is, so that an event comes again after a crash in the middle of it, and in
    order always.
    """

    def __init__(self, held: StateClaim, table: TableRow, events: Iterator[Event | None]) -> None:
        self._held, self._events = held, events
        self._subscribed = {"events_of": table.name, "table_id": table.table_id}

    def __iter__(self) -> Iterator[Event]:
        """Raises: FencedOut when the lease ended during an event: another one may have begun with it."""
        for event in self._events:
            if event is None:
                self._held.renew()
                continue
            yield event
            self._held.commit({}, checkpoint=str(event.seq), payload=self._subscribed)

    def renew(self) -> None:
        """Ask for another lease, during an event that takes long. Raises: FencedOut."""
        self._held.renew()


def _cursor(name: str, last: StateCommit, table: TableRow) -> int:
    """The number of the event that the subscriber *name* has dealt with; 0 of a table that was made again since.

    Raises: UsageError.
    """
    of = last.payload.get("events_of") if isinstance(last.payload, dict) else None
    if of != table.name:
        what = f"a subscriber to {of}" if of else "a consumer of records"
        raise UsageError(f"{name} is the state of {what}: give the subscriber to {table.name} its own name")
    return int(last.checkpoint) if last.payload.get("table_id", table.table_id) == table.table_id else 0
