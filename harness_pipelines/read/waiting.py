"""Waiting until a record is readable; one waiter of a table queries for all of them."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness_pipelines.ports.events import News
from harness_pipelines.ports.ledger import Ledger, NotInTime, TableRow


@dataclass(slots=True)
class _Looked:
    """The last look at a table."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    heard: int = -1  #: what it shows at least
    found: Mapping[int, int] = field(default_factory=dict)


class Waits:
    """The waiters of a process. Thread-safe."""

    def __init__(self, news: News, ledger: Ledger) -> None:
        self._news, self._ledger = news, ledger
        self._looked: defaultdict[int, _Looked] = defaultdict(_Looked)

    def for_offset(self, table: TableRow, partition: int, offset: int, *, timeout_s: float) -> None:
        """Return as soon as a read shows the record at *offset*. Raises: NotInTime, PostgresUnreachable."""
        deadline = time.monotonic() + timeout_s
        if self._look(table).get(partition, -1) > offset:  # usually it is there at once, and no listener is needed
            return
        while True:
            heard = self._news.heard(table.table_id)
            found = self._positions(table, heard).get(partition)
            if found is not None and found > offset:
                return
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise NotInTime(
                    f"{table.name}: partition {partition} is at {'no offset' if found is None else found}, offset "
                    f"{offset} is not readable after {timeout_s:g} s; is a worker running (`harness run {table.name}`)?"
                )
            self._news.wait(table.table_id, heard, left_s)

    def _positions(self, table: TableRow, heard: int) -> Mapping[int, int]:
        """How far ingest is, as of a look that was begun when *heard* was heard, or later."""
        last = self._looked[table.table_id]
        with last.lock:
            if last.heard < heard:
                now = self._news.heard(table.table_id)
                last.found, last.heard = self._look(table), now
            return last.found

    def _look(self, table: TableRow) -> Mapping[int, int]:
        return {p.partition: p.bounds.buffer_hi for p in self._ledger.positions(table)}
