"""One logical table as Python programs see it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from harness_pipelines.errors import UsageError
from harness_pipelines.ports.ledger import PartitionStatus, TableRow
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.protocol.reading.reads import At
from harness_pipelines.protocol.versions import Version
from harness_pipelines.spec.table import TableSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from harness_pipelines.app.client import Harness
    from harness_pipelines.engines.arrow.union import ArrowReader
    from harness_pipelines.ledgers.postgres.events import Subscription
    from harness_pipelines.ledgers.postgres.requests.recall import RecallRequest
    from harness_pipelines.ports.events import Event
    from harness_pipelines.protocol.changes.corrections import Wanted
    from harness_pipelines.protocol.lake.overlays import Act
    from harness_pipelines.protocol.schema.evolution import Changes
    from harness_pipelines.read.lease import Hold
    from harness_pipelines.read.point import HotRows
    from harness_pipelines.read.report.lineage import FileLineage, MoveLineage, RecordLineage
    from harness_pipelines.read.stream.start import From
    from harness_pipelines.read.stream.stream import Stream
    from harness_pipelines.stages.replay.quarantine import Replayed
    from harness_pipelines.stages.replay.ranges import RangeReplayed
    from harness_pipelines.stages.run.own_mover import OwnMover


class Table:
    """One logical table: reads of it are consistent cuts, whichever tiers hold the rows."""

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
        """All rows of one consistent cut as Arrow, without a JVM.

        *columns* may name coordinate columns; *where* is a SQL-like predicate; *at* is a version, the name of a
        snapshot, or a moment: the version that was the newest then. Each of them gives the same rows for ever. Without
        *at* the newest rows are read; *tail* adds what only Kafka has. Raises: VersionGone, SnapshotUnknown, ...
        """
        from harness_pipelines.engines.arrow.union import read_arrow
        from harness_pipelines.read.tail import read_tail

        with self._leased(at=at, tail=tail) as (plan, hold):
            return read_arrow(
                plan,
                self.harness.stores,
                columns=columns,
                where=where,
                limit=limit,
                check_lease=hold.finish,
                tail_rows=lambda part: read_tail(self.harness.stores, self.row, part),
            ).rows

    def get(
        self, key: Any, *, columns: Sequence[str] | None = None, at: At | None = None, tail: bool = False
    ) -> dict[str, Any] | None:
        """The newest row of *key*, None if it has none or is deleted; arguments and errors are those of `get_many`."""
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
        """The newest row of each of *keys* in one consistent cut of a keyed table, in their order.

        A key is ``{column: value}``, a tuple in the key's order or, of one column, its value. The lake is read only
        for keys that the buffer does not know. Raises: KeyUnfit, and as `read`.
        """
        from harness_pipelines.read.point import HotRows, rows_by_key

        if at is None and not tail and self.spec.buffer != "none":
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
        """The newest rows of all keys that begin with *prefix*, in no order: of a keyed table with several key columns.

        *prefix* are values of the first of them: ``{column: value}``, a tuple, or one value of the first column alone.
        Files and segments are asked for these keys alone. Raises: KeyUnfit, and as `read`.
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
        """Every record that *to_version* (default: this instant) has and *from_version* had not, in offset order.

        The columns are *columns* (default: the user's) and the five coordinates; `_op` tells puts from deletes. Changes
        from 1 to 2 and from 2 to 3 are those from 1 to 3. With *pre_images*, of a keyed table, each record is what it
        did: `_change_type` is ``+I``, ``-U`` (the row that it replaced) and ``+U``, or ``-D`` (the row that it
        deleted), each with the coordinates of the record; a delete of what was not there is left out.
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
                        "there is no one shape for rows before and after; ask for the changes up to that version and "
                        "from it on, or without pre-images"
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
        """What became in *to_version* of records that *from_version* had passed, which `changes` does not tell.

        `_correction` says ``added``, ``replaced`` (both with the row) or ``removed`` (partition and offset alone).
        Of a keyed table it tells of the changelog: what a key shows now says `get`. Raises: as `changes`.
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
        """The `changes` of each version after *from_version*, with its number, in order; with *follow* for ever.

        All of them together are the changes from *from_version* on: keep the number of the last version that you have
        dealt with, and a later call goes on there. Each version comes some milliseconds after it is published.
        Raises: VersionGone when the reader is behind what is retained, and as `changes`.
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
        """All records in offset order within each partition: the history, then what Kafka brings, for ever.

        Each batch is of one partition, may be empty, and brings the *token* with which a later reader goes on behind
        it. *from_* is ``earliest``, ``latest``, a token, offsets per partition (one that is not named begins at its
        start), a version or the name of a snapshot (behind what it had), or a moment (the first record of each
        partition that is not older). Columns are *columns* (default: the user's) and the five coordinates; `_op` tells
        puts from deletes, and *where* is asked of each record. *partitions*: only these, so that several readers share
        the work; else those that join the table are followed too. Without *follow* it ends where Kafka ends now.
        With *state_first* a keyed table's stream begins with the newest row of each key, in no order, up to an empty
        batch that is `is_state` too; then come the records behind it. What does not fit the spec is left out.
        With *corrections* batches that are `is_correction` come between, with what a replay or a revert made of records
        that went before, marked as `corrections` says.
        Raises: UsageError, VersionGone, SnapshotUnknown, RecordsLost, LogTruncated, TopicRecreated, ...; when iterated
        over what `Stream.__iter__` says.
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
        """The rows of `read` batch by batch, in bounded memory; the lease lasts as long as the block."""
        with self._reader(columns=columns, where=where, at=at, limit=limit, tail=tail) as batches:
            yield batches

    @contextmanager
    def _reader(
        self,
        *,
        columns: Sequence[str] | None,
        where: str | None,
        at: At | None,
        limit: int | None = None,
        tail: bool,
        layer: bool = False,
    ) -> Iterator[pa.RecordBatchReader]:
        import pyarrow as pa

        from harness_pipelines.engines.arrow.union import iter_batches
        from harness_pipelines.protocol.reading.selection import Selection, work_of
        from harness_pipelines.read.tail import read_tail

        with self._leased(at=at, tail=tail) as (plan, hold):
            batches = iter_batches(
                plan,
                self.harness.stores,
                columns=columns,
                where=where,
                limit=limit,
                layer=layer,
                check_lease=hold.check,
                tail_rows=lambda part: read_tail(self.harness.stores, self.row, part),
            )
            schema = work_of(plan, Selection(columns=columns, where=where, limit=limit)).schema
            yield pa.RecordBatchReader.from_batches(schema, batches)

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
        """About *fraction* (above 0, up to 1) of the rows that `read` gives, as Arrow, in bounded memory.

        A hash of the coordinate chooses them: the same rows each time, of which a smaller fraction takes some;
        `sample_to_spark` gives them in Spark. Up to ``layout.sample`` of the spec only files of the batch view's
        sample layer are read, and what is not clustered yet; beyond it every row is looked at, until *limit* are taken.
        Raises: UsageError, and as `read`.
        """
        from harness_pipelines.layout.row_hash import threshold
        from harness_pipelines.read.sample import layer_suffices, sampled, shown_and_needed

        below = threshold(fraction)  # what is wrong is said before anything is read
        shown, needed = shown_and_needed(self.spec, columns)
        layer = layer_suffices(self.spec, fraction)
        with self._reader(columns=needed, where=where, at=at, tail=tail, layer=layer) as batches:
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
        """The rows of `sample` as a lazy DataFrame; *lease_s* and *view* are those of `to_spark`.

        Raises: UsageError, and as `to_spark`.
        """
        from harness_pipelines.engines.spark.read import sampled
        from harness_pipelines.layout.row_hash import threshold
        from harness_pipelines.read.sample import layer_suffices, shown_and_needed

        below = threshold(fraction)
        shown, needed = shown_and_needed(self.spec, columns)
        layer = layer_suffices(self.spec, fraction)
        frame = self._frame(spark, columns=needed, where=where, at=at, lease_s=lease_s, layer=layer)
        frame = sampled(frame, below=below, columns=shown)
        if view is not None:
            frame.createOrReplaceTempView(view)
        return frame

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
        """The same rows as a lazy DataFrame; it fails by name when it is used after *lease_s* (the spec's
        ``retention.lease`` by default, at most 24 h). With *view* it is registered as a temp view for SQL.
        *where* narrows what is read of lake and buffer; a filter that is added to the frame, or the WHERE of SQL over
        the view, leaves out files of the lake only: all of the buffer is read for it. Such a filter that compares a
        float with zero goes to Iceberg, to which -0.0 and 0.0 are two numbers; *where* finds both.
        With *plan*, the caller's own, the caller also ends its lease.
        """
        frame = self._frame(spark, columns=columns, where=where, at=at, lease_s=lease_s, plan=plan)
        if view is not None:
            frame.createOrReplaceTempView(view)
        return frame

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

        def frame_of(plan: ReadPlan) -> DataFrame:
            frame: DataFrame = to_spark(
                spark,
                plan,
                stores,
                columns=columns,
                where=where,
                layer=layer,
                tail_frame=lambda session, part: tail_frame(
                    session, stores.settings, with_schema(stores, self.row, part.schema_version), part
                ),
            )
            return frame

        if plan is not None:
            return frame_of(plan)
        own = self.plan(at=at, lease=timedelta(seconds=lease_s or self.spec.retention.lease))
        with given_back(stores, own.lease_id):
            return frame_of(own)

    def _arrow(self) -> ArrowReader:
        from harness_pipelines.engines.arrow.union import ArrowReader
        from harness_pipelines.read.tail import read_tail

        stores = self.harness.stores
        return ArrowReader(buffer=stores.buffer_reader, tail_rows=lambda part: read_tail(stores, self.row, part))

    def plan(self, *, at: At | None = None, tail: bool = False, lease: timedelta | None = None) -> ReadPlan:
        """Lease a read state and say what a reader of it opens; end the lease with `release`."""
        from harness_pipelines.read.plan import make_plan

        tail = tail or self.spec.buffer == "none"
        if tail:  # records are decoded here, by the spec that ingest has: it may have been changed since
            self.row = self.harness.stores.tables.table(self.name)
        plan = make_plan(
            self.harness.stores,
            self.row,
            at=at,
            tail=tail,
            holder=f"{socket.gethostname()}:{os.getpid()}",
            lease=lease or timedelta(seconds=self.spec.retention.lease),
        )
        if plan.schema_version > self.row.schema_version:  # it was evolved since
            self.row = self.harness.stores.tables.table(self.name)
        return plan

    def release(self, plan: ReadPlan) -> None:
        """End the lease of a plan."""
        self.harness.stores.leases.end(plan.lease_id)

    @contextmanager
    def _leased(self, *, at: At | None, tail: bool) -> Iterator[tuple[ReadPlan, Hold]]:
        """A plan whose lease is renewed until the block ends."""
        from harness_pipelines.read.lease import Hold

        lease = timedelta(seconds=self.spec.retention.lease)
        plan = self.plan(at=at, tail=tail, lease=lease)
        hold = Hold(self.harness.stores, plan, lease)
        try:
            yield plan, hold
        finally:
            hold.end()

    def replay(
        self, wanted: Wanted | None = None, *, decoder: TableSpec | None = None, dry_run: bool = False
    ) -> Replayed:
        """Decode records in quarantine again, and put those that fit now back at their own offsets, each once.

        *wanted*: these alone. *decoder*: a spec with the table's columns that says otherwise how values are written,
        for this time only. What has to wait or is refused still is told, and stays.
        Raises: ReplayRefused, KeyInTwoPartitions, UsageError; TableStopped, TryAgain when a store is away.
        """
        from harness_pipelines.protocol.changes.corrections import Wanted
        from harness_pipelines.stages.replay.quarantine import replay

        return replay(self.harness.stores, self.row, wanted or Wanted(), decoder=decoder, dry_run=dry_run)

    def evolve(self, changes: Changes) -> Version:
        """Change the columns in every tier at once; returns the version that begins with them.

        Older versions keep the columns that they had. Raises: EvolutionRefused, which says what would be taken;
        SchemaMoved when another change came first; TableStopped.
        """
        from harness_pipelines.stages.table.evolve import evolve

        self.row = self.harness.stores.tables.table(self.name)
        published = evolve(self.harness.stores, self.row, changes)
        self.row = self.harness.stores.tables.table(self.name)
        return published

    def replay_range(
        self, *, partition: int, low: int, high: int, decoder: TableSpec | None = None, dry_run: bool = False
    ) -> RangeReplayed:
        """Decode the records of ``[low, high)`` anew, and make exactly the rows that differ what they come out as.

        All in one version; older ones keep their rows. *decoder* as for `replay`. Without a difference nothing is
        published.
        Raises: RangeRefused, RangeWaits, ReplayRefused, KeyInTwoPartitions, UsageError; TableStopped, TryAgain when a
        store is away.
        """
        from harness_pipelines.protocol.bounds import OffsetRange
        from harness_pipelines.stages.replay.ranges import replay_range

        wanted = OffsetRange(partition=partition, low=low, high=high)
        return replay_range(self.harness.stores, self.row, wanted, decoder=decoder, dry_run=dry_run)

    def recall(self, where: str, *, wait: bool = True) -> RecallRequest:
        """Bring the rows of the lake for which *where* holds back to Postgres, where updates of them cost little.

        Reads show the same rows before, meanwhile and after. The request is kept in the ledger, and whoever runs
        otree for the table does it; with *wait* that may be this call, which returns when it is done.
        Raises: NotRecallable, RecallTooLarge, WhereError; with *wait* TableStopped, MoveStuck, TryAgain.
        """
        from harness_pipelines.protocol.lake.overlays import Act

        return self._asked(Act.RECALL, where=where, wait=wait)

    def release_recalled(self, *, wait: bool = True) -> RecallRequest:
        """Put everything that is recalled back into the lake; arguments and errors are those of `recall`."""
        from harness_pipelines.protocol.lake.overlays import Act

        return self._asked(Act.RELEASE, where=None, wait=wait)

    def _asked(self, act: Act, *, where: str | None, wait: bool) -> RecallRequest:
        from harness_pipelines.stages.otree.recall import ask, run

        request = ask(self.harness.stores, self.row, act, where=where)
        for now in run(self.harness.stores, self.row, request) if wait else ():
            request = now
        return request

    def mover(self, *, offsets_max: int = 1_000_000) -> OwnMover:
        """Do what the tier stage does with a writer of your own: see `OwnMover.move`; a move takes *offsets_max*.

        Raises: UsageError for a table without a buffer or without a stream view.
        """
        from harness_pipelines.stages.run.own_mover import own_mover

        return own_mover(self.harness.stores, self.row, offsets_max=offsets_max)

    def positions(self) -> list[PartitionStatus]:
        """Bounds of every partition now."""
        return self.harness.stores.tables.positions(self.row)

    def versions(self) -> list[Version]:
        """Versions that can be read, oldest first."""
        return self.harness.stores.tables.versions(self.row)

    def events(self, *, after: int = 0, follow: bool = False) -> Iterator[Event]:
        """What happened to the table behind event number *after*: versions published, reverted, reconciled, in order.

        With *follow* it goes on for ever and hands out each event some milliseconds after its commit. Keep the `seq` of
        the last one that you have dealt with: a later call goes on there, so each comes at least once.
        """
        return self.harness.stores.outbox.events(self.row, after=after, follow=follow)

    @contextmanager
    def subscription(self, name: str, *, after: int = 0, follow: bool = False) -> Iterator[Subscription]:
        """The same events for a subscriber, whose cursor the ledger keeps: ``for event in subscription: ...``.

        Asking for the next event says that the one before is dealt with; so each comes at least once, in order, to one
        process at a time. *name* is that of a state (`Harness.states`); *after* is where a new subscriber begins.
        Raises: StateHeld while another process has it, UsageError when the state is of something else.
        """
        harness = self.harness
        held = harness.states.hold(name)
        last = harness.states.last(name)
        with harness.stores.outbox.subscription(held, self.row, last=last, after=after, follow=follow) as found:
            yield found

    def wait_for(self, partition: int, offset: int, *, timeout_s: float = 30.0) -> None:
        """Return as soon as a read shows the record at *offset*, some milliseconds after its commit.

        Any number of threads may wait: one connection listens for all, and one of them looks. Raises: NotInTime.
        """
        self.harness.waits.for_offset(self.row, partition, offset, timeout_s=timeout_s)

    def lineage(self, what: str | int | tuple[int, int]) -> FileLineage | MoveLineage | RecordLineage:
        """Where *what* came from, down to moves and offsets; `to_json` gives what ``harness lineage --json`` prints.

        *what* is a data file of a view (its path or its name), the number of a move, or a record: ``(partition,
        offset)`` or ``"PARTITION:OFFSET"``. A file leads to the snapshot that added it, the versions that have it and
        its move; a move to the files that it added and removed; a record to the tier that answers for it at this
        instant, the moves that brought it there, and the files or tables that have it. Only metadata is read, and for
        a record one file at most. What the ledger knows it keeps for ever; files are known as far as the versions that
        are kept reach.
        Raises: FileUnknown, MoveUnknown, OffsetUnknown, UsageError, LakeAway; of what only Kafka has KafkaUnreachable.
        """
        from harness_pipelines.read.report.lineage import lineage

        asked = ":".join(map(str, what)) if isinstance(what, tuple) else str(what)
        return lineage(self.harness.stores, self.row, asked)

    def audit(self, *, full: bool = False) -> Any:
        """Prove that every record of the topic is in exactly one tier; see `harness_pipelines.audit`.

        What earlier audits signed off is read again only with *full*, or when other files answer for it.
        """
        from harness_pipelines.audit.proof.complete import audit_table

        return audit_table(self.harness.stores, self.row, full=full)
