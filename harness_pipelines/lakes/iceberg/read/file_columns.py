"""The live files of one manifest as columns.

PyIceberg makes six to ten kB of objects for a file of a table with twenty columns. Here it is some two hundred bytes:
paths share their beginning and their end, and what the files say of one column lies in a row of whole numbers, each in
as few bytes as the row needs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.types import LongType

from harness_pipelines.ports.lake import DeleteFile
from harness_pipelines.protocol.lake.wide import EXTENTS_ID, Extents

PATH_ID, POSITION_ID = 2147483546, 2147483545  #: field ids that Iceberg's specification reserves
NONE, MAX = np.iinfo(np.int64).min, np.iinfo(np.int64).max  #: NONE: in a column of whole numbers
FIXED_BYTES = 2_048  #: of one `FileColumns`, beside what its arrays hold
Longs = NDArray[np.int64]
SIZES = (None, np.uint8, np.uint16, np.uint32, np.int64)  #: what a number may take
SIZES_MAX = (0, 2**8 - 1, 2**16 - 1, 2**32 - 1)
GAPS = 8  #: added to the place of a size: the row has missing numbers
ZEROS, NOTHING, KEPT = 0, 1, 2  #: rows of which nothing is kept; the place of the first one that is
SHORT, LONG, TEXT = 0, 8, 255  #: the width of a column's bounds; TEXT: they are apart
_CONTENT, _PARTITION, _SEQUENCE, _WRITTEN, _SNAPSHOT = range(5)  #: rows of which a manifest has one
_OF_ENTRY = ("sequence_number", "file_sequence_number", "snapshot_id")
_ABOUT = 5
_SIZES, _LACKS, _NULLS, _NANS, _LOWER, _UPPER = range(6)  #: rows of which each field has one; lacks: to the file's rows
_NO_TEXTS: Final = pa.array([], pa.binary())
_NO_ENTRY: Final[Any] = SimpleNamespace(**dict.fromkeys(_OF_ENTRY))


@dataclass(frozen=True, slots=True)
class FileMetrics:
    """What one file says of some columns, by field id, for PyIceberg's evaluator."""

    record_count: int
    value_counts: Mapping[int, int]
    null_value_counts: Mapping[int, int]
    nan_value_counts: Mapping[int, int]
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]


class _Longs:
    """Rows of whole numbers, in each one for every file: by how much it is above the least of its row.

    That takes as few bytes as it can. A row of zeros, or of nothing, has no bytes: counts of NULL and NaN mostly are.
    """

    __slots__ = ("_above", "_form", "_least", "_place", "_start", "count")

    def __init__(self, grid: Longs) -> None:
        """*grid* has a row for each row, and NONE for what is missing; no row spans 63 bits."""
        known = grid != NONE
        whole, some = known.all(axis=1), known.any(axis=1)
        least = np.where(known, grid, MAX).min(axis=1, initial=MAX) - ~whole  # of a row with gaps, 0 is one
        above = np.where(known, grid - least[:, None], 0)
        size = np.searchsorted(SIZES_MAX, above.max(axis=1, initial=0))
        kept = np.flatnonzero(some & ((size > 0) | (least != 0)))
        self._place = np.where(some, ZEROS, NOTHING).astype(np.uint16)
        self._place[kept] = np.arange(len(kept)) + KEPT
        self._least, self._form = least[kept], (size + np.where(whole, 0, GAPS))[kept].astype(np.uint8)
        packed = [above[row].astype(SIZES[size[row]]).tobytes() if size[row] else b"" for row in kept.tolist()]
        self._start = (np.cumsum([0, *map(len, packed)])[:-1]).astype(np.uint32)
        self._above, self.count = b"".join(packed), grid.shape[1]

    def row(self, number: int) -> Longs:
        """A row, NONE where it has none."""
        return self._read(number, 0, self.count)

    def at(self, number: int, file: int) -> int | None:
        """One number of a row."""
        return maybe(self._read(number, file, 1), 0)

    def _read(self, number: int, first: int, count: int) -> Longs:
        place = int(self._place[number]) - KEPT
        if place < 0:
            return np.full(count, 0 if place + KEPT == ZEROS else NONE, np.int64)
        form, least = int(self._form[place]), self._least[place]
        if (size := SIZES[form % GAPS]) is None:
            return np.full(count, least, np.int64)
        start = int(self._start[place]) + first * np.dtype(size).itemsize
        above = np.frombuffer(self._above, size, count, start).astype(np.int64)
        found: Longs = above + least
        if form >= GAPS:
            found[above == 0] = NONE
        return found

    @property
    def nbytes(self) -> int:
        arrays = (self._place, self._least, self._form, self._start)
        return len(self._above) + sum(int(array.nbytes) for array in arrays)


