"""When refused records are too many to continue."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def leading(rows: Sequence[int], refused: Sequence[int]) -> int:
    """How many offsets of *refused* lie below the first of *rows*."""
    first = min(rows, default=None)
    return len(refused) if first is None else sum(1 for offset in refused if offset < first)


def one_too_many(earlier: Sequence[int], refused: Sequence[int], *, of_last: int, records_max: int) -> int | None:
    """The first offset of *refused* with which more than *records_max* of the last *of_last* offsets are refused.

    Both are ascending offsets of one partition, *earlier* those below *refused* that are refused already (of the last
    *of_last* offsets at least). The answer depends on offsets alone: not on how records came in batches.
    """
    known = [*earlier, *refused]
    for i in range(len(earlier), len(known)):
        within = i + 1 - bisect_right(known, known[i] - of_last)
        if within > records_max:
            return known[i]
    return None
