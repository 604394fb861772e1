"""Slices of a read plan for parallel processes without a JVM; together they return the plan's rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from harness_pipelines.ports.lake import LakeReads
from harness_pipelines.protocol.reading.plan import BufferPart, ReadPlan, TailPart
from harness_pipelines.protocol.reading.selection import Selection, work_of

Part = TypeVar("Part", BufferPart, TailPart)

PIECE_BYTES = 128 * 2**20  #: of data files, as they lie in the lake
PIECE_OFFSETS = 1_000_000  #: of buffer and tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of a plan, and of its lake files these (None: all of them)."""

    plan: ReadPlan
    files: frozenset[str] | None = None


def pieces(plan: ReadPlan, selection: Selection, lake: LakeReads) -> list[Slice]:
    """Cut *plan* to what *selection* can want. A keyed table is one piece: its newest rows hide others.

    Raises: UnknownColumn, WhereError, LakeFileMissing, LakeUnreadable.
    """
    return [Slice(plan=plan)] if plan.key else list(_pieces(plan, selection, lake))


def _pieces(plan: ReadPlan, selection: Selection, lake: LakeReads) -> Iterator[Slice]:
    work, bare = work_of(plan, selection), replace(plan, lake=(), overlay=None, buffer=None, tail=None)
    for part in work.lake:
        [whole] = [one for one in plan.lake if (one.view, one.metadata) == (part.view, part.metadata)]
        for files in _grouped(lake.files_of(part.metadata, work.query(part))):
            yield Slice(plan=replace(bare, lake=(whole,)), files=files)
    if work.overlays:
        yield Slice(plan=replace(bare, overlay=plan.overlay))
    if plan.buffer:
        for buffer in _runs(plan.buffer):
            yield Slice(plan=replace(bare, buffer=buffer))
    if plan.tail:
        for tail in _runs(plan.tail):
            yield Slice(plan=replace(bare, tail=tail))


def _grouped(files: list[tuple[str, int]]) -> Iterator[frozenset[str]]:
    """Paths of files of some `PIECE_BYTES` together."""
    group: set[str] = set()
    size = 0
    for path, bytes_ in files:
        group.add(path)
        size += bytes_
        if size >= PIECE_BYTES:
            yield frozenset(group)
            group, size = set(), 0
    if group:
        yield frozenset(group)


def _runs(part: Part) -> Iterator[Part]:
    """*part* in runs of `PIECE_OFFSETS` offsets of one partition at most; small ones together."""
    low: dict[int, int] = {}
    high: dict[int, int] = {}
    left = PIECE_OFFSETS
    for partition in sorted(part.low):
        at = part.low[partition]
        while at < part.high[partition]:
            low[partition], high[partition] = at, min(part.high[partition], at + left)
            left, at = left - (high[partition] - at), high[partition]
            if left == 0:
                yield replace(part, low=low, high=high)
                low, high, left = {}, {}, PIECE_OFFSETS
    if low:
        yield replace(part, low=low, high=high)
