"""What a mirror does about what a foreign catalog shows of a view.

A mirror only follows: what it makes a server show is a published version, and it builds on nothing else. So what is
there is judged first, by the snapshot of main (a random number of 63 bits that no other table has) and by the property
that names the version. A snapshot that the ledger did not publish is foreign, and stops the mirror by name.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from harness_pipelines.errors import HarnessError, Recovery

VERSION = "harness.version"  #: property of a mirrored view: the version that it shows
METADATA_PATH = "write.metadata.path"  #: where a server writes metadata: outside the folder of our own view


class ForeignInMirror(HarnessError):
    """Another writer changed a mirrored table in a foreign catalog; the mirror stops, the table continues."""

    way_on = (
        "end that writer, then `harness mirror drop TABLE --catalog NAME --yes`: a worker registers the views again. "
        "Rows that it wrote there are only there"
    )
    recovery = Recovery.REFRESH


class MirrorNameTaken(HarnessError):
    """A foreign catalog has another table under the name of a view; it is left alone."""

    way_on = "another `namespace` under `catalogs`, or rename that table"
    recovery = Recovery.REFRESH


class MirrorStep(StrEnum):
    """What brings a view of a mirror to its target."""

    REGISTER = "register"  #: it is not there
    FOLLOW = "follow"  #: it shows an older version, or does not say yet which one it shows
    NOTHING = "nothing"
    OVERTAKEN = "overtaken"  #: it shows a newer version: another worker has the claim by now


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A view as a foreign catalog shows it."""

    uuid: str  #: of the table; a server may give one of its own
    snapshot: int | None  #: that main names; None: there is none
    version: int | None  #: that it says it shows; None: it was registered, and nothing else yet
    names: tuple[str, ...]  #: metadata files that the server names, the one in force first


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSnapshot:
    """What the ledger has of the snapshot that was seen."""

    newest: int | None  #: the newest version whose view has it; None: no version ever had
    is_of_version: bool  #: whether the version that the view names is one with it


def judge(
    where: str, seen: Seen | None, known: KnownSnapshot, *, uuids: Collection[str], snapshot: int, version: int
) -> MirrorStep:
    """What to do about *seen* so that it shows *snapshot*, that of the *version* to be mirrored.

    *where* names table, view and catalog; *uuids* are those of our own view and of the table as it was registered.
    Raises: MirrorNameTaken, ForeignInMirror.
    """
    if seen is None:
        return MirrorStep.REGISTER
    if known.newest is None and seen.uuid not in uuids:
        raise MirrorNameTaken(
            f"{where}: a table is there that this ledger never registered (uuid {seen.uuid}); it was left alone"
        )
    if known.newest is None:
        raise ForeignInMirror(
            f"{where}: it is at snapshot {seen.snapshot}, which no version of the ledger has: another writer committed "
            "to it, or the ledger lost history. The mirror stops here, the table itself continues"
        )
    if seen.version is not None and not known.is_of_version:
        raise ForeignInMirror(
            f"{where}: it says that it shows version {seen.version}, and is at the snapshot of version {known.newest}: "
            "another writer set it back. The mirror stops here, the table itself continues"
        )
    if seen.snapshot == snapshot and seen.version is not None:
        return MirrorStep.NOTHING
    return MirrorStep.OVERTAKEN if seen.snapshot != snapshot and known.newest > version else MirrorStep.FOLLOW


def went_back(seen: Seen, noted: int | None) -> bool:
    """Return whether the server shows less than it once did: it was restored from a backup."""
    return noted is not None and seen.version is not None and seen.version < noted
