"""What is left of a request is read off the files."""

from __future__ import annotations

import pytest

from harness_pipelines.layout.boxes import At
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.files import Extent, FileStats
from harness_pipelines.layout.requested import Request, as_due, at_once, left_of, parts_with
from harness_pipelines.layout.tree import RegionTree

TREE = RegionTree.single([IndexedColumn("n", "long")]).split("", 0, At(50)).split("0", 0, At(25))  # 00 01 1
CLUSTERED = {"00": 5, "01": 5, "1": 5}
BIG = 10**9


def file(low: int, high: int, *, sequence: int, size: int = 100) -> FileStats:
    extent = Extent(low, high, 0, 0)
    return FileStats(path=f"{low}-{high}-{sequence}", rows=10, bytes=size, sequence=sequence, extents=(extent,))


SETTLED = [file(0, 24, sequence=5), file(25, 49, sequence=5), file(50, 99, sequence=5)]


def request(*paths: str, upto: int = 9, rebuild: bool = False) -> Request:
    return Request(request_id=1, paths=paths or ("",), upto=upto, rebuild=rebuild)


def left(asked: Request, *more: FileStats, budget: int = BIG) -> list[str]:
    return [part.path for part in left_of(asked, TREE, [*SETTLED, *more], CLUSTERED, budget_bytes=budget)]


def test_where_all_is_clustered_only_a_rebuild_has_something_to_do():
    assert left(request()) == []
    assert left(request(rebuild=True)) == [""]


def test_a_staged_file_is_a_reason_to_write_its_region_and_no_other():
    assert left(request(), file(30, 40, sequence=7)) == ["01"]
    assert left(request("1"), file(30, 40, sequence=7)) == []


def test_a_file_over_several_regions_takes_the_part_that_holds_it():
    assert left(request(), file(20, 40, sequence=7)) == ["0"]


def test_a_file_over_several_regions_stays_where_its_part_was_not_asked_for_or_is_above_the_budget():
    across = file(20, 40, sequence=7)

    assert left(request("01"), across) == []
    assert left(request(), across, budget=200) == []


def test_a_file_over_several_regions_is_meant_by_what_it_may_hold():
    across = file(20, 40, sequence=7)
    chosen = parts_with(TREE, [*SETTLED, across], {across.path})

    assert chosen == ["0"]
    assert left(request(*chosen), across) == ["0"]


def test_what_came_after_the_request_is_none_of_its_business():
    assert left(request(upto=6), file(30, 40, sequence=7)) == []


def test_what_a_rebuild_has_written_is_not_written_again():
    done = [file(0, 24, sequence=10), *SETTLED[1:]]

    found = left_of(request(rebuild=True), TREE, done, {**CLUSTERED, "00": 10}, budget_bytes=BIG)

    assert [part.path for part in found] == ["01", "1"]


@pytest.mark.parametrize(
    ("budget", "parts"), [(300, [""]), (299, ["0", "1"]), (199, ["00", "01", "1"]), (1, ["00", "01", "1"])]
)
def test_parts_are_as_large_as_the_budget_and_regions_whatever_their_size(budget, parts):
    assert left(request(rebuild=True), budget=budget) == parts


def test_a_request_for_regions_that_became_one_takes_that_one():
    assert left(request("010", "111", rebuild=True)) == ["01", "1"]


def test_one_move_takes_parts_within_the_budget_and_at_least_one():
    parts = left_of(request(rebuild=True), TREE, SETTLED, CLUSTERED, budget_bytes=1)

    assert [p.path for p in at_once(parts, budget_bytes=200)] == ["00", "01"]
    assert [p.path for p in at_once(parts, budget_bytes=1)] == ["00"]
    assert at_once([], budget_bytes=1) == []


def test_recorded_parts_are_weighed_as_they_are_now():
    [found] = as_due(TREE, [*SETTLED, file(30, 40, sequence=7, size=11)], CLUSTERED, ["0"])

    assert (found.path, found.bytes, found.staged_bytes) == ("0", 211, 11)
