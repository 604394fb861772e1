"""The stores under one roof for the contract tests: the reference in memory, or Postgres with real Iceberg files.

Beside the ports a rig can let time pass, look behind the ports, and write files as an engine would.
"""

from __future__ import annotations

import copy
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from psycopg import sql as compose

from harness_pipelines.buffers.postgres.writer import Segments, SegmentWriter, make_segment
from harness_pipelines.drivers import files
from harness_pipelines.drivers.adbc import AdbcSessions
from harness_pipelines.drivers.postgres import READER, WORKER
from harness_pipelines.lakes.iceberg.catalog import StagingCatalog
from harness_pipelines.lakes.iceberg.catalogs.glue import GlueMirror
from harness_pipelines.lakes.iceberg.catalogs.rest import RestMirror
from harness_pipelines.lakes.iceberg.inspect.history import IcebergHistories
from harness_pipelines.lakes.iceberg.read.manifests import columns_of, manifests_of
from harness_pipelines.lakes.iceberg.write import quarantine
from harness_pipelines.lakes.iceberg.write.checks import offset_bounds
from harness_pipelines.lakes.iceberg.write.commits import check_whole
from harness_pipelines.lakes.iceberg.write.publish import Lake
from harness_pipelines.lakes.iceberg.write.quarantine import RawBytes
from harness_pipelines.lakes.owner import Ownership
from harness_pipelines.ledgers.postgres.acts.corrections import Corrections
from harness_pipelines.ledgers.postgres.acts.evolve import Evolutions
from harness_pipelines.ledgers.postgres.acts.reconcile import Reconciler
from harness_pipelines.ledgers.postgres.boundary import SharedCatalog
from harness_pipelines.ledgers.postgres.history.fold import HistoryFold
from harness_pipelines.ledgers.postgres.history.numbers import TableHistories
from harness_pipelines.ledgers.postgres.leases import Leases
from harness_pipelines.ledgers.postgres.ledger import PostgresLedger
from harness_pipelines.ledgers.postgres.migrations import ledger_database
from harness_pipelines.ledgers.postgres.quarantine_bytes import QuarantineBytes
from harness_pipelines.ledgers.postgres.retention import Upkeep
from harness_pipelines.ledgers.postgres.views.mirrors import Mirrors
from harness_pipelines.ledgers.postgres.views.quarantine import with_bytes
from harness_pipelines.ports.buffer import BufferSegments, BufferWriter
from harness_pipelines.ports.decoded import DecodedRange, with_coordinates
from harness_pipelines.ports.ledger import (
    Boundary,
    Ledger,
    MoveDraft,
    ReadLeases,
    RefusedRecord,
    Segment,
    Swap,
    TableRow,
    view_names,
)
from harness_pipelines.ports.source import TopicIdentity
from harness_pipelines.ports.upkeep import Trimmer
from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.lake.properties import ATTEMPT, MOVE
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.versions import Version, View, ViewName
from harness_pipelines.spec.sections.catalogs import CatalogSpec
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import iceberg_fields
from harness_pipelines.stages.guard import WarehouseGuard
from harness_pipelines_tests.memory.buffer import MemorySegments, MemorySegmentWriter
from harness_pipelines_tests.memory.lake import MemoryFile, MemoryLake
from harness_pipelines_tests.memory.leases import MemoryLeases
from harness_pipelines_tests.memory.ledger import MemoryLedger
from harness_pipelines_tests.memory.retention import MemoryUpkeep
from harness_pipelines_tests.memory.state import MemoryState

CATALOG = "harness"
COLUMNS = {"id": {"type": "long", "required": True}, "s": "string"}
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
Files = Mapping[int, Sequence[int]]  #: one file per partition, with a row at each offset


def fresh_view() -> View:
    """A view of which only the name counts."""
    return View(
        metadata=f"file:///nowhere/{uuid.uuid4().hex}/metadata/1.metadata.json", snapshot=uuid.uuid4().int >> 66
    )


