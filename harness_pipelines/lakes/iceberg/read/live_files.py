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
from harness_pipelines.protocol.lake.wide import Extents
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
        self._extents = _EachExtent(self._told())

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
        extents = self._extents.of
        return [
            LakeFile(
                path=path,
                stored=stored,
                bytes=size,
                partition=None if partition == NONE else partition,
                low=low,
                high=high,
                deletes=self.deletes.get(path),
                extents=extents.get(place),
            )
            for place, path, stored, size, partition, low, high in zip(
                places.tolist(), paths, *numbers_of, *bounds, strict=True
            )
        ]

    def _told(self) -> dict[int, Extents]:
        """By place the extents of the files that have any."""
        wide = np.array([columns.has_extents for columns in self._manifests], np.bool_)
        places = np.flatnonzero(wide[self._manifest]).tolist() if wide.any() else []
        found = ((place, columns.extents(number)) for place in places for columns, number in [self._of(place)])
        return {place: extents for place, extents in found if extents is not None}

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
        return sum(int(column.nbytes) for column in columns) + 500 * len(self.deletes) + self._extents.nbytes

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
        self._extents.put(found, self._extents.overlap(ranges))
        return found

    def inside(self, ranges: Ranges) -> Mask:
        """Which of them are known to hold rows of *ranges* alone."""
        found = np.zeros(len(self), np.bool_)
        for partition, (low, high) in ranges.items():
            found |= (self._partition == partition) & (low <= self._low) & (self._high <= high)
        self._extents.put(found, self._extents.lie_in(ranges))
        return found

    def highest(self) -> dict[int, tuple[int, int]]:
        """By partition the offset above the highest one that any file says it has, and the place of that file."""
        return self._extents.highest()

    def known_partitions(self) -> list[int]:
        """Those that any file is known to have rows of."""
        alone = self._partition[self._partition != NONE]
        found: list[int] = np.unique(np.concatenate([alone, self._extents.partitions])).tolist()
        return found

    @property
    def mixed(self) -> Mask:
        """Which of them mix partitions, and do not say what they have of each."""
        found: Mask = self._partition == NONE
        found[self._extents.places] = False
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


class _EachExtent:
    """The extents of all files that say what they have of each partition, laid end to end."""

    __slots__ = ("_first", "_high", "_low", "_partition", "of", "places")

    def __init__(self, of: dict[int, Extents]) -> None:
        """*of* has them by the place of the file, in the order of places."""
        self.of = of
        self.places = np.array(list(of), np.intp)
        columns = [extents.columns() for extents in of.values()]
        self._first = np.cumsum([0, *(len(one[0]) for one in columns)])[:-1].astype(np.intp)
        self._partition, self._low, self._high = (
            np.concatenate([np.empty(0, np.int64), *(one[column] for one in columns)]) for column in range(3)
        )

    @property
    def nbytes(self) -> int:
        arrays = (self._partition, self._low, self._high)
        return sum(int(array.nbytes) for array in arrays) + sum(200 + len(one.packed) for one in self.of.values())

    @property
    def partitions(self) -> NDArray[np.int64]:
        return self._partition

    def highest(self) -> dict[int, tuple[int, int]]:
        """By partition the offset above the last one, and the place of the file that has it."""
        order = np.lexsort((self._high, self._partition))
        ends = np.flatnonzero(np.diff(self._partition[order], append=np.iinfo(np.int64).max))
        last = order[ends]
        places = self.places[np.searchsorted(self._first, last, side="right") - 1] if len(last) else last
        found = zip(self._partition[last].tolist(), self._high[last].tolist(), places.tolist(), strict=True)
        return {partition: (high, place) for partition, high, place in found}

    def put(self, into: Mask, found: Mask) -> None:
        into[self.places] = found

    def overlap(self, ranges: Ranges) -> Mask:
        """By file whether any of its extents and *ranges* have an offset in common."""
        low, high = self._ends(ranges)
        return self._by_file(np.logical_or, (self._low < high) & (low < self._high))

    def lie_in(self, ranges: Ranges) -> Mask:
        """By file whether all of its extents lie in *ranges*."""
        low, high = self._ends(ranges)
        return self._by_file(np.logical_and, (low <= self._low) & (self._high <= high))

    def _ends(self, ranges: Ranges) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """By extent the ends of the range of its partition; where there is none, the range is empty."""
        known = np.array(sorted(ranges), np.int64)
        if not len(known):
            return np.zeros_like(self._low), np.zeros_like(self._low)
        ends = np.array([ranges[p] for p in known.tolist()], np.int64)
        at = np.minimum(np.searchsorted(known, self._partition), len(known) - 1)
        there = known[at] == self._partition
        return np.where(there, ends[at, 0], 0), np.where(there, ends[at, 1], 0)

    def _by_file(self, reduce: np.ufunc, found: Mask) -> Mask:
        if not len(self._first):
            return np.zeros(0, np.bool_)
        by_file: Mask = reduce.reduceat(found, self._first)
        return by_file


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
