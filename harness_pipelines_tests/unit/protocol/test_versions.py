"""Versions follow each other, old ones are answered for, and the trim floor spares whoever needs the buffer."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.protocol.bounds import BoundaryGap, Bounds, covers
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.moves import Move, MoveState
from harness_pipelines.protocol.shape import VIEW_SETS
from harness_pipelines.protocol.versions import (
    ForeignCommit,
    Version,
    View,
    advance,
    answering_version,
    check_base,
    trim_floor,
    unanswered,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GRACE = timedelta(minutes=10)


def version(number: int, bounds: dict[int, Bounds], *, age: timedelta = timedelta(0)) -> Version:
    return Version(
        table_id=1,
        version=number,
        stream=View(metadata=f"{number}.metadata.json", snapshot=number),
        schema_version=1,
        bounds=bounds,
        move_id=None,
        committed_at=NOW - age,
    )


def move(lo: dict[int, int], hi: dict[int, int], *, stage: Stage = Stage.TIER) -> Move:
    return Move(
        move_id=9,
        table_id=1,
        stage=stage,
        shard=0,
        lo=lo,
        hi=hi,
        base_version=1,
        schema_version=1,
        state=MoveState.PLANNED,
        attempt=1,
        epoch=1,
    )


@st.composite
def histories(draw: st.DrawFn) -> list[Version]:
    """Versions as moves make them: the lake follows a buffer that fills, ages fall."""
    partitions = range(draw(st.integers(1, 2)))
    ages = sorted(draw(st.lists(st.integers(0, 40), min_size=1, max_size=6)), reverse=True)
    stream, buffer = dict.fromkeys(partitions, 0), dict.fromkeys(partitions, 0)
    made = []
    for number, age in enumerate(ages, start=1):
        for p in partitions:
            buffer[p] += draw(st.integers(0, 10))
            stream[p] = draw(st.integers(stream[p], buffer[p])) if number > 1 else 0
        bounds = {p: Bounds(start=0, batch_hi=0, stream_hi=stream[p], buffer_hi=buffer[p]) for p in partitions}
        made.append(version(number, bounds, age=timedelta(minutes=age)))
    return made


@given(histories(), st.data())
def test_an_old_version_is_answered_by_the_first_that_holds_all_it_had(history, data):
    old = data.draw(st.sampled_from(history))

    found = answering_version(old, history)

    holding = [v.version for v in history if v.version >= old.version and covers(v.stream_hi, old.buffer_hi)]
    assert (found and found.version) == (min(holding) if holding else None)


@st.composite
def wild_histories(draw: st.DrawFn) -> list[Version]:
    """Versions of which nothing grows steadily: reverts, partitions that join, columns that are dropped."""
    made, narrowed = [], 0
    for number in range(1, draw(st.integers(1, 12)) + 1):
        partitions = draw(st.sets(st.integers(0, 2), min_size=1))
        stream = {p: draw(st.integers(0, 6)) for p in sorted(partitions)}
        bounds = {
            p: Bounds(start=0, batch_hi=0, stream_hi=hi, buffer_hi=hi + draw(st.integers(0, 3)))
            for p, hi in stream.items()
        }
        narrowed += draw(st.integers(0, 5)) == 5
        made.append(replace(version(number, bounds), narrowed=narrowed))
    return made


@given(wild_histories(), st.data())
def test_one_walk_finds_the_versions_that_nothing_answers_for(history, data):
    asked = data.draw(st.lists(st.sampled_from(history)))
    first = data.draw(st.integers(0, len(history)))  # the rest were compared before

    found = unanswered(asked, history[first:])

    slow = [v for v in asked if answering_version(v, history[first:]) is None]
    assert sorted(v.version for v in found) == sorted(v.version for v in slow)
    assert all(v in slow for v in found)


@given(wild_histories(), st.data())
def test_what_waits_is_found_part_by_part_as_at_once(history, data):
    waiting: list[Version] = []
    rest = history
    while rest:
        taken = data.draw(st.integers(1, len(rest)))
        waiting = unanswered([*waiting, *rest[:taken]], rest[:taken])
        rest = rest[taken:]

    assert waiting == unanswered(history, history)


@given(histories(), st.data())
def test_the_floor_takes_nothing_from_readers_old_versions_or_a_revert(history, data):
    leased = data.draw(st.lists(st.sampled_from(history), max_size=2))
    retained = history[data.draw(st.integers(0, len(history) - 1)) :]

    floor = trim_floor(history, leased, waiting=unanswered(retained, history), grace=GRACE, now=NOW)

    def spares(needs: Version) -> bool:
        return all(floor[p] <= at for p, at in needs.stream_hi.items())

    assert all(spares(v) for v in leased if any(v.committed_at <= NOW - GRACE for v in history))
    assert all(spares(v) for v in retained if answering_version(v, history) is None)
    assert all(spares(v) for v in history if v.committed_at > NOW - GRACE)
    assert spares(history[-1])


@given(histories())
def test_the_floor_rises_to_the_head_once_everything_is_settled_and_moved(history):
    last = history[-1]
    moved = {
        p: Bounds(start=0, batch_hi=0, stream_hi=b.buffer_hi, buffer_hi=b.buffer_hi) for p, b in last.bounds.items()
    }
    history = [*history, version(last.version + 1, moved)]

    waiting = unanswered(history, history)
    floor = trim_floor(history, [], waiting=waiting, grace=GRACE, now=NOW + timedelta(hours=2))

    assert floor == history[-1].stream_hi


@given(histories())
def test_the_next_version_changes_the_columns_of_its_move_alone(history):
    head = history[-1]
    some = min(head.bounds)
    new = View(metadata="new", snapshot=77)
    ends = {p: b.buffer_hi + 1 for p, b in head.bounds.items()}
    planned = move({some: head.bounds[some].stream_hi}, {some: head.bounds[some].buffer_hi})

    following = advance(head, planned, view=new, buffer_hi=ends, starts=dict.fromkeys(ends, 0), now=NOW)

    assert (following.version, following.stream, following.move_id) == (head.version + 1, new, 9)
    assert following.buffer_hi == ends
    assert following.stream_hi == {**head.stream_hi, some: planned.hi[some]}


@given(histories())
def test_a_compaction_changes_the_stream_view_and_no_bound_but_that_of_the_buffer(history):
    head = history[-1]
    new = View(metadata="new", snapshot=77)
    ends = {p: b.buffer_hi + 1 for p, b in head.bounds.items()}
    compaction = move({}, {}, stage=Stage.COMPACT)

    following = advance(head, compaction, view=new, buffer_hi=ends, starts=dict.fromkeys(ends, 0), now=NOW)

    assert (following.stream, following.batch, following.stream_hi) == (new, head.batch, head.stream_hi)
    assert following.buffer_hi == ends
    with pytest.raises(BoundaryGap):
        advance(
            head,
            move({0: 0}, {0: 1}, stage=Stage.COMPACT),
            view=new,
            buffer_hi=ends,
            starts=dict.fromkeys(ends, 0),
            now=NOW,
        )


def test_a_partition_that_the_head_does_not_know_begins_at_its_start():
    head = version(1, {0: Bounds.at(0)})

    following = advance(
        head,
        move({3: 40}, {3: 45}),
        view=head.stream,
        buffer_hi={0: 0, 3: 50},
        starts={0: 0, 3: 40},
        now=NOW,
    )

    assert following.bounds[3] == Bounds(start=40, batch_hi=40, stream_hi=45, buffer_hi=50)
    with pytest.raises(BoundaryGap, match="partition 3: it starts at offset 41, the stream view ends at 40"):
        advance(
            head,
            move({3: 41}, {3: 45}),
            view=head.stream,
            buffer_hi={3: 50},
            starts={3: 40},
            now=NOW,
        )


def test_only_what_the_ledger_published_is_built_on():
    head = version(4, {})

    check_base(head, 4, table="shop.orders")
    told = r"^shop.orders: .* at snapshot 5, version 4 published 4: another.*`harness revert shop.orders --to HEAD"
    with pytest.raises(ForeignCommit, match=told):
        check_base(head, 5, table="shop.orders")


def test_a_lease_on_a_version_that_does_not_know_a_partition_holds_it_from_its_start():
    """Its reader took the partition's rows from the buffer before any version named them."""
    before = version(1, {0: Bounds.at(0)}, age=timedelta(hours=3))
    joined = Bounds(start=7, batch_hi=7, stream_hi=9, buffer_hi=9)
    after = version(2, {0: Bounds.at(0), 1: joined}, age=timedelta(hours=2))

    assert trim_floor([before, after], [before], waiting=[], grace=GRACE, now=NOW) == {0: 0, 1: 7}
    assert trim_floor([before, after], [], waiting=[], grace=GRACE, now=NOW) == {0: 0, 1: 9}


