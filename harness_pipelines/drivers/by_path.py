"""A cache of values computed from immutable files, by path."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")


class ByPath(Generic[Value]):
    """A bounded cache: the path names content that never changes, so an entry never goes stale. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: OrderedDict[str, Value] = OrderedDict()
        self._lock = Lock()

    def __contains__(self, path: str) -> bool:
        with self._lock:
            return path in self._known

    def get(self, path: str, make: Callable[[], Value]) -> Value:
        """The value for *path*, made (outside the lock, perhaps twice) when it is not known."""
        with self._lock:
            if path in self._known:
                self._known.move_to_end(path)
                return self._known[path]
        made = make()
        with self._lock:
            self._known[path] = made
            while len(self._known) > self._limit:
                self._known.popitem(last=False)
        return made
