"""A pool of threads that run the units of all tables of a process, each as `schedule` says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nlargest
from math import inf
from typing import Protocol, runtime_checkable

import structlog

from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages.run.schedule import THREADS_MAX, Schedule, Turn

log = structlog.get_logger(__name__)
NAMED_EVERY_S = 60.0  #: how often the log has a unit that is late, or that runs for long
LINES_EVERY_S, LINES_MAX = 5.0, 5  #: how often the log has such units, and how many of them


class Unit(Protocol):
    """Work that is done again and again. It is never run by two threads at once."""

    @property
    def turn(self) -> Turn: ...
    @property
    def stage(self) -> Stage: ...

    def run(self) -> float:
        """Do some of it; how many seconds from now on it is due again, `inf`: when it is asked for."""
        ...


@runtime_checkable
class JoiningUnit(Unit, Protocol):
    """Work that is cheaper when that of several units is done together: its turn says when it may be."""

    def run_with(self, others: Sequence[Unit]) -> list[float]:
        """Do some of it and of *others*, units of its kind; for each what `run` gives."""
        ...


class Pool:
    """Threads are started as they are needed, up to a bound. Thread-safe.

    *broken* gets what a unit raises: units handle what they can, so the process cannot go on as if nothing had been.
    """

    def __init__(self, broken: Callable[[BaseException], None]) -> None:
        self._broken = broken
        self._schedule = Schedule()
        self._units: dict[Turn, Unit] = {}
        self._changed = threading.Condition()
        self._idle, self._stopped = 0, False
        self._looks_at = -inf  #: when the thread that waits for the next due unit wakes; `-inf`: none waits
        self._has_leader = False
        self._threads: list[threading.Thread] = []
        self._named: dict[tuple[Turn, str], float] = {}  # when the log had it last, or counted it
        self._lines_at: dict[str, float] = {}  # when the log had lines of a kind last

    def ask(self, unit: Unit, *, in_s: float = 0.0) -> None:
        """*unit* is due *in_s* seconds from now on, at the latest."""
        if in_s == inf:
            return
        at = time.monotonic() + in_s
        with self._changed:
            if self._stopped:
                return
            self._units[unit.turn] = unit
            self._schedule.ask(unit.turn, at)
            if not self._threads:
                self._start()
            elif at < self._looks_at:
                self._changed.notify_all()

    def drop(self, unit: Unit) -> None:
        """Run *unit* no more; what runs ends as it would."""
        with self._changed:
            self._schedule.drop(unit.turn)
            self._units.pop(unit.turn, None)

    def is_running(self, unit: Unit) -> bool:
        with self._changed:
            return unit.turn.started_at is not None

    def stop(self) -> None:
        """Begin no more units."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @property
    def is_alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def join(self, timeout_s: float) -> None:
        """Wait for the threads to end, for *timeout_s* at most."""
        deadline = time.monotonic() + timeout_s
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    def late(self) -> dict[Unit, float]:
        """The units that wait for longer than they may, and for how many seconds beyond that."""
        with self._changed:
            found = self._schedule.late(time.monotonic())
            return {self._units[turn]: late_s for turn, late_s in found.items() if turn in self._units}

    def running_s(self) -> dict[Unit, float]:
        """The units that run, and for how many seconds they have."""
        now = time.monotonic()
        with self._changed:
            return {
                self._units[turn]: now - turn.started_at
                for turn in self._schedule.running
                if turn.started_at is not None and turn in self._units
            }

    def name_slow(self) -> None:
        """Log units that are late and those that run for long, now and then."""
        now = time.monotonic()
        with self._changed:
            late, long = self._schedule.late(now), self._schedule.long(now)
        for turn, seconds, others in self._to_name("late", late, now):
            log.warning(
                "unit.late",
                table=turn.table,
                work=turn.work,
                late_s=round(seconds, 1),
                objective_s=turn.objective_s,
                others=others,
            )
        for turn, seconds, others in self._to_name("long", long, now):
            log.warning("unit.runs_long", table=turn.table, work=turn.work, running_s=round(seconds, 1), others=others)

    def _to_name(self, what: str, slow: Mapping[Turn, float], now: float) -> Iterator[tuple[Turn, float, int]]:
        """The slowest of *slow* that were not named lately, its seconds, and how many others there are.

        After a start with a thousand tables, all of them are late for a while: the log has some of them.
        """
        self._named = {key: at for key, at in self._named.items() if key[1] != what or key[0] in slow}
        found = [turn for turn in slow if now >= self._named.get((turn, what), -inf) + NAMED_EVERY_S]
        if not found or now < self._lines_at.get(what, -inf) + LINES_EVERY_S:
            return
        self._lines_at[what] = now
        self._named |= {(turn, what): now for turn in found}
        for turn in nlargest(LINES_MAX, found, key=slow.__getitem__):
            yield turn, slow[turn], len(found) - 1

    # -- threads --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start one more thread. The lock is held."""
        thread = threading.Thread(target=self._work, name=f"unit-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while units := self._next():
            next_at = [inf] * len(units)
            try:
                pauses_s = _run(units)
                next_at = [time.monotonic() + pause_s for pause_s in pauses_s]
            except BaseException as error:  # a defect of the worker: it ends by it instead of going on without a unit
                self._broken(error)
            with self._changed:
                for unit, at in zip(units, next_at, strict=True):
                    self._schedule.done(unit.turn, at if unit.turn in self._units else inf)
                if self._schedule.next_at(time.monotonic()) < self._looks_at:
                    self._changed.notify_all()

    def _next(self) -> list[Unit]:
        """Wait for a unit that is due; with it come others that run together with it. Empty: the pool ends.

        One thread watches the time, the others wait for it.
        """
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                if (turn := self._schedule.take(now)) is not None:
                    joined = self._schedule.join(turn, now)
                    if self._idle:
                        self._changed.notify()
                    elif len(self._threads) < THREADS_MAX:
                        self._start()
                    return [self._units[one] for one in (turn, *joined)]
                self._wait(now)
            return []

    def _wait(self, now: float) -> None:
        """Wait for a change, or as the one that watches the time for the next due unit. The lock is held."""
        self._idle += 1
        try:
            if self._has_leader:
                self._changed.wait()
                return
            self._has_leader, self._looks_at = True, self._schedule.next_at(now)
            try:
                self._changed.wait(None if self._looks_at == inf else max(0.0, self._looks_at - now))
            finally:
                self._has_leader, self._looks_at = False, -inf
        finally:
            self._idle -= 1


def _run(units: Sequence[Unit]) -> list[float]:
    """Run *units*, and say for each in how many seconds it is due again."""
    first, *others = units
    if not others:
        return [first.run()]
    assert isinstance(first, JoiningUnit), first
    return first.run_with(others)
