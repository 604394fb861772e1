"""Which stored files may be marked for deletion."""

from __future__ import annotations

from datetime import datetime, timedelta


def condemned_before(*, oldest_open: datetime | None, grace: timedelta, now: datetime) -> datetime:
    """Files that nothing reaches and that are older than this may be condemned (S27).

    Whatever is younger may belong to a move that is still open: *oldest_open* is when the first of these was planned.
    """
    return min(oldest_open or now, now) - grace
