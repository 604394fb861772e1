"""The live files of one manifest as columns.

PyIceberg makes six to ten kB of objects for a file of a table with twenty columns. Here it is some hundred bytes: paths
share their beginning, counts take as many bytes as they need, and bounds that repeat, as those of most columns do, are
kept once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.types import LongType

from harness_pipelines.ports.lake import DeleteFile

PATH_ID, POSITION_ID = 2147483546, 2147483545  #: field ids that Iceberg's specification reserves
NONE = np.iinfo(np.int64).min  #: in a column of whole numbers
FIXED_BYTES = 4_096  #: of one `FileColumns`, beside its arrays
Longs = NDArray[np.int64]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class FileMetrics:
    """What one file says of some columns, by field id, for PyIceberg's evaluator."""

    record_count: int
    value_counts: Mapping[int, int]
    null_value_counts: Mapping[int, int]
    nan_value_counts: Mapping[int, int]
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]


def _by_field(per_file: Sequence[Mapping[int, Value] | None], missing: Value) -> tuple[dict[int, int], Iterator[Value]]:
    """The place of each field among the known ones, and the values: file by file, the fields in that order."""
    first, *others = [one or {} for one in per_file] or [{}]
    if all(one.keys() == first.keys() for one in others):
        ids = list(first)
    else:
        ids = sorted({field_id for one in per_file for field_id in one or ()})
    told = (one.get(field_id, missing) for one in (first, *others) for field_id in ids)
    return {field_id: place for place, field_id in enumerate(ids)}, told


class _Counts:
    """A count per field and file, none of them negative."""

    __slots__ = ("grid", "rows")

    def __init__(self, per_file: Sequence[Mapping[int, int] | None]) -> None:
        self.rows, told = _by_field(per_file, -1)
        grid = np.fromiter(told, np.int64, len(self.rows) * len(per_file)).reshape(len(per_file), len(self.rows))
        self.grid = np.ascontiguousarray(grid.T, np.min_scalar_type(-1 - int(grid.max(initial=0))))

    def of(self, field_id: int, number: int) -> int | None:
        row = self.rows.get(field_id)
        found = -1 if row is None else int(self.grid[row, number])
        return None if found < 0 else found

    def column(self, field_id: int) -> list[int] | None:
        """The counts of all files, -1 where there is none; None: of no file."""
        row = self.rows.get(field_id)
        found: list[int] | None = None if row is None else self.grid[row].tolist()
        return found

    @property
    def nbytes(self) -> int:
        return int(self.grid.nbytes) + 100 * len(self.rows)


class _Bounds:
    """A bound per field and file as Iceberg writes it; equal ones are kept once."""

    __slots__ = ("grid", "rows", "values")

    def __init__(self, per_file: Sequence[Mapping[int, bytes] | None]) -> None:
        self.rows, told = _by_field(per_file, None)
        known = pa.array(list(told), pa.binary()).dictionary_encode()
        places = known.indices.fill_null(-1).to_numpy().reshape(len(per_file), len(self.rows))
        self.grid = np.ascontiguousarray(places.T, np.min_scalar_type(-1 - len(known.dictionary)))
        self.values = known.dictionary

    def of(self, field_id: int, number: int) -> bytes | None:
        row = self.rows.get(field_id)
        found = -1 if row is None else int(self.grid[row, number])
        value: bytes | None = None if found < 0 else self.values[found].as_py()
        return value

    def column(self, field_id: int) -> list[bytes | None] | None:
        """The bounds of all files; None: of no file."""
        if (row := self.rows.get(field_id)) is None:
            return None
        places = self.grid[row]
        found: list[bytes | None] = self.values.take(pa.array(places, mask=places < 0)).to_pylist()
        return found

    @property
    def nbytes(self) -> int:
        return int(self.grid.nbytes + self.values.nbytes) + 100 * len(self.rows)


