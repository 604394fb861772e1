"""What the clock starts: audits of all tables, of which one that fails stops no other; and old runs that go."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

from harness_pipelines.audit.checks import Finding, is_complete
from harness_pipelines.defs import tables
from harness_pipelines.defs.build import build
from harness_pipelines.defs.schedules import KEEP_DAYS, harness_purge
from harness_pipelines.defs.work import STAGE_TAG, TABLE_TAG
from harness_pipelines_tests.faults.conftest import MakeRig


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(("name", "full"), [("harness_audit", False), ("harness_audit_full", True)])
def test_all_tables_are_audited_and_one_that_cannot_be_stops_no_other(
    make_rig: MakeRig, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch, name: str, full: bool
) -> None:
    sick, sound = rigs = [make_rig(), make_rig()]
    for rig in rigs:
        rig.produce(5)
        rig.ingest()
    asked = []

    def judged(stores: Any, table: Any, *, full: bool) -> Finding:
        asked.append(full)
        if table.name == sick.name:
            raise RuntimeError("its files cannot be read")
        return is_complete(stores, table, full=full)

    monkeypatch.setattr(tables, "is_complete", judged)
    definitions = build([rig.table.spec for rig in rigs])
    done = definitions.resolve_job_def(name).execute_in_process(instance=instance, raise_on_error=False)

    assert not done.success
    assert asked == [full, full]
    [found] = done.get_asset_check_evaluations()
    assert (found.asset_key.path[-1], found.passed) == (sound.table.spec.name, True)
    assert name in {schedule.job_name for schedule in definitions.schedules or ()}  # type: ignore[union-attr]


def test_old_runs_go_but_the_last_of_each_stage_and_those_of_others_stay(instance: DagsterInstance) -> None:
    old, new = timedelta(days=KEEP_DAYS + 1), timedelta(days=1)
    done, failed = DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE
    tier = {TABLE_TAG: "shop.orders", STAGE_TAG: "tier"}
    ingest = {TABLE_TAG: "shop.orders", STAGE_TAG: "ingest"}
    gone = [add(instance, tier, done, old), add(instance, tier, failed, old), add(instance, ingest, done, old)]
    kept = [
        add(instance, {}, done, old),
        add(instance, ingest, done, old),  # the last one that did its work
        add(instance, tier, done, new),
        add(instance, ingest, failed, new),
    ]

    assert harness_purge.execute_in_process(instance=instance).success

    left = {run.run_id for run in instance.get_runs() if run.job_name == "stage"}
    assert left == set(kept)
    assert not left & set(gone)


def add(instance: DagsterInstance, tags: dict[str, str], status: DagsterRunStatus, age: timedelta) -> str:
    """A run that began *age* ago."""
    run = DagsterRun(job_name="stage", tags=tags, status=status)
    instance.run_storage.add_historical_run(run, run_creation_time=datetime.now(UTC) - age)
    return str(run.run_id)
