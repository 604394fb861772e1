"""What every commit to a view does besides: it moves main, removes old branches and snapshots, and names what it needs.

Expire removes what nothing reaches, so the files that a commit needs are looked for when it is published.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.table import Table, Transaction
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate, SetSnapshotRefUpdate, TableUpdate

from harness_pipelines.drivers.files import listed, size_of
from harness_pipelines.lakes.iceberg.catalog import read_metadata
from harness_pipelines.lakes.iceberg.checked_io import opened_io
from harness_pipelines.lakes.iceberg.private.tables import apply
from harness_pipelines.lakes.iceberg.read.manifests import columns_of, fresh_columns, manifests_of
from harness_pipelines.ports.errors import BuiltGone
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.spec.locations import normal


def main_at(snapshot: int) -> SetSnapshotRefUpdate:
    """Let main name a snapshot."""
    return SetSnapshotRefUpdate(
        ref_name=MAIN_BRANCH,
        type=SnapshotRefType.BRANCH,
        snapshot_id=snapshot,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )


def tidy(transaction: Transaction, *, keep: int, drop: Sequence[str]) -> None:
    """Remove the branches of *drop*, and all but the newest *keep* snapshots that no ref names."""
    metadata = transaction.table_metadata
    gone = [name for name in drop if name in metadata.refs]
    named = {ref.snapshot_id for name, ref in metadata.refs.items() if name not in gone}
    staged = {metadata.refs[name].snapshot_id for name in gone} - named
    newest = sorted(metadata.snapshots, key=lambda s: s.sequence_number or 0, reverse=True)
    kept = {s.snapshot_id for s in [s for s in newest if s.snapshot_id not in staged][:keep]} | named
    old = [s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in kept]
    updates: list[TableUpdate] = [RemoveSnapshotRefUpdate(ref_name=name) for name in gone]
    apply(transaction, (*updates, RemoveSnapshotsUpdate(snapshot_ids=old)) if old else tuple(updates))


def brought(view: Table) -> tuple[str, ...]:
    """The metadata file of *view*, and the files that its newest snapshot brought along."""
    files = [view.metadata_location]
    if (head := view.metadata.current_snapshot()) is not None:
        files.append(head.manifest_list)
        for manifest in manifests_of(head, view.io):
            if manifest.added_snapshot_id == head.snapshot_id:
                files += [manifest.manifest_path, *columns_of(manifest, view.io).paths()]
    return tuple(files)


def check_whole(table: TableRow, location: str) -> Sequence[str]:
    """The metadata file, and every file that main of it has; all are there.

    For a metadata file that was found, not made. The caller holds the trim lock and has fenced file removal.
    Raises: BuiltGone.
    """
    if size_of(location) is None:
        raise BuiltGone.of(table.name, location)
    io = opened_io(fresh=True)
    view = read_metadata(io, location)
    stored = {file.path for file in listed(view.location)}
    if (head := view.current_snapshot()) is None:
        return [location]
    named = [location, head.manifest_list]
    if size_of(head.manifest_list) is None:
        raise BuiltGone.of(table.name, head.manifest_list)
    for manifest in manifests_of(head, io):
        if size_of(manifest.manifest_path) is None:
            raise BuiltGone.of(table.name, manifest.manifest_path)
        named += [manifest.manifest_path, *fresh_columns(manifest, io).paths()]
    for path in named:
        if normal(path) not in stored and size_of(path) is None:
            raise BuiltGone.of(table.name, path)
    return named
