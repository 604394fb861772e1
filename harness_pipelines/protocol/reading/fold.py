"""The newest row per key, in Arrow: newer versions of a key hide older ones in the hot tiers and the cold rows.

Keys are numbered column by column: a value by its place among the distinct ones, NULL being one of them, and the pair
of two such numbers by its place among the distinct pairs. So keys of any types and any number of columns are compared
as whole numbers, and exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from harness_pipelines.protocol.coordinates import OPERATION
from harness_pipelines.protocol.keys import PUT, key_in_two_partitions
from harness_pipelines.spec.predicate import OFFSET, PARTITION

Numbers = NDArray[np.int64]
SIEVE_SLOTS_MIN, SIEVE_SLOTS_PER_KEY = 2**15, 8  #: next power of two above: at most an eighth is taken
_WHOLE = (pa.int32(), pa.int64())
COLD_ROWS_MIN = 65_536  #: cold rows per look-up, while the next ones are read
COLD_ROWS_PER_KEY = 8  #: and per hot key, because each look-up begins by hashing all hot keys


class Sieve:
    """Tells cheaply of most whole numbers that are not among some that they are not: a table of their hashes."""

    def __init__(self, known: Numbers) -> None:
        size = max(SIEVE_SLOTS_MIN, SIEVE_SLOTS_PER_KEY * len(known))
        self._shift = np.uint64(64 - int(size).bit_length())
        self._slots = np.zeros(1 << int(size).bit_length(), np.bool_)
        self._slots[self._slot(known)] = True

    def _slot(self, values: Numbers) -> NDArray[np.uint64]:
        return (values.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> self._shift

    def maybe(self, values: Numbers) -> Numbers:
        """Places of all of *values* that are among the known ones, and of a few others."""
        return np.flatnonzero(self._slots[self._slot(values)])


class KeyNumbers:
    """Numbers 0, 1, ... for the distinct keys of some rows; ``of`` those rows they are `first`."""

    def __init__(self, columns: Sequence[pa.ChunkedArray]) -> None:
        whole = (_whole(column) for column in columns)
        self._sieves = [None if values is None else Sieve(values) for values in whole]
        self._values: list[pa.Array] = []  #: distinct ones of each column
        self._pairs: list[pa.Array] = []  #: distinct ones of the numbers so far with those of each further column
        numbers = self._numbered(columns[0], self._values)
        for column in columns[1:]:
            more = self._numbered(column, self._values)
            numbers = self._numbered(_pairs(numbers, more, len(self._values[-1])), self._pairs)
        self.first = numbers

    def __len__(self) -> int:
        return len((self._pairs or self._values)[-1])

    def among(self, columns: Sequence[pa.ChunkedArray]) -> tuple[Numbers, Numbers]:
        """Places of the keys that were among the rows, and their numbers."""
        for column, sieve in zip(columns, self._sieves, strict=True):
            if sieve is not None and (values := _whole(column)) is not None:
                maybe = sieve.maybe(values)
                if not len(maybe):
                    return maybe, maybe
                numbers = self.of([one.take(maybe) for one in columns])
                known = numbers >= 0
                return maybe[known], numbers[known]
        numbers = self.of(columns)
        places = np.flatnonzero(numbers >= 0)
        return places, numbers[places]

    def of(self, columns: Sequence[pa.ChunkedArray]) -> Numbers:
        """The number of each key, -1 for one that was not among the rows."""
        numbers = _places(columns[0], self._values[0])
        for column, values, pairs in zip(columns[1:], self._values[1:], self._pairs, strict=True):
            more = _places(column, values)
            both = np.where((numbers < 0) | (more < 0), -1, numbers * len(values) + more)
            numbers = _places(pa.chunked_array([both]), pairs)
        return numbers

    @staticmethod
    def _numbered(column: pa.ChunkedArray, distinct: list[pa.Array]) -> Numbers:
        chunks = column.dictionary_encode(null_encoding="encode").chunks
        distinct.append(chunks[-1].dictionary if chunks else pa.array([], column.type))
        return np.concatenate([np.empty(0, np.int64), *(chunk.indices.to_numpy() for chunk in chunks)])


def _whole(column: pa.ChunkedArray) -> Numbers | None:
    """The values of a column of whole numbers; None of another one, and where a NULL is among them."""
    if column.type not in _WHOLE or column.null_count:
        return None
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _pairs(numbers: Numbers, more: Numbers, count: int) -> pa.ChunkedArray:
    return pa.chunked_array([numbers * count + more])


def _places(column: pa.ChunkedArray, distinct: pa.Array) -> Numbers:
    """Where each value is among *distinct*, NULL being a value; -1 where it is not."""
    found = pc.fill_null(pc.index_in(column, value_set=distinct), -1)
    return np.asarray(found.to_numpy(), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Folded:
    """The hot side: for each key its newest version."""

    table: str  #: for messages
    key: tuple[str, ...]
    rows: pa.Table  #: the newest version of each key, puts and deletes, in the order in which they came
    numbers: KeyNumbers | None  #: of all keys, those that are deleted too; None: there are no rows
    partitions: Numbers  #: by the number of a key, of its newest version
    offsets: Numbers

    @property
    def puts(self) -> pa.Table:
        return self.rows.filter(pc.equal(self.rows.column(OPERATION), PUT))

    def uncovered(self, cold: Iterable[pa.Table], *, at_once: bool = False) -> Iterator[pa.Table]:
        """The rows of *cold* whose key no hot row has. Raises: KeyInTwoPartitions.

        Several tables are looked up together; *at_once*: each alone, for a caller that may stop early.
        """
        if self.numbers is None:
            yield from cold
            return
        rows_min = 0 if at_once else max(COLD_ROWS_PER_KEY * len(self.numbers), COLD_ROWS_MIN)
        for rows in gathered(cold, rows_min):
            yield self._uncovered(rows, self.numbers)

    def _uncovered(self, rows: pa.Table, keys: KeyNumbers) -> pa.Table:
        covered, there = keys.among([rows.column(name) for name in self.key])
        if not len(covered):
            return rows
        moved = np.flatnonzero(rows.column(PARTITION).take(covered).to_numpy() != self.partitions[there])
        if len(moved):
            row, number = int(covered[moved[0]]), int(there[moved[0]])
            raise key_in_two_partitions(
                self.table,
                key_text(rows, self.key, row),
                first=_coordinate(rows, row),
                second=(int(self.partitions[number]), int(self.offsets[number])),
            )
        stays = np.ones(rows.num_rows, np.bool_)
        stays[covered] = False
        return rows.filter(pa.array(stays))


def fold(table: str, rows: pa.Table, key: tuple[str, ...]) -> Folded:
    """The newest of *rows* per *key*; they have all coordinates that this needs, in exact types.

    Raises: KeyInTwoPartitions.
    """
    if not rows.num_rows:
        none = np.empty(0, np.int64)
        return Folded(table=table, key=key, rows=rows, numbers=None, partitions=none, offsets=none)
    keys = KeyNumbers([rows.column(name) for name in key])
    partitions, offsets = int_column(rows, PARTITION), int_column(rows, OFFSET)
    newest = np.empty(len(keys), np.int64)
    in_order = np.argsort(offsets, kind="stable")
    newest[keys.first[in_order]] = in_order  # of several that are assigned to a place the last one stays
    moved = np.flatnonzero(partitions != partitions[newest][keys.first])
    if len(moved):
        one, other = int(moved[0]), int(newest[keys.first[moved[0]]])
        raise key_in_two_partitions(
            table, key_text(rows, key, one), first=_coordinate(rows, one), second=_coordinate(rows, other)
        )
    is_newest = np.zeros(rows.num_rows, np.bool_)
    is_newest[newest] = True
    return Folded(
        table=table,
        key=key,
        rows=rows.filter(pa.array(is_newest)),
        numbers=keys,
        partitions=partitions[newest],
        offsets=offsets[newest],
    )


def key_text(rows: pa.Table, key: Sequence[str], row: int) -> str:
    """The key of a row for people: ``order_id=7, city='Oslo'``."""
    return ", ".join(f"{name}={rows.column(name)[row].as_py()!r}" for name in key)


def gathered(tables: Iterable[pa.Table], rows_min: int) -> Iterator[pa.Table]:
    """*tables* joined until each has *rows_min* rows, but for the last."""
    waiting: list[pa.Table] = []
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        if rows >= rows_min:
            yield pa.concat_tables(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def int_column(rows: pa.Table, name: str) -> Numbers:
    """A column of whole numbers without NULL."""
    return np.asarray(rows.column(name).to_numpy(), dtype=np.int64)


def _coordinate(rows: pa.Table, row: int) -> tuple[int, int]:
    found: list[Any] = [rows.column(name)[row].as_py() for name in (PARTITION, OFFSET)]
    return found[0], found[1]
