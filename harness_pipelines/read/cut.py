"""From the state of a table to a cut that any engine reads: look, write what no file has yet, publish.

See decision 0057. A load that finds nothing new writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import Protocol, TypeVar

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from harness_pipelines import faults
from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.ports.access import (
    HasBufferReader,
    HasCutFiles,
    HasCuts,
    HasLakeReads,
    HasLeases,
    HasLog,
    HasSchemas,
    HasTables,
)
from harness_pipelines.ports.ledger import TableRow, TableUnknown, new_lease
from harness_pipelines.ports.serving.cuts import Cut, CutDamaged, CutImpossible, CutOvertaken, CutsFull
from harness_pipelines.protocol.cuts import (
    Chunk,
    CutBounds,
    Writing,
    chunk_plan,
    is_young,
    shows_all_of,
    snapshot_id,
    too_large,
)
from harness_pipelines.protocol.reading.narrowing import Ranges
from harness_pipelines.protocol.reading.plan import BufferPart, ReadPlan, TailPart
from harness_pipelines.protocol.reading.selection import Selection
from harness_pipelines.read.plan import Looked, look_plan
from harness_pipelines.read.tail import read_tail
from harness_pipelines.read.union import ArrowReader
from harness_pipelines.spec.predicate import OFFSET, PARTITION

log = structlog.get_logger(__name__)
MAKING_S_MAX = 120.0  #: from the look to the commit: shorter than any grace, after which expire takes files for orphans
TRIES = 5  #: how often other servers may be faster
CHECKED_EVERY_S = 10.0  #: a cut is given out again for so long before its files are looked for once more
SERVED_EVERY = timedelta(seconds=1)  #: the ledger notes no smaller difference
FULL_MAX = timedelta(minutes=1)  #: how old the newest cut of a table may be that has as many as the ledger takes
RECALLED = "recalled "  #: begins the maker of chunks of recalled rows
Part = TypeVar("Part", BufferPart, TailPart)
IN_ORDER = [(PARTITION, "ascending"), (OFFSET, "ascending")]


class Ports(HasBufferReader, HasCutFiles, HasCuts, HasLakeReads, HasLeases, HasLog, HasSchemas, HasTables, Protocol):
    """The ports that it uses."""


class CutTooSlow(TryAgain):
    """Making the cut took longer than its files are safe from expire; what was written is left to expire."""

    way_on = "let a worker tier the table, so that less is above the lake; then load it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a load answers with."""

    table: TableRow
    cut: Cut
    made: bool  #: by this load


