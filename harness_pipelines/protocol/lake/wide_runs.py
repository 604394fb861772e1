"""Which small files of the stream view of a wide topic become fewer ones: neighbours in the order they are read in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness_pipelines.protocol.bounds import OffsetRange, Vector
from harness_pipelines.protocol.lake.order import offset_order
from harness_pipelines.protocol.lake.stream_files import (
    FILES_MIN,
    CompactedWrong,
    StreamFile,
    balanced,
    chunks,
    neighbours,
)
from harness_pipelines.protocol.lake.wide import split_evenly
from harness_pipelines.protocol.ranges import hull


@dataclass(frozen=True, slots=True, kw_only=True)
class WideRun:
    """Small files that mix partitions and are rewritten together."""

    files: tuple[StreamFile, ...]  #: neighbours, in the order they are read in
    parts: tuple[tuple[OffsetRange, ...], ...]  #: ranges of each new file, by partition and offset

    @property
    def hulls(self) -> tuple[OffsetRange, ...]:
        """By partition, from the first offset in it to one above the last."""
        return hulls_of(self.files)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def hulls_of(files: Sequence[StreamFile]) -> tuple[OffsetRange, ...]:
    found = hull(file.ranges for file in files)
    return tuple(OffsetRange(partition=p, low=low, high=high) for p, (low, high) in found.items())


def plan_wide(files: Sequence[StreamFile], *, stream_hi: Vector, target_bytes: int, budget_bytes: int) -> list[WideRun]:
    """The run that one move rewrites, the one of most files; none if no rewrite is worth its cost.

    Two runs of one move would lie beside each other in many partitions, so it is one alone. As `plan_runs`.
    """
    known = sorted(_near_small(files, target_bytes / 2), key=lambda f: f.path)
    if not known:
        return []
    ranges = {file.path: file.ranges for file in known}
    ages = [(min(ranges[file.path], default=0), file.low) for file in known]
    ordered = [known[number] for group in offset_order([ranges[f.path] for f in known], ages) for number in group]

    def is_small(file: StreamFile) -> bool:
        settled = all(high <= stream_hi.get(p, -1) for p, (_, high) in ranges[file.path].items())
        return file.bytes < target_bytes / 2 and settled

    found = [
        run
        for small in neighbours(ordered, is_small)
        for chunk in chunks(small, budget_bytes)
        for run in balanced(chunk)
    ]
    if not found:
        return []
    chosen = max(found, key=len)
    size = sum(file.bytes for file in chosen)
    parts = split_evenly(hulls_of(chosen), max(1, round(size / target_bytes)))
    return [WideRun(files=tuple(chosen), parts=tuple(parts))]


def _near_small(files: Sequence[StreamFile], small: float) -> list[StreamFile]:
    """The files of less than *small* bytes, and those that may lie between them; none if there are too few.

    A table has few small files, and thousands of large ones that lie below all of these.
    """
    found = [file for file in files if file.bytes < small]
    if len(found) < FILES_MIN:
        return []
    lows = {p: low for p, (low, _) in hull(file.ranges for file in found).items()}
    return found + [
        file for file in files if file.bytes >= small and (file.extents is None or file.extents.reach_above(lows))
    ]


def check_wide(run: WideRun, written: Sequence[StreamFile]) -> None:
    """*written* may stand for the files of *run* (S20): same rows and offsets in each partition, fewer files.

    Raises: CompactedWrong (REFRESH).
    """
    if len(written) >= len(run.files):
        raise CompactedWrong(
            f"{len(run.files)} files were to become fewer, {len(written)} were written; nothing was published"
        )
    if (rows := sum(file.rows for file in written)) != run.rows:
        raise CompactedWrong(f"{run.rows} rows were to be rewritten, {rows} were; nothing was published")
    is_whole = not any(file.deletes for file in run.files)
    wanted, found = ({r.partition: (r.low, r.high) for r in hulls_of(files)} for files in (run.files, written))
    outside = [p for p, (low, high) in found.items() if p not in wanted or low < wanted[p][0] or high > wanted[p][1]]
    if outside or (is_whole and (found != wanted or _rows_of(run.files) != _rows_of(written))):
        raise CompactedWrong(
            "the offsets or rows of a partition are not those of the files that were to be rewritten; nothing was "
            "published"
        )
    groups = offset_order([file.ranges for file in written], [(0,)] * len(written))
    if overlapping := next((group for group in groups if len(group) > 1), None):
        one, other = (written[number].path for number in overlapping[:2])
        raise CompactedWrong(f"{one} and {other} overlap; nothing was published")


def _rows_of(files: Sequence[StreamFile]) -> dict[int, int]:
    found: dict[int, int] = {}
    for file in files:
        for one in file.extents or ():
            found[one.partition] = found.get(one.partition, 0) + one.rows
    return found
