"""The time of a record may be any 64 bits."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.formats.columns.times import kafka_time, kafka_times, kafka_times_us
from harness_pipelines.ports.decoded import with_coordinates
from harness_pipelines.show.rows import json_rows
from harness_pipelines.spec.table import TableSpec

FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
NO_TIMES = [-1, 1_700_000_000_000_000_000, 1_700_000_000_000_000, 253_402_300_800_000, 9_223_372_036_854_776, 2**63 - 1,
            -(2**63), FIRST_MS - 1]  # fmt: skip


@pytest.mark.parametrize("ms", NO_TIMES)
def test_what_is_no_time_is_null_and_the_record_is_a_row(ms: int) -> None:
    rows = pa.table({"id": [1, 2]})
    spec = TableSpec.model_validate({"table": "a.b", "columns": {"id": "long"}})
    stamps = pa.array([ms, 1_700_000_000_123])
    made = with_coordinates(rows, partition=0, offsets=pa.array([5, 6]), timestamps_ms=stamps, columns=spec.columns)[
        "_kafka_timestamp"
    ]
    assert made.to_pylist() == [None, dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=dt.UTC)]


@given(st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(FIRST_MS - 2, LAST_MS + 2), st.sampled_from(NO_TIMES)))
def test_one_time_is_as_many(ms: int) -> None:
    [found] = kafka_times(pa.array([ms], pa.int64())).to_pylist()
    assert found == kafka_time(ms)
    assert (found is None) == (ms == -1 or not FIRST_MS <= ms <= LAST_MS)
    if abs(ms) < 2**63 // 1000:  # as Spark's source has it
        assert kafka_times_us(pa.array([ms * 1000]).view(pa.timestamp("us", "UTC"))).to_pylist() == [found]


def test_no_records_and_records_without_a_time() -> None:
    assert kafka_times(pa.array([], pa.int64())).to_pylist() == []
    assert kafka_times(pa.array([None, -1], pa.int64())).to_pylist() == [None, None]


def test_rows_that_have_such_a_time_since_long_ago_are_shown() -> None:
    kind = pa.timestamp("us", "UTC")
    old = pa.array([0, 253_402_300_800_000_000, 2**62]).view(kind)
    assert list(json_rows(pa.table({"t": old}))) == [{"t": "1970-01-01T00:00:00+00:00"}, {"t": None}, {"t": None}]
