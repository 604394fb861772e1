"""Blocks in the published format: ids that decode, cubes that hold their region, counts that add up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.layout.boxes import At
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.cubes import WEIGHT_MAX, WEIGHT_MIN, cube_id, export, weight_at
from harness_pipelines.layout.tree import LAYER, RegionTree, layered
from harness_pipelines_tests.unit.layout.given import histogram_of, tables, tree_of

LONG = (IndexedColumn("n", "long"),)


SYMBOLS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def steps_of(cube: str, *, columns: int) -> list[tuple[bool, ...]]:
    """What `cube_id` was given."""
    bits = [symbol == "1" for one in cube for symbol in f"{SYMBOLS.index(one):06b}"]
    wide = -(-columns // 6) * 6
    assert len(bits) % wide == 0
    return [tuple(bits[start : start + columns]) for start in range(0, len(bits), wide)]


@given(st.integers(1, 8).flatmap(lambda d: st.lists(st.tuples(*[st.booleans()] * d), max_size=6).map(lambda s: (d, s))))
def test_a_cube_id_reads_back(given_):
    columns, steps = given_
    assert steps_of(cube_id(steps), columns=columns) == steps


def test_cube_ids_are_those_of_the_published_format():
    # As CubeId of qbeast-spark encodes: a symbol per level and six columns, the first column in the highest bit.
    assert cube_id([]) == ""
    assert cube_id([(False, False)]) == "A"
    assert cube_id([(True, False)]) == "g"
    assert cube_id([(True, True)]) == "w"
    assert cube_id([(True, True), (True, False)]) == "wg"
    assert cube_id([(True,) * 7]) == "/g"


@given(table=tables())
def test_blocks_count_every_row_once(table):
    columns, rows = table
    blocks = export(tree_of(columns, rows), histogram_of(columns, rows), layer=0.1)

    assert sum(block.element_count for block in blocks) == len(rows)
    assert {(block.min_weight, block.max_weight) for block in blocks} <= {(WEIGHT_MIN, WEIGHT_MAX)}
    for block in blocks:
        steps_of(block.cube, columns=len(columns))


def test_one_region_is_the_root_cube_with_all_weights():
    (block,) = export(RegionTree.single(LONG), histogram_of(LONG, [(1,), (2,)]), layer=0.0)

    assert block.to_tag() == {
        "cube": "", "minWeight": WEIGHT_MIN, "maxWeight": WEIGHT_MAX, "elementCount": 2, "replicated": False,
    }  # fmt: skip


def test_halves_of_the_rows_are_the_two_cubes_of_the_first_level():
    rows = [(i,) for i in range(8)]

    blocks = export(tree_of(LONG, rows, target_rows=4), histogram_of(LONG, rows), layer=0.0)

    assert [(block.path, block.cube, block.element_count) for block in blocks] == [("0", "A", 4), ("1", "g", 4)]


def test_regions_of_the_sample_layer_have_the_smallest_weights():
    columns, rows = (LAYER, *LONG), [(int(i % 100 == 0), i) for i in range(1000)]
    tree = layered(columns).split("0", axis=1, cut=At(500))

    blocks = export(tree, histogram_of(columns, rows), layer=0.01)

    border = weight_at(0.01)
    assert [(b.path, b.cube, b.element_count, b.min_weight, b.max_weight) for b in blocks] == [
        ("00", "A", 495, border + 1, WEIGHT_MAX),
        ("01", "g", 495, border + 1, WEIGHT_MAX),
        ("1", "", 10, WEIGHT_MIN, border),
    ]
    assert weight_at(0.0) == WEIGHT_MIN
    assert weight_at(1.0) == WEIGHT_MAX
