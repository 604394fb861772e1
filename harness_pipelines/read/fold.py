"""The newest row per key, in Arrow: how versions of a key in the hot tiers hide each other and what is cold.

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

from harness_pipelines.protocol.keys import PUT, key_in_two_partitions
from harness_pipelines.spec.predicate import OFFSET, PARTITION
from harness_pipelines.stores.segment_types import OPERATION

Numbers = NDArray[np.int64]
COLD_ROWS_MIN = 65_536  #: cold rows are looked up so many at a time, while the next ones are read
COLD_ROWS_PER_KEY = 8  #: and so many per hot key, because each look-up begins by hashing all of these


class KeyNumbers:
    """Numbers 0, 1, ... for the distinct keys of some rows; ``of`` those rows they are `first`."""

    def __init__(self, columns: Sequence[pa.ChunkedArray]) -> None:
        self._values: list[pa.Array] = []  #: distinct ones of each column
        self._pairs: list[pa.Array] = []  #: distinct ones of the numbers so far with those of each further column
        numbers = self._numbered(columns[0], self._values)
        for column in columns[1:]:
            more = self._numbered(column, self._values)
            numbers = self._numbered(_pairs(numbers, more, len(self._values[-1])), self._pairs)
        self.first = numbers

    def __len__(self) -> int:
        return len((self._pairs or self._values)[-1])

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

        Several tables are looked up together; *at_once* each by itself, for who may stop early.
        """
        if self.numbers is None:
            yield from cold
            return
        rows_min = 0 if at_once else max(COLD_ROWS_PER_KEY * len(self.numbers), COLD_ROWS_MIN)
        for rows in gathered(cold, rows_min):
            yield self._uncovered(rows, self.numbers)

    def _uncovered(self, rows: pa.Table, keys: KeyNumbers) -> pa.Table:
        numbers = keys.of([rows.column(name) for name in self.key])
        covered = np.flatnonzero(numbers >= 0)
        if not len(covered):
            return rows
        there = numbers[covered]
        moved = np.flatnonzero(int_column(rows, PARTITION)[covered] != self.partitions[there])
        if len(moved):
            row, number = int(covered[moved[0]]), int(there[moved[0]])
            raise key_in_two_partitions(
                self.table,
                key_text(rows, self.key, row),
                first=_coordinate(rows, row),
                second=(int(self.partitions[number]), int(self.offsets[number])),
            )
        return rows.filter(pa.array(numbers < 0))


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
