"""Ranges of offsets: their size, what two share, and what is around several."""

from __future__ import annotations

from harness_pipelines.protocol.ranges import first_of, hull, intersection, offset_count, rest_of


def test_the_size_is_the_number_of_offsets():
    assert offset_count({}) == 0
    assert offset_count({0: (3, 3), 1: (2, 7)}) == 5


def test_two_ranges_share_the_offsets_of_both_and_no_empty_run():
    assert intersection({0: (0, 5), 1: (0, 5), 2: (0, 5)}, {2: (5, 9), 0: (3, 9)}) == {0: (3, 5)}


def test_a_hull_is_around_the_runs_of_each_partition():
    assert list(hull([{1: (4, 6)}, {0: (1, 2), 1: (0, 2)}]).items()) == [(0, (1, 2)), (1, (0, 6))]
    assert hull([]) == {}


def test_the_first_offsets_and_the_rest_are_all_there_are():
    runs = [(1, (4, 6)), (0, (1, 9)), (2, (0, 3))]
    first = first_of(runs, 5)
    assert first == {1: (4, 6), 0: (1, 4)}
    assert list(rest_of(runs, first)) == [(0, (4, 9)), (2, (0, 3))]
    assert (first_of(runs, 0), first_of(runs, 99)) == ({}, dict(runs))
    assert list(rest_of(runs, dict(runs))) == []
