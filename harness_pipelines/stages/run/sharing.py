"""The tables of a worker: those that it was given, or its share of all that the ledger has for workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import TYPE_CHECKING

import structlog

from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import ALIVE_LEASES, patience_s, share
from harness_pipelines.stages.run.claims import take_all
from harness_pipelines.stages.run.table_units import ON_ENGINE

if TYPE_CHECKING:
    from harness_pipelines.stages.run.table_units import OfProcess, TableUnits

log = structlog.get_logger(__name__)
LOOK_EVERY_S = 5.0  #: how often the ledger is asked for tables and workers
MODE = "external_worker"


class Tables:
    """The tables of a worker. One thread looks; others read `all`, which is replaced as a whole.

    With `shares` the tables of the ledger come and go, and each belongs to the worker that asks for its claims first.
    One that another worker has rests here. If nobody takes it for a lease, the next in order does.
    """

    def __init__(self, worker: OfProcess, tables: list[TableRow], make: Callable[[TableRow], TableUnits]) -> None:
        self._worker, self._make = worker, make
        self.all: list[TableUnits] = [make(table) for table in tables]
        self.numbers = frozenset(table.table_id for table in tables)
        self._shares = worker.options.shares
        self._workers: frozenset[str] = frozenset()
        self._looked_at = -inf  # monotonic seconds
        self._free_since: dict[int, float] = {}  # monotonic seconds, by table, while nobody has a claim of it
        self._told: dict[str, str] = {}  # why a table cannot be taken, by name
        for one in self.all:
            one.is_resting = self._shares

    def start(self) -> None:
        """Let the tables begin that no other worker is asked to take."""
        if self._shares:
            self.look()
        else:
            self._begin(self.all)

    def look(self) -> None:
        """Ask the ledger now and then for tables and workers, and begin and end what follows. Raises: as the ledger."""
        if not self._shares:
            return
        now = time.monotonic()
        if now >= self._looked_at + LOOK_EVERY_S:
            self._looked_at = now  # before anything is asked: what is announced meanwhile is asked for again
            try:
                self._share(self._asked())
            except HarnessError:
                self.have_changed()
                raise
        self._take_over()
        self._hand_over()

    def _asked(self) -> frozenset[str]:
        """The workers; the tables are those that the ledger has."""
        options = self._worker.options
        alive_for = options.lease * ALIVE_LEASES
        workers = self._worker.stores.ledger.beat(self._worker.holder, options.stages, lease=alive_for)
        self._follow()
        return workers

    def leave(self) -> None:
        """Let the other workers know that this one ends."""
        if self._shares:
            try:
                self._worker.stores.ledger.leave(self._worker.holder)
            except HarnessError as away:  # its time is over soon
                log.info("worker.not_left", error=str(away))

    def _follow(self) -> None:
        """Make units for tables that came, and let go of those that are gone or that no worker may have any more."""
        wanted = {number: name for number, (name, mode) in self._worker.stores.ledger.modes().items() if mode == MODE}
        for one in self.all:
            if one.table.table_id not in wanted:
                log.info("worker.table_left", table=one.table.name)
                one.rest()
        gone = [one for one in self.all if one.table.table_id not in wanted and not one.is_alive]
        self._release(gone)
        known = {one.table.table_id for one in self.all}
        came = self._made([name for number, name in wanted.items() if number not in known])
        self.all = [one for one in self.all if one not in gone] + came
        self.numbers = frozenset(one.table.table_id for one in self.all)

    def have_changed(self) -> None:
        """The next look asks the ledger which tables there are. Called by other threads."""
        self._looked_at = -inf

    def _made(self, names: Collection[str]) -> list[TableUnits]:
        """Of the tables called *names* those that can be taken, resting; what keeps the others is logged once."""
        if not names:
            return []
        tables, sick = self._worker.stores.ledger.survey(names)
        left_out = {one.name: one.why for one in sick}
        left_out |= {table.name: why for table in tables if (why := self._lacks(table)) is not None}
        for name, why in left_out.items():
            if self._told.get(name) != why:
                self._told[name] = why
                log.warning("worker.table_left_out", table=name, error=why)
        made = []
        for table in tables:
            if table.name not in left_out:
                self._told.pop(table.name, None)
                log.info("worker.table_came", table=table.name)
                made.append(self._make(table))
                made[-1].is_resting = True
        return made

    def _lacks(self, table: TableRow) -> str | None:
        """What this machine lacks for the stages of *table*."""
        stores, stages = self._worker.stores, self._worker.options.stages
        try:
            if stages & ON_ENGINE:  # one thread imports what its engine needs, before a unit does
                stores.engine.check([table], tasks=False)
        except UsageError as why:
            return str(why)
        return None

    def _share(self, workers: frozenset[str]) -> None:
        """Take the tables that are this worker's; when workers came or went, rest those that are another's."""
        changed, self._workers = workers != self._workers, workers
        mine = share(self._worker.holder, workers, [one.table.table_id for one in self.all])
        if changed:
            log.info("worker.shares", workers=len(workers), tables=len(mine))
        self._begin([one for one in self.all if one.is_resting and one.table.table_id in mine])
        for one in self.all:
            if changed and one.table.table_id not in mine and not one.is_resting:
                one.rest()

    def _begin(self, tables: Sequence[TableUnits]) -> None:
        """Let the stages of *tables* begin. The claims of several are taken together."""
        worker = self._worker
        if len(tables) > 1:
            keepers, rows = [keeper for one in tables for keeper in one.keepers], [one.table for one in tables]
            take_all(worker.stores.ledger, keepers, rows, holder=worker.holder, lease=worker.options.lease)
        for one in tables:
            one.start()

    def _take_over(self) -> None:
        """Take what the workers that come first have left alone, each for a lease."""
        now, lease_s = time.monotonic(), self._worker.options.lease.total_seconds()
        free: list[TableUnits] = []
        for one in self.all:
            number = one.table.table_id
            if not one.is_resting or one.pulse is None or one.pulse.claims:
                self._free_since.pop(number, None)
                continue
            free_s = now - self._free_since.setdefault(number, now)
            if free_s >= patience_s(self._worker.holder, self._workers, number, lease_s=lease_s):
                log.info("worker.took_over", table=one.table.name, free_s=round(free_s, 1))
                free.append(one)
        self._begin(free)

    def _hand_over(self) -> None:
        """Give back the claims of tables that rest and have come to an end."""
        self._release([one for one in self.all if one.is_resting and one.holds_claims and not one.is_alive])

    def _release(self, tables: list[TableUnits]) -> None:
        stages = [stage for one in tables for stage in one.leave()]
        if stages:
            self._worker.stores.ledger.release_all(self._worker.holder, stages)
