"""Regions are disjoint, cover everything, and stay what they are while others change."""

from __future__ import annotations

import gc
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.layout.boxes import At, Cut, Slab
from harness_pipelines.layout.columns import ColumnValues, CutRefused, IndexedColumn, ShapesDiffer
from harness_pipelines.layout.tree import RegionTree, RegionUnknown, TreeBroken
from harness_pipelines_tests.unit.layout.given import NAN, arrays, some_rows, tables, tree_of

X, Y = IndexedColumn("x", "double"), IndexedColumn("y", "long")


@given(table=tables(), data=st.data())
def test_every_row_seen_or_not_lies_in_exactly_one_region_and_in_its_box(table, data):
    columns, rows = table
    tree = tree_of(columns, rows)
    others = [*rows, *data.draw(some_rows(columns))]

    regions = tree.regions()
    for row, index in zip(others, tree.route(arrays(columns, others)), strict=True):
        assert [region.box.holds(row) for region in regions] == [i == index for i in range(len(regions))]


@given(table=tables())
def test_a_tree_read_back_is_equal_and_routes_alike(table):
    columns, rows = table
    tree = tree_of(columns, rows)

    again = RegionTree.from_json(tree.to_json())

    assert again == tree
    assert again.digest == tree.digest
    assert np.array_equal(again.route(arrays(columns, rows)), tree.route(arrays(columns, rows)))


@given(table=tables(), data=st.data())
def test_a_split_changes_its_own_path_only_and_collapse_undoes_it(table, data):
    columns, rows = table
    tree = tree_of(columns, rows)
    path = data.draw(st.sampled_from(tree.paths()))
    if not (cuts := _possible_cuts(tree, path)):
        return
    axis, cut = data.draw(st.sampled_from(cuts))

    split = tree.split(path, axis, cut)

    kept = {region.path: region for region in tree.regions() if region.path != path}
    now = {region.path: region for region in split.regions()}
    assert {p: r for p, r in now.items() if p not in (path + "0", path + "1")} == kept
    assert {path + "0", path + "1"} <= set(now)
    assert split.collapse(path) == tree
    assert split.digest != tree.digest


def _possible_cuts(tree: RegionTree, path: str):
    box = tree.region(path).box
    cuts: list[tuple[int, Cut]] = [(axis, slab) for axis in range(len(tree.columns)) for slab in Slab]
    cuts += [
        (axis, At(value))
        for axis, column in enumerate(tree.columns)
        for value in (column.as_cut(column.least), column.successor(column.least), column.greatest)
        if value is not None
    ]
    return [(axis, cut) for axis, cut in cuts if box.spans[axis].may_divide(tree.columns[axis], cut)]


@given(table=tables(), data=st.data())
def test_collapse_makes_one_region_of_all_below_and_leaves_the_others(table, data):
    columns, rows = table
    tree = tree_of(columns, rows)
    path = data.draw(st.sampled_from([p[:end] for p in tree.paths() for end in range(len(p) + 1)]))

    collapsed = tree.collapse(path)

    below = [p for p in tree.paths() if p.startswith(path)]
    assert set(collapsed.paths()) == (set(tree.paths()) - set(below)) | {path}
    assert [tree.paths()[i] for i in tree.below(path)] == below
    before, after = tree.route(arrays(columns, rows)), collapsed.route(arrays(columns, rows))
    for old, new in zip(before, after, strict=True):
        assert collapsed.paths()[new] in (tree.paths()[old], path)


@given(table=tables(), data=st.data())
def test_rows_of_some_parts_find_their_regions_by_the_cuts_of_these_parts_alone(table, data):
    columns, rows = table
    tree = tree_of(columns, rows)
    paths = tree.paths()
    anywhere = data.draw(st.sets(st.sampled_from([p[:end] for p in paths for end in range(len(p) + 1)]), min_size=1))
    parts = [path for path in anywhere if not any(path.startswith(q) for q in anywhere - {path})]

    between = tree.between(parts)

    inside = [i for part in sorted(parts) for i in tree.below(part)]
    assert len(between) == len(inside)
    deepest = max(len(paths[i]) - len(part) for part in parts for i in tree.below(part))
    assert between.depth <= deepest + len(parts) - 1
    kept = [(row, i) for row, i in zip(rows, tree.route(arrays(columns, rows)).tolist(), strict=True) if i in inside]
    routed = between.route(arrays(columns, [row for row, _ in kept])).tolist()
    assert [inside[i] for i in routed] == [i for _, i in kept]


def test_the_depth_of_a_tree_is_that_of_its_deepest_region():
    chain = RegionTree.single([Y])
    for number in range(9):
        chain = chain.split("1" * number, 0, At(number))

    assert RegionTree.single([Y]).depth == 0
    assert chain.depth == 9 == max(map(len, chain.paths()))
    assert chain.between(["1" * 9]).depth == 0
    assert chain.between(["0", "1" * 8]).depth == 2


