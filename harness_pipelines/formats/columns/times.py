"""Convert record timestamps of Kafka to the table's.

A producer may send any 64 bits as a record's time: nanoseconds in place of milliseconds, or what it never set. What
is not in the years 1 to 9999, which every reader of the table can show, is no time: the record is a row all the same.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness_pipelines.formats.columns.shapes import DAY_US, DAYS

_MOMENTS_MS = (DAYS[0] * DAY_US // 1000, (DAYS[1] + 1) * DAY_US // 1000 - 1)
_NO_TIME_MS = -1  #: Kafka's word for none
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = pa.timestamp("us", "UTC")


def kafka_times(timestamps_ms: pa.Array) -> pa.Array:
    """Moments of int64 milliseconds since 1970; NULL where there is none, or none that is a time."""
    low, high = _MOMENTS_MS
    if timestamps_ms.null_count:
        timestamps_ms = timestamps_ms.fill_null(_NO_TIME_MS)
    # Not by Arrow's functions: each of seven calls costs as much as some thousand values.
    numbers = timestamps_ms.to_numpy(zero_copy_only=False)
    if len(numbers) and 0 <= numbers.min() <= numbers.max() <= high:  # as all are, nearly always
        return pa.array(numbers * 1000).view(_US)
    is_time = (numbers >= low) & (numbers <= high) & (numbers != _NO_TIME_MS)
    return pa.array(np.where(is_time, numbers, 0) * 1000, pa.int64(), mask=~is_time).view(_US)


def kafka_times_us(moments: pa.Array) -> pa.Array:
    """The same of timestamps in microseconds."""
    numbers = moments.cast(_US).view(pa.int64())
    low, high = (ms * 1000 for ms in _MOMENTS_MS)
    is_time = pc.and_(pc.greater_equal(numbers, low), pc.less(numbers, high + 1000))
    return pc.if_else(pc.and_(is_time, pc.not_equal(numbers, _NO_TIME_MS * 1000)), numbers, None).view(_US)


def kafka_time(timestamp_ms: int) -> datetime | None:
    """The same of one."""
    if timestamp_ms == _NO_TIME_MS or not _MOMENTS_MS[0] <= timestamp_ms <= _MOMENTS_MS[1]:
        return None
    return _EPOCH + timedelta(milliseconds=timestamp_ms)