def rows_at(partition: int, offsets: Sequence[int], spec: TableSpec) -> pa.Table:
    """Rows as ingest makes them, one at each of *offsets*."""
    user = pa.table({"id": pa.array(offsets, pa.int64()), "s": pa.array([f"row {o}" for o in offsets], pa.string())})
    return with_coordinates(
        user,
        partition=partition,
        offsets=pa.array(offsets, pa.int64()),
        timestamps_ms=pa.array([1_700_000_000_000] * len(offsets), pa.int64()),
        columns=spec.columns,
    )


def decoded(table: TableRow, partition: int, low: int, high: int, *, refused: Sequence[int] = ()) -> DecodedRange:
    """[low, high) of a partition with a row at each offset, but for the *refused* ones."""
    return DecodedRange(
        partition=partition,
        low=low,
        high=high,
        rows=rows_at(partition, [o for o in range(low, high) if o not in refused], table.spec),
        refused=[
            RefusedRecord(
                partition=partition, offset=o, reason="malformed", detail="no JSON", key=None, value=b"{", headers=()
            )
            for o in refused
        ],
        leader_epoch=None,
    )


def agrees() -> None:
    """The log is the one that was read."""


class LakeViews(Protocol):
    """What the lake and its reference in `memory` have in common; what an attempt staged is opaque."""

    def make_views(
        self, spec: TableSpec, fields: Sequence[Mapping[str, Any]]
    ) -> tuple[dict[ViewName, View], list[Mapping[str, Any]]]: ...
    def make_branch(self, table: TableRow, move: Move, base: View) -> str: ...
    def staged(self, table: TableRow, move: Move, *, rows: int) -> Any: ...
    def build_append(self, table: TableRow, move: Move, staged: Any, *, base: str, keep: int) -> Swap: ...
    def build_revert(
        self, table: TableRow, move_id: int, name: ViewName, *, base: str, head: Version, target: Version, keep: int
    ) -> Swap: ...
    def build_replace(
        self, table: TableRow, move: Move, staged: Any, *, removed: Mapping[str, str | None], base: str, keep: int
    ) -> Swap: ...
    def drop_branches(self, table: TableRow, dead: Sequence[str], *, view: ViewName = "stream") -> bool: ...


