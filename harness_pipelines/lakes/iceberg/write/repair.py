"""Replace a damaged data file with one of the same rows, in one snapshot.

A damaged metadata file is replaced by one that names the same manifests.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from harness_pipelines.lakes.iceberg.private.tables import Changes, apply
from harness_pipelines.lakes.iceberg.read.manifests import listed_in, manifests_of
from harness_pipelines.lakes.iceberg.write import corrections
from harness_pipelines.lakes.iceberg.write.commits import brought, tidy
from harness_pipelines.lakes.iceberg.write.publish import Lake, reached_by
from harness_pipelines.lakes.iceberg.write.replace import replace_files
from harness_pipelines.lakes.iceberg.write.revert import restoring_snapshot, restoring_updates
from harness_pipelines.ports.errors import MetadataMissing
from harness_pipelines.ports.lake import reachable
from harness_pipelines.ports.lake_writes import Replacement
from harness_pipelines.ports.ledger import Swap, TableRow
from harness_pipelines.protocol.lake.overlays import told
from harness_pipelines.protocol.lake.properties import (
    ATTEMPT,
    BATCH_HI,
    MOVE,
    NONCE,
    RANGES,
    RECALLED,
    SCHEMA_VERSION,
    vector_text,
)
from harness_pipelines.protocol.moves import move_of
from harness_pipelines.protocol.versions import Version, View, ViewName
from harness_pipelines.spec.locations import normal

if TYPE_CHECKING:
    import pyarrow as pa

    from harness_pipelines.ports.lake import LakeFile

REPAIRED = "harness.repaired"  #: of a repair: the file that was replaced


class Repairs:
    """`RepairBuilds` over PyIceberg."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def build_file(
        self, table: TableRow, move_id: int, rows: pa.Table, file: LakeFile, *, view: ViewName, base: str
    ) -> Swap:
        """Write the metadata in which *rows* stand for *file* and its delete file, on top of the metadata file *base*.

        Raises: FilesGone if the file is no longer live there, or has other deletes; LakeAway.
        """
        current = self._lake.load(table, base, view=view)
        head = current.metadata.current_snapshot()
        assert head is not None
        path = file.path
        properties = {
            MOVE: str(move_id),
            NONCE: self._lake.pointers.nonce_of(move_id),
            ATTEMPT: "1",
            SCHEMA_VERSION: str(table.schema_version),
            RANGES: "",
            REPAIRED: path,
        }
        if view == "batch":
            properties |= {BATCH_HI: vector_text(reached_by(current))}
        with reachable(table.name, f"repairing {path}"), Changes(current) as transaction:
            files = corrections.written(current, corrections.appendable(table, current, rows))
            gone = {path: file.deletes.path if file.deletes is not None else None}
            replace_files(transaction, Replacement(removed=gone, added=files, same_rows=True), properties=properties)
            keep = table.spec.retention.snapshots
            tidy(transaction, keep=keep, drop=())
        made = current.metadata.current_snapshot()
        assert made is not None
        new = View(metadata=current.metadata_location, snapshot=made.snapshot_id)
        return Swap(view=view, old=base, base_snapshot=head.snapshot_id, new=new, built=brought(current))

    def build_metadata(
        self, table: TableRow, move_id: int, *, view: ViewName, head: Version, known: Sequence[str], pointer: str
    ) -> Swap:
        """Write a metadata file for what *head* pins of *view*, whose own is damaged, on top of another one.

        *known* are metadata files of the view with the schema of *head*, the newest first. The first that can be read
        is built on. The snapshot is in it, or its manifest list is found by the snapshot's number.
        Raises: MetadataMissing where none can be read; ManifestDamaged where the list is damaged too; LakeAway.
        """
        pinned = head.views[view].snapshot
        with reachable(table.name, "making a metadata file again"):
            base = _first_readable(self._lake, table, view, known)
            source = base.metadata.snapshot_by_id(pinned) or _found_again(self._lake, base, pinned)
            manifests = manifests_of(source, base.io)
            # What the lost file counted further than this one did may not be counted again.
            last = max([base.metadata.next_sequence_number() - 1, *(m.sequence_number or 0 for m in manifests)])
            others = [s for s in base.metadata.snapshots if s.snapshot_id != pinned]
            base.metadata = base.metadata.model_copy(
                update={"snapshots": [*others, source], "last_sequence_number": last}
            )
            properties = {
                MOVE: str(move_id),
                NONCE: self._lake.pointers.nonce_of(move_id),
                ATTEMPT: "1",
                SCHEMA_VERSION: str(head.schema_version),
                RANGES: "",
            }
            if view == "batch":
                properties |= {BATCH_HI: vector_text({p: b.batch_hi for p, b in head.bounds.items()})}
                properties |= {RECALLED: told(head.overlays)} if head.overlays else {}
            with Changes(base) as transaction:
                snapshot = restoring_snapshot(base, base, pinned, properties=properties)
                apply(transaction, restoring_updates(base.metadata, base.metadata, snapshot))
                branches = [name for name in base.metadata.refs if move_of(name) is not None]
                keep = table.spec.retention.snapshots
                tidy(transaction, keep=keep, drop=branches)
        new = View(metadata=base.metadata_location, snapshot=snapshot.snapshot_id)
        return Swap(view=view, old=pointer, base_snapshot=pinned, new=new, built=brought(base))


def _first_readable(lake: Lake, table: TableRow, view: ViewName, known: Sequence[str]) -> Table:
    for location in known:
        with suppress(MetadataMissing):
            return lake.load(table, location, view=view)
    raise MetadataMissing(f"{table.name}: no metadata file of its {view} view can be read; copy one back")


def _found_again(lake: Lake, view: Table, snapshot: int) -> Snapshot:
    """A snapshot that no metadata file names, by its manifest list. Raises: MetadataMissing, ManifestDamaged."""
    folder = f"{normal(view.location())}/metadata/snap-{snapshot}-"
    [path, *more] = [row["path"] for row in lake.database.rows("digests/below", {"start": folder})] or [""]
    if not path or more:
        raise MetadataMissing(f"the manifest list of snapshot {snapshot} is not known; copy the metadata file back")
    totals = _totals(view, path)
    return Snapshot(
        snapshot_id=snapshot,
        parent_snapshot_id=view.metadata.current_snapshot_id,
        sequence_number=view.metadata.next_sequence_number(),
        manifest_list=path,
        summary=Summary(Operation.OVERWRITE, **totals),
        schema_id=view.metadata.current_schema_id,
    )


def _totals(view: Table, manifest_list: str) -> dict[str, str]:
    """What a snapshot's summary says of all its files."""
    files, rows = (dict.fromkeys(ManifestContent, 0) for _ in range(2))
    for one in listed_in(manifest_list, view.io):
        files[one.content] += (one.added_files_count or 0) + (one.existing_files_count or 0)
        rows[one.content] += (one.added_rows_count or 0) + (one.existing_rows_count or 0)
    return {
        "total-data-files": str(files[ManifestContent.DATA]),
        "total-delete-files": str(files[ManifestContent.DELETES]),
        "total-records": str(rows[ManifestContent.DATA]),
        "total-position-deletes": str(rows[ManifestContent.DELETES]),
        "total-equality-deletes": "0",
    }
