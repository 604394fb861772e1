"""Dagster's history stays bounded: what a day writes, a purge takes away, whatever table of Dagster's it is in."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, Definitions, build_sensor_context
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from harness_pipelines.defs import reports, schedules, work
from harness_pipelines.defs.build import build
from harness_pipelines.defs.resources import HarnessResource
from harness_pipelines.defs.tables import job_name, stage_assets
from harness_pipelines.defs.work import STAGE_TAG, TABLE_TAG, WHY_TAG
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.faults.dagster_rig import dagster_over
from harness_pipelines_tests.rig import TableRig

STAGES = (Stage.INGEST, Stage.TIER, Stage.COMPACT, Stage.EXPIRE)
DAYS_A_YEAR = 365


@pytest.mark.long
@pytest.mark.usefixtures("environment")
def test_what_a_day_writes_a_purge_takes_away(
    make_rig: MakeRig, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "LINGER_S", 0.0)
    monkeypatch.setattr(reports, "OBSERVE_S", 0.0)
    monkeypatch.setattr(reports, "RUNLESS_S", 0.0)
    rig = make_rig()
    with dagster_over(replace(settings, home=tmp_path), tmp_path, []) as dagster:
        left, written = [], []
        for day in range(3):
            before = dagster.rows()
            a_day(f"shop.of_day_{day}", dagster.instance, rig)
            written.append({name: count - before.get(name, 0) for name, count in dagster.rows().items()})
            purge(dagster.instance, rig)
            left.append(dagster.rows())
        print({name: (count, left[-1][name]) for name, count in written[-1].items() if count or left[-1][name]})

        grown = {name: count - left[1][name] for name, count in left[2].items() if count != left[1][name]}
        assert written[2]["runs"] > len(STAGES) + 1
        assert written[2]["snapshots"] > len(STAGES)  # what is defined changes each day
        assert written[2]["bulk_actions"] == 1
        assert not grown, f"a year would leave { ({name: count * DAYS_A_YEAR for name, count in grown.items()}) }"


def a_day(newcomer: str, instance: DagsterInstance, rig: TableRig) -> None:
    """One of all that the sensors, the clock and people start, and what a worker outside of Dagster lets be shown.

    Then the definitions are others than yesterday: there is a table that is a *newcomer*.
    """
    definitions = build([rig.table.spec])
    changed = build([rig.table.spec, rig.table.spec.model_copy(update={"table": newcomer})])

    def done(name: str, of: Definitions = definitions, **words: Any) -> None:
        assert of.resolve_job_def(name).execute_in_process(instance=instance, **words).success

    rig.produce(5)
    for stage in STAGES:
        tags = {TABLE_TAG: rig.name, STAGE_TAG: stage.value, WHY_TAG: "age"}
        done(job_name(stage), changed, asset_selection=stage_assets(rig.name, stage), tags=tags)
    for name in (schedules.AUDITS, schedules.FULL_AUDITS, schedules.PURGE):  # by hand they have no table's tag
        done(name)
    # Chosen in the graph of all assets, which selects together what one step makes.
    by_hand = [key for stage in (Stage.TIER, Stage.INGEST) for key in stage_assets(rig.name, stage)]
    every = changed.resolve_implicit_global_asset_job_def()
    assert every.execute_in_process(instance=instance, asset_selection=by_hand).success
    backfill = PartitionBackfill(
        uuid.uuid4().hex[:8], BulkActionStatus.CANCELED, False, {}, time.time(), asset_selection=by_hand
    )
    instance.add_backfill(backfill)
    replayed: Mapping[str, Any] = {"ops": {"replay_quarantine": {"config": {"table": rig.name}}}}
    done("harness_replay_quarantine", run_config=replayed)
    rig.produce(5)
    rig.ingest()
    lag, resources = definitions.resolve_sensor_def("harness_lag"), {"harness": HarnessResource()}
    with build_sensor_context(instance=instance, resources=resources) as context:
        shown = lag.evaluate_tick(context).asset_events
    assert len(shown) > 1
    for event in shown:
        instance.report_runless_asset_event(event)


def purge(instance: DagsterInstance, rig: TableRig) -> None:
    """As the schedule does it, some weeks later."""
    schedules.purge_all(instance, schedules.keys_of([rig.table.spec]), before=datetime.now(UTC) + timedelta(minutes=5))