def test_a_part_that_the_tree_does_not_have_is_refused():
    with pytest.raises(RegionUnknown):
        RegionTree.single([Y]).between(["0"])


def test_the_digest_does_not_depend_on_the_order_of_splits():
    root = RegionTree.single([X, Y]).split("", 0, At(1.0))

    one = root.split("0", 1, At(5)).split("1", 0, Slab.NAN)
    other = root.split("1", 0, Slab.NAN).split("0", 1, At(5))

    assert one == other
    assert one.digest == other.digest


def test_null_and_nan_go_high_at_a_value_and_alone_into_their_slabs():
    tree = RegionTree.single([X]).split("", 0, Slab.NULL).split("0", 0, Slab.NAN).split("00", 0, At(0.0))

    routed = tree.route(arrays([X], [(-1.0,), (-0.0,), (NAN,), (None,), (float("inf"),)]))

    assert [tree.paths()[i] for i in routed] == ["000", "001", "01", "1", "001"]
    plain = RegionTree.single([X]).split("", 0, At(0.0))
    assert plain.route(arrays([X], [(NAN,), (None,)])).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("column", "cut"),
    [
        (X, At(float("-inf"))),
        (X, At(NAN)),
        (X, At("1")),
        (Y, At(-(2**63))),
        (Y, At(2**63)),
        (Y, Slab.NAN),
        (IndexedColumn("b", "boolean"), At(2)),
        (IndexedColumn("s", "string"), At("")),
        (IndexedColumn("s", "string"), At("a" * 16)),
        (IndexedColumn("u", "uuid"), At(b"\1")),
        (IndexedColumn("d", "decimal(4, 2)"), At(10_000)),
    ],
)
def test_a_cut_with_an_empty_side_or_of_another_type_is_refused(column, cut):
    with pytest.raises(CutRefused, match=f"column '{column.name}'.*expected.*found"):
        RegionTree.single([column]).split("", 0, cut)


def test_a_cut_outside_of_its_region_is_refused():
    tree = RegionTree.single([Y]).split("", 0, At(5))

    with pytest.raises(CutRefused, match="strictly inside"):
        tree.split("0", 0, At(5))
    with pytest.raises(CutRefused, match="column index below 1"):
        tree.split("0", 1, At(3))


@pytest.mark.parametrize("path", ["2", "00", "1x"])
def test_a_path_that_leads_nowhere_is_named(path):
    tree = RegionTree.single([Y]).split("", 0, At(5))

    with pytest.raises(RegionUnknown, match=repr(path)):
        tree.collapse(path)


def test_a_region_that_was_split_is_none_any_more():
    tree = RegionTree.single([Y]).split("", 0, At(5))

    with pytest.raises(RegionUnknown, match="was split"):
        tree.split("", 0, At(7))


def test_a_region_of_one_value_cannot_be_cut():
    tree = RegionTree.single([Y]).split("", 0, At(5)).split("1", 0, At(6)).split("11", 0, Slab.NULL)

    assert [(r.path, r.unsplittable) for r in tree.regions()] == [
        ("0", False), ("10", True), ("110", False), ("111", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        lambda stored: {**stored, "format": 99},
        lambda stored: {**stored, "nodes": stored["nodes"][:-1]},
        lambda stored: {**stored, "nodes": [*stored["nodes"], None]},
        lambda stored: {**stored, "nodes": []},
        lambda stored: {**stored, "nodes": [[3, "at", "5"], None, None]},
        lambda stored: {**stored, "nodes": [[0, "at", "five"], None, None]},
        lambda stored: {**stored, "nodes": [[0, "slab"], None, None]},
        lambda stored: {**stored, "nodes": [[0, "at", "5"], None, [0, "at", "5"], None, None]},
        lambda stored: {**stored, "columns": [{"name": "y", "type": "binary"}]},
        lambda stored: {"nodes": [None]},
    ],
)
def test_a_stored_tree_that_is_none_is_refused_by_name(change):
    stored = json.loads(RegionTree.single([Y]).split("", 0, At(5)).to_json())

    with pytest.raises(TreeBroken, match="expected"):
        RegionTree.from_json(json.dumps(change(stored)))


def test_rows_of_another_shape_are_refused():
    with pytest.raises(ShapesDiffer, match="2 columns of equal length"):
        RegionTree.single([X, Y]).route([ColumnValues(np.zeros(3))])


def test_no_rows_go_nowhere():
    assert len(RegionTree.single([Y]).route(arrays([Y], []))) == 0


def test_a_hundred_thousand_regions_take_ten_megabytes_at_most():
    def nodes(low: int, high: int):
        if high - low < 2:
            return [None]
        middle = (low + high) // 2
        return [(0, At(middle / 7)), *nodes(low, middle), *nodes(middle, high)]

    tracemalloc.start()
    tree = RegionTree.of([X], nodes(0, 100_000))
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(tree) == 100_000
    assert kept <= 10 * 2**20
