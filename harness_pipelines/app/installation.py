"""All stores of one installation, opened from the settings; what the stages, reads and audits work with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from psycopg import sql as compose

from harness_pipelines.drivers.file_notes import KNOWN
from harness_pipelines.drivers.postgres import READER, WORKER, Database
from harness_pipelines.drivers.postgres_address import check_address
from harness_pipelines.errors import UsageError
from harness_pipelines.ledgers.postgres.file_digests import Digests
from harness_pipelines.ledgers.postgres.leases import Leases
from harness_pipelines.ledgers.postgres.ledger import PostgresLedger
from harness_pipelines.ports.ledger import RefusedRecord, TableRow
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.spec.settings import Settings

# Arrow, ADBC, PyIceberg and the Kafka client are imported by what uses them: a command that only asks the ledger
# starts in a fraction of the time.
if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from harness_pipelines.buffers.postgres.newest import Glances
    from harness_pipelines.buffers.postgres.overlays import Overlays
    from harness_pipelines.buffers.postgres.reader import BufferReader
    from harness_pipelines.buffers.postgres.writer import Segments
    from harness_pipelines.drivers.adbc import AdbcSessions
    from harness_pipelines.engines.spark.sessions import SparkSessions
    from harness_pipelines.engines.spark.write import BranchTarget
    from harness_pipelines.formats.schema.registry import Schemas
    from harness_pipelines.lakes.iceberg.catalog import StagingCatalog
    from harness_pipelines.lakes.iceberg.write.publish import Lake
    from harness_pipelines.lakes.iceberg.write.quarantine import RawBytes
    from harness_pipelines.lakes.owner import Ownership
    from harness_pipelines.ledgers.postgres.corrections import Corrections
    from harness_pipelines.ledgers.postgres.events import Outbox
    from harness_pipelines.ledgers.postgres.evolve import Evolutions
    from harness_pipelines.ledgers.postgres.named_snapshots import Snapshots
    from harness_pipelines.ledgers.postgres.notify import News
    from harness_pipelines.ledgers.postgres.reconcile import Reconciler
    from harness_pipelines.ledgers.postgres.requests.recall import Recalls
    from harness_pipelines.ledgers.postgres.requests.recluster import Reclusters
    from harness_pipelines.ledgers.postgres.retention import Upkeep
    from harness_pipelines.ledgers.postgres.states import States
    from harness_pipelines.ledgers.postgres.views.stalls import Stalls
    from harness_pipelines.ledgers.postgres.views.work import Watch
    from harness_pipelines.ports.source import Log
    from harness_pipelines.protocol.changes.corrections import Coordinate
    from harness_pipelines.protocol.versions import Version
    from harness_pipelines.stages.guard import Standing

TASK_OFFSETS_MAX = 1_000_000
_CLOSED = (
    "news",
    "database",
    "readers",
    "watchers",
    "catalog",
    "log",
    "schemas",
    "buffer_reader",
    "writer_sessions",
    "spark_sessions",
)
_opening = threading.RLock()

if TYPE_CHECKING:
    #: Given how many rows and refused records there are, and who finds one of the refused.
    CheckCounts = Callable[[int, int, Callable[[], RefusedRecord]], None]
    once = cached_property
else:

    class once(cached_property):  # like the one that it stands for
        """A `cached_property` that two threads do not compute twice, as Python's own does from 3.12 on."""

        def __get__(self, instance, owner=None):
            with _opening:
                return super().__get__(instance, owner)


