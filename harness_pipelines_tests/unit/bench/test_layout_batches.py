"""By the stage's own rules no order of rows makes the tree deep."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_pipelines.layout.balance import depth_max
from harness_pipelines_tests.bench.layout_batches import BatchView
from harness_pipelines_tests.bench.layout_data import Dataset, batches_in_order

ROWS_PER_FILE = 40
DEPTH_SENT_MAX = 45  #: nested cuts that a request to Spark once could not hold


def in_time(first: int, rows: int, spread: float, seed: int) -> Dataset:
    """Orders in order of time: *spread* says how late some are."""
    order = np.arange(first, first + rows)
    at = (order * 10 + np.random.default_rng(seed).exponential(spread, rows)).astype(np.int64)
    return Dataset(name="orders", names=("at", "order_id"), types=("timestamptz", "long"), columns=(at, order))


def moved(view: BatchView, batch: Dataset) -> None:
    view.merge(batch)
    while view.relayout():
        pass


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(1, 6 * ROWS_PER_FILE), min_size=1, max_size=25), st.sampled_from([0.0, 50.0, 5000.0]))
def test_rows_in_order_of_time_never_make_a_deep_tree_and_none_is_lost(sizes: list[int], spread: float):
    view, first = BatchView(rows_per_file=ROWS_PER_FILE), 0
    for seed, rows in enumerate(sizes):
        moved(view, in_time(first, rows, spread, seed))
        first += rows

    assert view.deepest <= 1
    assert np.sort(np.concatenate([f.rows for f in view.files])).tolist() == list(range(first))


def test_merges_of_one_file_each_in_order_of_time_leave_the_tree_balanced():
    view, count = BatchView(rows_per_file=ROWS_PER_FILE), 70
    for batch in batches_in_order(count * ROWS_PER_FILE, 1, count=count):
        moved(view, batch)

    assert len(view.tree) > 0.8 * count
    assert view.tree.depth <= depth_max(len(view.tree)) < DEPTH_SENT_MAX
    assert view.written <= 3.6 * view.rows
