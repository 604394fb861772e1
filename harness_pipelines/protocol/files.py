"""What can be told of stored files without opening them: what they hold, and whether they may go."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta


def condemned_before(*, oldest_open: datetime | None, grace: timedelta, now: datetime) -> datetime:
    """Files that nothing reaches and that are older than this may be condemned (S27).

    Whatever is younger may belong to a move that is still open: *oldest_open* is when the first of these was planned.
    """
    return min(oldest_open or now, now) - grace


def rows_below(files: Iterable[tuple[int, int, int]], high: int) -> tuple[int, int]:
    """How many rows at least and at most have an offset below *high* (S19).

    *files* are (rows, first offset, last offset); both offsets are those of rows.
    """
    least = most = 0
    for rows, first, last in files:
        if last < high:
            least, most = least + rows, most + rows
        elif first < high:  # a row on either side at least
            least, most = least + 1, most + rows - 1
    return least, most
