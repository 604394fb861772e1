"""Read the oldest and newest records of a topic, as a look at it: a few of each partition."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence

from harness_pipelines.ports.source import Log, LogReader, PartitionBatch, TopicIdentity, Watermark, below

PARTITIONS_MAX = 64  #: of which records are read: the first that have any
WAIT_S = 10.0  #: for the records of each end


def marks_of(log: Log, identity: TopicIdentity, partitions: Collection[int] | None = None) -> dict[int, Watermark]:
    """The offsets of those of *partitions* (default: all) that have records: the first `PARTITIONS_MAX` of them.

    Raises: as `Log.watermarks`.
    """
    found = sorted(log.watermarks(identity.topic, partitions or identity.partitions).items())
    return dict([(p, mark) for p, mark in found if mark.end > mark.low][:PARTITIONS_MAX])


def both_ends(
    log: Log, identity: TopicIdentity, marks: Mapping[int, Watermark], *, each: int, wait_s: float = WAIT_S
) -> Iterator[PartitionBatch]:
    """The *each* oldest and *each* newest records of the partitions of *marks*, in this order.

    Records that do not come within *wait_s*, for each end, are left out. Raises: as `LogReader.poll`.
    """
    if not marks:
        return
    ends = {p: mark.end for p, mark in marks.items()}
    with log.reader(identity.topic, {p: m.low for p, m in marks.items()}, identity=identity) as reader:
        seen = {p: m.low for p, m in marks.items()}
        for batch in _taken(reader, ends, each, wait_s):
            yield batch
            seen[batch.partition] = max(seen[batch.partition], batch.high)
        newest = {p: max(end - each, seen[p]) for p, end in ends.items()}
        newest = {p: low for p, low in newest.items() if low < ends[p]}
        reader.assign(newest)
        for partition in newest:
            reader.resume(partition)
        yield from _taken(reader, {p: ends[p] for p in newest}, each, wait_s)


def from_offsets(
    log: Log, identity: TopicIdentity, positions: Mapping[int, int], ends: Mapping[int, int], *, each: int,
    wait_s: float = WAIT_S,
) -> Iterator[PartitionBatch]:  # fmt: skip
    """The next *each* records of each partition from *positions* on, below *ends*. Raises: as `LogReader.poll`."""
    if positions:
        with log.reader(identity.topic, positions, identity=identity) as reader:
            yield from _taken(reader, dict(ends), each, wait_s)


def _taken(reader: LogReader, ends: Mapping[int, int], each: int, wait_s: float) -> Iterator[PartitionBatch]:
    """Batches with the next *each* records of each partition of *reader*, or those up to its end."""
    left = dict.fromkeys(ends, each)
    until = time.monotonic() + wait_s
    while left and (now := time.monotonic()) < until:
        for batch in reader.poll(each * len(left), min(0.5, until - now)):
            if batch.partition not in left:
                continue
            some = _first(below(batch, ends[batch.partition]), left[batch.partition])
            left[batch.partition] -= len(some)
            if not left[batch.partition] or batch.high >= ends[batch.partition]:
                reader.pause(batch.partition)
                del left[batch.partition]
            yield some


def _first(batch: PartitionBatch, count: int) -> PartitionBatch:
    """The first *count* records of *batch*."""
    if len(batch) <= count:
        return batch
    offsets: Sequence[int] = batch.offsets.tolist()
    return below(batch, offsets[count])
