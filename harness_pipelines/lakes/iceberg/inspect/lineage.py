"""One view snapshot by snapshot: its files, the snapshot that added each, and the summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import LongType

from harness_pipelines.drivers.by_path import ByPath
from harness_pipelines.lakes.iceberg.catalog import OFFSET, read_metadata
from harness_pipelines.lakes.iceberg.checked_io import opened_io
from harness_pipelines.lakes.iceberg.read.deletes import deleted_from
from harness_pipelines.lakes.iceberg.read.manifests import entries_of, manifests_of
from harness_pipelines.ports.lake import reachable
from harness_pipelines.protocol.lake.lineage import FileAsked
from harness_pipelines.protocol.lake.properties import MOVE

MANIFESTS_KEPT = 4_000
Named = Mapping[str, tuple["FileEntry", ...]]  #: by the last part of their paths
_named: ByPath[Named] = ByPath(MANIFESTS_KEPT)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A live file as a manifest names it."""

    path: str
    rows: int
    bytes: int
    partition: int | None  #: Kafka's; None: it mixes several
    low: int | None  #: its rows are in ``[low, high)``; None: its writer kept no bounds, or it has no rows
    high: int | None
    snapshot: int | None  #: that added it
    sequence: int | None  #: its data sequence number
    is_data: bool = True  #: False: it tells which rows of another file are hidden
    hides_in: str | None = None  #: of a file of position deletes: the data file whose rows it hides

    def reaches(self, partition: int, offset: int) -> bool:
        """Return whether a record can be in it, by partition and bounds."""
        if not self.is_data or self.partition not in (None, partition):
            return False
        return self.low is None or self.high is None or self.low <= offset < self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTold:
    """A snapshot that a metadata file still names."""

    snapshot: int
    parent: int | None
    operation: str | None
    move_id: int | None  #: None: it is of no move


class ViewPast:
    """What is kept of one view of *table*. Each metadata file and each manifest is read once.

    *pins* are the snapshots of the versions that are kept and the metadata file of each, newest first. What the newest
    metadata file names beside them is kept too, though no version that can be read has it; what only older ones name
    is not.
    Every method raises: LakeAway, MetadataMissing.
    """

    def __init__(self, table: str, pins: Mapping[int, str]) -> None:
        self._table, self._pins = table, dict(pins)
        newest = next(iter(pins.values()))
        self._io: FileIO = opened_io(newest)
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
            for manifest in self._manifests(snapshot) or ():
                for entry in self._entries(manifest).get(asked.name, ()):
                    if asked.fits(entry.path):
                        return snapshot, entry
        return None

    def has(self, snapshot: int, path: str) -> bool:
        """Return whether a file is live in a snapshot."""
        name = path.rsplit("/", 1)[-1]
        found = (e for m in self._manifests(snapshot) or () for e in self._entries(m).get(name, ()))
        return any(entry.path == path for entry in found)

    def hiding(self, snapshot: int, path: str) -> FileEntry | None:
        """The file of position deletes that speaks of a data file."""
        deletes = (m for m in self._manifests(snapshot) or () if m.content is ManifestContent.DELETES)
        return next((entry for m in deletes for entry in self._each(m) if entry.hides_in == path), None)

    def files(self, snapshot: int) -> dict[str, FileEntry] | None:
        """The live files of a snapshot by path; None when it is not kept."""
        manifests = self._manifests(snapshot)
        return None if manifests is None else {e.path: e for m in manifests for e in self._each(m)}

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

    def _manifests(self, snapshot: int) -> list[ManifestFile] | None:
        if snapshot not in self._pins and snapshot not in self._newest:
            return None
        with self._reachable():
            return manifests_of(self._snapshot(snapshot), self._io)

    def _entries(self, manifest: ManifestFile) -> Named:
        with self._reachable():
            return _named.get(manifest.manifest_path, partial(_by_name, manifest, self._io, self._offset_id))

    def _each(self, manifest: ManifestFile) -> Iterator[FileEntry]:
        for entries in self._entries(manifest).values():
            yield from entries

    def _reachable(self) -> AbstractContextManager[None]:
        return reachable(self._table, "reading the metadata of the lake")


def _by_name(manifest: ManifestFile, io: FileIO, offset_id: int) -> Named:
    found: dict[str, tuple[FileEntry, ...]] = {}
    for entry in entries_of(manifest, io):
        name = entry.data_file.file_path.rsplit("/", 1)[-1]
        found[name] = (*found.get(name, ()), _entry(entry, offset_id))
    return found


def _entry(entry: ManifestEntry, offset_id: int) -> FileEntry:
    file = entry.data_file
    partition = file.partition[0] if len(file.partition) else None
    low, high = ((bounds or {}).get(offset_id) for bounds in (file.lower_bounds, file.upper_bounds))
    return FileEntry(
        path=file.file_path,
        rows=file.record_count,
        bytes=file.file_size_in_bytes,
        partition=int(partition) if isinstance(partition, int) else None,
        low=None if low is None else int(from_bytes(LongType(), low)),
        high=None if high is None else int(from_bytes(LongType(), high)) + 1,
        snapshot=entry.snapshot_id,
        sequence=entry.sequence_number,
        is_data=file.content is DataFileContent.DATA,
        hides_in=deleted_from(file),
    )