@dataclass
class Stores:
    """Lazily opened: a command that needs no Spark starts no Spark, a reader opens no worker's session."""

    settings: Settings

    def __post_init__(self) -> None:
        """Raises: UsageError for an address of Postgres that cannot be read."""
        for variable, dsn in (
            ("HARNESS_DSN", self.settings.dsn),
            ("HARNESS_OWNER_DSN", self.settings.owner_dsn),
            ("HARNESS_SPARK_DSN", self.settings.spark_dsn),
        ):
            check_address(variable, dsn)
        self.digests = Digests(lambda: self.readers, lambda: self.database, warehouse=self.settings.warehouse)
        KNOWN.bind(self.digests)

    @property
    def dsn(self) -> str:
        return _needed(self.settings.dsn, "HARNESS_DSN", "the Postgres database")

    @property
    def owner_dsn(self) -> str:
        """The login that created the ledger: for migrations and for dropping tables."""
        return self.settings.owner_dsn or self.dsn

    @once
    def database(self) -> Database:
        return Database(self.dsn)

    @once
    def owner(self) -> Database:
        return Database(self.owner_dsn, role=None, size=1)

    @once
    def readers(self) -> Database:
        return Database(self.dsn, role=READER)

    @once
    def watchers(self) -> Database:
        """One session of those who watch: it waits for no stage, and no stage for it."""
        return Database(self.dsn, role=READER, size=1)

    @once
    def ledger(self) -> PostgresLedger:
        return PostgresLedger(self.database, catalog=self.settings.catalog_name, owner=lambda: self.owner)

    @once
    def tables(self) -> PostgresLedger:
        """The ledger as a reader may use it."""
        return PostgresLedger(self.readers, catalog=self.settings.catalog_name)

    @once
    def leases(self) -> Leases:
        return Leases(self.readers)

    @once
    def glances(self) -> Glances:
        from harness_pipelines.buffers.postgres.newest import Glances

        return Glances(self.readers)

    @once
    def news(self) -> News:
        from harness_pipelines.ledgers.postgres.notify import News

        return News(self.dsn)

    @once
    def outbox(self) -> Outbox:
        from harness_pipelines.ledgers.postgres.events import Outbox

        return Outbox(self.readers, self.news)

    @once
    def snapshots(self) -> Snapshots:
        from harness_pipelines.ledgers.postgres.named_snapshots import Snapshots

        return Snapshots(self.database)

    @once
    def states(self) -> States:
        from harness_pipelines.ledgers.postgres.states import States

        return States(self.database)

    @once
    def buffer_reader(self) -> BufferReader:
        from harness_pipelines.buffers.postgres.reader import BufferReader

        return BufferReader(self.dsn)

    @once
    def writer_sessions(self) -> AdbcSessions:
        """Those that ingest writes by."""
        from harness_pipelines.drivers.adbc import AdbcSessions

        return AdbcSessions(self.dsn, role=WORKER)

    @once
    def segments(self) -> Segments:
        from harness_pipelines.buffers.postgres.writer import Segments

        return Segments(self.database)

    @once
    def catalog(self) -> StagingCatalog:
        from harness_pipelines.lakes.iceberg.catalog import StagingCatalog

        return StagingCatalog(self.settings.catalog_name, warehouse=self.warehouse, digests=self.digests)

    @property
    def warehouse(self) -> str:
        return _needed(self.settings.warehouse, "HARNESS_WAREHOUSE", "the folder of the lake")

    @once
    def lake(self) -> Lake:
        from harness_pipelines.lakes.iceberg.write.publish import Lake

        return Lake(self.catalog, self.database, pointers=self.ledger.catalog_rows, warehouse=self.warehouse)

    @once
    def upkeep(self) -> Upkeep:
        from harness_pipelines.ledgers.postgres.retention import Upkeep

        return Upkeep(self.database, self.catalog, self.ownership)

    @once
    def raw_bytes(self) -> RawBytes:
        from harness_pipelines.lakes.iceberg.write.quarantine import RawBytes
        from harness_pipelines.ledgers.postgres.quarantine_bytes import QuarantineBytes

        ledger = QuarantineBytes(self.database, catalog=self.settings.catalog_name)
        return RawBytes(ledger, self.catalog, warehouse=self.warehouse)

    @once
    def reconciler(self) -> Reconciler:
        from harness_pipelines.lakes.iceberg.write.still_there import check_whole
        from harness_pipelines.ledgers.postgres.reconcile import Reconciler

        return Reconciler(self.database, catalog=self.settings.catalog_name, check_whole=check_whole)

    @once
    def reclusters(self) -> Reclusters:
        from harness_pipelines.ledgers.postgres.requests.recluster import Reclusters

        return Reclusters(self.database)

    @once
    def watch(self) -> Watch:
        from harness_pipelines.ledgers.postgres.views.work import Watch

        return Watch(self.database, self.readers, self.watchers)

    @once
    def stalls(self) -> Stalls:
        from harness_pipelines.ledgers.postgres.views.stalls import Stalls

        return Stalls(self.database, self.readers, buffer_gb=self.settings.buffer_gb)

    def corrections(self, table: TableRow) -> Corrections:
        """Records of *table* that are put back."""
        from harness_pipelines.ledgers.postgres.corrections import Corrections

        name = self.settings.catalog_name
        return Corrections(self.database, table, catalog=name, in_lake=self.quarantined_in_lake)

    @staticmethod
    def quarantined_in_lake(
        database: Database, table: TableRow, wanted: Sequence[Coordinate]
    ) -> Iterable[tuple[Coordinate, Mapping[str, Any]]]:
        """Key, value and headers of records whose bytes are in the lake. Raises: what `quarantine.read` raises."""
        from harness_pipelines.lakes.iceberg.write import quarantine  # and PyIceberg

        return quarantine.read(database, table, wanted)

    def evolutions(self, table: TableRow) -> Evolutions:
        """Changes of the schema of *table*."""
        from harness_pipelines.buffers.postgres.writer import make_segment
        from harness_pipelines.ledgers.postgres.evolve import Evolutions

        return Evolutions(self.database, table, catalog=self.settings.catalog_name, make_segment=make_segment)

    @once
    def recalls(self) -> Recalls:
        from harness_pipelines.ledgers.postgres.requests.recall import Recalls

        return Recalls(self.database)

    @once
    def overlays(self) -> Overlays:
        from harness_pipelines.buffers.postgres.overlays import Overlays

        return Overlays(self.database, self.writer_sessions, self.buffer_reader)

    @once
    def ownership(self) -> Ownership:
        from harness_pipelines.lakes.owner import Ownership

        return Ownership(self.database, warehouse=self.warehouse)

    @once
    def standing(self) -> Standing:
        from harness_pipelines.stages.guard import Standing

        return Standing(self.ownership, self.reconciler, self.catalog, self.database)

    @once
    def log(self) -> Log:
        from harness_pipelines.sources.joined import JoinedLog
        from harness_pipelines.sources.kafka.log import KafkaLog

        _needed(self.settings.kafka, "HARNESS_KAFKA", "the Kafka cluster")
        return JoinedLog(KafkaLog.from_settings(self.settings))

    @once
    def schemas(self) -> Schemas:
        """The schema registry; asked when a record names a schema that no record did before."""
        from harness_pipelines.sources.registry import RegistryAddress

        return RegistryAddress.of(self.settings).open()

    @once
    def spark_sessions(self) -> SparkSessions:
        from harness_pipelines.engines.spark.sessions import SparkSessions

        return SparkSessions(self.settings)

    def spark(self) -> SparkSession:
        """The Spark session, opened by the first caller and again once stopped. Raises: SparkUnreachable."""
        return self.spark_sessions.current()

    def buffer_rows(
        self, table: TableRow, segments: Sequence[SegmentRef], ranges: Sequence[OffsetRange]
    ) -> dict[int, int]:
        """Exact number of buffered rows per partition in *ranges*, over all *segments*. Raises: SegmentMissing."""
        from harness_pipelines.buffers.postgres.writer import SCHEMA

        if not segments or not ranges:
            return {}
        parts = [
            compose.SQL(
                "SELECT {partition} AS partition, count(*) AS rows FROM {segment} WHERE _kafka_partition = "
                "{partition} AND _kafka_offset >= {low} AND _kafka_offset < {high}"
            ).format(
                partition=compose.Literal(r.partition),
                low=compose.Literal(r.low),
                high=compose.Literal(r.high),
                segment=compose.Identifier(SCHEMA, segment.name),
            )
            for segment in segments
            for r in ranges
        ]
        counts: dict[int, int] = {}
        with self.database.reading(table=table.name) as connection:
            for row in connection.execute(compose.SQL(" UNION ALL ").join(parts)):
                counts[row["partition"]] = counts.get(row["partition"], 0) + row["rows"]
        return counts

    @contextmanager
    def staging(self, table: TableRow, move: Move) -> Iterator[tuple[SparkSession, BranchTarget]]:
        """Spark and where the attempt writes. Raises: what `SparkSessions.working` and `spark_write.explained` do."""
        from harness_pipelines.engines.spark import kafka, write

        target = write.BranchTarget(catalog=self.settings.catalog_name, table=table, move=move)
        place = kafka.tls_place(self.settings) if table.spec.buffer == "none" else None
        with self.spark_sessions.working() as session, write.explained(table, move, kafka=place):
            yield session, target

    def write_from_segments(self, table: TableRow, move: Move, segments: Sequence[SegmentRef]) -> None:
        """Let Spark write the move's rows from *segments* to the attempt's branch."""
        from harness_pipelines.engines.spark import cluster, write
        from harness_pipelines.engines.spark.session import segments_address

        ranges = write.task_ranges(move.ranges, offsets_max=TASK_OFFSETS_MAX)
        jdbc = segments_address(self.settings)
        with self.staging(table, move) as (spark, target):
            frame = write.read_segments(spark, table, segments=segments, ranges=ranges, jdbc=jdbc)
            write.append_to_branch(cluster.with_layer(frame, _tiered_layer(table)), target)

    def write_from_kafka(self, table: TableRow, move: Move, *, check: CheckCounts) -> tuple[int, list[RefusedRecord]]:
        """Let Spark decode the move's records and write their rows to the attempt's branch.

        Returns how many rows it wrote and the records that do not fit. *check* comes first: all of the
        refused are read into this process only if it does not raise.
        """
        from pyspark.errors import PySparkException

        from harness_pipelines.engines.spark import kafka, own_reader
        from harness_pipelines.ports.errors import StagedWrong

        with self.staging(table, move) as (spark, target):

            def by_spark(*, headers: bool = False) -> DataFrame:
                return kafka.read_kafka(spark, self.settings, table.spec, move.ranges, headers=headers)

            def by_ourselves(*, headers: bool = False) -> DataFrame:
                wanted = headers or kafka.has_headers(table.spec)
                return own_reader.read_log(spark, self.settings, table, move.ranges, headers=wanted)

            try:
                rows, seen, refused = self._written(table, target, by_spark, check)
            except PySparkException as error:
                if not own_reader.time_overflows(error):
                    raise
                rows, seen, refused = self._written(table, target, by_ourselves, check)  # the failed write left nothing
        if seen != rows + len(refused):
            raise StagedWrong(
                f"{table.name}: move {move.move_id}: {seen} records gave {rows} rows and {len(refused)} refused"
            )
        return rows, refused

    def _written(
        self,
        table: TableRow,
        target: BranchTarget,
        read: Callable[..., DataFrame],
        check: CheckCounts,
    ) -> tuple[int, int, list[RefusedRecord]]:
        """Write what *read* gives, decoded: rows, rows and refused together, and the refused records."""
        from harness_pipelines.engines.spark import cluster, kafka, write
        from harness_pipelines.sources.registry import RegistryAddress

        registry = RegistryAddress.of(self.settings)
        rows_of = kafka.decoded_rows(read(), table, registry)
        counted = write.append_counted(cluster.with_layer(rows_of, _tiered_layer(table)), target)
        if counted is not None and counted[0] == counted[1]:
            return *counted, []
        if counted is not None:
            rows, seen = counted
            check(rows, seen - rows, lambda: kafka.one_refused(read(headers=True), table, registry))
        again, refused = kafka.judged_again(read(headers=True), table, registry)
        if counted is None:
            check(again, len(refused), lambda: refused[0])
        rows, seen = counted or (again, again + len(refused))
        return rows, seen, refused

    def recalled_rows(self, spark: SparkSession, table: TableRow, version: Version) -> DataFrame:
        """The rows of the batch view of *version* that lie in Postgres, with all coordinates, in Spark."""
        from harness_pipelines.buffers.postgres.overlays import refs
        from harness_pipelines.engines.spark import write
        from harness_pipelines.engines.spark.session import segments_address

        bounds = version.bounds.items()
        ranges = [OffsetRange(partition=p, low=b.start, high=b.batch_hi) for p, b in bounds if b.start < b.batch_hi]
        jdbc = segments_address(self.settings)
        return write.read_segments(spark, table, segments=refs(table, version.overlays), ranges=ranges, jdbc=jdbc)

    def run_on_spark(
        self, ranges: Sequence[OffsetRange], work: Callable[[Iterable[Any]], Iterable[Any]], result: Any
    ) -> list[Mapping[str, Any]]:
        """Run *work* over *ranges* in Spark tasks, one range each; returns its rows (Arrow schema *result*)."""
        from harness_pipelines.engines.spark import tasks

        with self.spark_sessions.working() as session:
            return tasks.run(session, ranges, work, result)

    def close(self) -> None:
        """Close what was opened."""
        KNOWN.unbind(self.digests)
        opened: Mapping[str, object] = self.__dict__
        for name in _CLOSED:
            if name in opened:
                getattr(self, name).close()


def _tiered_layer(table: TableRow) -> float:
    """The share of the sample layer, where tier writes the view that has one."""
    return table.spec.layout.sample if table.spec.views == "batch" else 0.0


def _needed(value: str | None, variable: str, what: str) -> str:
    if not value:
        raise UsageError(f"where is {what}? Set {variable}, or start the embedded services: `harness services up`")
    return value
