"""Which rows of a move go in which file, and what a file says of the partitions that it mixes.

A topic of many partitions would give one file for each partition and move, however few rows these have. So the stream
view of such a table has no partition fields, and a file has the rows of a run of (partition, offset).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines.protocol.bounds import OffsetRange

NARROW_MAX = 32  #: partitions of a topic whose stream view has a file for each
FILE_OFFSETS = 100_000  #: a file of a wide move has this many at least, where the move has them
FILES_AT_ONCE = 16  #: a move is cut into no more than these for the sake of parallel tasks
TASK_OFFSETS_MAX = 1_000_000  #: that one task takes
EXTENTS_ID = 2_000_000_001  #: the field id under which a manifest has them; Iceberg reserves those above 2,147,483,447

Longs = NDArray[np.int64]
_HEAD = struct.Struct("<BIq4B")  #: form, entries, least offset, and bytes of a number of each column
_FORM = 1
_SIZES = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<i8"}


class NotByOffset(HarnessError):
    """The rows of a file are not in ascending order of partition and offset."""

    recovery = Recovery.REFRESH


def is_wide(partitions: int) -> bool:
    """Whether files mix partitions: of a topic with *partitions* when its table is made, and of a move of them."""
    return partitions > NARROW_MAX


# -- which rows go in which file ----------------------------------------------------------------------------


def file_ranges(ranges: Sequence[OffsetRange]) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each file of a move, by partition and offset.

    Of few partitions each has files of its rows alone. Each part is one task of an engine: it writes one file, with its
    rows in ascending order of partition and offset. (A view that is partitioned gets a file for each partition of it.)
    """
    taken = sorted((r for r in ranges if r.span), key=lambda r: (r.partition, r.low))
    if not is_wide(len(taken)):
        return [(piece,) for one in taken for piece in task_ranges(one)]
    total = sum(r.span for r in taken)
    return split_evenly(taken, max(1, min(total // FILE_OFFSETS, FILES_AT_ONCE), total // TASK_OFFSETS_MAX))


def split_evenly(ranges: Sequence[OffsetRange], parts: int) -> list[tuple[OffsetRange, ...]]:
    """*ranges* laid end to end in their order and cut into *parts* that have as many offsets; no part is empty."""
    total = sum(r.span for r in ranges)
    parts = max(1, min(parts, total))
    found: list[list[OffsetRange]] = [[]]
    reached, end = 0, total // parts
    for taken in ranges:
        low = taken.low
        while low < taken.high:
            size = min(taken.high - low, end - reached)
            found[-1].append(OffsetRange(partition=taken.partition, low=low, high=low + size))
            low, reached = low + size, reached + size
            if reached == end:
                found.append([])
                end = total * len(found) // parts
    return [tuple(part) for part in found if part]


def task_ranges(taken: OffsetRange) -> Iterator[OffsetRange]:
    """*taken*, cut so that no task takes too many offsets."""
    pieces = max(-(-taken.span // TASK_OFFSETS_MAX), 1)
    for i in range(pieces):
        low = taken.low + taken.span * i // pieces
        yield OffsetRange(partition=taken.partition, low=low, high=taken.low + taken.span * (i + 1) // pieces)


# -- what a file says of its partitions ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What a file has of one partition: rows with offsets in ``[low, high)``, the first and the last among them."""

    partition: int
    low: int
    high: int
    rows: int


@dataclass(frozen=True, slots=True)
class Extents:
    """What a file has of each partition, as a manifest keeps it; by partition, which is there once."""

    packed: bytes

    @classmethod
    def of(cls, extents: Iterable[Extent]) -> Extents:
        known = sorted(extents, key=lambda e: e.partition)
        columns = [
            np.array([getattr(e, name) for e in known], np.int64) for name in ("partition", "low", "high", "rows")
        ]
        return cls._packed(*columns)

    @classmethod
    def of_rows(cls, partitions: Longs, offsets: Longs, *, path: str) -> Extents:
        """Of the coordinates of all rows of the file at *path*, in its order. Raises: NotByOffset."""
        steps = np.flatnonzero(partitions[1:] != partitions[:-1]) + 1
        falls = (partitions[1:] < partitions[:-1]) | (
            (partitions[1:] == partitions[:-1]) & (offsets[1:] <= offsets[:-1])
        )
        if len(wrong := np.flatnonzero(falls)):
            at = int(wrong[0]) + 1
            raise NotByOffset(
                f"{path}: the row at offset {offsets[at]} of partition {partitions[at]} comes after offset "
                f"{offsets[at - 1]} of partition {partitions[at - 1]}; expected rows by partition and offset, each "
                "once; nothing was published"
            )
        firsts = np.concatenate([np.zeros(min(len(partitions), 1), np.intp), steps])
        ends = np.concatenate([steps, np.full(min(len(partitions), 1), len(partitions), np.intp)])
        return cls._packed(partitions[firsts], offsets[firsts], offsets[ends - 1] + 1, ends - firsts)

    @classmethod
    def _packed(cls, partitions: Longs, lows: Longs, highs: Longs, rows: Longs) -> Extents:
        least = int(lows.min()) if len(lows) else 0
        columns = [partitions + 1, lows - least, highs - lows, rows]  # accepted rows are in partition -1
        sizes = [_size(column) for column in columns]
        head = _HEAD.pack(_FORM, len(partitions), least, *sizes)
        return cls(head + b"".join(c.astype(_SIZES[size]).tobytes() for c, size in zip(columns, sizes, strict=True)))

    def columns(self) -> tuple[Longs, Longs, Longs, Longs]:
        """Partitions, first offsets, offsets above the last, and rows. Raises: ValueError for what is none."""
        try:
            form, count, least, *sizes = _HEAD.unpack_from(self.packed)
            found, at = [], _HEAD.size
            for size in sizes:
                found.append(np.frombuffer(self.packed, _SIZES[size], count, at).astype(np.int64))
                at += size * count
        except (struct.error, KeyError) as error:
            raise ValueError(f"these are no extents: {error}") from error
        if form != _FORM or at != len(self.packed):
            raise ValueError(f"these are extents of form {form}, known is {_FORM}")
        partitions, lows, spans, rows = found
        return partitions - 1, lows + least, lows + least + spans, rows

    def __iter__(self) -> Iterator[Extent]:
        for partition, low, high, rows in zip(*(column.tolist() for column in self.columns()), strict=True):
            yield Extent(partition=partition, low=low, high=high, rows=rows)

    def of_partition(self, partition: int) -> tuple[int, int] | None:
        """The offsets ``[low, high)`` of one partition; None: it has none of it."""
        partitions, lows, highs, _ = self.columns()
        at = int(np.searchsorted(partitions, partition))
        found = at < len(partitions) and partitions[at] == partition
        return (int(lows[at]), int(highs[at])) if found else None

    def reach_above(self, lows: Mapping[int, int]) -> bool:
        """Whether it has an offset above the one of *lows* in a partition that these name."""
        known = np.array(sorted(lows), np.int64)
        partitions, _, highs, _ = self.columns()
        if not len(known) or not len(partitions):
            return False
        least = np.array([lows[p] for p in known.tolist()], np.int64)
        at = np.minimum(np.searchsorted(known, partitions), len(known) - 1)
        return bool(np.any((known[at] == partitions) & (highs > least[at])))

    def within(self, ranges: Mapping[int, tuple[int, int]]) -> bool:
        """Whether all offsets lie in *ranges*."""
        return all(
            e.partition in ranges and ranges[e.partition][0] <= e.low and e.high <= ranges[e.partition][1] for e in self
        )


def _size(column: Longs) -> int:
    most = int(column.max()) if len(column) else 0
    return next(size for size in (1, 2, 4, 8) if size == 8 or most < 256**size)
