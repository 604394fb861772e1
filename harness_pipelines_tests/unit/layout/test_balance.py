"""A tree stays shallow whatever the order of the rows, and what was clustered stays so."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.layout.balance import balanced, depth_max, from_files
from harness_pipelines.layout.boxes import At
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.files import Extent, FileStats, classify, place
from harness_pipelines.layout.rewrites import due
from harness_pipelines.layout.tree import LAYER, RegionTree, layered
from harness_pipelines_tests.unit.layout.given import arrays, file_of, tables, tree_of

N = IndexedColumn("n", "long")
CLUSTERED_AT = 7


def chain(regions: int, columns: tuple[IndexedColumn, ...] = (N,), *, axis: int = 0, past: int = 10) -> RegionTree:
    """Regions of ten values each, every one cut from the last: what rows in order of time make of a tree."""
    nodes = [node for number in range(regions - 1) for node in ((axis, At(number * 10 + past)), None)]
    return RegionTree.of(columns, [*nodes, None])


def file(low: int, high: int, *, sequence: int = CLUSTERED_AT, size: int = 100) -> FileStats:
    extents = (Extent(low, high, nulls=0, nans=0),)
    return FileStats(path=f"{low}-{high}-{sequence}", rows=size, bytes=size, sequence=sequence, extents=extents)


CHAIN = chain(60)
FILES = [file(number * 10, number * 10 + 9) for number in range(60)]
CLUSTERED = dict.fromkeys(CHAIN.paths(), CLUSTERED_AT)


def nothing_is_due(tree: RegionTree, files: list[FileStats], clustered: dict[str, int]) -> bool:
    return not due(tree, files, clustered, target_bytes=100, staged_ratio=0.5, budget_bytes=10**9)


def test_a_chain_becomes_a_tree_in_which_every_file_has_its_region_and_none_is_due():
    tree, clustered = balanced(CHAIN, FILES, CLUSTERED)

    assert (CHAIN.depth, tree.depth) == (59, 6)
    assert sorted(filter(None, classify(tree, FILES))) == sorted(tree.paths())
    assert clustered == dict.fromkeys(tree.paths(), CLUSTERED_AT)
    assert nothing_is_due(tree, FILES, clustered)
    assert RegionTree.from_json(tree.to_json()) == tree


def test_a_tree_that_is_not_too_deep_stays_as_it_is():
    regions = 12
    assert chain(regions).depth <= depth_max(regions)
    clustered = dict.fromkeys(chain(regions).paths(), CLUSTERED_AT)

    assert balanced(chain(regions), FILES[:regions], clustered) == (chain(regions), clustered)


def test_what_waits_goes_on_waiting_and_what_was_clustered_before_it_stays_so():
    newer, older, across = file(41, 49, sequence=9, size=5), file(121, 129, sequence=7, size=6), file(205, 215, size=7)
    clustered = CLUSTERED | {path: 6 for path in CHAIN.paths() if path == place(CHAIN, older)}
    held = [f for f in FILES if f.path != "120-129-7"] + [file(120, 129, sequence=6)]

    tree, carried = balanced(CHAIN, [*held, newer, older, across], clustered)

    homes = {f.path: place(tree, f) for f in [*held, newer, older, across]}
    assert carried[homes[newer.path]] == 7 < newer.sequence
    assert carried[homes[older.path]] == 6 < older.sequence
    assert homes[across.path] not in tree.paths()


def test_a_region_in_which_a_file_as_old_comes_to_lie_that_waited_above_is_clustered_again():
    cut_in_gaps = chain(60, past=6)  # the files end before, so the other tree cuts further on
    files = [file(number * 10, number * 10 + 4) for number in range(60)]
    across = file(135, 137, size=5)
    assert place(cut_in_gaps, across) not in cut_in_gaps.paths()

    tree, carried = balanced(cut_in_gaps, [*files, across], dict.fromkeys(cut_in_gaps.paths(), CLUSTERED_AT))

    assert set(tree.paths()) - set(carried) == {place(tree, across)}
    assert len(carried) == 59


@given(st.lists(st.tuples(st.integers(0, 599), st.integers(0, 40), st.integers(1, 9)), max_size=30))
def test_no_file_that_waits_passes_for_clustered(waiting: list[tuple[int, int, int]]):
    aside = [
        replace(file(low, low + span, sequence=sequence, size=5), path=f"waits-{number}")
        for number, (low, span, sequence) in enumerate(waiting)
    ]
    homes = {f.path: place(CHAIN, f) for f in aside}
    aside = [f for f in aside if f.sequence > CLUSTERED.get(homes[f.path], 0)]

    tree, clustered = balanced(CHAIN, [*FILES, *aside], CLUSTERED)

    assert tree.depth <= depth_max(len(tree))
    assert all(f.sequence > clustered.get(place(tree, f), 0) for f in aside)
    assert all(clustered.get(place(tree, f), CLUSTERED_AT) == CLUSTERED_AT for f in FILES)


def test_the_sample_layer_stays_the_first_cut():
    columns = (LAYER, N)
    tree = layered(columns).grafted("0", chain(60, columns, axis=1))
    files = [replace(f, extents=(Extent(0, 0, 0, 0), *f.extents)) for f in FILES]
    files.append(replace(file(0, 599), path="layer", extents=(Extent(1, 1, 0, 0), Extent(0, 599, 0, 0))))

    flat, clustered = balanced(tree, files, dict.fromkeys(tree.paths(), CLUSTERED_AT))

    assert flat.depth <= 7
    assert flat.nodes()[0] == (0, At(1))
    assert place(flat, files[-1]) == "1"
    assert clustered == dict.fromkeys(flat.paths(), CLUSTERED_AT)


def test_where_files_cannot_be_told_apart_the_tree_stays():
    blind = [replace(f, extents=(Extent(),)) for f in FILES]

    assert balanced(CHAIN, blind, CLUSTERED) == (CHAIN, CLUSTERED)


# -- from files alone ---------------------------------------------------------------------------------------


@given(table=tables(most=3))
def test_of_a_view_whose_tree_was_lost_all_that_was_clustered_still_is(table):
    columns, rows = table
    tree = tree_of(columns, rows)
    at = defaultdict(list)
    for row, index in zip(rows, tree.route(arrays(columns, rows)), strict=True):
        at[index].append(row)
    files = [file_of(str(index), some, columns, sequence=3) for index, some in at.items()]

    found, clustered = from_files(files, columns)

    assert clustered == ({path: 3 for path in found.paths()} if files else {})


@pytest.mark.parametrize(
    ("beside", "clustered"),
    [
        ([], {"0": 7, "1": 7}),
        ([file(2, 7, sequence=9, size=9)], {"0": 7, "1": 7}),
        ([file(2, 7, sequence=9, size=90)], {"0": 7, "1": 7}),
        ([file(2, 7, sequence=5, size=9)], {"1": 7}),
        ([file(2, 7, sequence=9, size=900)], {"1": 7}),
    ],
)
def test_a_file_is_taken_for_clustered_when_what_lies_beside_it_is_newer_and_smaller(
    beside: list[FileStats], clustered: dict[str, int]
):
    tree, found = from_files([file(0, 9), file(10, 19), *beside], [N])

    assert tree.paths() == ["0", "1"]
    assert found == clustered
