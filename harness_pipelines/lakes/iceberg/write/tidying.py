"""Cleanup in a commit to a view: branches of finished attempts, and old snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate, TableUpdate


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
