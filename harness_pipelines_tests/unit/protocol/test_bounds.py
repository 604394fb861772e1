"""Bounds keep their order, vectors are compared partition by partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.protocol.bounds import (
    BoundaryGap,
    Bounds,
    BoundsBroken,
    OffsetRange,
    check_starts,
    covers,
    lowest,
    vector_from_json,
    vector_to_json,
)
from harness_pipelines.protocol.segments import may_hold, may_retire

offsets = st.integers(0, 50)
vectors = st.dictionaries(st.integers(0, 4), offsets, max_size=4)


@given(st.tuples(offsets, offsets, offsets, offsets))
def test_bounds_exist_exactly_in_order(at: tuple[int, int, int, int]):
    start, batch_hi, stream_hi, buffer_hi = at
    if list(at) == sorted(at):
        made = Bounds(start=start, batch_hi=batch_hi, stream_hi=stream_hi, buffer_hi=buffer_hi)
        assert Bounds(**made.to_json()) == made
    else:
        with pytest.raises(BoundsBroken, match="bounds out of order"):
            Bounds(start=start, batch_hi=batch_hi, stream_hi=stream_hi, buffer_hi=buffer_hi)


@given(st.integers(-5, 5), st.integers(-5, 5))
def test_a_range_is_half_open_and_never_negative(low: int, high: int):
    if 0 <= low <= high:
        assert OffsetRange(partition=0, low=low, high=high).span == len(range(low, high))
    else:
        with pytest.raises(BoundsBroken, match="is not a range of offsets"):
            OffsetRange(partition=0, low=low, high=high)


@given(vectors, vectors)
def test_a_vector_covers_another_when_it_reaches_it_in_every_partition(high, wanted):
    assert covers(high, wanted) == all(p in high and high[p] >= o for p, o in wanted.items())


@given(st.lists(vectors, max_size=4))
def test_the_lowest_is_below_every_vector_and_touches_one(given_vectors):
    floor = lowest(given_vectors)

    assert set(floor) == {p for v in given_vectors for p in v}
    assert all(floor[p] <= o for v in given_vectors for p, o in v.items())
    assert all(any(v.get(p) == o for v in given_vectors) for p, o in floor.items())


@given(vectors)
def test_a_vector_survives_json(vector):
    assert vector_from_json(vector_to_json(vector)) == vector


@given(vectors, vectors)
def test_a_move_starts_exactly_at_the_boundary_or_names_the_first_partition_that_does_not(low, boundary):
    wrong = [p for p in sorted(low) if boundary.get(p) != low[p]]
    if not wrong:
        return check_starts(low, boundary, what="it")
    with pytest.raises(BoundaryGap) as gap:
        check_starts(low, boundary, what="it")
    assert (gap.value.partition, gap.value.got_low) == (wrong[0], low[wrong[0]])
    assert gap.value.expected_low == boundary.get(wrong[0], -1)


@given(vectors, vectors)
def test_a_segment_that_may_retire_holds_nothing_above_the_floor(max_hi, floor):
    """What a reader from *floor* on may need and what may go never meet."""
    assert may_retire(max_hi, floor) != may_hold(max_hi, floor)


@given(vectors)
def test_an_open_segment_may_hold_anything_and_never_retires(floor):
    assert may_hold(None, floor)
    assert not may_retire(None, floor)
