"""A sample is repeatable, nested and even; that it is Spark's hash is tested where Spark runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.errors import UsageError
from harness_pipelines.layout.row_hash import SAMPLE_BITS, row_hash, threshold

PARTITIONS, OFFSETS = np.repeat(np.arange(8), 25_000), np.tile(np.arange(25_000) + 10**9, 8)


@pytest.mark.parametrize("fraction", [0.001, 0.01, 0.5, 1.0])
def test_a_sample_takes_about_its_share_of_consecutive_offsets(fraction):
    taken = int((row_hash(PARTITIONS, OFFSETS) < threshold(fraction)).sum())

    assert abs(taken - fraction * len(OFFSETS)) <= 5 * (fraction * len(OFFSETS)) ** 0.5


def test_a_smaller_sample_is_a_part_of_a_larger_one():
    hashed = row_hash(PARTITIONS, OFFSETS)

    assert set(np.flatnonzero(hashed < threshold(0.001))) < set(np.flatnonzero(hashed < threshold(0.01)))


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)), min_size=1))
def test_a_row_has_its_hash_whatever_stands_beside_it(rows):
    partitions, offsets = (np.array(side) for side in zip(*rows, strict=True))

    together = row_hash(partitions, offsets)

    assert [int(row_hash(partitions[i : i + 1], offsets[i : i + 1])[0]) for i in range(len(rows))] == together.tolist()
    assert ((together >= 0) & (together < 2**SAMPLE_BITS)).all()


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01, float("nan")])
def test_what_is_no_share_is_refused(fraction):
    with pytest.raises(UsageError, match="share of the rows"):
        threshold(fraction)
