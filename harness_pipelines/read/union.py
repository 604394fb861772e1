"""The union read in plain Python: one plan, all tiers, Arrow out, no JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

import pyarrow as pa

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.errors import UsageError
from harness_pipelines.ports.buffer import BufferReads
from harness_pipelines.ports.lake import LakeReads
from harness_pipelines.protocol.reading.fold import Folded, fold
from harness_pipelines.protocol.reading.plan import ReadPlan, TailPart
from harness_pipelines.protocol.reading.queries import BufferQuery, ReadStats
from harness_pipelines.protocol.reading.selection import LakeWork, Selection, Work, work_of
from harness_pipelines.spec.arrow import to_arrow
from harness_pipelines.spec.predicate import TRUE

#: Rows of a tail part with the user's columns and all coordinates; the reader filters and projects them.
TailRows = Callable[[TailPart], pa.Table]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadResult:
    """The rows of a read and what they took."""

    rows: pa.Table
    stats: ReadStats


class ArrowSources(Protocol):
    """What `read_arrow` needs of the opened stores."""

    @property
    def buffer_reader(self) -> BufferReads: ...
    @property
    def lake_reads(self) -> LakeReads: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowReader:
    """Executes read plans. ``check_lease`` raises when the plan's lease has ended."""

    buffer: BufferReads
    lake: LakeReads
    tail_rows: TailRows | None = None

    @classmethod
    def of(cls, sources: ArrowSources, tail_rows: TailRows | None = None) -> ArrowReader:
        """The reader of some opened stores."""
        return cls(buffer=sources.buffer_reader, lake=sources.lake_reads, tail_rows=tail_rows)

    def read(
        self, plan: ReadPlan, selection: Selection, *, check_lease: Callable[[], None], stats: ReadStats | None = None
    ) -> pa.Table:
        """All wanted rows; in offset order within each partition of each lake file, otherwise in no order.

        Of a keyed table: for each key its newest put, unless a delete is newer.
        Raises: UnknownColumn, WhereError, LakeFileMissing, SegmentMissing, KeyInTwoPartitions, and what *check_lease*
        raises.
        """
        stats = stats or ReadStats()
        work = work_of(plan, selection)
        with self._buffered_meanwhile(work, stats) as buffered:
            tables = list(self._tables(plan, work, stats, buffered))
        check_lease()
        return pa.concat_tables([work.schema.empty_table(), *tables])

    def batches(
        self, plan: ReadPlan, selection: Selection, *, check_lease: Callable[[], None]
    ) -> Iterator[pa.RecordBatch]:
        """The same rows bit by bit: what is held at once is a few lake files and 16 MB of the buffer.

        Of a keyed table all that is not in its batch view yet is held at once too, folded to the newest per key, and
        eight rows of the batch view per key of these.
        """
        stats, work = ReadStats(), work_of(plan, selection)
        for table in self._tables(plan, work, stats, self._buffered(work, stats)):
            check_lease()
            yield from table.to_batches()
        check_lease()

    def newest(self, plan: ReadPlan, selection: Selection) -> pa.Table:
        """Of the hot side of a keyed table the newest row per key, deletes too, with all that the fold needed.

        Of `where` only what `on_all_versions` leaves is used. The lease is the caller's to check. Raises: as `read`.
        """
        stats, work = ReadStats(), work_of(plan, selection)
        return self._folded(plan, work, stats, self._buffered(work, stats)).rows

    def _tables(self, plan: ReadPlan, work: Work, stats: ReadStats, buffered: Iterable[pa.Table]) -> Iterator[pa.Table]:
        stats.offsets = dict(work.pruned)
        left = work.limit
        for raw in self._sources(plan, work, stats, buffered) if left != 0 else ():
            table = finished(raw, work)
            if left is not None:
                table = table.slice(0, left)
                left -= table.num_rows
            stats.rows += table.num_rows
            if table.num_rows:
                yield table
            if left == 0:
                return

    def _sources(
        self, plan: ReadPlan, work: Work, stats: ReadStats, buffered: Iterable[pa.Table]
    ) -> Iterator[pa.Table]:
        """Tables in exact types, with at least the rows and columns that are wanted."""
        cold: Iterator[pa.Table] = chain(self._lake(work, work.cold, stats), self._recalled(work, stats))
        if not work.key:
            yield from cold
            yield from self._rest(plan, work, stats, buffered)
            return
        if work.limit is None:
            cold = _begun(cold)
        folded = self._folded(plan, work, stats, buffered)
        yield folded.puts
        yield from folded.uncovered(cold, at_once=work.limit is not None)

    def _rest(self, plan: ReadPlan, work: Work, stats: ReadStats, buffered: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """All but the cold side, in exact types."""
        yield from self._lake(work, work.hot, stats)
        for table in buffered:
            yield conformed(table, work.needed_schema)
        yield from self._tail(plan.tail, work, stats)

    def _folded(self, plan: ReadPlan, work: Work, stats: ReadStats, buffered: Iterable[pa.Table]) -> Folded:
        rest = self._rest(plan, work, stats, buffered)
        return fold(work.table, pa.concat_tables([work.needed_schema.empty_table(), *rest]), work.key)

    def _lake(self, work: Work, parts: Iterable[LakeWork], stats: ReadStats) -> Iterator[pa.Table]:
        for part in parts:
            for table in self.lake.scan(part.metadata, work.query(part), stats.lake):
                yield conformed(table, part.schema)

    def _recalled(self, work: Work, stats: ReadStats) -> Iterator[pa.Table]:
        """The rows of the batch view that lie in Postgres."""
        if work.overlays:
            wanted = BufferQuery(
                table=work.table,
                segments=work.overlays,
                ranges=work.overlay,
                schema=work.cold_schema,
                where=work.where,
                stores_op=work.stores_op,
            )
            yield from self.buffer.batches(wanted, stats.overlay)

    def _buffered(self, work: Work, stats: ReadStats) -> Iterator[pa.Table]:
        if work.segments:
            wanted = BufferQuery(
                table=work.table,
                segments=work.segments,
                ranges=work.buffer,
                schema=work.needed_schema,
                where=work.asked,
                limit=None if work.key else work.limit,
                stores_op=work.stores_op,
            )
            yield from self.buffer.batches(wanted, stats.buffer)

    @contextmanager
    def _buffered_meanwhile(self, work: Work, stats: ReadStats) -> Iterator[Iterable[pa.Table]]:
        """The buffer's rows, read by their own thread while the caller reads the lake: both wait for others."""
        if not (work.segments and (work.lake or work.overlays)) or work.limit is not None:
            yield self._buffered(work, stats)
            return
        with ThreadPoolExecutor(1) as thread:
            found = thread.submit(lambda: list(self._buffered(work, stats)))
            yield _of(found)

    def _tail(self, tail: TailPart | None, work: Work, stats: ReadStats) -> Iterator[pa.Table]:
        if not work.tail or tail is None:
            return
        if self.tail_rows is None:
            raise UsageError(f"the plan of {work.table} has a Kafka part: give `tail_rows`, which reads it")
        low = {p: run[0] for p, run in work.tail.items()}
        high = {p: run[1] for p, run in work.tail.items()}
        table = self.tail_rows(replace(tail, low=low, high=high))
        stats.tail_rows += table.num_rows
        yield conformed(table.select(work.needed_schema.names), work.needed_schema)


def _of(tables: Future[list[pa.Table]]) -> Iterator[pa.Table]:
    yield from tables.result()


def _begun(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """*tables* whose first one is read now: a scan then reads on a few files ahead while others are waited for."""
    first = next(tables, None)
    return tables if first is None else chain([first], tables)


def finished(table: pa.Table, work: Work) -> pa.Table:
    """The rows of *table* for which `where` holds, with the wanted columns only."""
    if work.where != TRUE:
        table = table.filter(to_arrow(work.where))
    return table.select([column.name for column in work.columns])


def read_arrow(
    plan: ReadPlan,
    sources: ArrowSources,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    coordinates: bool | Sequence[str] = False,
    limit: int | None = None,
    check_lease: Callable[[], None],
    tail_rows: TailRows | None = None,
) -> ReadResult:
    """Read *plan* in one go; what the arguments mean: `Selection`, what can go wrong: `ArrowReader.read`."""
    selection = Selection(columns=columns, where=where, coordinates=coordinates, limit=limit)
    reader = ArrowReader.of(sources, tail_rows)
    stats = ReadStats()
    return ReadResult(rows=reader.read(plan, selection, check_lease=check_lease, stats=stats), stats=stats)
