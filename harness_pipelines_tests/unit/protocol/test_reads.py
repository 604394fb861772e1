"""What a read plan names, what must stay for it, and what a commit that writes must see."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from harness_pipelines.protocol.bounds import BoundaryGap, Bounds
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.files import condemned_before
from harness_pipelines.protocol.moves import Move, MoveState, branch_of, dead_branches, move_of, took_effect
from harness_pipelines.protocol.reading.reads import cut_now, cut_of_version
from harness_pipelines.protocol.schema.schemas import SchemaMoved
from harness_pipelines.protocol.segments import SegmentClosed, check_unit, check_writable, may_drop, needed
from harness_pipelines.protocol.versions import Version, View, kept_versions, reached_versions

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Segment:
    name: str
    state: str
    max_hi: dict[int, int] | None


def version(number: int, stream_hi: int, buffer_hi: int, *, age: timedelta = timedelta(0)) -> Version:
    return Version(
        table_id=1,
        version=number,
        stream=View(metadata=f"{number}.json", snapshot=number),
        schema_version=1,
        bounds={0: Bounds(start=0, batch_hi=0, stream_hi=stream_hi, buffer_hi=buffer_hi)},
        move_id=None,
        committed_at=NOW - age,
    )


def move(**changes: object) -> Move:
    values = {"state": MoveState.PLANNED, "attempt": 1} | changes
    return Move(
        move_id=9,
        table_id=1,
        stage=Stage.TIER,
        shard=0,
        lo={0: 0},
        hi={0: 1},
        base_version=1,
        schema_version=1,
        epoch=1,
        **values,  # type: ignore[arg-type]
    )


def at(buffer_hi: int, *, stream_hi: int = 0) -> Bounds:
    return Bounds(start=0, batch_hi=0, stream_hi=stream_hi, buffer_hi=buffer_hi)


def test_a_segment_is_not_named_for_a_partition_that_has_nothing_buffered():
    """Found by the model: such a segment may retire and be dropped under the lease of the read that names it."""
    old = Segment("old", "closed", {0: 0, 1: 4})
    fresh = Segment("fresh", "open", None)

    assert needed([old, fresh], {0: 0}) == [fresh]
    assert needed([old, fresh], {1: 3}) == [old, fresh]


def test_the_head_is_read_up_to_the_buffer_of_this_instant_and_names_no_retired_segment():
    segments = [Segment("a", "retired", {0: 3}), Segment("b", "closed", {0: 5}), Segment("c", "open", None)]

    cut = cut_now(version(2, 3, 4), {0: at(7)}, segments)

    assert cut.bounds == {0: at(7, stream_hi=3)}
    assert [s.name for s in cut.segments] == ["b", "c"]


def test_a_head_without_buffered_rows_names_no_segment():
    assert cut_now(version(2, 4, 4), {0: at(4)}, [Segment("c", "open", None)]).segments == ()


def test_an_old_version_is_answered_by_the_buffer_until_a_later_one_has_its_rows():
    old, between, later = version(1, 0, 2), version(2, 1, 2), version(3, 2, 2)
    segment = Segment("a", "closed", {0: 2})

    assert cut_of_version(old, [between], [segment]).segments == (segment,)
    cut = cut_of_version(old, [between, later], [segment])
    assert (cut.answered_by, cut.segments, cut.bounds) == (later, (), old.bounds)


def test_versions_are_kept_for_as_long_after_they_were_the_head():
    history = [version(n, 0, 0, age=age * MINUTE) for n, age in enumerate((90, 50, 20), start=1)]

    assert [v.version for v in kept_versions(history, retention=60 * MINUTE, now=NOW)] == [1, 2, 3]
    assert [v.version for v in kept_versions(history, retention=30 * MINUTE, now=NOW)] == [2, 3]
    assert [v.version for v in kept_versions(history, retention=0 * MINUTE, now=NOW)] == [3]


def test_who_answers_for_a_leased_version_is_reached_though_it_is_not_retained():
    """Found by the model: its metadata was removed under the lease."""
    history = [version(1, 0, 2), version(2, 2, 2), version(3, 2, 2), version(4, 2, 2)]

    def reached(
        *, leased: Collection[int] = (), bases: Collection[int] = (), snapshots: Sequence[Version] = ()
    ) -> list[int]:
        found = reached_versions(history, retained_from=4, leased=leased, bases=bases, snapshots=snapshots)
        return [v.version for v in found]

    assert reached() == [4]
    assert reached(leased={1}) == [1, 2, 4]
    assert reached(bases={3}) == [3, 4]
    assert reached(snapshots=[history[1]]) == [2, 4]
    assert reached(snapshots=[version(1, 0, 1)]) == [1, 2, 4], "with the bounds that the snapshot knows"


@pytest.mark.parametrize(
    ("changes", "effect"),
    [
        ({"state": MoveState.COMMITTED}, True),
        ({"state": MoveState.COMMITTED, "attempt": 2}, False),
        ({"state": MoveState.PLANNED}, False),
        ({"state": MoveState.ABANDONED}, False),
    ],
)
def test_a_lost_answer_meant_success_only_if_this_attempt_is_the_committed_one(changes, effect):
    assert took_effect(move(), move(**changes)) is effect


def test_a_branch_is_alive_only_while_its_own_attempt_is_open():
    found = dead_branches(
        ["main", "move_1_1", "move_1_2", "move_2_1", "move_3_1"], [(1, 2, "PLANNED"), (2, 1, "COMMITTED")]
    )

    assert found == ["move_1_1", "move_2_1", "move_3_1"]


@pytest.mark.parametrize("name", ["move_x", "move_2024", "move_1_x", "move_1_1_old", "my_move_1_1", f"move_{10**18}_1"])
def test_a_branch_of_somebody_else_is_not_ours_to_remove(name: str):
    assert move_of(name) is None
    assert dead_branches([name, branch_of(7, 2)], []) == ["move_7_2"]
    assert move_of(branch_of(7, 2)) == 7


def test_a_unit_is_taken_where_the_buffer_ends_and_in_the_schema_that_is_in_force():
    unit = {"partition": 0, "low": 5, "decoded_with": 1}
    check_unit("t", buffer_hi=5, schema_version=1, **unit)

    with pytest.raises(SchemaMoved, match="schema 1, the table is at 2"):
        check_unit("t", buffer_hi=5, schema_version=2, **unit)
    with pytest.raises(BoundaryGap, match="repeat records of partition 0"):
        check_unit("t", buffer_hi=6, schema_version=1, **unit)
    with pytest.raises(BoundaryGap):
        check_unit("t", buffer_hi=None, schema_version=None, **unit)


@pytest.mark.parametrize("state", ["closed", "retired", None])
def test_only_an_open_segment_is_written_to(state):
    check_writable("seg", "open")
    with pytest.raises(SegmentClosed, match="seg is not open"):
        check_writable("seg", state)


def test_a_segment_is_dropped_a_grace_after_it_was_retired():
    assert may_drop(NOW - MINUTE, grace=MINUTE, now=NOW)
    assert not may_drop(NOW, grace=MINUTE, now=NOW)
    assert not may_drop(None, grace=MINUTE, now=NOW)


def test_files_younger_than_the_oldest_open_move_are_left_alone():
    assert condemned_before(oldest_open=None, grace=MINUTE, now=NOW) == NOW - MINUTE
    assert condemned_before(oldest_open=NOW - 5 * MINUTE, grace=MINUTE, now=NOW) == NOW - 6 * MINUTE
