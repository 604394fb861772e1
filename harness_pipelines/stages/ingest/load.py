"""How busy this process keeps its processors."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

WINDOW_S = 1.0  #: over which it is measured


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
