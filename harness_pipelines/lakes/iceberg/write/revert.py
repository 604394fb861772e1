"""The metadata of a revert: the files of an old version as a new snapshot on the current metadata.

An old metadata file never becomes the current one again: the snapshots and refs made since stay named. The new snapshot
lists the manifests of the restored one, so it works after that snapshot was expired from the current metadata too. Its
parent is the restored snapshot: the ancestors of main are the moves that are in effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import uuid4

from pyiceberg.manifest import write_manifest_list
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemovePropertiesUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)

from harness_pipelines.errors import HarnessError
from harness_pipelines.lakes.iceberg.read.manifests import manifests_of
from harness_pipelines.lakes.iceberg.write.commits import main_at
from harness_pipelines.ports.errors import MetadataMissing

REVERT_OF, STREAM_HI = "harness.revert-of", "harness.stream-hi"


class SnapshotMissing(HarnessError):
    """A metadata file does not hold the snapshot that the ledger says it pins."""

    way_on = "`harness fsck TABLE`; `harness revert` to another version"


def same_table(current: TableMetadata, known: TableMetadata) -> bool:
    """False if another engine re-created the view, or raised its format."""
    return (current.table_uuid, current.format_version) == (known.table_uuid, known.format_version)


def built_on(known: Table, load: Callable[[], Table]) -> Table:
    """What the catalog names, by *load*; *known*, what the ledger published, if that is another table or is gone."""
    try:
        current = load()
    except MetadataMissing:
        return known
    return current if same_table(current.metadata, known.metadata) else known


def restoring_snapshot(view: Table, restored: Table, snapshot: int, *, properties: Mapping[str, str]) -> Snapshot:
    """Write the manifest list of a snapshot on *view* with the content of *snapshot* in *restored*.

    Raises: SnapshotMissing; OSError when the warehouse is away.
    """
    source = restored.metadata.snapshot_by_id(snapshot)
    if source is None:
        raise SnapshotMissing(f"{restored.metadata_location} has no snapshot {snapshot}; nothing was changed")
    number, sequence = view.metadata.new_snapshot_id(), view.metadata.next_sequence_number()
    path = view.location_provider().new_metadata_location(f"snap-{number}-0-{uuid4()}.avro")
    with write_manifest_list(
        format_version=view.metadata.format_version,
        output_file=view.io.new_output(path),
        snapshot_id=number,
        parent_snapshot_id=source.snapshot_id,
        sequence_number=sequence,
        avro_compression="deflate",
    ) as writer:
        writer.add_manifests(manifests_of(source, restored.io))
    told = source.summary.additional_properties if source.summary else {}
    totals = {name: value for name, value in told.items() if name.startswith("total-")}
    return Snapshot(
        snapshot_id=number,
        parent_snapshot_id=source.snapshot_id,
        sequence_number=sequence,
        manifest_list=path,
        summary=Summary(Operation.OVERWRITE, **totals, **properties),
        schema_id=source.schema_id,
    )


def restoring_updates(current: TableMetadata, known: TableMetadata, snapshot: Snapshot) -> tuple[TableUpdate, ...]:
    """Point main to *snapshot*, and set back what a foreign writer changed beside the rows: *known* is the ledger's."""
    updates: list[TableUpdate] = [
        AddSnapshotUpdate(snapshot=snapshot),
        main_at(snapshot.snapshot_id),
    ]
    if current.current_schema_id != known.current_schema_id:
        updates.append(SetCurrentSchemaUpdate(schema_id=known.current_schema_id))
    if current.default_spec_id != known.default_spec_id:
        updates.append(SetDefaultSpecUpdate(spec_id=known.default_spec_id))
    if current.default_sort_order_id != known.default_sort_order_id:
        updates.append(SetDefaultSortOrderUpdate(sort_order_id=known.default_sort_order_id))
    if strange := sorted(set(current.properties) - set(known.properties)):
        updates.append(RemovePropertiesUpdate(removals=strange))
    if changed := {k: v for k, v in known.properties.items() if current.properties.get(k) != v}:
        updates.append(SetPropertiesUpdate(updates=changed))
    return tuple(updates)
