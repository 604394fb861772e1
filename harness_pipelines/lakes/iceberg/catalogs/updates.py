"""What a commit to a foreign catalog says, so that its table shows what a metadata file of ours fixes.

The server writes the new metadata itself. Manifest lists, manifests and data files are ours as they are, so the
snapshot that it shows afterwards is the very snapshot of the version, whatever else the server thinks of the table.
"""

from __future__ import annotations

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from harness_pipelines.protocol.lake.mirrors import METADATA_PATH, VERSION
from harness_pipelines.protocol.moves import move_of

REMOVALS = (RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate)


def requirements(there: TableMetadata) -> tuple[TableRequirement, ...]:
    """The commit holds only on the table and the snapshot that were seen."""
    return (
        AssertTableUUID(uuid=there.table_uuid),
        AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=there.current_snapshot_id),
    )


def updates(there: TableMetadata, ours: TableMetadata, *, version: int, elsewhere: str) -> tuple[TableUpdate, ...]:
    """From what the server has *there* to *ours*, marked as *version*; its metadata files go to *elsewhere*."""
    snapshot = ours.current_snapshot()
    found: list[TableUpdate] = [*_schemas(there, ours)]
    if snapshot is not None and snapshot.snapshot_id != there.current_snapshot_id:
        found += _main(there, snapshot)
    wanted = {**ours.properties, VERSION: str(version), METADATA_PATH: elsewhere}
    changed = {name: value for name, value in wanted.items() if there.properties.get(name) != value}
    if changed:
        found.append(SetPropertiesUpdate(updates=changed))
    return tuple(found)


def removals_of(there: TableMetadata, ours: TableMetadata) -> tuple[TableUpdate, ...]:
    """What may go as well: snapshots that our own metadata has forgotten, and branches that came at the registration.

    Expire removes their files. A reader of main misses nothing while they stay, so a server that refuses them is
    followed without.
    """
    branches = [name for name in there.refs if move_of(name) is not None]
    found: list[TableUpdate] = [RemoveSnapshotRefUpdate(ref_name=name) for name in sorted(branches)]
    kept = {ref.snapshot_id for name, ref in there.refs.items() if name not in {MAIN_BRANCH, *branches}}
    kept |= {one.snapshot_id for one in ours.snapshots}
    if gone := sorted({one.snapshot_id for one in there.snapshots} - kept):
        found.append(RemoveSnapshotsUpdate(snapshot_ids=gone))
    return tuple(found)


def _main(there: TableMetadata, snapshot: Snapshot) -> list[TableUpdate]:
    known = any(one.snapshot_id == snapshot.snapshot_id for one in there.snapshots)
    added: list[TableUpdate] = [] if known else [AddSnapshotUpdate(snapshot=snapshot)]
    to = SetSnapshotRefUpdate(
        ref_name=MAIN_BRANCH,
        type=SnapshotRefType.BRANCH,
        snapshot_id=snapshot.snapshot_id,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )
    return [*added, to]


def _schemas(there: TableMetadata, ours: TableMetadata) -> list[TableUpdate]:
    """All that the server lacks, in order, so that both count them alike: a snapshot names its schema by number."""
    missing = [one for one in ours.schemas if not any(_same(one, other) for other in there.schemas)]
    added: list[TableUpdate] = [AddSchemaUpdate(schema_=one) for one in sorted(missing, key=lambda s: s.schema_id)]
    current = ours.schema()
    found = next((one.schema_id for one in there.schemas if _same(one, current)), None)
    if found is None:
        return [*added, SetCurrentSchemaUpdate(schema_id=current.schema_id)]
    return added if found == there.current_schema_id else [*added, SetCurrentSchemaUpdate(schema_id=found)]


def _same(one: Schema, other: Schema) -> bool:
    return (one.fields, sorted(one.identifier_field_ids)) == (other.fields, sorted(other.identifier_field_ids))
