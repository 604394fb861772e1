"""Digest v1: a 64-bit digest of each row, and sums of them that no order changes.

The definition, so that another program can compute the same number:

- ``mix`` is the finalizer of SplitMix64; all arithmetic is modulo 2^64.
- A value is one or more 64-bit words. Booleans, integers, dates (days), times and timestamps (microseconds) are one
  signed word; floats are the bits of the double that equals them, every NaN as 0x7ff8000000000000; decimals are the low
  and the high word of the unscaled 128-bit integer. Strings (UTF-8), binaries and UUIDs of at most 256 bytes are their
  bytes in little-endian words, the last one filled up with zeros; longer ones are the BLAKE2b-64 of their bytes. Lists,
  maps and structs are strings: the JSON text of `harness_pipelines.protocol.schema.nested_json`, in which the fields
  that a struct got later follow those that it had first, and only where they are not null; a dropped one is null.
- A column starts with ``h = seed``, the BLAKE2b-64 of its name, takes each word by ``h = mix(h ^ word)``, and ends, for
  strings and their like, with ``h = mix(h ^ length)`` (bytes). A null adds 0: a column that older rows do not have
  leaves their digests as they are.
- A row is ``mix`` of the sum of its columns. A set of rows is its count and the sum of its rows.

It finds accidents, not forgeries: it is no cryptographic digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from harness_pipelines.protocol.schema.nested_json import encode_json
from harness_pipelines.protocol.schema.schemas import DigestLayout

VERSION = "v1"
SHORT_BYTES_MAX = 256
_NAN = 0x7FF8000000000000
_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(9)], dtype=np.uint64)
_WORD = 8
BLOCK_ROWS = 4_096  #: their words stay in the processor's cache
#: Bytes of signed values, by the number of their type.
_WIDTHS = {
    kind.id: kind.bit_width // 8
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us")),
        *(pa.timestamp("us"), pa.duration("us")),
    )
}
#: Types of the offsets of texts, by the number of their type.
_TEXTS = {
    pa.string().id: np.int32,
    pa.binary().id: np.int32,
    pa.large_string().id: np.int64,
    pa.large_binary().id: np.int64,
}

Words = NDArray[np.uint64]


def row_digests(table: pa.Table, *, constants: Mapping[str, pa.Scalar] | None = None) -> Words:
    """The digest of each row of *table*, shape (rows,). The order of the columns does not matter, their names do.

    *constants* are further columns with one value in all rows.
    """
    shared = sum(_constant(name, value) for name, value in (constants or {}).items()) % 2**64
    return _digests([(table, shared)])


def lake_digests(decoded: pa.Table, *, schema_version: int | None) -> Words:
    """The digests that *decoded* rows (stored coordinates and user columns) will have in the lake and in the buffer.

    With ``None`` those of `value_digests`.
    """
    return _digests([(decoded, _shared(decoded, schema_version))])


def lake_digests_of(decoded: Sequence[tuple[pa.Table, int]]) -> list[Words]:
    """`lake_digests` of rows of many tables, each with its schema version.

    They are worked out together: a call costs as much as 2,000 rows.
    """
    digests = _digests([(rows, _shared(rows, version)) for rows, version in decoded])
    ends = np.cumsum([rows.num_rows for rows, _ in decoded])
    return np.split(digests, ends[:-1])


def _shared(decoded: pa.Table, schema_version: int | None) -> int:
    """What the columns that *decoded* rows get in the lake add to each."""
    shared = 0 if schema_version is None else _version(schema_version)
    if decoded.schema.get_field_index("_op") < 0:  # of an append table
        shared += _put()
    return shared % 2**64


def value_digests(rows: pa.Table) -> Words:
    """The digests of *rows* of the lake whatever schema they were decoded with."""
    return row_digests(rows.drop_columns(["_schema_version"]))


class Evolving(Protocol):
    """A table whose columns may have changed."""

    @property
    def first_names(self) -> Mapping[str, str]: ...

    @property
    def first_layouts(self) -> Mapping[str, DigestLayout]: ...


def as_first(rows: pa.Table, table: Evolving) -> pa.Table:
    """*rows* as digests are made of them: a rename, and a field that is added inside of a struct, change none.

    Columns have their first names; a column whose struct was changed is digested as text of its first form.
    """
    names = table.first_names
    return as_first_written(rows.rename_columns([names.get(n, n) for n in rows.column_names]) if names else rows, table)


def as_first_written(rows: pa.Table, table: Evolving) -> pa.Table:
    """The same of *rows* that have the first names already."""
    for name, layout in table.first_layouts.items():
        at = rows.schema.get_field_index(name)
        texts = [encode_json(chunk, layout) for chunk in rows.column(at).chunks]
        rows = rows.set_column(at, name, pa.chunked_array(texts, pa.string()))
    return rows


def total_digest(digests: Words) -> int:
    """The digest of a set of rows: the sum of theirs modulo 2^64."""
    return int(digests.sum(dtype=np.uint64))


def parsed(text: str) -> int:
    """The number that `shown` made *text* from. Raises: ValueError for a digest of another definition."""
    version, _, digits = text.partition(":")
    if version != VERSION:
        raise ValueError(f"digest {text!r} is not of definition {VERSION}")
    return int(digits, 16)


def added(first: int, second: int) -> int:
    """The digest of two disjoint sets together."""
    return (first + second) % 2**64


def shown(digest: int) -> str:
    """The text form that reports and the ledger keep."""
    return f"{VERSION}:{digest:016x}"


@cache
def _constant(name: str, value: pa.Scalar) -> int:
    """What a column of *value* adds to each row."""
    columns = _Columns()
    columns.add(pa.array([value.as_py()], value.type), seed_of(name), 0)
    total = np.zeros(1, np.uint64)
    columns.add_to(total)
    return int(total[0])


@cache
def _version(schema_version: int) -> int:
    return _constant("_schema_version", pa.scalar(schema_version, pa.int32()))


@cache
def _put() -> int:
    return _constant("_op", pa.scalar("put"))


@cache
def seed_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _digests(tables: Sequence[tuple[pa.Table, int]]) -> Words:
    """The digests of the rows of *tables*, one after the other; each comes with what is added to all of its rows.

    Columns of all tables are worked out together, block by block.
    """
    found: list[Words] = []
    block: list[tuple[pa.Table, int]] = []
    rows = 0
    for table, shared in tables:
        for first in range(0, table.num_rows, BLOCK_ROWS):
            part = table if table.num_rows <= BLOCK_ROWS else table.slice(first, BLOCK_ROWS)
            if rows + part.num_rows > BLOCK_ROWS:
                found.append(_of_block(block, rows))
                block, rows = [], 0
            block.append((part, shared))
            rows += part.num_rows
    return np.concatenate([*found, _of_block(block, rows)])


def _of_block(parts: Sequence[tuple[pa.Table, int]], rows: int) -> Words:
    """The digests of *rows* rows, those of *parts*."""
    total, columns, at = np.zeros(rows, np.uint64), _Columns(), 0
    for table, shared in parts:
        total[at : at + table.num_rows] = shared
        for name, column in zip(table.column_names, table.columns, strict=True):
            array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
            if array.null_count < len(array):
                columns.add(array, seed_of(name), at)
        at += table.num_rows
    columns.add_to(total)
    return _mix(total)


def _mix(x: Words) -> Words:
    """SplitMix64's finalizer, in place."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


