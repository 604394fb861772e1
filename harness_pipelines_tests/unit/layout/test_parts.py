"""Which parts of the tree a move writes: disjoint, bounded, and only where something has come together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.layout.boxes import At
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.files import Extent, FileStats
from harness_pipelines.layout.parts import Due, due, pieces
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


def found(*files: FileStats, ratio: float = 0.5, budget: int = PLENTY) -> list[Due]:
    return due(TREE, files, CLUSTERED, target_bytes=TARGET, staged_ratio=ratio, budget_bytes=budget)


WHOLE = (file(0, 9), file(10, 19), file(20, 29), file(30, 39))


def test_a_clustered_view_has_nothing_due():
    assert found(*WHOLE) == []


def test_a_region_is_due_once_enough_was_added_to_it_and_no_other_is():
    assert found(*WHOLE, file(0, 9, size=400, staged=True)) == []
    assert found(*WHOLE, file(0, 9, size=500, staged=True)) == [Due(path="00", bytes=1500, staged_bytes=500)]


def test_a_piece_that_lies_over_two_regions_counts_for_the_part_that_holds_both():
    assert found(*WHOLE, file(5, 15, size=900, staged=True)) == []
    assert found(*WHOLE, file(5, 15, size=1000, staged=True)) == [Due(path="0", bytes=3000, staged_bytes=1000)]


def test_a_part_is_taken_as_a_whole_rather_than_region_by_region():
    added = [file(low, low + 9, size=600, staged=True) for low in (0, 10, 20, 30)]
    assert found(*WHOLE, *added) == [Due(path="", bytes=6400, staged_bytes=2400)]


def test_what_is_above_the_budget_is_taken_in_smaller_parts_and_at_least_one_of_them():
    added = [file(low, low + 9, size=600, staged=True) for low in (0, 10, 20, 30)]
    assert [d.path for d in found(*WHOLE, *added, budget=3200)] == ["0"]
    assert [d.path for d in found(*WHOLE, *added, budget=1)] == ["00"]


def test_a_region_that_grew_too_large_is_due_but_not_one_that_could_not_be_cut():
    assert [d.path for d in found(*WHOLE, file(0, 9, size=501, staged=True), ratio=10)] == ["00"]
    assert found(file(0, 9, size=5000), *WHOLE[1:]) == []


def test_two_small_neighbours_become_one():
    small = (file(0, 9, size=200), file(10, 19, size=200))
    assert [d.path for d in found(*small, *WHOLE[2:])] == ["0"]


files_anywhere = st.builds(
    lambda low, span, size, staged: file(low, low + span, size=size, staged=staged),
    st.integers(-5, 40), st.integers(0, 45), st.integers(1, 3000), st.booleans(),
)  # fmt: skip


@given(st.lists(files_anywhere, max_size=12), st.integers(1, 20_000), st.sampled_from([0.1, 0.5, 2.0]))
def test_the_parts_are_disjoint_and_within_the_budget_but_for_one(files: list[FileStats], budget: int, ratio: float):
    chosen = found(*files, ratio=ratio, budget=budget)
    for i, one in enumerate(chosen):
        assert all(not other.path.startswith(one.path) for other in chosen[:i] + chosen[i + 1 :])
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
