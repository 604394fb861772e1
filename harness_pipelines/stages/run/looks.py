"""Observations of a worker for monitoring: log ends, stalled stages and their errors.

It has its own thread, so that a server that hangs holds up nothing but the looks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import sub
from typing import Protocol

import structlog

from harness_pipelines.errors import HarnessError
from harness_pipelines.pauses import Pauses
from harness_pipelines.ports.access import HasCosts, HasLakeReads, HasLog, HasStalls, HasTables, HasWatch
from harness_pipelines.ports.errors import KafkaFailed, KafkaUnreachable, TopicForbidden, TopicMissing
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import OpenTransaction, Watermark
from harness_pipelines.ports.upkeep import Spent
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages import compact
from harness_pipelines.stages.run.progress import TableProgress

log = structlog.get_logger(__name__)
FIRST_S = 1.0  #: a run that is over sooner is not looked at
EVERY_S, EVERY_S_MAX = 5.0, 60.0  #: the pauses grow while a look fails
LAKE_EVERY_S = 60.0  #: how often the manifests of a table are looked at
FRESH_S = 6.0  #: a log that did not answer the worker in so long is not asked for more
END_S = 2.0
Seen = Callable[[], Sequence[tuple[TableRow, TableProgress]]]


class Ports(HasCosts, HasLakeReads, HasLog, HasStalls, HasTables, HasWatch, Protocol):
    """The ports that it uses."""


class Looks:
    """Looks at the tables of one worker until it stops."""

    def __init__(self, stores: Ports, holder: str, stop: threading.Event, seen: Seen) -> None:
        self._stores, self._holder, self._stop, self._seen = stores, holder, stop, seen
        self._thread: threading.Thread | None = None
        # By table: the metadata file without small files with the hash of the spec that says what is small, and when it
        # was looked at in monotonic seconds.
        self._lake_at: dict[int, tuple[tuple[str, int] | None, float]] = {}

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="looks", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait for a look that is under way, but not for a server that hangs."""
        if self._thread is not None:
            self._thread.join(END_S)
            if not self._thread.is_alive():
                with suppress(HarnessError):  # the ledger is away: what was spent in the last seconds is not counted
                    self._note_spent(self._seen())

    def _run(self) -> None:
        pause_s, pauses = FIRST_S, Pauses(EVERY_S, EVERY_S_MAX)
        while not self._stop.wait(pause_s):
            try:
                self.look()
                pauses.worked()
            except Exception as error:  # the outer edge: the stages continue, and nothing else would report it
                if not isinstance(error, HarnessError):
                    log.exception("looks.broken")
                elif not self._stop.is_set():
                    log.info("looks.failed", error=str(error))
            pause_s = pauses.next_s()

    def look(self) -> None:
        """Look once. Raises: what Kafka and Postgres raise."""
        tables = self._seen()
        self._stores.stalls.note_troubles(self._holder, {t.name: dict(p.trouble) for t, p in tables if p.trouble})
        self._look_at_logs(tables)
        self._look_at_lakes([one for one in tables if Stage.COMPACT in one[0].effects])
        self._stores.stalls.note([table.name for table, _ in tables])
        self._note_spent(tables)
        for table, progress in tables:
            progress.note_in_lake(goal_s=table.spec.freshness.lake, now_s=time.time())

    def _note_spent(self, tables: Sequence[tuple[TableRow, TableProgress]]) -> None:
        """Add what stages took since the last look to the day's costs."""
        now = [(table.name, seen, seen.spent()) for table, seen in tables]
        since = {
            (name, stage): tuple(map(sub, took, seen.noted.get(stage, (0, 0.0))))
            for name, seen, of_stages in now
            for stage, took in of_stages.items()
        }
        if spent := [
            Spent(table=name, stage=stage, taken_bytes=int(taken), cpu_s=cpu_s)
            for (name, stage), (taken, cpu_s) in since.items()
            if taken or cpu_s
        ]:
            self._stores.costs.add(spent)
            for _, seen, of_stages in now:
                seen.noted = of_stages

    def _look_at_lakes(self, tables: Sequence[tuple[TableRow, TableProgress]]) -> None:
        """Note which stream views have small files, whatever the stage that should see to it says."""
        for table, progress in tables:
            known_at, looked_at = self._lake_at.get(table.table_id, (None, -LAKE_EVERY_S))
            is_known = known_at is not None and known_at == (progress.stream, table.spec_hash)
            if self._stop.is_set() or is_known or time.monotonic() < looked_at + LAKE_EVERY_S:
                continue
            with suppress(HarnessError):  # the stages show it
                head = self._stores.tables.head(table)
                worth_it = bool(compact.due(self._stores, table, head))
                seen = None if worth_it else (head.stream.metadata, table.spec_hash)
                self._lake_at[table.table_id] = seen, time.monotonic()
                self._stores.stalls.note_small_files(table.table_id, worth_it=worth_it)

    def _look_at_logs(self, tables: Sequence[tuple[TableRow, TableProgress]]) -> None:
        """Note the ends that the worker saw, and what lies behind open transactions."""
        now = time.monotonic()
        seen = {
            table.table_id: (table, progress, {p: end for p, end in progress.ends.items() if p >= 0})
            for table, progress in tables
            if progress.ends_at is not None and now - progress.ends_at <= FRESH_S
        }
        seen = {number: one for number, one in seen.items() if one[2]}
        if self._stop.is_set() or not seen:
            return
        marks = {
            number: {p: Watermark(progress.starts[p], end) for p, end in ends.items()}
            for number, (_, progress, ends) in seen.items()
        }
        self._stores.watch.record_ends(marks)
        asked: dict[str, set[int]] = {}
        for table, _, ends in seen.values():
            asked.setdefault(table.spec.topic, set()).update(ends)
        unstable = self._stores.log.unstable(asked)
        held: dict[int, dict[int, OpenTransaction | None]] = {}
        for number, (table, progress, ends) in seen.items():
            with suppress(KafkaUnreachable, KafkaFailed, TopicMissing, TopicForbidden):  # the stages show it
                is_unstable = table.spec.topic in unstable
                progress.held = self._stores.log.held(table.spec.topic, ends) if is_unstable else {}
                held[number] = {p: progress.held.get(p) for p in ends}
        self._stores.watch.record_held(held)
