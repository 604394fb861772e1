"""A damaged data file is replaced by one with the same rows, in one snapshot that changes nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness_pipelines.protocol.versions import View, ViewName
from harness_pipelines.stores import lake_corrections
from harness_pipelines.stores.catalog import BATCH_HI, vector_text
from harness_pipelines.stores.lake import ATTEMPT, MOVE, RANGES, SCHEMA_VERSION, Lake, reachable, reached_by, tidying
from harness_pipelines.stores.lake_replace import Replacement, replace_files
from harness_pipelines.stores.ports import Swap, TableRow

if TYPE_CHECKING:
    import pyarrow as pa

    from harness_pipelines.stores.lake_scan import LakeFile

REPAIRED = "harness.repaired"  #: of a repair: the file that was replaced


def build_repair(
    lake: Lake, table: TableRow, move_id: int, rows: pa.Table, file: LakeFile, *, view: ViewName, base: str
) -> Swap:
    """Write the metadata in which *rows* stand for *file* and its delete file, on top of the metadata file *base*.

    Raises: FilesGone where the file is not live there any more, or has other deletes; LakeAway.
    """
    current = lake.load(table, base, view=view)
    head = current.metadata.current_snapshot()
    assert head is not None
    path = file.data.file_path
    properties = {
        MOVE: str(move_id),
        ATTEMPT: "1",
        SCHEMA_VERSION: str(table.schema_version),
        RANGES: "",
        REPAIRED: path,
    }
    if view == "batch":
        properties |= {BATCH_HI: vector_text(reached_by(current))}
    with reachable(table.name, f"repairing {path}"), current.transaction() as transaction:
        files = lake_corrections.written(current, lake_corrections.appendable(table, current, rows))
        gone = {path: file.deletes.file_path if file.deletes is not None else None}
        replace_files(transaction, Replacement(removed=gone, added=files, same_rows=True), properties=properties)
        keep = table.spec.retention.snapshots
        transaction._apply(tidying(transaction.table_metadata, keep=keep, drop=()), ())
    made = current.metadata.current_snapshot()
    assert made is not None
    new = View(metadata=current.metadata_location, snapshot=made.snapshot_id)
    return Swap(view=view, old=base, base_snapshot=head.snapshot_id, new=new)
