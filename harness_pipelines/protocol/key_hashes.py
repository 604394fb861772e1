"""Keys of any types as numbers of 128 bits, by which rows of the same key are found.

The hash is multilinear: ``(m0 + sum(m[i] * word[i])) mod 2**64``, of which the upper 32 bits count, over words of 32
bits with random multipliers of 64 bits; four of these side by side. Each is strongly universal (Lemire and Kaser,
"Strongly universal string hashing is fast", The Computer Journal 57, 2014), so two different keys that were chosen
without knowledge of the multipliers have the same number with a probability of 2**-128. Among n keys two have the same
one with less than n**2 / 2**129: 1.5e-21 for a thousand million keys. The multipliers are random for each process
and leave it nowhere, so no producer can choose keys that meet.

A value longer than `WORDS_MAX` words counts by its keyed digest of 256 bits (BLAKE2b).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b, shake_256

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

#: Of n keys the two halves of each, ``(2, n)``: an array for each half, since these are searched.
Keys = NDArray[np.uint64]
Places = NDArray[np.int64]
LANES, SEED_BYTES = 4, 32
WORDS_MAX = 256  #: of a text or of bytes
AT_ONCE = 65_536  #: rows, so that the words of texts take a few MB
_VALID, _LENGTH, _FIRST = range(3)  #: words of a column: 1 if it is no NULL, its length, those of its value
_UPPER = np.uint64(32)


class KeyHasher:
    """Numbers of the keys of one process, or of one test that gives a *seed*."""

    def __init__(self, seed: bytes | None = None) -> None:
        self._seed = seed or secrets.token_bytes(SEED_BYTES)
        self._known: dict[int, NDArray[np.uint64]] = {}
        self._start = self._multipliers(-1, 1)[0]

    def of(self, columns: Sequence[pa.ChunkedArray]) -> Keys:
        """The numbers of rows, by their key's *columns*, which are of the exact types of the table."""
        names = [str(place) for place in range(len(columns))]
        batches = pa.table(list(columns), names=names).to_batches(max_chunksize=AT_ONCE)
        return np.concatenate([np.empty((2, 0), np.uint64), *map(self._of_batch, batches)], axis=1)

    def _of_batch(self, batch: pa.RecordBatch) -> Keys:
        sums = np.repeat(self._start[:, None], batch.num_rows, axis=1)
        for place, column in enumerate(batch.columns):
            self._add(sums, place, column.storage if isinstance(column, pa.ExtensionArray) else column)
        sums >>= _UPPER
        return np.stack([sums[0] << _UPPER | sums[1], sums[2] << _UPPER | sums[3]])

    def _add(self, sums: NDArray[np.uint64], place: int, column: pa.Array) -> None:
        """Add the words of *column*, the one at *place* of the key, to the *sums* of each lane."""
        valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False)).astype(np.uint64)
        sums += self._multipliers(place, _FIRST)[_VALID][:, None] * valid
        kind = column.type
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            self._add_bytes(sums, place, column.fill_null(b"" if pa.types.is_binary(kind) else ""))
            return
        words = _fixed_words(column) * valid[:, None].astype(np.uint32)
        factors = self._multipliers(place, _FIRST + words.shape[1])
        for number in range(words.shape[1]):
            sums += factors[_FIRST + number][:, None] * words[:, number].astype(np.uint64)

    def _add_bytes(self, sums: NDArray[np.uint64], place: int, column: pa.Array) -> None:
        values = column.cast(pa.large_binary())
        _, ends, data = values.buffers()
        ends = np.frombuffer(ends, np.int64)[values.offset : values.offset + len(values) + 1]
        starts, lengths = ends[:-1] - ends[0], np.diff(ends)
        sums += self._multipliers(place, _FIRST)[_LENGTH][:, None] * lengths.astype(np.uint64)
        for row in np.flatnonzero(lengths > 4 * WORDS_MAX).tolist():
            digest = np.frombuffer(blake2b(values[row].as_py(), digest_size=32, key=self._seed).digest(), np.uint32)
            factors = self._multipliers(place, _FIRST + len(digest))[_FIRST:]
            sums[:, row] += (factors * digest[:, None].astype(np.uint64)).sum(axis=0, dtype=np.uint64)
        short = np.flatnonzero((lengths > 0) & (lengths <= 4 * WORDS_MAX))
        if not len(short):
            return
        counts = -(-lengths[short] // 4)
        firsts = np.cumsum(counts) - counts
        number = np.arange(counts.sum()) - np.repeat(firsts, counts)  # of each word in its value
        there = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
        words = _words_at(there, np.repeat(starts[short], counts), 4 * number, np.repeat(lengths[short], counts))
        factors = self._multipliers(place, _FIRST + int(counts.max()))[_FIRST:]
        for lane in range(LANES):
            sums[lane, short] += np.add.reduceat(factors[number, lane] * words, firsts)

    def _multipliers(self, place: int, words: int) -> NDArray[np.uint64]:
        """Random factors ``(words, LANES)`` of the column at *place*; more words begin with those of fewer."""
        known = self._known.get(place)
        if known is None or len(known) < words:
            size = max(words, 16) * LANES * 8
            drawn = shake_256(self._seed + place.to_bytes(2, "little", signed=True)).digest(size)
            self._known[place] = known = np.frombuffer(drawn, np.uint64).reshape(-1, LANES)
        return known[:words]


@lru_cache(1)
def hasher() -> KeyHasher:
    """The one of this process."""
    return KeyHasher()


def _fixed_words(column: pa.Array) -> NDArray[np.uint32]:
    """The words ``(rows, words of a value)`` of a column whose values all have the same size."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int32())
    width = column.type.byte_width
    data = column.buffers()[1]
    found = np.frombuffer(data, np.uint8, len(column) * width, column.offset * width)
    return found.view(np.uint32).reshape(len(column), width // 4)


def _words_at(data: NDArray[np.uint8], starts: Places, at: Places, lengths: Places) -> NDArray[np.uint64]:
    """Words of four bytes *at* some places of values that begin at *starts* of *data*; zeros follow each value."""
    known = np.concatenate([data, np.zeros(3, np.uint8)])
    found = np.zeros(len(at), np.uint64)
    for byte in range(4):
        inside = at + byte < lengths
        found |= np.where(inside, known[starts + at + byte], 0).astype(np.uint64) << np.uint64(8 * byte)
    return found


def in_order(keys: Keys) -> Places:
    """The places that sort *keys*; those of the same key stay in their order."""
    return np.lexsort((keys[1], keys[0]))


def same_as_before(keys: Keys) -> NDArray[np.bool_]:
    """Which of some *keys* in order are the same as the one before."""
    found = np.zeros(keys.shape[1], np.bool_)
    found[1:] = np.all(keys[:, 1:] == keys[:, :-1], axis=0)
    return found


def matches(keys: Keys, among: Keys) -> tuple[Places, Places]:
    """All pairs of a place in *keys* and one in *among*, which is in order, that have the same key."""
    first = np.searchsorted(among[0], keys[0])
    inside = np.flatnonzero(first < among.shape[1])
    hit = inside[among[0][first[inside]] == keys[0][inside]]
    count = np.searchsorted(among[0], keys[0][hit], side="right") - first[hit]
    one = np.repeat(hit, count)
    begun = np.repeat(np.cumsum(count) - count, count)
    other = np.repeat(first[hit], count) + np.arange(len(one)) - begun
    same = among[1][other] == keys[1][one]
    return one[same], other[same]


def among(keys: Keys, known: Keys) -> NDArray[np.bool_]:
    """Which of *keys* are among the *known* ones, which are in order."""
    found = np.zeros(keys.shape[1], np.bool_)
    found[matches(keys, known)[0]] = True
    return found