class Cutter:
    """Makes the cuts of one table in this process; one thread at a time."""

    def __init__(self, stores: Ports, *, holder: str, keep: timedelta, every: timedelta) -> None:
        self._stores, self._holder = stores, holder
        self._keep, self._every = keep, every
        self._looked: tuple[int, float] | None = None  #: sequence of the newest cut, and when the state was that of it
        self._checked: tuple[int, float] | None = None  #: sequence of a cut, and when its files were there

    def load(self, table: TableRow) -> Served:
        """The newest cut, which is that of the state as it is now or was within `every`.

        Raises: CutImpossible, CutTooSlow, CutsFull, CutDamaged; CutOvertaken when other servers were faster every time;
        as `look_plan`.
        """
        for _ in range(TRIES):
            with suppress(CutOvertaken):
                return self._load(table)
        raise CutOvertaken(f"{table.name}: other servers published a newer cut {TRIES} times; load it again")

    def _load(self, table: TableRow) -> Served:
        newest, clock = self._stores.cuts.newest(table)
        began = time.monotonic()
        try:
            return self._loaded(table, newest, clock=clock, began=began)
        except CutDamaged as damage:
            if newest is None or newest.is_over:
                raise
            self._stores.cuts.retire(newest)
            log.warning("cut.retired", table=table.name, cut=newest.snapshot_id, why=str(damage))
            raise CutOvertaken(f"{table.name}: cut {newest.snapshot_id} is retired: {damage}") from damage
        except CutsFull:
            newest, clock = self._stores.cuts.newest(table)
            if newest is None or newest.is_over or clock - newest.published_at > FULL_MAX:
                raise
            return self._again(table, newest, clock)

    def _loaded(self, table: TableRow, newest: Cut | None, *, clock: datetime, began: float) -> Served:
        if newest is not None and self._is_of_now(newest, clock, began):
            return self._again(table, newest, clock)
        with self._looking(table) as found:
            looked = as_served(found)
            bounds = cut_bounds(looked.plan)
            if newest is not None and not newest.is_over and newest.snapshot_id == identity(looked, bounds):
                served = self._again(looked.table, newest, clock)
            else:
                try:
                    cut = self._made(looked, bounds, newest, began=began, clock=clock)
                    served = Served(table=looked.table, cut=cut, made=True)
                    self._checked = (cut.sequence, began)
                except CutOvertaken:
                    newer, clock = self._stores.cuts.newest(table)
                    if (
                        newer is None
                        or newer.is_over
                        or not shows_all_of(newer, version=looked.plan.version, bounds=bounds)
                    ):
                        raise
                    served = self._again(looked.table, newer, clock)
        self._looked = (served.cut.sequence, began)
        return served

    def _again(self, table: TableRow, cut: Cut, clock: datetime) -> Served:
        """*cut*, with files that are there and stay. Raises: CutDamaged, CutOvertaken."""
        now = time.monotonic()
        if self._checked is None or self._checked[0] != cut.sequence or now - self._checked[1] >= CHECKED_EVERY_S:
            self._stores.cut_files.check(cut)
            self._checked = (cut.sequence, now)
        if cut.until < clock + self._keep - SERVED_EVERY:
            self._stores.cuts.serve(cut, keep=self._keep)
        return Served(table=table, cut=cut, made=False)

    def _is_of_now(self, newest: Cut, clock: datetime, now: float) -> bool:
        """Whether it is young, or this process has just seen that nothing is newer: an engine loads several times."""
        if newest.is_over:
            return False
        is_seen = self._looked is not None and self._looked[0] == newest.sequence
        return is_young(newest.published_at, newest.until, now=clock, every=self._every, keep=self._keep) or (
            is_seen and self._looked is not None and now - self._looked[1] < self._every.total_seconds()
        )

    @contextmanager
    def _looking(self, table: TableRow) -> Iterator[Looked]:
        lease_id = new_lease()
        try:
            yield look_plan(
                self._stores,
                table,
                at=None,
                tail=not table.intake.buffered and not table.spec.key,  # the merged state has none
                holder=self._holder,
                lease=timedelta(seconds=MAKING_S_MAX),
                lease_id=lease_id,
            )
        finally:
            with suppress(HarnessError):  # the ledger is away: the lease ends by its time
                self._stores.leases.end(lease_id)

    def _made(self, looked: Looked, bounds: CutBounds, newest: Cut | None, *, began: float, clock: datetime) -> Cut:
        """Make the cut of a look that *began* when the ledger's clock was *clock*; its times are by this clock."""
        table, plan, stores = looked.table, looked.plan, self._stores
        deadline = began + MAKING_S_MAX
        if why := too_large(bounds):
            raise CutImpossible(f"{table.name}: {why}; nothing was written")
        writer = _Chunks(stores, looked, newest.chunks if newest else (), sequence=newest.sequence + 1 if newest else 0)
        chunks = []
        for chunk in chain(writer.recalled(), writer.above(bounds)):
            chunks.append(chunk)
            _check_in_time(table, deadline)
        faults.point("serve.after_chunks")
        _check_there(stores, table)
        draft = stores.cut_files.write_cut(
            table,
            looked.state.version,
            plan,
            chunks=chunks,
            previous=newest,
            bounds=bounds,
            snapshot_id=identity(looked, bounds),
            now_ms=int((clock.timestamp() + time.monotonic() - began) * 1000),
        )
        faults.point("serve.after_files")
        _check_in_time(table, deadline)
        cut = stores.cuts.publish(
            table, draft, previous=None if newest is None else newest.sequence, lease_id=plan.lease_id, keep=self._keep
        )
        faults.point("serve.after_commit")
        log.info(
            "cut.published",
            table=table.name,
            cut=cut.snapshot_id,
            version=cut.version,
            chunks=len(chunks),
            written=writer.written,
            rows=writer.rows,
            ms=round((time.monotonic() - began) * 1000, 1),
        )
        return cut


