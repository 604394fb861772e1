"""What people and the clock do to a real Dagster: code is loaded again, code servers end, summer time begins."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from dagster import DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.scheduler.instigation import TickStatus

from harness_pipelines.defs.schedules import AUDITS, FULL_AUDITS, PURGE
from harness_pipelines.defs.work import STAGE_TAG, TABLE_TAG
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.faults.dagster_rig import RUN_S, DagsterRig, dagster_over, descendants
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import TableRig

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]
#: A daemon whose clock is behind the machine's by the seconds in a file, and which looks at its schedules each second.
BY_ITS_CLOCK = """
import sys
from datetime import timedelta
from pathlib import Path

from dagster._daemon.cli import main  # before the next ones, which it imports in its order
import dagster._scheduler.scheduler as scheduler
import dagster._time as clock

behind = Path(sys.argv.pop(1))
moment, seconds = clock._mockable_get_current_datetime, clock._mockable_get_current_timestamp
clock._mockable_get_current_datetime = lambda: moment() - timedelta(seconds=float(behind.read_text()))
clock._mockable_get_current_timestamp = lambda: seconds() - float(behind.read_text())
scheduler._get_next_scheduler_iteration_time = lambda start: start + 1.0
main()
"""
AWHILE = timedelta(seconds=2)  #: before a moment at which a schedule is due


@pytest.fixture
def table(make_rig: MakeRig) -> TableRig:
    return make_rig(tier={"max_age": "5s"}, freshness={"lake": "10s"})


@pytest.fixture
def dagster(settings: Settings, table: TableRig, tmp_path: Path) -> Iterator[DagsterRig]:
    with dagster_over(replace(settings, home=tmp_path), tmp_path, [table.table.spec]) as made:
        yield made


def test_code_servers_that_are_told_to_end_leave_the_work_to_others(table: TableRig, dagster: DagsterRig):
    dagster.room.up()
    dagster.room.start("daemon2", ["dagster-daemon", "run", *dagster.workspace])
    for _ in range(2):
        table.produce(50)
        run = dagster.await_run(table, Stage.INGEST)
        dagster.reload()
        told = dagster.end_code_servers(signal.SIGTERM)
        table.produce(50)
        table.await_exact(deadline_s=RUN_S)
        wait_until(lambda: not alive(told), "the code servers have ended", deadline_s=RUN_S)  # noqa: B023
        wait_until(lambda: has_ended(dagster, run), "its run ended, or goes on", deadline_s=RUN_S)  # noqa: B023
    wait_until(lambda: _all_in_lake(table), "tier has moved what there was", deadline_s=2 * RUN_S)
    dagster.await_truth()
    table.assert_exact()


def alive(pids: list[int]) -> list[int]:
    """Which of *pids*, of processes below this one, are there still."""
    return sorted({*descendants(os.getpid())} & {*pids})


def has_ended(dagster: DagsterRig, run: DagsterRun) -> bool:
    """The run has ended, by itself or since its process was told to; no other run of its stage says that it works."""
    found = dagster.instance.get_run_by_id(run.run_id)
    assert found is not None
    return found.is_finished


def _all_in_lake(table: TableRig) -> bool:
    return all(stream_hi == buffer_hi for stream_hi, buffer_hi in table.status().values())


class Clock:
    """The time of a daemon, which goes on by itself and can be moved ahead."""

    def __init__(self, file: Path, start: datetime) -> None:
        self.file = file
        self.move(start)

    def move(self, to: datetime) -> None:
        draft = self.file.with_suffix(".new")
        draft.write_text(str((datetime.now(UTC) - to).total_seconds()))
        draft.rename(self.file)


def ticked(dagster: DagsterRig, name: str) -> list[datetime]:
    """For when the ticks of the schedule *name* that started runs were due."""
    return sorted(datetime.fromtimestamp(tick.timestamp, UTC) for tick in dagster.ticks(name, TickStatus.SUCCESS))


@pytest.mark.parametrize(
    "sunday", [datetime(2026, 3, 29, tzinfo=UTC), datetime(2025, 10, 26, tzinfo=UTC)], ids=["spring", "autumn"]
)
def test_a_schedule_runs_once_for_each_time_over_the_change_to_summer_time_and_back(
    settings: Settings, table: TableRig, tmp_path: Path, sunday: datetime, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TZ", "Europe/Berlin")  # of the daemon and of what it starts; the clock changes at 1:00 UTC
    monkeypatch.setenv("DAGSTER_DAEMON_HEARTBEAT_TOLERANCE", str(10**9))  # a clock that is moved is no dead thread
    table.produce(20)
    table.ingest()
    saturday = sunday - timedelta(days=1) + timedelta(hours=3)
    purges = [sunday + timedelta(hours=hour, minutes=30) for hour in range(4)]
    full = sunday + timedelta(hours=3)
    clock = Clock(tmp_path / "behind", saturday - timedelta(minutes=10))
    with dagster_over(replace(settings, home=tmp_path / "home"), tmp_path, [table.table.spec]) as dagster:
        dagster.room.start("daemon", ["python", "-c", BY_ITS_CLOCK, str(clock.file), "run", *dagster.workspace])
        names = {AUDITS, FULL_AUDITS, PURGE}
        wait_until(lambda: names <= known(dagster), f"it has them: {dagster.log('daemon')}", deadline_s=RUN_S)
        times = [(AUDITS, saturday), *((PURGE, at) for at in purges[:3]), (FULL_AUDITS, full), (PURGE, purges[3])]
        for name, due in times:
            clock.move(due - AWHILE)
            await_tick(dagster, name, due)
            if name != PURGE:
                assert audited(dagster, table, name) == 1

        assert (ticked(dagster, AUDITS), ticked(dagster, FULL_AUDITS)) == ([saturday], [full])
        assert [at for at in ticked(dagster, PURGE) if at >= sunday] == purges


def known(dagster: DagsterRig) -> set[str]:
    """The schedules and sensors that the daemon has begun with."""
    return {state.instigator_name for state in dagster.instance.all_instigator_state()}


def await_tick(dagster: DagsterRig, name: str, due: datetime) -> None:
    """Wait for the tick and until all that schedules had started has ended: to a purge each run is months old."""
    wait_until(
        lambda: due in ticked(dagster, name), f"{name} ticked for {due}: {dagster.log('daemon')}", deadline_s=RUN_S
    )

    def is_quiet() -> bool:
        found = [
            run for job in (AUDITS, FULL_AUDITS, PURGE) for run in dagster.instance.get_runs(RunsFilter(job_name=job))
        ]
        failed = [run for run in found if run.status is DagsterRunStatus.FAILURE]
        assert not failed, [entry.user_message for entry in dagster.instance.all_logs(failed[0].run_id)]
        return all(run.is_finished for run in found)

    wait_until(is_quiet, f"what {name} started has ended: {dagster.log('daemon')}", deadline_s=2 * RUN_S)


def audited(dagster: DagsterRig, table: TableRig, job: str) -> int:
    """How many runs of the job *job* have audited the table, and found nothing."""
    tags = {TABLE_TAG: table.name, STAGE_TAG: "audit"}
    found = dagster.instance.get_runs(RunsFilter(job_name=job, tags=tags))
    assert all(run.status is DagsterRunStatus.SUCCESS for run in found), found
    return len(found)
