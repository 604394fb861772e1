"""What a busy table leaves in Dagster's history on a day: the rows of its runs, times how often the sensors start them.

The table takes records all the time, and rarely enough of them that age, not size, lets tier move.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import pytest
from dagster import build_sensor_context

from harness_pipelines.defs import work as steps
from harness_pipelines.defs.build import build
from harness_pipelines.defs.names import table_key
from harness_pipelines.defs.reports import OBSERVE_S
from harness_pipelines.defs.resources import HarnessResource
from harness_pipelines.defs.sensors import CHECK_S
from harness_pipelines.defs.tables import job_name, stage_assets, stage_checks
from harness_pipelines.defs.work import HANDOVER_S, RUN_S, STAGE_TAG, TABLE_TAG, WHY_TAG
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.stream_files import FILES_MIN
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.run.due import EXPIRE_EVERY_S
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.faults.dagster_rig import DagsterRig, dagster_over
from harness_pipelines_tests.rig import TableRig

DAY_S = 86_400
DAY_BYTES_MAX = 10 * 2**20
#: Of a run in this process, without checks.
EVENTS = {Stage.INGEST: 15, Stage.TIER: 15, Stage.COMPACT: 12, Stage.OTREE: 12, Stage.EXPIRE: 12}
CHECK_EVENTS = 3  #: of a check: planned, its output, its result
#: Enqueued, starting, process started, process exited: what a run in this process does not have.
LAUNCH_BYTES = 3_100


@dataclass(frozen=True, slots=True)
class Left:
    """What something left in Dagster's database: events, and bytes of them and of its runs."""

    events: int
    bytes: int


@pytest.fixture
def table(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> TableRig:
    monkeypatch.setattr(steps, "LINGER_S", 0.0)
    return make_rig(views="both", layout={"columns": ["n"], "regions": 4}, engine="arrow")


@pytest.fixture
def dagster(settings: Settings, tmp_path: Path) -> Iterator[DagsterRig]:
    with dagster_over(replace(settings, home=tmp_path), tmp_path, []) as made:
        yield made


@pytest.mark.usefixtures("environment")
def test_a_busy_table_leaves_few_events_a_day(table: TableRig, dagster: DagsterRig) -> None:
    every_s = {
        Stage.INGEST: RUN_S - HANDOVER_S,
        Stage.TIER: table.table.spec.freshness.lake / 2,
        Stage.COMPACT: FILES_MIN * table.table.spec.freshness.lake / 2,
        Stage.OTREE: table.table.spec.freshness.lake,
        Stage.EXPIRE: EXPIRE_EVERY_S,
    }
    a_run(table, dagster, Stage.OTREE)  # marks its partitions once
    table.stores.costs.count([table.name])
    left = {stage: a_run(table, dagster, stage) for stage in every_s}
    checked = a_run(table, dagster, Stage.TIER, checks=True)
    seen = an_observation(table, dagster)
    print(left, checked, seen)
    assert costs_shown(table, dagster)["records_today"] > 0

    assert {stage: one.events for stage, one in left.items()} == EVENTS
    checks = stage_checks(table.name, Stage.TIER)
    assert checked.events - left[Stage.TIER].events == CHECK_EVENTS * len(checks) + 2  # a step begins and ends
    of_runs = sum((one.bytes + LAUNCH_BYTES) * DAY_S / every_s[stage] for stage, one in left.items())
    of_checks = (checked.bytes - left[Stage.TIER].bytes) * DAY_S / CHECK_S
    of_lags = seen.bytes * DAY_S / OBSERVE_S
    print(of_runs / 2**20, of_checks / 2**20, of_lags / 2**20)
    assert of_runs + of_checks + of_lags <= DAY_BYTES_MAX


def a_run(table: TableRig, dagster: DagsterRig, stage: Stage, *, checks: bool = False) -> Left:
    """As a sensor starts it, with something to do."""
    table.produce(20)
    if stage is not Stage.INGEST:
        table.ingest()
    if stage in (Stage.COMPACT, Stage.OTREE):
        table.tier()
    before = left_in(dagster)
    chosen = (
        build([table.table.spec])
        .resolve_job_def(job_name(stage))
        .get_subset(
            asset_selection=frozenset(stage_assets(table.name, stage)),
            asset_check_selection=frozenset(stage_checks(table.name, stage) if checks else ()),
        )
    )
    tags = {TABLE_TAG: table.name, STAGE_TAG: stage.value, WHY_TAG: "age"}
    assert chosen.execute_in_process(instance=dagster.instance, tags=tags).success
    return since(before, dagster)


def costs_shown(table: TableRig, dagster: DagsterRig) -> dict[str, float]:
    """By the newest materialization of the table itself."""
    [found] = dagster.instance.fetch_materializations(table_key(table.name), limit=1).records
    assert found.asset_materialization is not None
    shown = {name: value.value for name, value in found.asset_materialization.metadata.items()}
    return {name: float(value) for name, value in shown.items() if name.endswith("_today")}  # type: ignore[arg-type]


def an_observation(table: TableRig, dagster: DagsterRig) -> Left:
    """Of how far the table is behind."""
    table.produce(20)
    lag = build([table.table.spec]).resolve_sensor_def("harness_lag")
    before = left_in(dagster)
    with build_sensor_context(instance=dagster.instance, resources={"harness": HarnessResource()}) as context:
        shown = lag.evaluate_tick(context).asset_events
    dagster.instance.report_runless_asset_event(shown[0])
    return since(before, dagster)


def left_in(dagster: DagsterRig) -> Left:
    with psycopg.connect(dagster.room.environment["DAGSTER_PG_URL"]) as connection:
        found = connection.execute(
            "SELECT (SELECT count(*) FROM event_logs),"
            " coalesce((SELECT sum(pg_column_size(e.*)) FROM event_logs e), 0)"
            " + coalesce((SELECT sum(pg_column_size(r.*)) FROM runs r), 0)"
        ).fetchone()
    assert found is not None
    return Left(int(found[0]), int(found[1]))


def since(before: Left, dagster: DagsterRig) -> Left:
    now = left_in(dagster)
    return Left(now.events - before.events, now.bytes - before.bytes)
