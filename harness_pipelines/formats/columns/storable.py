"""Values that no tier can store. Codecs refuse them; here the results of expressions are checked.

Dates and times outside of the years 1 to 9999 (an engine's infinity is one), times that are not of a day, and text
with U+0000. Lists, maps and structs are JSON in the buffer, whose text may have it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from harness_pipelines.formats.columns.shapes import DAY_US, DAYS
from harness_pipelines.formats.refusals import VALUE_BYTES_MAX

_MOMENTS_US = (DAYS[0] * DAY_US, (DAYS[1] + 1) * DAY_US - 1)


def unstorable(column: pa.ChunkedArray) -> dict[int, str]:
    """Why by the places of the values of *column* that cannot be stored."""
    found: dict[int, str] = {}
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    for at, why in _wrong(array):
        for place in at.tolist():
            found.setdefault(place, why)
    return found


def _wrong(array: pa.Array, *, nested: bool = False) -> Iterator[tuple[NDArray[np.int64], str]]:
    """Places in *array* with what is wrong there; *nested*: it is a part of others."""
    kind = array.type
    t = pa.types
    if t.is_string(kind) or t.is_binary(kind):
        yield (
            _places(pc.greater(pc.binary_length(array), VALUE_BYTES_MAX)),
            f"it has more than {VALUE_BYTES_MAX:,} bytes",
        )
    if t.is_string(kind) and not nested:
        yield _places(pc.match_substring(array, "\0")), "the text holds U+0000, which the buffer cannot store"
    elif t.is_date32(kind):
        yield _outside(array.view(pa.int32()), *DAYS), "the date is not in the years 1 to 9999"
    elif t.is_timestamp(kind):
        yield _outside(array.view(pa.int64()), *_MOMENTS_US), "the time is not in the years 1 to 9999"
    elif t.is_time64(kind):
        yield _outside(array.view(pa.int64()), 0, DAY_US - 1), "the time is not one of a day"
    elif t.is_struct(kind):
        for i in range(kind.num_fields):
            yield from _wrong(pc.struct_field(array, i), nested=True)
    elif t.is_map(kind):
        offsets = array.offsets.to_numpy()
        inside = slice(int(offsets[0]), int(offsets[-1]))
        for part in (array.keys, array.items):
            yield from _of_lists(part[inside], offsets - offsets[0])
    elif t.is_list(kind):
        offsets = array.offsets.to_numpy()
        yield from _of_lists(array.values[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])


def _of_lists(values: pa.Array, offsets: NDArray[np.int32]) -> Iterator[tuple[NDArray[np.int64], str]]:
    """The same of the lists that have *values* from one of *offsets* to the next."""
    for at, why in _wrong(values, nested=True):
        yield np.unique(np.searchsorted(offsets, at, side="right") - 1), why


def _outside(numbers: pa.Array, low: int, high: int) -> NDArray[np.int64]:
    return _places(pc.or_(pc.less(numbers, low), pc.greater(numbers, high)))


def _places(verdict: pa.Array) -> NDArray[np.int64]:
    if not verdict.true_count:
        return np.empty(0, np.int64)
    return np.flatnonzero(pc.fill_null(verdict, False).to_numpy(zero_copy_only=False))
