"""How long ingest lets records gather before it commits them, by what a table promises and how busy the process is.

Each commit costs a transaction, however few records it has. A record that comes after a pause never waits: the time
counts from the last commit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

AT_ONCE_S = 0.1  #: a table that promises this, or less, is committed as fast as it goes
OF_OBJECTIVE = 1 / 50  #: of what others promise: so long records gather while the process has room
OF_OBJECTIVE_MAX = 1 / 2  #: and so long at most, with the commit; the rest is for what else may be slow
ROOM = 0.7  #: share of the processors from which on the process counts as busy
WINDOW_S = 1.0  #: over which the load is measured


def commit_every_s(visible_s: float, *, commit_s: float, load: float) -> float:
    """Seconds from the begin of one commit to that of the next one, while records keep coming.

    *visible_s* is the objective of the table (`freshness.visible`), *commit_s* what the last commit took, *load* the
    share of the processors that the process used lately, from 0 to 1. With a commit it never takes more than half of
    the objective, unless the commit alone does: then the next one follows at once.
    """
    most = max(0.0, visible_s * OF_OBJECTIVE_MAX - commit_s)
    least = 0.0 if visible_s <= AT_ONCE_S else visible_s * OF_OBJECTIVE
    busy = min(max((load - ROOM) / (1 - ROOM), 0.0), 1.0)
    return min(least + busy * max(0.0, most - least), most)


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
