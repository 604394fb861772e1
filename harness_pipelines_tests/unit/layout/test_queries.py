"""Queries that stand for what readers ask."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from harness_pipelines.layout.columns import ColumnValues, IndexedColumn
from harness_pipelines.layout.queries import CENTRES, SHARES, synthetic
from harness_pipelines.layout.sampling import Sample

ROWS = 20_000
COLUMNS = (IndexedColumn("a", "long"), IndexedColumn("b", "long"), IndexedColumn("c", "double"))


@pytest.fixture(scope="module")
def sample() -> Sample:
    dice = np.random.default_rng(5)
    values = (dice.integers(0, 10**9, ROWS), dice.integers(0, 10**9, ROWS), dice.random(ROWS))
    return Sample(COLUMNS, tuple(ColumnValues(column, np.zeros(ROWS, dtype=bool)) for column in values), 1.0)


def asked(sample: Sample, *filters: tuple[str, ...]) -> list[frozenset[str]]:
    """Per query the columns that it filters by."""
    found = synthetic(sample.histogram, filters=filters)
    closed = [~(low.is_null & high.is_null) for low, high in zip(found.low, found.high, strict=True)]
    return [
        frozenset(c.name for c, is_closed in zip(COLUMNS, one, strict=True) if is_closed) for one in np.stack(closed, 1)
    ]


def test_the_sets_of_columns_that_are_given_are_asked_for_and_no_others(sample: Sample):
    found = asked(sample, ("a",), ("b", "c"))
    assert len(found) == len(SHARES) * CENTRES
    assert found.count(frozenset("a")) == pytest.approx(len(found) / 2, rel=0.01)
    assert set(found) == {frozenset("a"), frozenset("bc")}


def test_a_set_that_is_named_twice_counts_twice(sample: Sample):
    found = asked(sample, ("a",), ("b",), ("a",))
    assert found.count(frozenset("a")) == pytest.approx(2 * found.count(frozenset("b")), rel=0.01)


def test_without_sets_boxes_are_over_all_columns_and_slabs_over_each(sample: Sample):
    found = asked(sample)
    assert {*found} == {frozenset("abc"), frozenset("a"), frozenset("b"), frozenset("c")}
    assert found.count(frozenset("abc")) == len(SHARES) * CENTRES


def test_a_box_finds_about_its_share_of_the_rows_whatever_columns_it_is_over(sample: Sample):
    for filters in ([("b",)], [("a", "c")], []):
        queries = synthetic(sample.histogram, filters=filters)
        low, high = queries.buckets(sample.histogram.edges)
        cells = sample.histogram.cells
        shares = [np.all((cells >= a) & (cells <= b), axis=1).mean() for a, b in zip(low[:60], high[:60], strict=True)]
        assert np.mean(shares) == pytest.approx(np.mean(SHARES), rel=0.25)


def test_regions_are_cut_in_the_columns_that_are_filtered_by(sample: Sample):
    def cuts(*filters: tuple[str, ...]) -> Counter[int]:
        tree = Sample(sample.columns, sample.values, 1.0, filters=filters).tree(target_rows=ROWS / 32)
        return Counter(node[0] for node in tree.nodes() if node is not None)

    # A region that is narrower than every query may be cut anywhere.
    assert cuts(("b",))[1] > 0.8 * cuts(("b",)).total()
    assert max(cuts().values()) < 0.6 * cuts().total()
