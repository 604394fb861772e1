"""The lake: views made, branches made for Spark to write to, staged snapshots checked and published by append.

Spark writes with Iceberg's own writer; of what it staged only the data files that it added are referenced on the
head, and only after they were checked from metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate, TableUpdate
from pyiceberg.types import LongType

from harness_pipelines.errors import HarnessError, Recovery, TryAgain
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.versions import Version, View
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import lake_fields, user_fields
from harness_pipelines.stores import lake_revert
from harness_pipelines.stores.by_path import ByPath
from harness_pipelines.stores.catalog import COORDINATE_FIELDS, OFFSET, StagingCatalog, view_schema
from harness_pipelines.stores.ports import Swap, TableRow
from harness_pipelines.stores.postgres import Database

MOVE, ATTEMPT, SCHEMA_VERSION, RANGES = (
    "harness.move",
    "harness.attempt",
    "harness.schema-version",
    "harness.ranges",
)
TOPIC, STARTS = "harness.topic", "harness.starts"  #: of a view: what a rebuild of a lost ledger asks for
VIEW_PROPERTIES: Mapping[str, str] = {
    "format-version": "2",
    "gc.enabled": "false",
    "write.metadata.delete-after-commit.enabled": "false",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
    "write.distribution-mode": "none",
    "write.metadata.metrics.default": "truncate(16)",
    "write.metadata.metrics.column._kafka_partition": "full",
    "write.metadata.metrics.column._kafka_offset": "full",
    "write.metadata.metrics.column._kafka_timestamp": "full",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
}
BRANCH_TRIES = 10
_highest_of: ByPath[tuple[tuple[int, int, str], ...]] = ByPath(20_000)


class StagedWrong(HarnessError):
    """What Spark staged is not what the move said; it is never published."""

    recovery = Recovery.REFRESH


class BaseGone(HarnessError):
    """The base snapshot of a move is not in the view's metadata any more: plan the move anew."""

    recovery = Recovery.REFRESH


class LakeAway(TryAgain):
    """The warehouse could not be read or written: full, unreachable, or not ours to write."""


class ForeignFiles(HarnessError):
    """The view holds rows that the ledger did not publish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The files of one attempt, checked against its move."""

    files: tuple[DataFile, ...]
    rows: int
    bytes: int


