"""What a chaos run finds in the log of a worker that went on."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from harness_pipelines.cli.logs import configure_logging
from harness_pipelines_tests.chaos.processes import broken_stages


def test_a_stage_that_was_held_for_an_error_without_a_name_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    configure_logging()
    try:
        log = structlog.get_logger("worker")
        log.warning("stage.trouble", table="chaos.records", error="Spark is away")
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
