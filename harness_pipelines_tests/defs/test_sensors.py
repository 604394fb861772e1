"""The sensors request what the ledger says is due, once, and end what is dead; a sick table stops no other one."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DagsterInstance,
    DagsterRunStatus,
    RunRequest,
    build_sensor_context,
)
from dagster._core.definitions.sensor_definition import SensorExecutionData

from harness_pipelines.app import checks
from harness_pipelines.buffers.postgres.writer import SegmentWriter
from harness_pipelines.defs import liveness, reports, sensors, work
from harness_pipelines.defs.build import build
from harness_pipelines.defs.liveness import BEAT_TAG
from harness_pipelines.defs.resources import HarnessResource
from harness_pipelines.defs.tables import job_name, stage_assets
from harness_pipelines.defs.work import HANDOVER_S, STAGE_TAG, TABLE_TAG
from harness_pipelines.drivers.postgres import LedgerBusy
from harness_pipelines.ledgers.postgres.views.status import Overview
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.moves import MoveState
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.producer import impatient, wait_until
from harness_pipelines_tests.promise import within
from harness_pipelines_tests.rig import INGEST, TableRig, running

FIVE = {"harness_wake", "harness_lag", "harness_maintenance", "harness_reconcile", "harness_downstream"}


class Control:
    """Dagster's side of some tables: ticks of their sensors, with the cursors that a daemon keeps."""

    def __init__(self, instance: DagsterInstance, specs: Sequence[TableSpec]) -> None:
        self.instance, self.definitions = instance, build(list(specs))
        self.cursors: dict[str, str | None] = {}

    def tick(self, name: str) -> SensorExecutionData:
        sensor = self.definitions.resolve_sensor_def(f"harness_{name}")
        resources: dict[str, Any] = {"harness": HarnessResource()}
        with build_sensor_context(
            instance=self.instance, cursor=self.cursors.get(name), resources=resources, definitions=self.definitions
        ) as context:
            found = sensor.evaluate_tick(context)
        self.cursors[name] = found.cursor
        return found

    def requests(self, name: str) -> list[RunRequest]:
        return list(self.tick(name).run_requests or [])

    def woken(self) -> list[tuple[str, str]]:
        """(table, stage) of the runs that wake requests, after a look at Kafka."""
        self.tick("lag")
        return [(r.tags[TABLE_TAG], r.tags[STAGE_TAG]) for r in self.requests("wake")]

    def run_of(self, table: str, stage: Stage, status: DagsterRunStatus) -> str:
        """A run as a launcher would have left it."""
        job = self.definitions.resolve_job_def(job_name(stage))
        tags = {TABLE_TAG: table, STAGE_TAG: stage.value}
        run = self.instance.create_run_for_job(job, tags=tags, status=DagsterRunStatus.STARTING)
        if status is not DagsterRunStatus.STARTING:
            self.instance.handle_new_event(_event(run, status))
        return str(run.run_id)

    def status(self, run_id: str) -> DagsterRunStatus:
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return run.status


def _event(run: Any, status: DagsterRunStatus) -> Any:
    from dagster import DagsterEvent, DagsterEventType
    from dagster._core.events.log import EventLogEntry

    kind = {
        DagsterRunStatus.STARTED: DagsterEventType.RUN_START,
        DagsterRunStatus.FAILURE: DagsterEventType.RUN_FAILURE,
        DagsterRunStatus.SUCCESS: DagsterEventType.RUN_SUCCESS,
    }[status]
    return EventLogEntry(
        error_info=None,
        level=20,
        user_message="",
        run_id=run.run_id,
        timestamp=time.time(),
        job_name=run.job_name,
        dagster_event=DagsterEvent(event_type_value=kind.value, job_name=run.job_name),
    )


@pytest.fixture
def control(rig: TableRig, environment: None, instance: DagsterInstance) -> Control:
    return Control(instance, [rig.table.spec])


def test_there_are_five_sensors_however_many_tables(control: Control, rig: TableRig, instance: DagsterInstance) -> None:
    specs = [rig.table.spec.model_copy(update={"name": f"t{i}"}) for i in range(20)]
    for made in (control, Control(instance, specs)):
        assert {s.name for s in made.definitions.sensors or []} == FIVE
    by_hand = build([rig.table.spec.model_copy(update={"mode": "manual"})])
    assert {s.name for s in by_hand.sensors or []} == {"harness_lag", "harness_downstream"}
    assert {s.name for s in build([]).sensors or []} == {"harness_downstream"}


