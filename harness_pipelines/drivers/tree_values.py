"""Columns of Arrow in the domain of the region tree."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness_pipelines.drivers.conform import unscaled_int64
from harness_pipelines.layout.columns import ColumnValues, IndexedColumn, Value, column_values, unscaled
from harness_pipelines.layout.curve import scale_of

WHOLE = ("boolean", "int", "long", "date", "time", "timestamp", "timestamptz")  #: types of whole numbers there


def to_values(column: pa.ChunkedArray, of: IndexedColumn) -> ColumnValues:
    """Arrow's values in the domain of the tree, see `harness_pipelines.layout.columns`.

    A UUID is text, as Spark has it, or its bytes.
    """
    nulls = np.asarray(column.is_null())
    is_decimal = of.type.startswith("decimal") and of.dtype.kind == "i"
    if is_decimal:
        column = pa.chunked_array([unscaled_int64(chunk) for chunk in column.chunks], type=pa.int64())
    if is_decimal or of.type in WHOLE:
        whole = column.cast(pa.int32()) if of.type == "date" else column
        filled = pc.fill_null(whole.cast(pa.int64()), 0)
        return ColumnValues(np.asarray(filled), nulls)
    if of.is_float:
        filled = np.asarray(pc.fill_null(column.cast(pa.float64()), 0.0)) + 0.0  # -0.0 is 0.0
        return ColumnValues(filled, nulls)
    return column_values(of, [None if v is None else _plain(v, of) for v in column.to_pylist()])


def _plain(value: Any, of: IndexedColumn) -> Value:
    if isinstance(value, Decimal):
        return unscaled(value, scale_of(of))
    if of.type == "uuid":
        return value if isinstance(value, bytes) else uuid.UUID(str(value)).bytes
    return value
