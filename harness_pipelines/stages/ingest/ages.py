"""How old records are when they can be read, and when they are in the lake, by the timestamps that they have. No I/O.

The clock is the caller's. A record that is "younger than now" (the producer's clock is ahead) counts as new.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Reached = Literal["readable", "lake"]
WINDOW_S, SLOT_S = 300, 60  #: quantiles are of the last minutes, which go out of them one by one
PER_DECADE, AGE_S_MIN, AGE_S_MAX = 20, 1e-3, 1e7
#: Upper ends of the classes of ages in seconds: a quantile is at most an eighth above the true one.
BOUNDS = AGE_S_MIN * 10 ** (np.arange(int(np.log10(AGE_S_MAX / AGE_S_MIN) * PER_DECADE) + 1) / PER_DECADE)
MARK_MS, MARKS_FINE, MARK_COARSE_MS = 1_000, 2_000, 60_000


@dataclass(slots=True)
class Ages:
    """Counts of ages; written by one thread."""

    total: int = 0
    late: int = 0  #: older than the objective
    _slots: dict[int, NDArray[np.int64]] = field(default_factory=dict)  # by minute

    def add(self, ages_s: NDArray[np.float64], *, goal_s: float, now_s: float, weight: int = 1) -> None:
        """Count *ages_s*, each for *weight* records."""
        self.total += len(ages_s) * weight
        self.late += int((ages_s > goal_s).sum()) * weight
        classes = np.minimum(np.searchsorted(BOUNDS, ages_s), len(BOUNDS) - 1)
        counted = np.bincount(classes, minlength=len(BOUNDS)) * weight
        at = int(now_s // SLOT_S)
        if (found := self._slots.get(at)) is not None:
            self._slots[at] = found + counted
            return
        kept = {slot: one for slot, one in self._slots.items() if slot > at - WINDOW_S // SLOT_S}
        self._slots = {**kept, at: counted}  # another thread may go through the one before

    def slots(self, now_s: float) -> NDArray[np.int64]:
        """Counts by class of the last minutes."""
        oldest = now_s // SLOT_S - WINDOW_S // SLOT_S
        found = [one for slot, one in self._slots.items() if slot > oldest]
        return np.sum(found, axis=0) if found else np.zeros(len(BOUNDS), dtype=np.int64)


def quantile(counts: NDArray[np.int64], share: float) -> float | None:
    """The age in seconds that *share* of the counted records do not exceed; None: none was counted."""
    total = int(counts.sum())
    if not total:
        return None
    return float(BOUNDS[int(np.searchsorted(np.cumsum(counts), share * total))])


@dataclass(slots=True)
class _Mark:
    """Records of one partition that were taken together, or soon after each other."""

    high: int  #: the offset behind the last one
    oldest_ms: int
    newest_ms: int
    records: int


@dataclass(slots=True)
class Waiting:
    """Records of one partition that are readable and not in the lake: one thread adds them, another one takes them."""

    marks: deque[_Mark] = field(default_factory=deque)
    _lock: Lock = field(default_factory=Lock)  #: the last mark is changed by one thread and taken by the other

    def add(self, high: int, timestamps_ms: NDArray[np.int64]) -> None:
        """Records with these timestamps were taken, up to offset *high*."""
        with self._lock:
            self._add(high, int(timestamps_ms.min()), int(timestamps_ms.max()), len(timestamps_ms))

    def _add(self, high: int, oldest: int, newest: int, records: int) -> None:
        last = self.marks[-1] if self.marks else None
        span_ms = MARK_MS if len(self.marks) < MARKS_FINE else MARK_COARSE_MS
        if last is not None and max(newest, last.newest_ms) - min(oldest, last.oldest_ms) < span_ms:
            self.marks[-1] = _Mark(
                high, min(oldest, last.oldest_ms), max(newest, last.newest_ms), last.records + records
            )
        else:
            self.marks.append(_Mark(high, oldest, newest, records))

    def below(self, bound: int) -> list[tuple[int, int]]:
        """Take what lies below *bound*: the oldest timestamp and the number of records of each mark."""
        found = []
        with self._lock:
            while self.marks and self.marks[0].high <= bound:
                mark = self.marks.popleft()
                found.append((mark.oldest_ms, mark.records))
        return found