# -- wake ---------------------------------------------------------------------------------------------------


def test_wake_requests_what_is_due_and_nothing_else(control: Control, rig: TableRig) -> None:
    assert control.woken() == []
    assert control.tick("wake").skip_message == "nothing is due"
    rig.produce(10)
    assert control.requests("wake") == []  # nobody has looked at Kafka since
    assert control.woken() == [(rig.name, "ingest")]
    [request] = control.requests("wake")
    assert (request.job_name, request.asset_selection) == (job_name(Stage.INGEST), stage_assets(rig.name, Stage.INGEST))
    assert request.tags["harness/why"] == "20 offsets behind the log"
    rig.ingest()
    assert control.woken() == []
    _long_ago(rig, "2 min")
    assert control.woken() == [], "a worker of its own would move by now, the objective is far"
    _long_ago(rig)
    [request] = control.requests("wake")
    assert (request.tags[STAGE_TAG], request.tags["harness/why"]) == ("tier", "age")


def _long_ago(rig: TableRig, ago: str = "1 h") -> None:
    """As if the table were so much older; an hour is longer than its tier may wait."""
    with rig.stores.database.session() as connection:
        connection.execute(
            "UPDATE harness.tables SET created_at = created_at - %s::interval WHERE table_id = %s",
            [ago, rig.table.row.table_id],
        )
        connection.commit()


def test_a_table_without_a_buffer_wakes_tier_for_the_log_by_the_rules_of_tier(
    make_rig: MakeRig, environment: None, instance: DagsterInstance
) -> None:
    rig = make_rig(buffer="none")
    control = Control(instance, [rig.table.spec])
    rig.produce(5)
    assert control.woken() == []
    _long_ago(rig)
    assert control.woken() == [(rig.name, "tier")]
    [request] = control.requests("wake")
    assert request.tags["harness/why"] == "age"


def test_wake_leaves_a_stage_to_whoever_holds_its_claim_or_has_a_run_of_it(control: Control, rig: TableRig) -> None:
    rig.produce(10)
    claim = rig.claim(Stage.INGEST)
    assert control.woken() == []
    rig.stores.ledger.release(claim)
    assert control.woken() == [(rig.name, "ingest")]
    control.run_of(rig.name, Stage.INGEST, DagsterRunStatus.STARTING)
    assert control.woken() == []