class StoresRig:
    """What both kinds share."""

    ledger: Ledger
    leases: ReadLeases
    segments: BufferSegments
    upkeep: Trimmer
    lake: LakeViews

    def __init__(self) -> None:
        self.made: list[TableRow] = []

    # -- tables ---------------------------------------------------------------------------------------------

    def spec(self, **changes: Any) -> TableSpec:
        return TableSpec.model_validate(
            {"table": f"contract.t_{uuid.uuid4().hex[:12]}", "topic": "t", "columns": COLUMNS, **changes}
        )

    def table(self, *, partitions: int = 2, start: int = 0, files: bool = False, **changes: Any) -> TableRow:
        """A table of *partitions*; with *files* its view is a real one."""
        spec = self.spec(**changes)
        fields: Sequence[Mapping[str, Any]] = iceberg_fields(spec.columns)
        views: dict[ViewName, View] = {name: fresh_view() for name in view_names(spec)}
        if files:
            views, fields = self.lake.make_views(spec, fields)
        identity = TopicIdentity(cluster_id="c", topic="t", topic_id="i", partitions=tuple(range(partitions)))
        starts = {p: start for p in range(partitions)}
        made = self.ledger.create_table(spec, identity, starts=starts, fields=fields, views=views)
        self.made.append(made)
        return made

    def again(self, table: TableRow) -> TableRow:
        """The table as the ledger has it now."""
        return self.ledger.table(table.name)

    def claim(self, table: TableRow, stage: Stage = Stage.TIER, *, lease: timedelta = HOUR) -> Claim:
        found = self.ledger.claim(table, stage, shard=0, holder=str(uuid.uuid4()), lease=lease)
        assert found is not None, f"{stage} is claimed by somebody"
        return found

    def taken_over(self, table: TableRow, stage: Stage = Stage.TIER) -> tuple[Claim, Claim]:
        """The claim of a holder that sleeps, and of the one that took it over when its lease had ended."""
        asleep = self.claim(table, stage, lease=MINUTE)
        self.pass_time(2 * MINUTE)
        return asleep, self.claim(table, stage)

    # -- ingest ---------------------------------------------------------------------------------------------

    def join(self, table: TableRow, starts: Vector) -> None:
        """Let partitions join, as whoever ingests does."""
        held = self.claim(table, Stage.INGEST)
        self.ledger.add_partitions(held, starts)
        self.ledger.release(held)

    def ingest(self, table: TableRow, ranges: Mapping[int, tuple[int, int]], *, claim: Claim | None = None) -> Segment:
        """Commit a row at each offset of *ranges* into the open segment."""
        held = claim or self.claim(table, Stage.INGEST)
        segment = self.segments.open_segment(table)
        writer = self.writer(table, held)
        writer.commit(segment, [decoded(table, p, *r) for p, r in ranges.items()], confirm=agrees)
        writer.close()
        if claim is None:
            self.ledger.release(held)
        return segment

    # -- moves ----------------------------------------------------------------------------------------------

    def plan(self, table: TableRow, claim: Claim, lo: Vector, hi: Vector) -> Move:
        draft = MoveDraft(
            stage=Stage.TIER,
            shard=0,
            lo=lo,
            hi=hi,
            base_version=self.ledger.head(table).version,
            schema_version=1,
            trigger="rows",
        )
        return self.ledger.plan_move(claim, draft)

    def build(self, table: TableRow) -> Callable[[str], Swap]:
        """Builds a view of which only the name counts."""

        def build(base: str) -> Swap:
            found = self.ledger.head(table).stream.snapshot
            return Swap(view="stream", old=base, base_snapshot=found, new=fresh_view())

        return build

    def publish(self, table: TableRow, claim: Claim, move: Move, **changes: Any) -> Version:
        boundary = replace(Boundary(claim=claim, move=move, rows=7, bytes=70), **changes)
        return self.ledger.publish(table, boundary, self.build(table))

    def move(self, table: TableRow, lo: Vector, hi: Vector) -> Version:
        """A whole move, without files."""
        claim = self.claim(table)
        published = self.publish(table, claim, self.plan(table, claim, lo, hi))
        self.ledger.release(claim)
        return published

    # -- what a rig has to know -----------------------------------------------------------------------------

    def writer(self, table: TableRow, claim: Claim) -> BufferWriter:
        raise AssertionError

    def pass_time(self, by: timedelta) -> None:
        """Let the clock of the stores go ahead."""
        raise AssertionError

    def drop_view(self, table: TableRow, view: ViewName) -> None:
        """What another engine's DROP TABLE does: the catalog's row goes, the files stay."""
        raise AssertionError

    def contents(self, table: TableRow) -> Any:
        """All that the stores hold of *table*, to compare before and after."""
        raise AssertionError

    def outbox(self, table: TableRow) -> list[tuple[int, str]]:
        """[(seq, event)] in order."""
        raise AssertionError

    def buffered(self, table: TableRow) -> dict[str, Counter[tuple[int, int]]]:
        """{segment: (partition, offset) of its rows}."""
        raise AssertionError

    def refused(self, table: TableRow) -> set[tuple[int, int]]:
        """(partition, offset) of the quarantined records."""
        raise AssertionError

    def evolve(self, table: TableRow) -> None:
        """What a schema publish does to schemas and ingest positions."""
        raise AssertionError

    def stage_files(self, table: TableRow, branch: str, files: Files, *, move: tuple[int, int] | None) -> None:
        """What an engine does: append one snapshot with *files* to *branch*."""
        raise AssertionError

    def live(self, table: TableRow, metadata: str) -> Counter[tuple[int, int, int]]:
        """(partition, lowest, highest offset) of each file that main of a metadata file has."""
        raise AssertionError

    def paths(self, table: TableRow, metadata: str) -> set[str]:
        """The files that main of a metadata file has."""
        raise AssertionError

    def shape(self, table: TableRow) -> tuple[int, set[str]]:
        """How many snapshots the current metadata keeps, and its branches."""
        raise AssertionError

    def close(self) -> None:
        """End what was opened."""


