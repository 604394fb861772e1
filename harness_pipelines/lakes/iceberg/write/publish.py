"""Create views and branches; check staged snapshots and publish them by append.

Spark writes with Iceberg's own writer; of what it staged only the data files that it added are referenced on the
head, and only after they were checked from metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import BooleanType

from harness_pipelines.drivers.postgres import Database
from harness_pipelines.lakes.iceberg.catalog import Arrangement, StagingCatalog, schema_beside, view_schema
from harness_pipelines.lakes.iceberg.catalog import is_wide as is_wide_view
from harness_pipelines.lakes.iceberg.checked_io import note_data_files, note_files
from harness_pipelines.lakes.iceberg.private.tables import Changes, apply
from harness_pipelines.lakes.iceberg.read import deletes, regions
from harness_pipelines.lakes.iceberg.read.live_files import live_files
from harness_pipelines.lakes.iceberg.read.manifests import entries_of, manifests_of
from harness_pipelines.lakes.iceberg.read.scan import staged_file
from harness_pipelines.lakes.iceberg.write import attempt_files, corrections, extents, foreign, revert
from harness_pipelines.lakes.iceberg.write.checks import check_hull, check_inside, check_no_overlap, offset_bounds
from harness_pipelines.lakes.iceberg.write.commits import brought, main_at, tidy
from harness_pipelines.lakes.iceberg.write.replace import replace_files
from harness_pipelines.layout.files import FileStats, Positions
from harness_pipelines.layout.tree import LAYER, indexed_columns, key_columns
from harness_pipelines.ports.errors import (
    BaseGone,
    LakeAway,
    StagedWrong,
)
from harness_pipelines.ports.lake import NOTHING_STAGED, CatalogPointers, Staged, reachable
from harness_pipelines.ports.lake_writes import FileLists, Hidden, Replacement
from harness_pipelines.ports.ledger import Swap, TableRow, view_names
from harness_pipelines.protocol.claims import Claim
from harness_pipelines.protocol.coordinates import OFFSET
from harness_pipelines.protocol.lake.overlays import Overlay, told
from harness_pipelines.protocol.lake.properties import (
    ATTEMPT,
    BATCH_HI,
    CORRECTIONS,
    MOVE,
    NONCE,
    RANGES,
    RECALLED,
    SCHEMA_VERSION,
    STARTS,
    properties_of,
    summary_of,
    vector_of,
    vector_text,
)
from harness_pipelines.protocol.lake.wide import is_wide
from harness_pipelines.protocol.moves import Move, move_of
from harness_pipelines.protocol.versions import Version, View, ViewName
from harness_pipelines.spec.locations import normal
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import lake_fields, user_fields

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
Fields = Sequence[Mapping[str, Any]]  #: Iceberg's JSON form of the user's columns


class Lake:
    """Views of one catalog."""

    def __init__(
        self, catalog: StagingCatalog, database: Database, *, pointers: CatalogPointers, warehouse: str
    ) -> None:
        self.catalog = catalog
        self.pointers = pointers
        self.database = database
        self.warehouse = normal(warehouse)

    def make_views(
        self, spec: TableSpec, fields: Fields, *, origin: Mapping[str, str] | None = None
    ) -> tuple[dict[ViewName, View], list[Mapping[str, Any]]]:
        """Stage the empty views of a table, each with its first snapshot (a branch needs one to start from).

        *origin* are properties that say where their rows come from.
        Returns the views and *fields* with the ids that Iceberg gave them, the same in both.
        """
        made = {name: self._make_view(spec, name, fields, origin or {}) for name in view_names(spec)}
        given = next(iter(made.values())).schema().model_dump(mode="json", by_alias=True)["fields"]
        return {name: _head(table) for name, table in made.items()}, user_fields(given[: len(fields)], fields)

    def make_batch_view(self, spec: TableSpec, fields: Fields, *, stream: str, origin: Mapping[str, str]) -> View:
        """Stage an empty batch view, in its own folder, with the field ids of the view of the metadata file *stream*.

        Raises: MetadataMissing.
        """
        beside = self.catalog.at((spec.namespace, view_names(spec)["stream"]), stream).metadata
        return _head(self._make_view(spec, "batch", fields, origin, beside))

    def _make_view(
        self,
        spec: TableSpec,
        name: ViewName,
        fields: Fields,
        origin: Mapping[str, str],
        beside: TableMetadata | None = None,
    ) -> Table:
        iceberg_name, users = view_names(spec)[name], lake_fields(fields)
        table = self.catalog.stage_new(
            (spec.namespace, iceberg_name),
            schema=schema_beside(beside.schema(), users) if beside else view_schema(users),
            last_column_id=beside.last_column_id if beside else None,
            location=f"{self.warehouse}/{spec.namespace}/{iceberg_name}-{uuid4().hex[:8]}",
            properties={**_properties(spec, name), **properties_of(spec), **origin},
            arrangement=_arrangement(name, origin),
        )
        with Changes(table) as transaction:
            if name == "batch" and spec.layout.sample:  # added, so that all other columns have their ids in both views
                with transaction.update_schema() as schema:
                    schema.add_column(LAYER.name, BooleanType(), doc=f"true for {spec.layout.sample:g} of the rows")
            with transaction.update_snapshot().fast_append():
                pass
        return table

    def load(self, table: TableRow, metadata: str, *, view: ViewName = "stream") -> Table:
        """A view of *table* as *metadata* fixes it."""
        return self.catalog.at((table.spec.namespace, table.views[view]), metadata)

    def main_snapshot(self, table: TableRow, *, view: ViewName = "stream") -> int:
        """The snapshot that the catalog's main branch names; -1 in a view without any."""
        snapshot = self.current(table, view).metadata.current_snapshot_id
        return -1 if snapshot is None else snapshot

    def current(self, table: TableRow, view: ViewName) -> Table:
        """A view as the catalog's row names it now. Raises: TableUnknown for one that was dropped."""
        return self.load(table, self.pointers.current(table, view), view=view)

    def pointer(self, table: TableRow, view: ViewName) -> str:
        """The metadata file that the catalog names, which can be read. Raises: TableUnknown, MetadataMissing."""
        return self.current(table, view).metadata_location

    def foreign_files(self, table: TableRow, *, pointer: str, published: str) -> foreign.ForeignChangeFound | None:
        """What other writers changed in the stream view between two metadata files; None: main is the same."""
        return foreign.foreign_files(self.load(table, pointer), self.load(table, published))

    def make_branch(self, table: TableRow, move: Move, base: View) -> str:
        """Create the branch of an attempt from the move's base; the catalog pointer moves, nothing is visible.

        Raises: BaseGone when the base's snapshot was expired from the current metadata; MoveClosed.
        """
        view = table.effects[move.stage].view
        for _ in range(attempt_files.BRANCH_TRIES):
            current = self.current(table, view)
            if move.branch in current.metadata.refs:
                return move.branch
            if current.metadata.snapshot_by_id(base.snapshot) is None:
                raise BaseGone(
                    f"{table.name}: move {move.move_id} was planned on snapshot {base.snapshot}, which is expired"
                )
            old = current.metadata_location
            with reachable(table.name, f"making branch {move.branch}"):
                current.manage_snapshots().create_branch(base.snapshot, move.branch).commit()
            if self.pointers.move(table, view, old=old, new=current.metadata_location, attempt=move):
                return move.branch
        raise LakeAway(f"{table.name}: the {view} view's pointer moved {attempt_files.BRANCH_TRIES} times in a row")

    def staged(self, table: TableRow, move: Move, *, rows: int) -> Staged:
        """Read what the attempt staged and check it from metadata against its move.

        Raises: StagedWrong.
        """
        current = self.current(table, table.effects[move.stage].view)
        snapshot = current.metadata.snapshot_by_name(move.branch)
        if snapshot is None:
            raise StagedWrong(f"{table.name}: branch {move.branch} is gone; the attempt is repeated")
        if not _is_of(snapshot, move):
            if rows == 0:
                return NOTHING_STAGED
            raise StagedWrong(f"{table.name}: branch {move.branch} holds no snapshot of attempt {move.attempt}")
        with reachable(table.name, f"reading what attempt {move.attempt} of move {move.move_id} staged"):
            files = _added_files(current.io, snapshot)
        if strange := next((f for f in files if f.content is not DataFileContent.DATA), None):
            raise StagedWrong(f"{table.name}: move {move.move_id}: {strange.file_path} holds deletes, not rows")
        check = check_inside if table.effects[move.stage].bounds == ("stream_hi",) else check_hull
        with reachable(table.name, f"reading the coordinates of what move {move.move_id} staged"):
            extents.add_to(current, files)
        bounds = [offset_bounds(f, current) for f in files]
        check(table, move, list(zip(files, bounds, strict=True)), rows=rows)
        with reachable(table.name, f"noting what attempt {move.attempt} of move {move.move_id} staged"):
            note_data_files(current.io, files)
        found = tuple(staged_file(f, low=low, high=high + 1) for f, (low, high) in zip(files, bounds, strict=True))
        return Staged(files=found, rows=rows, bytes=sum(f.bytes for f in found), written=tuple(files))

    def is_staged(self, table: TableRow, move: Move) -> bool:
        """Return whether the branch holds what the attempt wrote. Raises: TableUnknown, MetadataMissing."""
        view = self.current(table, table.effects[move.stage].view)
        snapshot = view.metadata.snapshot_by_name(move.branch)
        return snapshot is not None and _is_of(snapshot, move)

    def writing(self, table: TableRow, move: Move) -> AbstractContextManager[attempt_files.IcebergAttemptFiles]:
        """As `attempt_files.writing`."""
        return attempt_files.writing(self, table, move)

    def append_to_branch(self, table: TableRow, move: Move, rows: pa.Table) -> None:
        """As `attempt_files.append`."""
        attempt_files.append(self, table, move, rows)

    def build_append(
        self,
        table: TableRow,
        move: Move,
        staged: Staged,
        *,
        base: str,
        keep: int,
        overlays: Sequence[Overlay] | None = None,
    ) -> Swap:
        """Write the metadata that references *staged* on top of the metadata file *base*.

        In the same change the branch goes, and of the snapshots only the newest *keep* stay. *overlays* hold from then
        on the rows that the view lacks; None: those that did. Where nothing was published since the attempt's branch
        was made, main names the attempt's own snapshot, and no other one is written.
        Raises: ForeignFiles when a live file reaches into the move's ranges.
        """
        name = table.effects[move.stage].view
        view = self.load(table, base, view=name)
        base_snapshot = _head(view).snapshot
        doing = f"publishing move {move.move_id}"
        if name == "stream":
            with reachable(table.name, doing):
                check_no_overlap(table, view, move)
        with reachable(table.name, doing), Changes(view) as transaction:
            properties = _published(move, view=None if name == "stream" else view, overlays=overlays)
            if (own := view.metadata.snapshot_by_name(move.branch)) and _is_next(view, own, staged, properties):
                note_files(view.io, [own.manifest_list, *(m.manifest_path for m in _added(view.io, own))])
                apply(transaction, (main_at(own.snapshot_id),))
            else:
                with transaction.update_snapshot(snapshot_properties=properties).merge_append() as append:
                    for file in staged.written:
                        append.append_data_file(file)
            tidy(transaction, keep=keep, drop=(move.branch,))
        return Swap(view=name, old=base, base_snapshot=base_snapshot, new=_head(view))

    def build_replace(
        self, table: TableRow, move: Move, staged: Staged, *, removed: Mapping[str, str | None], base: str, keep: int
    ) -> Swap:
        """Write the metadata in which *staged* stands for the files of *removed*, with the same rows.

        *removed* names the delete file of each, which goes along; as `build_change`. Raises: FilesGone.
        """
        change = Replacement(removed=removed, added=staged.written, same_rows=True)
        return self.build_change(table, move, change, base=base, keep=keep)

    def build_change(
        self,
        table: TableRow,
        move: Move,
        change: Replacement,
        *,
        base: str,
        keep: int,
        overlays: Sequence[Overlay] | None = None,
    ) -> Swap:
        """Write the metadata with *change* on top of the metadata file *base*, without the branch of *move*.

        *overlays* as in `build_append`.
        Raises: FilesGone if a file that it touches is no longer live there, or has new deletes.
        """
        name = table.effects[move.stage].view
        view = self.load(table, base, view=name)
        base_snapshot = _head(view).snapshot
        with reachable(table.name, f"publishing move {move.move_id}"), Changes(view) as transaction:
            properties = _published(move, view=None if name == "stream" else view, overlays=overlays)
            replace_files(transaction, change, properties=properties)
            tidy(transaction, keep=keep, drop=(move.branch,))
        return Swap(view=name, old=base, base_snapshot=base_snapshot, new=_head(view))

    def build_correction(
        self,
        table: TableRow,
        move_id: int,
        rows: pa.Table,
        *,
        view: ViewName,
        base: str,
        hidden: Mapping[str, Positions],
    ) -> Swap:
        """Write the metadata in which *view* has *rows* too, at coordinates below its bounds, on top of *base*.

        Rows of data files that are *hidden* are so from then on.
        Raises: AlreadyThere; FilesGone; LakeAway, LakeFileMissing, LakeUnreadable.
        """
        corrections.check_free(table, base, rows, hidden=hidden)
        current = self.load(table, base, view=view)
        base_snapshot = _head(current).snapshot
        properties = {
            MOVE: str(move_id),
            NONCE: self.pointers.nonce_of(move_id),
            ATTEMPT: "1",
            SCHEMA_VERSION: str(table.schema_version),
            RANGES: "",
            CORRECTIONS: str(rows.num_rows),
        }
        if view == "batch":
            properties |= {BATCH_HI: vector_text(reached_by(current))}
        with reachable(table.name, f"putting back {rows.num_rows:,} records"), Changes(current) as transaction:
            fitting = corrections.appendable(table, current, rows)
            files = corrections.written(current, fitting)
            if hidden:
                change = Replacement(
                    removed={}, added=files, hidden=self.hide(table, base, hidden, view=view), same_rows=False
                )
                replace_files(transaction, change, properties=properties)
            else:
                with transaction.update_snapshot(snapshot_properties=properties).merge_append() as append:
                    for file in files:
                        append.append_data_file(file)
            keep = table.spec.retention.snapshots
            tidy(transaction, keep=keep, drop=())
        return Swap(view=view, old=base, base_snapshot=base_snapshot, new=_head(current), built=brought(current))

    def hide(
        self, table: TableRow, metadata: str, positions: Mapping[str, Positions], *, view: ViewName = "batch"
    ) -> Hidden:
        """Write delete files for rows, by data file, of the view that *metadata* fixes; no reader sees them yet."""
        with reachable(table.name, "writing position deletes"):
            fixed = self.load(table, metadata, view=view)
            offset_id = fixed.schema().find_field(OFFSET).field_id
            live = live_files(fixed.metadata.current_snapshot(), fixed.io, offset_id=offset_id)
            return deletes.hide(fixed, live, positions)

    def build_revert(
        self, table: TableRow, move_id: int, name: ViewName, *, base: str, head: Version, target: Version, keep: int
    ) -> Swap:
        """Write the metadata whose main has the files of *target*, on top of the metadata file *base* of view *name*.

        All moves are closed by a revert, so their branches go in the same change. What *head* pins says how the view
        is set up; where the catalog has another table under its name, it is also what is built on.
        Raises: MetadataMissing, SnapshotMissing.
        """
        published, wanted = head.views[name], target.views[name]
        known = self.load(table, published.metadata, view=name)
        view = revert.built_on(known, lambda: self.load(table, base, view=name))
        properties = {
            MOVE: str(move_id),
            NONCE: self.pointers.nonce_of(move_id),
            ATTEMPT: "1",
            SCHEMA_VERSION: str(target.schema_version),
            revert.REVERT_OF: str(target.version),
            revert.STREAM_HI: ",".join(f"{p}:{o}" for p, o in sorted(target.stream_hi.items())),
        }
        with reachable(table.name, f"reverting to version {target.version}"), Changes(view) as transaction:
            restored = self.load(table, wanted.metadata, view=name)
            if name == "batch":
                properties |= {BATCH_HI: vector_text({p: b.batch_hi for p, b in target.bounds.items()})}
                properties |= {RECALLED: told(target.overlays)} if target.overlays else {}
            snapshot = revert.restoring_snapshot(view, restored, wanted.snapshot, properties=properties)
            updates = revert.restoring_updates(view.metadata, known.metadata, snapshot)
            apply(transaction, updates)
            branches = [name for name in view.metadata.refs if move_of(name) is not None]
            tidy(transaction, keep=keep, drop=branches)
        return Swap(view=name, old=base, base_snapshot=published.snapshot, new=_head(view), built=brought(view))

    def region_files(self, table: TableRow, metadata: str) -> list[FileStats]:
        """The files of the batch view that *metadata* fixes, as the region tree sees them."""
        with reachable(table.name, "reading the batch view's manifests"):
            view = self.load(table, metadata, view="batch")
            return regions.region_files(view, indexed_columns(table.spec))

    def region_lists(self, table: TableRow, metadata: str, *, known: FileLists | None = None) -> FileLists:
        """The same files by the manifests that name them; those of *known* are not read again."""
        with reachable(table.name, "reading the batch view's manifests"):
            view = self.load(table, metadata, view="batch")
            return regions.region_lists(view, indexed_columns(table.spec), known=known)

    def key_files(self, table: TableRow, metadata: str) -> list[FileStats]:
        """The same files as `region_files`, with the bounds of the key's columns instead."""
        with reachable(table.name, "reading the batch view's manifests"):
            view = self.load(table, metadata, view="batch")
            return regions.region_files(view, key_columns(table.spec))

    def staged_regions(self, table: TableRow, staged: Staged) -> list[FileStats]:
        """What an attempt staged for the batch view, as the region tree sees it."""
        columns = indexed_columns(table.spec)
        return regions.staged_files(self.current(table, "batch"), columns, staged.written)

    def sequence_of(self, table: TableRow, metadata: str) -> int:
        """The data sequence number of the batch view's newest snapshot in *metadata*."""
        snapshot = self.load(table, metadata, view="batch").metadata.current_snapshot()
        return (snapshot.sequence_number or 0) if snapshot else 0

    def drop_branches(
        self, table: TableRow, dead: Sequence[str], *, view: ViewName = "stream", claim: Claim | None = None
    ) -> bool:
        """Remove the branches of dead attempts. False if the pointer moved meanwhile.

        The last check is whether *claim* is held. Raises: FencedOut, BuiltGone.
        """
        current = self.current(table, view)
        old = current.metadata_location
        with Changes(current) as transaction:
            tidy(transaction, keep=2**31, drop=dead)
        return self.pointers.move(table, view, old=old, new=current.metadata_location, claim=claim)


