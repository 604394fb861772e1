"""The one coordinate: per partition, which tier answers for which offset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness_pipelines.errors import HarnessError, Recovery

Vector = Mapping[int, int]  #: partition -> offset; a missing partition counts as its start


class BoundsBroken(HarnessError):
    """Bounds are not ``start <= batch_hi <= stream_hi <= buffer_hi``: the ledger was changed by hand."""

    way_on = "`harness fsck TABLE` names the row; restore it from a backup"


class BoundaryGap(HarnessError):
    """A move does not start where the boundary ends; it was planned on an older state."""

    recovery = Recovery.REFRESH

    def __init__(self, *, what: str, partition: int, expected_low: int, got_low: int) -> None:
        verb = "skip" if got_low > expected_low else "repeat"
        super().__init__(
            f"the move would {verb} records of partition {partition}: it starts at offset {got_low}, "
            f"{what} ends at {expected_low}; nothing was written, plan the move again"
        )
        self.partition, self.expected_low, self.got_low = partition, expected_low, got_low


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Half-open run of Kafka offsets ``[low, high)`` in one partition."""

    partition: int
    low: int  #: first offset included
    high: int  #: first offset excluded; the next range starts here

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise BoundsBroken(f"partition {self.partition}: [{self.low}, {self.high}) is not a range of offsets")

    @property
    def span(self) -> int:
        """Number of offsets (not of records: logs have gaps)."""
        return self.high - self.low


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """``start <= batch_hi <= stream_hi <= buffer_hi`` of one partition."""

    start: int
    batch_hi: int
    stream_hi: int
    buffer_hi: int

    def __post_init__(self) -> None:
        if not self.start <= self.batch_hi <= self.stream_hi <= self.buffer_hi:
            raise BoundsBroken(
                f"bounds out of order: start {self.start}, batch_hi {self.batch_hi}, "
                f"stream_hi {self.stream_hi}, buffer_hi {self.buffer_hi}"
            )

    @classmethod
    def at(cls, start: int) -> Bounds:
        """Bounds of a partition of which nothing was taken yet."""
        return cls(start=start, batch_hi=start, stream_hi=start, buffer_hi=start)

    def to_json(self) -> dict[str, int]:
        return {
            "start": self.start,
            "batch_hi": self.batch_hi,
            "stream_hi": self.stream_hi,
            "buffer_hi": self.buffer_hi,
        }


def buffered(bounds: Mapping[int, Bounds]) -> dict[int, OffsetRange]:
    """The offsets that only the buffer (or Kafka) has: tier's work."""
    return {p: OffsetRange(partition=p, low=b.stream_hi, high=b.buffer_hi) for p, b in bounds.items()}


def unmerged(bounds: Mapping[int, Bounds]) -> dict[int, OffsetRange]:
    """The offsets that the stream view has and the batch view lacks: otree's work."""
    return {p: OffsetRange(partition=p, low=b.batch_hi, high=b.stream_hi) for p, b in bounds.items()}


def check_starts(low: Vector, boundary: Vector, *, what: str) -> None:
    """Every range must start exactly where its boundary ends (S6).

    Raises: BoundaryGap (REFRESH), naming the first partition that does not.
    """
    for partition in sorted(low):
        expected = boundary.get(partition)
        if expected is None or low[partition] != expected:
            raise BoundaryGap(
                what=what,
                partition=partition,
                expected_low=-1 if expected is None else expected,
                got_low=low[partition],
            )


def covers(high: Vector, wanted: Vector) -> bool:
    """True if *high* reaches *wanted* in every partition of *wanted*."""
    return all(high.get(partition, -1) >= offset for partition, offset in wanted.items())


def lowest(vectors: Iterable[Vector]) -> dict[int, int]:
    """Per partition the smallest offset that any of *vectors* names."""
    floor: dict[int, int] = {}
    for vector in vectors:
        for partition, offset in vector.items():
            floor[partition] = min(offset, floor.get(partition, offset))
    return floor


def highest(vectors: Iterable[Vector]) -> dict[int, int]:
    """Per partition the largest offset that any of *vectors* names."""
    top: dict[int, int] = {}
    for vector in vectors:
        for partition, offset in vector.items():
            top[partition] = max(offset, top.get(partition, offset))
    return top


def vector_from_json(value: Mapping[str, int]) -> dict[int, int]:
    """JSON object keys are text; partitions are ints."""
    return {int(partition): int(offset) for partition, offset in value.items()}


def vector_to_json(vector: Vector) -> dict[str, int]:
    return {str(partition): vector[partition] for partition in sorted(vector)}
