"""How long ingest lets records gather before it commits them, by what a table promises and how busy the process is.

Each commit costs a transaction, however few records it has. A record that comes after a pause never waits: the time
counts from the last commit.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable
from math import floor

AT_ONCE_S = 0.1  #: a table that promises this, or less, is committed as fast as it goes
OF_OBJECTIVE = 1 / 50  #: of what others promise: so long records gather while the process has room
OF_OBJECTIVE_MAX = 1 / 2  #: and so long at most, with the commit; the rest is for what else may be slow
TABLE_S = 0.0015  #: what one more table that commits adds to the time between two commits of each
CROWD = 20  #: this many tables, or fewer, do not keep each other waiting
TICK_S = 0.05  #: commits of many tables come at its multiples, so that they share transactions
ROOM = 0.7  #: share of the processors from which on the process counts as busy
WINDOW_S = 1.0  #: over which the load is measured


def commit_every_s(visible_s: float, *, commit_s: float, load: float, tables: int = 1) -> float:
    """Seconds from the begin of one commit to that of the next one, while records keep coming.

    *visible_s* is the objective of the table (`freshness.visible`), *commit_s* what the last commit took, *load* the
    share of the processors that the process used lately, from 0 to 1, *tables* how many of them commit now. With a
    commit it never takes more than half of the objective, unless the commit alone does: then the next one follows at
    once.
    """
    most = max(0.0, visible_s * OF_OBJECTIVE_MAX - commit_s)
    least = 0.0 if visible_s <= AT_ONCE_S else visible_s * OF_OBJECTIVE
    if tables > CROWD:
        least = max(least, tables * TABLE_S)
    busy = min(max((load - ROOM) / (1 - ROOM), 0.0), 1.0)
    return min(least + busy * max(0.0, most - least), most)


def at_tick(begun: float, every_s: float) -> float:
    """The moment at most *every_s* after *begun* at which others commit too."""
    at = begun + every_s
    tick = floor(at / TICK_S + 1e-6) * TICK_S
    return tick if tick > begun else at


def processors() -> int:
    """How many of them this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ProcessLoad:
    """The share of the processors that the process used in the last whole window; 0 before the first one is over."""

    def __init__(
        self,
        *,
        used_s: Callable[[], float] = time.process_time,
        now: Callable[[], float] = time.monotonic,
        cores: int | None = None,
    ) -> None:
        self._used_s, self._now, self._cores = used_s, now, cores or processors()
        self._since, self._used, self._share = now(), used_s(), 0.0

    def share(self) -> float:
        """From 0 to 1."""
        passed = (now := self._now()) - self._since
        if passed >= WINDOW_S:
            used = self._used_s()
            self._share = min((used - self._used) / passed / self._cores, 1.0)
            self._since, self._used = now, used
        return self._share


class Pace:
    """When the loops of one process commit next. Thread-safe."""

    def __init__(self, load: ProcessLoad | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        self._load, self._now = load or ProcessLoad(), now
        self._lock = threading.Lock()
        self._since = now()
        self._now_seen: set[Hashable] = set()
        self._before: set[Hashable] = set()  # that committed in the window before this one

    def next_at(self, loop: Hashable, begun: float, *, visible_s: float, commit_s: float) -> float:
        """When *loop* should commit again, which *begun* its last commit then; monotonic seconds."""
        with self._lock:
            tables, load = self._count(loop), self._load.share()
        return at_tick(begun, commit_every_s(visible_s, commit_s=commit_s, load=load, tables=tables))

    def _count(self, loop: Hashable) -> int:
        """How many loops committed in the last window."""
        passed_s = self._now() - self._since
        if passed_s >= WINDOW_S:
            self._before = self._now_seen if passed_s < 2 * WINDOW_S else set()
            self._now_seen, self._since = set(), self._now()
        self._now_seen.add(loop)
        return max(len(self._before), len(self._now_seen))