class MemoryRig(StoresRig):
    """Over the reference."""

    def __init__(self) -> None:
        super().__init__()
        self.state = MemoryState()
        self.ledger = MemoryLedger(self.state)
        self.leases = MemoryLeases(self.state)
        self.segments = MemorySegments(self.state)
        self.upkeep = MemoryUpkeep(self.state)
        self.lake = self._lake = MemoryLake(self.state)

    def writer(self, table: TableRow, claim: Claim) -> BufferWriter:
        return MemorySegmentWriter(self.state, table, lambda: claim)

    def pass_time(self, by: timedelta) -> None:
        self.state.pass_time(by)

    def drop_view(self, table: TableRow, view: ViewName) -> None:
        with self.state.transaction() as books:
            del books.pointers[table.spec.namespace, table.views[view]]

    def contents(self, table: TableRow) -> Any:
        return copy.copy(self.state.books)

    def outbox(self, table: TableRow) -> list[tuple[int, str]]:
        return [(seq, event) for seq, event, _ in self.state.books.outbox[table.table_id]]

    def buffered(self, table: TableRow) -> dict[str, Counter[tuple[int, int]]]:
        return {
            s.name: Counter(
                pair
                for part in self.state.books.segment_rows[s.name]
                for pair in zip(part["_kafka_partition"].to_pylist(), part["_kafka_offset"].to_pylist(), strict=True)
            )
            for s in self.segments.all(table)
        }

    def refused(self, table: TableRow) -> set[tuple[int, int]]:
        return {(p, o) for owner, p, o in self.state.books.quarantine if owner == table.table_id}

    def evolve(self, table: TableRow) -> None:
        with self.state.transaction() as books:
            next_schema = replace(table.history[-1], schema_version=2)
            books.tables[table.table_id] = replace(table, history=(*table.history, next_schema))
            for partition, at in books.ingest_of(table.table_id).items():
                books.ingest_positions[table.table_id, partition] = replace(at, schema_version=2)

    def stage_files(self, table: TableRow, branch: str, files: Files, *, move: tuple[int, int] | None) -> None:
        made = [
            MemoryFile(partition=p, low=min(at), high=max(at), rows=len(at), path=uuid.uuid4().hex)
            for p, at in files.items()
        ]
        self._lake.append_to(table, branch, made, move=move)

    def live(self, table: TableRow, metadata: str) -> Counter[tuple[int, int, int]]:
        return Counter((f.partition, f.low, f.high) for f in self._lake.load(table, metadata).main.files)

    def paths(self, table: TableRow, metadata: str) -> set[str]:
        return {f.path for f in self._lake.load(table, metadata).main.files}

    def shape(self, table: TableRow) -> tuple[int, set[str]]:
        view = self._lake.load(table, self.ledger.pointer(table, "stream"))
        return len(view.snapshots), {name for name in view.refs if name != "main"}


