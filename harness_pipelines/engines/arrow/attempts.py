"""What this process's stages do on the engine just now, so that it can be ended from another thread."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from harness_pipelines.errors import TryAgain
from harness_pipelines.protocol.claims import FencedOut

Item = TypeVar("Item")


class EngineInterrupted(TryAgain):
    """This process is ending, so its work on the engine was given up."""


class Work:
    """One attempt. It asks between two batches whether it shall go on."""

    def __init__(self, interrupted: threading.Event) -> None:
        self._interrupted, self.is_given_up = interrupted, False

    def check(self) -> None:
        """Raises: EngineInterrupted, FencedOut."""
        if self._interrupted.is_set():
            raise EngineInterrupted("what the engine did was given up: this process is ending; nothing was published")
        if self.is_given_up:
            raise FencedOut(
                "what the engine did was given up: the claim that it was done under is lost, so nothing of it could be "
                "published"
            )

    def each(self, items: Iterable[Item]) -> Iterator[Item]:
        """*items*, for as long as it shall go on."""
        for item in items:
            self.check()
            yield item


class Attempts:
    """All of one process."""

    def __init__(self) -> None:
        self._interrupted, self._lock = threading.Event(), threading.Lock()
        self._works = list[tuple[Hashable, Work]]()

    @contextmanager
    def working(self, owner: Hashable) -> Iterator[Work]:
        """Work of *owner*. Raises: EngineInterrupted."""
        work = Work(self._interrupted)
        work.check()
        with self._lock:
            self._works.append((owner, work))
        try:
            yield work
            work.check()
        finally:
            with self._lock:
                self._works.remove((owner, work))

    def give_up(self, owner: Hashable) -> None:
        with self._lock:
            for of, work in self._works:
                work.is_given_up = work.is_given_up or of == owner

    def interrupt(self) -> None:
        self._interrupted.set()
