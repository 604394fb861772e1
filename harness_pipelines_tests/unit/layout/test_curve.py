"""Both curves visit every cell once; Hilbert's next cell is always a neighbour."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.layout.curve import BITS_MAX, bits_for, hilbert, morton
from harness_pipelines.layout.errors import ShapesDiffer

GRIDS = [(1, 5), (2, 1), (2, 4), (3, 1), (3, 3), (4, 2), (5, 2), (8, 1)]


def grid(columns: int, bits: int) -> np.ndarray:
    return np.array(list(itertools.product(range(2**bits), repeat=columns)), dtype=np.int32)


@pytest.mark.parametrize(("columns", "bits"), GRIDS)
@pytest.mark.parametrize("curve", [morton, hilbert])
def test_a_curve_visits_every_cell_once(curve, columns, bits):
    ranks = curve(grid(columns, bits), bits=bits)

    assert sorted(ranks.tolist()) == list(range(2 ** (columns * bits)))


@pytest.mark.parametrize(("columns", "bits"), GRIDS)
def test_hilbert_steps_to_a_neighbour(columns, bits):
    cells = grid(columns, bits)

    visited = cells[np.argsort(hilbert(cells, bits=bits))]

    assert set(np.abs(np.diff(visited, axis=0)).sum(axis=1).tolist()) <= {1}


@given(st.lists(st.tuples(*[st.integers(0, 127)] * 3), min_size=1, max_size=20))
def test_morton_interleaves_bits_the_first_column_leading(rows):
    expected = [int("".join("".join(bits) for bits in zip(*(f"{v:07b}" for v in row), strict=True)), 2) for row in rows]

    assert morton(np.array(rows, dtype=np.int32), bits=7).tolist() == expected


def test_wide_ranks_stay_positive():
    corner = np.full((1, 2), 2**31 - 1, dtype=np.int64).astype(np.int32)

    assert morton(corner, bits=31).tolist() == [2**62 - 1]
    assert 0 <= hilbert(corner, bits=31)[0] < 2**62


def test_bits_are_as_many_as_the_ids_need_and_the_rank_has_room_for():
    assert [bits_for(n, 2) for n in (0, 1, 2, 3, 1000, 1024, 1025)] == [1, 1, 1, 2, 10, 10, 11]
    assert bits_for(2**40, 8) == BITS_MAX // 8


@pytest.mark.parametrize(
    ("cells", "bits"), [(np.zeros((2, 8)), 8), (np.zeros(3), 2), (np.full((1, 2), 4), 2), (np.full((1, 2), -1), 2)]
)
def test_cells_that_do_not_fit_are_refused(cells, bits):
    with pytest.raises(ShapesDiffer, match="expected"):
        hilbert(cells.astype(np.int32), bits=bits)


def test_no_cells_have_no_ranks():
    assert len(hilbert(np.zeros((0, 3), dtype=np.int32), bits=4)) == 0
