"""Selection of rows by a hash of the coordinate: repeatable, and a smaller sample is a subset.

The sample layer goes by Spark's ``xxhash64(_kafka_partition, _kafka_offset)``, of which the lowest `SAMPLE_BITS` bits
count. What a move draws for its tree goes by Spark's ``hash`` of the same, so that it takes of the layer as much as of
the other rows.
Sources: XXH64 (Collet), as Spark's `XXH64.hashInt` and `hashLong` chain it; Murmur3 for 32 bits (Appleby), as Spark's
`Murmur3_x86_32` does; seed 42.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from harness_pipelines.errors import UsageError

COORDINATE = ("_kafka_partition", "_kafka_offset")  #: what is hashed, in this order
SAMPLE_BITS = 31
_SEED = np.uint64(42)
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
Words = npt.NDArray[np.uint64]
HalfWords = npt.NDArray[np.uint32]


def threshold(fraction: float) -> int:
    """Rows whose hash is below it are in a sample of *fraction*, between 0 and 1. Raises: UsageError."""
    if not 0 < fraction <= 1:
        raise UsageError(f"a sample takes a share of the rows above 0 and up to 1, found {fraction!r}; 0.01 is 1 %")
    return int(fraction * 2**SAMPLE_BITS)


def row_hash(partitions: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Per row a number in ``[0, 2**SAMPLE_BITS)``, from its partition (int) and its offset (long)."""
    with np.errstate(over="ignore"):
        hashed = _of_int(partitions.astype(np.int32).view(np.uint32).astype(np.uint64), _SEED)
        hashed = _of_long(offsets.astype(np.int64).view(np.uint64), hashed)
    return (hashed & np.uint64(2**SAMPLE_BITS - 1)).astype(np.int64)


def _of_int(values: Words, seed: Words | np.uint64) -> Words:
    hashed = (seed + _P5 + np.uint64(4)) ^ (values * _P1)
    return _mixed(_rotated(hashed, 23) * _P2 + _P3)


def _of_long(values: Words, seed: Words) -> Words:
    hashed = (seed + _P5 + np.uint64(8)) ^ (_rotated(values * _P2, 31) * _P1)
    return _mixed(_rotated(hashed, 27) * _P1 + _P4)


def _mixed(hashed: Words) -> Words:
    hashed = (hashed ^ (hashed >> np.uint64(33))) * _P2
    hashed = (hashed ^ (hashed >> np.uint64(29))) * _P3
    return hashed ^ (hashed >> np.uint64(32))


def _rotated(words: Words, bits: int) -> Words:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def drawn(partitions: npt.NDArray[Any], offsets: npt.NDArray[Any], *, share: float) -> npt.NDArray[np.bool_]:
    """Which rows a draw of about *share* of all takes."""
    low, high = offsets.astype(np.int64).view(np.uint64), np.uint64(32)
    with np.errstate(over="ignore"):
        hashed = _murmur(partitions.astype(np.int32).view(np.uint32), np.uint32(42))
        hashed = _finished(hashed, 4)
        hashed = _murmur((low & np.uint64(0xFFFFFFFF)).astype(np.uint32), hashed)
        hashed = _finished(_murmur((low >> high).astype(np.uint32), hashed), 8)
    found: npt.NDArray[np.bool_] = (hashed & np.uint32(2**31 - 1)).astype(np.int64) < int(share * 2**31)
    return found


def _murmur(words: HalfWords, hashed: HalfWords | np.uint32) -> HalfWords:
    words = words * np.uint32(0xCC9E2D51)
    words = ((words << np.uint32(15)) | (words >> np.uint32(17))) * np.uint32(0x1B873593)
    hashed = hashed ^ words
    return ((hashed << np.uint32(13)) | (hashed >> np.uint32(19))) * np.uint32(5) + np.uint32(0xE6546B64)


def _finished(hashed: HalfWords, length: int) -> HalfWords:
    hashed = hashed ^ np.uint32(length)
    hashed = (hashed ^ (hashed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashed = (hashed ^ (hashed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashed ^ (hashed >> np.uint32(16))
