"""Renew the leases of running reads in one thread; a read starts no thread."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Protocol

from harness_pipelines.errors import TryAgain
from harness_pipelines.ports.access import HasLeases
from harness_pipelines.protocol.reading.plan import ReadPlan

IDLE_S = 60.0  #: how long the thread sleeps when no read is under way


class Ports(HasLeases, Protocol):
    """The ports that it uses."""


class Hold:
    """Keeps the lease of one read alive until `finish` or `end`."""

    def __init__(self, stores: Ports, plan: ReadPlan, lease: timedelta) -> None:
        self._stores, self._plan, self._lease = stores, plan, lease
        self._failed: BaseException | None = None
        self._finished = False
        _RENEWALS.add(self, every_s=lease.total_seconds() / 3)

    def renew(self) -> None:
        """The periodic work of the thread."""
        try:
            self._stores.leases.renew(self._plan.lease_id, lease=self._lease)
        except TryAgain:
            pass  # the next renewal, or the check at the end, decides
        except BaseException as error:
            # LeaseEnded or a defect: it ends this read alone, for the thread renews those of all others.
            self._failed = error
            _RENEWALS.remove(self)

    def check(self) -> None:
        """Raises: LeaseEnded when what was read may be incomplete; what else kept the lease from being renewed."""
        if self._failed is not None:
            raise self._failed
        self._stores.leases.renew(self._plan.lease_id, lease=self._lease)

    def finish(self) -> None:
        """The check after all rows were read, which also gives the lease back. Raises: LeaseEnded."""
        _RENEWALS.remove(self)
        if self._failed is not None:
            raise self._failed
        self._finished = True
        self._stores.leases.finish(self._plan.lease_id)

    def end(self) -> None:
        """Give the lease back, if it was not yet."""
        _RENEWALS.remove(self)
        if not self._finished:
            self._stores.leases.end(self._plan.lease_id)


class Renewals:
    """The thread and what it has to renew; it starts with the first hold and sleeps through reads that are short."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[Hold, tuple[float, float]] = {}  #: when next, how often
        self._looks_at = 0.0
        self._thread: threading.Thread | None = None

    def add(self, hold: Hold, *, every_s: float) -> None:
        with self._changed:
            due = time.monotonic() + every_s
            self._due[hold] = (due, every_s)
            if self._thread is None or not self._thread.is_alive():  # a forked process has none
                self._looks_at = due
                self._thread = threading.Thread(target=self._run, name="lease-renewals", daemon=True)
                self._thread.start()
            elif due < self._looks_at:
                self._looks_at = due
                self._changed.notify()

    def remove(self, hold: Hold) -> None:
        with self._changed:
            self._due.pop(hold, None)

    def _run(self) -> None:
        while True:
            for hold in self._wait():
                hold.renew()

    def _wait(self) -> list[Hold]:
        """The holds that are due, once some are."""
        with self._changed:
            while True:
                now = time.monotonic()
                due = [hold for hold, (at, _) in self._due.items() if at <= now]
                for hold in due:
                    every_s = self._due[hold][1]
                    self._due[hold] = (now + every_s, every_s)
                if due:
                    return due
                self._looks_at = min((at for at, _ in self._due.values()), default=now + IDLE_S)
                self._changed.wait(self._looks_at - now)


_RENEWALS = Renewals()
