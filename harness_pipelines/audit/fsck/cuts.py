"""Rules of fsck for cuts: what servers show follows on what they showed before, and its files are there.

That the files of the versions of cuts are there is asked together with those of all other versions in reach (S10).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from harness_pipelines.audit.fsck.rule import CutFilesSeen, Look, Objection, rule
from harness_pipelines.drivers.files import SameFile
from harness_pipelines.ports.files import FileStore, Unreadable
from harness_pipelines.ports.table_state import SHOWN_MAX, Books, CutRow
from harness_pipelines.spec.locations import is_below, normal

BUFFERED_MAX = 4  #: bytes of chunks for each byte of the buffer, while small ones are put together
FREE_BYTES = 64 * 1024 * 1024
REMOVED_WITHIN = timedelta(hours=1)  #: two runs of expire with a grace in between, and a server that writes meanwhile


def seen_in(books: Books, files: FileStore) -> CutFilesSeen:
    """List the folders of cuts. Raises: OSError, StoreRefused."""
    same = SameFile()
    stored = {same.key(file.path): file for folder in books.cut_folders for file in files.listed(folder)}
    named = same.keys(path for cut in books.cuts if cut.alive for path in cut.files)
    unlisted = [path for key, path in named.items() if key not in stored]
    grace = timedelta(seconds=books.spec.retention.grace)
    old = datetime.now(UTC) - 3 * grace - REMOVED_WITHIN
    return CutFilesSeen(
        # Some stores list a new file a minute late.
        missing=tuple(sorted(path for path in unlisted if files.size_of(path) is None)),
        bytes=sum(file.bytes for file in stored.values()),
        named_bytes=sum(file.bytes for key, file in stored.items() if key in named),
        young_bytes=sum(
            file.bytes
            for key, file in stored.items()
            if key not in named and (file.modified is None or file.modified > old)
        ),
    )


@rule("F2", "one cut has one snapshot id, and numbers and times of cuts rise")
def cuts_are_numbered(look: Look) -> Iterator[Objection]:
    """Whether each metadata file says the same, its uuid too, is not looked at."""
    for snapshot_id, count in Counter(cut.snapshot_id for cut in look.books.cuts).items():
        if count > 1:
            yield Objection(f"snapshot {snapshot_id}", f"{count} cuts have the snapshot id {snapshot_id}")
    for before, after in pairwise(look.books.cuts):
        for word in ("sequence", "number", "timestamp_ms"):
            was, now = getattr(before, word), getattr(after, word)
            if now <= was:
                yield Objection(
                    f"cut {after.sequence}, {word}",
                    f"cut {after.sequence} has the {word} {now}, cut {before.sequence} before it {was}",
                )


@rule("F3", "the files of a cut whose time has not ended are there, and so is its version", "cuts")
def cuts_are_whole(look: Look) -> Iterator[Objection]:
    known = {version.version for version in look.books.versions}
    for cut in look.books.cuts:
        if cut.alive and cut.version not in known:
            yield Objection(f"cut {cut.sequence}", f"cut {cut.sequence} is of version {cut.version}, which is gone")
    missing = look.cut_files.missing if look.cut_files else ()
    for path in missing[:SHOWN_MAX]:
        yield Objection(path, f"{path} is not there; a cut names it, of which queries fail")
    if len(missing) > SHOWN_MAX:
        yield Objection("more files of cuts", f"{len(missing) - SHOWN_MAX:,} more files that cuts name are not there")


@rule("F5", "in the order in which they were published, no cut shows less than the one before, but after a revert")
def cuts_never_fall(look: Look) -> Iterator[Objection]:
    reverts = {version.version for version in look.books.versions if version.revert_of is not None}
    for before, after in pairwise(look.books.cuts):
        if before.history != after.history:
            continue
        if after.version < before.version:
            yield Objection(
                f"cut {after.sequence}, version",
                f"cut {after.sequence} is of version {after.version}, cut {before.sequence} was of {before.version}",
            )
        elif not any(before.version < version <= after.version for version in reverts):
            yield from _fallen(before, after)


def _fallen(before: CutRow, after: CutRow) -> Iterator[Objection]:
    for partition, was in before.high.items():
        if (now := after.high.get(partition, -1)) < was:
            yield Objection(
                f"cut {after.sequence}, partition {partition}",
                f"partition {partition} ends at offset {now} in cut {after.sequence}, at {was} in {before.sequence}",
            )


@rule("F6", "no view of the lake names a file of a cut", "lake")
def views_name_no_cuts(look: Look) -> Iterator[Objection]:
    folders = [normal(folder) for folder in look.books.cut_folders]
    if not folders:
        return
    for view in look.views.values():
        lists = [one for one in view.survey.lists.values() if not isinstance(one, Unreadable)]
        manifests = [one for one in view.survey.manifests.values() if not isinstance(one, Unreadable)]
        named = {manifest.path for found in lists for manifest in found} | {*view.survey.metadata, *view.survey.lists}
        named |= {file.path for found in manifests for file in found}
        for path in sorted(named):
            if any(is_below(normal(path), folder) for folder in folders):
                yield Objection(path, f"{view.title} names {path}, a file of a cut: expire removes it")


@rule("F7", "the folders of cuts are bounded by what is buffered and what servers keep", "cuts")
def cuts_are_bounded(look: Look) -> Iterator[Objection]:
    seen, books = look.cut_files or CutFilesSeen(), look.books
    allowed = BUFFERED_MAX * books.buffered_bytes + seen.named_bytes + seen.young_bytes + FREE_BYTES
    if seen.bytes > allowed:
        yield Objection(
            "folders of cuts",
            f"the folders of cuts have {seen.bytes:,} bytes, of which live cuts name {seen.named_bytes:,} and "
            f"{seen.young_bytes:,} are new; the buffer has {books.buffered_bytes:,}: does expire run?",
        )
