"""Corrections: records that act below the bounds, at coordinates that the table has passed, and never move a bound.

A quarantined record that is replayed becomes a row of every view at its own coordinate; a record of a range that is
replayed may become another row, or none. Versions from that one on have it so, older ones never: what an old version
reads is fixed before, by its metadata or by that of the version that answers for what it had buffered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from harness_pipelines.errors import HarnessError, Recovery, TryAgain
from harness_pipelines.protocol.bounds import Bounds, Vector
from harness_pipelines.protocol.versions import Version, View, ViewName, tiered_of, unanswered

Coordinate: TypeAlias = tuple[int, int]  #: Kafka partition and offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which of the records that were quarantined: those for which every word that is given holds.

    Of times the first counts and the last does not.
    """

    reasons: tuple[str, ...] = ()  #: all, where none is named
    partition: int | None = None
    offset: int | None = None
    detail: str | None = None  #: text that the detail contains
    schema_id: int | None = None  #: that the value begins with
    since: datetime | None = None  #: by the record's own time in Kafka
    until: datetime | None = None
    set_aside_since: datetime | None = None
    set_aside_until: datetime | None = None


class CorrectionsMoved(HarnessError):
    """The records to correct changed meanwhile: another command replayed, dropped or reverted them."""

    recovery = Recovery.REFRESH


class AlreadyThere(HarnessError):
    """A view has a row at the coordinate of a quarantined record; nothing was written."""

    way_on = "`harness fsck TABLE`: a view has a row that is also in quarantine"


class ReplayRefused(HarnessError):
    """Quarantined records of this table cannot be replayed."""


class RangeRefused(HarnessError):
    """The range of records cannot be decoded again; nothing was changed."""

    way_on = "`harness replay` with another range or spec, as the message says"


class RangeWaits(TryAgain):
    """A range cannot be replayed yet: an old readable version would see it."""


class Kind(StrEnum):
    """What a correction makes of a record."""

    ADDED = "added"  #: it was no row
    REPLACED = "replaced"  #: it was another row
    REMOVED = "removed"  #: it was a row, and is held in quarantine
    REFUSED = "refused"  #: it was no row and was not held, and is held


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One correction, with digests as text."""

    kind: Kind
    digest: str | None = None  #: of the row that is there from now on
    was: str | None = None  #: of the row that was there


def change_of(was: str | None, now: str | None, *, refused: bool) -> Change | None:
    """Return the correction that turns the row *was* into *now* (None: no row); *refused*: no row means held.

    None: nothing has to be done.
    """
    if was == now:
        return Change(kind=Kind.REFUSED) if refused and now is None else None
    if now is None:
        return Change(kind=Kind.REMOVED, was=was)
    return Change(kind=Kind.ADDED if was is None else Kind.REPLACED, digest=now, was=was)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A correction as the ledger keeps it, in effect or not."""

    at: Coordinate
    version: int
    digest: str | None
    was: str | None


def net(recorded: Iterable[Recorded], *, since: Set[int], to: Set[int]) -> dict[Coordinate, Kind]:
    """What became of each record between two versions, which *since* and *to* (`in_effect`) make up.

    *recorded* are all corrections of these records. Corrections that a revert undid are reported inverted.
    """
    of: dict[Coordinate, list[Recorded]] = {}
    for one in sorted(recorded, key=lambda one: one.version):
        of.setdefault(one.at, []).append(one)
    changes = {at: change_of(_row(all_, since), _row(all_, to), refused=False) for at, all_ in of.items()}
    return {at: change.kind for at, change in changes.items() if change is not None}


def _row(recorded: Sequence[Recorded], versions: Set[int]) -> str | None:
    """The row that the newest of *recorded* in *versions* made, or the one from before all of them."""
    there = [one.digest for one in recorded if one.version in versions]
    return there[-1] if there else recorded[0].was


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why a record cannot be put back yet, and what it takes."""

    why: str
    way_on: str


def settled_below(head: Version) -> dict[int, int]:
    """Per partition: the views that *head* has are settled below it, and tier and otree never come back there."""
    return {p: b.batch_hi if head.batch is not None else b.stream_hi for p, b in head.bounds.items()}


def waiting(
    wanted: Iterable[Coordinate], *, table: str, head: Version, readable: Sequence[Version], versions: Sequence[Version]
) -> dict[Coordinate, Waiting]:
    """Those of *wanted* that cannot be put back now, with the reason.

    *readable* are the versions that may still be read: retained, leased and named. One that had the offset in its
    buffer reads it from the stream view of a version to come as long as none answers for it; that one must not have
    the correction. *versions* are all from the oldest of these on, oldest first.
    """
    settled = settled_below(head)
    buffered = unanswered(readable, versions)
    found: dict[Coordinate, Waiting] = {}
    for partition, offset in wanted:
        if offset >= settled.get(partition, 0):
            found[partition, offset] = Waiting(
                why="the lake has not passed its offset yet", way_on=f"harness run {table} --until-idle"
            )
            continue
        blocking = next((v for v in buffered if _buffers(v.bounds.get(partition), offset)), None)
        if blocking is not None:
            found[partition, offset] = Waiting(
                why=f"version {blocking.version} can still be read and had its offset in the buffer",
                way_on=f"harness run {table} --until-idle",
            )
    return found


def restoring_waits(
    restored: Iterable[Coordinate], *, table: str, readable: Iterable[Version], versions: Sequence[Version]
) -> Waiting | None:
    """Return why a version cannot become the head: its lake has the *restored* records otherwise than the hot tier.

    It would answer for what *readable* versions had buffered, or whatever is moved on top of it would; those show the
    records as the hot tier has them. *readable* and *versions* are as of `waiting`, but for the head, which is an old
    version as soon as another one is made.
    """
    buffered = unanswered(readable, versions)
    for partition, offset in sorted(restored):
        for version in buffered:
            if _buffers(version.bounds.get(partition), offset):
                return Waiting(
                    why=f"version {version.version} can still be read, and shows the record at offset {offset} of "
                    f"partition {partition} as it was before it was corrected, until the lake has it so",
                    way_on=f"harness run {table} --until-idle",
                )
    return None


def _buffers(bounds: Bounds | None, offset: int) -> bool:
    return bounds is None or bounds.stream_hi <= offset < bounds.buffer_hi


def corrected(
    head: Version, *, views: Mapping[ViewName, View], buffer_hi: Vector, move_id: int, now: datetime
) -> Version:
    """The version after *head*: other files, the same lake bounds (S20), and the buffer's of this instant."""
    bounds = {p: replace(b, buffer_hi=buffer_hi[p]) for p, b in head.bounds.items()}
    return replace(
        head,
        version=head.version + 1,
        stream=tiered_of(views),
        batch=views.get("batch"),
        bounds=bounds,
        move_id=move_id,
        revert_of=None,
        committed_at=now,
    )


BEFORE_ALL: Coordinate = (-1, -1)
