"""The cut of one read state: its bounds, and the tier that answers for each part of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Generic

from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.segments import Segment, needed
from harness_pipelines.protocol.versions import Version, answering_version

At = int | str | datetime  #: a version, the name of a snapshot, a moment
SNAPSHOT_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,62}")


def at_of(text: str) -> At:
    """Which of the three *text* is, by how it begins; a moment is UTC unless it names a zone. Raises: ValueError."""
    said = text.strip()
    if not said or said == "0":
        raise ValueError("name a version (they begin with 1), a snapshot or a time")
    if not said[0].isdigit():
        return said
    if said.isdigit():
        return int(said)
    try:
        return moment_of(said)
    except ValueError:
        raise ValueError(f"{text!r} is neither a version, a snapshot nor a time such as 2026-11-22T10:30:00Z") from None


def moment_of(text: str) -> datetime:
    """A moment, of UTC unless it names a zone. Raises: ValueError."""
    then = datetime.fromisoformat(text.strip())
    return then if then.tzinfo else then.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(Generic[Segment]):
    """A consistent cut: *bounds* limit every tier; *answered_by* or *segments* hold ``[stream_hi, buffer_hi)``."""

    bounds: Mapping[int, Bounds]
    segments: tuple[Segment, ...]
    answered_by: Version | None  #: the version whose stream view now has the rows that were buffered in this one


def cut_now(version: Version, positions: Mapping[int, Bounds], segments: Sequence[Segment]) -> Cut[Segment]:
    """The cut of the head: *positions* carry each partition's ``start`` and ``buffer_hi`` of the same instant."""
    bounds = {
        p: replace(version.bounds.get(p, Bounds.at(at.start)), buffer_hi=at.buffer_hi)
        for p, at in sorted(positions.items())
    }
    return _cut(bounds, segments, None)


def cut_of_version(version: Version, later: Iterable[Version], segments: Sequence[Segment]) -> Cut[Segment]:
    """The cut of a version that was asked for, the head too: its own bounds, so the same rows for ever.

    Its buffered rows come from wherever they are by now: *later* are the versions after it, oldest first.
    """
    return _cut(dict(version.bounds), segments, answering_version(version, later))


def _cut(bounds: Mapping[int, Bounds], segments: Sequence[Segment], answered_by: Version | None) -> Cut[Segment]:
    low = {p: b.stream_hi for p, b in bounds.items() if b.buffer_hi > b.stream_hi}
    named = needed(segments, low) if low and answered_by is None else []
    return Cut(bounds=bounds, segments=tuple(named), answered_by=answered_by)
