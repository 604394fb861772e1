"""Promises in seconds, judged on a machine that may be busy.

What users are promised, they are promised on a machine that has time for the process. A test machine may give each
process a third of its time or less, and differently from minute to minute. So the same share is measured while the
promise is tested: a short computation, again and again, whose time by the clock is compared with its time on a
processor. By that the promise is stretched. On an idle machine it is judged as it is.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

BURST, TIMES = bytes(8 * 1024 * 1024), 6  #: some 30 ms of work and more: longer than a turn on a busy processor
EVERY_S = 0.25


def burst() -> tuple[float, float]:
    """Seconds of a short computation by the clock and on a processor. It does not hold the interpreter's lock."""
    began_s, worked_s = time.perf_counter(), time.thread_time()
    for _ in range(TIMES):
        hashlib.sha256(BURST).digest()
    return time.perf_counter() - began_s, time.thread_time() - worked_s


class Load:
    """How many times as long as on an idle machine everything takes, from the making of this to the last burst."""

    def __init__(self) -> None:
        self._clock_s = self._worked_s = 0.0
        self.note()

    def note(self) -> None:
        clock_s, worked_s = burst()
        self._clock_s += clock_s
        self._worked_s += worked_s

    @property
    def stretch(self) -> float:
        return max(1.0, self._clock_s / self._worked_s)


@contextmanager
def within(promise_s: float, what: str) -> Iterator[None]:
    """What the block does takes less than *promise_s*, times the load of the machine in the meantime.

    The block's own deadlines must be later, or they end it first. Raises: AssertionError, which names *what*.
    """
    load, over = Load(), threading.Event()

    def watch() -> None:
        while not over.wait(EVERY_S):
            load.note()

    watching = threading.Thread(target=watch, name="load", daemon=True)
    watching.start()
    began_s = time.monotonic()
    try:
        yield
        took_s = time.monotonic() - began_s
    finally:
        over.set()
        watching.join()
    load.note()
    bound_s = promise_s * load.stretch
    assert took_s < bound_s, f"{what} took {took_s:.1f} s of {promise_s:g} s, {bound_s:.1f} s under this load"
