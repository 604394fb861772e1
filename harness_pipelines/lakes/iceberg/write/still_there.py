"""Check before a commit that all staged files still exist and will not be removed.

Expire removes what nothing reaches. An act that writes files and then stands still for long publishes files that were
removed meanwhile, unless a commit asks. No clock is compared: a file that expire is about to remove stays among the
condemned until it is gone, expire chooses what to remove under the trim lock, and looks what is reached after that.
So what is there and not condemned while a commit holds the trim lock is reached when expire looks next.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.table import Table

from harness_pipelines.drivers.files import listed, size_of
from harness_pipelines.drivers.postgres import Connection, sql
from harness_pipelines.errors import TryAgain
from harness_pipelines.lakes.iceberg.catalog import read_metadata
from harness_pipelines.lakes.iceberg.checked_io import opened_io
from harness_pipelines.lakes.iceberg.read.manifests import entries_of, manifests_of
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.spec.locations import normal


class BuiltGone(TryAgain):
    """Files that were written for a commit were removed, or are about to be; nothing was written."""

    way_on = "run it again; nothing was changed"


def brought(view: Table) -> tuple[str, ...]:
    """The metadata file of *view*, and the files that its newest snapshot brought along."""
    files = [view.metadata_location]
    if (head := view.metadata.current_snapshot()) is not None:
        files.append(head.manifest_list)
        for manifest in manifests_of(head, view.io):
            if manifest.added_snapshot_id == head.snapshot_id:
                files += [manifest.manifest_path, *(e.data_file.file_path for e in entries_of(manifest, view.io))]
    return tuple(files)


def check_kept(connection: Connection, table: TableRow, built: Iterable[str]) -> None:
    """All the files *built* may be published now.

    The caller holds the trim lock, shared at least, until its commit. Raises: BuiltGone.
    """
    files = list(built)
    key = {"table_id": table.table_id, "paths": [normal(file) for file in files]}
    if (found := connection.execute(sql("upkeep/condemned_of"), key).fetchone()) is not None:
        raise _gone(table, found["path"])
    for file in files:  # asked after that: a file is among the condemned until it is gone
        if size_of(file) is None:
            raise _gone(table, file)


def check_whole(connection: Connection, table: TableRow, location: str) -> None:
    """Every file that main of a metadata file has is there; what was condemned of the table is so no more.

    For a metadata file that was found, not made. The caller holds the trim lock and has fenced all who remove files.
    Raises: BuiltGone.
    """
    connection.execute(sql("upkeep/pardon"), {"table_id": table.table_id, "paths": []})
    if size_of(location) is None:
        raise _gone(table, location)
    io = opened_io(location)
    view = read_metadata(io, location)
    stored = {file.path for file in listed(view.location)}
    if (head := view.current_snapshot()) is None:
        return
    named = [head.manifest_list]
    if size_of(head.manifest_list) is None:
        raise _gone(table, head.manifest_list)
    for manifest in manifests_of(head, io):
        if size_of(manifest.manifest_path) is None:
            raise _gone(table, manifest.manifest_path)
        named += [manifest.manifest_path, *(entry.data_file.file_path for entry in entries_of(manifest, io))]
    for path in named:
        if normal(path) not in stored and size_of(path) is None:
            raise _gone(table, path)


def _gone(table: TableRow, path: str) -> BuiltGone:
    return BuiltGone(
        f"{table.name}: {path} was written for this commit, or found for it, and expire has removed it meanwhile or is "
        "about to: too long ago for a commit. Nothing was changed; run the same command again"
    )