def _arrangement(view: ViewName, origin: Mapping[str, str]) -> Arrangement:
    """Of a new view; *origin* says where each partition of its topic starts."""
    if view == "batch":
        return Arrangement.NONE
    return Arrangement.WIDE if is_wide(len(vector_of(origin.get(STARTS)))) else Arrangement.NARROW


def _properties(spec: TableSpec, view: ViewName) -> dict[str, str]:
    """Properties of a new view. A region of the batch view is one file, with exact bounds of what it is found by."""
    if view == "stream":
        return dict(VIEW_PROPERTIES)
    target = spec.layout.target_file_mb * 2**20
    exact = {c.name for c in (*indexed_columns(spec), *key_columns(spec))}
    return {
        **VIEW_PROPERTIES,
        "write.target-file-size-bytes": str(4 * target),
        "write.parquet.row-group-size-bytes": str(max(target // 16, 2**20)),
        **{f"write.metadata.metrics.column.{name}": "full" for name in sorted(exact)},
    }


def _published(move: Move, *, view: Table | None, overlays: Sequence[Overlay] | None = None) -> dict[str, str]:
    """What a published snapshot tells of its move; *view* is the batch view that it goes into, None: a stream view."""
    found = summary_of(move)
    if view is None:
        return found
    lacks = recalled_from(view) if overlays is None else told(overlays)
    found |= {BATCH_HI: vector_text({**reached_by(view), **move.hi})}
    return {**found, RECALLED: lacks} if lacks else found


def reached_by(view: Table) -> dict[int, int]:
    """The bound of a batch view as its current snapshot tells it: no row of it is at or above."""
    return vector_of(_of_batch(view, BATCH_HI))


def recalled_from(view: Table) -> str:
    """The tables in Postgres that have rows of a batch view, as its current snapshot tells: empty if it is whole."""
    return _of_batch(view, RECALLED) or ""


def _of_batch(view: Table, word: str) -> str | None:
    snapshot = view.metadata.current_snapshot()
    return snapshot.summary[word] if snapshot and snapshot.summary else None


def _is_of(snapshot: Snapshot, move: Move) -> bool:
    summary = snapshot.summary
    return summary is not None and summary[MOVE] == str(move.move_id) and summary[ATTEMPT] == str(move.attempt)


def _is_next(view: Table, own: Snapshot, staged: Staged, properties: Mapping[str, str]) -> bool:
    """Return whether *own*, of an attempt, is what main would be with *staged* appended: these files and no others.

    Another publish, a change of columns or a merge of manifests since then makes it another one.
    """
    main, told = view.metadata.current_snapshot(), own.summary
    if is_wide_view(view.metadata):  # the manifests of the attempt lack the extents of its files
        return False
    if main is None or (own.parent_snapshot_id, own.schema_id) != (main.snapshot_id, view.metadata.current_schema_id):
        return False
    if told is None or told.operation is not Operation.APPEND or any(told[k] != v for k, v in properties.items()):
        return False
    before, added = manifests_of(main, view.io), _added(view.io, own)
    after = {manifest.manifest_path for manifest in manifests_of(own, view.io)}
    wanted = {file.file_path for file in staged.written}
    return (
        after == {manifest.manifest_path for manifest in (*before, *added)}
        and {file.file_path for file in _added_files(view.io, own)} == wanted
        and sum(manifest.existing_files_count or 0 for manifest in added) == 0
    )


def _added(io: FileIO, snapshot: Snapshot) -> list[ManifestFile]:
    """The manifests that exactly this snapshot wrote."""
    return [one for one in manifests_of(snapshot, io) if one.added_snapshot_id == snapshot.snapshot_id]


def _added_files(io: FileIO, snapshot: Snapshot) -> list[DataFile]:
    """The files that exactly this snapshot added."""
    return [
        entry.data_file
        for manifest in _added(io, snapshot)
        for entry in entries_of(manifest, io)
        if entry.status is ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
    ]


def _head(table: Table) -> View:
    snapshot = table.metadata.current_snapshot()
    assert snapshot is not None
    return View(metadata=table.metadata_location, snapshot=snapshot.snapshot_id)
