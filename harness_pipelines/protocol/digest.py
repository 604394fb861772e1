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
from collections.abc import Mapping
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

Words = NDArray[np.uint64]


def row_digests(table: pa.Table, *, constants: Mapping[str, pa.Scalar] | None = None) -> Words:
    """The digest of each row of *table*, shape (rows,). The order of the columns does not matter, their names do.

    *constants* are further columns with one value in all rows.
    """
    shared = sum(_constant(name, value) for name, value in (constants or {}).items()) % 2**64
    total = np.full(table.num_rows, shared, dtype=np.uint64)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if len(column) == 0 or column.null_count == len(column):
            continue
        array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
        found = _column(array, seed_of(name))
        if array.null_count:
            found *= pc.is_valid(array).to_numpy(zero_copy_only=False).astype(np.uint64)
        total += found
    return _mix(total)


def lake_digests(decoded: pa.Table, *, schema_version: int | None) -> Words:
    """The digests that *decoded* rows (stored coordinates and user columns) will have in the lake and in the buffer.

    With ``None`` those of `value_digests`.
    """
    constants: dict[str, pa.Scalar] = {}
    if schema_version is not None:
        constants["_schema_version"] = pa.scalar(schema_version, pa.int32())
    if "_op" not in decoded.column_names:  # of an append table
        constants["_op"] = pa.scalar("put")
    return row_digests(decoded, constants=constants)


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
    return int(_column(pa.array([value.as_py()], value.type), seed_of(name))[0])


@cache
def seed_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _mix(x: Words) -> Words:
    """SplitMix64's finalizer, in place."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def _column(array: pa.Array, seed: int) -> Words:
    """One word per value; what nulls get does not matter."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_nested(kind):
        array = encode_json(array)
        kind = array.type
    if pa.types.is_fixed_size_binary(kind):
        array = array.cast(pa.binary())
    elif not (pa.types.is_string(kind) or pa.types.is_binary(kind) or _is_large(kind)):
        return _fixed(array, seed)
    return _texts(array, seed)


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _fixed(array: pa.Array, seed: int) -> Words:
    kind = array.type
    if pa.types.is_decimal128(kind):
        words = np.frombuffer(array.buffers()[1], dtype="<u8")[2 * array.offset : 2 * (array.offset + len(array))]
        return _mix(_mix(words[::2] ^ np.uint64(seed)) ^ words[1::2])
    if pa.types.is_floating(kind):
        doubles = pc.fill_null(array.cast(pa.float64()), 0.0).to_numpy()
        bits = doubles.view(np.uint64).copy()
        bits[np.isnan(doubles)] = _NAN
        return _mix(bits ^ np.uint64(seed))
    if not (pa.types.is_signed_integer(kind) or pa.types.is_temporal(kind)):
        array, kind = array.cast(pa.int64()), pa.int64()
    # Not by way of Arrow's functions: each costs as much as some thousand values.
    values = np.frombuffer(array.buffers()[1], dtype=f"<i{kind.bit_width // 8}")[
        array.offset : array.offset + len(array)
    ]
    return _mix(values.astype(np.int64, copy=False).view(np.uint64) ^ np.uint64(seed))


def _texts(array: pa.Array, seed: int) -> Words:
    """Digest bytes word by word for all values at once; only long values are looked at one by one."""
    _, offset_bytes, content = array.buffers()
    width = np.int64 if _is_large(array.type) else np.int32
    offsets = np.frombuffer(offset_bytes, dtype=width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + _WORD, dtype=np.uint8)
    if last > first:
        data[: last - first] = np.frombuffer(content, dtype=np.uint8)[first:last]
    starts, lengths = offsets[:-1] - first, np.diff(offsets)
    words: Words = np.ndarray((last - first + 1,), dtype="<u8", buffer=data.data, strides=(1,))
    digests = np.full(len(array), seed, dtype=np.uint64)
    short = np.where(lengths <= SHORT_BYTES_MAX, lengths, 0)
    for position in range(0, int(short.max(initial=0)), _WORD):
        rows: NDArray[np.int64] | slice = slice(None)
        if int(short.min()) <= position:
            rows = np.flatnonzero(short > position)
        left = np.minimum(short[rows] - position, _WORD)
        digests[rows] = _mix(digests[rows] ^ (words[starts[rows] + position] & _MASKS[left]))
    for row in np.flatnonzero(lengths > SHORT_BYTES_MAX):
        value = data[starts[row] : starts[row] + lengths[row]].tobytes()
        word = int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")
        digests[row] = _mix(digests[row : row + 1] ^ np.uint64(word))[0]
    return _mix(digests ^ lengths.view(np.uint64))
