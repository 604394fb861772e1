"""Ingest: move records of the log into the buffer.

The unit of work is the same wherever it runs: poll ``[lo, hi)`` of some partitions, decode, commit. `ingest_unit` is
called on one machine (`IngestLoop`) and by Spark tasks (`harness_pipelines.stages.ingest.on_engine`). It stops where a
unit is to be committed: `alone` commits each by itself, `harness_pipelines.stages.ingest.together` several at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import structlog

from harness_pipelines import faults
from harness_pipelines.drivers.certificates import CertificateRefused
from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.policy import SchemaDue
from harness_pipelines.formats.schema.registry import Schemas
from harness_pipelines.formats.schema.wire import NamedSchema, opened
from harness_pipelines.ports.buffer import BufferSegments, BufferWriter
from harness_pipelines.ports.decoded import (
    DecodedRange,
    RowsUnfit,
    decode_batch,
    stopped,
)
from harness_pipelines.ports.errors import KafkaFailed, KafkaLoginFailed
from harness_pipelines.ports.ledger import IngestPosition, Segment, TableRow
from harness_pipelines.ports.source import (
    BATCH_RECORDS_MAX,
    POLL_S,
    Feed,
    Log,
    LogReader,
    PartitionBatch,
    TopicIdentity,
    below,
    check_epochs,
    check_source,
    check_topic,
)
from harness_pipelines.protocol.digest import as_first, lake_digests_of, total_digest
from harness_pipelines.protocol.schema.schemas import SchemaMoved, check_schema
from harness_pipelines.protocol.segments import SegmentClosed
from harness_pipelines.stages.ingest.ages import Ages, Waiting
from harness_pipelines.stages.ingest.pacing import Pace
from harness_pipelines.stages.ingest.refusing import limit_of, note_refused
from harness_pipelines.stages.ingest.unfit import unfit_of, without

log = structlog.get_logger(__name__)
T = TypeVar("T")
#: Gives each unit that is to be committed, and gets the number of its rows; None: something comes that may take long.
Steps = Generator["Ready | None", int, T]
CAUGHT_UP_RECORDS = BATCH_RECORDS_MAX // 4  #: a poll that returns no more than this was not held up by a backlog


@dataclass(slots=True)
class IngestProgress:
    """Counters that the worker shows; written by one unit of ingest each."""

    rows: int = 0
    refused: int = 0
    commits: int = 0
    bytes: int = 0  #: of the values of the records that were taken
    cpu_s: float = 0.0  #: of the thread
    ages: Ages = field(default_factory=Ages)  #: of records, when they became readable
    waiting: dict[int, Waiting] = field(default_factory=dict)  #: for the lake, by partition


def with_digests(units: Sequence[tuple[TableRow, Sequence[DecodedRange]]]) -> list[list[DecodedRange]]:
    """The ranges of each unit with the digests of their rows: audits check them after Kafka dropped the records.

    They are worked out for all units at once: a call costs as much as 2,000 rows.
    """
    rows = [(as_first(one.rows, table), table.schema_version) for table, ranges in units for one in ranges]
    digests = iter(lake_digests_of(rows))
    return [[replace(one, digest=total_digest(next(digests))) for one in ranges] for _, ranges in units]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ready:
    """A unit that is decoded and waits for its commit."""

    table: TableRow
    writer: BufferWriter
    segment: OpenSegment
    ranges: Sequence[DecodedRange]  #: without digests
    ask: Callable[[], Callable[[], TopicIdentity]]  #: begins to ask which topic the records came from

    def commit(self) -> int:
        """Commit it in one transaction; returns the number of rows.

        A segment that was closed meanwhile is looked up again. Which topic the records came from is looked at after
        the rows are written. Raises: what `BufferWriter.commit` and `check_topic` raise.
        """
        answer = self.ask()
        [ranges] = with_digests([(self.table, self.ranges)])

        def confirm() -> None:
            check_topic(self.table, answer)

        try:
            return self.writer.commit(self.segment.current(), ranges, confirm=confirm)
        except SegmentClosed:
            return self.writer.commit(self.segment.renew(), ranges, confirm=confirm)


def alone(steps: Steps[T]) -> T:
    """What *steps* come to when each of their units is committed by itself. Raises: what they raise."""
    try:
        ready = next(steps)
        while True:
            try:
                rows = 0 if ready is None else ready.commit()
            except BaseException as error:  # the steps handle what they can, whatever it is
                ready = steps.throw(error)
            else:
                ready = steps.send(rows)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # of a generator that gives a T


def ingest_unit(
    table: TableRow,
    batches: Sequence[PartitionBatch],
    *,
    codec: RecordCodec,
    writer: BufferWriter,
    segment: OpenSegment,
    ask: Callable[[], Callable[[], TopicIdentity]],
) -> Steps[int]:
    """Decode *batches* and let them be committed in one transaction; gives the number of rows.

    Raises: RecordRefused, RefusedTooMany, and what `Ready.commit` raises; SchemaDue, when what comes before the record
    that needs other columns was taken.
    """
    faults.point("ingest.after_plan")
    batches, decoded, due = _decoded(table, codec, batches)
    ready = partial(Ready, table=table, writer=writer, segment=segment, ask=ask)
    take = partial(_taken, table, batches, ready=ready, segments=segment.segments)
    decode = partial(decode_batch, table, codec)
    try:
        rows = yield from take(decoded, decode=decode)
    except RowsUnfit:
        unfit = unfit_of(table, batches, decoded, lambda some: writer.trouble(segment.current(), some))
        if unfit and table.spec.on_error == "stop":
            raise stopped(table, unfit[min(unfit)], by_check=False) from None
        fit = [without(unfit, one) for one in decoded]
        rows = yield from take(fit, decode=lambda batch: without(unfit, decode(batch)))
    if due is not None:
        raise due
    return rows


def _taken(
    table: TableRow,
    batches: Sequence[PartitionBatch],
    decoded: Sequence[DecodedRange],
    *,
    decode: Callable[[PartitionBatch], DecodedRange],
    ready: Callable[..., Ready],
    segments: BufferSegments,
) -> Steps[int]:
    """Let what *batches* were *decoded* to be committed; gives the number of rows.

    Raises: RefusedTooMany, when what comes before the record that is one too many was taken; what `Ready.commit`
    raises.
    """
    limit = limit_of(table, decoded, segments)
    if limit is not None:  # what comes before is taken
        cut = [below(batch, limit.at[p].offset) if (p := batch.partition) in limit.at else batch for batch in batches]
        decoded = [decode(batch) for batch in cut if batch.high > batch.low]
    rows = 0
    if decoded:
        faults.point("ingest.before_lock")
        rows = yield ready(ranges=decoded)
        note_refused(table, (record for taken in decoded for record in taken.refused))
    if limit is not None:
        raise limit.error()
    return rows


def _decoded(
    table: TableRow, codec: RecordCodec, batches: Sequence[PartitionBatch]
) -> tuple[list[PartitionBatch], list[DecodedRange], SchemaDue | None]:
    """*batches* up to the first record that needs other columns, decoded: how they were cut is no matter then."""
    taken: list[PartitionBatch] = []
    decoded: list[DecodedRange] = []
    due: SchemaDue | None = None
    for batch in batches:
        try:
            decoded.append(decode_batch(table, codec, batch))
            taken.append(batch)
        except SchemaDue as found:
            due = found
            before = below(batch, _first_of(found.named, batch, has_indexes=table.spec.format == "protobuf"))
            if before.high > before.low:
                decoded.append(decode_batch(table, codec, before))
                taken.append(before)
    return taken, decoded, due


def _first_of(named: NamedSchema, batch: PartitionBatch, *, has_indexes: bool) -> int:
    """The offset of the first record that names its schema so."""
    for offset, value in zip(batch.offsets.tolist(), batch.values, strict=True):
        header = opened(value or b"", has_indexes=has_indexes)
        if isinstance(header, tuple) and header[0] == named:
            return int(offset)
    raise AssertionError(f"no record of {named}")


@dataclass(slots=True)
class OpenSegment:
    """The segment that one loop writes to, looked up again when it was closed."""

    segments: BufferSegments
    table: TableRow
    _current: Segment | None = None
    _indexed: str | None = None

    def current(self) -> Segment:
        if self._current is None:
            self._current = self.segments.open_segment(self.table)
        return self._current

    def renew(self) -> Segment:
        """Look the open segment up again."""
        self._current = None
        return self.current()

    def index(self) -> None:
        """Give the segment its index, once the log was caught up with."""
        current = self.current()
        if self._indexed != current.name:
            self.segments.index(self.table, current)
            self._indexed = current.name


class IngestLoop:
    """Ingest of some partitions: poll, unit, again. Not safe for use by two threads at once."""

    def __init__(
        self,
        table: TableRow,
        stream: Log,
        *,
        segments: BufferSegments,
        writer: BufferWriter,
        schemas: Schemas | None = None,
        poll_s: float = POLL_S,
        feed: Feed | None = None,
        pace: Pace | None = None,
    ) -> None:
        """*poll_s*: how long a step waits for records. With a *feed*, its `wake` is called when there are some.

        *pace* is that of all loops of a process.
        """
        self.table = table
        self.progress = IngestProgress()
        self._log = stream
        self._segments = segments
        self._open = OpenSegment(segments, table)
        self._writer = writer
        self._schemas = schemas
        self._codec: RecordCodec | None = None
        self._reader: LogReader | None = None
        self._poll_s, self._feed = poll_s, feed
        self.not_before = 0.0  #: when the next step is worth its cost, on the monotonic clock
        self._taken = 0  # bytes of records since the buffer was asked for room
        self._pacing = pace or Pace()
        self.took = 0  #: records of the last step
        self._refreshed = False  # since the last commit
        self._epochs: dict[int, int | None] = {}  # of the last record that was taken, by partition

    def start(self, partitions: Iterable[int]) -> None:
        """Begin at the ledger's positions.

        Raises: ContractUnusable, SchemaUnusable, SchemaMoved, and what `check_source` does.
        """
        self._codec = self._codec or RecordCodec(self.table.spec, self._schemas, due="raise")
        wanted = set(partitions)
        found = self._segments.positions(self.table)
        positions = {p: found[p].buffer_hi for p in wanted}
        check_decodes(self.table, found)
        check_source(self.table, self._log, positions, known=found)
        fresh = [p for p in wanted if self._epochs.get(p, -1) != found[p].leader_epoch]
        check_epochs(self.table, self._log, {p: (found[p].buffer_hi, found[p].leader_epoch) for p in fresh})
        self._epochs |= {p: found[p].leader_epoch for p in fresh}
        if self._reader is None:
            self._reader = self._log.reader(
                self.table.spec.topic, positions, identity=self.table.identity, feed=self._feed
            )
        else:
            self._reader.assign(positions)

    @property
    def positions(self) -> Mapping[int, int]:
        """By partition the offset that it takes next."""
        return {} if self._reader is None else self._reader.positions

    def step(self) -> int:
        """One unit of work; returns how many records it took (0 when the log had nothing new).

        A unit that was planned on an older state (REFRESH, RESOLVE) is forgotten: the next one starts from what the
        ledger says, and where that one is refused too, it is raised. Raises: SchemaMoved, when the table's schema is
        another now, or must become another (SchemaDue); BufferFull, before anything is read.
        """
        began_s = time.thread_time()
        try:
            return alone(self.steps())
        finally:
            self.progress.cpu_s += time.thread_time() - began_s

    def steps(self, *, records_max: int = BATCH_RECORDS_MAX) -> Steps[int]:
        """What `step` does, with at most *records_max* records, up to each commit, which the caller does.

        The CPU time is for the caller to count. Raises: as `step`.
        """
        assert self._reader is not None and self._codec is not None, "start() comes first"
        self._segments.check_room(self.table, taken=self._taken)
        self._taken = 0
        try:
            batches = [b for b in self._reader.poll(records_max, self._poll_s) if b.high > b.low]
        except (KafkaLoginFailed, CertificateRefused, KafkaFailed):
            self._reader.close()
            self._reader = None  # the next one reads the files of certificates again, and begins with another client
            raise
        self.took = 0
        if not batches:
            return 0
        led_anew = {b.partition: (b.low, self._epochs.get(b.partition)) for b in batches if self._is_led_anew(b)}
        if led_anew:
            yield None
            check_epochs(self.table, self._log, led_anew)
        self.took = sum(len(b) for b in batches)
        keeps_up = self.took <= CAUGHT_UP_RECORDS
        begun = time.monotonic()
        ask = partial(self._log.identity_async, self.table.spec.topic)
        try:
            rows = yield from ingest_unit(
                self.table, batches, codec=self._codec, writer=self._writer, segment=self._open, ask=ask
            )
            self._count(batches, rows)
            self._refreshed = False
            self._epochs |= {b.partition: b.leader_epoch for b in batches if b.leader_epoch is not None}
            if keeps_up:
                self._open.index()
            self._pace(begun, keeps_up=keeps_up)
        except HarnessError as error:
            if error.recovery is Recovery.NEVER or isinstance(error, SchemaMoved):
                raise
            log.info("ingest.started_again", table=self.table.name, error=str(error))
            again, self._refreshed = self._refreshed, True
            self.start(self._reader.positions)
            if again or error.exit_code == 75:
                raise
        return sum(len(b) for b in batches)

    def _pace(self, begun: float, *, keeps_up: bool) -> None:
        """Let records gather for what the table's objective allows; a thread that is behind goes on at once."""
        visible_s, took_s = self.table.spec.freshness.visible, time.monotonic() - begun
        next_at = self._pacing.next_at(self, begun, visible_s=visible_s, commit_s=took_s)
        self.not_before = next_at if keeps_up else 0.0

    def _is_led_anew(self, batch: PartitionBatch) -> bool:
        """Another leader wrote *batch* than what was taken before it."""
        before = self._epochs.get(batch.partition)
        return before is not None and batch.leader_epoch is not None and batch.leader_epoch != before

    def _count(self, batches: Sequence[PartitionBatch], rows: int) -> None:
        self.progress.rows += rows
        self.progress.refused += sum(len(b) for b in batches) - rows
        self.progress.commits += 1
        self._taken += (taken := sum(map(bytes_of, batches)))
        self.progress.bytes += taken
        for batch in batches:
            self._note_ages(batch, now_s=time.time())

    def _note_ages(self, batch: PartitionBatch, *, now_s: float) -> None:
        """Count how old the records of *batch* are, which can be read from now on."""
        timestamps_ms = batch.timestamps_ms[batch.timestamps_ms >= 0]
        if len(timestamps_ms):
            goal_s = self.table.spec.freshness.visible
            self.progress.ages.add(now_s - timestamps_ms / 1000.0, goal_s=goal_s, now_s=now_s)
            self.progress.waiting.setdefault(batch.partition, Waiting()).add(batch.high, timestamps_ms)

    def close(self) -> None:
        self._writer.close()
        if self._reader is not None:
            self._reader.close()


def bytes_of(batch: PartitionBatch) -> int:
    """Bytes of the values of *batch*: what the buffer grows by is about as much."""
    return sum(map(len, filter(None, batch.values)))


def check_decodes(table: TableRow, positions: Mapping[int, IngestPosition]) -> None:
    """Do records from *positions* on have the schema of *table*? Raises: SchemaMoved."""
    for found in positions.values():
        check_schema(table.name, planned=table.schema_version, found=found.schema_version, what="ingest began")


def join_partitions(table: TableRow, stream: Log, *, known: Iterable[int]) -> dict[int, int]:
    """Starts of the partitions that only the topic has: from the log's beginning, so nothing is lost."""
    found = check_topic(table, lambda: stream.describe(table.spec.topic))
    fresh = sorted(set(found.partitions) - set(known))
    return stream.start_offsets(table.spec.topic, fresh, "earliest") if fresh else {}
