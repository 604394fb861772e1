"""What a chaos run finds in the log of a worker that went on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from harness_pipelines.chaos.processes import broken_stages, family_of, state_of
from harness_pipelines.show.logs import configure_logging
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