class FileColumns:
    """The files of one manifest, or those that one attempt wrote, by their number."""

    def __init__(self, files: Sequence[DataFile], entries: Sequence[ManifestEntry] = (), *, spec_id: int = 0) -> None:
        paths = [file.file_path for file in files]
        self._folder = os.path.commonprefix(paths)  # noqa: RUF071  # nothing that ends with a folder is needed
        self._names = pa.array([path[len(self._folder) :] for path in paths], pa.string())
        self.spec_id = spec_id
        self.content: NDArray[np.int8] = np.array([file.content for file in files], np.int8)
        self.rows = _longs(file.record_count for file in files)
        self.bytes = _longs(file.file_size_in_bytes for file in files)
        self.partition = _longs(map(_partition, files))  #: Kafka's; NONE: it mixes several
        self.sequence = _longs(entry.sequence_number for entry in entries)
        self.written = _longs(entry.file_sequence_number for entry in entries)
        self.snapshot = _longs(entry.snapshot_id for entry in entries)
        self._sizes = _Counts([file.column_sizes for file in files])
        self._values = _Counts([file.value_counts for file in files])
        self._nulls = _Counts([file.null_value_counts for file in files])
        self._nans = _Counts([file.nan_value_counts for file in files])
        self._lower = _Bounds([file.lower_bounds for file in files])
        self._upper = _Bounds([file.upper_bounds for file in files])
        self._ends: dict[int, tuple[Longs, Longs]] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """What it takes, with the bounds of one column of whole numbers."""
        numbers = (self.rows, self.bytes, self.partition, self.sequence, self.written, self.snapshot)
        grids = (self._sizes, self._values, self._nulls, self._nans, self._lower, self._upper)
        core = int(self._names.nbytes) + sum(int(column.nbytes) for column in numbers) + 17 * len(self)
        return FIXED_BYTES + core + sum(grid.nbytes for grid in grids)

    @property
    def is_data(self) -> NDArray[np.bool_]:
        """By number whether it is a data file."""
        found: NDArray[np.bool_] = self.content == DataFileContent.DATA.value
        return found

    def path(self, number: int) -> str:
        return self._folder + str(self._names[number].as_py())

    def paths(self, numbers: NDArray[np.integer] | None = None) -> list[str]:
        """The paths of some of the files; None: of all."""
        names = self._names if numbers is None else self._names.take(pa.array(numbers))
        return [self._folder + name for name in names.to_pylist()]

    def named(self, name: str) -> list[int]:
        """The numbers of the files of which *name* is the last part of the path."""
        return [number for number, path in enumerate(self.paths()) if path.rsplit("/", 1)[-1] == name]

    def lower(self, field_id: int, number: int) -> bytes | None:
        """The lower bound of a column; None: the writer kept none."""
        return self._lower.of(field_id, number)

    def upper(self, field_id: int, number: int) -> bytes | None:
        """The upper bound of a column; None: the writer kept none."""
        return self._upper.of(field_id, number)

    def nulls(self, field_id: int, number: int) -> int | None:
        return self._nulls.of(field_id, number)

    def nans(self, field_id: int, number: int) -> int | None:
        return self._nans.of(field_id, number)

    def sizes(self, field_ids: Iterable[int], numbers: NDArray[np.integer]) -> Longs:
        """Bytes of some columns of some of the files, together."""
        places = [place for field_id in field_ids if (place := self._sizes.rows.get(field_id)) is not None]
        found: Longs = np.maximum(self._sizes.grid[places][:, numbers], 0).sum(axis=0, dtype=np.int64)
        return found

    def longs(self, field_id: int) -> tuple[Longs, Longs]:
        """By number the lowest and the highest value of a column of type long; NONE: the writer kept no bounds."""
        if field_id not in self._ends:
            numbers = range(len(self))
            lower = _longs(map(_long, (self._lower.of(field_id, number) for number in numbers)))
            upper = _longs(map(_long, (self._upper.of(field_id, number) for number in numbers)))
            self._ends[field_id] = lower, upper
        return self._ends[field_id]

    def deletes(self, number: int) -> DeleteFile:
        """A file that tells which rows are hidden."""
        return DeleteFile(path=self.path(number), rows=int(self.rows[number]), bytes=int(self.bytes[number]))

    def deletes_of(self, number: int) -> str | None:
        """The one data file whose rows a position delete file names; None of any other file."""
        low, high = self.lower(PATH_ID, number), self.upper(PATH_ID, number)
        if self.content[number] != DataFileContent.POSITION_DELETES.value or low is None or low != high:
            return None
        return low.decode()

    def metrics(self, field_ids: Collection[int], numbers: Iterable[int]) -> Iterator[FileMetrics]:
        """What some of the files say of some columns."""
        values, nulls, nans = (_known(of.column, field_ids) for of in (self._values, self._nulls, self._nans))
        lower, upper = (_known(of.column, field_ids) for of in (self._lower, self._upper))
        for number in numbers:
            yield FileMetrics(
                record_count=int(self.rows[number]),
                value_counts={i: count for i, column in values if (count := column[number]) >= 0},
                null_value_counts={i: count for i, column in nulls if (count := column[number]) >= 0},
                nan_value_counts={i: count for i, column in nans if (count := column[number]) >= 0},
                lower_bounds={i: bound for i, column in lower if (bound := column[number]) is not None},
                upper_bounds={i: bound for i, column in upper if (bound := column[number]) is not None},
            )


def _known(column: Callable[[int], list[Value] | None], field_ids: Collection[int]) -> list[tuple[int, list[Value]]]:
    return [(field_id, found) for field_id in field_ids if (found := column(field_id)) is not None]


def maybe(column: Longs, number: int) -> int | None:
    """A value of a column of whole numbers."""
    found = int(column[number])
    return None if found == NONE else found


def _longs(values: Iterable[int | None]) -> Longs:
    return np.array([NONE if value is None else value for value in values], np.int64)


def _long(bound: bytes | None) -> int | None:
    return None if bound is None else int(from_bytes(LongType(), bound))


def _partition(file: DataFile) -> int | None:
    found = file.partition[0] if len(file.partition) else None
    return int(found) if isinstance(found, int) else None
