"""What is due, in which order, and how far a budget reaches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.layout.boxes import At
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.due import Action, Kind, RegionState, due, standing
from harness_pipelines.layout.tree import RegionTree
from harness_pipelines_tests.unit.layout.given import file_of

TARGET, MUCH = 1000, 10**12
LONG = IndexedColumn("n", "long")


def a_region(path: str = "0", clustered: int = 0, staged: int = 0, files: int = 1, **more) -> RegionState:
    return RegionState(path=path, clustered_bytes=clustered, staged_bytes=staged, files=files, **more)


def all_due(regions, *, ratio: float = 0.5, budget: int = MUCH) -> list[Action]:
    return due(regions, target_bytes=TARGET, budget_bytes=budget, staged_ratio=ratio)


@st.composite
def some_regions(draw: st.DrawFn) -> list[RegionState]:
    sizes = st.integers(0, 3000)
    return [
        a_region(path, draw(sizes), draw(sizes), draw(st.integers(1, 5)), unsplittable=draw(st.booleans()))
        for path in ("00", "01", "100", "101", "11")
    ]


@pytest.mark.parametrize(
    ("region", "kind"),
    [
        (a_region(clustered=800), None),
        (a_region(clustered=800, staged=399, files=3), None),
        (a_region(clustered=800, staged=400, files=3), Kind.RELAYOUT),
        (a_region(staged=10), Kind.RELAYOUT),
        (a_region(clustered=1500), None),
        (a_region(clustered=1501), Kind.SPLIT),
        (a_region(clustered=9000, files=9, unsplittable=True), None),
        (a_region(clustered=9000, staged=4500, files=9, unsplittable=True), Kind.RELAYOUT),
        (a_region(files=0), None),
    ],
)
def test_a_region_is_due_by_its_staged_share_and_its_size(region, kind):
    assert [action.kind for action in all_due([region])] == ([kind] if kind else [])


def test_small_siblings_merge_and_are_in_no_other_action():
    regions = [a_region("00", 200, 150, 3), a_region("01", 100), a_region("1", 800)]

    assert [(a.kind, a.path, a.bytes) for a in all_due(regions)] == [(Kind.MERGE, "0", 450)]


def test_cousins_do_not_merge():
    assert all_due([a_region("00", 10), a_region("1", 10), a_region("010", 900), a_region("011", 900)]) == []


@given(regions=some_regions(), more=st.integers(0, 2000), which=st.integers(0, 4))
def test_more_staged_bytes_never_make_a_region_less_due(regions, more, which):
    def split_or_relaid(actions):
        return {action.path for action in actions if action.kind is not Kind.MERGE}

    grown = replace(regions[which], staged_bytes=regions[which].staged_bytes + more)
    after = all_due([*regions[:which], grown, *regions[which + 1 :]])

    was = split_or_relaid(all_due(regions)) & {grown.path}
    merged = {action.path + step for action in after if action.kind is Kind.MERGE for step in "01"}
    assert was <= split_or_relaid(after) | merged


@given(regions=some_regions(), ratios=st.tuples(st.floats(0.01, 3), st.floats(0.01, 3)))
def test_a_larger_staged_ratio_never_makes_more_due(regions, ratios):
    low, high = sorted(ratios)
    assert {a.path for a in all_due(regions, ratio=high)} <= {a.path for a in all_due(regions, ratio=low)}


@given(regions=some_regions(), budget=st.integers(0, 6000))
def test_a_budget_takes_the_best_first_and_always_one(regions, budget):
    everything, taken = all_due(regions), all_due(regions, budget=budget)

    assert [action.worth for action in everything] == sorted((a.worth for a in everything), reverse=True)
    assert taken[:1] == everything[:1]
    assert set(taken) <= set(everything)
    assert sum(action.bytes for action in taken) <= max(budget, everything[0].bytes if everything else 0)
    assert due(regions[::-1], target_bytes=TARGET, budget_bytes=budget) == taken


@given(regions=some_regions())
def test_no_region_is_in_two_actions(regions):
    touched = [
        path for a in all_due(regions) for path in ([a.path + "0", a.path + "1"] if a.kind is Kind.MERGE else [a.path])
    ]
    assert len(touched) == len(set(touched))


def test_files_since_the_last_rewrite_are_staged_and_files_across_are_astray():
    tree = RegionTree.single([LONG]).split("", 0, At(10)).split("1", 0, At(20))
    files = [
        file_of("old", [(1,), (2,)], [LONG], sequence=3),
        file_of("new", [(3,)], [LONG], sequence=4),
        file_of("high", [(25,)] * 4, [LONG], sequence=9),
        file_of("foreign", [(12,), (25,)], [LONG], sequence=9),
    ]

    found = standing(tree, files, {"0": 3})

    low, empty, high = found.regions
    assert (low.clustered_rows, low.staged_rows, low.files, low.clustered_sequence) == (2, 1, 2, 3)
    assert (empty.rows, empty.files) == (0, 0)
    assert (high.clustered_bytes, high.staged_bytes, high.bytes) == (0, 40, 40)
    assert {path: [f.path for f in some] for path, some in found.astray.items()} == {"1": ["foreign"]}
    assert found.staged_share == pytest.approx(70 / 90)
    assert standing(tree, [], {}).staged_share == 0.0