def _check_in_time(table: TableRow, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise CutTooSlow(f"{table.name}: making a cut took longer than {MAKING_S_MAX:g} s; nothing was published")


def _check_there(stores: Ports, table: TableRow) -> None:
    """Files of a table that was dropped meanwhile would stay. Raises: TableUnknown."""
    if stores.tables.table(table.name).table_id != table.table_id:
        raise TableUnknown(f"{table.name} was dropped while a cut of it was made; what was written of it is left")


class _Chunks:
    """The chunks of one cut: those of the last one that still serve, and what has to be written."""

    def __init__(self, stores: Ports, looked: Looked, known: Sequence[Chunk], *, sequence: int) -> None:
        self._stores, self._looked, self._known, self._sequence = stores, looked, known, sequence
        self.written = self.rows = 0  #: chunks and rows that this cut writes

    def recalled(self) -> Iterator[Chunk]:
        """Those of the rows of the batch view that lie in Postgres, as one generation of them."""
        overlay = self._looked.plan.overlay
        if overlay is None:
            return
        maker = recalled_maker(self._looked.plan)
        if kept := [chunk for chunk in self._known if chunk.maker == maker]:
            yield from kept
            return
        rows = self._read(replace(self._looked.plan, lake=(), buffer=None, tail=None))
        ranges = {p: (overlay.low[p], overlay.high[p]) for p in overlay.low}
        yield self._write(rows, ranges, maker)

    def above(self, bounds: CutBounds) -> Iterator[Chunk]:
        """Those of the rows that the lake does not have."""
        maker = maker_of(self._looked)
        low = {p: stream_hi for p, (_, _, stream_hi, _) in bounds.items()}
        high = {p: end for p, (_, _, _, end) in bounds.items()}
        planned = chunk_plan([c for c in self._known if not c.maker.startswith(RECALLED)], low, high, maker=maker)
        yield from planned.kept
        for wanted in planned.written:
            yield self._write(self._rows(wanted), wanted.ranges, maker)

    def _rows(self, wanted: Writing) -> pa.Table:
        parts = [
            within(self._stores.cut_files.read_chunk(self._looked.table, self._looked.plan, chunk), wanted.ranges)
            for chunk in wanted.sources
        ]
        if wanted.read:
            parts.append(self._read(_narrowed(self._looked.plan, wanted.read)))
        return pa.concat_tables(parts, promote_options="none")

    def _read(self, plan: ReadPlan) -> pa.Table:
        reader = ArrowReader.of(self._stores, partial(read_tail, self._stores, self._looked.table))
        return reader.read(plan, Selection(coordinates=True, changelog=True), check_lease=_nothing)

    def _write(self, rows: pa.Table, ranges: Ranges, maker: str) -> Chunk:
        self.written, self.rows = self.written + 1, self.rows + rows.num_rows
        return self._stores.cut_files.write_chunk(
            self._looked.table,
            self._looked.state.version,
            rows.sort_by(IN_ORDER),
            ranges=ranges,
            maker=maker,
            sequence=self._sequence,
        )


def as_served(looked: Looked) -> Looked:
    """What of a state a cut shows: of a keyed table its merged state, for which no row has to be compared by its key.

    Raises: CutImpossible for a keyed table without a batch view, whose lake is a changelog.
    """
    table, plan = looked.table, looked.plan
    if not plan.key:
        return looked
    if not table.view_set.clustered:
        raise CutImpossible(f"{table.name}: a keyed table with `views: stream` has only a changelog in the lake")
    merged = {p: replace(b, stream_hi=b.batch_hi, buffer_hi=b.batch_hi) for p, b in plan.bounds.items()}
    lake = tuple(part for part in plan.lake if part.view == "batch")
    return replace(looked, plan=replace(plan, bounds=merged, lake=lake, buffer=None, tail=None))


def cut_bounds(plan: ReadPlan) -> CutBounds:
    """Up to which offset each part of the cut of *plan* reaches."""
    tail = plan.tail.high if plan.tail else {}
    return {p: (b.start, b.batch_hi, b.stream_hi, tail.get(p, b.buffer_hi)) for p, b in plan.bounds.items()}


def identity(looked: Looked, bounds: CutBounds) -> int:
    """The snapshot id of a cut: a number made of all that decides its rows."""
    plan = looked.plan
    makers = (maker_of(looked), *([recalled_maker(plan)] if plan.overlay else ()))
    return snapshot_id(plan.table_id, plan.version, bounds, makers=makers)


def maker_of(looked: Looked) -> str:
    """What the rows above the lake are made with: their columns, and where they are decoded here, the decoder."""
    columns = f"schema {looked.plan.schema_version}"
    if looked.table.intake.buffered:
        return columns
    spec = orjson.dumps(looked.table.spec.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS)
    return f"{columns}, decoder {blake2b(spec, digest_size=8).hexdigest()}"


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

    def part(of: Part | None) -> Part | None:
        if of is None:
            return None
        both = {p: (max(low, of.low[p]), min(high, of.high[p])) for p, (low, high) in ranges.items() if p in of.low}
        both = {p: run for p, run in both.items() if run[0] < run[1]}
        low, high = ({p: run[at] for p, run in both.items()} for at in (0, 1))
        return replace(of, low=low, high=high) if both else None

    return replace(plan, lake=(), overlay=None, buffer=part(plan.buffer), tail=part(plan.tail))


def _nothing() -> None:
    """The lease is judged by the commit."""
