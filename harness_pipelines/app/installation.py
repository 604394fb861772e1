"""All stores of one installation, opened from the settings; what the stages, reads and audits work with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from harness_pipelines.drivers.file_notes import KNOWN
from harness_pipelines.drivers.object_stores.bound import BOUND
from harness_pipelines.drivers.postgres import READER, WORKER, Database
from harness_pipelines.drivers.postgres_address import check_address
from harness_pipelines.errors import UsageError
from harness_pipelines.ledgers.postgres.file_digests import Digests
from harness_pipelines.ledgers.postgres.leases import Leases
from harness_pipelines.ledgers.postgres.ledger import PostgresLedger
from harness_pipelines.ledgers.postgres.migrations import ledger_database
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.spec.settings import Settings

# Arrow, ADBC, PyIceberg and the Kafka client are imported by what uses them: a command that only asks the ledger
# starts in a fraction of the time.
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from harness_pipelines.buffers.postgres.newest import Glances
    from harness_pipelines.buffers.postgres.overlays import Overlays
    from harness_pipelines.buffers.postgres.reader import BufferReader
    from harness_pipelines.buffers.postgres.writer import Segments
    from harness_pipelines.drivers.adbc import AdbcSessions
    from harness_pipelines.engines.spark.sessions import SparkSessions
    from harness_pipelines.formats.schema.registry import Schemas, SchemaSource
    from harness_pipelines.lakes.iceberg.catalog import StagingCatalog
    from harness_pipelines.lakes.iceberg.inspect.history import IcebergHistories
    from harness_pipelines.lakes.iceberg.write.publish import Lake
    from harness_pipelines.lakes.iceberg.write.quarantine import RawBytes
    from harness_pipelines.lakes.owner import Ownership
    from harness_pipelines.ledgers.postgres.acts.corrections import Corrections
    from harness_pipelines.ledgers.postgres.acts.evolve import Evolutions
    from harness_pipelines.ledgers.postgres.acts.reconcile import Losses, Reconciler
    from harness_pipelines.ledgers.postgres.cuts import Cuts
    from harness_pipelines.ledgers.postgres.events import Outbox
    from harness_pipelines.ledgers.postgres.history.fold import HistoryFold
    from harness_pipelines.ledgers.postgres.named_snapshots import Snapshots
    from harness_pipelines.ledgers.postgres.notify import News
    from harness_pipelines.ledgers.postgres.requests.recall import Recalls
    from harness_pipelines.ledgers.postgres.requests.recluster import Reclusters
    from harness_pipelines.ledgers.postgres.retention import Upkeep
    from harness_pipelines.ledgers.postgres.states import States
    from harness_pipelines.ledgers.postgres.table_state import TableStates
    from harness_pipelines.ledgers.postgres.tokens import Tokens
    from harness_pipelines.ledgers.postgres.views.audits import SignOffs
    from harness_pipelines.ledgers.postgres.views.costs import Costs
    from harness_pipelines.ledgers.postgres.views.lineage import Lineage
    from harness_pipelines.ledgers.postgres.views.mirrors import Mirrors
    from harness_pipelines.ledgers.postgres.views.proof import Proof
    from harness_pipelines.ledgers.postgres.views.stalls import Stalls
    from harness_pipelines.ledgers.postgres.views.status import Overview
    from harness_pipelines.ledgers.postgres.views.work import Watch
    from harness_pipelines.ports.buffer import BufferWriter, SegmentScans
    from harness_pipelines.ports.engine import Engine, LakeScans
    from harness_pipelines.ports.events import Producer
    from harness_pipelines.ports.files import FileStore
    from harness_pipelines.ports.lake import ForeignCatalog, LakeReads
    from harness_pipelines.ports.lake_writes import RepairBuilds, SchemaBuilds
    from harness_pipelines.ports.proof import LakeBytes
    from harness_pipelines.ports.serving.cuts import CutFiles
    from harness_pipelines.ports.serving.keys import BatchKeys
    from harness_pipelines.ports.serving.scans import ScanPlans
    from harness_pipelines.ports.source import Log
    from harness_pipelines.protocol.changes.corrections import Coordinate, Wanted
    from harness_pipelines.protocol.claims import Claim
    from harness_pipelines.protocol.lake.history import NamedMove
    from harness_pipelines.spec.sections.catalogs import CatalogSpec
    from harness_pipelines.spec.table import TableSpec
    from harness_pipelines.stages.guard import WarehouseGuard

_CLOSED = (
    "news",
    "database",
    "readers",
    "watchers",
    "logins",
    "catalog",
    "log",
    "schemas",
    "buffer_reader",
    "writer_sessions",
    "spark_sessions",
)
_opening = threading.RLock()

if TYPE_CHECKING:
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
        BOUND.bind(self.settings.warehouse, self.settings.s3)

    def opener(self, *, elsewhere: bool = False) -> Callable[[], Stores]:
        """Opens the same installation in another process; *elsewhere*: on another machine, as executors are."""
        return partial(Stores, self.settings.for_others() if elsewhere else self.settings)

    def lost_moves(self, table: TableRow) -> list[NamedMove]:
        """`WarehouseGuard.lost`, for a reader's login."""
        return self._guard(self.readers).lost(table, self.tables)

    def _guard(self, database: Database) -> WarehouseGuard:
        from harness_pipelines.ledgers.postgres.history.numbers import TableHistories
        from harness_pipelines.stages.guard import WarehouseGuard

        return WarehouseGuard(self.ownership, TableHistories(database), self.lake_histories.named_by_files)

    @property
    def dsn(self) -> str:
        return _needed(self.settings.dsn, "HARNESS_DSN", "the Postgres database")

    @property
    def owner_dsn(self) -> str:
        """The login that created the ledger: for migrations and for dropping tables."""
        return self.settings.owner_dsn or self.dsn

    @once
    def database(self) -> Database:
        return ledger_database(self.dsn)

    @once
    def owner(self) -> Database:
        return ledger_database(self.owner_dsn, role=None, size=1)

    @once
    def readers(self) -> Database:
        return ledger_database(self.dsn, role=READER)

    @once
    def watchers(self) -> Database:
        """A session for observers. It waits for no stage, and no stage waits for it."""
        return ledger_database(self.dsn, role=READER, size=1)

    @once
    def logins(self) -> Database:
        """A session that looks up tokens: it waits for no load, and strangers take no session from loads."""
        return ledger_database(self.dsn, role=READER, size=1)

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
    def cuts(self) -> Cuts:
        from harness_pipelines.ledgers.postgres.cuts import Cuts

        return Cuts(self.readers)

    @once
    def batch_keys(self) -> BatchKeys:
        from harness_pipelines.lakes.iceberg.cuts.key_indexes import KeyIndexes
        from harness_pipelines.lakes.iceberg.cuts.keys import IcebergKeys
        from harness_pipelines.protocol.key_hashes import hasher

        return IcebergKeys(hasher(), KeyIndexes())

    @once
    def cut_files(self) -> CutFiles:
        from harness_pipelines.lakes.iceberg.cuts.cuts import IcebergCuts

        return IcebergCuts(warehouse=self.warehouse)

    @once
    def scans(self) -> ScanPlans:
        from harness_pipelines.lakes.iceberg.cuts.scans import IcebergScans

        return IcebergScans()

    @once
    def snapshots(self) -> Snapshots:
        from harness_pipelines.ledgers.postgres.named_snapshots import Snapshots

        return Snapshots(self.database)

    @once
    def states(self) -> States:
        from harness_pipelines.ledgers.postgres.states import States

        return States(self.database)

    @once
    def tokens(self) -> Tokens:
        from harness_pipelines.ledgers.postgres.tokens import Tokens

        return Tokens(lambda: self.logins, lambda: self.database)

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

        return Segments(self.database, bytes_max=int(self.settings.buffer_gb * 1e9))

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
    def lake_histories(self) -> IcebergHistories:
        from harness_pipelines.lakes.iceberg.inspect.history import IcebergHistories

        return IcebergHistories(self.catalog, warehouse=self.warehouse)

    @once
    def lake_repairs(self) -> RepairBuilds:
        from harness_pipelines.lakes.iceberg.write.repair import Repairs

        return Repairs(self.lake)

    @once
    def lake_schemas(self) -> SchemaBuilds:
        from harness_pipelines.lakes.iceberg.write.schema import IcebergSchemas

        return IcebergSchemas(self.lake)

    @once
    def files(self) -> FileStore:
        """The files of the lake, wherever the warehouse is."""
        from harness_pipelines.drivers import files

        return files

    @once
    def lake_reads(self) -> LakeReads:
        from harness_pipelines.lakes.iceberg.reads import IcebergReads

        return IcebergReads()

    @once
    def history_fold(self) -> HistoryFold:
        from harness_pipelines.ledgers.postgres.history.fold import HistoryFold

        return HistoryFold(self.database)

    @once
    def upkeep(self) -> Upkeep:
        from harness_pipelines.ledgers.postgres.retention import Upkeep

        return Upkeep(self.database, self.catalog, self.ownership, self.files)

    @once
    def raw_bytes(self) -> RawBytes:
        from harness_pipelines.lakes.iceberg.write.quarantine import RawBytes
        from harness_pipelines.ledgers.postgres.quarantine_bytes import QuarantineBytes

        ledger = QuarantineBytes(self.database, catalog=self.settings.catalog_name)
        return RawBytes(ledger, self.catalog, warehouse=self.warehouse)

    @once
    def lake_bytes(self) -> LakeBytes:
        """Bytes of quarantined records that are in the lake, for a reader's login."""
        from harness_pipelines.lakes.iceberg.write.quarantine import QuarantinedBytes

        return QuarantinedBytes(self.readers)

    @once
    def reconciler(self) -> Reconciler:
        from harness_pipelines.lakes.iceberg.write.commits import check_whole
        from harness_pipelines.ledgers.postgres.acts.reconcile import Reconciler

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

    @once
    def costs(self) -> Costs:
        from harness_pipelines.ledgers.postgres.views.costs import Costs

        return Costs(self.database, self.readers)

    @once
    def mirrors(self) -> Mirrors:
        from harness_pipelines.ledgers.postgres.views.mirrors import Mirrors

        return Mirrors(self.database, self.readers)

    def foreign_catalog(self, table: TableRow, catalog: CatalogSpec) -> ForeignCatalog:
        """A catalog of the spec of *table*. Raises: ExtraMissing; when it is asked: CatalogSecretMissing."""
        if catalog.type == "glue":
            from harness_pipelines.lakes.iceberg.catalogs.glue import GlueMirror

            return GlueMirror(table, catalog, self.catalog, warehouse=self.warehouse)
        from harness_pipelines.lakes.iceberg.catalogs.rest import RestMirror

        return RestMirror(table, catalog, self.catalog, warehouse=self.warehouse)

    @once
    def overview(self) -> Overview:
        from harness_pipelines.ledgers.postgres.views.status import Overview

        return Overview(self.readers)

    @once
    def sign_offs(self) -> SignOffs:
        from harness_pipelines.ledgers.postgres.views.audits import SignOffs

        return SignOffs(self.readers, self.database)

    @once
    def proof(self) -> Proof:
        from harness_pipelines.ledgers.postgres.views.proof import Proof

        return Proof(self.readers)

    def lineage(self, table: TableRow) -> Lineage:
        """What the ledger knows of the origin of rows of *table*."""
        from harness_pipelines.ledgers.postgres.views.lineage import Lineage

        return Lineage(self.readers, table)

    @once
    def table_states(self) -> TableStates:
        from harness_pipelines.ledgers.postgres.table_state import TableStates

        return TableStates(self.readers, self.settings.catalog_name)

    @once
    def losses(self) -> Losses:
        from harness_pipelines.ledgers.postgres.acts.reconcile import Losses

        return Losses(self.database)

    def buffer_writer(self, table: TableRow, claim: Callable[[], Claim], *, run_id: str | None = None) -> BufferWriter:
        """The port through which ingest commits, under the claim that it holds at that moment."""
        from harness_pipelines.buffers.postgres.writer import SegmentWriter

        return SegmentWriter(self.writer_sessions, table, claim, run_id=run_id)

    def overlay_rows(self, spec: TableSpec, overlays: Iterable[SegmentRef], partitions: Iterable[int]) -> pa.Table:
        """The recalled rows of *partitions*, for a reader's login."""
        from harness_pipelines.buffers.postgres.overlays import rows_of

        return rows_of(self.buffer_reader, spec, overlays, partitions)

    def set_aside(self, table: TableRow, wanted: Wanted, *, limit: int) -> list[Mapping[str, Any]]:
        """The first *limit* of the *wanted* records of the quarantine, without their bytes."""
        from harness_pipelines.ledgers.postgres.views.quarantine import set_aside

        return set_aside(self.readers, table, wanted, limit=limit)

    def corrections(self, table: TableRow) -> Corrections:
        """Records of *table* that are put back."""
        from harness_pipelines.ledgers.postgres.acts.corrections import Corrections

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
        from harness_pipelines.ledgers.postgres.acts.evolve import Evolutions

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
    def guard(self) -> WarehouseGuard:
        return self._guard(self.database)

    @once
    def log(self) -> Log:
        from harness_pipelines.sources.joined import open_log

        _needed(self.settings.kafka, "HARNESS_KAFKA", "the Kafka cluster")
        return open_log(self.settings)

    def producer(self, topic: str) -> Producer:
        """For records of our own to *topic*. Raises: UsageError."""
        from harness_pipelines.sources.kafka.producer import RecordProducer

        return RecordProducer(self.settings, topic)

    @once
    def schemas(self) -> Schemas:
        """The schema registry; asked when a record names a schema that no record did before."""
        return self.registry.open()

    @property
    def registry(self) -> SchemaSource:
        from harness_pipelines.sources.registry import RegistryAddress

        return RegistryAddress.of(self.settings)

    @once
    def segment_scans(self) -> SegmentScans:
        from harness_pipelines.buffers.postgres.scans import PostgresScans

        return PostgresScans()

    @once
    def lake_scans(self) -> LakeScans:
        from harness_pipelines.lakes.iceberg.read.for_engines import IcebergScans

        return IcebergScans()

    @once
    def engine(self) -> Engine:
        """What does the bulk work of stages: per table, and with `engine: auto` per move."""
        from harness_pipelines.engines.chosen import MOVES_ASKED, ChosenEngine
        from harness_pipelines.protocol.claims import Stage

        def moves(table: TableRow) -> Sequence[Mapping[str, Any]]:
            return self.tables.moves(table, stage=Stage.TIER, limit=MOVES_ASKED)

        return ChosenEngine(self.settings.engine, spark=self._spark_engine, arrow=self._arrow_engine, moves=moves)

    def _spark_engine(self) -> Engine:
        from harness_pipelines.engines.spark.engine import LogAccess, SparkEngine
        from harness_pipelines.sources.joined import open_log

        log = LogAccess(registry=self.registry, open_log=open_log)
        return SparkEngine(
            self.settings, lambda: self.spark_sessions, log=log, scans=self.segment_scans, lake=self.lake_scans
        )

    def _arrow_engine(self) -> Engine:
        from harness_pipelines.engines.arrow.engine import ArrowEngine

        return ArrowEngine(
            buffer=lambda: self.buffer_reader,
            lake=lambda: self.lake_reads,
            writes=lambda: self.lake,
            log=lambda: self.log,
            schemas=lambda: self.schemas,
        )

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
        from harness_pipelines.buffers.postgres.newest import counted

        return counted(self.database, table, segments, ranges)

    def close(self) -> None:
        """Close what was opened."""
        KNOWN.unbind(self.digests)
        opened: Mapping[str, object] = self.__dict__
        for name in _CLOSED:
            if name in opened:
                getattr(self, name).close()


def _needed(value: str | None, variable: str, what: str) -> str:
    if not value:
        raise UsageError(f"where is {what}? Set {variable}, or start the embedded services: `harness services up`")
    return value
