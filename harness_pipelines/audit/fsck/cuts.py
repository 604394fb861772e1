"""Rules of fsck for cuts: what servers show follows on what they showed before, and its files are there.

That the files of the versions of cuts are there is asked together with those of all other versions in reach (S10).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Protocol

from harness_pipelines.audit.fsck.rule import CutFilesSeen, Look, Objection, rule
from harness_pipelines.drivers.files import SameFile
from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.access import HasCutFiles, HasFiles, HasTableStates
from harness_pipelines.ports.files import Unreadable
from harness_pipelines.ports.serving.cuts import CutDamaged
from harness_pipelines.ports.table_state import SHOWN_MAX, Books
from harness_pipelines.protocol.cut_checks import ListedCut, check_deletes, check_freshness
from harness_pipelines.protocol.cut_rows import CutRow, NamedCutRow
from harness_pipelines.spec.locations import is_below, normal

UNLISTED_MAX = 1_000  #: files that no listing shows and that are asked for, each by a request
NAMED_MAX = 20  #: cuts of named snapshots whose metadata is read, the newest ones
WAY_ON = "a server retires the newest cut when it is loaded next, and makes another; older ones end by their time"
BUFFERED_MAX = 4  #: bytes of chunks for each byte of the buffer, while small ones are put together
FREE_BYTES = 64 * 1024 * 1024
REMOVED_WITHIN = timedelta(hours=1)  #: two runs of expire with a grace in between, and a server that writes meanwhile


class Ports(HasCutFiles, HasFiles, HasTableStates, Protocol):
    """The ports that it uses."""


def seen_in(books: Books, stores: Ports) -> CutFilesSeen:
    """List the folders of cuts, and read what the newest one says. Raises: OSError, StoreRefused, LakeAway.

    What is in memory are the files that there are: names that the ledger has of others are not kept.
    """
    same, files = SameFile(), stores.files
    stored = {same.key(file.path): file for folder in books.cut_folders for file in files.listed(folder)}
    named: set[str] = set()
    unlisted: list[str] = []
    for path, is_served in stores.table_states.cut_files(books.table_id):
        if (key := same.key(path)) in stored:
            named.add(key)
        elif is_served and len(unlisted) < UNLISTED_MAX:
            unlisted.append(path)
    grace = timedelta(seconds=books.spec.retention.grace)
    old = datetime.now(UTC) - 3 * grace - REMOVED_WITHIN
    newest = books.cuts.newest
    is_shown = newest is not None and newest.alive and not newest.retired
    sizes = newest.sizes.items() if newest is not None and is_shown else ()
    return CutFilesSeen(
        # Some stores list a new file a minute late.
        missing=tuple(sorted(path for path in unlisted if files.size_of(path) is None)),
        cut_off=tuple(
            sorted(path for path, size in sizes if (file := stored.get(same.key(path))) and file.bytes != size)
        ),
        newest=_listed(newest, stores) if newest is not None and is_shown else None,
        named={row.sequence: _listed(row, stores) for row in books.named_cuts[-NAMED_MAX:]},
        bytes=sum(file.bytes for file in stored.values()),
        named_bytes=sum(file.bytes for key, file in stored.items() if key in named),
        young_bytes=sum(
            file.bytes
            for key, file in stored.items()
            if key not in named and (file.modified is None or file.modified > old)
        ),
    )


def _listed(row: CutRow | NamedCutRow, stores: Ports) -> ListedCut | HarnessError:
    try:
        return stores.cut_files.listed(row.metadata)
    except CutDamaged as damage:
        return damage


def _of(look: Look, invariant: str) -> Iterator[Objection]:
    for one in look.books.cuts.wrong:
        if one.invariant == invariant:
            yield Objection(one.subject, one.detail)


@rule("F2", "one cut has one snapshot id, its metadata says the same, and numbers and times of cuts rise", "cuts")
def cuts_are_numbered(look: Look) -> Iterator[Objection]:
    """Metadata files are read of the newest cut and of named ones. Whether all have one uuid is not looked at."""
    yield from _of(look, "F2")
    for row, cut in _shown(look):
        yield from _says_another(row, cut)


def _says_another(row: CutRow | NamedCutRow, cut: ListedCut) -> Iterator[Objection]:
    ends = {p: high for p, (_, _, _, high) in cut.bounds.items()}
    said = (cut.snapshot_id, cut.sequence, cut.version, ends)
    if said != (known := (row.snapshot_id, row.sequence, row.version, dict(row.high))):
        words = ("snapshot", "sequence", "version", "offsets")
        word, seen, noted = next(one for one in zip(words, said, known, strict=True) if one[1] != one[2])
        detail = f"the metadata of cut {row.sequence} has the {word} {_short(seen)}, the ledger {_short(noted)}"
        yield Objection(f"metadata of cut {row.sequence}", detail)


def _shown(look: Look) -> Iterator[tuple[CutRow | NamedCutRow, ListedCut]]:
    """The newest cut, and named ones, with what they say, if it can be read."""
    row, cut = look.books.cuts.newest, _newest(look)
    if row is not None and cut is not None:
        yield row, cut
    seen = look.cut_files or CutFilesSeen()
    for named in look.books.named_cuts:
        found = seen.named.get(named.sequence)
        if isinstance(found, ListedCut):
            yield named, found


def _newest(look: Look) -> ListedCut | None:
    """What the newest cut says, if it can be read."""
    found = look.cut_files.newest if look.cut_files else None
    return found if isinstance(found, ListedCut) else None


def _short(value: object) -> str:
    return str(value)[:200]


@rule("F3", "the files of a cut whose time has not ended are there, and so is its version", "cuts")
def cuts_are_whole(look: Look) -> Iterator[Objection]:
    """Those of cuts that a server has retired are left out: what is lost of them is known, and none is served again."""
    known, seen = {version.version for version in look.books.versions}, look.cut_files or CutFilesSeen()
    named = [(row.version, row.sequence) for row in look.books.named_cuts]
    for version, sequence in (*look.books.cuts.versions.items(), *named):
        if version not in known:
            yield Objection(f"cut {sequence}", f"cut {sequence} is of version {version}, which is gone")
    if isinstance(seen.newest, HarnessError):
        yield Objection("the newest cut", f"{seen.newest}; {WAY_ON}")
    for sequence, found in seen.named.items():
        if isinstance(found, HarnessError):
            yield Objection(f"cut {sequence}", f"cut {sequence} of a named snapshot: {found}; {WAY_ON}")
    for path in seen.cut_off[:SHOWN_MAX]:
        yield Objection(path, f"{path}, a chunk of the newest cut, has another size than was written; {WAY_ON}")
    for path in seen.missing[:SHOWN_MAX]:
        yield Objection(path, f"{path} is not there; a cut names it, of which queries fail; {WAY_ON}")
    if (more := len(seen.missing) - SHOWN_MAX) > 0:
        least = "at least " if len(seen.missing) >= UNLISTED_MAX else ""
        yield Objection("more files of cuts", f"{least}{more:,} more files that cuts name are not there")


@rule("F4", "deletes of a cut are no older than the files whose rows they hide, and it names these", "cuts")
def cuts_hide_what_they_name(look: Look) -> Iterator[Objection]:
    for _, cut in _shown(look):
        for one in islice(check_deletes(cut), SHOWN_MAX):
            yield Objection(one.detail, one.detail)


@rule("F5", "in the order in which they were published, no cut shows less than the one before, but of what is merged")
def cuts_never_fall(look: Look) -> Iterator[Objection]:
    yield from _of(look, "F5")


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


@rule("F9", "a cut that ends below what its version knew of the buffer says that it is not fresh", "cuts")
def cuts_say_how_fresh_they_are(look: Look) -> Iterator[Objection]:
    """The newest cut alone."""
    cut = _newest(look)
    version = next((one for one in look.books.versions if cut is not None and one.version == cut.version), None)
    if cut is None or version is None:
        return
    known = {p: bounds.buffer_hi for p, bounds in version.bounds.items() if p in cut.bounds}
    for one in check_freshness(cut, buffer_hi=known):
        yield Objection(f"cut {cut.sequence}", one.detail)
