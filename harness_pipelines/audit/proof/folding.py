"""Fold a changelog to the newest version of each key, with 25 bytes per key.

A key is identified by its 64-bit digest: among a billion keys, two collide with a chance of some percent.
Then an audit finds a difference that is none; it never overlooks one for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from harness_pipelines.protocol.digest import Words, row_digests
from harness_pipelines.protocol.keys import PUT
from harness_pipelines.read.digested import Rows

FOLD_ROWS = 2_000_000  #: rows that are held before they are folded again, or as many as there are keys


@dataclass(frozen=True, slots=True, eq=False)
class Versions:
    """Versions of keys in one partition, in no order."""

    keys: Words  #: digests of the key's columns
    rows: Rows
    puts: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def from_arrow(cls, table: pa.Table, key: Sequence[str]) -> Versions:
        """Of rows with all their columns."""
        puts = pc.equal(table.column("_op"), PUT).to_numpy()
        return cls(key_digests(table, key), Rows.from_arrow(table), puts)

    @classmethod
    def of(cls, parts: Sequence[Versions]) -> Versions:
        offsets = np.concatenate([np.empty(0, np.int64), *(p.rows.offsets for p in parts)])
        digests = np.concatenate([np.empty(0, np.uint64), *(p.rows.digests for p in parts)])
        keys = np.concatenate([np.empty(0, np.uint64), *(p.keys for p in parts)])
        return cls(keys, Rows(offsets, digests), np.concatenate([np.empty(0, np.bool_), *(p.puts for p in parts)]))

    def newest(self) -> Versions:
        """The version with the highest offset of each key."""
        order = np.lexsort((self.rows.offsets, self.keys))
        ordered = self.keys[order]
        is_last = np.ones(len(self), np.bool_)
        is_last[:-1] = ordered[1:] != ordered[:-1]
        return self._at(order[is_last])

    def live(self) -> Rows:
        """The puts, in offset order."""
        return Rows.of([self._at(np.flatnonzero(self.puts)).rows])

    def within(self, low: int, high: int) -> Versions:
        return self._at(np.flatnonzero((self.rows.offsets >= low) & (self.rows.offsets < high)))

    def _at(self, places: NDArray[np.intp]) -> Versions:
        rows = Rows(self.rows.offsets[places], self.rows.digests[places])
        return Versions(self.keys[places], rows, self.puts[places])


def key_digests(table: pa.Table, key: Sequence[str]) -> Words:
    """A digest per row of the columns *key*, in which NULL is a value."""
    return row_digests(table.select(list(key)))


def folded(batches: Iterable[Versions]) -> Rows:
    """The newest puts of all *batches*, which are of one partition; memory is bounded by the number of keys."""
    held, pending, waiting = Versions.of([]), list[Versions](), 0
    for batch in batches:
        pending.append(batch)
        waiting += len(batch)
        if waiting >= max(FOLD_ROWS, len(held)):
            held, pending, waiting = Versions.of([held, *pending]).newest(), [], 0
    return Versions.of([held, *pending]).newest().live()


def met_again(keys: Words) -> NDArray[np.intp]:
    """The places of keys that are in *keys* more than once, but for the first of each."""
    order = np.argsort(keys, kind="stable")
    same = keys[order][1:] == keys[order][:-1]
    return np.sort(order[1:][same])
