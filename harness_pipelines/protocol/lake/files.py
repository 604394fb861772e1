"""Facts about stored files from metadata: their content, and whether they may be removed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines.spec.locations import is_below

OF_VIEWS = ("data", "metadata")  #: what there is in the folder of a view


class FilesGone(HarnessError):
    """A file to be replaced is no longer live or has new deletes: another move replaced it, or a revert."""

    recovery = Recovery.REFRESH


def check_untouched(seen: Mapping[str, str | None], live: Mapping[str, str | None]) -> None:
    """A file that a change replaces or hides rows of must be unchanged: live, with the same delete file.

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


class LiveFilesUnlisted(HarnessError):
    """The listing lacks a file that is needed, so it cannot be trusted."""

    missing: tuple[str, ...] = ()  #: where it only lacks them; none where one is listed under another path
    way_on = (
        "`harness fsck TABLE`; restore the file, or mount the warehouse at its old path; expire removes no file before"
    )


class FolderShared(HarnessError):
    """The folder of a table contains another table, whose files look unreachable to the first."""

    way_on = "set the location of the other table back; expire removes no file before"


def check_listed(
    table: str, live: Mapping[str, str], stored: Container[str], *, folders: Sequence[str], loose: Iterable[str]
) -> None:
    """Every *live* file of a listed folder was listed: else a live file may look like one that nothing reaches.

    *live* are paths by their keys, *stored* the keys of the listed files, *folders* keys too; *loose* are the files
    that nothing seems to reach. Names of files are unique, so a loose file with the name of a live one that is not
    listed is that file under another path. Raises: LiveFilesUnlisted.
    """
    unlisted = {key: path for key, path in live.items() if key not in stored}
    missing = sorted(path for key, path in unlisted.items() if any(is_below(key, folder) for folder in folders))
    names = {key.rpartition("/")[2] for key in unlisted}
    twins = sorted(path for path in loose if path.rpartition("/")[2] in names)
    if twins:
        raise LiveFilesUnlisted(
            f"{table}: {twins[0]} is listed, and nothing seems to need it, but a file of this name is needed under "
            "another path. Nothing was removed, and expire removes nothing before this is settled: has the warehouse "
            "moved, or does a link lead to it by another name?"
        )
    if missing:
        error = LiveFilesUnlisted(
            f"{table}: expected to find {missing[0]}, which a version, a lease or the catalog needs; it is not among "
            f"the files that are listed there, nor are {len(missing) - 1} more. Nothing was removed, and expire "
            f"removes nothing while it is so. `harness fsck {table}` names what is lost: bring it back from a copy of "
            "the warehouse, or wait until the versions that need it are out of reach"
        )
        error.missing = tuple(missing)
        raise error


def check_own(table: str, folders: Iterable[str], others: Iterable[str], *, made_in: Container[str]) -> None:
    """No folder of *table* is the folder of another table, lies in one or has one in it. Raises: FolderShared.

    All are the keys of folders, the same for all spellings of one, with links followed. In those that its views were
    *made_in* another one is a guest: another catalog may name the same table.
    """
    known = list(folders)
    for other in others:
        for folder in known:
            if is_below(other, folder):
                shared = f"has another table in it, in {other}"
            elif folder not in made_in and overlap(other, folder):
                shared = f"lies in the folder of another table, {other}"
            else:
                continue
            raise FolderShared(
                f"{table}: its folder {folder} {shared}; expected a folder for itself. Nothing was removed, and "
                f"nothing is while it is so: the location of a view of {table} was changed; set it back, or move the "
                "other table"
            )


def overlap(one: str, other: str) -> bool:
    """Return whether two folders are one or lie in each other; both are keys, as of `check_own`."""
    return one == other or is_below(one, other) or is_below(other, one)


def is_of_view(path: str, folder: str) -> bool:
    """Return whether a file below the *folder* of a view can be the view's; both are in their normal form.

    Somebody may have changed the location of a view to a folder that has other files too.
    """
    return any(is_below(path, f"{folder}/{part}") for part in OF_VIEWS)


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


def shares(first: int, second: int, *, most: int) -> tuple[int, int]:
    """How many of *first* and *second* things are done in a run that does *most*: half each, and what one leaves.

    So neither waits for ever behind the other, however many there are of it.
    """
    taken = min(first, max(most // 2, most - second))
    return taken, min(second, most - taken)


def owner_path(path: str) -> str:
    """The file that a Hadoop checksum (``.name.crc`` beside ``name``) belongs to; any other file is its own."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{name[1:-4]}" if name.startswith(".") and name.endswith(".crc") else path
