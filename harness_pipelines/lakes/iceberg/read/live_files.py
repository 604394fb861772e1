"""The live data files of a snapshot, each with what hides rows of it, over the columns of its manifests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import Snapshot

from harness_pipelines.lakes.iceberg.read.deletes import foreign
from harness_pipelines.lakes.iceberg.read.file_columns import NONE, FileColumns, FileMetrics
from harness_pipelines.lakes.iceberg.read.manifests import columns_of, manifests_of
from harness_pipelines.ports.lake import DeleteFile, LakeFile
from harness_pipelines.protocol.reading.narrowing import Ranges

OPEN = 2**63 - 1  #: `high` of a file without bounds of offsets: any may be in it
Places = NDArray[np.intp]  #: of files in a `LiveFiles`
Mask = NDArray[np.bool_]


class LiveFiles(Sequence[LakeFile]):
    """Data files by partition and first offset. A `LakeFile` is made when it is asked for; 40 bytes of each are held.

    Raises: ForeignDeletes.
    """

    def __init__(self, manifests: Sequence[FileColumns], offset_id: int) -> None:
        self._manifests = tuple(manifests)
        self.deletes = deletes_in(manifests)  #: by the path of the data file
        numbers = [np.flatnonzero(columns.is_data) for columns in manifests]
        at = np.repeat(np.arange(len(numbers)), [len(mine) for mine in numbers])
        partition, low, high = (
            np.concatenate([np.empty(0, np.int64), *parts])
            for parts in (
                [columns.partitions[mine] for columns, mine in zip(manifests, numbers, strict=True)],
                [columns.longs(offset_id)[0][mine] for columns, mine in zip(manifests, numbers, strict=True)],
                [columns.longs(offset_id)[1][mine] for columns, mine in zip(manifests, numbers, strict=True)],
            )
        )
        unknown = (low == NONE) | (high == NONE)
        low, high = np.where(unknown, 0, low), np.where(unknown, OPEN, high + 1)
        order = np.lexsort((low, np.where(partition == NONE, 0, partition)))
        self._manifest = at[order].astype(np.int32)
        self._number = np.concatenate([np.empty(0, np.intp), *numbers])[order].astype(np.int32)
        self._partition, self._low, self._high = partition[order], low[order], high[order]

    def __len__(self) -> int:
        return len(self._number)

    @overload
    def __getitem__(self, place: int) -> LakeFile: ...
    @overload
    def __getitem__(self, place: slice) -> list[LakeFile]: ...
    def __getitem__(self, place: int | slice) -> LakeFile | list[LakeFile]:
        if isinstance(place, slice):
            return self.many(np.arange(len(self))[place])
        return self.many(np.array([range(len(self))[place]]))[0]

    def __iter__(self) -> Iterator[LakeFile]:
        return iter(self.many(np.arange(len(self))))

    def many(self, places: Places) -> list[LakeFile]:
        """Those at *places*, in this order."""
        paths, sizes, rows = [""] * len(places), np.empty(len(places), np.int64), np.empty(len(places), np.int64)
        for columns, mine, numbers in self._by_manifest(places):
            for at, path in zip(mine.tolist(), columns.paths(numbers), strict=True):
                paths[at] = path
            sizes[mine], rows[mine] = columns.bytes[numbers], columns.rows[numbers]
        numbers_of = (column.tolist() for column in (rows, sizes, self._partition[places]))
        bounds = (self._low[places].tolist(), self._high[places].tolist())
        return [
            LakeFile(
                path=path,
                stored=stored,
                bytes=size,
                partition=None if partition == NONE else partition,
                low=low,
                high=high,
                deletes=self.deletes.get(path),
            )
            for path, stored, size, partition, low, high in zip(paths, *numbers_of, *bounds, strict=True)
        ]

    def sizes(self, field_ids: Collection[int], places: Places) -> list[int]:
        """Bytes of some columns of the files at *places*, in this order."""
        found = np.empty(len(places), np.int64)
        for columns, mine, numbers in self._by_manifest(places):
            found[mine] = columns.sizes(field_ids, numbers)
        sizes: list[int] = found.tolist()
        return sizes

    def _by_manifest(self, places: Places) -> Iterator[tuple[FileColumns, Places, NDArray[np.int32]]]:
        """For each manifest of files at *places*: which of *places* these are, and their numbers in it."""
        manifests = self._manifest[places]
        for manifest in np.unique(manifests).tolist():
            mine = np.flatnonzero(manifests == manifest)
            yield self._manifests[manifest], mine, self._number[places[mine]]

    @property
    def nbytes(self) -> int:
        """What it takes beside its manifests."""
        columns = (self._manifest, self._number, self._partition, self._low, self._high)
        return sum(int(column.nbytes) for column in columns) + 500 * len(self.deletes)

    def named(self, paths: Collection[str]) -> Iterator[tuple[LakeFile, int]]:
        """Those at *paths*, with the number of the partitioning that each was written with."""
        places = self.at(paths)
        for place, file in zip(places.tolist(), self.many(places), strict=True):
            yield file, self._of(place)[0].spec_id

    def at(self, paths: Collection[str]) -> Places:
        """The places of those at *paths*."""
        of = [columns.paths() for columns in self._manifests]
        names = (of[m][n] for m, n in zip(self._manifest.tolist(), self._number.tolist(), strict=True))
        return np.array([place for place, path in enumerate(names) if path in paths], np.intp)

    def overlapping(self, ranges: Ranges) -> Mask:
        """Which of them can hold rows of *ranges*, by their bounds."""
        found = np.zeros(len(self), np.bool_)
        mixed = self._partition == NONE
        for partition, (low, high) in ranges.items():
            found |= (mixed | (self._partition == partition)) & (self._low < high) & (low < self._high)
        return found

    def inside(self, ranges: Ranges) -> Mask:
        """Which of them hold rows of one partition alone, all of them in *ranges*."""
        found = np.zeros(len(self), np.bool_)
        for partition, (low, high) in ranges.items():
            found |= (self._partition == partition) & (low <= self._low) & (self._high <= high)
        return found

    @property
    def mixed(self) -> Mask:
        """Which of them mix partitions."""
        found: Mask = self._partition == NONE
        return found

    def matching(self, evaluate: Callable[[FileMetrics], bool], field_ids: Collection[int], *, among: Mask) -> Mask:
        """Those *among* them of which *evaluate*, by what they say of some columns, does not rule out a row."""
        found = np.zeros(len(self), np.bool_)
        places = np.flatnonzero(among)
        for columns, mine, numbers in self._by_manifest(places):
            found[places[mine]] = [evaluate(one) for one in columns.metrics(field_ids, numbers.tolist())]
        return found

    def upper(self, field_id: int, place: int) -> bytes | None:
        """The upper bound of a column, as Iceberg writes it."""
        columns, number = self._of(place)
        return columns.upper(field_id, number)

    def lower(self, field_id: int, place: int) -> bytes | None:
        """The lower bound of a column, as Iceberg writes it."""
        columns, number = self._of(place)
        return columns.lower(field_id, number)

    def _of(self, place: int) -> tuple[FileColumns, int]:
        return self._manifests[int(self._manifest[place])], int(self._number[place])


def deletes_in(manifests: Sequence[FileColumns]) -> dict[str, DeleteFile]:
    """The delete files, by the paths of their data files. Raises: ForeignDeletes."""
    found: dict[str, DeleteFile] = {}
    for columns in manifests:
        for number in np.flatnonzero(~columns.is_data).tolist():
            path = columns.deletes_of(number)
            if path is None or path in found:
                raise foreign(columns.path(number))
            found[path] = columns.deletes(number)
    return found


def live_files(
    snapshot: Snapshot | None,
    io: FileIO,
    *,
    offset_id: int,
    read: Callable[[ManifestFile, FileIO], FileColumns] = columns_of,
) -> LiveFiles:
    """The data files of *snapshot*, whose manifests *read* reads. Raises: ForeignDeletes, ManifestDamaged, OSError."""
    return LiveFiles([read(manifest, io) for manifest in manifests_of(snapshot, io)], offset_id)
