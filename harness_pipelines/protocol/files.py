"""What can be told of stored files without opening them: what they hold, and whether they may go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from harness_pipelines.errors import HarnessError, Recovery


class FilesGone(HarnessError):
    """A file that was to be replaced is not live any more, or was deleted from: replaced by somebody else, reverted."""

    recovery = Recovery.REFRESH


def check_untouched(seen: Mapping[str, str | None], live: Mapping[str, str | None]) -> None:
    """What a change replaces, or hides rows of, must be as it was seen: live, and with the same delete file.

    Both map the paths of data files to those of their delete files, `None` where no row is hidden.
    Raises: FilesGone (REFRESH).
    """
    if missing := sorted(set(seen) - set(live)):
        raise FilesGone(f"{missing[0]} and {len(missing) - 1} more are not live any more; nothing was replaced")
    for path, known in seen.items():
        if (now := live[path]) != known:
            raise FilesGone(f"{path} has been deleted from ({now}, not {known}); nothing was replaced")


def check_merged_into(snapshot: int | None, base_snapshot: int, *, table: str, move_id: int) -> None:
    """A keyed merge fits only the *snapshot* that it was merged into: a newer file may hold a key that it did not meet.

    ``None`` fits any. Raises: FilesGone (REFRESH).
    """
    if snapshot not in (None, base_snapshot):
        raise FilesGone(f"{table}: the batch view is not the one that move {move_id} was merged into")


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
