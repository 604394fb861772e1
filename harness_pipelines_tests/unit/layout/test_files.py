"""A file is given to a region only if all its rows are there, and files alone are enough for a tree."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.layout.boxes import At, Slab
from harness_pipelines.layout.columns import IndexedColumn, ShapesDiffer
from harness_pipelines.layout.files import Extent, FileStats, classify, might_hold, place, rebuild
from harness_pipelines.layout.tree import RegionTree
from harness_pipelines_tests.unit.layout.given import Row, arrays, file_of, skewed, some_rows, tables, tree_of

LONG = IndexedColumn("n", "long")
ANYTHING = FileStats(path="f", rows=5, bytes=50, sequence=1, extents=(Extent(),))


def files_of(tree: RegionTree, columns, rows):
    """One file per region that has rows, named by the region."""
    at = defaultdict(list)
    for row, index in zip(rows, tree.route(arrays(columns, rows)), strict=True):
        at[tree.paths()[index]].append(row)
    return [file_of(path, some, columns) for path, some in sorted(at.items())]


@given(table=tables())
def test_the_file_of_a_regions_rows_is_classified_as_that_region(table):
    columns, rows = table
    tree = tree_of(columns, rows)
    files = files_of(tree, columns, rows)

    assert classify(tree, files) == [file.path for file in files]


@given(table=tables(), data=st.data())
def test_a_file_is_given_to_a_region_only_if_all_its_rows_route_there(table, data):
    columns, rows = table
    tree = tree_of(columns, rows)
    foreign = data.draw(some_rows(columns, 6))
    if not foreign:
        return

    path = place(tree, file_of("foreign", foreign, columns))

    routed = {tree.paths()[i] for i in tree.route(arrays(columns, foreign))}
    assert all(region.startswith(path) for region in routed)
    assert (classify(tree, [file_of("foreign", foreign, columns)]) != [None]) == (path in tree.paths())


@given(table=tables(most=3), data=st.data())
def test_a_tree_rebuilt_from_disjoint_files_gives_each_a_region_of_its_own(table, data):
    columns, rows = table
    files = files_of(tree_of(columns, rows), columns, rows)

    rebuilt = rebuild(data.draw(st.permutations(files)), columns)

    found = classify(rebuilt, files)
    assert None not in found
    assert len(set(found)) == len(files) == (len(rebuilt) if files else 0)
    assert rebuild(files, columns) == rebuilt


def test_a_file_of_null_and_nan_is_divided_from_files_of_values_whatever_was_cut_before():
    """Neither slab divides them, and once the file of zeros is cut off, no file's values begin above the others'."""
    columns = [IndexedColumn("a", "boolean"), IndexedColumn("x", "float")]
    rows: dict[str, list[Row]] = {
        "low": [(0, -1.0)],
        "low, a is NULL": [(None, -1.0), (None, -1.0)],
        "zero": [(0, 0.0), (0, 0.0), (0, 0.0)],
        "no value, a is NULL": [(None, None), (None, math.nan)],
    }
    files = [file_of(name, some, columns) for name, some in rows.items()]

    rebuilt = rebuild(files, columns)

    assert len(set(classify(rebuilt, files)) - {None}) == len(rebuilt) == len(files)


def test_files_of_values_are_divided_from_one_of_null_by_the_slab():
    """A larger value that comes later does not go to the region of NULL."""
    files = [file_of("values", [(1,), (5,)], [LONG]), file_of("nulls", [(None,), (None,)], [LONG])]

    assert rebuild(files, [LONG]) == RegionTree.single([LONG]).split("", 0, Slab.NULL)


def test_overlapping_files_share_a_region():
    files = [file_of(str(i), [(i,), (i + 10,)], [LONG]) for i in range(5)] + [file_of("far", [(90,), (99,)], [LONG])]

    rebuilt = rebuild(files, [LONG])

    assert rebuilt == RegionTree.single([LONG]).split("", 0, At(90))


def test_a_small_file_across_all_does_not_hinder_the_tree():
    files = [file_of(str(i), [(i * 10,), (i * 10 + 9,)] * 50, [LONG]) for i in range(8)]
    across = file_of("staged", [(0,), (79,)], [LONG])

    rebuilt = rebuild([*files, across], [LONG])

    assert len(rebuilt) == 8
    assert classify(rebuilt, [*files, across])[-1] is None


def test_no_files_are_one_region():
    assert rebuild([], [LONG]) == RegionTree.single([LONG])
    assert rebuild([replace(ANYTHING, rows=0)], [LONG]) == RegionTree.single([LONG])


@pytest.mark.parametrize(
    ("extent", "at_five", "null"),
    [
        (Extent(), None, None),
        (Extent(1, 4, 0), "0", "0"),
        (Extent(1, 5, 0), None, "0"),
        (Extent(5, 9, 0), "1", "0"),
        (Extent(1, 4, 2), None, None),
        (Extent(1, 4), None, None),
        (Extent(5, None), "1", None),
        (Extent(None, None, 5), "1", "1"),
    ],
)
def test_a_bound_that_is_missing_leaves_the_side_open(extent, at_five, null):
    file = replace(ANYTHING, extents=(extent,))

    assert place(RegionTree.single([LONG]).split("", 0, At(5)), file) == (at_five or "")
    assert place(RegionTree.single([LONG]).split("", 0, Slab.NULL), file) == (null or "")


def test_bounds_of_other_columns_are_refused():
    with pytest.raises(ShapesDiffer, match="f: expected bounds of 1 columns, found 0"):
        classify(RegionTree.single([LONG]), [replace(ANYTHING, extents=())])
    with pytest.raises(ShapesDiffer, match="in every file"):
        rebuild([replace(ANYTHING, extents=())], [LONG])


def test_a_large_tree_is_found_again_from_its_files():
    columns, values = skewed(3_000, seed=9)
    rows = list(zip(*(column.values.tolist() for column in values), strict=True))
    files = files_of(tree_of(columns, rows, target_rows=60), columns, rows)

    rebuilt = rebuild(files, columns)

    assert len(rebuilt) == len(files)
    assert len(set(classify(rebuilt, files))) == len(files)


# -- what a file might hold ---------------------------------------------------------------------------------

VALUES = st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=4)


def extent_of(values: list[int | None]) -> Extent:
    known = [v for v in values if v is not None]
    return Extent(min(known, default=None), max(known, default=None), values.count(None))


@given(rows=st.lists(st.tuples(*[st.none() | st.integers(0, 9)] * 2), min_size=1, max_size=4), known=st.booleans(),
       wanted=st.lists(st.tuples(*[st.none() | st.integers(0, 9)] * 2), min_size=1, max_size=4))  # fmt: skip
def test_no_file_is_left_out_that_has_a_row_of_the_wanted_keys(rows, wanted, known):
    extents = tuple(extent_of(list(column)) if known else Extent() for column in zip(*rows, strict=True))
    held = FileStats(path="f", rows=len(rows), bytes=1, sequence=1, extents=extents)
    box = tuple(extent_of(list(column)) for column in zip(*wanted, strict=True))
    assert might_hold(held, box) or not set(rows) & set(wanted)


@pytest.mark.parametrize(
    ("there", "wanted", "held"),
    [
        (Extent(0, 4, 0), Extent(5, 9, 0), False),
        (Extent(6, 9, 0), Extent(1, 5, 0), False),
        (Extent(0, 5, 0), Extent(5, 9, 0), True),
        (Extent(0, 4, 0), Extent(5, 9, 1), False),
        (Extent(0, 4, 1), Extent(5, 9, 1), True),
        (Extent(None, None, 3), Extent(0, 9, 0), False),
        (Extent(0, None, 0), Extent(5, 9, 0), True),
    ],
)
def test_a_file_is_left_out_when_its_bounds_and_nulls_rule_the_keys_out(there, wanted, held):
    stats = FileStats(path="f", rows=3, bytes=1, sequence=1, extents=(there,))
    assert might_hold(stats, (wanted,)) == held
