"""Which version a revert can reach, what it brings back, and which moves are in effect after it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from harness_pipelines.protocol.bounds import Bounds, OffsetRange
from harness_pipelines.protocol.changes.reverts import (
    Retained,
    RevertPlan,
    RevertRefused,
    check_revert,
    fenced,
    in_effect,
    plan_revert,
    reverted,
)
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.versions import Version, View, trim_floor

NOW = datetime(2026, 3, 1, tzinfo=UTC)
STARTS = {0: 0, 1: 5}


def version(number: int, stream_hi: dict[int, int], *, schema_version: int = 1) -> Version:
    return Version(
        table_id=1,
        version=number,
        stream=View(metadata=f"m{number}", snapshot=number),
        schema_version=schema_version,
        bounds={
            p: Bounds(start=STARTS[p], batch_hi=STARTS[p], stream_hi=o, buffer_hi=50) for p, o in stream_hi.items()
        },
        move_id=number,
        committed_at=NOW,
    )


VERSIONS = [version(1, {0: 0}), version(2, {0: 10}), version(3, {0: 20, 1: 9}), version(4, {0: 30, 1: 9})]


def planned(to: int, *, retained_from: int = 1, **hot_from: int) -> RevertPlan:
    held = Retained(
        retained_from=retained_from, hot="buffer", hot_from={int(p[1:]): offset for p, offset in hot_from.items()}
    )
    kept = [v for v in VERSIONS if v.version >= retained_from]
    return plan_revert(VERSIONS[-1], VERSIONS[to - 1], kept, held, starts=STARTS, moves=(), claims=())


def test_what_goes_back_counts_a_partition_that_joined_later_from_its_start():
    assert planned(2, p0=0, p1=0).back == (
        OffsetRange(partition=0, low=10, high=30),
        OffsetRange(partition=1, low=5, high=9),
    )
    assert planned(3, p0=0, p1=0).back == (OffsetRange(partition=0, low=20, high=30),)


def test_the_floor_is_the_oldest_version_whose_rows_every_tier_holds():
    assert planned(2, p0=10, p1=5).limit is None
    assert planned(4, p0=10, p1=5).floor == 2
    assert planned(4, p0=10, p1=6).floor == 3
    assert planned(4, p0=30, p1=9).floor == 4
    assert planned(4, retained_from=3, p0=0, p1=0).floor == 3


def test_a_refusal_names_the_tier_the_range_and_the_floor():
    with pytest.raises(
        RevertRefused, match=r"2 cannot be restored, the buffer limits it: \[10, 30\) of .* 0 .*now is 3"
    ):
        check_revert(planned(2, p0=11, p1=0))
    with pytest.raises(RevertRefused, match=r"the buffer limits it: .* of partition 1 .* which has nothing"):
        check_revert(planned(2, p0=0))
    with pytest.raises(RevertRefused, match="the lake limits it: its files are kept only from version 3 on"):
        check_revert(planned(2, retained_from=3, p0=0, p1=0))


def test_another_schema_is_out_of_reach():
    head = version(5, {0: 30, 1: 9}, schema_version=2)
    held = Retained(retained_from=1, hot="buffer", hot_from={0: 0, 1: 0})
    plan = plan_revert(head, VERSIONS[3], [*VERSIONS, head], held, starts=STARTS, moves=(), claims=())
    assert plan.limit is not None and "it has schema 1, the table is at schema 2" in plan.limit.detail
    assert plan.floor == 5


def test_the_new_version_has_old_lake_bounds_and_the_present_buffer():
    made = reverted(
        VERSIONS[3],
        VERSIONS[1],
        views={"stream": View(metadata="new", snapshot=9)},
        buffer_hi={0: 60, 1: 70},
        starts=STARTS,
        move_id=8,
        now=NOW,
    )
    assert (made.version, made.revert_of, made.move_id, made.stream.snapshot) == (5, 2, 8, 9)
    assert made.bounds == {
        0: Bounds(start=0, batch_hi=0, stream_hi=10, buffer_hi=60),
        1: Bounds(start=5, batch_hi=5, stream_hi=5, buffer_hi=70),
    }


def test_versions_in_effect_jump_from_a_revert_to_what_it_restored():
    revert_of: dict[int, int | None] = {1: None, 2: None, 3: None, 4: 2, 5: None, 6: 3}
    assert in_effect(revert_of, 3) == {1, 2, 3}
    assert in_effect(revert_of, 5) == {1, 2, 4, 5}
    assert in_effect(revert_of, 6) == {1, 2, 3, 6}


def test_versions_in_effect_go_on_over_numbers_that_a_lost_history_gave_out():
    revert_of: dict[int, int | None] = {1: None, 2: None, 1000: None, 1001: None, 1002: 2, 1003: None}
    assert in_effect(revert_of, 1001) == {1, 2, 1000, 1001}
    assert in_effect(revert_of, 1003) == {1, 2, 1002, 1003}


def test_a_claim_is_fenced_and_free_but_for_ingest():
    claim = Claim(table_id=1, stage=Stage.TIER, shard=0, holder="h", epoch=3, lease_until=NOW + timedelta(seconds=30))
    assert fenced(claim, now=NOW) == replace(claim, epoch=4, lease_until=NOW)
    ingest = replace(claim, stage=Stage.INGEST)
    assert fenced(ingest, now=NOW) == ingest


def test_the_trim_floor_never_passes_a_head_that_was_reverted():
    old = [replace(v, committed_at=NOW - timedelta(hours=3)) for v in VERSIONS]
    head = replace(version(5, {0: 10, 1: 5}), revert_of=2, committed_at=NOW)
    assert trim_floor([*old, head], (), waiting=[], grace=timedelta(hours=1), now=NOW) == {0: 10, 1: 5}
