"""What the clock starts: audits of all tables, of which one that fails stops no other; and old runs that go."""

import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetsDefinition,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Definitions,
    RunRequest,
    StaticPartitionsDefinition,
    asset,
    build_schedule_context,
    validate_run_config,
)
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._utils.schedules import schedule_execution_time_iterator

from harness_pipelines.app.checks import CheckResult, is_complete
from harness_pipelines.defs import history, tables
from harness_pipelines.defs.build import build
from harness_pipelines.defs.history import last_snapshot, purge_events, purge_snapshots
from harness_pipelines.defs.private import SnapshotsTable, SqlRunStorage
from harness_pipelines.defs.schedules import AUDITS, FULL_AUDITS, KEEP_DAYS, PURGE, audit_op, purge_all
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

    def judged(stores: Any, table: Any, *, full: bool) -> CheckResult:
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


TIER, OTREE, OTHER = AssetKey(["shop", "orders", "tier"]), AssetKey(["shop", "orders", "otree"]), AssetKey(["other"])
PARTS = StaticPartitionsDefinition(["a", "b"])


def made(instance: DagsterInstance, *chosen: AssetKey, part: str | None = None, words: str = "") -> str:
    """The run that a person starts who chooses assets in Dagster's graph; *words* describe them."""

    def asset_of(key: AssetKey, parts: StaticPartitionsDefinition | None = None) -> AssetsDefinition:
        return asset(key=key, partitions_def=parts, description=words)(lambda: None)

    assets = [asset_of(TIER), asset_of(OTREE, PARTS), asset_of(OTHER)]
    job = Definitions(assets=assets).resolve_implicit_global_asset_job_def()
    done = job.execute_in_process(instance=instance, asset_selection=chosen, partition_key=part)
    assert done.success
    return str(done.run_id)


def purge(instance: DagsterInstance) -> dict[str, int]:
    """As the schedule does it, weeks later."""
    return purge_all(instance, [TIER, OTREE], before=datetime.now(UTC) + timedelta(minutes=5))


def test_old_runs_that_people_started_go_but_the_last_of_each_asset_and_those_with_assets_of_others_stay(
    instance: DagsterInstance,
) -> None:
    gone = [made(instance, TIER), made(instance, TIER, OTREE, part="a"), made(instance, OTREE, part="a")]
    kept = [
        made(instance, TIER),
        made(instance, OTREE, part="a"),
        made(instance, OTREE, part="b"),
        made(instance, OTHER),
        made(instance, OTHER, TIER),
        made(instance, TIER),
    ]
    gone.append(kept.pop(0))
    purge(instance)
    assert {run.run_id for run in instance.get_runs()} == set(kept)
    assert not set(gone) & set(kept)
    assert instance.get_materialized_partitions(OTREE) == {"a", "b"}


def test_what_runs_were_planned_from_goes_with_the_last_of_them(instance: DagsterInstance) -> None:
    def snapshots() -> int:
        storage = instance.run_storage
        assert isinstance(storage, SqlRunStorage)
        with storage.connect() as connection:
            return len(connection.execute(sa.select(SnapshotsTable.c.id)).fetchall())

    made(instance, TIER, words="first")
    at_first = snapshots()
    for number in range(3):
        made(instance, TIER, words=f"of_day_{number}")
    last = instance.get_run_by_id(made(instance, TIER, words="last"))
    assert snapshots() > 4 * at_first > 4
    assert purge(instance)["snapshots"] == 4 * at_first
    assert snapshots() == at_first

    assert last is not None
    assert last.job_snapshot_id is not None
    assert instance.get_historical_job(last.job_snapshot_id).name == last.job_name
    assert last.execution_plan_snapshot_id is not None
    assert instance.get_execution_plan_snapshot(last.execution_plan_snapshot_id).step_keys_to_execute
    made(instance, TIER, words="first")  # which comes back
    assert snapshots() == 2 * at_first


def test_what_a_run_of_today_was_planned_from_stays_though_no_run_has_it_yet(instance: DagsterInstance) -> None:
    run = instance.get_run_by_id(made(instance, TIER))
    assert run is not None
    before = datetime.now(UTC) + timedelta(minutes=5)
    planned = last_snapshot(instance, before=before)
    made(instance, TIER, words="of_today")
    instance.run_storage.delete_run(instance.get_runs(limit=1)[0].run_id)  # as if it were about to be noted
    assert purge_snapshots(instance, up_to=planned) == 0
    assert last_snapshot(instance, before=before - timedelta(days=1)) == 0


def test_backfills_that_are_over_go_and_those_of_others_stay(instance: DagsterInstance) -> None:
    def backfill(status: BulkActionStatus, *chosen: AssetKey) -> None:
        name = f"{status.value}-{'-'.join(key.path[-1] for key in chosen)}"
        found = PartitionBackfill(name, status, False, {"a": "tag"}, time.time(), asset_selection=list(chosen))
        instance.add_backfill(found)

    over, at_work = BulkActionStatus.CANCELED, BulkActionStatus.REQUESTED
    for status, chosen in ((over, [OTREE]), (over, [OTREE, OTHER]), (over, [OTHER]), (at_work, [OTREE])):
        backfill(status, *chosen)
    assert purge(instance)["backfills"] == 1
    left = {one.backfill_id for one in instance.get_backfills()}
    assert left == {"CANCELED-otree-other", "CANCELED-other", "REQUESTED-otree"}
