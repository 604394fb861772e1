"""Commit notifications: one connection listens for all waiters of a process.

An ingest commit is announced after it, in a separate transaction: Postgres lets transactions that notify commit
one after the other, flush of the disk included, which would let the tables of a database wait for each other. What
is not announced (its sender was killed) is found by polling.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import psycopg
import structlog

from harness_pipelines.drivers.postgres import READER, Connection, sql
from harness_pipelines.drivers.postgres_session import session_dsn
from harness_pipelines.pauses import Pauses
from harness_pipelines.secret import redact

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 0.5  #: without notifications: one was lost, or the connection takes no LISTEN (a pooler's)
LOST_S_MAX = 5.0  #: between two tries to listen again
TICK_S = 0.2  #: how long closing may take
CLOSE_S = 2.0
IDLE_S = 60.0  #: without a waiter the connection is closed
TABLES = "tables"  #: what is announced where the tables or their specs have changed
Hear = Callable[[int | None], None]  #: of the table that something happened to; None: see `TABLES`


def announce(connection: Connection, table_id: int | None = None) -> None:
    """Announce with the commit of *connection*'s transaction that something was asked of a table, or `TABLES`."""
    connection.execute(sql("ledger/announce"), {"payload": TABLES if table_id is None else str(table_id)})


class News:
    """What happened to which tables, as counters that grow. Thread-safe."""

    def __init__(self, dsn: str) -> None:
        self._dsn = session_dsn(dsn, role=READER)
        self._changed = threading.Condition()
        self._all = 0  #: anything may have happened so often
        self._of: Counter[int] = Counter()
        self._waited_at = 0.0
        self._followers: list[Hear] = []
        self._thread: threading.Thread | None = None
        self._ends = False

    def heard(self, table_id: int) -> int:
        """How much was heard of the table; what is looked at afterwards shows all of it."""
        with self._changed:
            self._listen()
            return self._all + self._of[table_id]

    def wait(self, table_id: int, heard: int, timeout_s: float) -> None:
        """Return once more than *heard* was heard of the table, or after *timeout_s*."""
        with self._changed:
            self._listen()
            self._changed.wait_for(lambda: self._ends or self._all + self._of[table_id] > heard, timeout_s)

    def follow(self, hear: Hear) -> Callable[[], None]:
        """Call *hear*, which must not wait, for all that is announced, until what is returned is called.

        What is not heard of, as without a connection, has to be found by looking.
        """
        with self._changed:
            self._followers.append(hear)
            self._listen()

        def end() -> None:
            with self._changed, suppress(ValueError):
                self._followers.remove(hear)

        return end

    def close(self) -> None:
        """End the listener and every wait."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(CLOSE_S)  # it may wait for a server that does not answer

    def _listen(self) -> None:
        """Start a listener if there is none. The lock is held."""
        self._waited_at = time.monotonic()
        if not self._ends and (self._thread is None or not self._thread.is_alive()):  # a forked process has none
            self._thread = threading.Thread(target=self._run, name="news", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        pauses = Pauses(LOOK_EVERY_S, LOST_S_MAX)
        while not self._ends_here():
            try:
                self._follow(pauses)
            except psycopg.Error as error:
                log.info("notify.connection_lost", error=redact(str(error)))
                self._tell(None)  # the waiting threads poll, and meet the error themselves
                with self._changed:
                    self._changed.wait_for(lambda: self._ends, pauses.next_s())

    def _follow(self, pauses: Pauses) -> None:
        with Connection.of(self._dsn, autocommit=True) as connection:
            connection.execute(sql("reads/listen"))
            pauses.worked()
            look_at = 0.0
            while not self._is_over():
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + LOOK_EVERY_S
                    self._tell(None)
                for notice in connection.notifies(timeout=TICK_S):
                    self._tell(notice.payload)
                    self._pass_on(notice.payload)

    def _tell(self, payload: str | None) -> None:
        with self._changed:
            if payload is None:
                self._all += 1
            else:
                with suppress(ValueError):  # anybody may use the channel
                    self._of[int(payload)] += 1
            self._changed.notify_all()

    def _pass_on(self, payload: str) -> None:
        with self._changed:
            followers = list(self._followers)
        for hear in followers:
            if payload == TABLES:
                hear(None)
            elif payload.isdecimal():
                hear(int(payload))

    def _ends_here(self) -> bool:
        """As `_is_over`; who waits from then on starts another listener, though this thread may still be there."""
        with self._changed:
            if is_over := self._is_over():
                self._thread = None
            return is_over

    def _is_over(self) -> bool:
        with self._changed:
            is_idle = not self._followers and time.monotonic() - self._waited_at > IDLE_S
            return self._ends or is_idle
