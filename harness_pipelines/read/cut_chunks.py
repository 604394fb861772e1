"""The chunks of one cut: those of the last one that still serve, and what has to be written.

What is read comes in offset order within each partition, a window of offsets or a poll at a time, and is written as
soon as it fills a chunk. So the rows that are held at once are those of one chunk (`CHUNK_BYTES_MAX`, or a single row
that is larger), twice while they are put in order and encoded; a window (`WINDOW_BYTES_MAX`), or another chunk that is
put together with them; and the bytes of one file. None of this depends on how much there is above the lake.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.ports.access import (
    HasBufferReader,
    HasCutFiles,
    HasLakeReads,
    HasLeases,
    HasLog,
    HasSchemas,
    HasTables,
)
from harness_pipelines.ports.serving.cuts import Cut
from harness_pipelines.ports.source import check_epochs, check_topic
from harness_pipelines.protocol.chunk_plan import Writing, chunk_plan
from harness_pipelines.protocol.cuts import CHUNK_BYTES_MAX, CHUNK_ROWS_MAX, Chunk, CutBounds
from harness_pipelines.protocol.ranges import first_of, intersection, offset_count, rest_of
from harness_pipelines.protocol.reading.narrowing import Ranges
from harness_pipelines.protocol.reading.plan import ReadPlan, part_within, ranges_of
from harness_pipelines.protocol.reading.selection import Selection, work_of
from harness_pipelines.read.cut_tail import Known, ReadAs
from harness_pipelines.read.plan import Looked
from harness_pipelines.read.tail import tail_batches
from harness_pipelines.read.union import ArrowReader
from harness_pipelines.spec.predicate import OFFSET, PARTITION

RECALLED = "recalled "  #: begins the maker of chunks of recalled rows
#: A window of the buffer: offsets that are read by the index of a segment (see `buffers.postgres.reader`). The first
#: one is small, since nothing is known of the rows; one that has too many bytes is read again in parts.
WINDOW_OFFSETS, WINDOW_OFFSETS_MAX = 4_096, 20_000
WINDOW_BYTES_MAX = 32 * 2**20
LAKE_OFFSETS_MAX = 262_144  #: of a window of a view, whose files are opened for each
ALL = Selection(coordinates=True, changelog=True)


class Ports(HasBufferReader, HasCutFiles, HasLakeReads, HasLeases, HasLog, HasSchemas, HasTables, Protocol):
    """The ports that it uses."""


class ChunkMaker(Protocol):
    """Makes the chunks of one cut; all of them together are what the cut has beside the views."""

    def chunks(self) -> Iterator[Chunk]: ...
    def published(self, cut: Cut) -> None: ...  #: of these chunks: what is kept for the next one belongs to it
    @property
    def written(self) -> int: ...  #: chunks that were not there
    @property
    def rows(self) -> int: ...  #: in these


# -- filling ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """The next rows of one partition: all below *high*."""

    partition: int
    rows: pa.Table  #: in offset order
    high: int
    unsettled: tuple[int, ...] = ()  #: see `TailBatch`
    epoch: int | None = None  #: of the leader of the last record, or of a later one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Content:
    """What becomes one chunk: all rows of *ranges*, each partition in offset order."""

    rows: pa.Table
    ranges: Ranges
    read_as: ReadAs


class Filling:
    """Puts runs together to the contents of chunks, none larger than a chunk may be but for a single row.

    *low* is where each partition begins. The runs of each partition come in offset order, those of several in any.
    """

    def __init__(
        self,
        low: Mapping[int, int],
        schema: pa.Schema,
        *,
        rows_max: int,
        bytes_max: int,
    ) -> None:
        self._schema, self._rows_max, self._bytes_max = schema, rows_max, bytes_max
        self._from, self._at = dict(low), dict(low)
        self._runs: list[Run] = []
        self._rows = self._bytes = 0

    def add(self, run: Run) -> Iterator[Content]:
        """Take *run*; yield what is full."""
        for one in self._parts(run):
            rows, size = one.rows.num_rows, one.rows.nbytes
            if self._rows and rows and (self._rows + rows > self._rows_max or self._bytes + size > self._bytes_max):
                yield self._full()
            self._runs.append(one)
            self._rows, self._bytes = self._rows + rows, self._bytes + size
            self._at[one.partition] = one.high

    def rest(self) -> Iterator[Content]:
        """What is left when all runs have come."""
        if self._from != self._at:
            yield self._full()

    def _parts(self, run: Run) -> Iterator[Run]:
        """*run* in parts that are small beside a chunk, so that chunks get nearly full."""
        rows = run.rows
        if rows.num_rows < 2 or (rows.num_rows <= self._rows_max // 8 and rows.nbytes <= self._bytes_max // 8):
            yield run
            return
        half = rows.num_rows // 2
        middle = rows.column(OFFSET)[half].as_py()
        lower, upper = (tuple(o for o in run.unsettled if (o < middle) is is_low) for is_low in (True, False))
        yield from self._parts(replace(run, rows=rows.slice(0, half), high=middle, unsettled=lower))
        yield from self._parts(replace(run, rows=rows.slice(half), unsettled=upper))

    def _full(self) -> Content:
        runs, begun = self._runs, self._from
        ranges = {p: (low, self._at[p]) for p, low in sorted(begun.items()) if low < self._at[p]}
        unsettled: dict[int, tuple[int, ...]] = {}
        for run in runs:
            if run.unsettled:
                unsettled[run.partition] = unsettled.get(run.partition, ()) + run.unsettled
        epochs = {run.partition: run.epoch for run in runs if run.epoch is not None}
        self._from, self._runs, self._rows, self._bytes = dict(self._at), [], 0, 0
        return Content(
            rows=pa.concat_tables(
                # A chunk has its rows by partition and offset: so no row is put elsewhere when it is written.
                [self._schema.empty_table(), *(run.rows for run in sorted(runs, key=_partition))]
            ).combine_chunks(),  # what is done with columns of many parts is done many times
            ranges=ranges,
            read_as=ReadAs(epochs=epochs, unsettled=unsettled),
        )


def _partition(run: Run) -> int:
    return run.partition


def runs_of(rows: pa.Table, ranges: Ranges, read_as: ReadAs | None = None) -> Iterator[Run]:
    """*rows*, by partition and offset, as one run of each partition of *ranges*, which have no others."""
    told, partitions = read_as or ReadAs(), rows.column(PARTITION).to_numpy()
    for p, (low, high) in sorted(ranges.items()):
        first, end = np.searchsorted(partitions, [p, p + 1])
        yield Run(
            partition=p,
            rows=rows.slice(first, end - first),
            high=high,
            unsettled=tuple(o for o in told.unsettled.get(p, ()) if low <= o < high),
            epoch=told.epochs.get(p),
        )


# -- the maker ----------------------------------------------------------------------------------------------------


class Chunks:
    """`ChunkMaker` of append tables: the rows above the lake, and recalled ones.

    *check* raises when the time is over: what was read after that is not trusted. *wrote* is called with each chunk
    that a later cut may go on from if this one is not published: it has all rows of its ranges.
    """

    def __init__(
        self,
        stores: Ports,
        looked: Looked,
        bounds: CutBounds,
        known: Known,
        *,
        maker: str,
        sequence: int,
        check: Callable[[], None],
        wrote: Callable[[Chunk], None],
    ) -> None:
        self._stores, self._looked, self._bounds, self._known = stores, looked, bounds, known
        self._maker, self._sequence, self._check, self._wrote = maker, sequence, check, wrote
        self._schema = work_of(replace(looked.plan, lake=()), ALL).schema
        self.written = self.rows = 0  #: chunks and rows that this cut writes

    def chunks(self) -> Iterator[Chunk]:
        yield from self.recalled()
        yield from self._above()

    def published(self, cut: Cut) -> None:
        """Nothing is kept: the next cut begins with the chunks that the ledger has."""

    def recalled(self) -> Iterator[Chunk]:
        """Those of the rows of the batch view that lie in Postgres, as one generation of them.

        Their segment has no order, so each of these chunks has some rows of all ranges, and only all of them are kept.
        """
        overlay = self._looked.plan.overlay
        if overlay is None:
            return
        maker = recalled_maker(self._looked.plan)
        if kept := [chunk for chunk in self._known.chunks if chunk.maker == maker]:
            yield from kept
            return
        ranges = ranges_of(overlay)
        held: list[pa.RecordBatch] = []
        for batch in chain(self._batches(replace(self._looked.plan, lake=(), buffer=None, tail=None)), [None]):
            self._check()
            rows, size = (sum(getattr(one, word) for one in held) for word in ("num_rows", "nbytes"))
            if batch is None or (held and _is_more(rows + batch.num_rows, size + batch.nbytes)):
                content = Content(rows=self._table(held), ranges=ranges, read_as=ReadAs())
                yield self._write(content, maker)
                held = []
            if batch is not None:
                held.append(batch)

    def _above(self) -> Iterator[Chunk]:
        """Those of the rows that the lake does not have."""
        low, high = ({p: bound[at] for p, bound in self._bounds.items()} for at in (2, 3))
        above = [chunk for chunk in self._known.chunks if not chunk.maker.startswith(RECALLED)]
        planned = chunk_plan(above, low, high, maker=self._maker, rows_max=CHUNK_ROWS_MAX, bytes_max=CHUNK_BYTES_MAX)
        yield from planned.kept
        for wanted in planned.written:
            begin = {p: low for p, (low, _) in wanted.ranges.items()}
            filling = Filling(begin, self._schema, rows_max=CHUNK_ROWS_MAX, bytes_max=CHUNK_BYTES_MAX)
            for run in self._runs(wanted):
                for content in filling.add(run):
                    yield self._above_written(content)
            for content in filling.rest():
                yield self._above_written(content)

    def _above_written(self, content: Content) -> Chunk:
        if self._looked.plan.tail is not None:  # the records that it is made of were those of the table's topic
            topic = self._looked.table.spec.topic
            check_topic(self._looked.table, lambda: self._stores.log.describe(topic))
        chunk = self._write(content, self._maker)
        self._wrote(chunk)
        self._check()
        return chunk

    def _write(self, content: Content, maker: str) -> Chunk:
        rows = content.rows
        self.written, self.rows = self.written + 1, self.rows + rows.num_rows
        chunk = self._stores.cut_files.write_chunk(
            self._looked.table,
            self._looked.state.version,
            rows,
            ranges=content.ranges,
            maker=maker,
            sequence=self._sequence,
        )
        return replace(chunk, held=rows.nbytes, read_as=content.read_as.to_json())

    # -- reading

    def _runs(self, wanted: Writing) -> Iterator[Run]:
        """The rows of *wanted*, those of each partition in offset order."""
        lows = [(p, low) for one in wanted.sources for p, (low, _) in one.ranges.items()]
        below = {p: run for p, run in wanted.read.items() if any(p == at and run[0] < low for at, low in lows)}
        yield from self._read(below)
        for chunk in wanted.sources:
            rows = self._stores.cut_files.read_chunk(self._looked.table, self._looked.plan, chunk)
            self._check()
            inside = intersection(chunk.ranges, wanted.ranges)
            if inside != dict(chunk.ranges):
                rows = within(rows, inside)
            yield from runs_of(rows, inside, self._known.read_as.get(chunk.path))
        yield from self._read({p: run for p, run in wanted.read.items() if p not in below})

    def _read(self, ranges: Ranges) -> Iterator[Run]:
        if not ranges:
            return
        if self._looked.plan.tail is None:
            yield from self._of_windows(ranges)
        else:
            yield from self._of_tail(ranges)

    def _of_windows(self, ranges: Ranges) -> Iterator[Run]:
        """One window after the other, partition by partition: no row is read twice, but where one was too large.

        They are of the buffer, or, of an old version, of the view that has these rows by now.
        """
        left, at_once = deque(sorted(ranges.items())), WINDOW_OFFSETS
        most = LAKE_OFFSETS_MAX if self._looked.plan.buffer is None else WINDOW_OFFSETS_MAX
        while left:
            window = first_of(left, at_once)
            rows = self._window(window, may_be_large=offset_count(window) == 1)
            self._check()
            if rows is None:
                at_once = max(1, offset_count(window) // 8)
                continue
            yield from runs_of(rows, window)
            left = deque(rest_of(left, window))
            at_once = min(at_once * 4, most) if rows.nbytes < WINDOW_BYTES_MAX // 8 else at_once

    def _window(self, ranges: Ranges, *, may_be_large: bool) -> pa.Table | None:
        """The rows of *ranges* by partition and offset; None: they have too many bytes to be held."""
        found, size = list[pa.RecordBatch](), 0
        with closing(self._batches(_narrowed(self._looked.plan, ranges))) as batches:
            for batch in batches:
                found.append(batch)
                size += batch.nbytes
                if size > WINDOW_BYTES_MAX and not may_be_large:
                    return None
        return self._table(found).sort_by([(PARTITION, "ascending"), (OFFSET, "ascending")])

    def _of_tail(self, ranges: Ranges) -> Iterator[Run]:
        tail = _narrowed(self._looked.plan, ranges).tail
        assert tail is not None, "what is above the lake is read from the log"
        epochs = self._epochs_below(ranges)
        for batch in tail_batches(self._stores, self._looked.table, tail):
            self._check()
            p, epoch = batch.partition, batch.leader_epoch
            if epoch is not None and epoch != epochs.get(p, epoch):  # as ingest does before it takes a batch of it
                check_epochs(self._looked.table, self._stores.log, {p: (ranges[p][0], epochs.pop(p))})
            yield Run(
                partition=p,
                rows=conformed(batch.rows.select(self._schema.names), self._schema),
                high=batch.high,
                unsettled=batch.unsettled,
                epoch=epoch,
            )

    def _epochs_below(self, ranges: Ranges) -> dict[int, int]:
        """By partition the epoch of the last record that a chunk has right below *ranges*."""
        found: dict[int, int] = {}
        for chunk in self._known.chunks:
            read_as = self._known.read_as.get(chunk.path, ReadAs())
            found |= {p: e for p, e in read_as.epochs.items() if p in ranges and chunk.ranges[p][1] == ranges[p][0]}
        return found

    def _batches(self, plan: ReadPlan) -> Generator[pa.RecordBatch]:
        yield from ArrowReader.of(self._stores).batches(plan, ALL, check_lease=self._check)

    def _table(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        return pa.Table.from_batches(list(batches), self._schema)


def recalled_maker(plan: ReadPlan) -> str:
    """The generations of recalled rows, which never change, with the columns that they are read in."""
    assert plan.overlay is not None
    names = ", ".join(sorted(segment.name for segment in plan.overlay.segments))
    return f"{RECALLED}{names}, schema {plan.schema_version}, up to {sorted(plan.overlay.high.items())}"


def within(rows: pa.Table, ranges: Ranges) -> pa.Table:
    """The rows whose offsets are in *ranges*."""
    partition, offset = rows.column(PARTITION), rows.column(OFFSET)
    wanted = (
        pa.chunked_array([pa.nulls(0, pa.bool_())])
        if not rows.num_rows
        else _any(
            pc.and_(pc.equal(partition, p), pc.and_(pc.greater_equal(offset, low), pc.less(offset, high)))
            for p, (low, high) in ranges.items()
        )
    )
    return rows.filter(wanted)


def _any(masks: Iterator[pa.ChunkedArray]) -> pa.ChunkedArray:
    found = next(masks)
    for mask in masks:
        found = pc.or_(found, mask)
    return found


def _narrowed(plan: ReadPlan, ranges: Ranges) -> ReadPlan:
    """Of *plan* only the rows above the lake in *ranges*."""
    lake = tuple(one for part in plan.lake if (one := part_within(part, ranges)) is not None)
    buffer, tail = part_within(plan.buffer, ranges), part_within(plan.tail, ranges)
    return replace(plan, lake=lake, overlay=None, buffer=buffer, tail=tail)


def _is_more(rows: int, size: int) -> bool:
    return rows > CHUNK_ROWS_MAX or size > CHUNK_BYTES_MAX