def test_a_run_that_is_about_to_end_gets_one_successor(
    control: Control, rig: TableRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = rig.claim(Stage.INGEST)  # the run has it
    run_id = control.run_of(rig.name, Stage.INGEST, DagsterRunStatus.STARTED)
    assert control.woken() == []
    monkeypatch.setattr(sensors, "RUN_S", HANDOVER_S)  # its time is nearly over
    [request] = control.requests("wake")
    assert request.tags["harness/why"] == "hand-over"
    assert run_id in (request.run_key or "")
    control.run_of(rig.name, Stage.INGEST, DagsterRunStatus.STARTING)  # the successor
    assert control.woken() == []
    rig.stores.ledger.release(claim)


def test_one_run_takes_over_from_the_other_and_nothing_is_lost_or_doubled(rig: TableRig) -> None:
    first = rig.worker(INGEST)
    with running(first):
        rig.produce(50)
        rig.await_exact()
        with rig.working(INGEST) as second:  # stands by
            rig.produce(50)
            rig.await_exact()
            first.stop.set()
            wait_until(lambda: not first.progress[0].trouble and _holder(rig) == second.holder, "the second took over")
            rig.produce(50)
            rig.await_exact()


def _holder(rig: TableRig) -> str:
    [claim] = [c for c in Overview(rig.stores.readers).claims(rig.table.row) if c["stage"] == "ingest"]
    return str(claim["holder"])


def test_an_idle_worker_waits_for_more_before_it_ends(rig: TableRig) -> None:
    options = WorkerOptions(stages=INGEST, until_idle=True, linger_s=30.0)
    worker = Worker(rig.stores, [rig.table.row], options)
    with running(worker):
        for _ in range(3):
            rig.produce(5)
            rig.await_exact()
    with within(30.0, "a worker that waits for no more"):
        Worker(rig.stores, [rig.table.row], replace(options, linger_s=0.0)).run()


def test_a_stuck_move_wakes_nobody_and_is_named(control: Control, rig: TableRig) -> None:
    rig.produce(10)
    rig.ingest()
    claim = rig.claim(Stage.TIER)
    move = _planned(rig, claim)
    rig.stores.ledger.release(claim)
    assert control.woken() == [(rig.name, "tier")]  # recovery
    claim = rig.claim(Stage.TIER)
    taken = rig.stores.ledger.take_attempt(claim, move, run_id=None)
    rig.stores.ledger.close_move(claim, taken, state=MoveState.QUARANTINED, error="every attempt failed")
    rig.stores.ledger.release(claim)
    assert control.woken() == []
    assert "--retry-stuck" in (control.tick("reconcile").skip_message or "")


def _planned(rig: TableRig, claim: Any) -> Any:
    from harness_pipelines.stages.tier import tier

    move = tier.plan(rig.stores, rig.table.row, claim, trigger="test", run_id=None)
    assert move is not None
    return move


def test_tables_that_are_furthest_behind_come_first_and_no_more_than_a_tick_takes(
    make_rig: MakeRig, environment: None, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many, some = make_rig(), make_rig(), make_rig()
    for rig, count in ((few, 1), (many, 30), (some, 5)):
        rig.produce(count)
    control = Control(instance, [rig.table.spec for rig in (few, many, some)])
    assert control.woken() == [(many.name, "ingest"), (some.name, "ingest"), (few.name, "ingest")]
    monkeypatch.setattr(sensors, "REQUESTS_MAX", 2)
    assert control.woken() == [(many.name, "ingest"), (some.name, "ingest")]


def test_a_failed_run_does_not_block_its_retry_but_each_doubles_the_pause(
    control: Control, rig: TableRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.produce(10)
    assert control.woken() == [(rig.name, "ingest")]
    keys = {request.run_key for request in control.requests("wake")}
    control.run_of(rig.name, Stage.INGEST, DagsterRunStatus.FAILURE)
    monkeypatch.setattr(sensors, "RETRY_S", 100.0)
    assert control.woken() == []  # it failed a moment ago
    monkeypatch.setattr(sensors, "RETRY_S", 0.0)
    assert control.woken() == [(rig.name, "ingest")]
    keys |= {request.run_key for request in control.requests("wake")}
    assert len(keys) == 2
    monkeypatch.setattr(sensors, "RETRY_S", 0.5)
    for _ in range(9):
        control.run_of(rig.name, Stage.INGEST, DagsterRunStatus.FAILURE)
    assert control.woken() == []  # 0.5 s, doubled with each of the last eight
    monkeypatch.setattr(sensors, "RETRY_S_MAX", 0.0)
    assert control.woken() == [(rig.name, "ingest")]


def test_a_run_that_failed_before_the_clock_was_set_back_is_tried_again(
    control: Control, rig: TableRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.produce(10)
    control.run_of(rig.name, Stage.INGEST, DagsterRunStatus.FAILURE)
    back = time.time() - 4 * 3600
    monkeypatch.setattr("harness_pipelines.defs.sensors.time.time", lambda: back)
    assert control.woken() == [(rig.name, "ingest")]


@pytest.mark.parametrize(
    ("buffer", "variable", "address"),
    [
        ("postgres", "HARNESS_SPARK", "sc://127.0.0.1:9"),
        ("none", "HARNESS_SPARK", "sc://127.0.0.1:9"),
        ("none", "HARNESS_KAFKA", "127.0.0.1:9"),
    ],
)
@pytest.mark.usefixtures("by_spark")
def test_after_a_failure_no_run_is_started_while_a_server_that_it_needs_does_not_answer(
    make_rig: MakeRig,
    environment: None,
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    buffer: str,
    variable: str,
    address: str,
) -> None:
    rig = make_rig(buffer=buffer)
    control = Control(instance, [rig.table.spec])
    rig.produce(10)
    if buffer != "none":
        rig.ingest()
    _long_ago(rig)
    assert control.woken() == [(rig.name, "tier")]
    monkeypatch.setattr(sensors, "RETRY_S", 0.0)
    with monkeypatch.context() as away:
        away.setenv(variable, address)
        impatient(away)
        assert control.woken() == [(rig.name, "tier")], "before a failure no server is asked"
        control.run_of(rig.name, Stage.TIER, DagsterRunStatus.FAILURE)
        assert control.woken() == []
        away.setattr(sensors, "RETRY_S_MAX", 0.0)
        assert control.woken() == [(rig.name, "tier")], "runs may reach what sensors do not"
    assert control.woken() == [(rig.name, "tier")], "it answers"


def test_a_buffered_table_is_moved_while_kafka_does_not_answer(
    control: Control, rig: TableRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.produce(10)
    rig.ingest()
    _long_ago(rig)
    monkeypatch.setattr(sensors, "RETRY_S", 0.0)
    control.run_of(rig.name, Stage.TIER, DagsterRunStatus.FAILURE)
    monkeypatch.setenv("HARNESS_KAFKA", "127.0.0.1:9")
    impatient(monkeypatch)
    assert control.woken() == [(rig.name, "tier")]


class UntilTrouble(Worker):
    """Its time is over once it has met trouble, however long that takes."""

    def _is_idle(self) -> bool:
        return bool(self.progress[0].trouble)


def test_a_run_that_cannot_do_its_work_is_red_and_says_why(
    control: Control, rig: TableRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "Worker", UntilTrouble)
    rig.produce(10)
    job = control.definitions.resolve_job_def(job_name(Stage.INGEST))
    step = f"{rig.name.replace('.', '__')}__take"
    with patch.object(SegmentWriter, "commit", side_effect=LedgerBusy("a lock was not granted")):
        failed = job.execute_in_process(
            instance=control.instance, raise_on_error=False, run_config={"ops": {step: {"config": {"for_s": 300}}}}
        )
    assert not failed.success
    assert "a lock was not granted" in str(failed.get_step_failure_events()[0].event_specific_data)


def test_a_run_is_of_the_table_that_it_was_requested_for(
    make_rig: MakeRig, environment: None, instance: DagsterInstance
) -> None:
    mine, other = make_rig(), make_rig()
    control = Control(instance, [mine.table.spec, other.table.spec])
    for rig in (mine, other):
        rig.produce(10)
        rig.ingest()
    _long_ago(mine)
    control.tick("lag")
    [request] = control.requests("wake")
    job = control.definitions.resolve_job_def(job_name(Stage.TIER)).get_subset(
        asset_selection=set(request.asset_selection or ()),
        asset_check_selection=set(request.asset_check_keys or ()),
    )
    done = job.execute_in_process(instance=instance, tags=request.tags)
    assert done.success
    made = [event.asset_key for event in done.get_asset_materialization_events()]
    assert made == stage_assets(mine.name, Stage.TIER)
    checked = {(check.asset_key, check.check_name) for check in done.get_asset_check_evaluations()}
    assert checked == {(made[-1], name) for name in checks.CHECKS}, "the audit is none of them"
    assert (mine.status()[0][0], other.status()[0][0]) == (10, 0)


@pytest.mark.long
def test_a_run_of_tier_ends_with_the_checks_when_they_are_old_or_one_did_not_pass(
    make_rig: MakeRig, environment: None, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(tier={"max_rows": 1})
    control = Control(instance, [rig.table.spec])
    passes = checks.CheckResult(passed=True, description="", numbers={})
    found = replace(passes, passed=False)
    monkeypatch.setitem(checks.CHECKS, "is_fresh", lambda *_: found)

    def checked() -> set[str]:
        rig.produce(10)
        rig.ingest()
        [request] = [r for r in control.requests("wake") if r.tags[STAGE_TAG] == Stage.TIER]
        keys = set(request.asset_check_keys or ())
        job = control.definitions.resolve_job_def(job_name(Stage.TIER)).get_subset(
            asset_selection=set(request.asset_selection or ()), asset_check_selection=keys
        )
        done = job.execute_in_process(instance=instance, tags=request.tags)
        made = {check.check_name for check in done.get_asset_check_evaluations()}
        assert made == {key.name for key in keys}
        return made

    every = set(checks.CHECKS)
    assert [checked(), checked()] == [every, every], "one does not pass"
    found = passes
    assert [checked(), checked()] == [every, set()]
    monkeypatch.setattr(sensors, "CHECK_S", 0.0)
    assert checked() == every


# -- lag ----------------------------------------------------------------------------------------------------


def test_lag_shows_how_far_a_table_is_behind_once_a_minute_and_only_changes(
    control: Control, rig: TableRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "OBSERVE_S", 3600.0)
    rig.produce(10)
    [seen] = control.tick("lag").asset_events
    assert seen.asset_key == AssetKey(rig.name.split("."))
    assert seen.metadata["behind_log"].value == 20
    rig.ingest()
    assert not observations(control)
    monkeypatch.setattr(reports, "OBSERVE_S", 0.0)
    [seen] = observations(control)
    assert (seen.metadata["behind_log"].value, seen.metadata["buffered"].value) == (0, 20)
    assert not observations(control)


def observations(control: Control) -> list[AssetObservation]:
    return [event for event in control.tick("lag").asset_events if isinstance(event, AssetObservation)]


def materializations(control: Control) -> dict[str, int]:
    """{the asset's last part: move}."""
    found = [event for event in control.tick("lag").asset_events if isinstance(event, AssetMaterialization)]
    return {event.asset_key.path[-1]: event.metadata["move"].value for event in found}  # type: ignore[misc]


def test_what_a_worker_outside_of_dagster_commits_is_shown_now_and_then(
    control: Control, rig: TableRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "RUNLESS_S", 3600.0)  # on a busy machine the move to the lake takes half a minute
    assert not materializations(control)
    rig.produce(10)
    rig.ingest()
    assert set(materializations(control)) == {"ingest", "buffer"}
    rig.produce(10)
    rig.ingest()
    rig.tier()
    assert set(materializations(control)) == {"tier", rig.table.spec.name}, "ingest was shown a moment ago"
    monkeypatch.setattr(reports, "RUNLESS_S", 0.0)
    assert set(materializations(control)) == {"ingest", "buffer"}
    assert not materializations(control)


def test_a_topic_that_is_gone_leaves_the_other_tables_as_they_are(
    make_rig: MakeRig, environment: None, instance: DagsterInstance
) -> None:
    sick, well = make_rig(), make_rig()
    control = Control(instance, [rig.table.spec for rig in (sick, well)])
    sick.kafka.delete(sick.topic)
    well.produce(3)
    assert control.woken() == [(well.name, "ingest")]


# -- maintenance --------------------------------------------------------------------------------------------


def test_maintenance_starts_rewrites_and_expire_where_they_are_due(
    make_rig: MakeRig, environment: None, instance: DagsterInstance
) -> None:
    rig = make_rig(views="both", layout={"columns": ["n"], "regions": 4})
    control = Control(instance, [rig.table.spec])
    rig.produce(100)
    rig.ingest()
    rig.tier()
    found = {r.tags[STAGE_TAG]: r.tags["harness/why"] for r in control.requests("maintenance")}
    assert found == {"otree": "age", "expire": "never before"}
    for stage in (Stage.OTREE, Stage.EXPIRE):
        job = control.definitions.resolve_job_def(job_name(stage))
        assert job.execute_in_process(instance=instance).success
    assert control.requests("maintenance") == []
    rig.assert_exact()


def test_maintenance_takes_turns_and_a_sick_table_stops_no_other(
    make_rig: MakeRig, environment: None, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    rigs = sorted((make_rig() for _ in range(3)), key=lambda rig: rig.name)
    control = Control(instance, [rig.table.spec for rig in rigs])
    monkeypatch.setattr(sensors, "LOOKS_MAX", 2)

    def looked_at() -> list[str]:
        return sorted(r.tags[TABLE_TAG] for r in control.requests("maintenance"))

    names = [rig.name for rig in rigs]
    assert looked_at() == names[:2]
    assert looked_at() == sorted([names[2], names[0]])
    with rigs[1].stores.database.session() as connection:
        connection.execute("DELETE FROM public.iceberg_tables WHERE table_name LIKE %s", [f"%{rigs[1].topic}%"])
        connection.commit()
    monkeypatch.setattr(sensors, "LOOKS_MAX", 3)
    assert set(names) - {names[1]} <= set(looked_at())


# -- reconcile ----------------------------------------------------------------------------------------------


def test_a_run_that_says_that_it_lives_is_left_alone_and_one_that_stopped_ends_whoever_holds_its_claim(
    control: Control, rig: TableRig, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "SILENT_S", 0.2)
    monkeypatch.setattr(sensors, "RETRY_S", 0.0)
    rig.produce(10)
    checking = control.run_of(rig.name, Stage.INGEST, DagsterRunStatus.STARTED)  # it gave its claim back already
    dead = control.run_of(rig.name, Stage.TIER, DagsterRunStatus.STARTED)
    instance.add_run_tags(dead, {BEAT_TAG: "1"})
    claim = rig.claim(Stage.TIER)  # of a worker elsewhere

    def beat_and_tick() -> bool:
        instance.add_run_tags(checking, {BEAT_TAG: f"{time.monotonic()}"})
        control.tick("reconcile")
        return control.status(dead) is DagsterRunStatus.FAILURE

    wait_until(beat_and_tick, "the silent run to be ended")
    assert control.status(checking) is DagsterRunStatus.STARTED
    rig.stores.ledger.release(claim)

    def tick() -> bool:
        control.tick("reconcile")
        return control.status(checking) is DagsterRunStatus.FAILURE

    wait_until(tick, "the run that fell silent to be ended")
    assert control.woken() == [(rig.name, "ingest")]


def test_a_run_of_before_beats_lives_while_its_claim_is_held(
    control: Control, rig: TableRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "SILENT_S", 0.0)
    run_id = control.run_of(rig.name, Stage.INGEST, DagsterRunStatus.STARTED)
    claim = rig.claim(Stage.INGEST)
    for _ in range(3):
        control.tick("reconcile")
    assert control.status(run_id) is DagsterRunStatus.STARTED
    rig.stores.ledger.release(claim)
    assert run_id in (control.tick("reconcile").skip_message or "")
    assert control.status(run_id) is DagsterRunStatus.FAILURE


def test_a_run_whose_process_died_while_it_started_ends_too(
    control: Control, rig: TableRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = control.run_of(rig.name, Stage.INGEST, DagsterRunStatus.STARTING)
    for _ in range(3):
        control.tick("reconcile")
    assert control.status(run_id) is DagsterRunStatus.STARTING  # a busy machine needs longer to start it
    monkeypatch.setattr(sensors, "STARTED_S", 0.0)
    control.tick("reconcile")
    assert control.status(run_id) is DagsterRunStatus.FAILURE


def test_a_run_that_starts_is_left_alone_by_a_sensor_whose_clock_is_hours_ahead_of_the_daemon_s(
    control: Control, rig: TableRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = control.run_of(rig.name, Stage.INGEST, DagsterRunStatus.STARTING)
    ahead = time.time() + 4 * 3600
    monkeypatch.setattr("harness_pipelines.defs.sensors.time.time", lambda: ahead)
    for _ in range(2):
        control.tick("reconcile")
    assert control.status(run_id) is DagsterRunStatus.STARTING


def test_a_run_that_ended_and_runs_of_others_are_left_alone(
    control: Control, rig: TableRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "SILENT_S", 0.0)
    done = control.run_of(rig.name, Stage.TIER, DagsterRunStatus.SUCCESS)
    others = control.run_of("of.others", Stage.TIER, DagsterRunStatus.STARTED)
    for _ in range(2):
        control.tick("reconcile")
    assert control.status(done) is DagsterRunStatus.SUCCESS
    assert control.status(others) is DagsterRunStatus.STARTED


def test_the_process_of_a_run_says_that_it_lives(control: Control, rig: TableRig, instance: DagsterInstance) -> None:
    done = control.definitions.resolve_job_def(job_name(Stage.EXPIRE)).execute_in_process(instance=instance)
    run = instance.get_run_by_id(done.run_id)
    assert done.success
    assert run is not None
    assert 0 <= time.time() - float(run.tags[BEAT_TAG]) < 600


def test_losing_every_cursor_costs_a_tick(control: Control, rig: TableRig) -> None:
    rig.produce(10)
    assert control.woken() == [(rig.name, "ingest")]
    control.cursors.clear()
    assert control.woken() == [(rig.name, "ingest")]
    control.tick("maintenance")
    control.tick("reconcile")
