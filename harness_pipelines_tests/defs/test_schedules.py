"""What the clock starts: audits of all tables, of which one that fails stops no other; and old runs that go."""

import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    RunRequest,
    build_schedule_context,
    validate_run_config,
)
from dagster._utils.schedules import schedule_execution_time_iterator

from harness_pipelines.audit.proof.checks import Finding, is_complete
from harness_pipelines.defs import history, tables
from harness_pipelines.defs.build import build
from harness_pipelines.defs.history import purge_events
from harness_pipelines.defs.schedules import AUDITS, FULL_AUDITS, KEEP_DAYS, PURGE, audit_op
from harness_pipelines.defs.work import STAGE_TAG, TABLE_TAG
from harness_pipelines.spec.load import load_spec
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
    gone = [
        add(instance, tier, done, old),
        add(instance, tier, failed, old),
        add(instance, ingest, done, old),
        add(instance, {}, done, old, job="harness_purge"),  # which runs each hour, of no table
        add(instance, {STAGE_TAG: "audit"}, failed, old, job="harness_audit"),  # by hand, of all tables
    ]
    kept = [
        add(instance, {}, done, old),
        add(instance, {}, failed, old),
        add(instance, ingest, done, old),  # the last one that did its work
        add(instance, tier, done, new),
        add(instance, ingest, failed, new),
        add(instance, {}, done, new, job="harness_purge"),
    ]

    assert build([]).resolve_job_def("harness_purge").execute_in_process(instance=instance).success

    left = {run.run_id for run in instance.get_runs() if run.run_id in {*gone, *kept}}
    assert left == set(kept)
    assert not left & set(gone)


def add(
    instance: DagsterInstance, tags: dict[str, str], status: DagsterRunStatus, age: timedelta, *, job: str = "stage"
) -> str:
    """A run that began *age* ago."""
    run = DagsterRun(job_name=job, tags=tags, status=status)
    instance.run_storage.add_historical_run(run, run_creation_time=datetime.now(UTC) - age)
    return str(run.run_id)


@pytest.mark.parametrize(("name", "full"), [("harness_audit", False), ("harness_audit_full", True)])
def test_each_table_is_audited_by_a_run_of_its_own_and_a_tick_twice_is_a_tick_once(
    instance: DagsterInstance, name: str, full: bool
) -> None:
    spec = load_spec(Path(__file__).parent / "tables/orders.yaml")
    specs = [spec.model_copy(update={"table": f"shop.t{number}"}) for number in range(3)]
    definitions = build(specs)
    schedule, job = definitions.resolve_schedule_def(name), definitions.resolve_job_def(name)
    at = datetime(2026, 3, 29, 1, tzinfo=UTC)

    def asked() -> list[RunRequest]:
        context = build_schedule_context(instance=instance, scheduled_execution_time=at)
        return list(schedule.evaluate_tick(context).run_requests or [])

    requests = asked()
    assert [one.tags[TABLE_TAG] for one in requests] == [one.table for one in specs]
    for request, one in zip(requests, specs, strict=True):
        assert request.asset_check_keys == [AssetCheckKey(AssetKey(["shop", one.name]), "audit")]
        assert request.run_config == {"ops": {audit_op(one): {"config": {"full": full}}}}
        mine = job.get_subset(asset_selection=set(), asset_check_selection=set(request.asset_check_keys))
        assert validate_run_config(mine, request.run_config)
    assert [one.run_key for one in asked()] == [one.run_key for one in requests]
    assert len({one.run_key for one in requests}) == len(specs)


@pytest.mark.parametrize("first", ["2027-03-27", "2027-10-30"])  # Berlin's clocks change in the night behind
def test_where_clocks_change_no_audit_is_left_out_or_doubled(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        spec = load_spec(Path(__file__).parent / "tables/orders.yaml")
        definitions = build([spec])
        begin = datetime.fromisoformat(first).replace(tzinfo=UTC)
        end = begin + timedelta(days=3)
        keys, moments = [], list[float]()
        for name in (AUDITS, FULL_AUDITS):
            schedule = definitions.resolve_schedule_def(name)
            zone = schedule.execution_timezone or "UTC"
            for at in schedule_execution_time_iterator(begin.timestamp(), str(schedule.cron_schedule), zone):
                if at >= end:
                    break
                moments.append(at.timestamp())
                context = build_schedule_context(instance=instance, scheduled_execution_time=at)
                keys += [request.run_key for request in schedule.evaluate_tick(context).run_requests or []]
        purge = definitions.resolve_schedule_def(PURGE)
        hours = schedule_execution_time_iterator(begin.timestamp(), str(purge.cron_schedule), "UTC")
        purges = [at.timestamp() for at in takewhile(lambda at: at < end, hours)]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [later - before for before, later in pairwise(sorted(moments))] == [24 * 3600] * 2
    assert len(set(keys)) == len(keys) == 3
    assert [later - before for before, later in pairwise(purges)] == [3600] * 71


def test_events_of_no_run_and_evaluations_go_but_the_newest_and_those_of_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DagsterInstance.local_temp(str(tmp_path)) as instance:
        mine, other = AssetKey(["shop", "orders", "tier"]), AssetKey(["other"])
        for number in range(5):
            for key in (mine, other):
                instance.report_runless_asset_event(AssetMaterialization(key, metadata={"n": number}))
                instance.report_runless_asset_event(AssetObservation(key, metadata={"n": number}))
                instance.report_runless_asset_event(
                    AssetCheckEvaluation(key, "audit", passed=True, metadata={"n": number})
                )

        def left(key: AssetKey) -> list[int]:
            made = instance.fetch_materializations(key, limit=100).records
            seen = instance.fetch_observations(key, limit=100).records
            storage = instance.event_log_storage
            checked = storage.get_asset_check_execution_history(AssetCheckKey(key, "audit"), limit=100)
            return [len(made), len(seen), len(checked)]

        def purged(before: datetime) -> int:
            return purge_events(instance, [mine], before=before, until=time.monotonic() + 60)

        assert purged(datetime.now(UTC) - timedelta(days=1)) == 0
        monkeypatch.setattr(history, "ROWS", 2)
        purged(datetime.now(UTC) + timedelta(days=1))
        assert (left(mine), left(other)) == ([1, 1, 1], [5, 5, 5])
        last = instance.get_latest_materialization_event(mine)
        assert last is not None
        assert last.asset_materialization is not None
        assert last.asset_materialization.metadata["n"].value == 4
