"""One view snapshot by snapshot: its files, the snapshot that added each, and the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from harness_pipelines.lakes.iceberg.catalog import read_metadata
from harness_pipelines.lakes.iceberg.checked_io import opened_io
from harness_pipelines.lakes.iceberg.read.file_columns import FileColumns
from harness_pipelines.lakes.iceberg.read.manifests import columns_of, manifests_of
from harness_pipelines.ports.lake import FileEntry, SnapshotTold, reachable
from harness_pipelines.protocol.coordinates import OFFSET
from harness_pipelines.protocol.lake.lineage import FileAsked
from harness_pipelines.protocol.lake.properties import MOVE


class IcebergPast:
    """What is kept of one view of *table*. Each metadata file and each manifest is read once.

    *pins* are the snapshots of the versions that are kept and the metadata file of each, newest first. What the newest
    metadata file names beside them is kept too, though no version that can be read has it; what only older ones name
    is not.
    Every method raises: LakeAway, MetadataMissing.
    """

    def __init__(self, table: str, pins: Mapping[int, str]) -> None:
        self._table, self._pins = table, dict(pins)
        newest = next(iter(pins.values()))
        self._io: FileIO = opened_io()
        self._known: dict[int, Snapshot] = {}
        view = self._learn(newest)
        self._offset_id = view.schema().find_field(OFFSET).field_id
        unpinned = [s for s in view.snapshots if s.snapshot_id not in self._pins]
        unpinned.sort(key=lambda s: s.sequence_number or 0, reverse=True)
        #: All that can be looked into, newest first; those that no kept version has come last.
        self.snapshots = (*self._pins, *(s.snapshot_id for s in unpinned))
        self._newest = frozenset(s.snapshot_id for s in view.snapshots)

    def told(self, snapshot: int) -> SnapshotTold | None:
        """What a snapshot tells of itself; None where no metadata file that is kept names it."""
        if (found := self._snapshot(snapshot)) is None:
            return None
        summary = found.summary
        move = summary[MOVE] if summary else None
        return SnapshotTold(
            snapshot=snapshot,
            parent=found.parent_snapshot_id,
            operation=summary.operation.value if summary else None,
            move_id=int(move) if move else None,
        )

    def of_move(self, move_id: int) -> SnapshotTold | None:
        """The snapshot that names a move, if the newest metadata file has it."""
        told = (self.told(snapshot) for snapshot in self.snapshots if snapshot in self._newest)
        return next((one for one in told if one is not None and one.move_id == move_id), None)

    def find(self, asked: FileAsked, *, at: Sequence[int]) -> tuple[int, FileEntry] | None:
        """The file that is meant, and the first of the snapshots *at* that has it."""
        for snapshot in at:
            for files in self._manifests(snapshot) or ():
                for number in files.named(asked.name):
                    if asked.fits(files.path(number)):
                        return snapshot, self._entry(files, number)
        return None

    def has(self, snapshot: int, path: str) -> bool:
        """Return whether a file is live in a snapshot."""
        name = path.rsplit("/", 1)[-1]
        manifests = self._manifests(snapshot) or ()
        return any(files.path(number) == path for files in manifests for number in files.named(name))

    def hiding(self, snapshot: int, path: str) -> FileEntry | None:
        """The file of position deletes that speaks of a data file."""
        for files in self._manifests(snapshot) or ():
            for number in np.flatnonzero(~files.is_data).tolist():
                if files.deletes_of(number) == path:
                    return self._entry(files, number)
        return None

    def files(self, snapshot: int) -> dict[str, FileEntry] | None:
        """The live files of a snapshot by path; None when it is not kept."""
        manifests = self._manifests(snapshot)
        if manifests is None:
            return None
        return {e.path: e for files in manifests for e in map(partial(self._entry, files), range(len(files)))}

    def _snapshot(self, snapshot: int) -> Snapshot | None:
        """One metadata file tells of those before it too, so few of them are read."""
        if snapshot not in self._known and snapshot in self._pins:
            self._learn(self._pins[snapshot])
        return self._known.get(snapshot)

    def _learn(self, metadata: str) -> TableMetadata:
        with self._reachable():
            view = read_metadata(self._io, metadata)
        self._known = {**{s.snapshot_id: s for s in view.snapshots}, **self._known}
        return view

    def _manifests(self, snapshot: int) -> list[FileColumns] | None:
        if snapshot not in self._pins and snapshot not in self._newest:
            return None
        with self._reachable():
            return [columns_of(manifest, self._io) for manifest in manifests_of(self._snapshot(snapshot), self._io)]

    def _entry(self, files: FileColumns, number: int) -> FileEntry:
        low, high = files.ends(self._offset_id, number)
        return FileEntry(
            path=files.path(number),
            rows=int(files.rows[number]),
            bytes=int(files.bytes[number]),
            partition=files.partition(number),
            low=low,
            high=None if high is None else high + 1,
            snapshot=files.snapshot(number),
            sequence=files.sequence(number),
            is_data=bool(files.is_data[number]),
            extents=files.extents(number),
            hides_in=files.deletes_of(number),
        )

    def _reachable(self) -> AbstractContextManager[None]:
        return reachable(self._table, "reading the metadata of the lake")