class Lake:
    """Views of one catalog."""

    def __init__(self, catalog: StagingCatalog, database: Database, *, warehouse: str) -> None:
        self.catalog = catalog
        self.database = database
        self.warehouse = warehouse.rstrip("/")

    def make_stream_view(
        self, spec: TableSpec, fields: Sequence[Mapping[str, Any]], *, origin: Mapping[str, str] | None = None
    ) -> tuple[View, list[Mapping[str, Any]]]:
        """Stage an empty stream view with its first snapshot (a branch needs one to start from).

        *origin* are properties that say where its rows come from.
        Returns the view and *fields* with the ids that Iceberg gave them.
        """
        view = f"{spec.name}__stream"
        location = f"{self.warehouse}/{spec.namespace}/{view}-{uuid4().hex[:8]}"
        properties = {**VIEW_PROPERTIES, "harness.table": spec.table, **(origin or {})}
        table = self.catalog.stage_new(
            (spec.namespace, view), schema=view_schema(lake_fields(fields)), location=location, properties=properties
        )
        with table.transaction() as transaction, transaction.update_snapshot().fast_append():
            pass
        given = table.schema().model_dump(mode="json", by_alias=True)["fields"]
        return _head(table), user_fields(given[: -len(COORDINATE_FIELDS)], fields)

    def load(self, table: TableRow, metadata: str) -> Table:
        """The stream view of *table* as *metadata* fixes it."""
        return self.catalog.at((table.spec.namespace, table.stream_view), metadata)

    def main_snapshot(self, table: TableRow) -> int:
        """The snapshot that the catalog's main branch names; -1 in a view without any."""
        snapshot = self.load(table, self._pointer(table)).metadata.current_snapshot_id
        return -1 if snapshot is None else snapshot

    def make_branch(self, table: TableRow, move: Move, base: View) -> str:
        """Create the branch of an attempt from the move's base; the catalog pointer moves, nothing is visible.

        Raises: BaseGone when the base's snapshot was expired from the current metadata.
        """
        for _ in range(BRANCH_TRIES):
            current = self.load(table, self._pointer(table))
            if move.branch in current.metadata.refs:
                return move.branch
            if current.metadata.snapshot_by_id(base.snapshot) is None:
                raise BaseGone(
                    f"{table.name}: move {move.move_id} was planned on snapshot {base.snapshot}, which is expired"
                )
            old = current.metadata_location
            with reachable(table.name, f"making branch {move.branch}"):
                current.manage_snapshots().create_branch(base.snapshot, move.branch).commit()
            if self._move_pointer(table, old=old, new=current.metadata_location):
                return move.branch
        raise LakeAway(f"{table.name}: the stream view's pointer moved {BRANCH_TRIES} times in a row")

    def staged(self, table: TableRow, move: Move, *, rows: int) -> Staged:
        """Read what the attempt staged and check it from metadata against its move.

        Raises: StagedWrong.
        """
        current = self.load(table, self._pointer(table))
        snapshot = current.metadata.snapshot_by_name(move.branch)
        if snapshot is None:
            raise StagedWrong(f"{table.name}: branch {move.branch} is gone; the attempt is repeated")
        if not _is_of(snapshot, move):
            if rows == 0:
                return Staged(files=(), rows=0, bytes=0)
            raise StagedWrong(f"{table.name}: branch {move.branch} holds no snapshot of attempt {move.attempt}")
        with reachable(table.name, f"reading what attempt {move.attempt} of move {move.move_id} staged"):
            files = _added_files(current.io, snapshot)
        _check_inside(table, move, [(f, offset_bounds(f, current)) for f in files], rows=rows)
        return Staged(files=tuple(files), rows=rows, bytes=sum(f.file_size_in_bytes for f in files))

    def build_append(self, table: TableRow, move: Move, staged: Staged, *, base: str, keep: int) -> Swap:
        """Write the metadata that references *staged* on top of the metadata file *base*.

        In the same change the branch goes, and of the snapshots only the newest *keep* stay.
        Raises: ForeignFiles when a live file reaches into the move's ranges.
        """
        view = self.load(table, base)
        base_snapshot = _head(view).snapshot
        doing = f"publishing move {move.move_id}"
        with reachable(table.name, doing):
            check_no_overlap(table, view, move)
        with reachable(table.name, doing), view.transaction() as transaction:
            properties = {
                MOVE: str(move.move_id),
                ATTEMPT: str(move.attempt),
                SCHEMA_VERSION: str(move.schema_version),
                RANGES: ",".join(f"{r.partition}:{r.low}-{r.high}" for r in move.ranges),
            }
            with transaction.update_snapshot(snapshot_properties=properties).merge_append() as append:
                for file in staged.files:
                    append.append_data_file(file)
            transaction._apply(_tidying(transaction.table_metadata, keep=keep, drop=(move.branch,)), ())
        return Swap(view=table.stream_view, old=base, base_snapshot=base_snapshot, new=_head(view))

    def build_revert(
        self, table: TableRow, move_id: int, *, base: str, head: Version, target: Version, keep: int
    ) -> Swap:
        """Write the metadata whose main has the files of *target*, on top of the metadata file *base*.

        All moves are closed by a revert, so their branches go in the same change. What *head* pins says how the view
        is set up; where the catalog has another table under its name, it is also what is built on.
        Raises: MetadataMissing, SnapshotMissing.
        """
        current, known = self.load(table, base), self.load(table, head.stream.metadata)
        view = current if lake_revert.same_table(current.metadata, known.metadata) else known
        properties = {
            MOVE: str(move_id),
            ATTEMPT: "1",
            SCHEMA_VERSION: str(target.schema_version),
            lake_revert.REVERT_OF: str(target.version),
            lake_revert.STREAM_HI: ",".join(f"{p}:{o}" for p, o in sorted(target.stream_hi.items())),
        }
        with reachable(table.name, f"reverting to version {target.version}"), view.transaction() as transaction:
            restored = self.load(table, target.stream.metadata)
            snapshot = lake_revert.restoring_snapshot(view, restored, target.stream.snapshot, properties=properties)
            updates = lake_revert.restoring_updates(view.metadata, known.metadata, snapshot)
            transaction._apply(updates, ())
            branches = [name for name in view.metadata.refs if name.startswith("move_")]
            transaction._apply(_tidying(transaction.table_metadata, keep=keep, drop=branches), ())
        return Swap(view=table.stream_view, old=base, base_snapshot=head.stream.snapshot, new=_head(view))

    def drop_branches(self, table: TableRow, dead: Sequence[str]) -> bool:
        """Remove the branches of dead attempts. False if the pointer moved meanwhile."""
        view = self.load(table, self._pointer(table))
        old = view.metadata_location
        with view.transaction() as transaction:
            transaction._apply(_tidying(transaction.table_metadata, keep=2**31, drop=dead), ())
        return self._move_pointer(table, old=old, new=view.metadata_location)

    def _pointer(self, table: TableRow) -> str:
        key = {"catalog": self.catalog.name, "namespace": table.spec.namespace, "view": table.stream_view}
        return str(self.database.rows("reads/pointer", key)[0]["metadata_location"])

    def _move_pointer(self, table: TableRow, *, old: str, new: str) -> bool:
        key = {"catalog": self.catalog.name, "namespace": table.spec.namespace, "view": table.stream_view}
        return self.database.run("ledger/move_pointer", {**key, "old": old, "new": new}) == 1


@contextmanager
def reachable(table: str, doing: str) -> Iterator[None]:
    """Trouble of the warehouse by the harness's name; nothing is published while it lasts."""
    try:
        yield
    except OSError as error:
        raise LakeAway(f"{table}: {doing}: {error}; nothing was published, it is tried again") from error


