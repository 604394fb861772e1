"""Which small files of the stream view become fewer, larger ones, and what may stand for them.

Only neighbours by offset are put together, so that files stay in offset order. A run is rewritten only if none of
its files holds more than half of its bytes: with each rewrite the file of a byte becomes at least twice as large, so a
byte is rewritten about log2(target / first size) times at most, however small the files are that tier adds. Idea:
the size-tiered merges of log-structured trees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from harness_pipelines.protocol.bounds import OffsetRange, Vector
from harness_pipelines.protocol.lake.stream_files import (
    FILES_MAX,
    FILES_MIN,
    CompactedWrong,
    StreamFile,
    balanced,
    chunks,
    neighbours,
)
from harness_pipelines.protocol.lake.wide_runs import WideRun, check_wide, plan_wide

__all__ = ["FILES_MAX", "FILES_MIN", "CompactedWrong", "Run", "StreamFile", "WideRun", "check_written", "plan_runs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Small files of one partition that are rewritten."""

    files: tuple[StreamFile, ...]  #: neighbours, by offset
    pieces: tuple[OffsetRange, ...]  #: ranges that cover theirs; each becomes one file

    @property
    def hull(self) -> OffsetRange:
        """From the first offset in it to one above the last."""
        return _hull(self.files)

    @property
    def hulls(self) -> tuple[OffsetRange, ...]:
        """As of a run that mixes partitions."""
        return (self.hull,)

    @property
    def parts(self) -> tuple[tuple[OffsetRange, ...], ...]:
        """As of a run that mixes partitions."""
        return tuple((piece,) for piece in self.pieces)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def is_hull(self, found: OffsetRange) -> bool:
        """Return whether its rows may reach over *found*. Rows at its ends may be hidden."""
        hull = self.hull
        if any(file.deletes for file in self.files):
            return hull.low <= found.low and found.high <= hull.high
        return found == hull


# -- plan ---------------------------------------------------------------------------------------------------


def plan_runs(
    files: Iterable[StreamFile], *, stream_hi: Vector, target_bytes: int, budget_bytes: int
) -> tuple[Run, ...] | tuple[WideRun, ...]:
    """The runs that one move rewrites, those of most files first; none if no rewrite is worth its cost.

    They hold at most *budget_bytes*, but always as much as two files of *target_bytes*; no two of them overlap. Files
    of partitions that *stream_hi* does not name, or that reach above it, are not the table's and are never touched.
    The same files in any order give the same runs.
    """
    # Two targets hold at least four small files, so a large target never leaves small files for good.
    budget = max(budget_bytes, 2 * target_bytes)
    known = list(files)
    if any(file.extents is not None for file in known):
        return tuple(plan_wide(known, stream_hi=stream_hi, target_bytes=target_bytes, budget_bytes=budget))
    ordered = sorted(known, key=lambda f: (f.partition, f.low, f.high, f.path))

    def is_small(file: StreamFile) -> bool:
        return file.bytes < target_bytes / 2 and file.high <= stream_hi.get(file.partition, -1)

    found = [
        run
        for _, mine in groupby(ordered, key=lambda file: file.partition)
        for small in neighbours(list(mine), is_small)
        for chunk in chunks(small, budget)
        for run in balanced(chunk)
    ]
    found.sort(key=lambda run: (-len(run), run[0].partition, run[0].low))
    chosen: list[Run] = []
    bytes_left, files_left = budget, FILES_MAX
    for run in found:
        size = sum(file.bytes for file in run)
        if size <= bytes_left and len(run) <= files_left and not any(_overlap(_hull(run), c.hull) for c in chosen):
            chosen.append(Run(files=tuple(run), pieces=_pieces(run, target_bytes)))
            bytes_left, files_left = bytes_left - size, files_left - len(run)
    return tuple(chosen)


def _pieces(run: Sequence[StreamFile], target_bytes: int) -> tuple[OffsetRange, ...]:
    """The hull of *run* cut into ranges that hold about as many bytes each."""
    hull, total = _hull(run), sum(file.bytes for file in run)
    count = max(1, round(total / target_bytes))
    cuts = {hull.low, hull.high, *(_offset_at(run, total * i // count) for i in range(1, count))}
    return tuple(OffsetRange(partition=hull.partition, low=a, high=b) for a, b in pairwise(sorted(cuts)))


def _offset_at(run: Sequence[StreamFile], size: int) -> int:
    """The offset below which about *size* bytes of *run* lie."""
    for file in run:
        if size < file.bytes:
            return file.low + (file.high - file.low) * size // file.bytes
        size -= file.bytes
    return run[-1].low


def _hull(files: Sequence[StreamFile]) -> OffsetRange:
    low, high = min(file.low for file in files), max(file.high for file in files)
    return OffsetRange(partition=files[0].partition, low=low, high=high)


def _overlap(one: OffsetRange, other: OffsetRange) -> bool:
    return one.partition == other.partition and one.low < other.high and other.low < one.high


# -- check --------------------------------------------------------------------------------------------------


def check_written(runs: Sequence[Run | WideRun], written: Sequence[StreamFile]) -> None:
    """*written* may stand for the files of *runs* (S20): same rows and same offsets per run, fewer files, no overlap.

    Raises: CompactedWrong (REFRESH).
    """
    if runs and isinstance(runs[0], WideRun):
        check_wide(runs[0], written)
        return
    narrow = [run for run in runs if isinstance(run, Run)]
    taken, left = sum(len(run.files) for run in narrow), list(written)
    if len(written) >= taken:
        raise CompactedWrong(f"{taken} files were to become fewer, {len(written)} were written; nothing was published")
    for run in narrow:
        hull = run.hull
        inside = [f for f in left if f.partition == hull.partition and hull.low <= f.low and f.high <= hull.high]
        left = [f for f in left if f not in inside]
        rows = sum(file.rows for file in inside)
        fits = run.is_hull(_hull(inside)) if inside else not run.rows
        if rows != run.rows or not fits:
            found = f"{rows} rows of {_told(_hull(inside))}" if inside else "nothing"
            raise CompactedWrong(
                f"{run.rows} rows of {_told(hull)} were to be rewritten, {found} was written; nothing was published"
            )
    if left:
        raise CompactedWrong(f"{left[0].path} holds rows that were not to be rewritten; nothing was published")
    ordered = sorted(written, key=lambda f: (f.partition, f.low))
    for one, following in pairwise(ordered):
        if one.partition == following.partition and following.low < one.high:
            raise CompactedWrong(f"{one.path} and {following.path} overlap; nothing was published")


def _told(hull: OffsetRange) -> str:
    return f"partition {hull.partition} [{hull.low}, {hull.high})"
