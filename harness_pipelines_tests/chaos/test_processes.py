"""What a chaos run finds in the log of a worker that went on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from harness_pipelines.chaos.processes import Worker, broken_stages, environment, family_of, state_of
from harness_pipelines.show.logs import configure_logging
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.producer import wait_until


def test_a_stage_that_was_held_for_an_error_without_a_name_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    configure_logging()
    try:
        log = structlog.get_logger("worker")
        log.warning("stage.failed", table="chaos.records", error="Spark is away")
        try:
            raise IndexError("list index out of range")
        except IndexError as error:
            log.exception("stage.broken", table="chaos.records", stage="tier", error=str(error))
    finally:
        structlog.reset_defaults()
    written = tmp_path / "worker-0.log"
    written.write_text(capsys.readouterr().err)

    [found] = broken_stages(written)
    assert found.startswith("worker-0: ")
    assert "table=chaos.records stage=tier" in found
    assert broken_stages(tmp_path / "none.log") == []


def test_a_process_and_its_children_are_stopped_together_and_woken():
    command = [sys.executable, "-c", "import os, time; os.fork(); time.sleep(60)"]
    parent = subprocess.Popen(command, start_new_session=True)
    try:
        wait_until(lambda: len(family_of(parent.pid)) == 2, "it has a child")
        family = family_of(parent.pid)
        for one in family:
            os.kill(one, signal.SIGSTOP)
        wait_until(lambda: [state_of(one) for one in family] == ["T", "T"], "both are stopped")
        for one in family:
            os.kill(one, signal.SIGCONT)
        wait_until(lambda: "T" not in [state_of(one) for one in family], "both go on")
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
    assert state_of(parent.pid) == "gone"


#: It comes to a crash point at once, and then waits for its end.
PLAYS_A_WORKER = """
import os, signal
from harness_pipelines import faults
faults.arm_from(os.environ)
faults.point("tier.after_files")
signal.sigwait([signal.SIGTERM])
"""


def test_the_worker_after_one_that_was_killed_dies_at_the_point_that_was_armed_and_the_next_one_does_not(
    tmp_path: Path,
):
    worker = Worker([], env=environment(Settings(home=tmp_path)), log=tmp_path / "worker.log")
    worker._command = [sys.executable, "-c", PLAYS_A_WORKER]

    def lives(starts: int) -> bool:
        worker.supervise()
        return worker.starts == starts and worker.is_alive

    try:
        wait_until(lambda: lives(1), "the first one runs")
        assert worker.kill(back_after_s=0.1, dies_at="tier.after_files")
        wait_until(lambda: lives(3), "the one that died at the point is followed")
        assert (worker.deaths, worker.defects) == (1, [])
        assert worker.kill(back_after_s=0.1)
        wait_until(lambda: lives(4), "a plain kill is followed once")
        assert worker.deaths == 1
    finally:
        worker.end()
    assert worker.defects == []