class RealRig(StoresRig):
    """Over a Postgres database and Iceberg files in a folder."""

    def __init__(self, dsn: str, folder: Path) -> None:
        super().__init__()
        self.dsn = dsn
        self.sessions = AdbcSessions(dsn, role=WORKER)
        self.database, self.readers = ledger_database(dsn), ledger_database(dsn, role=READER)
        self.owner = ledger_database(dsn, role=None, size=1)
        self.catalog = StagingCatalog(CATALOG, warehouse=folder.as_uri())
        self.ledger = PostgresLedger(self.database, catalog=CATALOG)
        self.leases = Leases(self.readers)
        self.segments = Segments(self.database, bytes_max=10**10)
        self.ownership = Ownership(self.database, warehouse=folder.as_uri())
        self.upkeep = Upkeep(self.database, self.catalog, self.ownership, files)
        self.history_fold = HistoryFold(self.database)
        self.raw_bytes = RawBytes(
            QuarantineBytes(self.database, catalog=CATALOG), self.catalog, warehouse=folder.as_uri()
        )
        self.history_fold = HistoryFold(self.database)
        self.pointers = SharedCatalog(CATALOG, self.database)
        self.reconciler = Reconciler(self.owner, catalog=CATALOG, check_whole=check_whole)
        self.lake = self._lake = Lake(self.catalog, self.database, pointers=self.pointers, warehouse=folder.as_uri())

        self.mirrors = Mirrors(self.database, self.readers)
        histories = IcebergHistories(self.catalog, warehouse=folder.as_uri())
        self.guard = WarehouseGuard(self.ownership, TableHistories(self.database), histories.named_by_files)
        self._warehouse = folder.as_uri()

    def foreign_catalog(self, table: TableRow, catalog: CatalogSpec) -> RestMirror | GlueMirror:
        kind = GlueMirror if catalog.type == "glue" else RestMirror
        return kind(table, catalog, self.catalog, warehouse=self._warehouse)

    def corrections(self, table: TableRow) -> Corrections:
        return Corrections(self.database, table, catalog=CATALOG, in_lake=quarantine.read)

    def with_bytes(self, table: TableRow, records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """As a reader sees them."""
        return with_bytes(self.readers, table, records, in_lake=quarantine.read)

    def evolutions(self, table: TableRow) -> Evolutions:
        return Evolutions(self.database, table, catalog=CATALOG, make_segment=make_segment)

    def table(self, **words: Any) -> TableRow:
        """As any rig's; another catalog and another namespace have tables of the same names."""
        made = super().table(**words)
        for catalog, namespace in self.namesakes(made):
            key = {"catalog": CATALOG, "namespace": made.spec.namespace, "names": list(made.views.values())}
            self.ask(_SAME_NAMES, {**key, "its_catalog": catalog, "its_namespace": namespace})
        return made

    @staticmethod
    def namesakes(table: TableRow) -> list[tuple[str, str]]:
        """The other catalog, and the other namespace, that have tables called like the views of *table*."""
        return [("another", table.spec.namespace), (CATALOG, f"{table.spec.namespace}_too")]

    def untouched_namesakes(self, table: TableRow) -> int:
        """How many of these tables are as they were."""
        found = self.ask(_UNTOUCHED, {"names": list(table.views.values())})
        wanted = self.namesakes(table)
        return sum((row["catalog_name"], row["table_namespace"]) in wanted for row in found)

    def ask(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[dict[str, Any]]:
        """Run a statement as the owner."""
        with self.owner.transaction() as connection:
            cursor = connection.execute(statement, parameters)
            return list(cursor.fetchall()) if cursor.description else []

    def writer(self, table: TableRow, claim: Claim) -> BufferWriter:
        return SegmentWriter(self.sessions, table, lambda: claim, run_id=None)

    def pass_time(self, by: timedelta) -> None:
        # The clock is the database's, so all that it has written of these tables becomes older.
        with self.owner.transaction() as connection:
            for name, columns in _TIMES.items():
                older = compose.SQL(", ").join(
                    compose.SQL("{0} = {0} - %(by)s").format(compose.Identifier(column)) for column in columns
                )
                statement = compose.SQL("UPDATE {} SET {} WHERE table_id = ANY(%(tables)s)").format(
                    compose.Identifier("harness", name), older
                )
                connection.execute(statement, {"by": by, "tables": [table.table_id for table in self.made]})

    def drop_view(self, table: TableRow, view: ViewName) -> None:
        where = [CATALOG, table.spec.namespace, table.views[view]]
        row = "catalog_name = %s AND table_namespace = %s AND table_name = %s"
        self.ask(f"DELETE FROM public.iceberg_tables WHERE {row}", where)

    def contents(self, table: TableRow) -> Any:
        held = {}
        with self.owner.transaction() as connection:
            for name in _TABLES:
                statement = compose.SQL("SELECT r::text AS r FROM {} r WHERE table_id = %s ORDER BY 1").format(
                    compose.Identifier("harness", name)
                )
                held[name] = [row["r"] for row in connection.execute(statement, [table.table_id])]
        return {**held, "buffer": self.buffered(table), "pointer": self.ledger.pointer(table, "stream")}

    def outbox(self, table: TableRow) -> list[tuple[int, str]]:
        found = self.ask("SELECT seq, event FROM harness.outbox WHERE table_id = %s ORDER BY seq", [table.table_id])
        return [(row["seq"], row["event"]) for row in found]

    def buffered(self, table: TableRow) -> dict[str, Counter[tuple[int, int]]]:
        return {
            s.name: Counter(
                (row["_kafka_partition"], row["_kafka_offset"])
                for row in self.ask(f"SELECT _kafka_partition, _kafka_offset FROM harness_buffer.{s.name}")
            )
            for s in self.segments.all(table)
        }

    def refused(self, table: TableRow) -> set[tuple[int, int]]:
        found = self.ask('SELECT partition, "offset" FROM harness.quarantine WHERE table_id = %s', [table.table_id])
        return {(row["partition"], row["offset"]) for row in found}

    def evolve(self, table: TableRow) -> None:
        self.ask(
            "INSERT INTO harness.schemas (table_id, schema_version, fields, spec, starts) "
            "SELECT table_id, 2, fields, spec, starts FROM harness.schemas WHERE table_id = %s",
            [table.table_id],
        )
        self.ask("UPDATE harness.ingest_positions SET schema_version = 2 WHERE table_id = %s", [table.table_id])

    def stage_files(self, table: TableRow, branch: str, files: Files, *, move: tuple[int, int] | None) -> None:
        view = self._lake.load(table, self.ledger.pointer(table, "stream"))
        old = view.metadata_location
        schema = view.schema().as_arrow()
        parts = []
        for partition, offsets in files.items():
            rows = rows_at(partition, offsets, table.spec)
            rows = rows.append_column("_op", pa.array(["put"] * len(offsets), pa.string()))
            rows = rows.append_column("_schema_version", pa.array([1] * len(offsets), pa.int32()))
            parts.append(rows.select(schema.names).cast(schema))
        summary = {} if move is None else {MOVE: str(move[0]), ATTEMPT: str(move[1])}
        view.append(pa.concat_tables(parts), snapshot_properties=summary, branch=branch)
        key = {"catalog": CATALOG, "namespace": table.spec.namespace, "view": table.tiered_view}
        assert self.database.run("ledger/move_pointer", {**key, "old": old, "new": view.metadata_location}) == 1

    def live(self, table: TableRow, metadata: str) -> Counter[tuple[int, int, int]]:
        view = self._lake.load(table, metadata)
        head = view.metadata.current_snapshot()
        assert head is not None
        return Counter(
            (int(entry.data_file.partition[0]), *offset_bounds(entry.data_file, view))
            for manifest in head.manifests(view.io)
            for entry in manifest.fetch_manifest_entry(view.io, discard_deleted=True)
        )

    def paths(self, table: TableRow, metadata: str) -> set[str]:
        view = self._lake.load(table, metadata)
        manifests = manifests_of(view.metadata.current_snapshot(), view.io)
        return {path for manifest in manifests for path in columns_of(manifest, view.io).paths()}

    def shape(self, table: TableRow) -> tuple[int, set[str]]:
        metadata = self._lake.load(table, self.ledger.pointer(table, "stream")).metadata
        return len(metadata.snapshots), {name for name in metadata.refs if name != "main"}

    def close(self) -> None:
        for one in (self.database, self.readers, self.owner, self.sessions, self.catalog):
            one.close()


_SAME_NAMES = """
INSERT INTO public.iceberg_tables (catalog_name, table_namespace, table_name, metadata_location,
                                   previous_metadata_location, iceberg_type)
SELECT %(its_catalog)s, %(its_namespace)s, table_name, metadata_location, 'untouched', 'TABLE'
FROM public.iceberg_tables
WHERE catalog_name = %(catalog)s AND table_namespace = %(namespace)s AND table_name = ANY(%(names)s)
"""
_UNTOUCHED = """
SELECT catalog_name, table_namespace, table_name FROM public.iceberg_tables
WHERE previous_metadata_location = 'untouched' AND table_name = ANY(%(names)s)
"""
_TIMES: Mapping[str, Sequence[str]] = {
    "tables": ["created_at"],
    "claims": ["lease_until"],
    "leases": ["until", "born"],
    "versions": ["committed_at"],
    "segments": ["created_at", "closed_at", "retired_at"],
    "moves": ["planned_at", "committed_at"],
}
_TABLES = (
    *("tables", "schemas", "lake_positions", "versions", "claims", "moves", "leases", "outbox"),
    *("ingest_positions", "segments", "quarantine", "contract_violations"),
)
