"""The OTree of the bench behaves as Qbeast's documents and tests say: their worked examples, and its invariants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from harness_pipelines_tests.bench.layout_data import Dataset, Queries, clusters_2d
from harness_pipelines_tests.bench.layout_otree import (
    Cubes,
    Linear,
    Quantile,
    cube_id,
    fraction,
    grow,
    otree,
    otree_of_files,
    roll_up,
)


def grown(point: tuple[float, ...], weights: list[int], size: int) -> Cubes:
    """Rows at one *point*, as PointWeightIndexerTest adds them to its builder."""
    points = np.repeat(np.array(point)[:, None], len(weights), axis=1)
    return grow(points, np.array(weights, np.int32), size=size)


# CubeIdTest


def test_the_cubes_that_contain_a_point_are_those_of_the_published_example():
    cubes = grown((0.66, 0.83), [1, 2, 3, 4], 1)

    assert cubes.low.tolist() == [[0.0, 0.0], [0.5, 0.5], [0.5, 0.75], [0.625, 0.75]]
    assert cubes.high.tolist() == [[1.0, 1.0], [1.0, 1.0], [0.75, 1.0], [0.75, 0.875]]


@pytest.mark.parametrize(
    ("point", "low", "high"),
    [
        ((0.0, 0.0), [0.0, 0.0], [0.125, 0.125]),
        ((1.0, 1.0), [0.875, 0.875], [1.0, 1.0]),
        ((1.0, 0.0), [0.875, 0.0], [1.0, 0.125]),
    ],
)
def test_border_points_lie_in_the_border_cubes_of_the_published_examples(point, low, high):
    cubes = grown(point, [1, 2, 3, 4], 1)

    assert cubes.low[3].tolist() == low
    assert cubes.high[3].tolist() == high


def test_siblings_follow_each_other_with_the_last_column_first():
    points = np.array([[0.1, 0.1, 0.9, 0.9, 0.5], [0.1, 0.9, 0.1, 0.9, 0.5]])
    cubes = grow(points, np.array([2, 3, 4, 5, 1], np.int32), size=1)

    assert cubes.low[1:].tolist() == [[0.0, 0.0], [0.0, 0.5], [0.5, 0.0], [0.5, 0.5]]


def test_cube_ids_are_those_of_the_published_metadata():
    assert cube_id((), 2) == ""
    assert cube_id((3,), 2) == "w"
    assert cube_id((3, 2), 2) == "wg"
    assert cube_id((3, 1), 2) == "wQ"
    assert len(cube_id((255, 0, 7), 8)) == 6  # two symbols a level


# OTreeAlgorithm.md, "General WRITE protocol"


def test_a_full_root_sends_the_documented_element_to_cube_0():
    cubes = grow(np.array([[0.9, 0.1], [0.9, 0.2]]), np.array([-5, 7], np.int32), size=1)

    assert cubes.paths() == [(), (0,)]
    assert cubes.of_row.tolist() == [0, 1]


# PointWeightIndexerTest


def test_weights_are_added_to_a_cube_until_it_is_full():
    cubes = grown((0.66, 0.28), [1, 2, 3, 4], 2)

    assert cubes.max_weight.tolist() == pytest.approx([fraction(2), fraction(4)], rel=1e-15)


def test_a_cube_that_is_not_full_has_desired_by_actual_size_as_its_weight():
    cubes = grown((0.66, 0.28), [1, 2, 3, 4, 5], 2)

    assert cubes.max_weight.tolist() == pytest.approx([fraction(2), fraction(4), 2.0], rel=1e-15)


def test_the_largest_weights_move_to_the_child_whatever_the_order_of_arrival():
    cubes = grown((0.66, 0.28), [5, 6, 3, 4, 1, 2], 2)

    assert cubes.max_weight.tolist() == pytest.approx([fraction(2), fraction(4), fraction(6)], rel=1e-15)
    assert cubes.of_row.tolist() == [2, 2, 1, 1, 0, 0]


def test_the_root_of_101_weights_holds_the_ten_smallest():
    weights = np.random.default_rng(1).permutation(101).tolist()

    assert grown((0.66, 0.28), weights, 10).max_weight[0] == fraction(9)


# CubeDomainsBuilderTest: 100 equal points into cubes of 40


def test_equal_points_fill_one_branch():
    assert grown((0.9, 0.1), list(range(100)), 40).count.tolist() == [40, 40, 20]


# LinearTransformation and CDFNumericQuantilesTransformationTest


def test_columns_are_mapped_as_in_the_published_examples():
    linear, quantile = Linear(0, 10_000), Quantile(np.array([1.0, 2.0, 3.0]))

    assert linear(np.array([0, 5_000, 10_000])).tolist() == [0.0, 0.5, 1.0]
    assert quantile(np.array([0.0, 2.0, 4.0])).tolist() == [0.0, 0.5, 1.0]
    assert Linear(7, 7)(np.array([7])).tolist() == [0.0]


def test_a_value_between_two_quantiles_lies_between_their_places():
    assert Quantile(np.array([1.0, 2.0, 4.0]))(np.array([1.5, 3.0])).tolist() == [0.25, 0.75]


# RollupTest


def test_small_siblings_are_rolled_up_into_the_next_one():
    counts = {(): 100, (0,): 100, (0, 0): 50, (0, 1): 50, (0, 2): 50, (0, 3): 50}

    assert roll_up(counts, limit=100) == {
        (): (),
        (0,): (0,),
        (0, 0): (0, 1),
        (0, 1): (0, 1),
        (0, 2): (0, 3),
        (0, 3): (0, 3),
    }


def test_what_stays_small_after_the_last_sibling_is_rolled_up_into_the_parent():
    counts = {(): 100, (0,): 20, (1,): 20, (2,): 20, (3,): 20}

    assert set(roll_up(counts, limit=100).values()) == {()}


def test_roll_up_of_nothing_is_nothing_and_a_lone_root_stays():
    assert roll_up({}, limit=3) == {}
    assert roll_up({(): 2}, limit=3) == {(): ()}


# Invariants

POINTS = arrays.arrays(
    np.float64,
    st.tuples(st.just(2), st.integers(1, 80)),
    elements=st.integers(0, 16).map(lambda sixteenths: sixteenths / 16),
)


@given(POINTS, st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_each_row_is_in_one_cube_whose_box_holds_it_and_no_cube_is_too_large(points, size, seed):
    weights = np.random.default_rng(seed).integers(-(2**31), 2**31, points.shape[1]).astype(np.int32)
    cubes = grow(points, weights, size=size)
    low, high = cubes.low[cubes.of_row], cubes.high[cubes.of_row]

    assert np.array_equal(np.bincount(cubes.of_row), cubes.count)
    assert cubes.count.max() <= size
    assert ((low <= points.T) & ((high > points.T) | (high == 1.0))).all()
    inner = np.unique(cubes.parent[cubes.parent >= 0])
    assert (cubes.count[inner] == size).all()


@given(POINTS, st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_weights_rise_from_a_cube_to_its_children(points, size, seed):
    weights = np.random.default_rng(seed).permutation(points.shape[1]).astype(np.int32)
    cubes = grow(points, weights, size=size)
    largest, smallest = np.full(len(cubes.count), -1), np.full(len(cubes.count), points.shape[1])
    np.maximum.at(largest, cubes.of_row, weights)
    np.minimum.at(smallest, cubes.of_row, weights)

    below = cubes.parent >= 0
    assert (smallest[below] > largest[cubes.parent[below]]).all()


@given(st.dictionaries(st.lists(st.integers(0, 3), max_size=4).map(tuple), st.integers(1, 20), max_size=30))
def test_rolling_up_keeps_every_cube_and_leaves_no_small_group_but_the_root(counts):
    group = roll_up(counts, limit=10)
    sizes: dict[tuple[int, ...], int] = {}
    for path, goal in group.items():
        sizes[goal] = sizes.get(goal, 0) + counts[path]

    assert group.keys() == counts.keys()
    assert all(size >= 10 for goal, size in sizes.items() if goal)


@pytest.mark.parametrize("flavour", ["linear", "quantile"])
@pytest.mark.parametrize("rolled_up", [False, True])
def test_a_query_meets_every_file_that_holds_a_row_of_it(flavour, rolled_up):
    data = clusters_2d(3_000, 4)
    tree = otree(data, 100, 1, flavour=flavour, rolled_up=rolled_up)
    rng = np.random.default_rng(7)
    corners = np.stack([rng.choice(column, (60, 2)) for column in data.columns], axis=2)
    asked = Queries(corners.min(axis=1), corners.max(axis=1))
    asked.low[:10, 0], asked.high[5:15, 1] = -np.inf, np.inf
    meets = tree.meets(asked)
    rows = np.stack(data.columns, axis=1)

    for query in range(len(asked)):
        inside = ((rows >= asked.low[query]) & (rows <= asked.high[query])).all(axis=1)
        assert meets[query, tree.file_of_row[inside]].all()
    assert not meets.all()


def test_every_query_reads_the_root():
    data = clusters_2d(3_000, 4)
    tree = otree(data, 100, 1, rolled_up=False)
    x, y = (float(column[17]) for column in data.columns)

    assert tree.meets(Queries(np.array([[x, y]]), np.array([[x, y]])))[0, tree.file_of_cube[0]]


@pytest.mark.parametrize("rolled_up", [False, True])
def test_the_cube_size_is_chosen_for_the_number_of_files(rolled_up):
    data = clusters_2d(20_000, 4)

    assert otree_of_files(data, 60, 1, rolled_up=rolled_up).files == pytest.approx(60, rel=0.1)


def test_a_tree_over_one_value_is_a_chain():
    data = Dataset(name="one", names=("a",), types=("long",), columns=(np.full(10, 7),))

    assert otree(data, 4, 1, rolled_up=False).cubes.count.tolist() == [4, 4, 2]
