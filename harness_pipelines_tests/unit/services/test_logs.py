"""Logs are rotated: what writes to one goes on, and no more than a few older ones are kept."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import structlog

from harness_pipelines.errors import UsageError
from harness_pipelines.services import logs
from harness_pipelines.services.logs import rotate, rotating
from harness_pipelines.show.logs import configure_logging
from harness_pipelines_tests.producer import wait_until


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_a_large_log_begins_again_under_whoever_writes_to_it_and_the_oldest_goes(tmp_path: Path):
    with (tmp_path / "kafka.log").open("ab", buffering=0) as written, (tmp_path / "small.log").open("ab") as small:
        small.write(b"x" * 90)
        for number in range(7):
            written.write(b"%d" % number * 101)
            rotate(tmp_path, bytes_max=100, kept=4)
            assert (tmp_path / "kafka.log").stat().st_size == 0
        written.write(b"next")
    assert (tmp_path / "kafka.log").read_bytes() == b"next"
    assert names(tmp_path) == ["kafka.log", *(f"kafka.log.{n}" for n in (1, 2, 3, 4)), "small.log"]
    assert [(tmp_path / f"kafka.log.{n}").read_bytes()[:1] for n in (1, 2, 3, 4)] == [b"6", b"5", b"4", b"3"]


def test_a_log_that_is_not_large_stays(tmp_path: Path):
    (tmp_path / "spark.log").write_bytes(b"x" * 100)
    rotate(tmp_path, bytes_max=100)
    assert names(tmp_path) == ["spark.log"]


def test_logs_are_looked_at_while_a_command_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logs, "LOG_BYTES_MAX", 10)
    monkeypatch.setattr(logs.rotate, "__kwdefaults__", {"bytes_max": 10, "kept": 4})
    with rotating(tmp_path, every_s=0.01):
        (tmp_path / "postgres.log").write_bytes(b"x" * 11)
        wait_until(lambda: (tmp_path / "postgres.log.1").exists(), "it is rotated")
    with rotating(tmp_path / "none"):
        assert not (tmp_path / "none").exists()


def test_a_worker_s_log_file_is_rotated_and_has_no_line_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logs, "LOG_BYTES_MAX", 1_000)
    file = tmp_path / "logs" / "worker.log"
    configure_logging(logging.INFO, file)
    for number in range(200):
        structlog.get_logger("x").info("tier.published", number=number)
    assert names(file.parent) == ["worker.log", *(f"worker.log.{n}" for n in (1, 2, 3, 4))]
    kept = [path.read_text() for path in sorted(file.parent.iterdir(), reverse=True) if path != file]
    lines = "".join([*kept, file.read_text()]).splitlines()
    numbers = [int(line.rpartition("=")[2]) for line in lines]
    assert numbers == list(range(numbers[0], 200))
    assert all(path.stat().st_size < 1_200 for path in file.parent.iterdir())


def test_a_log_file_that_cannot_be_written_is_wrong_usage(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="the log cannot be written to"):
        configure_logging(logging.INFO, tmp_path / "file" / "worker.log")