# -- `views: batch` -----------------------------------------------------------------------------------------


@given(histories())
def test_where_the_batch_view_is_the_only_one_tier_moves_both_bounds_and_a_relayout_none(history):
    only = View(metadata="only", snapshot=70)
    bounds = {p: replace(b, batch_hi=b.stream_hi) for p, b in history[-1].bounds.items()}
    head = replace(history[-1], stream=only, batch=only, bounds=bounds)
    new, ends, some = View(metadata="new", snapshot=77), head.buffer_hi, min(bounds)
    known: dict[str, Any] = {"view": new, "buffer_hi": ends, "starts": dict.fromkeys(ends, 0), "now": NOW}

    tiered = advance(head, move({some: bounds[some].stream_hi}, {some: bounds[some].buffer_hi}), **known)
    relaid = advance(head, move({}, {}, stage=Stage.OTREE), relaid=True, **known)

    assert tiered.views == relaid.views == {"batch": new}
    assert all(b.batch_hi == b.stream_hi for b in tiered.bounds.values())
    assert tiered.stream_hi == {**head.stream_hi, some: head.bounds[some].buffer_hi}
    assert (relaid.bounds, relaid.layout) == (head.bounds, head.version + 1)
    with pytest.raises(KeyError):
        advance(head, move({}, {}, stage=Stage.COMPACT), **known)


@pytest.mark.parametrize(
    ("views", "stages"),
    [
        ("both", {Stage.TIER: "stream", Stage.OTREE: "batch", Stage.COMPACT: "stream"}),
        ("stream", {Stage.TIER: "stream", Stage.COMPACT: "stream"}),
        ("batch", {Stage.TIER: "batch", Stage.OTREE: "batch"}),
    ],
)
def test_a_table_has_the_stages_that_write_its_views(views, stages):
    assert {stage: effect.view for stage, effect in VIEW_SETS[views].effects.items()} == stages
