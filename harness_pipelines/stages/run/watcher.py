"""One look at the ledger and one at the logs for all tables of a process: they say which units are due."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import structlog

from harness_pipelines.errors import HarnessError
from harness_pipelines.pauses import Pauses
from harness_pipelines.ports.access import HasLog, HasNews, HasWatch
from harness_pipelines.stages.ingest import new_partitions
from harness_pipelines.stages.run.pool import Pool
from harness_pipelines.stages.run.sharing import Tables
from harness_pipelines.stages.run.table_units import TableUnits

log = structlog.get_logger(__name__)
BUSY_S, IDLE_S = 0.25, 1.0  #: between two looks at the ledger: after one that found a change, and otherwise
OFTEN_S = 0.05  #: between two looks of a worker that is to end as soon as nothing is left, or as long as a look took
LOG_IDLE_S = 4.0  #: between two looks at logs that do not grow; records wake their readers by themselves
AWAY_S_MAX = 5.0
END_S = 2.0  #: how long the end waits for a server that does not answer


class Ports(HasLog, HasNews, HasWatch, Protocol):
    """The ports that it uses."""


class Watcher:
    """Looks for the *tables* of a worker until it stops.

    Each of both has its own thread: a log that does not answer holds up no move.
    """

    def __init__(
        self,
        stores: Ports,
        pool: Pool,
        stop: threading.Event,
        tables: Tables,
        *,
        often: bool,
    ) -> None:
        """*often*: looks follow each other closely, whether something changes or not."""
        self._stores, self._pool, self._stop, self._tables, self._often = stores, pool, stop, tables, often
        self._threads: list[threading.Thread] = []
        self._described_at = -math.inf  # monotonic seconds, when topics were last described
        self._announced = threading.Event()  # something that the ledger would say
        self._unfollow: Callable[[], None] | None = None

    def start(self) -> None:
        self._unfollow = self._stores.news.follow(self._hear)
        for name, look, idle_s in (("watch", self.look, IDLE_S), ("log-ends", self.look_at_logs, LOG_IDLE_S)):
            thread = threading.Thread(target=self._run, args=(name, look, idle_s), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        """Wait for looks that are under way, but not for a server that hangs."""
        if self._unfollow is not None:
            self._unfollow()
        self._announced.set()
        for thread in self._threads:
            thread.join(END_S)

    def _run(self, name: str, look: Callable[[], bool], idle_s: float) -> None:
        pauses = Pauses(BUSY_S, AWAY_S_MAX)
        pause_s = 0.0
        while not self._is_over_after(pause_s, announced=self._announced if look == self.look else None):
            try:
                began_at = time.monotonic()
                changed = look()
                pauses.worked()
                took_s = time.monotonic() - began_at
                pause_s = max(OFTEN_S, took_s) if self._often else BUSY_S if changed else idle_s
            except HarnessError as error:
                log.info("watch.failed", of=name, error=str(error))
                pause_s = pauses.next_s()
            except Exception:  # without this thread nothing would be due any more
                log.exception("watch.broken", of=name)
                pause_s = pauses.next_s()

    def _hear(self, table_id: int | None) -> None:
        """Let the next look at the ledger come at once, if it concerns a table of this worker."""
        if table_id is None:
            self._tables.have_changed()
        if table_id is None or table_id in self._tables.numbers:
            self._announced.set()

    def _is_over_after(self, pause_s: float, *, announced: threading.Event | None) -> bool:
        """Rest for *pause_s*, or until something is *announced*, but not for less than a busy worker; is it to end?"""
        if announced is None or pause_s <= BUSY_S:
            return self._stop.wait(pause_s)
        if not self._stop.wait(BUSY_S):
            announced.wait(pause_s - BUSY_S)
        announced.clear()
        return self._stop.is_set()

    def look(self) -> bool:
        """Ask the ledger once and let what is due begin; whether a table changed. Raises: what the ledger raises."""
        self._tables.look()
        tables, asked_at = list(self._tables.all), time.monotonic()
        self._pool.name_slow()
        try:
            now, found = self._stores.watch.pulses([one.table.table_id for one in tables])
        except HarnessError:
            for one in tables:  # their stages say what is wrong
                one.note(None, asked_at=asked_at, now=0.0)
            raise
        changed = [one.note(found.get(one.table.table_id), asked_at=asked_at, now=now) for one in tables]
        return any(changed)

    def look_at_logs(self) -> bool:
        """Ask for the ends of all logs once; whether one grew. Raises: what Kafka raises."""
        tables = [one for one in self._tables.all if not one.is_resting]
        try:
            if time.monotonic() >= self._described_at + new_partitions.PARTITIONS_EVERY_S:
                self._described_at = time.monotonic()
                self._look_for_partitions(tables)
            return self._look_at_ends(tables)
        except HarnessError:
            for one in tables:  # their stages say what is wrong
                one.poll()
            raise

    def _look_at_ends(self, tables: Sequence[TableUnits]) -> bool:
        wanted: dict[str, set[int]] = {}
        for one in tables:
            if partitions := {p.partition for p in one.progress.positions}:
                wanted.setdefault(one.table.spec.topic, set()).update(partitions)
        asked_at = time.monotonic()
        found = self._stores.log.watermarks_of(wanted) if wanted else {}
        changed = not wanted
        for one in tables:
            marks = found.get(one.table.spec.topic)
            if marks is None or isinstance(marks, HarnessError):
                one.poll()  # its stages show it
                continue
            before = one.progress.ends
            with suppress(KeyError):  # a partition that joined meanwhile
                one.note_ends({p.partition: marks[p.partition] for p in one.progress.positions}, asked_at=asked_at)
            changed = changed or before != one.progress.ends
        return changed

    def _look_for_partitions(self, tables: Sequence[TableUnits]) -> None:
        """Describe all topics once."""
        found = self._stores.log.identities({one.table.spec.topic for one in tables})
        for one in tables:
            one.note_topic(found[one.table.spec.topic])
