"""Replacing data files by others: of the same rows by Iceberg's operation ``replace``, which PyIceberg lacks, of other
rows by ``overwrite``.

The one module that leans on PyIceberg's snapshot producers: ``_OverwriteFiles``, ``Transaction._table``, the manifest
writer that they ask for. Readers that
follow a view by its snapshots (Spark streaming, change readers) pass a ``replace`` over; an ``overwrite`` stops them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pyiceberg.manifest import DataFile, ManifestEntry, ManifestWriter
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles

from harness_pipelines.errors import HarnessError, Recovery


class FilesGone(HarnessError):
    """A file that was to be replaced is not live any more: it was replaced by somebody else, or reverted."""

    recovery = Recovery.REFRESH


class _ReplaceFiles(_OverwriteFiles):
    """An overwrite by name of files, labelled as what it is."""

    sequence: int | None = None  #: data sequence number of what is added; None: that of the snapshot

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        writer = super().new_manifest_writer(spec)
        if self.sequence is not None:
            writer.add = partial(_add_as_of, writer.add, self.sequence)  # type: ignore[method-assign]
        return writer

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        told = super()._summary(snapshot_properties or {})
        return Summary(Operation.REPLACE, **told.additional_properties)


def _add_as_of(add: Callable[[ManifestEntry], ManifestWriter], sequence: int, entry: ManifestEntry) -> ManifestWriter:
    entry.sequence_number = sequence
    return add(entry)


def replace_files(
    transaction: Transaction,
    *,
    removed: Sequence[str],
    added: Sequence[DataFile],
    properties: Mapping[str, str],
    same_rows: bool,
    sequence: int | None = None,
) -> None:
    """One snapshot on main in which *added* stand for the files at the paths *removed*.

    *sequence*: that of the snapshot in which these files were found, so that what others added since is newer than
    what stands for them, as Iceberg's own rewrites do it (``use-starting-sequence-number``).
    Raises: FilesGone.
    """
    live = live_files(transaction, removed)
    if missing := sorted(set(removed) - set(live)):
        raise FilesGone(f"{missing[0]} and {len(missing) - 1} more are not live any more; nothing was replaced")
    view = transaction._table
    kind = _ReplaceFiles if same_rows else _OverwriteFiles
    producer = kind(
        operation=Operation.OVERWRITE, transaction=transaction, io=view.io, snapshot_properties=dict(properties)
    )
    if isinstance(producer, _ReplaceFiles):
        producer.sequence = sequence
    for path in removed:
        producer.delete_data_file(live[path])
    for file in added:
        producer.append_data_file(file)
    producer.commit()


def live_files(transaction: Transaction, wanted: Sequence[str]) -> dict[str, DataFile]:
    """Of the files *wanted* those that main holds, by path."""
    paths, view = set(wanted), transaction._table
    snapshot: Any = transaction.table_metadata.current_snapshot()
    found: dict[str, DataFile] = {}
    for manifest in snapshot.manifests(view.io) if snapshot else ():
        for entry in manifest.fetch_manifest_entry(view.io, discard_deleted=True):
            if entry.data_file.file_path in paths:
                found[entry.data_file.file_path] = entry.data_file
    return found
