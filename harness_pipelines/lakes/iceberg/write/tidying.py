"""What main names, and cleanup in a commit to a view: branches of finished attempts, and old snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate, SetSnapshotRefUpdate, TableUpdate


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


def tidying(metadata: Any, *, keep: int, drop: Sequence[str]) -> tuple[TableUpdate, ...]:
    """Updates that remove the branches of *drop* and all but the newest *keep* snapshots that no ref names."""
    gone = [name for name in drop if name in metadata.refs]
    named = {ref.snapshot_id for name, ref in metadata.refs.items() if name not in gone}
    staged = {metadata.refs[name].snapshot_id for name in gone} - named
    newest = sorted(metadata.snapshots, key=lambda s: s.sequence_number or 0, reverse=True)
    kept = {s.snapshot_id for s in [s for s in newest if s.snapshot_id not in staged][:keep]} | named
    old = [s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in kept]
    updates: list[TableUpdate] = [RemoveSnapshotRefUpdate(ref_name=name) for name in gone]
    return (*updates, RemoveSnapshotsUpdate(snapshot_ids=old)) if old else tuple(updates)
