"""The Python API of one logical table."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from harness_pipelines.app.frames import Frames
from harness_pipelines.app.summaries import Summaries
from harness_pipelines.errors import UsageError
from harness_pipelines.ports.ledger import PartitionStatus, TableRow, new_lease
from harness_pipelines.protocol.reading.plan import ReadPlan, TailPart
from harness_pipelines.protocol.reading.reads import At
from harness_pipelines.protocol.versions import Version
from harness_pipelines.spec.table import TableSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from harness_pipelines.app.client import Harness
    from harness_pipelines.ledgers.postgres.events import Subscription
    from harness_pipelines.ports.events import Event
    from harness_pipelines.ports.requests import RecallRequest
    from harness_pipelines.protocol.changes.corrections import Wanted
    from harness_pipelines.protocol.lake.overlays import OverlayRequest
    from harness_pipelines.protocol.reading.selection import Selection
    from harness_pipelines.protocol.schema.evolution import ColumnChanges
    from harness_pipelines.read.lease import Hold
    from harness_pipelines.read.point import HotRows
    from harness_pipelines.read.report.lineage import FileLineage, MoveLineage, RecordLineage
    from harness_pipelines.read.stream.start import From
    from harness_pipelines.read.stream.stream import Stream
    from harness_pipelines.read.union import ArrowReader
    from harness_pipelines.stages.replay.quarantine import Replayed
    from harness_pipelines.stages.replay.ranges import RangeReplayed
    from harness_pipelines.stages.run.own_mover import OwnMover


class Table(Frames, Summaries):
    """One logical table. Each read is a consistent cut over all tiers."""

    def __init__(self, harness: Harness, row: TableRow) -> None:
        self.harness, self.row = harness, row
        self._hot: HotRows | None = None

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def spec(self) -> TableSpec:
        return self.row.spec

    def read(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        at: At | None = None,
        limit: int | None = None,
        tail: bool = False,
    ) -> pa.Table:
        """Return all rows of one consistent cut as Arrow, without a JVM.

        *columns* may name coordinate columns. *where* is an SQL-like predicate. *at* is a version, the name of a
        snapshot, or a time, which means the newest version at that time. Each of them always returns the same rows.
        Default: the newest rows. *tail* adds records only in Kafka. Raises: VersionGone, SnapshotUnknown, ...
        """
        from harness_pipelines.protocol.reading.selection import Selection

        with self._leased(at=at, tail=tail) as (plan, hold):
            wanted = Selection(columns=columns, where=where, limit=limit)
            return self._arrow().read(plan, wanted, check_lease=hold.finish)

    def get(
        self, key: Any, *, columns: Sequence[str] | None = None, at: At | None = None, tail: bool = False
    ) -> dict[str, Any] | None:
        """Return the newest row of *key*, or None if it has none or is deleted. Arguments and errors as `get_many`."""
        [found] = self.get_many([key], columns=columns, at=at, tail=tail)
        return found

    def get_many(
        self,
        keys: Sequence[Any],
        *,
        columns: Sequence[str] | None = None,
        at: At | None = None,
        tail: bool = False,
    ) -> list[dict[str, Any] | None]:
        """Return the newest row of each of *keys* in one consistent cut of a keyed table, in the order of *keys*.

        A key is ``{column: value}``, a tuple in the key's order or, for one column, its value. The lake is read only
        for keys that are not in the buffer. Raises: KeyUnfit, and as `read`.
        """
        from harness_pipelines.read.point import HotRows, rows_by_key

        if at is None and not tail and self.row.intake.buffered:
            self._hot = self._hot or HotRows(self.harness.stores)
            known = self._hot.rows(self.row, keys, columns=columns)
            if known is not None:
                return known
        with self._leased(at=at, tail=tail) as (plan, hold):
            return rows_by_key(self._arrow(), plan, keys, columns=columns, check_lease=hold.finish)

    def scan(
        self,
        prefix: Any,
        *,
        columns: Sequence[str] | None = None,
        at: At | None = None,
        tail: bool = False,
    ) -> pa.Table:
        """Return the newest rows of all keys that start with *prefix*, unordered; needs several key columns.

        *prefix* has values of the first key columns: ``{column: value}``, a tuple, or one value of the first column.
        Only files and segments that may hold these keys are read. Raises: KeyUnfit, and as `read`.
        """
        from harness_pipelines.protocol.reading.selection import Selection
        from harness_pipelines.read.point import key_form

        with self._leased(at=at, tail=tail) as (plan, hold):
            wanted = Selection(columns=columns, matching=key_form(plan).below(prefix))
            return self._arrow().read(plan, wanted, check_lease=hold.finish)

    def changes(
        self,
        from_version: int,
        to_version: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        pre_images: bool = False,
    ) -> pa.Table:
        """Return the records that are in *to_version* (default: now) and not in *from_version*, in offset order.

        The columns are *columns* (default: the user's) and the five coordinates; `_op` is put or delete. The changes
        from 1 to 2 and from 2 to 3 are those from 1 to 3. *pre_images*, for keyed tables, returns each record's effect:
        `_change_type` is ``+I``, ``-U`` (the replaced row) and ``+U``, or ``-D`` (the deleted row). A delete of a
        missing
        row is omitted.
        Raises: VersionGone, UsageError, and as `read`.
        """
        from harness_pipelines.protocol.reading.selection import Selection
        from harness_pipelines.read.stream.changes import changes_plan
        from harness_pipelines.read.stream.preimages import read_pre_images

        reader = self._arrow()
        wanted = Selection(columns=columns, where=where, coordinates=True, changelog=True)
        with self._leased(at=to_version, tail=False) as (plan, hold):
            versions = self.versions()
            part = changes_plan(plan, versions, since=from_version)
            if not pre_images:
                found = reader.read(part, wanted, check_lease=hold.finish)
                return found.sort_by([("_kafka_partition", "ascending"), ("_kafka_offset", "ascending")])
            with self._leased(at=from_version, tail=False) as (old, older):
                if old.schema_version != plan.schema_version:
                    raise UsageError(
                        f"{self.name}: the columns were changed between versions {from_version} and {plan.version}, so "
                        "rows before and after have different columns; request the changes up to that version and "
                        "from it on separately, or without pre-images"
                    )
                found = read_pre_images(reader, part, old, wanted, check_lease=older.check)
            hold.finish()
        return found

    def corrections(
        self,
        from_version: int,
        to_version: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
    ) -> pa.Table:
        """Return corrections of records that *from_version* had already passed; `changes` does not return them.

        `_correction` is ``added``, ``replaced`` (both with the row) or ``removed`` (only partition and offset).
        For a keyed table they concern the changelog; `get` returns the current row of a key. Raises: as `changes`.
        """
        from harness_pipelines.protocol.reading.selection import Selection
        from harness_pipelines.read.stream.corrections import corrections_passed

        wanted = Selection(columns=columns, where=where)
        with self._leased(at=to_version, tail=False) as (plan, hold):
            told = self.harness.stores.corrections(self.row).between(from_version, plan.version)
            versions = self.versions()
            return corrections_passed(self._arrow(), plan, versions, wanted, since=from_version, told=told, hold=hold)

    def changelog(
        self,
        from_version: int,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        pre_images: bool = False,
        follow: bool = True,
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield the `changes` of each version after *from_version*, with its number, in order; with *follow* forever.

        Keep the number of the last version that you processed; a later call continues from it. A version arrives some
        milliseconds after it is published. Raises: VersionGone if *from_version* is not retained, and as `changes`.
        """
        at = from_version
        for event in self.events(follow=follow):
            version = int(event.payload["version"])
            if version > at:
                yield version, self.changes(at, version, columns=columns, where=where, pre_images=pre_images)
                at = version

    def stream(
        self,
        from_: From = "earliest",
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        partitions: Sequence[int] | None = None,
        follow: bool = True,
        state_first: bool = False,
        corrections: bool = False,
    ) -> Stream:
        """Yield all records in offset order within each partition: the history, then new records, forever.

        Each batch is of one partition, may be empty, and has the *token* with which a later reader continues.
        *from_* is ``earliest``, ``latest``, a token, offsets per partition (a missing partition starts at its start), a
        version or the name of a snapshot (continue after it), or a time (the first record of each partition that is not
        older). Columns are *columns* (default: the user's) and the five coordinates; `_op` is put or delete. *where*
        filters records. *partitions* limits the stream, so that several readers share the work; by default it also
        follows partitions that join the table. Without *follow* it ends at Kafka's current end.
        With *state_first* the stream of a keyed table starts with the newest row of each key, unordered, and an empty
        batch that is also `is_state` ends this part. Records that do not fit the spec are omitted.
        With *corrections* it also yields `is_correction` batches, marked as in `corrections`, for earlier records that
        a replay or a revert changed.
        Raises: UsageError, VersionGone, SnapshotUnknown, RecordsLost, LogTruncated, TopicRecreated, ...
        """
        from harness_pipelines.protocol.reading.selection import Selection
        from harness_pipelines.read.stream.start import stream_plan
        from harness_pipelines.read.stream.stream import Stream

        plan = stream_plan(
            self.harness.stores,
            self.row,
            from_=from_,
            selection=Selection(columns=columns, where=where),
            partitions=partitions,
            follow=follow,
            state_first=state_first,
            corrections=corrections,
        )
        return Stream(self.harness.stores, plan)

    @contextmanager
    def reader(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        at: At | None = None,
        limit: int | None = None,
        tail: bool = False,
    ) -> Iterator[pa.RecordBatchReader]:
        """Return the rows of `read` batch by batch in bounded memory; the lease lasts as long as the block."""
        from harness_pipelines.protocol.reading.selection import Selection

        with self._reader(Selection(columns=columns, where=where, limit=limit), at=at, tail=tail) as batches:
            yield batches

    @contextmanager
    def _reader(self, wanted: Selection, *, at: At | None, tail: bool) -> Iterator[pa.RecordBatchReader]:
        import pyarrow as pa

        from harness_pipelines.protocol.reading.selection import work_of

        with self._leased(at=at, tail=tail) as (plan, hold):
            batches = self._arrow().batches(plan, wanted, check_lease=hold.check)
            yield pa.RecordBatchReader.from_batches(work_of(plan, wanted).schema, batches)

    def sample(
        self,
        fraction: float,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        at: At | None = None,
        limit: int | None = None,
        tail: bool = False,
    ) -> pa.Table:
        """Return about *fraction* (above 0, up to 1) of the rows of `read`, as Arrow, in bounded memory.

        A hash of the coordinate selects them, so the rows are always the same, and a smaller fraction is a subset.
        `sample_to_spark` returns the same rows in Spark. Up to ``layout.sample`` of the spec, only the sample layer of
        the batch view and unclustered files are read; above it all rows are scanned until *limit* are found.
        Raises: UsageError, and as `read`.
        """
        from harness_pipelines.layout.row_hash import threshold
        from harness_pipelines.protocol.reading.selection import Selection
        from harness_pipelines.read.sample import layer_suffices, sampled, shown_and_needed

        below = threshold(fraction)  # what is wrong is said before anything is read
        shown, needed = shown_and_needed(self.spec, columns)
        wanted = Selection(columns=needed, where=where, layer=layer_suffices(self.spec, fraction))
        with self._reader(wanted, at=at, tail=tail) as batches:
            return sampled(batches, batches.schema, below=below, columns=shown, limit=limit)

    def sample_to_spark(
        self,
        spark: SparkSession,
        fraction: float,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        at: At | None = None,
        lease_s: float | None = None,
        view: str | None = None,
    ) -> DataFrame:
        """Return the rows of `sample` as a lazy DataFrame; *lease_s* and *view* as in `to_spark`.

        Raises: UsageError, and as `to_spark`.
        """
        from harness_pipelines.engines.spark.read import sampled
        from harness_pipelines.engines.spark.union import named_view
        from harness_pipelines.layout.row_hash import threshold
        from harness_pipelines.read.sample import layer_suffices, shown_and_needed

        below = threshold(fraction)
        shown, needed = shown_and_needed(self.spec, columns)
        layer = layer_suffices(self.spec, fraction)
        frame = self._frame(spark, columns=needed, where=where, at=at, lease_s=lease_s, layer=layer)
        return named_view(sampled(frame, below=below, columns=shown), view, table=self.name)

    def to_spark(
        self,
        spark: SparkSession,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        at: At | None = None,
        lease_s: float | None = None,
        view: str | None = None,
        plan: ReadPlan | None = None,
    ) -> DataFrame:
        """Return the rows of `read` as a lazy DataFrame. Using it after *lease_s* (default: ``retention.lease`` of the
        spec,
        at most 24 h) fails with a named error. With *view* it is registered as a temp view for SQL.
        *where* filters the reads of lake and buffer. A filter added to the frame, or the WHERE of SQL over the view,
        prunes only files of the lake, and the whole buffer is read. Such a filter may compare a float with zero;
        Iceberg
        treats -0.0 and 0.0 as two numbers, while *where* finds both.
        With the caller's own *plan* the caller must also end its lease.
        """
        from harness_pipelines.engines.spark.union import named_view

        frame = self._frame(spark, columns=columns, where=where, at=at, lease_s=lease_s, plan=plan)
        return named_view(frame, view, table=self.name)

    def _frame(
        self,
        spark: SparkSession,
        *,
        columns: Sequence[str] | None,
        where: str | None,
        at: At | None,
        lease_s: float | None,
        plan: ReadPlan | None = None,
        layer: bool = False,
    ) -> DataFrame:
        from harness_pipelines.engines.spark.kafka import tail_frame
        from harness_pipelines.engines.spark.union import to_spark
        from harness_pipelines.read.plan import given_back, with_schema

        stores = self.harness.stores

        def tail(session: SparkSession, part: TailPart) -> DataFrame:
            then = with_schema(stores, self.row, part.schema_version)
            return tail_frame(session, stores.settings, then, part, registry=stores.registry)

        def frame_of(plan: ReadPlan) -> DataFrame:
            return to_spark(spark, plan, stores, columns=columns, where=where, layer=layer, tail_frame=tail)

        if plan is not None:
            return frame_of(plan)
        lease, lease_id = timedelta(seconds=lease_s or self.spec.retention.lease), new_lease()
        with given_back(stores, lease_id):
            return frame_of(self._plan(at=at, tail=False, lease=lease, lease_id=lease_id))

    def _arrow(self) -> ArrowReader:
        from harness_pipelines.read.tail import read_tail
        from harness_pipelines.read.union import ArrowReader

        stores = self.harness.stores
        return ArrowReader.of(stores, lambda part: read_tail(stores, self.row, part))

    def plan(self, *, at: At | None = None, tail: bool = False, lease: timedelta | None = None) -> ReadPlan:
        """Lease a read state and return its read plan; end the lease with `release`."""
        return self._plan(at=at, tail=tail, lease=lease, lease_id=new_lease())

    def _plan(self, *, at: At | None, tail: bool, lease: timedelta | None, lease_id: str) -> ReadPlan:
        from harness_pipelines.read.plan import make_plan

        tail = tail or not self.row.intake.buffered
        if tail:  # records are decoded here, by the spec that ingest has: it may have been changed since
            self.row = self.harness.stores.tables.table(self.name)
        plan = make_plan(
            self.harness.stores,
            self.row,
            at=at,
            tail=tail,
            holder=f"{socket.gethostname()}:{os.getpid()}",
            lease=lease or timedelta(seconds=self.spec.retention.lease),
            lease_id=lease_id,
        )
        if plan.schema_version > self.row.schema_version:  # it was evolved since
            self.row = self.harness.stores.tables.table(self.name)
        return plan

    def release(self, plan: ReadPlan) -> None:
        """End the lease of a plan."""
        self.harness.stores.leases.end(plan.lease_id)

    @contextmanager
    def _leased(self, *, at: At | None, tail: bool) -> Iterator[tuple[ReadPlan, Hold]]:
        """Return a plan whose lease is renewed until the block ends."""
        from harness_pipelines.read.lease import Hold
        from harness_pipelines.read.plan import given_back

        stores, lease, lease_id = self.harness.stores, timedelta(seconds=self.spec.retention.lease), new_lease()
        with given_back(stores, lease_id):
            plan = self._plan(at=at, tail=tail, lease=lease, lease_id=lease_id)
            hold = Hold(stores, plan, lease)
            try:
                yield plan, hold
            finally:
                hold.end()

    def replay(
        self, wanted: Wanted | None = None, *, decoder: TableSpec | None = None, dry_run: bool = False
    ) -> Replayed:
        """Decode quarantined records again, and add those that now fit at their own offsets, each exactly once.

        *wanted* selects records. *decoder* is a spec with the table's columns and another value encoding, for this
        call
        only. Records that must wait or are still refused are reported and stay. Raises: ReplayRefused,
        KeyInTwoPartitions, UsageError, TableStopped, TryAgain if a service is away.
        """
        from harness_pipelines.protocol.changes.corrections import Wanted
        from harness_pipelines.stages.replay.quarantine import replay

        return replay(self.harness.stores, self.row, wanted or Wanted(), decoder=decoder, dry_run=dry_run)

    def evolve(self, changes: ColumnChanges) -> Version:
        """Change the columns in every tier with one commit; return the first version with them.

        Older versions keep their columns. Raises: EvolutionRefused, which names an accepted alternative; SchemaMoved if
        another change came first; TableStopped.
        """
        from harness_pipelines.stages.table.evolve import evolve

        self.row = self.harness.stores.tables.table(self.name)
        published = evolve(self.harness.stores, self.row, changes)
        self.row = self.harness.stores.tables.table(self.name)
        return published

    def replay_range(
        self, *, partition: int, low: int, high: int, decoder: TableSpec | None = None, dry_run: bool = False
    ) -> RangeReplayed:
        """Decode the records of ``[low, high)`` again and replace exactly the rows that differ.

        One version holds all changes; older ones keep their rows. Without a difference none is published. *decoder*
        and errors as in `replay`. Raises also: RangeRefused, RangeWaits.
        """
        from harness_pipelines.protocol.bounds import OffsetRange
        from harness_pipelines.stages.replay.ranges import replay_range

        wanted = OffsetRange(partition=partition, low=low, high=high)
        return replay_range(self.harness.stores, self.row, wanted, decoder=decoder, dry_run=dry_run)

    def recall(self, where: str, *, wait: bool = True) -> RecallRequest:
        """Move the rows of the lake that match *where* to Postgres, where updates are cheap.

        Reads return the same rows before, during and after it. The ledger keeps the request, and the worker that runs
        otree for the table carries it out. With *wait* this call may do the work itself, and it returns when it is
        done.
        Raises: NotRecallable, RecallTooLarge, WhereError; with *wait* also TableStopped, MoveStuck, TryAgain.
        """
        from harness_pipelines.protocol.lake.overlays import OverlayRequest

        return self._asked(OverlayRequest.RECALL, where=where, wait=wait)

    def release_recalled(self, *, wait: bool = True) -> RecallRequest:
        """Move all recalled rows back into the lake; arguments and errors as `recall`."""
        from harness_pipelines.protocol.lake.overlays import OverlayRequest

        return self._asked(OverlayRequest.RELEASE, where=None, wait=wait)

    def _asked(self, act: OverlayRequest, *, where: str | None, wait: bool) -> RecallRequest:
        from harness_pipelines.stages.otree.recall import ask, run

        request = ask(self.harness.stores, self.row, act, where=where)
        for now in run(self.harness.stores, self.row, request) if wait else ():
            request = now
        return request

    def mover(self, *, offsets_max: int = 1_000_000) -> OwnMover:
        """Run tier moves with your own writer, see `OwnMover.move`; a move takes at most *offsets_max* offsets.

        Raises: UsageError for a table without a buffer or without a stream view.
        """
        from harness_pipelines.stages.run.own_mover import own_mover

        return own_mover(self.harness.stores, self.row, offsets_max=offsets_max)

    def positions(self) -> list[PartitionStatus]:
        """Return the current bounds of every partition."""
        return self.harness.stores.tables.positions(self.row)

    def versions(self) -> list[Version]:
        """Return the readable versions, oldest first."""
        return self.harness.stores.tables.versions(self.row)

    def events(self, *, after: int = 0, follow: bool = False) -> Iterator[Event]:
        """Yield the events after number *after* in order: versions published, reverted, reconciled.

        With *follow* it never ends and yields each event some milliseconds after its commit. Keep the `seq` of the last
        event that you processed; a later call continues from it, so each event arrives at least once.
        """
        return self.harness.stores.outbox.events(self.row, after=after, follow=follow)

    @contextmanager
    def subscription(self, name: str, *, after: int = 0, follow: bool = False) -> Iterator[Subscription]:
        """Return the events for a subscriber whose cursor the ledger keeps: ``for event in subscription: ...``.

        Requesting the next event acknowledges the previous one, so each arrives at least once, in order, in one process
        at a time. *name* is the name of a state (`Harness.states`); a new subscriber starts after *after*.
        Raises: StateHeld while another process holds it, UsageError if the state belongs to something else.
        """
        harness = self.harness
        outbox = harness.stores.outbox
        with harness.states.hold(name) as held:
            last = harness.states.last(name)
            with outbox.subscription(held, self.row, last=last, after=after, follow=follow) as found:
                yield found

    def wait_for(self, partition: int, offset: int, *, timeout_s: float = 30.0) -> None:
        """Return when reads can return the record at *offset*, some milliseconds after its commit.

        Any number of threads may wait; they share one listening connection and one query. Raises: NotInTime.
        """
        self.harness.waits.for_offset(self.row, partition, offset, timeout_s=timeout_s)

    def lineage(self, what: str | int | tuple[int, int]) -> FileLineage | MoveLineage | RecordLineage:
        """Return the origin of *what*, down to moves and offsets; `to_json` returns the output of ``lineage --json``.

        *what* is a data file of a view (path or name), the number of a move, or a record: ``(partition, offset)`` or
        ``"PARTITION:OFFSET"``. The answer for a file has its snapshot, its versions and its move; for a move the files
        that it added and removed; for a record its tier now, its moves, and the files or tables that hold it. Only
        metadata is read and, for a record, at most one file. Files are known only for retained versions.
        Raises: FileUnknown, MoveUnknown, OffsetUnknown, UsageError, LakeAway; KafkaUnreachable for tail records.
        """
        from harness_pipelines.read.report.lineage import lineage

        asked = ":".join(map(str, what)) if isinstance(what, tuple) else str(what)
        return lineage(self.harness.stores, self.row, asked)

    def audit(self, *, full: bool = False) -> Any:
        """Prove that every record of the topic is in exactly one tier; see `harness_pipelines.audit`.

        Ranges that earlier audits signed off are read again only with *full*, or if other files hold them.
        """
        from harness_pipelines.audit.proof.complete import audit_table

        return audit_table(self.harness.stores, self.row, full=full)
