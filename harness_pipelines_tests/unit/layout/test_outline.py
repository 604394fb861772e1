"""A histogram from bounds alone, and values as people write them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.layout.boxes import Span
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.files import Extent, FileStats
from harness_pipelines.layout.labels import label, span_label
from harness_pipelines.layout.outline import outline

N, S = IndexedColumn("n", "long"), IndexedColumn("s", "string")


def file(path: str, rows: int, *extents: Extent) -> FileStats:
    return FileStats(path=path, rows=rows, bytes=rows, sequence=1, extents=extents)


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(-50, 50), st.integers(0, 30)), max_size=12))
def test_no_row_is_lost_and_every_row_lies_between_the_bounds_of_some_file(given_files):
    files = [file(str(i), rows, Extent(low, low + wide, 0)) for i, (rows, low, wide) in enumerate(given_files)]

    found = outline(files, [N])

    assert found.rows == sum(rows for rows, _, _ in given_files)
    lows = [low for rows, low, _ in given_files if rows]
    highs = [low + wide for rows, low, wide in given_files if rows]
    if lows:
        values = found.points(found.cells)[0].values
        assert min(lows) <= values.min()
        assert values.max() <= max(highs)


def test_the_order_of_the_files_does_not_matter():
    files = [file(str(i), 40, Extent(i, i + 7, 0), Extent("a", "b" * i or "a", i)) for i in range(9)]

    one, other = outline(files, [N, S]), outline(files[::-1], [N, S])

    assert np.array_equal(one.cells, other.cells)
    assert np.array_equal(one.counts, other.counts)


def test_nulls_have_their_share_and_a_file_that_tells_nothing_may_hold_anything():
    found = outline([file("a", 1000, Extent(0, 9, 250)), file("b", 1000, Extent())], [N])

    null = len(found.edges[0]) + 2
    assert 200 <= found.counts[found.cells[:, 0] == null].sum() <= 300


def test_an_empty_view_has_an_empty_outline():
    assert outline([], [N]).rows == 0


@pytest.mark.parametrize(
    ("type_", "value", "shown"),
    [
        ("date", 20_000, "2024-10-04"),
        ("timestamptz", 1_791_018_000_000_000, "2026-10-03 09:00"),
        ("timestamp", 0, "1970-01-01"),
        ("decimal(9,2)", 1250, "12.50"),
        ("uuid", bytes(16), "00000000-0000-0000-0000-000000000000"),
        ("boolean", 1, "true"),
        ("double", 0.1, "0.1"),
        ("time", 3_600_000_000, "01:00:00"),
        ("date", 10**8, "day 100000000"),
        ("string", "é", "é"),
    ],
)
def test_values_are_shown_as_they_are_written(type_, value, shown):
    assert label(IndexedColumn("c", type_), value) == shown


@pytest.mark.parametrize(
    ("span", "shown"),
    [
        (Span(), "any"),
        (Span(low=3, null=False), "from 3"),
        (Span(high=3, null=False), "below 3"),
        (Span(low=3, high=5), "[3, 5) or NULL"),
        (Span(values=False, nan=False), "NULL"),
    ],
)
def test_a_side_of_a_box_reads_as_a_condition(span, shown):
    assert span_label(N, span) == shown
