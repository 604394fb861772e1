"""Pauses between retries: they grow, and jitter spreads retries that failed together."""

from __future__ import annotations

import random

JITTER = 0.25  #: of a pause, at most
_dice = random.Random()  # the process's generator stays as its owner, a program or a test, has seeded it


def jittered(pause_s: float) -> float:
    """Return *pause_s*, changed by up to `JITTER` of it."""
    return pause_s * _dice.uniform(1 - JITTER, 1 + JITTER)


class Pauses:
    """Each pause is twice the previous one, up to a limit, until a success."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._next_s = first_s

    def worked(self) -> None:
        """Start over with the first pause."""
        self._next_s = self._first_s

    def next_s(self) -> float:
        """Return the next pause in seconds."""
        pause_s = self._next_s
        self._next_s = min(pause_s * 2, self._longest_s)
        return jittered(pause_s)
