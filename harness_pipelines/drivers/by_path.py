"""A cache of values computed from immutable files, by path."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar

Value = TypeVar("Value")


def _one(_: object) -> int:
    return 1


class ByPath:
    """A bounded cache: the path names content that never changes, so an entry never goes stale. Thread-safe.

    *limit* bounds what all entries weigh together. An entry weighs 1 unless `get` is given another weight, such as
    bytes. *kind* says what was made of a file, of which there may be several.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._weight = limit, 0
        self._known: OrderedDict[tuple[str, str], tuple[Any, int]] = OrderedDict()
        self._lock = Lock()

    def has(self, path: str, *, kind: str = "") -> bool:
        with self._lock:
            return (kind, path) in self._known

    def get(
        self, path: str, make: Callable[[], Value], *, kind: str = "", weigh: Callable[[Value], int] = _one
    ) -> Value:
        """The value for *path*, made (outside the lock, perhaps twice) when it is not known."""
        key = (kind, path)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                found: Value = self._known[key][0]
                return found
        made = make()
        weight = weigh(made)
        with self._lock:
            self._weight += weight - self._known.pop(key, (None, 0))[1]
            self._known[key] = made, weight
            while self._weight > self._limit and len(self._known) > 1:
                self._weight -= self._known.popitem(last=False)[1][1]
        return made

    def forget(self, path: str) -> None:
        """Whatever was made of *path*: what was read of it was not what it holds."""
        with self._lock:
            for key in [key for key in self._known if key[1] == path]:
                self._weight -= self._known.pop(key)[1]

    def clear(self) -> None:
        with self._lock:
            self._known.clear()
            self._weight = 0
