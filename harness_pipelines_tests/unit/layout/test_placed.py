"""What is kept of a view from look to look says the same as a look at all of its files, and costs what changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.layout import rewrites
from harness_pipelines.layout.boxes import At
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.files import Extent, FileStats, place
from harness_pipelines.layout.rewrites import Placed, Rewrite, Rules, due
from harness_pipelines.layout.tree import RegionTree

ONE = RegionTree.single([IndexedColumn("n", "int")])
TREES = (
    ONE,
    ONE.split("", 0, At(20)),
    ONE.split("", 0, At(20)).split("0", 0, At(10)),
    ONE.split("", 0, At(20)).split("0", 0, At(10)).split("1", 0, At(30)),
    ONE.split("", 0, At(20)).split("0", 0, At(15)).split("1", 0, At(30)).split("11", 0, At(35)),
    ONE.split("", 0, At(10)).split("1", 0, At(20)),
)


def file(number: int, low: int, span: int, size: int, sequence: int) -> FileStats:
    extents = (Extent(low, low + span, 0, 0),)
    return FileStats(path=f"f{number}", rows=size, bytes=size, sequence=sequence, extents=extents)


files = st.builds(
    file, st.integers(0, 30), st.integers(-5, 40), st.integers(0, 30), st.sampled_from([1, 5, 800, 3000]),
    st.integers(1, 4),
)  # fmt: skip
changes = st.lists(
    st.tuples(
        st.lists(st.integers(0, 30), max_size=8), st.lists(files, max_size=20), st.sampled_from(TREES),
        st.dictionaries(st.sampled_from(["", "0", "1", "00", "01", "10", "11", "111"]), st.integers(0, 4)),
    ),
    min_size=1, max_size=6,
)  # fmt: skip
left_out = st.lists(st.frozensets(st.integers(0, 30).map("f{}".format), max_size=3), max_size=2)


def same(found: Sequence[Rewrite], wanted: Sequence[Rewrite]) -> None:
    def told(parts: Sequence[Rewrite]) -> list[Any]:
        return [(p.path, p.staged_bytes, p.waiting, sorted(p.files, key=lambda f: f.path)) for p in parts]

    assert told(found) == told(wanted)


@pytest.fixture(autouse=True)
def few_files_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrites, "WAITING_MAX", 3)


@given(changes, st.sampled_from([0.1, 0.5, 2.0]), st.sampled_from([100, 5_000, 10**9]), left_out)
def test_after_any_changes_the_same_is_due_as_of_a_view_that_is_seen_at_once(
    history: list[Any], ratio: float, budget: int, failed: list[frozenset[str]]
):
    placed, there = Placed(ONE, {}), dict[str, FileStats]()
    for number, (gone, come, tree, clustered) in enumerate(history):
        there = {path: one for path, one in there.items() if path not in {f"f{g}" for g in gone}}
        there |= {one.path: one for one in come}
        placed.lay_out(tree, clustered)
        placed.change([f"f{g}" for g in gone], come)
        rules = Rules(
            target_bytes=1_000, staged_ratio=ratio, budget_bytes=budget, left_out=tuple(failed) if number % 2 else ()
        )
        wanted = due(
            tree, there.values(), clustered, target_bytes=1_000, staged_ratio=ratio, budget_bytes=budget,
            left_out=rules.left_out,
        )  # fmt: skip
        same(placed.due(rules), wanted)
        assert (len(placed), placed.bytes) == (len(there), sum(one.bytes for one in there.values()))
        assert all(placed[path] == one for path, one in there.items())


RULES = Rules(target_bytes=16, staged_ratio=0.5, budget_bytes=10**9)


def view(regions: int, each: int) -> tuple[Placed, RegionTree, dict[str, int]]:
    """A clustered view with *each* files of the target size in each of *regions* regions."""
    tree = ONE
    waiting = [("", 0, regions)]
    while waiting:
        path, low, high = waiting.pop()
        if high - low > 1:
            middle = (low + high) // 2
            tree = tree.split(path, 0, At(10 * middle))
            waiting += [(path + "0", low, middle), (path + "1", middle, high)]
    clustered = dict.fromkeys(tree.paths(), 1)
    there = [file(each * r + n, 10 * r, 5, 15 // each, 1) for r in range(regions) for n in range(each)]
    return Placed(tree, clustered, there), tree, clustered


class Counted:
    """How often files were placed and parts judged."""

    placed = 0
    judged = 0


@contextmanager
def counted() -> Iterator[Counted]:
    """Both are counted where the rules of the layout are asked, in the block."""
    found = Counted()
    is_due = rewrites._is_due

    def placing(*given: Any) -> str:
        found.placed += 1
        return place(*given)

    def judging(*given: Any) -> bool:
        found.judged += 1
        return is_due(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrites, "place", placing)
        patch.setattr(rewrites, "_is_due", judging)
        yield found


@pytest.mark.parametrize("regions", [16, 256])
def test_a_look_places_what_came_and_judges_the_parts_above_it(regions: int):
    placed, tree, _ = view(regions, 3)
    assert placed.due(RULES) == []

    with counted() as found:
        placed.change([], [file(10**6, 0, 5, 1, 2)])
        assert placed.due(RULES) == []

    assert (found.placed, found.judged) == (1, tree.depth + 1)


def test_a_look_at_what_did_not_change_judges_nothing():
    placed, tree, clustered = view(16, 3)
    placed.due(RULES)

    with counted() as found:
        placed.lay_out(RegionTree.from_json(tree.to_json()), dict(clustered))
        placed.change([], [])
        placed.due(RULES)

    assert (found.placed, found.judged) == (0, 0)


def test_after_a_relayout_only_files_below_the_node_that_changed_are_placed_again():
    placed, tree, clustered = view(16, 3)
    path = tree.paths()[0]

    with counted() as found:
        placed.lay_out(tree.split(path, 0, At(4)), clustered)

    assert found.placed == 3


def test_other_rules_judge_all_parts_again():
    placed, _, _ = view(16, 3)
    assert placed.due(RULES) == []
    assert placed.due(replace(RULES, target_bytes=1_000)) != []
    assert placed.due(RULES) == []
