"""Comparing the rows of two views, and what their counts can tell."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.audit.proof.batch_view import differences
from harness_pipelines.protocol.lake.files import rows_below
from harness_pipelines.read.digested import Rows

ROWS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2)), max_size=8)


def rows(pairs) -> Rows:
    """Rows of (offset, content)."""
    ordered = sorted(pairs)
    return Rows(np.array([o for o, _ in ordered], np.int64), np.array([c for _, c in ordered], np.uint64))


def named(stream, batch):
    return {(str(kind), o) for kind, offsets, _ in differences(rows(stream), rows(batch)) for o in offsets}


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ([(1, 1), (2, 2), (3, 3)], set()),
        ([(1, 1), (3, 3)], {("missing", 2)}),
        ([(1, 1), (2, 2), (2, 2), (3, 3)], {("duplicated", 2)}),
        ([(1, 1), (2, 9), (3, 3)], {("changed", 2)}),
        ([(1, 1), (2, 2), (3, 3), (7, 7)], {("unexplained", 7)}),
        ([], {("missing", 1), ("missing", 2), ("missing", 3)}),
    ],
)
def test_what_one_view_has_otherwise_than_the_other_is_named_by_its_offset(batch, expected):
    assert named([(1, 1), (2, 2), (3, 3)], batch) == expected


@given(stream=st.sets(st.tuples(st.integers(0, 6), st.just(1))), batch=ROWS)
def test_views_that_differ_are_never_found_equal(stream, batch):
    assert bool(named(stream, batch)) == (sorted(stream) != sorted(batch))


@given(offsets=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True)), high=st.integers(0, 11))
def test_the_rows_below_an_offset_lie_between_what_the_files_bounds_tell(offsets, high):
    least, most = rows_below([(len(o), min(o), max(o)) for o in offsets], high)

    assert least <= sum(o < high for file in offsets for o in file) <= most
