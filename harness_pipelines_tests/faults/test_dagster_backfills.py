"""A person cancels a backfill of regions while a real Dagster is at work on it, and starts another one later."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from dagster import DagsterRun, DagsterRunStatus, RunsFilter

from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.defs.clustering import REGIONS
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.read.report.layout import look
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.otree.otree import otree_once
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.faults.dagster_rig import RUN_S, DagsterRig, dagster_over
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.promise import within
from harness_pipelines_tests.rig import TableRig

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]
BACKFILL_TAG = "dagster/backfill"
STARTED, CANCELING = DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING
END_S = 15.0
LAUNCH = """
mutation ($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message }
  }
}
"""
CANCEL = """
mutation ($id: String!) {
  cancelPartitionBackfill(backfillId: $id) { __typename ... on PythonError { message } }
}
"""

IN_FORCE = {
    "claims": b"SELECT FROM harness.claims WHERE (table_id, stage) = (%(table_id)s, %(stage)s) AND lease_until > now()",
    "leases": b"SELECT FROM harness.leases WHERE table_id = %(table_id)s AND until > now()",
}
NOTHING = {"claims": 0, "leases": 0}


@pytest.fixture
def table(make_rig: MakeRig) -> TableRig:
    """A table of four regions with rows that are not clustered yet, for which nothing is due."""
    rig = make_rig(views="both", layout={"columns": ["n"], "regions": 4, "staged_ratio": 10.0})
    for _ in range(2):
        rig.produce(400)
        rig.ingest()
        rig.tier()
        rig.move_once(Stage.OTREE, otree_once, crash=None)
    assert look(rig.stores, rig.table.row).score.staged_share > 0
    return rig


@pytest.fixture
def dagster(settings: Settings, table: TableRig, tmp_path: Path) -> Iterator[DagsterRig]:
    with dagster_over(replace(settings, home=tmp_path), tmp_path, [table.table.spec]) as made:
        yield made


class Backfill:
    """All regions of the table, as a person chooses them in the asset graph."""

    def __init__(self, dagster: DagsterRig, table: TableRig, *, rebuild: bool = False) -> None:
        self.dagster, self.table = dagster, table
        step = f"{table.name.replace('.', '__')}__rewrite_otree"
        config = {"ops": {step: {"config": {"rebuild": rebuild}}}}
        params = {
            "assetSelection": [{"path": [*table.name.split("."), "otree"]}],
            "partitionNames": REGIONS.get_partition_keys(),
            "runConfigData": config,
        }
        made = dagster.asked(LAUNCH, {"params": params})
        assert made["__typename"] == "LaunchBackfillSuccess", made
        self.backfill_id = str(made["backfillId"])

    @property
    def status(self) -> str:
        found = self.dagster.instance.get_backfill(self.backfill_id)
        assert found is not None
        return found.status.value

    def runs(self, *statuses: DagsterRunStatus) -> list[DagsterRun]:
        tags = {BACKFILL_TAG: self.backfill_id}
        return list(self.dagster.instance.get_runs(RunsFilter(tags=tags, statuses=list(statuses))))

    def is_ending(self) -> bool:
        """Whether the daemon has asked its runs to end; none may end by itself before."""
        statuses = {run.status for run in self.runs()}
        assert statuses <= {STARTED, CANCELING, DagsterRunStatus.CANCELED}, self.history()
        return STARTED not in statuses

    def history(self) -> str:
        """What its runs and the daemon say."""
        said = [entry.user_message for run in self.runs() for entry in self.dagster.instance.all_logs(run.run_id)]
        return "\n".join([self.status, *said, self.dagster.log("daemon")])

    def within_a_move(self) -> DagsterRun | None:
        """Its run that has begun with a move and not ended it, if there is one."""
        at_work = {move["run_id"] for move in open_moves(self.table)}
        return next((run for run in self.runs() if run.run_id in at_work), None)

    def cancel(self) -> None:
        answer = self.dagster.asked(CANCEL, {"id": self.backfill_id})
        assert answer["__typename"] == "CancelBackfillSuccess", answer

    def await_end(self, status: str) -> None:
        def is_over() -> bool:
            assert "FAIL" not in self.status, self.dagster.log("daemon")
            return self.status == status

        wait_until(is_over, f"the backfill is {status}: {self.dagster.log('daemon')}", deadline_s=RUN_S)


def asked_for(table: TableRig) -> list[Any]:
    """The requests to rewrite regions that are open."""
    return list(table.stores.reclusters.open(table.table.row))


def open_moves(table: TableRig) -> list[Any]:
    """The moves of otree that have begun and are not over."""
    return [m for m in table.stores.ledger.moves(table.table.row, stage=Stage.OTREE) if m["state"] == "PLANNED"]


def in_force(table: TableRig, stage: Stage) -> dict[str, int]:
    """How many claims of *stage*, and leases of the table, have not ended."""
    key = {"table_id": table.table.row.table_id, "stage": stage.value}
    with psycopg.connect(table.stores.settings.dsn or "") as owner:
        return {name: len(owner.execute(statement, key).fetchall()) for name, statement in IN_FORCE.items()}


@contextmanager
def held(table: TableRig, stage: Stage) -> Iterator[None]:
    """Another worker has the claim of *stage* to the end of the block."""
    ledger, lease, over = table.stores.ledger, timedelta(seconds=60), threading.Event()
    claim = table.claim(stage, lease_s=lease.total_seconds())

    def keep() -> None:
        while not over.wait(lease.total_seconds() / 4):
            ledger.renew(claim, lease=lease)

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()
        ledger.release(claim)


@contextmanager
def paused(dagster: DagsterRig, run: DagsterRun) -> Iterator[None]:
    """The process of *run* stands still to the end of the block: what it has begun stays begun."""
    pid = dagster.pid_of(run)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def await_ends(backfill: Backfill) -> None:
    """All runs of a backfill that is being cancelled end within the time that an operator is promised."""
    with within(END_S, "the end of the runs of a backfill"):
        wait_until(lambda: all(run.is_finished for run in backfill.runs()), "its runs ended", deadline_s=RUN_S)
    assert {run.status for run in backfill.runs()} == {DagsterRunStatus.CANCELED}


def test_a_backfill_that_is_cancelled_within_a_move_leaves_nothing_behind_and_the_next_one_goes_on(
    table: TableRig, dagster: DagsterRig
):
    dagster.room.up()
    dagster.room.start("daemon2", ["dagster-daemon", "run", *dagster.workspace])
    before = look(table.stores, table.table.row).score.staged_share
    backfill = Backfill(dagster, table)
    found: list[DagsterRun] = []

    def has_begun() -> bool:
        found.extend(filter(None, [backfill.within_a_move()]))
        return bool(found)

    wait_until(has_begun, "it has begun with a move", deadline_s=2 * RUN_S)
    with paused(dagster, found[0]):
        assert asked_for(table) != []
        backfill.cancel()
        wait_until(lambda: bool(backfill.runs(CANCELING)), "the daemon ends its runs", deadline_s=RUN_S)
    await_ends(backfill)
    backfill.await_end("CANCELED")
    assert asked_for(table) == []
    assert {run.status for run in backfill.runs()} == {DagsterRunStatus.CANCELED}, "no daemon has started another one"
    wait_until(lambda: in_force(table, Stage.OTREE) == NOTHING, "nothing is held any more", deadline_s=RUN_S)

    second = Backfill(dagster, table)
    second.await_end("COMPLETED_SUCCESS")
    assert look(table.stores, table.table.row).score.staged_share < before
    assert (asked_for(table), open_moves(table)) == ([], [])
    dagster.await_truth()
    dagster.room.down()
    assert_tidy(table)


def test_a_backfill_that_is_cancelled_while_it_waits_for_its_turn_withdraws_its_request(
    table: TableRig, dagster: DagsterRig
):
    dagster.room.up()
    with held(table, Stage.OTREE):
        backfill = Backfill(dagster, table, rebuild=True)
        wait_until(lambda: bool(asked_for(table)), "its request is recorded", deadline_s=RUN_S)
        dagster.reload()  # its run belongs to a code server that is replaced
        backfill.cancel()
        wait_until(backfill.is_ending, "the daemon ends its runs", deadline_s=RUN_S)
        await_ends(backfill)
        backfill.await_end("CANCELED")
        assert asked_for(table) == []
    assert [move for move in table.stores.ledger.moves(table.table.row, stage=Stage.OTREE) if move["run_id"]] == []

    second = Backfill(dagster, table, rebuild=True)
    second.await_end("COMPLETED_SUCCESS")
    assert (asked_for(table), open_moves(table)) == ([], [])
    dagster.room.down()
    assert_tidy(table)


def assert_tidy(table: TableRig) -> None:
    """What attempts left in the lake goes with the next expire; every row is there once, and fsck finds no fault."""
    wait_until(lambda: in_force(table, Stage.EXPIRE)["claims"] == 0, "no run of expire goes on", deadline_s=RUN_S)
    claim = table.claim(Stage.EXPIRE)
    expire_once(table.stores, table.table.row, claim)
    table.stores.ledger.release(claim)
    assert table.stores.upkeep.dead_branches(table.table.row, view="batch") == []
    assert fsck(table.stores, [table.name]).broken == []
    table.assert_exact()
