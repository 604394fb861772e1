"""All records of a table in order: the history, then new records, without a gap or a duplicate.

The history is read in legs. A leg leases the newest version, reads the stream view and the buffer from where the reader
is up to where ingest was, and gives the lease back; a reader that is held up for longer than its lease begins another
one. After a short leg the reader continues in Kafka, at the exact offset. Partitions that join, and what Kafka
has dropped before the reader came to it, a further leg brings.

In Kafka the reader is ahead of ingest, and may know another spec than ingest will have when it comes there. What does
not fit the spec, or is filtered, is not the reader's to leave out: it waits there until ingest has passed the record,
and a further leg brings what became of it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

import numpy as np
import pyarrow as pa
import structlog

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.drivers.postgres import SegmentMissing
from harness_pipelines.errors import TryAgain
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.ports.access import (
    HasBufferReader,
    HasCorrections,
    HasLakeReads,
    HasLeases,
    HasLog,
    HasSchemas,
    HasTables,
)
from harness_pipelines.ports.decoded import RecordRefused
from harness_pipelines.ports.errors import LakeFileMissing, RecordsLost
from harness_pipelines.ports.ledger import LeaseEnded, TableRow
from harness_pipelines.ports.source import BATCH_RECORDS_MAX, POLL_S, LogReader, PartitionBatch, below, check_topic
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.protocol.reading.selection import Selection, Work, work_of
from harness_pipelines.protocol.reading.streams import StreamToken
from harness_pipelines.read.lease import Hold
from harness_pipelines.read.plan import leased, with_schema
from harness_pipelines.read.stream.changes import log_plan, version_of
from harness_pipelines.read.stream.corrections import passed, passed_plan, read_corrections
from harness_pipelines.read.stream.history import Piece, in_order, log_work
from harness_pipelines.read.tail import decoded_rows
from harness_pipelines.read.union import ArrowReader, finished
from harness_pipelines.spec.predicate import OFFSET, PARTITION, TRUE, OneOf, Predicate, Ref
from harness_pipelines.spec.types import Primitive

log = structlog.get_logger(__name__)

NEAR_OFFSETS = 20_000  #: a leg that took no more has caught up: Kafka has the rest
LOOK_EVERY_S = 5.0  #: how often a live reader asks whether partitions joined the table
SPEC_EVERY_S = 0.5  #: how old the spec may be by which a live reader decodes
HELD_POLL_S = 0.1  #: of a reader that waits for ingest
HELD_S_MAX = 30.0  #: for how long a stream that ends waits for ingest


class Ports(HasBufferReader, HasCorrections, HasLakeReads, HasLeases, HasLog, HasSchemas, HasTables, Protocol):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamBatch:
    """Records of one partition in offset order, puts and deletes, or a part of the state; may be empty."""

    rows: pa.Table  #: the wanted columns and the five coordinates
    partition: int | None  #: None: of the state, in no order, or corrections
    at: StreamToken
    begins_state: bool = False  #: the state begins, or begins again: what a consumer has of it is out of date
    is_correction: bool = False  #: no records that follow, but what became of some that went before: `_correction`

    @property
    def token(self) -> str:
        """Where a reader begins that has this batch and all before it."""
        return self.at.text()

    @property
    def is_state(self) -> bool:
        return self.partition is None and not self.is_correction

    def first(self, count: int) -> StreamBatch:
        """Its first *count* rows (all, if it has no more), and where a reader of no more begins; corrections whole."""
        if self.is_correction or count >= self.rows.num_rows:
            return self
        at = self.at
        if self.partition is not None:
            behind = int(self.rows.column(OFFSET)[count].as_py())
            at = replace(at, offsets={**at.offsets, self.partition: behind})
        return replace(self, rows=self.rows.slice(0, count), at=at)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """The columns and the start of a stream."""

    table: TableRow
    start: StreamToken
    selection: Selection
    ends: Mapping[int, int] | None  #: of a stream that ends: below these offsets
    follows_all: bool  #: partitions that join the table are followed too; corrections if `start` has a version


class NotJudged(TryAgain):
    """A stream that ends reached a record that does not fit or is filtered, and ingest has not reached it."""


class Stream:
    """Iterate over it for its batches. After an error, or a `break`, iterating again continues after the last one."""

    def __init__(self, stores: Ports, plan: StreamPlan) -> None:
        self._stores, self._plan, self._table = stores, plan, plan.table
        self._offsets = dict(plan.start.offsets)
        self._in_state = plan.start.in_state
        self._version = plan.start.version
        self._known: Mapping[int, Bounds] = {}  #: as of the last leg
        self._held: dict[int, int] = {}  #: per partition that waits for ingest the offset of the record
        self._held_since = 0.0  #: the monotonic clock

    @property
    def token(self) -> str:
        """Where it is: behind the batch that it gave last."""
        return self._at.text()

    @property
    def _at(self) -> StreamToken:
        return StreamToken(
            topic_id=self._table.identity.topic_id,
            offsets=dict(self._offsets),
            in_state=self._in_state,
            version=self._version,
        )

    def __iter__(self) -> Iterator[StreamBatch]:
        """Waits for records when there are none.

        Raises: LeaseEnded when the caller was away for too long in the middle of the state or of corrections, which
        then begin again; KafkaUnreachable, PostgresUnreachable, NotJudged and what else may be tried again; RecordsLost
        when neither Kafka nor the table has what comes next; TopicRecreated, LogTruncated, PartitionsGrown,
        RecordRefused, LakeFileMissing, SegmentMissing.
        """
        lost: RecordsLost | None = None
        while True:
            if self._in_state:
                yield from self._state()
            before = dict(self._offsets)
            is_near, work = yield from self._leg()
            if lost is not None and self._offsets[lost.partition] == before.get(lost.partition):
                raise lost
            lost = None
            if not is_near:
                continue
            try:
                yield from self._live(work)
            except RecordsLost as error:  # a table that still ingests has taken them before they were dropped
                lost = error
                log.info("stream.behind_kafka", table=self._table.name, partition=error.partition, at=error.expected)
            if not self._left():
                return

    # -- history --------------------------------------------------------------------------------------------

    def _state(self) -> Iterator[StreamBatch]:
        """Of a keyed table the newest row of every key, then an empty batch; the records above it come next."""
        wanted = replace(self._plan.selection, coordinates=True, matching=self._of_partitions())
        with leased_plan(self._stores, self._table) as newest:
            plan = replace(newest, tail=None)  # what a revert left to Kafka alone comes behind the state
            hold = Hold(self._stores, plan, lease_of(self._table))
            try:
                reader = ArrowReader.of(self._stores)
                begins = True
                for rows in reader.batches(plan, wanted, check_lease=hold.check):
                    yield replace(self._batch(pa.Table.from_batches([rows]), None), begins_state=begins)
                    begins = False
            finally:
                hold.end()
            self._offsets.update(self._answered(plan))
            self._in_state = False
            self._version = plan.version if self._version is not None else None
        yield replace(self._batch(work_of(plan, wanted).schema.empty_table(), None), begins_state=begins)

    def _leg(self) -> Generator[StreamBatch, None, tuple[bool, Work]]:
        """What the newest version and its buffer have; returns if the reader has caught up, and how rows are made."""
        taken = 0
        with leased_plan(self._stores, self._table) as plan:
            newest = self._stores.tables.table(self._table.name)  # the spec may have been changed without the columns
            self._table = with_schema(self._stores, newest, plan.schema_version)
            part = self._log_of(plan)
            work = log_work(part, self._plan.selection)
            yield from self._corrected(plan)
            leg_ends = time.monotonic() + lease_of(self._table).total_seconds()
            try:
                for piece in in_order(part, work, buffer=self._stores.buffer_reader, lake=self._stores.lake_reads):
                    self._stores.leases.renew(plan.lease_id, lease=lease_of(self._table))
                    taken += piece.high - self._offsets[piece.partition]
                    yield self._moved(piece)
                    if time.monotonic() > leg_ends:
                        return False, work
            except (LeaseEnded, LakeFileMissing, SegmentMissing):
                if taken == 0 or self._is_alive(plan):
                    raise
                log.info("stream.lease_ended", table=self._table.name, version=plan.version)
                return False, work
        return taken <= NEAR_OFFSETS, work

    def _log_of(self, plan: ReadPlan) -> ReadPlan:
        """The part of *plan* that the reader has not, in offset order."""
        self._known = plan.bounds
        if self._plan.follows_all:
            for partition, bounds in plan.bounds.items():
                self._offsets.setdefault(partition, bounds.start)
        ends = self._plan.ends or {}
        high = {p: min(o, ends.get(p, o)) for p, o in self._answered(plan).items()}
        version = version_of(plan, self._stores.tables.versions(self._table), plan.version)
        return log_plan(plan, version, low=dict(self._offsets), high=high)

    def _corrected(self, plan: ReadPlan) -> Iterator[StreamBatch]:
        """What became, since the version that it is at, of records that it has; what it reads next is of *plan*."""
        if self._version is None:
            return
        told = passed(self._stores.corrections(self._table).between(self._version, plan.version), self._offsets)
        last: pa.Table | None = None

        def check_lease() -> None:
            self._stores.leases.renew(plan.lease_id, lease=lease_of(self._table))

        if told:
            version = version_of(plan, self._stores.tables.versions(self._table), plan.version)
            for rows in read_corrections(
                ArrowReader.of(self._stores),
                passed_plan(plan, version, self._offsets),
                self._plan.selection,
                told=told,
                check_lease=check_lease,
            ):
                if last is not None:
                    yield self._correction(last)
                last = rows
        self._version = plan.version  # with the last of them, so that none is missing where a reader stops between
        if last is not None:
            yield self._correction(last)

    def _correction(self, rows: pa.Table) -> StreamBatch:
        return replace(self._batch(rows, None), is_correction=True)

    def _answered(self, plan: ReadPlan) -> dict[int, int]:
        """Per partition that is followed the offset below which *plan* has everything."""
        return answered(self._table, {p: plan.bounds[p] for p in self._offsets if p in plan.bounds})

    def _is_alive(self, plan: ReadPlan) -> bool:
        try:
            self._stores.leases.renew(plan.lease_id, lease=lease_of(self._table))
        except LeaseEnded:
            return False
        return True

    # -- live -----------------------------------------------------------------------------------------------

    def _left(self) -> dict[int, int]:
        """Where Kafka is read on; of a stream that ends, partitions that are not at their end. (-1 is no partition.)"""
        ends = self._plan.ends
        return {p: o for p, o in self._offsets.items() if p >= 0 and (ends is None or o < ends[p])}

    def _live(self, work: Work) -> Iterator[StreamBatch]:
        """Read Kafka until the stream ends or the table changes; the next leg begins there."""
        if not self._left():
            return
        self._held.clear()
        codec, decoded_by = RecordCodec(self._table.spec, self._stores.schemas), self._table
        look_at, spec_at = time.monotonic() + LOOK_EVERY_S, time.monotonic() + SPEC_EVERY_S
        topic, identity = self._table.spec.topic, self._table.identity
        with self._stores.log.reader(topic, self._left(), identity=identity) as reader:
            while self._left():
                pieces = self._polled(reader, codec, work)
                if pieces is None or (pieces and time.monotonic() > spec_at):
                    if self._has_other_spec():
                        return  # what came is read again
                    spec_at = time.monotonic() + SPEC_EVERY_S
                for piece in pieces or ():
                    if piece.high > self._offsets[piece.partition]:
                        yield self._moved(piece)
                if self._held and self._is_judged():
                    is_near, work = yield from self._leg()
                    if not is_near:
                        return
                    self._held.clear()
                    if self._table is not decoded_by:
                        codec, decoded_by = RecordCodec(self._table.spec, self._stores.schemas), self._table
                wanted = {p: o for p, o in self._left().items() if p not in self._held}
                if wanted != reader.positions:
                    reader.assign(wanted)
                if time.monotonic() > look_at:
                    if self._has_changed():
                        return
                    look_at = time.monotonic() + LOOK_EVERY_S

    def _is_judged(self) -> bool:
        """Ingest has passed a record that is waited at."""
        found = {p.partition: p.bounds for p in self._stores.tables.positions(self._table)}
        reached = answered(self._table, found)
        return any(reached.get(partition, 0) > offset for partition, offset in self._held.items())

    def _has_other_spec(self) -> bool:
        now = self._stores.tables.table(self._table.name)
        return now.spec != self._table.spec or now.schema_version != self._table.schema_version

    def _has_changed(self) -> bool:
        """Partitions have joined, rows were corrected, or the columns are others: the next leg begins with them."""
        tables = self._stores.tables
        head = tables.head(self._table)
        if head.schema_version != self._table.schema_version:
            return True
        if self._version is not None and self._stores.corrections(self._table).between(self._version, head.version):
            return True
        followed = self._plan.follows_all
        return followed and any(p.partition not in self._offsets for p in tables.positions(self._table))

    def _polled(self, reader: LogReader, codec: RecordCodec, work: Work) -> list[Piece] | None:
        """What came; None: a record that stops the table by the spec that the reader has.

        Raises: RecordRefused when the table still has that spec, NotJudged.
        """
        batches = [batch for batch in reader.poll(BATCH_RECORDS_MAX, self._poll_s()) if batch.high > batch.low]
        if not batches:
            return []
        identity = self._stores.log.identity_async(self._table.spec.topic)
        ends = self._plan.ends or {}
        try:
            pieces = [
                self._piece(below(batch, ends.get(batch.partition, batch.high)), codec, work)
                for batch in batches
                if batch.low < ends.get(batch.partition, batch.high)
            ]
        except RecordRefused:
            if not self._has_other_spec():
                raise
            return None
        check_topic(self._table, identity, known=self._known)  # as it is after the poll: these were its records
        return pieces

    def _poll_s(self) -> float:
        """How long Kafka is waited for. Raises: NotJudged of a stream that ends, and has waited for ingest too long."""
        if not self._held:
            self._held_since = time.monotonic()
            return POLL_S
        if self._plan.ends is not None and time.monotonic() - self._held_since > HELD_S_MAX:
            partition, offset = min(self._held.items())
            raise NotJudged(
                f"{self._table.name}: the record at offset {offset} of partition {partition} does not fit the spec or "
                f"is filtered, and ingest has not come to it for {HELD_S_MAX:g} s: what becomes of it is not known. "
                f"Run a worker (`harness run {self._table.name}`) and continue from the token of the last batch"
            )
        return HELD_POLL_S

    def _piece(self, batch: PartitionBatch, codec: RecordCodec, work: Work) -> Piece:
        """The records of *batch* before the first that makes no row; ingest decides about that one."""
        rows, high = decoded_rows(self._table, codec, batch), batch.high
        if (count := _in_sequence(rows, batch)) < len(batch):
            rows, high = rows.slice(0, count), int(batch.offsets[count])
            self._held[batch.partition] = high
        rows = rows.select(work.needed_schema.names)
        return Piece(partition=batch.partition, rows=finished(conformed(rows, work.needed_schema), work), high=high)

    # -- batches --------------------------------------------------------------------------------------------

    def _of_partitions(self) -> Predicate:
        """Of a stream of some partitions, what holds for their rows: all versions of a key lie in one partition."""
        if self._plan.follows_all:
            return TRUE
        return OneOf(Ref((PARTITION,), Primitive("int")), tuple(sorted(self._offsets)))

    def _moved(self, piece: Piece) -> StreamBatch:
        self._offsets[piece.partition] = piece.high
        return self._batch(piece.rows, piece.partition)

    def _batch(self, rows: pa.Table, partition: int | None) -> StreamBatch:
        return StreamBatch(rows=rows, partition=partition, at=self._at)


def _in_sequence(rows: pa.Table, batch: PartitionBatch) -> int:
    """How many records of *batch*, from its first one on, are *rows*."""
    there = np.asarray(rows.column(OFFSET))
    differ = np.flatnonzero(there != batch.offsets[: len(there)])
    return int(differ[0]) if len(differ) else len(there)


def answered(table: TableRow, bounds: Mapping[int, Bounds]) -> dict[int, int]:
    """Per partition the offset from which on Kafka is read, because the table has everything below it."""
    return table.intake.ends(bounds)


def lease_of(table: TableRow) -> timedelta:
    return timedelta(seconds=table.spec.retention.lease)


@contextmanager
def leased_plan(stores: Ports, table: TableRow) -> Iterator[ReadPlan]:
    """The newest version's plan. Its lease is not renewed while the caller is away, so a slow caller blocks nothing."""
    holder = f"{socket.gethostname()}:{os.getpid()}"
    with leased(stores, table, holder=holder, lease=lease_of(table)) as plan:
        yield plan
