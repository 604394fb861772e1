"""A score says what readers touch, and only a better layout counts as better."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.layout.build import build
from harness_pipelines.layout.columns import IndexedColumn, Value, column_values
from harness_pipelines.layout.files import Extent, FileStats, classify
from harness_pipelines.layout.queries import Queries, synthetic
from harness_pipelines.layout.scores import Score, Workload, predicted_files, score, touched_bytes
from harness_pipelines.layout.tree import RegionTree
from harness_pipelines_tests.unit.layout.given import (
    arrays,
    file_of,
    histogram_of,
    quantile_histogram,
    skewed,
    tables,
    tree_of,
    values_of,
)

LONG = IndexedColumn("n", "long")
A_SCORE = Score(probe_ratio=2.0, point_depth=1.5, staged_share=0.2, spread=1.2, largest=1.1)


def asking(columns, *ranges: tuple[tuple[Value | None, Value | None], ...]) -> Queries:
    sides = [
        tuple(column_values(c, [query[axis][side] for query in ranges]) for axis, c in enumerate(columns))
        for side in (0, 1)
    ]
    return Queries(sides[0], sides[1], np.ones(len(ranges)))


@given(table=tables(most=3), data=st.data())
def test_a_file_with_a_matching_row_is_always_touched(table, data):
    columns, rows = table
    tree = tree_of(columns, rows)
    at = tree.route(arrays(columns, rows))
    groups = [[row for row, i in zip(rows, at, strict=True) if i == index] for index in sorted(set(at.tolist()))]
    ranges = tuple(
        data.draw(st.one_of(st.just((None, None)), st.tuples(values_of(c), values_of(c)).map(sorted).map(tuple)))
        for c in columns
    )

    touched = [touched_bytes([file_of("f", rows, columns)], columns, asking(columns, ranges))[0] for rows in groups]

    for rows_, found in zip(groups, touched, strict=True):
        if any(all(_matches(v, *r) for v, r in zip(row, ranges, strict=True)) for row in rows_):
            assert found == 10 * len(rows_)


def _matches(value: Value | None, low: Value | None, high: Value | None) -> bool:
    return (low is None and high is None) or (value is not None and low <= value <= high)


@pytest.mark.parametrize(
    ("extent", "touched"),
    [
        (Extent(1, 4, 0), False),
        (Extent(1, 5, 0), True),
        (Extent(8, 9, 0), True),
        (Extent(9, 12, 0), False),
        (Extent(None, None, 5), False),
        (Extent(), True),
        (Extent(9, None, 0), False),
    ],
)
def test_files_are_ruled_out_by_their_bounds_alone(extent, touched):
    file = FileStats(path="f", rows=5, bytes=50, sequence=1, extents=(extent,))

    assert touched_bytes([file], [LONG], asking([LONG], ((5, 8),))).tolist() == [50.0 if touched else 0.0]
    assert touched_bytes([file], [LONG], asking([LONG], ((None, None),))).tolist() == [50.0]


def test_disjoint_files_have_depth_one_and_files_over_one_another_all_of_them():
    rows = [(i,) for i in range(100)]
    histogram = histogram_of([LONG], rows)
    workload = Workload.of(histogram, synthetic(histogram))
    apart = [file_of(str(i), rows[i * 25 : i * 25 + 25], [LONG]) for i in range(4)]
    mixed = [file_of(str(i), rows[i::4], [LONG]) for i in range(4)]

    good, bad = (score(files, [LONG], workload, target_bytes=250, staged_share=0.0) for files in (apart, mixed))

    assert good.point_depth == 1.0
    assert bad.point_depth > 3.8
    assert good.better_than(bad)
    assert not bad.better_than(good)
    assert (good.spread, good.largest) == (1.0, 1.0)


def test_a_layout_by_the_tree_is_predicted_better_than_a_single_file():
    columns, values = skewed(20_000, seed=11)
    histogram = quantile_histogram(columns, values, 300)
    rows = tuple(column.take(np.arange(500)) for column in values)  # points of the grid may lie outside of their bounds
    workload = replace(Workload.of(histogram, synthetic(histogram)), points=rows)

    def predicted(tree: RegionTree) -> Score:
        files = predicted_files(tree, values, bytes_per_row=10.0)
        assert sum(file.rows for file in files) == 20_000
        return score(files, columns, workload, target_bytes=10_000, staged_share=0.0)

    fine, one = predicted(build(histogram, target_rows=1000)), predicted(RegionTree.single(columns))

    assert fine.better_than(one)
    assert fine.point_depth == 1.0
    assert one.largest == 20.0
    assert fine.probe_ratio < one.probe_ratio / 2


@given(tables())
def test_predicted_files_hold_every_row_and_lie_in_their_regions(table):
    columns, rows = table
    tree = tree_of(columns, rows)

    files = predicted_files(tree, arrays(columns, rows), bytes_per_row=2.0)

    assert sum(file.rows for file in files) == len(rows)
    assert [file.bytes for file in files] == [2 * file.rows for file in files]
    assert classify(tree, files) == [file.path for file in files]


@given(st.tuples(*[st.floats(0, 10)] * 5), st.tuples(*[st.floats(0, 10)] * 5))
def test_of_two_layouts_at_most_one_is_better(a, b):
    one, other = (Score(**dict(zip(Score.__dataclass_fields__, fields, strict=True))) for fields in (a, b))

    assert not (one.better_than(other) and other.better_than(one))
    assert not one.better_than(one)


@pytest.mark.parametrize("field", list(Score.__dataclass_fields__))
def test_less_in_one_field_is_better_and_a_hair_less_is_not(field):
    value = getattr(A_SCORE, field)

    assert replace(A_SCORE, **{field: value * 0.9}).better_than(A_SCORE)
    assert not replace(A_SCORE, **{field: value * 0.999}).better_than(A_SCORE)
    assert not replace(A_SCORE, **{field: value * 1.1}).better_than(A_SCORE)


def test_no_files_score_nothing():
    histogram = histogram_of([LONG], [])
    empty = score([], [LONG], Workload.of(histogram, synthetic(histogram)), target_bytes=1, staged_share=0.0)

    assert astuple(empty) == (0.0,) * 5
    assert predicted_files(RegionTree.single([LONG]), arrays([LONG], []), bytes_per_row=1.0) == []