def check_no_overlap(table: TableRow, view: Table, move: Move) -> None:
    """No live file of the head may reach into the ranges of the move (S37, and the guard against foreign writers).

    Raises: ForeignFiles.
    """
    snapshot = view.metadata.current_snapshot()
    highest = _highest(view, snapshot) if snapshot else {}
    for taken in move.ranges:
        if (found := highest.get(taken.partition)) is not None and found[0] >= taken.low:
            raise ForeignFiles(
                f"{table.name}: the stream view holds offset {found[0]} of partition {taken.partition} in {found[1]}, "
                f"but the ledger has published only below {taken.low}: another writer, or a restored database. "
                f"Nothing was written; `harness audit {table.name}` shows the rows, `harness revert {table.name} --to "
                "HEAD --yes` sets the view back to what the ledger published, `harness reconcile "
                f"{table.name} --accept-foreign --yes` takes them over"
            )


def _highest(view: Table, snapshot: Snapshot) -> dict[int, tuple[int, str]]:
    """Per Kafka partition the highest offset of any live file, and that file."""
    highest: dict[int, tuple[int, str]] = {}
    for manifest in snapshot.manifests(view.io):
        make = partial(_manifest_highest, manifest, view)
        for partition, offset, path in _highest_of.get(manifest.manifest_path, make):
            if partition not in highest or highest[partition][0] < offset:
                highest[partition] = (offset, path)
    return highest


def _manifest_highest(manifest: ManifestFile, view: Table) -> tuple[tuple[int, int, str], ...]:
    highest: dict[int, tuple[int, str]] = {}
    for entry in manifest.fetch_manifest_entry(view.io, discard_deleted=True):
        partition, (_, offset) = int(entry.data_file.partition[0]), offset_bounds(entry.data_file, view)
        if partition not in highest or highest[partition][0] < offset:
            highest[partition] = (offset, entry.data_file.file_path)
    return tuple((partition, offset, path) for partition, (offset, path) in highest.items())


def offset_bounds(file: DataFile, view: Table) -> tuple[int, int]:
    """Lowest and highest ``_kafka_offset`` in a file of *view*, both included."""
    field_id = view.schema().find_field(OFFSET).field_id
    low, high = (file.lower_bounds or {}).get(field_id), (file.upper_bounds or {}).get(field_id)
    if low is None or high is None:
        raise ForeignFiles(
            f"{file.file_path} has no bounds for _kafka_offset: it was not written by the harness. Nothing was "
            "written; `harness revert TABLE --to HEAD --yes` sets the view back to what the ledger published"
        )
    return int(from_bytes(LongType(), low)), int(from_bytes(LongType(), high))


def _is_of(snapshot: Snapshot, move: Move) -> bool:
    summary = snapshot.summary
    return summary is not None and summary[MOVE] == str(move.move_id) and summary[ATTEMPT] == str(move.attempt)


def _added_files(io: FileIO, snapshot: Snapshot) -> list[DataFile]:
    """The files that exactly this snapshot added."""
    return [
        entry.data_file
        for manifest in snapshot.manifests(io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(io)
        if entry.status is ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
    ]


def _check_inside(table: TableRow, move: Move, files: Sequence[tuple[DataFile, tuple[int, int]]], *, rows: int) -> None:
    """Record counts are the move's rows, and every file lies inside the move's range of its partition."""
    where = f"{table.name}: move {move.move_id}, attempt {move.attempt}"
    if (found := sum(file.record_count for file, _ in files)) != rows:
        raise StagedWrong(f"{where}: {rows} rows were to be moved, {found} were staged; nothing was published")
    for file, (low, high) in files:
        partition = int(file.partition[0])
        if not (partition in move.lo and move.lo[partition] <= low and high < move.hi[partition]):
            raise StagedWrong(
                f"{where}: {file.file_path} holds offsets {low}..{high} of partition {partition}, outside the move; "
                "nothing was published"
            )


def _tidying(metadata: Any, *, keep: int, drop: Sequence[str]) -> tuple[TableUpdate, ...]:
    """Updates that remove the branches of *drop* and all but the newest *keep* snapshots that no ref names."""
    gone = [name for name in drop if name in metadata.refs]
    named = {ref.snapshot_id for name, ref in metadata.refs.items() if name not in gone}
    staged = {metadata.refs[name].snapshot_id for name in gone} - named
    newest = sorted(metadata.snapshots, key=lambda s: s.sequence_number or 0, reverse=True)
    kept = {s.snapshot_id for s in [s for s in newest if s.snapshot_id not in staged][:keep]} | named
    old = [s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in kept]
    updates: list[TableUpdate] = [RemoveSnapshotRefUpdate(ref_name=name) for name in gone]
    return (*updates, RemoveSnapshotsUpdate(snapshot_ids=old)) if old else tuple(updates)


def _head(table: Table) -> View:
    snapshot = table.metadata.current_snapshot()
    assert snapshot is not None
    return View(metadata=table.metadata_location, snapshot=snapshot.snapshot_id)
