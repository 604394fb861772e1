"""Blocks in the published format: ids that decode, cubes that hold their region, counts that add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.cubes import WEIGHT_MAX, WEIGHT_MIN, cube_id, cube_steps, export, weight_at
from harness_pipelines.layout.errors import ShapesDiffer
from harness_pipelines.layout.tree import RegionTree
from harness_pipelines_tests.unit.layout.given import histogram_of, tables, tree_of

LONG = (IndexedColumn("n", "long"),)


@given(st.integers(1, 8).flatmap(lambda d: st.lists(st.tuples(*[st.booleans()] * d), max_size=6).map(lambda s: (d, s))))
def test_a_cube_id_reads_back(given_):
    columns, steps = given_
    assert cube_steps(cube_id(steps), columns=columns) == steps


def test_cube_ids_are_those_of_the_published_format():
    # As CubeId of qbeast-spark encodes: a symbol per level and six columns, the first column in the highest bit.
    assert cube_id([]) == ""
    assert cube_id([(False, False)]) == "A"
    assert cube_id([(True, False)]) == "g"
    assert cube_id([(True, True)]) == "w"
    assert cube_id([(True, True), (True, False)]) == "wg"
    assert cube_id([(True,) * 7]) == "/g"


@pytest.mark.parametrize(("cube", "columns"), [("A", 7), ("-", 2)])
def test_an_id_over_other_columns_is_refused(cube, columns):
    with pytest.raises(ShapesDiffer, match=f"found the cube '{cube}'"):
        cube_steps(cube, columns=columns)


@given(table=tables(), sample=st.sampled_from([0.0, 0.1]))
def test_blocks_count_every_row_once(table, sample):
    columns, rows = table
    blocks = export(tree_of(columns, rows), histogram_of(columns, rows), sample=sample)

    assert sum(block.element_count for block in blocks) == len(rows)
    assert all(WEIGHT_MIN <= block.min_weight <= block.max_weight <= WEIGHT_MAX for block in blocks)
    for block in blocks:
        cube_steps(block.cube, columns=len(columns))


def test_one_region_is_the_root_cube_with_all_weights():
    (block,) = export(RegionTree.single(LONG), histogram_of(LONG, [(1,), (2,)]))

    assert block.to_tag() == {
        "cube": "", "minWeight": WEIGHT_MIN, "maxWeight": WEIGHT_MAX, "elementCount": 2, "replicated": False,
    }  # fmt: skip


def test_halves_of_the_rows_are_the_two_cubes_of_the_first_level():
    rows = [(i,) for i in range(8)]

    blocks = export(tree_of(LONG, rows, target_rows=4), histogram_of(LONG, rows))

    assert [(block.path, block.cube, block.element_count) for block in blocks] == [("0", "A", 4), ("1", "g", 4)]


def test_a_sample_layer_has_the_smallest_weights():
    rows = [(i,) for i in range(100)]

    low, high = export(RegionTree.single(LONG), histogram_of(LONG, rows), sample=0.01)

    assert (low.element_count, high.element_count) == (1, 99)
    assert (low.min_weight, low.max_weight) == (WEIGHT_MIN, weight_at(0.01))
    assert (high.min_weight, high.max_weight) == (weight_at(0.01) + 1, WEIGHT_MAX)
    assert weight_at(0.0) == WEIGHT_MIN
    assert weight_at(1.0) == WEIGHT_MAX
