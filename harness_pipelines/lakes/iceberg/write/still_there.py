"""Check that files which a commit publishes still exist: expire removes what nothing reaches."""

from __future__ import annotations

from pyiceberg.table import Table

from harness_pipelines.drivers.files import listed, size_of
from harness_pipelines.lakes.iceberg.catalog import read_metadata
from harness_pipelines.lakes.iceberg.checked_io import opened_io
from harness_pipelines.lakes.iceberg.read.manifests import columns_of, fresh_columns, manifests_of
from harness_pipelines.ports.errors import BuiltGone
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.spec.locations import normal


def brought(view: Table) -> tuple[str, ...]:
    """The metadata file of *view*, and the files that its newest snapshot brought along."""
    files = [view.metadata_location]
    if (head := view.metadata.current_snapshot()) is not None:
        files.append(head.manifest_list)
        for manifest in manifests_of(head, view.io):
            if manifest.added_snapshot_id == head.snapshot_id:
                files += [manifest.manifest_path, *columns_of(manifest, view.io).paths()]
    return tuple(files)


def check_whole(table: TableRow, location: str) -> None:
    """Every file that main of a metadata file has is there.

    For a metadata file that was found, not made. The caller holds the trim lock and has fenced file removal.
    Raises: BuiltGone.
    """
    if size_of(location) is None:
        raise BuiltGone.of(table.name, location)
    io = opened_io(fresh=True)
    view = read_metadata(io, location)
    stored = {file.path for file in listed(view.location)}
    if (head := view.current_snapshot()) is None:
        return
    named = [head.manifest_list]
    if size_of(head.manifest_list) is None:
        raise BuiltGone.of(table.name, head.manifest_list)
    for manifest in manifests_of(head, io):
        if size_of(manifest.manifest_path) is None:
            raise BuiltGone.of(table.name, manifest.manifest_path)
        named += [manifest.manifest_path, *fresh_columns(manifest, io).paths()]
    for path in named:
        if normal(path) not in stored and size_of(path) is None:
            raise BuiltGone.of(table.name, path)
