"""The history of a table in offset order: first the stream view, then the buffer, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.ports.buffer import BufferReads
from harness_pipelines.ports.lake import LakeReads
from harness_pipelines.protocol.reading.plan import BufferPart, ReadPlan
from harness_pipelines.protocol.reading.queries import BufferQuery, BufferStats, LakeStats
from harness_pipelines.protocol.reading.selection import Selection, Work, work_of
from harness_pipelines.read.union import finished
from harness_pipelines.spec.predicate import OFFSET, PARTITION

BUFFER_OFFSETS = 200_000  #: of the buffer that are read at once, over all partitions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """The next records of one partition, in offset order: all that are wanted below *high*. May be empty."""

    partition: int
    rows: pa.Table
    high: int


def log_work(plan: ReadPlan, selection: Selection) -> Work:
    """What *selection* wants of a log: every record, with its coordinates. Raises: UnknownColumn, WhereError."""
    return work_of(plan, replace(selection, coordinates=True, changelog=True))


def in_order(plan: ReadPlan, work: Work, *, buffer: BufferReads, lake: LakeReads) -> Iterator[Piece]:
    """The records of *plan* (`log_plan`) that *work* wants. The lease is the caller's to check.

    Raises: NotInOrder, LakeFileMissing, LakeFileBroken, LakeUnreadable, SegmentMissing, ...
    """
    yield from _of_lake(plan, work, lake)
    if plan.buffer is not None:
        for ranges in _runs(plan.buffer):
            yield from _of_buffer(plan.buffer, ranges, work, buffer)


def _of_lake(plan: ReadPlan, work: Work, lake: LakeReads) -> Iterator[Piece]:
    reached: dict[int, int] = {}
    for part in work.lake:
        for found in lake.in_order(part.metadata, work.query(part), LakeStats()):
            high = reached[found.partition] = int(found.rows.column(OFFSET)[-1].as_py()) + 1
            rows = finished(conformed(found.rows, part.schema), work)
            yield Piece(partition=found.partition, rows=rows, high=high)
    nothing = work.schema.empty_table()
    for whole in plan.lake:
        for partition, high in whole.high.items():
            if reached.get(partition, -1) < high:
                yield Piece(partition=partition, rows=nothing, high=high)


def _runs(part: BufferPart) -> Iterator[dict[int, tuple[int, int]]]:
    """The ranges of *part*, some of each partition at a time."""
    at = dict(part.low)
    while left := {p: o for p, o in at.items() if o < part.high[p]}:
        share = max(BUFFER_OFFSETS // len(left), 1)
        ranges = {p: (o, min(o + share, part.high[p])) for p, o in left.items()}
        yield ranges
        at.update({p: high for p, (_, high) in ranges.items()})


def _of_buffer(
    part: BufferPart, ranges: Mapping[int, tuple[int, int]], work: Work, buffer: BufferReads
) -> Iterator[Piece]:
    query = BufferQuery(
        table=work.table,
        segments=part.segments,
        ranges=ranges,
        schema=work.needed_schema,
        where=work.asked,
        stores_op=work.stores_op,
    )
    rows = conformed(buffer.read(query, BufferStats()), work.needed_schema)
    rows = finished(rows.sort_by([(PARTITION, "ascending"), (OFFSET, "ascending")]), work)
    partitions = np.asarray(rows.column(PARTITION))
    for partition, (_, high) in sorted(ranges.items()):
        first, end = np.searchsorted(partitions, [partition, partition + 1])
        yield Piece(partition=partition, rows=rows.slice(first, end - first), high=high)
