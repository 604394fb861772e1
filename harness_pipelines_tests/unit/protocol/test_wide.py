"""Which rows of a move go in which file, and what a file says of the partitions that it mixes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.lake import wide
from harness_pipelines.protocol.lake.wide import (
    FILE_OFFSETS,
    NARROW_MAX,
    Extent,
    Extents,
    NotByOffset,
    file_ranges,
    is_wide,
    split_evenly,
)


def ranges_of(spans: list[tuple[int, int]]) -> list[OffsetRange]:
    return [OffsetRange(partition=p, low=low, high=low + span) for p, (low, span) in enumerate(spans)]


moves = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 40_000)), min_size=1, max_size=60).map(ranges_of)


def covered(parts: list[tuple[OffsetRange, ...]]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for part in parts:
        for one in part:
            found.setdefault(one.partition, []).append((one.low, one.high))
    return found


@given(moves)
def test_a_wide_move_has_no_more_files_than_its_offsets_are_worth(ranges):
    parts = file_ranges(ranges)

    wide_parts = [part for part in parts if len(part) > 1]
    if is_wide(sum(r.span > 0 for r in ranges)):
        assert len(parts) <= max(1, sum(r.span for r in ranges) // FILE_OFFSETS)
    else:
        assert not wide_parts


def test_a_thousand_partitions_of_two_rows_are_one_file():
    assert len(file_ranges(ranges_of([(7, 2)] * 1_000))) == 1
    assert len(file_ranges(ranges_of([(7, 2)] * 20))) == 20


@given(moves)
def test_each_offset_is_in_one_file(ranges):
    parts = file_ranges(ranges)

    for partition, runs in covered(parts).items():
        [whole] = [r for r in ranges if r.partition == partition]
        assert runs[0][0] == whole.low
        assert runs[-1][1] == whole.high
        assert all(one[1] == following[0] for one, following in pairwise(runs))
    assert {r.partition for r in ranges if r.span} <= covered(parts).keys()


@given(moves)
def test_files_of_a_wide_move_follow_each_other_by_partition_and_offset(ranges):
    places = [(one.partition, one.low) for part in file_ranges(ranges) for one in part]

    assert places == sorted(places)


@given(moves.filter(lambda found: any(r.span for r in found)), st.integers(1, 50))
def test_parts_have_as_many_offsets_but_for_one(ranges, parts):
    spans = [sum(r.span for r in part) for part in split_evenly([r for r in ranges if r.span], parts)]

    assert min(spans) > 0
    assert max(spans) - min(spans) <= 1


def test_a_large_wide_move_is_cut_for_tasks(monkeypatch):
    monkeypatch.setattr(wide, "TASK_OFFSETS_MAX", 10)
    assert len(file_ranges(ranges_of([(0, 5)] * 40))) == 20


def test_a_topic_is_wide_above_a_number_of_partitions():
    assert not is_wide(NARROW_MAX)
    assert is_wide(NARROW_MAX + 1)


# -- extents ------------------------------------------------------------------------------------------------

extents = st.lists(
    st.tuples(st.integers(-1, 2**31 - 1), st.integers(0, 2**62), st.integers(1, 2**61), st.integers(0, 2**40)),
    max_size=40,
    unique_by=lambda told: told[0],
).map(lambda told: [Extent(partition=p, low=low, high=low + span, rows=rows) for p, low, span, rows in told])


@given(extents)
def test_extents_are_kept_exactly(told):
    assert list(Extents.of(told)) == sorted(told, key=lambda e: e.partition)


@given(extents)
def test_the_offsets_of_one_partition_are_found(told):
    kept = Extents.of(told)

    assert all(kept.of_partition(e.partition) == (e.low, e.high) for e in told)
    assert kept.of_partition(-2) is None


def test_a_thousand_partitions_take_some_kilobytes():
    told = [Extent(partition=p, low=10**9 + 977 * p, high=10**9 + 977 * p + 2, rows=2) for p in range(1_000)]
    assert len(Extents.of(told).packed) < 10_000


@given(st.dictionaries(st.integers(0, 50), st.sets(st.integers(0, 1_000), min_size=1, max_size=20), max_size=20))
def test_extents_are_those_of_the_rows(offsets):
    places = sorted((p, o) for p, taken in offsets.items() for o in taken)
    partitions, found = (np.array([place[i] for place in places], np.int64) for i in range(2))

    assert {e.partition: (e.low, e.high, e.rows) for e in Extents.of_rows(partitions, found, path="f")} == {
        p: (min(taken), max(taken) + 1, len(taken)) for p, taken in offsets.items()
    }


@pytest.mark.parametrize(
    "places", [[(1, 5), (0, 9)], [(0, 5), (0, 5)], [(0, 6), (0, 5)], [(0, 1), (1, 1), (0, 2)]], ids=str
)
def test_rows_in_another_order_are_refused(places):
    partitions, offsets = (np.array([place[i] for place in places], np.int64) for i in range(2))

    with pytest.raises(NotByOffset, match=r"file\.parquet.*expected rows by partition and offset.*nothing was"):
        Extents.of_rows(partitions, offsets, path="file.parquet")


@pytest.mark.parametrize("packed", [b"", b"\x01", b"\x02" + bytes(30), Extents.of([]).packed + b"\x00"])
def test_bytes_that_are_no_extents_are_refused(packed):
    with pytest.raises(ValueError, match="extents"):
        Extents(packed).columns()


@given(extents.filter(bool), st.data())
def test_within_is_exact(told, data):
    kept, ranges = Extents.of(told), {e.partition: (e.low, e.high) for e in told}
    assert kept.within(ranges)

    one = data.draw(st.sampled_from(told))
    low, high = ranges[one.partition]
    assert not kept.within({**ranges, one.partition: (low + 1, high)})
    assert not kept.within({**ranges, one.partition: (low, high - 1)})
    assert not kept.within({p: run for p, run in ranges.items() if p != one.partition})
