"""Which parts of the tree a move writes: disjoint, bounded, and only where something has come together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.layout.boxes import At
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.files import Extent, FileStats
from harness_pipelines.layout.rewrites import WAITING_MAX, Rewrite, due, not_grown, pieces, taken_along
from harness_pipelines.layout.tree import RegionTree

TARGET, PLENTY = 1000, 10**9
#: Four regions of one column: below 10, below 20, below 30, and the rest.
TREE = (
    RegionTree.single([IndexedColumn("n", "int")])
    .split("", 0, At(20))
    .split("0", 0, At(10))
    .split("1", 0, At(30))
)  # fmt: skip
CLUSTERED = dict.fromkeys(TREE.paths(), 1)


def file(low: int, high: int, *, size: int = TARGET, staged: bool = False) -> FileStats:
    """A file with values from *low* to *high*; a staged one came after the regions were clustered."""
    return FileStats(
        path=f"{low}-{high}-{size}-{staged}", rows=size, bytes=size, sequence=2 if staged else 1,
        extents=(Extent(low, high, 0, 0),),
    )  # fmt: skip


def found(
    *files: FileStats, ratio: float = 0.5, budget: int = PLENTY, left_out: Sequence[frozenset[str]] = ()
) -> list[Rewrite]:
    return due(TREE, files, CLUSTERED, target_bytes=TARGET, staged_ratio=ratio, budget_bytes=budget, left_out=left_out)


WHOLE = (file(0, 9), file(10, 19), file(20, 29), file(30, 39))


def test_a_clustered_view_has_nothing_due():
    assert found(*WHOLE) == []


def test_a_region_is_due_once_enough_was_added_to_it_and_no_other_is():
    assert found(*WHOLE, file(0, 9, size=400, staged=True)) == []
    [part] = found(*WHOLE, file(0, 9, size=500, staged=True))
    assert (part.path, part.bytes, part.staged_bytes, part.waiting) == ("00", 1500, 500, False)


def test_a_piece_that_lies_over_two_regions_counts_for_the_part_that_holds_both():
    assert found(*WHOLE, file(5, 15, size=900, staged=True)) == []
    [part] = found(*WHOLE, file(5, 15, size=1000, staged=True))
    assert (part.path, part.bytes, part.staged_bytes) == ("0", 3000, 1000)


def test_a_part_is_taken_as_a_whole_rather_than_region_by_region():
    added = [file(low, low + 9, size=600, staged=True) for low in (0, 10, 20, 30)]
    [part] = found(*WHOLE, *added)
    assert (part.path, part.bytes, part.staged_bytes) == ("", 6400, 2400)
    assert set(part.files) == {*WHOLE, *added}


def test_what_is_above_the_budget_is_taken_in_smaller_parts_and_at_least_one_of_them():
    added = [file(low, low + 9, size=600, staged=True) for low in (0, 10, 20, 30)]
    assert [d.path for d in found(*WHOLE, *added, budget=3200)] == ["0"]
    assert [d.path for d in found(*WHOLE, *added, budget=1)] == ["00"]


def test_a_region_that_grew_too_large_is_due_but_not_one_that_could_not_be_cut():
    assert [d.path for d in found(*WHOLE, file(0, 9, size=501, staged=True), ratio=10)] == ["00"]
    assert found(file(0, 9, size=5000), *WHOLE[1:]) == []
    assert found(file(0, 9, size=5000), file(0, 9, size=10, staged=True), *WHOLE[1:]) == []


def test_two_small_neighbours_become_one():
    small = (file(0, 9, size=200), file(10, 19, size=200))
    assert [d.path for d in found(*small, *WHOLE[2:])] == ["0"]


def crowd(low: int, high: int, *, size: int, count: int = WAITING_MAX) -> list[FileStats]:
    """As many staged files of one size, over the same values."""
    one = file(low, high, size=size, staged=True)
    return [replace(one, path=f"{one.path}-{i}") for i in range(count)]


BIG = [file(low, low + 9, size=10**6) for low in (0, 10, 20, 30)]


@pytest.mark.parametrize(("low", "high", "path"), [(5, 35, ""), (5, 15, "0"), (0, 9, "00")])
def test_many_files_of_like_size_that_wait_at_one_node_are_put_together_without_what_is_clustered(
    low: int, high: int, path: str
):
    assert found(*BIG, *crowd(low, high, size=10, count=WAITING_MAX - 1)) == []
    many = crowd(low, high, size=10)
    [part] = found(*BIG, *many, file(low, high, size=9_000, staged=True))  # that one is not of like size
    assert (part.path, part.bytes, part.waiting) == (path, 160, True)
    assert set(part.files) == set(many)


def test_what_waits_at_a_node_above_the_budget_comes_down_though_the_node_is_never_due():
    waits = crowd(5, 35, size=1500, count=2)
    assert found(*BIG, *waits, ratio=0.001, budget=10_000) == []
    [part] = found(*BIG, *waits, ratio=0.001, budget=6_000)
    assert (part.path, set(part.files), part.waiting) == ("", set(waits), True)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=300))
def test_however_small_the_merges_are_few_files_wait_and_no_row_is_written_often(sizes: list[int]):
    waiting: list[FileStats] = []
    written = 0
    for number, size in enumerate(sizes):
        waiting.append(replace(file(5, 35, size=size, staged=True), path=f"merge-{number}"))
        while parts := found(*BIG, *waiting):
            [part] = parts
            waiting = [f for f in waiting if f not in part.files]
            waiting.append(replace(file(5, 35, size=part.bytes, staged=True), path=f"{number}-{part.bytes}"))
            written += part.bytes
    tiers = 4
    assert len(waiting) <= tiers * (WAITING_MAX - 1)
    assert written <= tiers * sum(sizes)


def paths(*files: FileStats) -> frozenset[str]:
    return frozenset(file.path for file in files)


def test_what_a_failed_move_took_is_not_taken_as_a_whole_again_but_its_parts_are():
    added = [file(low, low + 9, size=600, staged=True) for low in (0, 10, 20, 30)]

    def taken(*failed: frozenset[str]) -> list[str]:
        return [part.path for part in found(*WHOLE, *added, left_out=failed)]

    everything, bad = paths(*WHOLE, *added), paths(WHOLE[0], added[0])
    assert taken() == [""]
    assert taken(everything) == ["0"], "half of what is left, for both halves are all of it"
    assert taken(bad) == ["01", "1"]
    assert taken(paths(*WHOLE, file(0, 1))) == [""], "one of these files is gone"


def test_files_of_a_failed_move_that_wait_are_left_where_they_are_and_others_put_together():
    many = crowd(5, 35, size=10, count=2 * WAITING_MAX)
    failed = many[:WAITING_MAX]

    [part] = found(*BIG, *many, left_out=[paths(*failed)])

    assert set(part.files) == set(many) - set(failed)


@given(st.sets(st.integers(0, 15), min_size=1))
def test_a_file_that_fails_every_move_is_found_and_all_others_are_written_anew(bad: set[int]):
    tree = RegionTree.single(TREE.columns)
    for number in range(15):
        tree = tree.split("1" * number, 0, At(number * 10 + 10))
    held = [file(number * 10, number * 10 + 9) for number in range(16)]
    clustered, left_out = {path: 0 for path in tree.paths()}, list[frozenset[str]]()
    for _ in range(200):
        chosen = due(
            tree, held, clustered, target_bytes=TARGET, staged_ratio=0.5, budget_bytes=4 * TARGET, left_out=left_out
        )
        if not chosen:
            break
        taken = [f for part in chosen for f in part.files]
        if any(held.index(f) in bad for f in taken):
            left_out.append(paths(*taken))
            continue
        clustered |= {path: 9 for path in tree.paths() for part in chosen if path.startswith(part.path)}
        held = [replace(f, path=f.path + "'", sequence=5) if f in taken else f for f in held]

    assert not chosen
    assert {number for number, f in enumerate(held) if not f.path.endswith("'")} == bad


files_anywhere = st.builds(
    lambda low, span, size, staged: file(low, low + span, size=size, staged=staged),
    st.integers(-5, 40), st.integers(0, 45), st.integers(1, 3000), st.booleans(),
)  # fmt: skip


@given(st.lists(files_anywhere, max_size=12), st.integers(1, 20_000), st.sampled_from([0.1, 0.5, 2.0]))
def test_the_parts_are_disjoint_and_within_the_budget_but_for_one(files: list[FileStats], budget: int, ratio: float):
    chosen = found(*files, ratio=ratio, budget=budget)
    assert len({d.waiting for d in chosen}) <= 1
    for i, one in enumerate(chosen):
        others = chosen[:i] + chosen[i + 1 :]
        assert all(set(other.files).isdisjoint(one.files) for other in others)
        assert one.waiting or all(not other.path.startswith(one.path) for other in others)
    assert len(chosen) <= 1 or sum(d.bytes for d in chosen) <= budget


@pytest.mark.parametrize(
    ("rows", "left"),
    [
        ({"00": 5, "01": 5, "10": 5, "11": 5}, [""]),
        ({"00": 100, "01": 100, "10": 5, "11": 5}, ["00", "01", "1"]),
        ({"00": 100, "01": 100, "10": 100, "11": 100}, ["00", "01", "10", "11"]),
        ({"00": 300, "01": 1, "10": 0, "11": 0}, ["00", "01", "1"]),
        ({}, [""]),
    ],
)
def test_new_rows_go_to_the_smallest_parts_in_which_they_make_files_of_some_size(
    rows: dict[str, float], left: list[str]
):
    assert pieces(TREE, rows, rows_min=50).paths() == left


# -- merges of keyed tables ---------------------------------------------------------------------------------


def along(*files: FileStats, touched: FileStats) -> tuple[set[str], list[str]]:
    taken, regions = taken_along(TREE, files, CLUSTERED, {touched.path})
    return {f.path for f in taken}, regions


def test_what_waits_in_a_region_goes_along_when_its_clustered_file_is_written_anew():
    waits, elsewhere, above = (file(*at, size=50, staged=True) for at in ((0, 9), (10, 19), (5, 15)))
    files = (*WHOLE, waits, elsewhere, above)
    assert along(*files, touched=WHOLE[0]) == ({WHOLE[0].path, waits.path}, ["00"])


def test_a_file_that_waits_is_written_anew_alone_and_its_region_is_no_more_clustered_than_before():
    waits, other = file(0, 9, size=50, staged=True), file(0, 9, size=60, staged=True)
    assert along(*WHOLE, waits, other, touched=waits) == ({waits.path}, [])


def test_a_region_that_grew_too_large_is_left_to_be_cut_and_one_of_equal_keys_is_not():
    def left(had: int, has: int) -> list[str]:
        return not_grown(TREE, ["00"], [file(0, 9, size=had)], [file(0, 9, size=has)], target_bytes=TARGET)

    assert left(TARGET, TARGET + TARGET // 2) == ["00"]
    assert left(TARGET, TARGET + TARGET // 2 + 1) == []
    assert left(2 * TARGET, 3 * TARGET) == ["00"]


def test_a_region_that_is_written_anew_by_a_merge_is_not_due_for_that():
    touched = WHOLE[0]
    taken, regions = taken_along(TREE, WHOLE, CLUSTERED, {touched.path})
    after = (*WHOLE[1:], replace(touched, path="anew", sequence=5))
    clustered = CLUSTERED | dict.fromkeys(not_grown(TREE, regions, taken, after[-1:], target_bytes=TARGET), 5)
    assert due(TREE, after, clustered, target_bytes=TARGET, staged_ratio=0.5, budget_bytes=PLENTY) == []
    assert due(TREE, after, CLUSTERED, target_bytes=TARGET, staged_ratio=0.5, budget_bytes=PLENTY) != []