def _as_longs(bounds: Sequence[bytes | None]) -> tuple[int, Longs] | None:
    """Bounds of one column as whole numbers, and how many bytes each has (`SHORT`: up to seven, their length varies).

    None: these are no such bounds.
    """
    there = [bound for bound in bounds if bound is not None]
    lengths = set(map(len, there)) or {8}
    if lengths in ({4}, {8}):
        width = lengths.pop()
        found = np.frombuffer(b"".join(there), f"<i{width}").astype(np.int64)
    elif max(lengths) < 8:  # a one in front keeps the length
        width, found = SHORT, np.array([int.from_bytes(b"\1" + bound) for bound in there], np.int64)
    else:
        return None
    if there and (int(found.min()) == NONE or int(found.max()) - int(found.min()) >= MAX):
        return None
    if len(there) == len(bounds):
        return width, found
    spread = np.full(len(bounds), NONE, np.int64)
    spread[[bound is not None for bound in bounds]] = found
    return width, spread


def _as_bound(value: int, width: int) -> bytes:
    """The inverse of `_as_longs`."""
    if width != SHORT:
        return value.to_bytes(width, "little", signed=True)
    return value.to_bytes((value.bit_length() + 7) // 8)[1:]


@lru_cache(256)
def _places(field_ids: tuple[int, ...]) -> Mapping[int, int]:
    """The place of each field among all: one mapping for the manifests of a table."""
    return {field_id: place for place, field_id in enumerate(field_ids)}


class FileColumns:
    """The files of one manifest, or those that one attempt wrote, by their number."""

    def __init__(self, files: Sequence[DataFile], entries: Sequence[ManifestEntry] = (), *, spec_id: int = 0) -> None:
        paths = [file.file_path for file in files]
        self._folder = os.path.commonprefix(paths)  # noqa: RUF071  # nothing that ends with a folder is needed
        names = [path[len(self._folder) :] for path in paths]
        self._end = os.path.commonprefix([name[::-1] for name in names])[::-1]  # noqa: RUF071
        self._names = pa.array([name.removesuffix(self._end) for name in names], pa.string())
        self.spec_id = spec_id
        self.rows = _narrow([file.record_count for file in files])
        self.bytes = _narrow([file.file_size_in_bytes for file in files])
        counts = _told(files, "column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
        bounds = _told(files, "lower_bounds", "upper_bounds")
        ids = tuple(sorted(set[int]().union(*chain(*counts, *bounds))))
        self._field = _places(ids)
        sizes, values, nulls, nans = (_grid(column, ids) for column in counts)
        values = np.where(values == NONE, NONE, self.rows.astype(np.int64) - values)
        texts: dict[bytes, int] = {}
        self._width, ends = _bounds_of(bounds, ids, texts)
        self._texts = pa.array(list(texts), pa.binary()) if texts else _NO_TEXTS
        about = [
            _longs(file.content for file in files),
            _longs(map(_partition, files)),
            *(_longs(getattr(entry, name) for entry in entries or [_NO_ENTRY] * len(files)) for name in _OF_ENTRY),
        ]
        self._numbers = _Longs(np.vstack([*about, sizes, values, nulls, nans, *ends]))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """What it takes."""
        arrays = int(self._names.nbytes + self._texts.nbytes + self.rows.nbytes + self.bytes.nbytes)
        return FIXED_BYTES + arrays + len(self._width) + self._numbers.nbytes

    @property
    def is_data(self) -> NDArray[np.bool_]:
        """By number whether it is a data file."""
        found: NDArray[np.bool_] = self._numbers.row(_CONTENT) == DataFileContent.DATA.value
        return found

    @property
    def partitions(self) -> Longs:
        """By number Kafka's partition; NONE: it mixes several."""
        return self._numbers.row(_PARTITION)

    def content(self, number: int) -> int:
        """What it holds, as Iceberg numbers it."""
        return self._numbers.at(_CONTENT, number) or 0

    def partition(self, number: int) -> int | None:
        return self._numbers.at(_PARTITION, number)

    def sequence(self, number: int) -> int | None:
        return self._numbers.at(_SEQUENCE, number)

    def written(self, number: int) -> int | None:
        """The sequence number of the snapshot that brought the file."""
        return self._numbers.at(_WRITTEN, number)

    def snapshot(self, number: int) -> int | None:
        return self._numbers.at(_SNAPSHOT, number)

    def path(self, number: int) -> str:
        return self._folder + str(self._names[number].as_py()) + self._end

    def paths(self, numbers: NDArray[np.integer] | None = None) -> list[str]:
        """The paths of some of the files; None: of all."""
        names = self._names if numbers is None else self._names.take(pa.array(numbers))
        return [self._folder + name + self._end for name in names.to_pylist()]

    def named(self, name: str) -> list[int]:
        """The numbers of the files of which *name* is the last part of the path."""
        return [number for number, path in enumerate(self.paths()) if path.rsplit("/", 1)[-1] == name]

    def lower(self, field_id: int, number: int) -> bytes | None:
        """The lower bound of a column; None: the writer kept none."""
        return self._bounds(_LOWER, field_id, [number])[0]

    def upper(self, field_id: int, number: int) -> bytes | None:
        """The upper bound of a column; None: the writer kept none."""
        return self._bounds(_UPPER, field_id, [number])[0]

    def sizes(self, field_ids: Iterable[int], numbers: NDArray[np.integer]) -> Longs:
        """Bytes of some columns of some of the files, together."""
        found = np.zeros(len(numbers), np.int64)
        for field_id in field_ids:
            if (row := self._row(_SIZES, field_id)) is not None:
                found += np.maximum(self._numbers.row(row)[numbers], 0)
        return found

    def longs(self, field_id: int) -> tuple[Longs, Longs]:
        """By number the lowest and the highest value of a column of type long; NONE: the writer kept no bounds."""
        return self._longs(_LOWER, field_id), self._longs(_UPPER, field_id)

    def ends(self, field_id: int, number: int) -> tuple[int | None, int | None]:
        """The lowest and the highest value that one file has of a column of type long."""
        return _long(self.lower(field_id, number)), _long(self.upper(field_id, number))

    def extents(self, number: int) -> Extents | None:
        """What a file says of the partitions that it mixes; None: nothing."""
        found = self.lower(EXTENTS_ID, number)
        return None if found is None else Extents(found)

    @property
    def has_extents(self) -> bool:
        """Whether any file says what it has of each partition."""
        return EXTENTS_ID in self._field

    def sequences(self) -> list[int | None]:
        """By number Iceberg's data sequence number."""
        return _some(self._numbers.row(_SEQUENCE))

    def written_by(self) -> list[int | None]:
        """By number the sequence number of the snapshot that brought the file."""
        return _some(self._numbers.row(_WRITTEN))

    def nulls_of(self, field_id: int) -> list[int | None]:
        """By number the NULLs of a column."""
        return self._all(_NULLS, field_id)

    def nans_of(self, field_id: int) -> list[int | None]:
        """By number the NaNs of a column."""
        return self._all(_NANS, field_id)

    def bounds(self, field_id: int) -> tuple[list[bytes | None], list[bytes | None]]:
        """By number the lower and the upper bounds of a column."""
        everything = range(len(self))
        return self._bounds(_LOWER, field_id, everything), self._bounds(_UPPER, field_id, everything)

    def whole_bounds(self, field_id: int) -> tuple[list[int | None], list[int | None]] | None:
        """The same of a column of whole numbers; None where they are not all of one width."""
        rows = [self._row(side, field_id) for side in (_LOWER, _UPPER)]
        first = self._first(_LOWER)
        if any(row is None or self._width[row - first] not in (4, LONG) for row in rows):
            return None
        lower, upper = (_some(self._numbers.row(row)) for row in rows if row is not None)
        return lower, upper

    def deletes(self, number: int) -> DeleteFile:
        """A file that tells which rows are hidden."""
        return DeleteFile(path=self.path(number), rows=int(self.rows[number]), bytes=int(self.bytes[number]))

    def deletes_of(self, number: int) -> str | None:
        """The one data file whose rows a position delete file names; None of any other file."""
        if self.content(number) != DataFileContent.POSITION_DELETES.value:
            return None
        low, high = self.lower(PATH_ID, number), self.upper(PATH_ID, number)
        return None if low is None or low != high else low.decode()

    def metrics(self, field_ids: Collection[int], numbers: Sequence[int]) -> Iterator[FileMetrics]:
        """What some of the files say of some columns."""
        known = [i for i in field_ids if i in self._field]
        lacks, nulls, nans = (
            [(i, self._numbers.row(self._field[i] + self._first(kind))[numbers].tolist()) for i in known]
            for kind in (_LACKS, _NULLS, _NANS)
        )
        lower, upper = ([(i, self._bounds(side, i, numbers)) for i in known] for side in (_LOWER, _UPPER))
        for at, rows in enumerate(self.rows[numbers].tolist()):
            yield FileMetrics(
                record_count=rows,
                value_counts={i: rows - count for i, column in lacks if (count := column[at]) != NONE},
                null_value_counts={i: count for i, column in nulls if (count := column[at]) != NONE},
                nan_value_counts={i: count for i, column in nans if (count := column[at]) != NONE},
                lower_bounds={i: bound for i, column in lower if (bound := column[at]) is not None},
                upper_bounds={i: bound for i, column in upper if (bound := column[at]) is not None},
            )

    def _longs(self, side: int, field_id: int) -> Longs:
        row = self._row(side, field_id)
        if row is not None and self._width[row - self._first(_LOWER)] == LONG:
            return self._numbers.row(row)
        return _longs(map(_long, self._bounds(side, field_id, range(len(self)))))

    def _first(self, kind: int) -> int:
        """The first of the rows of *kind*, which has one for each field."""
        return _ABOUT + kind * len(self._field)

    def _row(self, kind: int, field_id: int) -> int | None:
        place = self._field.get(field_id)
        return None if place is None else self._first(kind) + place

    def _all(self, kind: int, field_id: int) -> list[int | None]:
        row = self._row(kind, field_id)
        return [None] * len(self) if row is None else _some(self._numbers.row(row))

    def _bounds(self, side: int, field_id: int, numbers: Sequence[int]) -> list[bytes | None]:
        """The bounds that some of the files have of a column."""
        if (row := self._row(side, field_id)) is None:
            return [None] * len(numbers)
        if len(numbers) == 1:
            found = [self._numbers.at(row, numbers[0])]
        else:
            found = [None if value == NONE else value for value in self._numbers.row(row)[numbers].tolist()]
        if (width := self._width[row - self._first(_LOWER)]) == TEXT:
            return [None if place is None else self._texts[place].as_py() for place in found]
        return [None if value is None else _as_bound(value, width) for value in found]


def _told(files: Sequence[DataFile], *names: str) -> list[list[Mapping[int, Any]]]:
    """What the files say of their columns, by field id."""
    return [[getattr(file, name) or {} for file in files] for name in names]


def _grid(per_file: Sequence[Mapping[int, int]], ids: Sequence[int]) -> Longs:
    """A row for each of *ids*, a column for each file."""
    told = chain.from_iterable(map(one.get, ids, repeat(NONE)) for one in per_file)
    return np.fromiter(told, np.int64, len(ids) * len(per_file)).reshape(len(per_file), len(ids)).T


def _bounds_of(
    sides: Sequence[Sequence[Mapping[int, bytes]]], ids: Sequence[int], texts: dict[bytes, int]
) -> tuple[bytes, list[Longs]]:
    """For each side and each of *ids* the width of its bounds, and the bounds as numbers: of *texts* their places."""
    found: list[tuple[int, Longs]] = []
    for side in sides:
        for bounds in zip(*(map(one.get, ids) for one in side), strict=True):
            places = (None if bound is None else texts.setdefault(bound, len(texts)) for bound in bounds)
            found.append(_as_longs(bounds) or (TEXT, _longs(places)))
    return bytes(width for width, _ in found), [row for _, row in found]


def maybe(column: Longs, number: int) -> int | None:
    """A value of a column of whole numbers."""
    found = int(column[number])
    return None if found == NONE else found


def _some(column: Longs) -> list[int | None]:
    """All values of a column of whole numbers."""
    found: list[int | None] = column.tolist()
    return found if NONE not in column else [None if value == NONE else value for value in found]


def _narrow(values: Sequence[int]) -> NDArray[np.integer]:
    """Numbers from 0 on, in as few bytes as they need."""
    return np.array(values, np.min_scalar_type(max(values, default=0)))


def _longs(values: Iterable[int | None]) -> Longs:
    return np.array([NONE if value is None else value for value in values], np.int64)


def _long(bound: bytes | None) -> int | None:
    return None if bound is None else int(from_bytes(LongType(), bound))


def _partition(file: DataFile) -> int | None:
    found = file.partition[0] if len(file.partition) else None
    return int(found) if isinstance(found, int) else None
