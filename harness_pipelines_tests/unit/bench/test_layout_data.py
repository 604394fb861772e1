"""The rows and queries of the layout bench are what the bench says they are."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import pytest

from harness_pipelines_tests.bench.layout_data import (
    CLASSES,
    Dataset,
    Queries,
    batches_2d,
    clusters_2d,
    events_3d,
    lineitem,
    queries,
    retail_price_cents,
)

MAKERS = (clusters_2d, events_3d, lineitem)
EPOCH = date(1970, 1, 1)


def matching(data: Dataset, asked: Queries) -> np.ndarray:
    """(q,): the share of rows that each query finds."""
    found = np.ones((len(asked), data.rows), bool)
    for c, column in enumerate(data.columns):
        found &= (column >= asked.low[:, c, None]) & (column <= asked.high[:, c, None])
    shares: np.ndarray = found.mean(axis=1)
    return shares


@pytest.mark.parametrize("make", MAKERS)
def test_a_seed_gives_the_same_rows_and_queries_and_another_seed_gives_others(make):
    first, again, other = make(2_000, 1), make(2_000, 1), make(2_000, 2)
    asked, asked_again = queries(first, 5, per_class=3), queries(again, 5, per_class=3)

    assert all(np.array_equal(a, b) for a, b in zip(first.columns, again.columns, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first.columns, other.columns, strict=True))
    assert all(np.array_equal(asked[c].low, asked_again[c].low) for c in CLASSES)


@pytest.mark.parametrize("make", MAKERS)
def test_every_column_has_one_value_per_row_that_a_double_holds_exactly(make):
    data = make(3_001, 3)

    assert {len(column) for column in data.columns} == {3_001}
    assert len(data.columns) == len(data.names) == len(data.types)
    for column in data.columns:
        assert np.array_equal(column.astype(np.float64).astype(column.dtype), column)


def test_boxes_hold_their_share_of_rows_where_no_value_is_frequent():
    data = clusters_2d(20_000, 1)
    asked = queries(data, 2, per_class=40)

    for name, share in {"box 1 %": 0.01, "box 5 %": 0.05, "box 10 %": 0.10, "slab 1 %": 0.01}.items():
        assert np.allclose(matching(data, asked[name]), share, rtol=0.02), name


def test_a_frequent_value_is_taken_whole():
    data = events_3d(20_000, 1)
    user = data.columns[1]
    hottest = np.bincount(user).argmax()
    slabs = queries(data, 2, per_class=60)["slab 1 %"]
    on_it = (slabs.low[:, 1] == hottest) & (slabs.high[:, 1] == hottest)

    assert on_it.any()
    assert np.allclose(matching(data, Queries(slabs.low[on_it], slabs.high[on_it])), (user == hottest).mean())


def test_a_slab_is_closed_in_one_column_and_mixed_queries_in_any_number_of_them():
    asked = queries(events_3d(2_000, 1), 2)
    closed = {name: np.isfinite(of.low).sum(axis=1) for name, of in asked.items()}

    assert tuple(asked) == CLASSES
    assert set(closed["slab 1 %"]) == {1}
    assert set(closed["box 5 %"]) == {3}
    assert np.bincount(closed["mixed"]).tolist() == pytest.approx([0, 100, 50, 50], abs=2)
    assert all(len(of) == 200 for of in asked.values())


def test_every_column_is_asked_for_equally_often():
    asked = queries(events_3d(2_000, 1), 2, per_class=180)

    assert np.isfinite(asked["slab 1 %"].low).sum(axis=0).tolist() == [60, 60, 60]
    assert len(set(np.isfinite(asked["mixed"].low).sum(axis=0).tolist())) == 1


def test_lineitem_keeps_to_the_ranges_of_the_tpch_specification():
    shipdate, partkey, price = lineitem(60_000, 1).columns
    parts = 60_000 // 30
    quantity, rest = np.divmod(price, retail_price_cents(partkey))

    assert EPOCH + timedelta(days=int(shipdate.min())) >= date(1992, 1, 2)
    assert EPOCH + timedelta(days=int(shipdate.max())) <= date(1998, 12, 1)
    assert (partkey.min(), partkey.max()) == (1, parts)
    assert not rest.any()
    assert (quantity.min(), quantity.max()) == (1, 50)


@pytest.mark.parametrize(("partkey", "cents"), [(1, 90_100), (10, 91_001), (999, 189_999), (1_000, 90_100)])
def test_retail_prices_follow_the_formula_of_the_specification(partkey, cents):
    assert retail_price_cents(np.array([partkey]))[0] == cents


def test_time_rises_but_for_late_events_and_one_user_has_a_large_share():
    time_us, user, amount = events_3d(50_000, 1).columns
    behind = np.maximum.accumulate(time_us) - time_us

    assert 0.5 < (np.diff(time_us) < 0).mean() + 0.5 < 1.0
    assert behind.max() < 3_600 * 1_000_000 * 2
    assert 0.10 < np.bincount(user).max() / len(user) < 0.20
    assert (amount >= 0).all()


def test_clusters_have_background_and_far_outliers():
    x, y = clusters_2d(100_000, 1).columns

    assert 0 < ((np.abs(x) > 5_000) | (np.abs(y) > 5_000)).mean() < 0.002
    counts, *_ = np.histogram2d(x, y, bins=50, range=[[0, 1_000], [0, 1_000]])
    assert (counts > 0).mean() > 0.9
    assert np.sort(counts.ravel())[-125:].sum() > 0.4 * len(x)


def test_batches_together_are_all_rows_and_only_drifting_ones_move():
    def centre(data: Dataset) -> float:
        return float(np.median(data.columns[0]))

    still = list(batches_2d(50_003, 1))
    moving = list(batches_2d(50_003, 1, drift=2.0))

    assert len(still) == len(moving) == 50
    assert sum(batch.rows for batch in still) == sum(batch.rows for batch in moving) == 50_003
    assert abs(centre(still[-1]) - centre(still[0])) < 200
    assert 1_700 < centre(moving[-1]) - centre(moving[0]) < 2_300
