"""What a day of hundreds of tables leaves in Dagster's history, and that no table waits for ever to be shown."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster import AssetKey, DagsterInstance
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import TickStatus

import harness_pipelines
from harness_pipelines.defs.reports import OBSERVE_S, REPORTS_MAX, RUNLESS_S, due, keep, kept_of, shown_until
from harness_pipelines.defs.sensors import LAG_S
from harness_pipelines.ports.upkeep import TableWork

TABLES, STAGES = 100, ("ingest", "tier", "otree", "expire")
ROOT = Path(harness_pipelines.__file__).parents[1]


def work(name: str, at: int) -> TableWork:
    """A table on which a worker outside of Dagster commits all the time."""
    last = {stage: {"move": at, "rows": 1, "by_a_run": False} for stage in STAGES}
    return TableWork(
        name=name,
        stopped=None,
        unread=at,
        buffered=at,
        unmerged=0,
        buffered_bytes=at,
        since_tier_s=0.0,
        since_expire_s=None,
        buffer_at=at,
        stream_at=at,
        busy=frozenset(),
        open={},
        last=last,
    )


@pytest.mark.parametrize("tables", [1, 25, TABLES])
def test_what_a_tick_reports_does_not_grow_with_the_tables_and_every_one_has_its_turn(tables: int) -> None:
    kept: dict[str, Any] = {}
    events, turns, long_s = 0, Counter[tuple[str, str]](), 1200
    for now in range(1, long_s, int(LAG_S)):
        reports = due([work(f"shop.t{n}", now) for n in range(tables)], kept, now)
        assert len(reports) <= REPORTS_MAX
        for one in reports:
            events += len(one.events())
            turns[one.table, one.of] += 1
            kept.setdefault(one.table, {})[one.of] = {"seen": one.seen, "at": now}

    assert len(turns) == tables * (1 + len(STAGES))
    assert events <= long_s / LAG_S * REPORTS_MAX * 2, "of a report two assets at most"
    assert min(turns.values()) >= long_s / OBSERVE_S - 2, "nobody waits while others have turn after turn"
    if tables == 1:
        assert turns["shop.t0", "tier"] == pytest.approx(long_s / RUNLESS_S, rel=0.1)


def test_what_was_shown_is_kept_beside_the_cursor_and_shown_again_where_its_tick_was_lost() -> None:
    with DagsterInstance.ephemeral() as instance:
        names = [f"shop.t{n}" for n in range(3)]
        first = due([work(name, 1) for name in names], {}, 1000.0)
        keep(instance, {}, first, 1000.0)

        kept = kept_of(instance, names, until=shown_until("1000.0"))
        assert due([work(name, 1) for name in names], kept, 2000.0) == []
        again = due([work("shop.t1", 2), *(work(name, 1) for name in ("shop.t0", "shop.t2"))], kept, 2000.0)
        assert {one.table for one in again} == {"shop.t1"}
        assert {one.shown_at for one in again} == {1000.0}

        for lost in (None, "999.0", json.dumps({"shop.t0": {}})):
            shown = kept_of(instance, names, until=shown_until(lost))
            repeated = due([work(name, 1) for name in names], shown, 2000.0)
            assert {event.asset_key for one in repeated for event in one.events()} >= {AssetKey(["shop", "t0"])}
            assert len(repeated) == len(first)


def test_no_tick_of_any_kind_is_kept_for_ever(tmp_path: Path) -> None:
    words = yaml.safe_load((ROOT / "dagster.yaml").read_text())
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump({"retention": words["retention"]}))
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        for kind in InstigatorType:
            assert {days > 0 for days in instance.get_tick_retention_settings(kind).values()} == {True}, kind
            assert set(instance.get_tick_retention_settings(kind)) == set(TickStatus), kind
