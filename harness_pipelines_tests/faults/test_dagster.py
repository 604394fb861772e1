"""Dagster's processes die, double and forget: nothing is lost or doubled, the work goes on, and the UI ends true."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest
from dagster import DagsterRunStatus
from dagster._core.scheduler.instigation import TickStatus

from harness_pipelines.ledgers.postgres.views.quarantine import set_aside, with_bytes
from harness_pipelines.protocol.changes.corrections import Wanted
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.faults.dagster_rig import RUN_S, DagsterRig, dagster_over
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import TableRig

pytestmark = pytest.mark.timeout(2400)
PHASES = ("TICK_CREATED", "TICK_HELD", "RUN_IDS_RESERVED", "RUN_CREATED", "RUN_LAUNCHED")


@pytest.fixture
def table(make_rig: MakeRig) -> TableRig:
    return make_rig(tier={"max_age": "5s"}, freshness={"lake": "10s"})


@pytest.fixture
def dagster(settings: Settings, table: TableRig, tmp_path: Path) -> Iterator[DagsterRig]:
    with dagster_over(replace(settings, home=tmp_path), tmp_path, [table.table.spec]) as made:
        yield made


@pytest.mark.long
def test_a_daemon_that_is_killed_at_any_phase_of_a_tick(table: TableRig, dagster: DagsterRig):
    for phase in PHASES:
        table.produce(50)
        dagster.daemon_killed_at(phase)
        dagster.room.processes.clear()
    dagster.daemon()
    table.await_exact(deadline_s=RUN_S)
    wait_until(lambda: _all_in_lake(table), "tier has moved what there was", deadline_s=RUN_S)
    dagster.await_truth()
    table.assert_exact()


def _all_in_lake(table: TableRig) -> bool:
    return all(stream_hi == buffer_hi for stream_hi, buffer_hi in table.status().values())


@pytest.mark.long
def test_two_daemons_do_the_work_of_one(table: TableRig, dagster: DagsterRig):
    dagster.daemon()
    dagster.room.start("daemon2", ["dagster-daemon", "run", *dagster.workspace])
    for _ in range(3):
        table.produce(50)
        table.await_exact(deadline_s=RUN_S)
    wait_until(lambda: _all_in_lake(table), "tier has moved what there was", deadline_s=RUN_S)
    dagster.await_truth()
    table.assert_exact()


@pytest.mark.long
def test_a_run_that_is_killed_is_taken_over_and_ends_red(table: TableRig, dagster: DagsterRig):
    dagster.daemon()
    table.produce(50)
    table.await_exact(deadline_s=RUN_S)
    run = dagster.await_run(table, Stage.INGEST)
    dagster.kill_run(run)
    table.produce(50)
    table.await_exact(deadline_s=RUN_S)
    dagster.await_truth()
    ended = dagster.instance.get_run_by_id(run.run_id)
    assert ended is not None
    assert ended.status is DagsterRunStatus.FAILURE
    table.assert_exact()


@pytest.mark.long
def test_all_of_it_is_killed_and_started_again(table: TableRig, dagster: DagsterRig):
    dagster.daemon()
    table.produce(50)
    dagster.await_run(table, Stage.INGEST)
    dagster.kill_all()
    table.produce(50)
    dagster.room.processes.clear()
    dagster.daemon()
    table.await_exact(deadline_s=RUN_S)
    dagster.await_truth()
    table.assert_exact()


@pytest.mark.long
def test_dagster_s_database_is_lost_and_made_anew(table: TableRig, dagster: DagsterRig):
    daemon = dagster.daemon()
    table.produce(50)
    table.await_exact(deadline_s=RUN_S)
    dagster.drop_database()
    table.produce(50)
    # What a supervisor does: a daemon without its tables ends, or is ended.
    dagster.kill_all()
    dagster.room.processes.clear()
    assert dagster.daemon() != daemon
    dagster.await_tables()
    table.await_exact(deadline_s=RUN_S)
    dagster.await_truth()
    table.assert_exact()


@pytest.mark.long
def test_ticks_that_raise_are_red_and_the_next_ones_go_on(table: TableRig, dagster: DagsterRig):
    table.produce(50)
    with _without(table, "log_ends"):  # which the sensors ask
        dagster.daemon()
        for name in ("harness_wake", "harness_lag"):
            raised = partial(_raised, dagster, name, "log_ends")
            wait_until(raised, f"a tick of {name} raised", deadline_s=RUN_S)
    table.await_exact(deadline_s=RUN_S)
    wait_until(lambda: _all_in_lake(table), "tier has moved what there was", deadline_s=RUN_S)
    dagster.await_truth()
    table.assert_exact()


def _raised(dagster: DagsterRig, name: str, what: str) -> bool:
    """A tick of the sensor *name* has failed, and says *what*."""
    return any(what in str(tick.error) for tick in dagster.ticks(name, TickStatus.FAILURE))


@contextmanager
def _without(table: TableRig, relation: str) -> Iterator[None]:
    """A table of the ledger is not there."""
    with psycopg.connect(table.harness.settings.dsn or "", autocommit=True) as owner:
        owner.execute(f"ALTER TABLE harness.{relation} RENAME TO {relation}_away")
        try:
            yield
        finally:
            owner.execute(f"ALTER TABLE harness.{relation}_away RENAME TO {relation}")


@pytest.mark.long
def test_runs_that_fail_come_less_often_until_the_cause_is_repaired_and_cost_no_other_table(
    make_rig: MakeRig, settings: Settings, tmp_path: Path
):
    sick, well = make_rig(on_error="stop"), make_rig()
    folder, specs = tmp_path / "two", [sick.table.spec, well.table.spec]
    with dagster_over(replace(settings, home=folder), folder, specs) as dagster:
        sick.produce(20)
        sick.kafka.produce(sick.topic, 0, [b"no json"])
        well.produce(20)
        dagster.daemon()
        failed = partial(dagster.runs, sick, Stage.INGEST, DagsterRunStatus.FAILURE)
        wait_until(lambda: len(failed()) == 3, "three runs failed", deadline_s=3 * RUN_S)
        began = sorted(record.create_timestamp.timestamp() for record in dagster.records(failed()))
        assert all(later - before >= pause for (before, later), pause in zip(pairwise(began), (10, 20), strict=True))
        well.await_exact(deadline_s=RUN_S)

        sick.harness.apply(sick.table.spec.model_copy(update={"on_error": "quarantine"}))
        sick.produce(5)
        wait_until(lambda: _taken(sick) == 51, "the sick table goes on by itself", deadline_s=2 * RUN_S)
        dagster.await_truth()
        well.assert_exact()
    readers, row = sick.stores.readers, sick.table.row
    [record] = with_bytes(
        readers, row, set_aside(readers, row, Wanted(), limit=2), in_lake=sick.stores.quarantined_in_lake
    )
    assert (record["partition"], record["offset"], record["value"]) == (0, 20, b"no json")


def _taken(table: TableRig) -> int:
    """Offsets that ingest has passed."""
    return sum(buffer_hi for _, buffer_hi in table.status().values())


@pytest.mark.long
def test_the_code_is_loaded_again_while_a_run_is_at_work(table: TableRig, dagster: DagsterRig):
    dagster.room.up()
    table.produce(50)
    dagster.await_run(table, Stage.INGEST)
    dagster.reload()
    table.produce(50)
    table.await_exact(deadline_s=RUN_S)
    dagster.end_code_servers()
    table.produce(50)
    table.await_exact(deadline_s=RUN_S)
    dagster.await_truth()
    table.assert_exact()
