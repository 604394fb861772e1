"""Ranges of offsets: their size, what two share, and what is around several."""

from __future__ import annotations

from harness_pipelines.protocol.ranges import hull, intersection, offset_count


def test_the_size_is_the_number_of_offsets():
    assert offset_count({}) == 0
    assert offset_count({0: (3, 3), 1: (2, 7)}) == 5


def test_two_ranges_share_the_offsets_of_both_and_no_empty_run():
    assert intersection({0: (0, 5), 1: (0, 5), 2: (0, 5)}, {2: (5, 9), 0: (3, 9)}) == {0: (3, 5)}


def test_a_hull_is_around_the_runs_of_each_partition():
    assert list(hull([{1: (4, 6)}, {0: (1, 2), 1: (0, 2)}]).items()) == [(0, (1, 2)), (1, (0, 6))]
    assert hull([]) == {}
