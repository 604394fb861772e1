"""What `harness chaos` prints, without a storm."""

from __future__ import annotations

import json
from typing import Any

import pytest
import structlog
from click.testing import CliRunner

from harness_pipelines.chaos import run
from harness_pipelines.chaos.result import Options, Result
from harness_pipelines.cli import main


@pytest.fixture(autouse=True)
def _fresh_logging() -> Any:
    before = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**before)


def test_a_warning_in_the_middle_is_no_part_of_the_json(monkeypatch: pytest.MonkeyPatch):
    def calm(options: Options, *_: Any, **__: Any) -> Result:
        structlog.get_logger().warning("kafka.silent", topic="t")
        return Result(options=options, planned=())

    monkeypatch.setattr(run, "run_chaos", calm)
    for name in ("HARNESS_DSN", "HARNESS_KAFKA", "HARNESS_SPARK"):
        monkeypatch.delenv(name, raising=False)

    ended = CliRunner().invoke(main.cli, ["chaos", "--yes", "--seed", "7", "--json"])

    assert json.loads(ended.stdout)["seed"] == 7, ended.output
    assert "kafka.silent" in ended.stderr
