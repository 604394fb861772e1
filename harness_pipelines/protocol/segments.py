"""Conditions of an ingest commit, and when a segment may hold needed rows or may be dropped."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines.protocol.bounds import BoundaryGap, Vector
from harness_pipelines.protocol.schema.schemas import check_schema


class SegmentClosed(HarnessError):
    """The segment was closed between the read and the commit: write to the open one."""

    recovery = Recovery.REFRESH


class HasMaxHi(Protocol):
    """The attributes of a segment that these rules need."""

    @property
    def state(self) -> str: ...  #: open, closed or retired
    @property
    def max_hi(self) -> Vector | None: ...  #: known once it is closed: nothing in it is at or above


Segment = TypeVar("Segment", bound=HasMaxHi)


def check_writable(name: str, state: str | None) -> None:
    """Only an open segment is written to; *state* is ``None`` when it was dropped.

    Raises: SegmentClosed (REFRESH).
    """
    if state != "open":
        raise SegmentClosed(f"segment {name} is not open any more")


def check_unit(
    table: str, *, partition: int, low: int, decoded_with: int, buffer_hi: int | None, schema_version: int | None
) -> None:
    """An ingest unit starts where the buffer ends and was decoded with the schema that is in force (S6, S22).

    *buffer_hi* and *schema_version* are the partition's position as locked, ``None`` when it has none.
    Raises: SchemaMoved, BoundaryGap (REFRESH).
    """
    if schema_version is not None:
        check_schema(table, planned=decoded_with, found=schema_version, what="decoded")
    if buffer_hi is None or buffer_hi != low:
        expected = -1 if buffer_hi is None else buffer_hi
        raise BoundaryGap(what="the buffer", partition=partition, expected_low=expected, got_low=low)


def may_hold(max_hi: Vector | None, low: Vector) -> bool:
    """True if a segment can hold rows at or above *low*; an open one (``max_hi`` unknown) always can."""
    if max_hi is None:
        return True
    return any(high > low.get(partition, -1) for partition, high in max_hi.items())


def may_retire(max_hi: Vector | None, floor: Vector) -> bool:
    """True once everything in a closed segment is below the trim floor (S11, S13)."""
    if max_hi is None:
        return False
    return all(high <= floor.get(partition, -1) for partition, high in max_hi.items())


def needed(segments: Iterable[Segment], low: Vector) -> list[Segment]:
    """The segments that can hold rows at or above *low* in a partition that *low* names.

    No other segment is named, however little of it is asked for: it may retire and be dropped under a live lease.
    """
    return [
        s
        for s in segments
        if s.state != "retired" and (s.max_hi is None or any(s.max_hi.get(p, at) > at for p, at in low.items()))
    ]


def retirable(segments: Iterable[Segment], floor: Vector) -> list[Segment]:
    """The closed segments of which no row is needed."""
    return [s for s in segments if s.state == "closed" and may_retire(s.max_hi, floor)]


def may_drop(retired_at: datetime | None, *, grace: timedelta, now: datetime) -> bool:
    """True once a segment was retired long enough ago that no statement can still be reading it."""
    return retired_at is not None and retired_at <= now - grace
