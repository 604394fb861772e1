"""What wakes a stage: work for it by the rules of the spec, however the table buffers."""

from dataclasses import replace
from math import inf

import pytest

from harness_pipelines.ports.ledger import PartitionStatus
from harness_pipelines.ports.upkeep import TablePulse, TableWork
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages.run.due import MIRROR_S, STANDBY_S, Known, due_moves, rest_s

REST = TableWork(
    name="shop.orders",
    stopped=None,
    unread=0,
    buffered=0,
    unmerged=0,
    buffered_bytes=0,
    since_tier_s=10.0,
    since_expire_s=None,
    buffer_at=0,
    stream_at=0,
    busy=frozenset(),
    open={},
    last={},
)


def spec(buffer: str) -> TableSpec:
    return TableSpec.model_validate(
        {
            "table": "shop.orders",
            "columns": {"id": "long"},
            "buffer": buffer,
            "tier": {"max_rows": 1000, "max_age": "60s"},
            "freshness": {"lake": "10m"},
        }
    )


@pytest.mark.parametrize(
    ("unread", "since_tier_s", "why"),
    [
        (5, 10.0, None),  # a run would write a small file
        (999, 299.0, None),
        (1000, 10.0, "rows"),
        (5, 300.0, "age"),
        (5, -3600.0, "age"),  # the clock was set back: when tier moved last, nobody knows
        (0, 9999.0, None),
        (None, 9999.0, None),  # nobody has looked at the log
    ],
)
def test_without_a_buffer_the_log_is_moved_by_the_rules_of_tier(unread: int | None, since_tier_s: float, why: str):
    found = due_moves(spec("none"), replace(REST, unread=unread, since_tier_s=since_tier_s))
    assert {stage: due.why for stage, due in found.items()} == ({Stage.TIER: why} if why else {})


def test_with_a_buffer_any_record_of_the_log_wakes_ingest_and_only_what_is_buffered_tier():
    found = due_moves(spec("postgres"), replace(REST, unread=5000, since_tier_s=9999.0))
    assert {stage: due.why for stage, due in found.items()} == {Stage.INGEST: "5000 offsets behind the log"}


def test_an_open_move_is_finished_whatever_the_rules_say():
    work = replace(REST, open={"tier": {"attempt": 2, "state": "PLANNED"}})
    [(stage, due)] = due_moves(spec("none"), work).items()
    assert (stage, due.why, due.attempt) == (Stage.TIER, "recovery", 2)


# -- of a worker --------------------------------------------------------------------------------------------

NOW = 10_000.0
KNOWN = Known(holder="me", ends={0: 100}, small="s1", judged="b1", mirrored=7)
SEEN = TablePulse(
    table_id=1,
    positions=(
        PartitionStatus(partition=0, bounds=Bounds(start=0, batch_hi=50, stream_hi=50, buffer_hi=100), trim_floor=0),
    ),
    version=7,
    stream="s1",
    batch="b1",
    stopped=None,
    open=frozenset(),
    asked=False,
    claims=dict.fromkeys(map(str, Stage), "me"),
    tier_at=NOW - 10.0,
    otree_at=NOW - 10.0,
    buffered_bytes=10,
    removes=False,
    superseded_at=None,
)
BUFFERED = SEEN
MOVED = replace(
    SEEN,
    positions=(
        PartitionStatus(partition=0, bounds=Bounds(start=0, batch_hi=100, stream_hi=100, buffer_hi=100), trim_floor=0),
    ),
)
UNMERGED = replace(
    SEEN,
    positions=(
        PartitionStatus(partition=0, bounds=Bounds(start=0, batch_hi=50, stream_hi=100, buffer_hi=100), trim_floor=0),
    ),
)


@pytest.mark.parametrize(
    ("stage", "seen", "rest"),
    [
        (Stage.TIER, BUFFERED, 50.0),  # by age
        (Stage.TIER, replace(BUFFERED, tier_at=NOW - 60.0), 0.0),
        (Stage.TIER, replace(BUFFERED, tier_at=NOW + 3600.0), 0.0),  # the database's clock was set back
        (Stage.OTREE, replace(UNMERGED, otree_at=NOW + 3600.0), 0.0),
        (Stage.TIER, replace(BUFFERED, buffered_bytes=2**40), 0.0),
        (Stage.TIER, MOVED, inf),
        (Stage.TIER, replace(MOVED, open=frozenset({"tier"})), 0.0),
        (Stage.OTREE, MOVED, inf),
        (Stage.OTREE, UNMERGED, 590.0),
        (Stage.OTREE, replace(UNMERGED, otree_at=None), 0.0),
        (Stage.OTREE, replace(MOVED, asked=True), 0.0),
        (Stage.OTREE, replace(MOVED, batch="b2"), 0.0),
        (Stage.COMPACT, MOVED, inf),
        (Stage.COMPACT, replace(MOVED, stream="s2"), 0.0),
        (Stage.MIRROR, MOVED, MIRROR_S),
        (Stage.MIRROR, replace(MOVED, version=8), 0.0),
        (Stage.TIER, replace(BUFFERED, claims={"tier": "another"}), STANDBY_S),
        (Stage.OTREE, replace(MOVED, claims={}), 0.0),  # free: it is asked for, even without work
    ],
)
def test_a_stage_rests_until_the_ledger_says_that_it_has_work(stage: Stage, seen: TablePulse, rest: float):
    assert rest_s(stage, spec("postgres"), seen, KNOWN, now=NOW) == rest


def test_what_a_worker_saw_pass_counts_though_the_clock_of_the_database_was_set_back():
    known = replace(KNOWN, unmoved_s={Stage.TIER: 55.0, Stage.OTREE: 595.0})
    assert rest_s(Stage.TIER, spec("postgres"), BUFFERED, known, now=NOW) == 5.0
    assert rest_s(Stage.OTREE, spec("postgres"), UNMERGED, known, now=NOW) == 5.0


def test_without_a_buffer_what_only_the_log_has_is_work_for_tier():
    far = replace(KNOWN, ends={0: 100_000})
    assert rest_s(Stage.TIER, spec("none"), MOVED, KNOWN, now=NOW) == inf
    assert rest_s(Stage.TIER, spec("none"), MOVED, far, now=NOW) == 0.0
    assert rest_s(Stage.TIER, spec("postgres"), MOVED, far, now=NOW) == inf
