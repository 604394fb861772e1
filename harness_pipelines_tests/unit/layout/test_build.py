"""Trees are even, the same for the same data, and equal keys end alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.layout.boxes import At
from harness_pipelines.layout.build import OVERSIZE, build, split_region
from harness_pipelines.layout.columns import ColumnValues, CutRefused, IndexedColumn, ShapesDiffer, column_values
from harness_pipelines.layout.histogram import CellHistogram, bucket, edges_of
from harness_pipelines.layout.queries import Queries, synthetic
from harness_pipelines.layout.tree import RegionTree
from harness_pipelines_tests.unit.layout.given import (
    NAN,
    TYPES,
    arrays,
    histogram_of,
    quantile_histogram,
    skewed,
    tables,
)

LONG, DOUBLE = IndexedColumn("n", "long"), IndexedColumn("x", "double")


def sizes_of(tree: RegionTree, values) -> np.ndarray:
    return np.bincount(tree.route(values), minlength=len(tree))


@given(table=tables(), data=st.data())
def test_the_same_rows_in_any_order_give_the_same_histogram_and_tree(table, data):
    columns, rows = table
    shuffled = data.draw(st.permutations(rows))

    one, other = histogram_of(columns, rows), histogram_of(columns, shuffled)

    assert np.array_equal(one.cells, other.cells)
    assert np.array_equal(one.counts, other.counts)
    assert build(one, target_rows=3).digest == build(other, target_rows=3).digest


@given(table=tables(), data=st.data())
def test_histograms_of_parts_merge_into_that_of_the_whole(table, data):
    columns, rows = table
    whole = histogram_of(columns, rows)
    at = data.draw(st.integers(0, len(rows)))

    parts = [CellHistogram.count(columns, whole.edges, arrays(columns, some)) for some in (rows[at:], rows[:at])]

    merged = parts[0].merged(parts[1])
    assert np.array_equal(merged.cells, whole.cells)
    assert np.array_equal(merged.counts, whole.counts)


@given(table=tables(most=3))
def test_every_region_above_the_limit_holds_equal_keys_only(table):
    columns, rows = table
    histogram = histogram_of(columns, rows)
    target = 3

    tree = build(histogram, target_rows=target)

    even = len(rows) / max(1, round(len(rows) / target))
    for region, rows_here in zip(tree.regions(), sizes_of(tree, arrays(columns, rows)), strict=True):
        one_cell = region.unsplittable or _is_one_cell(tree, region.path, columns, rows, histogram)
        assert rows_here <= OVERSIZE * even or one_cell


def _is_one_cell(tree, path, columns, rows, histogram) -> bool:
    inside = tree.route(arrays(columns, rows)) == tree.paths().index(path)
    return len(np.unique(bucket(histogram.edges, arrays(columns, rows))[inside], axis=0)) == 1


def test_regions_of_skewed_rows_are_even():
    columns, values = skewed(60_000, seed=3)

    tree = build(quantile_histogram(columns, values, 1000), target_rows=600)

    sizes = sizes_of(tree, values)
    assert 90 <= len(sizes) <= 110
    assert np.percentile(sizes, 95) <= 1.3 * np.median(sizes)
    assert sizes.max() <= 1.5 * 600


@pytest.mark.parametrize("name", TYPES)
def test_equal_keys_end_in_a_region_of_their_own_that_cannot_be_cut(name):
    column = IndexedColumn("c", name)
    heavy = {"string": "heavy", "uuid": b"\7" * 16, "boolean": 1}.get(name, 7)
    rows = [(heavy,)] * 200 + [(column.least,)] * 3

    tree = build(histogram_of([column], rows), target_rows=10)

    alone = tree.regions()[tree.route(arrays([column], [(heavy,)]))[0]]
    assert alone.unsplittable
    assert sizes_of(tree, arrays([column], rows))[tree.paths().index(alone.path)] == 200


def test_a_value_with_a_fifth_of_the_rows_does_not_spoil_the_others():
    random = np.random.default_rng(1)
    values = [ColumnValues(np.where(random.random(20_000) < 0.2, 40_000, random.integers(0, 100_000, 20_000)))]

    tree = build(quantile_histogram([LONG], values, 1000), target_rows=200)

    sizes = sizes_of(tree, values)
    alone = [i for i, region in enumerate(tree.regions()) if region.unsplittable]
    assert [sizes[i] > 3_800 for i in alone] == [True]
    assert np.delete(sizes, alone).max() <= 1.5 * 200


def test_equal_keys_in_one_column_are_cut_by_the_other():
    random = np.random.default_rng(2)
    values = [ColumnValues(np.full(5_000, 7)), ColumnValues(random.normal(size=5_000))]

    tree = build(quantile_histogram([LONG, DOUBLE], values, 500), target_rows=100)

    assert sizes_of(tree, values).max() <= 150


@pytest.mark.parametrize("name", ["long", "double", "string"])
def test_a_column_of_nulls_only_is_one_region_that_cannot_be_cut(name):
    column = IndexedColumn("c", name)
    rows = [(None,)] * 100

    tree = build(histogram_of([column], rows), target_rows=10)

    full = [r for r, n in zip(tree.regions(), sizes_of(tree, arrays([column], rows)), strict=True) if n]
    assert [(r.unsplittable, r.box.spans[0].values) for r in full] == [(True, False)]


def test_nan_and_null_get_slabs_of_their_own_where_they_fill_files():
    rows = [(float(i),) for i in range(100)] + [(NAN,)] * 40 + [(None,)] * 40

    tree = build(histogram_of([DOUBLE], rows), target_rows=20)

    at = tree.route(arrays([DOUBLE], [(NAN,), (None,)]))
    spans = [tree.regions()[i].box.spans[0] for i in at]
    assert [(s.values, s.null, s.nan) for s in spans] == [(False, False, True), (False, True, False)]


@pytest.mark.parametrize("rows", [[], [(1,)], [(None,)]])
def test_no_row_or_one_row_is_one_region(rows):
    assert build(histogram_of([LONG], rows), target_rows=10) == RegionTree.single([LONG])


def test_a_target_above_all_rows_is_one_region():
    assert len(build(histogram_of([LONG], [(i,) for i in range(9)]), target_rows=100)) == 1


def test_cuts_follow_the_recorded_queries():
    random = np.random.default_rng(4)
    values = [ColumnValues(random.random(10_000)), ColumnValues(random.random(10_000))]
    columns = (IndexedColumn("asked", "double"), IndexedColumn("never", "double"))
    low = np.linspace(0, 0.99, 200)
    open_side = ColumnValues(np.zeros(200), np.ones(200, dtype=bool))
    queries = Queries((ColumnValues(low), open_side), (ColumnValues(low + 0.01), open_side), np.ones(200))

    tree = build(quantile_histogram(columns, values, 2000), target_rows=500, queries=queries)

    assert set(tree.axes) == {0, 255}


def test_synthetic_boxes_find_about_the_shares_they_should():
    columns, values = skewed(30_000, seed=5)
    histogram = quantile_histogram(columns, values, 300)

    low, high = synthetic(histogram).buckets(histogram.edges)

    found = np.array(
        [
            histogram.counts[np.all((histogram.cells >= a) & (histogram.cells <= b), axis=1)].sum() / histogram.rows
            for a, b in zip(low[:3000:50], high[:3000:50], strict=True)
        ]
    )
    assert 0.005 < np.median(found) < 0.12


def test_a_region_is_split_alone():
    columns, values = skewed(20_000, seed=6)
    histogram = quantile_histogram(columns, values, 400)
    tree = build(histogram, target_rows=4000)
    path = tree.paths()[2]
    inside = tree.route(values) == 2
    own = quantile_histogram(columns, [v.take(inside) for v in values], 200)

    split = split_region(tree, path, own, target_rows=1000, queries=synthetic(histogram))

    below = [p for p in split.paths() if p.startswith(path)]
    assert len(below) == round(own.rows / 1000)
    assert split.collapse(path) == tree
    sizes = sizes_of(split, values)[[split.paths().index(p) for p in below]]
    assert sizes.max() <= 1500


def test_queries_beyond_a_region_do_not_shape_its_cuts():
    random = np.random.default_rng(8)
    columns = (IndexedColumn("x", "double"), IndexedColumn("y", "double"))
    tree = RegionTree.single(columns).split("", 0, At(0.5))
    values = [ColumnValues(random.random(2_000) / 2), ColumnValues(random.random(2_000))]
    here, there = [(0.2, 0.21), (None, None)], [(0.6, 0.7), (0.4, 0.5)]
    own = quantile_histogram(columns, values, 200)

    def cut_for(*asked) -> RegionTree:
        low, high = ([column_values(c, [q[i][side] for q in asked]) for i, c in enumerate(columns)] for side in (0, 1))
        queries = Queries(tuple(low), tuple(high), np.ones(len(asked)))
        return split_region(tree, "0", own, target_rows=1000, queries=queries)

    assert cut_for(here, *[there] * 50) == cut_for(here)


def test_a_split_with_rows_of_other_regions_is_refused():
    rows = [(i,) for i in range(100)]
    tree = build(histogram_of([LONG], rows), target_rows=50)

    with pytest.raises(CutRefused, match="strictly inside"):
        split_region(tree, "0", histogram_of([LONG], rows), target_rows=5)
    with pytest.raises(ShapesDiffer, match="expected a histogram over"):
        split_region(tree, "0", histogram_of([DOUBLE], [(1.0,)]), target_rows=5)


def test_edges_of_another_grid_do_not_merge():
    with pytest.raises(ShapesDiffer, match="on one grid"):
        histogram_of([LONG], [(1,)]).merged(histogram_of([LONG], [(2,)]))


def test_a_frequent_quantile_has_a_line_on_either_side():
    assert edges_of(LONG, [5, 1, 5, 9]).tolist() == [1, 5, 6, 9]
    assert edges_of(IndexedColumn("b", "boolean"), [0, 0, 1, 1]).tolist() == [1]
    text = IndexedColumn("s", "string")
    assert edges_of(text, ["b", "a", "b"]).tolist() == ["a", "b", "b\0"]
    assert edges_of(text, ["x" * 40, "x" * 20]).tolist() == ["x" * 15, "x" * 14 + "y"]


@pytest.mark.parametrize(
    ("cells", "counts"),
    [(np.array([[9]]), np.array([1])), (np.array([[-1]]), np.array([1])), (np.array([[0, 0]]), np.array([1]))],
)
def test_cells_off_the_grid_are_refused(cells, counts):
    lines = column_values(LONG, [1, 2]).values
    with pytest.raises(ShapesDiffer, match="expected"):
        CellHistogram.of([LONG], [lines], cells, counts)
