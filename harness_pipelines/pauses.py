"""Pauses between tries of what fails: they grow, and two that failed together do not come back together."""

from __future__ import annotations

import random

JITTER = 0.25  #: of a pause, at most


class Pauses:
    """Each pause is twice the one before, up to a limit, until something worked."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._next_s = first_s

    def worked(self) -> None:
        """The next pause is the first one again."""
        self._next_s = self._first_s

    def next_s(self) -> float:
        """Seconds to wait now."""
        pause_s = self._next_s
        self._next_s = min(pause_s * 2, self._longest_s)
        return pause_s * random.uniform(1 - JITTER, 1 + JITTER)