@dataclass(slots=True)
class _Alike:
    """Columns that are worked out by the same steps, one behind the other."""

    seeds: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  #: the row at which each begins
    sizes: list[int] = field(default_factory=list)  #: rows of each
    valid: dict[int, Words] = field(default_factory=dict)  #: 1 or 0 for each row of those that have nulls, by number

    def add(self, array: pa.Array, seed: int, at: int) -> None:
        if array.null_count:
            validity = pc.is_valid(array).to_numpy(zero_copy_only=False)
            self.valid[len(self.seeds)] = validity.astype(np.uint64)
        self.seeds.append(seed)
        self.places.append(at)
        self.sizes.append(len(array))

    def begun(self) -> Words:
        """The seed of each value."""
        return np.repeat(np.array(self.seeds, np.uint64), self.sizes)

    def add_to(self, total: Words, digests: Words) -> None:
        """Add the *digests* of all values to those of their rows; nulls add nothing."""
        first = 0
        for number, (at, size) in enumerate(zip(self.places, self.sizes, strict=True)):
            found = digests[first : first + size]
            total[at : at + size] += found * self.valid[number] if number in self.valid else found
            first += size


class _Columns:
    """Columns of some rows. Each call of NumPy or Arrow costs as much as some hundred values: they share them."""

    def __init__(self) -> None:
        self._short, self._wide, self._texts = _Alike(), _Alike(), _Alike()
        self._words: list[Words] = []  # of the short ones
        self._low: list[Words] = []  # words of the wide ones
        self._high: list[Words] = []
        self._starts: list[NDArray[np.int64]] = []  # of texts in the content of all
        self._lengths: list[NDArray[np.int64]] = []
        self._content: list[NDArray[np.uint8]] = []
        self._bytes = 0  # of the content

    def add(self, array: pa.Array, seed: int, at: int) -> None:
        """Add a column, which begins at the row *at*; what its nulls hold does not matter."""
        kind = array.type
        if (width := _WIDTHS.get(kind.id)) is not None:
            self._add_short(array, _signed(array, width), seed, at)
        elif kind.id in _TEXTS:
            self._add_texts(array, seed, at)
        elif pa.types.is_decimal128(kind):
            words = np.frombuffer(array.buffers()[1], dtype="<u8")[2 * array.offset : 2 * (array.offset + len(array))]
            self._wide.add(array, seed, at)
            self._low.append(words[::2])
            self._high.append(words[1::2])
        elif isinstance(array, pa.ExtensionArray):
            self.add(array.storage, seed, at)
        elif pa.types.is_nested(kind):
            self._add_texts(encode_json(array), seed, at)
        elif pa.types.is_fixed_size_binary(kind):
            self._add_texts(array.cast(pa.binary()), seed, at)
        elif pa.types.is_floating(kind):
            doubles = pc.fill_null(array.cast(pa.float64()), 0.0).to_numpy()
            bits = doubles.view(np.uint64).copy()
            bits[np.isnan(doubles)] = _NAN
            self._add_short(array, bits, seed, at)
        else:
            self._add_short(array, _signed(array.cast(pa.int64()), _WORD), seed, at)

    def _add_short(self, array: pa.Array, words: Words, seed: int, at: int) -> None:
        self._short.add(array, seed, at)
        self._words.append(words)

    def _add_texts(self, array: pa.Array, seed: int, at: int) -> None:
        _, offset_bytes, content = array.buffers()
        offsets = np.frombuffer(offset_bytes, dtype=_TEXTS[array.type.id])[array.offset :][: len(array) + 1]
        offsets = offsets.astype(np.int64)
        first, last = int(offsets[0]), int(offsets[-1])
        bytes_ = np.frombuffer(content, dtype=np.uint8)[first:last] if last > first else np.empty(0, np.uint8)
        self._texts.add(array, seed, at)
        self._starts.append(offsets[:-1] - first + self._bytes)
        self._lengths.append(offsets[1:] - offsets[:-1])
        self._content.append(bytes_)
        self._bytes += last - first

    def add_to(self, total: Words) -> None:
        """Add the digests of all values to those of their rows, *total*."""
        if self._words:
            self._short.add_to(total, _mix(self._short.begun() ^ np.concatenate(self._words)))
        if self._low:
            once = _mix(self._wide.begun() ^ np.concatenate(self._low))
            self._wide.add_to(total, _mix(once ^ np.concatenate(self._high)))
        if self._content:
            self._texts.add_to(total, self._of_texts())

    def _of_texts(self) -> Words:
        """Digest bytes word by word for all values at once; only long values are looked at one by one."""
        data = np.concatenate([*self._content, np.zeros(_WORD, np.uint8)])
        starts, lengths = np.concatenate(self._starts), np.concatenate(self._lengths)
        words: Words = np.ndarray((len(data) - _WORD + 1,), dtype="<u8", buffer=data.data, strides=(1,))
        digests = self._texts.begun()
        longest, shortest = int(lengths.max()), int(lengths.min())
        short = lengths if longest <= SHORT_BYTES_MAX else np.where(lengths <= SHORT_BYTES_MAX, lengths, 0)
        for position in range(0, min(longest, SHORT_BYTES_MAX), _WORD):
            rows: NDArray[np.int64] | slice = slice(None)
            if longest > SHORT_BYTES_MAX or shortest <= position:
                rows = np.flatnonzero(short > position)
            left = np.minimum(short[rows] - position, _WORD)
            digests[rows] = _mix(digests[rows] ^ (words[starts[rows] + position] & _MASKS[left]))
        for row in np.flatnonzero(lengths > SHORT_BYTES_MAX) if longest > SHORT_BYTES_MAX else ():
            value = data[starts[row] : starts[row] + lengths[row]].tobytes()
            word = int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")
            digests[row] = _mix(digests[row : row + 1] ^ np.uint64(word))[0]
        return _mix(digests ^ lengths.view(np.uint64))


def _signed(array: pa.Array, width: int) -> Words:
    """The signed words of values of *width* bytes."""
    values = np.frombuffer(array.buffers()[1], dtype=f"<i{width}")[array.offset : array.offset + len(array)]
    return values.astype(np.int64, copy=False).view(np.uint64)
