"""Dagster's processes die, double and forget: nothing is lost or doubled, the work goes on, and the UI ends true."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from dagster import DagsterRunStatus

from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.faults.dagster_rig import RUN_S, DagsterRig, dagster_over
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import TableRig

pytestmark = pytest.mark.timeout(420)
PHASES = ("TICK_CREATED", "TICK_HELD", "RUN_IDS_RESERVED", "RUN_CREATED", "RUN_LAUNCHED")


@pytest.fixture
def table(make_rig: MakeRig) -> TableRig:
    return make_rig(tier={"max_age": "5s"}, freshness={"lake": "10s"})


@pytest.fixture
def dagster(settings: Settings, table: TableRig, tmp_path: Path) -> Iterator[DagsterRig]:
    with dagster_over(replace(settings, home=tmp_path), tmp_path, [table.table.spec]) as made:
        yield made


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


def test_two_daemons_do_the_work_of_one(table: TableRig, dagster: DagsterRig):
    dagster.daemon()
    dagster.room.start("daemon2", ["dagster-daemon", "run", *dagster.workspace])
    for _ in range(3):
        table.produce(50)
        table.await_exact(deadline_s=RUN_S)
    wait_until(lambda: _all_in_lake(table), "tier has moved what there was", deadline_s=RUN_S)
    table.assert_exact()


def test_a_run_that_is_killed_is_taken_over_and_ends_red(table: TableRig, dagster: DagsterRig):
    dagster.daemon()
    table.produce(50)
    table.await_exact(deadline_s=RUN_S)
    run = dagster.await_run(table, Stage.INGEST)
    dagster.kill_run(run)
    table.produce(50)
    table.await_exact(deadline_s=150)
    dagster.await_truth()
    ended = dagster.instance.get_run_by_id(run.run_id)
    assert ended is not None
    assert ended.status is DagsterRunStatus.FAILURE
    table.assert_exact()


def test_all_of_it_is_killed_and_started_again(table: TableRig, dagster: DagsterRig):
    dagster.daemon()
    table.produce(50)
    dagster.await_run(table, Stage.INGEST)
    dagster.kill_all()
    table.produce(50)
    dagster.room.processes.clear()
    dagster.daemon()
    table.await_exact(deadline_s=150)
    dagster.await_truth()
    table.assert_exact()


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
    table.await_exact(deadline_s=150)
    table.assert_exact()


def test_the_code_is_loaded_again_while_a_run_is_at_work(table: TableRig, dagster: DagsterRig):
    dagster.room.up()
    table.produce(50)
    dagster.await_run(table, Stage.INGEST)
    reload = 'mutation { reloadRepositoryLocation(repositoryLocationName: "harness") { __typename } }'
    answer = httpx.post(f"{dagster.room.url}/graphql", json={"query": reload}, timeout=RUN_S).json()
    assert answer["data"]["reloadRepositoryLocation"]["__typename"] == "WorkspaceLocationEntry", answer
    table.produce(50)
    table.await_exact(deadline_s=RUN_S)
    dagster.kill_code_server()
    table.produce(50)
    table.await_exact(deadline_s=150)
    dagster.await_truth()
    table.assert_exact()
