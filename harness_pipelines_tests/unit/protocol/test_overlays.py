"""Recalled rows: what a version names, what a move makes of it, and what may go."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.errors import Recovery
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.changes.reverts import Retained, limit_of, reverted
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.overlays import (
    Overlay,
    OverlayChange,
    OverlaysMoved,
    OverlayWrong,
    RecallTooLarge,
    check_same,
    check_size,
    named,
    needless,
    next_generation,
    overlay_name,
    overlays_from_json,
    recalled,
    split,
)
from harness_pipelines.protocol.moves import Move, MoveState
from harness_pipelines.protocol.versions import Version, View, advance

THEN = datetime(2026, 1, 1, tzinfo=UTC)
overlays = st.builds(
    Overlay,
    segment=st.from_regex(r"ovl_[1-9]_[1-9][0-9]?_[1-9]", fullmatch=True),
    rows=st.integers(0, 2**40),
    bytes=st.integers(0, 2**40),
    schema_version=st.integers(1, 9),
    digest=st.text(max_size=20),
    move=st.integers(1, 99),
)


def an_overlay(move: int, *, rows: int = 5) -> Overlay:
    return Overlay(
        segment=overlay_name(1, move, 1), rows=rows, bytes=10, schema_version=1, digest=f"v1:{move}", move=move
    )


def a_version(*held: Overlay, number: int = 7) -> Version:
    return Version(
        table_id=1,
        version=number,
        stream=View(metadata="s", snapshot=1),
        batch=View(metadata="b", snapshot=1),
        schema_version=1,
        bounds={0: Bounds(start=0, batch_hi=5, stream_hi=5, buffer_hi=9)},
        move_id=3,
        committed_at=THEN,
        overlays=held,
    )


def a_move(stage: Stage = Stage.OTREE, **ranges: dict[int, int]) -> Move:
    return Move(
        move_id=9,
        table_id=1,
        stage=stage,
        shard=0,
        lo=ranges.get("lo", {}),
        hi=ranges.get("hi", {}),
        base_version=7,
        schema_version=1,
        state=MoveState.PLANNED,
        attempt=1,
        epoch=1,
    )


def advanced(head: Version, move: Move, change: OverlayChange | None) -> Version:
    made = View(metadata="new", snapshot=2)
    return advance(head, move, view=made, buffer_hi={0: 9}, starts={0: 0}, now=THEN, overlays=change)


@given(st.lists(overlays, max_size=3).map(tuple))
def test_what_a_version_names_survives_json(held: tuple[Overlay, ...]):
    assert overlays_from_json(json.loads(json.dumps([one.to_json() for one in held]))) == held


def test_moves_that_say_nothing_of_recalled_rows_leave_them_as_they_are():
    head = a_version(an_overlay(1))

    assert advanced(head, a_move(), None).overlays == head.overlays
    assert advanced(head, a_move(Stage.TIER, lo={0: 5}, hi={0: 9}), None).overlays == head.overlays


def test_a_recall_names_what_it_made_beside_what_there_is():
    old, made = an_overlay(1), an_overlay(2)
    change = recalled([old], made)

    assert advanced(a_version(old), a_move(), change).overlays == (old, made)
    assert change.made == (made,)


def test_the_next_generation_stands_for_all_that_there_are_and_may_be_nothing():
    held = (an_overlay(1), an_overlay(2))

    assert next_generation(held, an_overlay(3)).then == (an_overlay(3),)
    assert advanced(a_version(*held), a_move(), next_generation(held, None)).overlays == ()


@pytest.mark.parametrize("held", [(), (an_overlay(2),), (an_overlay(1), an_overlay(2))])
def test_a_change_that_was_built_on_other_recalled_rows_is_refused(held: tuple[Overlay, ...]):
    change = next_generation([an_overlay(1)], None)

    with pytest.raises(OverlaysMoved, match=f"has {named(held)}, the move was built on ovl_1_1_1:5; nothing was") as no:
        advanced(a_version(*held), a_move(), change)
    assert no.value.recovery is Recovery.REFRESH


def test_each_attempt_has_a_table_of_its_own():
    assert len({overlay_name(1, 2, 3), overlay_name(1, 2, 4), overlay_name(1, 23, 4), overlay_name(12, 3, 4)}) == 4


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 99)), st.sets(st.integers(0, 9)))
def test_recalled_keys_stay_where_they_are_and_all_others_go_to_the_lake(changes: dict[int, int], held: set[int]):
    mine, rest = split(changes, held)

    assert mine | rest == changes
    assert set(mine) == set(changes) & held
    assert not set(rest) & held


def test_no_more_rows_are_recalled_than_the_spec_allows():
    check_size("a.b", rows=60, held=40, rows_max=100)
    with pytest.raises(RecallTooLarge, match=r"a\.b: 61 rows match beside the 40 that are .*`recall: max_rows`.* 100;"):
        check_size("a.b", rows=61, held=40, rows_max=100)
    with pytest.raises(RecallTooLarge, match=r"a\.b: 1,001 rows match, and"):
        check_size("a.b", rows=1001, held=0, rows_max=1000)


@pytest.mark.parametrize(("rows", "digests"), [((5, 4), ("a", "a")), ((5, 5), ("a", "b"))])
def test_rows_that_are_not_the_same_on_both_sides_are_not_published(rows: tuple[int, int], digests: tuple[str, str]):
    check_same("a.b", "recall", rows=(5, 5), digests=("a", "a"))
    with pytest.raises(OverlayWrong, match="nothing was published"):
        check_same("a.b", "recall", rows=rows, digests=digests)


def test_an_overlay_goes_only_when_no_version_in_reach_names_it_and_no_open_move_made_it():
    made = {overlay_name(1, move, 1): move for move in (1, 2, 3, 4)}
    in_reach = [(an_overlay(1),), (), (an_overlay(1), an_overlay(2))]

    assert needless(made, in_reach=in_reach, open_moves=[]) == ["ovl_1_3_1", "ovl_1_4_1"]
    assert needless(made, in_reach=in_reach, open_moves=[3]) == ["ovl_1_4_1"]
    assert needless(made, in_reach=[], open_moves=[]) == sorted(made)


def test_a_revert_names_what_the_old_version_named():
    target, head = a_version(an_overlay(1), number=5), a_version(an_overlay(2))
    views = {"stream": head.stream, "batch": View(metadata="new", snapshot=3)}
    made = reverted(head, target, views=views, buffer_hi={0: 9}, starts={0: 0}, move_id=4, now=THEN)  # type: ignore[arg-type]

    assert made.overlays == target.overlays


def test_a_version_whose_recalled_rows_are_gone_is_out_of_reach():
    head, target = a_version(), a_version(an_overlay(1), number=5)
    held = Retained(retained_from=1, hot="buffer", hot_from={0: 0})

    limit = limit_of(head, target, held, starts={0: 0})
    assert limit is not None
    assert (limit.tier, limit.detail) == ("buffer", "its recalled rows were in ovl_1_1_1, which is gone")
    assert limit_of(head, target, replace(held, overlays=["ovl_1_1_1"]), starts={0: 0}) is None
