"""Rows of the source ``harness``: `Table.stream` as a stream, `Table.read` as a batch.

Both as far as the table has them: what only Kafka has comes once it is ingested.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.ports.ledger import new_lease
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.protocol.reading.reads import at_of
from harness_pipelines.protocol.reading.selection import Bound, Selection, bound_to
from harness_pipelines.protocol.reading.streams import StreamToken
from harness_pipelines.read.plan import given_back, make_plan
from harness_pipelines.read.slices import Slice, pieces
from harness_pipelines.spec.arrow import COORDINATES
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.app.installation import Stores
    from harness_pipelines.ports.ledger import TableRow

OPTIONS = ("table", "columns", "where", "at", "startingOffsets", "maxOffsetsPerTrigger")


@dataclass(frozen=True)
class OpenTables:
    """Opens tables by *settings* in whatever process it comes to."""

    settings: Settings

    def __call__(self, options: Mapping[str, str], columns: Planned | None = None) -> TableReads:
        known = {name.lower() for name in OPTIONS}
        if unknown := sorted(name for name in options if name.lower() not in known):
            raise UsageError(f"the source `harness` has no option {unknown[0]!r}; its options: {', '.join(OPTIONS)}")
        if "table" not in options:
            raise UsageError('the source `harness` needs .option("table", "namespace.name")')
        return TableReads(self.settings, options, columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The columns of a query as its frame, view or stream was planned with them."""

    bound: Bound
    schema: pa.Schema  #: of the rows, coordinates among them, in the types of `spark_types`

    def named(self, names: Sequence[str]) -> Planned:
        """Only *names*, in this order."""
        shown = {field["name"]: field for field in self.bound.shown}
        bound = replace(self.bound, shown=tuple(shown[name] for name in names if name in shown))
        return Planned(bound=bound, schema=pa.schema([self.schema.field(name) for name in names]))

    def rows(self, rows: pa.Table) -> pa.Table:
        """*rows*, read by the bound columns, under the names of then."""
        from harness_pipelines.engines.spark.kafka import for_spark

        names = [*(field["name"] for field in self.bound.shown), *COORDINATES.names]
        return for_spark(rows.rename_columns(names).select(self.schema.names))


class TableReads:
    """`SourceReads` of one table, in the process that asks."""

    def __init__(self, settings: Settings, options: Mapping[str, str], columns: Planned | None) -> None:
        self._settings, self._planned = settings, columns
        self._table, self._begin = options["table"], options.get("startingOffsets", "earliest")
        self._columns, self._where = options.get("columns"), options.get("where")
        self._at = options.get("at")

    @cached_property
    def _stores(self) -> Stores:
        from harness_pipelines.app.installation import Stores

        return Stores(self._settings)

    @property
    def _asked(self) -> Selection:
        """As the options say."""
        columns = None if self._columns is None else [name.strip() for name in self._columns.split(",")]
        return Selection(columns=columns, where=self._where)

    @property
    def _selection(self) -> Selection:
        """The columns that the query was planned with, whatever has their names by now."""
        return Selection(where=self._where, bound=self._read.bound)

    @property
    def _read(self) -> Planned:
        self._planned = self._planned or self.columns()
        return self._planned

    @cached_property
    def _row(self) -> TableRow:
        return self._stores.tables.table(self._table)

    def columns(self) -> Planned:
        from harness_pipelines.engines.spark.kafka import spark_types
        from harness_pipelines.read.stream.history import log_work

        with self._plan() as plan:
            work = log_work(plan, self._asked)
            return Planned(bound=bound_to(plan, work), schema=spark_types(work.schema))

    def starts(self) -> dict[int, int]:
        return {p.partition: p.bounds.start for p in self._stores.tables.positions(self._row)}

    def begin(self) -> dict[int, int]:
        from harness_pipelines.read.stream.start import stream_plan

        said = self._begin
        if said == "latest":  # of the table: what only Kafka has comes once it is ingested
            return self.reached()
        plan = stream_plan(
            self._stores,
            self._row,
            from_=int(said) if said.isdigit() else said,
            selection=self._asked,
            partitions=None,
            follow=True,
            state_first=False,
            corrections=False,
        )
        return dict(plan.start.offsets)

    def reached(self) -> dict[int, int]:
        from harness_pipelines.read.stream.stream import answered

        return answered(self._row, {p.partition: p.bounds for p in self._stores.tables.positions(self._row)})

    def rows(self, partition: int, low: int, high: int) -> Iterator[pa.RecordBatch]:
        from harness_pipelines.read.stream.stream import Stream, StreamPlan

        start = StreamToken(topic_id=self._row.identity.topic_id, offsets={partition: low})
        plan = StreamPlan(
            table=self._row, start=start, selection=self._selection, ends={partition: high}, follows_all=False
        )
        try:
            for batch in Stream(self._stores, plan):
                yield from self._read.rows(batch.rows).to_batches()
        finally:
            self._end()

    def pieces(self) -> list[Slice]:
        """One cut, as its own lease holds it: tasks renew it, and it ends by its time when none does."""
        selection, stores, lease_id = self._selection, self._stores, new_lease()
        with given_back(stores, lease_id):
            plan = self._leased(lease_id)
            found = pieces(plan, replace(selection, coordinates=True), stores.lake_reads)
            if not found:
                stores.leases.end(plan.lease_id)
            return found

    @contextmanager
    def _plan(self) -> Iterator[ReadPlan]:
        """A plan of the cut that the options ask for; its lease ends with the block."""
        lease_id = new_lease()
        try:
            yield self._leased(lease_id)
        finally:
            with suppress(HarnessError):  # the ledger is away: the lease ends by its time
                self._stores.leases.end(lease_id)

    def _leased(self, lease_id: str) -> ReadPlan:
        from harness_pipelines.read.stream.stream import lease_of

        row = self._row
        try:
            at = None if self._at is None else at_of(self._at)
        except ValueError as error:
            raise UsageError(f"{row.name}: {error}") from None
        holder = f"spark on {socket.gethostname()}:{os.getpid()}"
        tail = not row.intake.buffered
        return make_plan(self._stores, row, at=at, tail=tail, holder=holder, lease=lease_of(row), lease_id=lease_id)

    def rows_of(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        from harness_pipelines.read.stream.stream import lease_of
        from harness_pipelines.read.tail import read_tail
        from harness_pipelines.read.union import ArrowReader

        row, stores = self._row, self._stores
        reader = ArrowReader.of(stores, lambda part: read_tail(stores, row, part))
        selection = replace(self._selection, coordinates=True, files=piece.files)

        def check_lease() -> None:
            stores.leases.renew(piece.plan.lease_id, lease=lease_of(row))

        try:
            for batch in reader.batches(piece.plan, selection, check_lease=check_lease):
                yield from self._read.rows(pa.Table.from_batches([batch])).to_batches()
        finally:
            self._end()

    def _end(self) -> None:
        """Close what a task opened: another one may follow it in its process."""
        self._stores.close()
        self.__dict__.pop("_stores")
