"""The worker: all stages of some tables in one process, without Dagster.

A pool of threads does units of work: one stage of one table, once. One look at the ledger says for all tables which
units are due. A unit holds its claim, does its work, and says what happened. Trouble is shown, waited out and tried
again; it is never a reason to skip. A defect holds the stage that met it, by name and with its traceback in the log;
the others continue.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from uuid import uuid4

import structlog

from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages.ingest.pacing import Pace
from harness_pipelines.stages.run.looks import Looks
from harness_pipelines.stages.run.pool import Pool
from harness_pipelines.stages.run.ports import Ports
from harness_pipelines.stages.run.progress import CLAIM_LEASE, TableProgress, WorkerOptions
from harness_pipelines.stages.run.renewals import Renewals
from harness_pipelines.stages.run.sharing import Tables
from harness_pipelines.stages.run.table_units import ON_ENGINE, TableUnits
from harness_pipelines.stages.run.trouble import StageBroken
from harness_pipelines.stages.run.watcher import Watcher

__all__ = ["CLAIM_LEASE", "StageBroken", "TableProgress", "Worker", "WorkerOptions"]

log = structlog.get_logger(__name__)
JOIN_S = 0.5  #: how often a worker that is in a hurry interrupts what its threads have on Spark
HURRY_S_MAX = 8.0  #: how long a worker in a hurry waits for threads that hang in another server


class Worker:
    """Runs stages of tables until it is stopped."""

    def __init__(self, stores: Ports, tables: Sequence[TableRow], options: WorkerOptions) -> None:
        self.stores = stores
        self.options = options
        self.holder = str(uuid4())
        self.stop = threading.Event()
        self._hurried = False
        self._idle_since = math.inf  #: monotonic seconds
        self.defect: BaseException | None = None
        self.renewals = Renewals(stores.ledger, options.lease)
        self.pool, self.pace = Pool(self.broken), Pace()
        self._shared = Tables(self, list(tables), lambda table: TableUnits(self, table))
        self._watcher = Watcher(stores, self.pool, self.stop, self._shared, often=options.until_idle)
        self._looks = Looks(stores, self.holder, self.stop, self._seen)

    @property
    def _tables(self) -> list[TableUnits]:
        return self._shared.all

    @property
    def tables(self) -> list[TableRow]:
        """Those that it has now, in the order of `progress`."""
        return [table.table for table in self._tables]

    @property
    def progress(self) -> list[TableProgress]:
        return [table.progress for table in self._tables]

    def _seen(self) -> list[tuple[TableRow, TableProgress]]:
        """The tables that no other worker has."""
        return [(table.table, table.progress) for table in self._tables if not table.is_resting]

    def slowness(self) -> dict[str, dict[Stage, tuple[float, float]]]:
        """By table and stage the seconds for which due work waits for longer than it may, and for which work runs."""
        late, running = self.pool.late(), self.pool.running_s()
        return {table.table.name: table.slowness(late, running) for table in self._tables if not table.is_resting}

    def interrupt(self) -> None:
        """Stop without waiting for Spark: what it does for a stage is given up, as if the worker had died there."""
        self._hurried = True
        self.stop.set()

    def broken(self, error: BaseException) -> None:
        """End by *error*, which is of the worker itself, instead of going on without a thread."""
        self.defect = error
        self.stop.set()

    def run(self, on_progress: Callable[[list[TableProgress]], None] | None = None, *, every_s: float = 1.0) -> None:
        """Work until stopped, idle or out of time; claims are given back before it returns.

        Raises: the first table's error, if it ends by itself with a table that could not continue, or with a full
        buffer; StageBroken, from what broke it, when it ends with such a stage.
        """
        moved = self.tables if self.options.stages & ON_ENGINE else []
        self.stores.engine.check(moved, tasks=self.options.ingest_on == "spark")
        deadline = None if self.options.for_s is None else time.monotonic() + self.options.for_s
        self._shared.start()
        self._watcher.start()
        self._looks.start()
        try:
            while not self.stop.wait(0.05 if self.options.until_idle else every_s):
                if on_progress:
                    on_progress(self.progress)
                if self.options.until_idle and self._is_idle():
                    break
                if deadline is not None and time.monotonic() >= deadline:
                    break
        except BaseException:  # Dagster or a second Ctrl-C ends this thread
            self._hurried = True
            raise
        finally:
            self._end()
        if self.defect is not None:
            raise self.defect
        for table in self._tables:
            if (why := table.fatal or table.full) and (self.options.until_idle or isinstance(why, StageBroken)):
                raise why

    def _is_idle(self) -> bool:
        """No table has anything left to do, or could do it, for as long as the worker was to wait for more."""
        if not all(table.finished() for table in self._tables):
            self._idle_since = math.inf
            return False
        now = time.monotonic()
        self._idle_since = min(self._idle_since, now)
        return now - self._idle_since >= self.options.linger_s or any(table.fatal for table in self._tables)

    def _end(self) -> None:
        """Wait for the units that run, in a hurry not for those that hang, and give back what the others held."""
        self.stop.set()
        self.pool.stop()
        hurried_at = math.inf
        while any(table.is_alive for table in self._tables) and time.monotonic() < hurried_at + HURRY_S_MAX:
            if self._hurried:
                hurried_at = min(hurried_at, time.monotonic())
                self.stores.engine.interrupt()
            self.pool.join(JOIN_S)
        self._watcher.end()
        self.renewals.end()
        self._release()
        self._shared.leave()
        self._looks.end()

    def _release(self) -> None:
        """Give back the claims of the tables of which nothing runs any more."""
        stages = []
        for table in self._tables:
            if table.is_alive:  # its claims end by themselves; whoever takes them is safe from it
                log.warning("worker.stages_left_running", table=table.table.name, after_s=HURRY_S_MAX)
            else:
                stages += table.leave()
        try:
            if stages:
                self.stores.ledger.release_all(self.holder, stages)
        except HarnessError as away:  # their leases end by themselves
            log.info("claims.release_failed", error=str(away))
