"""What a move takes, how it is halved, and which attempt may publish."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.protocol.bounds import Bounds, buffered
from harness_pipelines.protocol.claims import Claim, FencedOut, Stage, check_claim, may_take
from harness_pipelines.protocol.moves import (
    ATTEMPTS_MAX,
    Move,
    MoveClosed,
    MoveState,
    budget_of,
    check_open,
    halve,
    may_relayout,
    next_attempt,
    plan_ranges,
    took_effect,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@st.composite
def cuts(draw: st.DrawFn) -> dict[int, Bounds]:
    """Bounds of some partitions, many of them without lag."""
    found = {}
    for partition in draw(st.sets(st.integers(0, 20), max_size=8)):
        start, lake, lag = (draw(st.integers(0, top)) for top in (20, 20, 200))
        lag *= draw(st.booleans())
        found[partition] = Bounds(start=start, batch_hi=start, stream_hi=start + lake, buffer_hi=start + lake + lag)
    return found


def lags(bounds: dict[int, Bounds]) -> dict[int, int]:
    return {p: b.buffer_hi - b.stream_hi for p, b in bounds.items() if b.buffer_hi > b.stream_hi}


@given(cuts(), st.integers(1, 1000))
def test_a_move_takes_from_every_partition_that_lags_and_never_more_than_is_there(bounds, budget):
    lo, hi = plan_ranges(buffered(bounds), offsets_max=budget)

    assert set(lo) == set(hi) == set(lags(bounds))
    assert all(bounds[p].stream_hi == lo[p] < hi[p] <= bounds[p].buffer_hi for p in lo)


@given(cuts(), st.integers(1, 1000))
def test_a_move_keeps_its_budget_but_for_one_offset_of_each_partition(bounds, budget):
    lo, hi = plan_ranges(buffered(bounds), offsets_max=budget)

    assert sum(hi[p] - lo[p] for p in lo) <= max(budget, len(lo))


@given(cuts(), st.integers(1, 1000))
def test_a_budget_that_is_enough_is_used_to_the_full(bounds, budget):
    lag = lags(bounds)
    lo, hi = plan_ranges(buffered(bounds), offsets_max=budget)

    taken = sum(hi[p] - lo[p] for p in lo)
    assert taken >= min(sum(lag.values()), budget) - len(lag)
    if budget >= sum(lag.values()):
        assert hi == {p: bounds[p].buffer_hi for p in lag}


@given(cuts(), st.integers(1, 1000))
def test_no_partition_starves_beside_one_that_is_far_behind(bounds, budget):
    lag = lags(bounds)
    lo, hi = plan_ranges(buffered(bounds), offsets_max=budget)

    assert all(hi[p] - lo[p] >= min(lag[p], budget // len(lag)) for p in lag)


@given(st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1))
def test_halving_ends_at_single_offsets_and_never_loses_the_beginning(ranges):
    lo = {p: low for p, (low, _) in ranges.items()}
    hi = {p: low + span for p, (low, span) in ranges.items()}
    for _ in range(8):
        half = halve(lo, hi)
        assert all(lo[p] <= half[p] <= hi[p] for p in lo)
        assert all(half[p] > lo[p] for p in lo if hi[p] > lo[p])
        assert all(half[p] < hi[p] for p in lo if hi[p] > lo[p] + 1)
        hi = half
    assert all(hi[p] - lo[p] == min(1, ranges[p][1]) for p in lo)


def a_move(**changes: object) -> Move:
    made = Move(
        move_id=3,
        table_id=1,
        stage=Stage.TIER,
        shard=0,
        lo={1: 5, 0: 0},
        hi={1: 5, 0: 9},
        base_version=1,
        schema_version=1,
        state=MoveState.PLANNED,
        attempt=2,
        epoch=4,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_the_ranges_of_a_move_are_those_with_offsets():
    assert [(r.partition, r.low, r.high) for r in a_move().ranges] == [(0, 0, 9)]


def test_the_byte_budget_of_a_move_halves_after_every_so_many_attempts():
    turns = [1, ATTEMPTS_MAX, ATTEMPTS_MAX + 1, 2 * ATTEMPTS_MAX, 2 * ATTEMPTS_MAX + 1, 100 * ATTEMPTS_MAX]

    assert [budget_of(a_move(attempt=turn), bytes_max=64) for turn in turns] == [64, 64, 32, 32, 16, 0]


def test_the_recorded_attempt_may_publish():
    check_open(a_move(), a_move())


@pytest.mark.parametrize("change", [{"attempt": 3}, {"attempt": 1}, {"epoch": 5}])
def test_no_other_attempt_may_publish(change: dict[str, int]):
    with pytest.raises(MoveClosed, match=r"attempt 2 \(epoch 4\) was superseded"):
        check_open(a_move(), a_move(**change))


@pytest.mark.parametrize("state", [s for s in MoveState if s is not MoveState.PLANNED])
def test_a_closed_move_may_not_publish(state: MoveState):
    with pytest.raises(MoveClosed, match=f"is {state} already"):
        check_open(a_move(), a_move(state=state))
    with pytest.raises(MoveClosed, match="not in the ledger"):
        check_open(a_move(), None)


def test_a_move_is_not_published_by_the_row_of_another_that_was_given_its_number():
    mine = a_move(nonce="a")
    check_open(mine, a_move(nonce="a"))
    with pytest.raises(MoveClosed, match="another move was given the number"):
        check_open(mine, a_move(nonce="b"))
    assert not took_effect(mine, a_move(nonce="b", state=MoveState.COMMITTED))
    assert took_effect(mine, a_move(nonce="a", state=MoveState.COMMITTED))


def test_an_attempt_has_a_branch_of_its_own_and_all_else_in_common():
    following = next_attempt(a_move(), epoch=7)

    assert (following.branch, a_move().branch) == ("move_3_3", "move_3_2")
    assert replace(following, attempt=2, epoch=4) == a_move()


def a_claim(*, holder: str = "a", epoch: int = 1, left: int = 1) -> Claim:
    until = NOW + timedelta(seconds=left)
    return Claim(table_id=1, stage=Stage.TIER, shard=0, holder=holder, epoch=epoch, lease_until=until)


@given(st.integers(-3, 3), st.integers(1, 3), st.sampled_from("ab"))
def test_whoever_may_be_robbed_may_not_commit(left, epoch, holder):
    """At every instant either the holder passes the fence or the claim may be taken, never both."""
    current = a_claim(holder=holder, epoch=epoch, left=left)
    try:
        check_claim(a_claim(), current, now=NOW)
    except FencedOut as error:
        assert "nothing was written" in str(error)
    else:
        assert not may_take(current, now=NOW)
        assert (holder, epoch) == ("a", 1)


def test_a_claim_that_nobody_has_is_free_and_lets_nobody_pass():
    assert may_take(None, now=NOW)
    with pytest.raises(FencedOut, match="current is nobody"):
        check_claim(a_claim(), None, now=NOW)


def test_merges_and_relayouts_take_turns_so_that_neither_starves():
    """L8, with both always having work: no more than one of either in a row."""
    done = [True]  # a merge
    for _ in range(6):
        done.append(not may_relayout(rows_wait=True, last_merged=done[-1]))
    assert done == [True, False, True, False, True, False, True]
    assert may_relayout(rows_wait=False, last_merged=False), "nobody to give way to"
