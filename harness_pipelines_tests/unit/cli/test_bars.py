"""Bars and figures that people read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.ledgers.postgres.views.status import RowlessOffsets
from harness_pipelines.ports.ledger import PartitionStatus
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.show import bars


@given(st.lists(st.integers(0, 10**12), min_size=3, max_size=3))
def test_a_bar_never_hides_a_tier_that_holds_something_and_never_outgrows_its_width(sizes):
    found = bars.cells(sizes, scale=sum(sizes), width=48)

    assert sum(found) <= 48
    assert [size > 0 for size in sizes] == [count > 0 for count in found]


def test_bars_of_partitions_share_one_scale():
    spans = [
        bars.Spans(partition=0, lake=100, buffer=0, tail=0),
        bars.Spans(partition=1, lake=25, buffer=25, tail=None),
    ]

    first, second = (line.plain for line in bars.bars(spans, width=8))

    assert first == "  0 ████████ 100 | 0 | 0"
    assert second == "  1 ██▓▓     25 | 25 | ?"


def test_a_table_with_a_batch_view_has_four_parts_with_a_mark_each():
    bounds = Bounds(start=0, batch_hi=40, stream_hi=60, buffer_hi=70)
    spans = bars.spans_of([PartitionStatus(partition=0, bounds=bounds, trim_floor=0)], {0: 80})

    [line] = (line.plain for line in bars.bars(spans, width=8))

    assert line == "  0 ▚▚▚▚██▓░ 40 | 20 | 10 | 10"
    assert bars.legend(spans).plain.split() == ["▚", "batch", "█", "stream", "▓", "buffer", "░", "tail"]


def test_refused_and_filtered_offsets_are_no_rows_of_any_tier():
    bounds = Bounds(start=0, batch_hi=40, stream_hi=60, buffer_hi=100)
    positions = [PartitionStatus(partition=p, bounds=bounds, trim_floor=0) for p in (0, 1)]
    apart = {0: RowlessOffsets(batch=10, stream=20, buffer=5, filtered=13)}

    spans = bars.spans_of(positions, {0: 100, 1: 100}, apart=apart)
    first, second = (line.plain for line in bars.bars(spans, width=10))

    assert first == "  0 ▚▚▓▓▓✗✗✗✗✗ 24 | 0 | 28 | 0 | 48"
    assert second == "  1 ▚▚▚▚██▓▓▓▓ 40 | 20 | 40 | 0 | 0"
    assert bars.legend(spans).plain.split()[-3:] == ["✗", "no", "rows"]
    assert {one.total for one in spans} == {100}


@given(st.lists(st.integers(0, 50), min_size=3, max_size=3), st.integers(0, 150))
def test_what_is_filtered_is_taken_from_the_tiers_and_no_more_than_they_have(sizes: list[int], filtered: int):
    batch_hi, stream_hi, buffer_hi = sizes[0], sizes[0] + sizes[1], sum(sizes)
    bounds = Bounds(start=0, batch_hi=batch_hi, stream_hi=stream_hi, buffer_hi=buffer_hi)
    apart = {0: RowlessOffsets(batch=0, stream=0, buffer=0, filtered=filtered)}

    [found] = bars.spans_of([PartitionStatus(partition=0, bounds=bounds, trim_floor=0)], {}, batch=True, apart=apart)

    assert found.no_rows == min(filtered, buffer_hi)
    assert min(found.batch or 0, found.stream, found.buffer) >= 0


def test_a_batch_view_is_shown_from_its_first_rows_on_or_where_it_is_told_of():
    bounds = Bounds(start=0, batch_hi=0, stream_hi=60, buffer_hi=70)
    positions = [PartitionStatus(partition=0, bounds=bounds, trim_floor=0)]

    assert bars.numbers(bars.spans_of(positions, {})[0]) == "60 | 10 | ?"
    assert bars.numbers(bars.spans_of(positions, {}, batch=True)[0]) == "0 | 60 | 10 | ?"


def test_the_legend_of_tables_without_a_batch_view_is_as_it_was():
    assert bars.legend().plain.split() == ["█", "lake", "▓", "buffer", "░", "tail"]


def test_spans_come_from_the_bounds_and_an_unknown_end_stays_unknown():
    bounds = Bounds(start=10, batch_hi=10, stream_hi=30, buffer_hi=35)
    positions = [PartitionStatus(partition=p, bounds=bounds, trim_floor=10) for p in (0, 1)]

    known, unknown = bars.spans_of(positions, {0: 40})

    assert known == bars.Spans(partition=0, lake=20, buffer=5, tail=5)
    assert unknown.tail is None


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.04, "0.0 s"), (9.96, "10.0 s"), (119, "119 s"), (180, "3 min"), (7200, "2 h"), (200_000, "2 d")],
)
def test_an_age_is_short(seconds, shown):
    assert bars.ago(seconds) == shown


def test_sizes_are_in_the_unit_that_fits():
    assert [bars.size(n) for n in (512, 30_310, 5 * 2**30)] == ["512 B", "29.6 KB", "5.0 GB"]
