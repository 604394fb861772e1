"""Replacing data files by others: of the same rows by Iceberg's operation ``replace``, which PyIceberg lacks, of other
rows by ``overwrite``, position deletes of what stays among them.

The one module that leans on PyIceberg's snapshot producers: ``_OverwriteFiles``, ``_ManifestMergeManager``, the
manifest writer that they ask for. Readers that follow a view by its snapshots (Spark streaming, change readers) pass a
``replace`` over; an ``overwrite`` stops them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import TableProperties, Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.utils.properties import property_as_int

from harness_pipelines.lakes.iceberg.private.tables import ManifestMergeManager, OverwriteFiles, table_of
from harness_pipelines.lakes.iceberg.read.deletes import split
from harness_pipelines.lakes.iceberg.read.manifests import entries_of, manifests_of
from harness_pipelines.ports.lake_writes import Replacement
from harness_pipelines.protocol.lake.files import check_untouched


class _SwapFiles(OverwriteFiles):
    """An overwrite by name of files, their delete files among them."""

    sequence: int | None = None
    same_rows = False
    deletes_added: Sequence[DataFile] = ()
    deletes_removed: Sequence[DataFile] = ()

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        writer = super().new_manifest_writer(spec)
        if self.sequence is not None:
            writer.add = partial(_add_as_of, writer.add, self.sequence)  # type: ignore[method-assign]
        return writer

    def _deleted_entries(self) -> list[ManifestEntry]:
        return super()._deleted_entries() if self._deleted_data_files else []

    def _existing_manifests(self) -> list[ManifestFile]:
        """Where no data file goes none is opened: most merges only hide rows."""
        if self._deleted_data_files:
            return super()._existing_manifests()
        head = self._transaction.table_metadata.snapshot_by_name(self._target_branch)
        return manifests_of(head, self._io)

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Few manifests: small ones are put together as in appends, and those of which no file is live are left out."""
        data = [m for m in manifests if m.content is ManifestContent.DATA and self._is_needed(m)]
        deletes = [m for m in manifests if m.content is ManifestContent.DELETES]
        if self.deletes_added or self.deletes_removed:
            deletes = self._delete_manifests(deletes)
            # The data manifests are written; from here on these lists are what the snapshot's summary counts.
            self._added_data_files = [*self._added_data_files, *self.deletes_added]
            self._deleted_data_files = {*self._deleted_data_files, *self.deletes_removed}
        return _merging(self).merge_manifests(data) + deletes

    def _is_needed(self, manifest: ManifestFile) -> bool:
        is_new = manifest.added_snapshot_id == self._snapshot_id
        return is_new or manifest.has_added_files() or manifest.has_existing_files()

    def _delete_manifests(self, known: Iterable[ManifestFile]) -> list[ManifestFile]:
        """All of the snapshot's delete files in one manifest."""
        gone = {file.file_path for file in self.deletes_removed}
        entries = [entry for manifest in known for entry in entries_of(manifest, self._io)]
        if not (entries or self.deletes_added):
            return []
        with self._delete_manifest_writer() as writer:
            for entry in entries:
                (writer.delete if entry.data_file.file_path in gone else writer.existing)(entry)
            for file in self.deletes_added:
                added = ManifestEntryStatus.ADDED
                writer.add(ManifestEntry.from_args(status=added, snapshot_id=self._snapshot_id, data_file=file))
        return [writer.to_manifest_file()]

    def _delete_manifest_writer(self) -> ManifestWriter:
        return _DeleteManifestWriter(
            self._transaction.table_metadata.spec(),
            self._transaction.table_metadata.schema(),
            self.new_manifest_output(),
            self._snapshot_id,
            self._compression,
        )

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        told = super()._summary(snapshot_properties or {})
        return Summary(Operation.REPLACE, **told.additional_properties) if self.same_rows else told


class _DeleteManifestWriter(ManifestWriterV2):
    """PyIceberg writes manifests of data files alone."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def _merging(producer: _SwapFiles) -> ManifestMergeManager[Any]:
    properties = producer._transaction.table_metadata.properties

    def told(name: str, default: int) -> int:
        return property_as_int(properties, name, default) or default

    size, count = TableProperties.MANIFEST_TARGET_SIZE_BYTES, TableProperties.MANIFEST_MIN_MERGE_COUNT
    return ManifestMergeManager(
        target_size_bytes=told(size, TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT),
        min_count_to_merge=told(count, TableProperties.MANIFEST_MIN_MERGE_COUNT_DEFAULT),
        merge_enabled=True,
        snapshot_producer=producer,
    )


def _add_as_of(add: Callable[[ManifestEntry], ManifestWriter], sequence: int, entry: ManifestEntry) -> ManifestWriter:
    entry.sequence_number = sequence
    return add(entry)


def replace_files(transaction: Transaction, change: Replacement, *, properties: Mapping[str, str]) -> None:
    """One snapshot on main in which the files that *change* adds stand for those that it removes.

    Its `sequence` is that of the snapshot in which these files were found, so that what others added since is newer
    than what stands for them, as Iceberg's own rewrites do it (``use-starting-sequence-number``).
    Raises: FilesGone, ForeignDeletes.
    """
    touched = {**change.removed, **change.hidden.of}
    live, deletes = live_files(transaction, touched)
    check_untouched(touched, {path: deletes[path].file_path if path in deletes else None for path in live})
    view = table_of(transaction)
    producer = _SwapFiles(
        operation=Operation.OVERWRITE, transaction=transaction, io=view.io, snapshot_properties=dict(properties)
    )
    producer.sequence, producer.same_rows = change.sequence, change.same_rows
    producer.deletes_added = change.hidden.files
    producer.deletes_removed = [deletes[path] for path in touched if path in deletes]
    for path in change.removed:
        producer.delete_data_file(live[path])
    for file in change.added:
        producer.append_data_file(file)
    producer.commit()


def live_files(transaction: Transaction, wanted: Iterable[str]) -> tuple[dict[str, DataFile], dict[str, DataFile]]:
    """Of the data files *wanted* those that main holds, and their delete files, both by path of the data file.

    Raises: ForeignDeletes.
    """
    paths, view = set(wanted), table_of(transaction)
    snapshot: Any = transaction.table_metadata.current_snapshot()
    manifests = manifests_of(snapshot, view.io)
    data, deletes = split(entry.data_file for manifest in manifests for entry in entries_of(manifest, view.io))
    return {f.file_path: f for f in data if f.file_path in paths}, {p: f for p, f in deletes.items() if p in paths}
