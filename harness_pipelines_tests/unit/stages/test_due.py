"""What wakes a stage: work for it by the rules of the spec, however the table buffers."""

from dataclasses import replace

import pytest

from harness_pipelines.ports.upkeep import TableWork
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages.run.due import due_moves

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
