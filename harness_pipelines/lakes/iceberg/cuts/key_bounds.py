"""Which files of a batch view may hold rows with some keys, by the bounds of the key columns in their manifests.

Values and bounds are mapped to numbers or to texts of 16 bytes so that no order is turned round: what lies between two
bounds still does afterwards. So a file is left out only if no key is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from harness_pipelines.lakes.iceberg.checked_io import KEPT
from harness_pipelines.lakes.iceberg.read.live_files import Mask
from harness_pipelines.lakes.iceberg.read.scan import PinnedView
from harness_pipelines.protocol.reading.selection import ReadColumn

_TEXT = 16  #: bytes of a text that count; writers cut bounds off there
_DIGITS = 18  #: of a decimal whose whole value is a number of 64 bits
_LONGS = np.iinfo(np.int64)


def may_hold(view: PinnedView, columns: Sequence[ReadColumn], values: pa.Table) -> Mask:
    """Which files of *view* may have a row whose key is one of *values*, the columns of which are *columns*."""
    found = np.ones(len(view.files), np.bool_)
    for column in columns:
        these = values.column(column.name)
        if these.null_count or not len(these):
            continue  # NULL is within no bounds
        low, high = _bounds(view, column)
        ordered = np.sort(_ordinals(these))
        found &= np.searchsorted(ordered, low, side="left") < np.searchsorted(ordered, high, side="right")
    return found


def _ordinals(values: pa.ChunkedArray) -> NDArray[Any]:
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        values, kind = values.cast(kind.storage_type), kind.storage_type
    if _is_text(kind):
        return np.array(values.cast(pa.large_binary()).to_pylist(), f"S{_TEXT}")
    if pa.types.is_decimal(kind):
        whole = np.concatenate([_halves(chunk) for chunk in values.chunks])
        return np.ascontiguousarray(whole[:, 0 if kind.precision <= _DIGITS else 1])
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    elif pa.types.is_temporal(kind):
        values = pc.cast(values.cast(pa.int32()) if pa.types.is_date32(kind) else values, pa.int64())
    return np.asarray(values.to_numpy()).astype(np.int64)


def _halves(chunk: pa.Array) -> NDArray[np.int64]:
    """The lower and the upper half of each decimal."""
    return np.frombuffer(chunk.buffers()[1], np.int64)[2 * chunk.offset :][: 2 * len(chunk)].reshape(-1, 2)


def _is_text(kind: pa.DataType) -> bool:
    return any(is_(kind) for is_ in (pa.types.is_string, pa.types.is_binary, pa.types.is_fixed_size_binary))


def _bounds(view: PinnedView, column: ReadColumn) -> tuple[NDArray[Any], NDArray[Any]]:
    """By file the bounds of *column*, as `_ordinals`; where a file has none, the widest."""
    assert column.field_id is not None
    field_id, kind = column.field_id, column.arrow.type

    def read() -> tuple[NDArray[Any], NDArray[Any]]:
        files, of = view.files, _of_bound(kind)
        lower, upper = ([side(field_id, at) for at in range(len(files))] for side in (files.lower, files.upper))
        least, most, dtype = _widest(kind)
        low = np.array([least if bound is None else of(bound) for bound in lower], dtype)
        high = np.array([most if bound is None else of(bound) for bound in upper], dtype)
        return low, high

    made = f"bounds of {field_id} as {kind}"
    return KEPT.get(view.location, read, kind=made, weigh=lambda found: int(found[0].nbytes + found[1].nbytes))


def _widest(kind: pa.DataType) -> tuple[Any, Any, str]:
    if _is_text(kind) or isinstance(kind, pa.BaseExtensionType):
        return b"", b"\xff" * _TEXT, f"S{_TEXT}"
    return _LONGS.min, _LONGS.max, "i8"


def _of_bound(kind: pa.DataType) -> Callable[[bytes], Any]:
    """How a bound, as Iceberg writes it, becomes an ordinal; of a column that was widened it may be shorter."""
    if _is_text(kind) or isinstance(kind, pa.BaseExtensionType):
        return bytes
    if pa.types.is_decimal(kind):
        shift = 0 if kind.precision <= _DIGITS else 64
        return lambda bound: int.from_bytes(bound, "big", signed=True) >> shift
    return lambda bound: int.from_bytes(bound, "little", signed=True)
