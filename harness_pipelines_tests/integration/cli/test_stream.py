"""`harness stream` on a real table."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from harness_pipelines_tests.integration.cli.conftest import GOOD, Cli
from harness_pipelines_tests.producer import DEADLINE_S


def ids(text: str) -> list[int]:
    return sorted(json.loads(line)["id"] for line in text.splitlines())


def test_it_prints_one_object_per_line_with_the_coordinates(harness: Cli, kept_table: str):
    result = harness("stream", kept_table, "--no-follow", "--columns", "id")

    assert ids(result.stdout) == list(range(GOOD))
    assert set(json.loads(result.stdout.splitlines()[0])) >= {"id", "_kafka_partition", "_kafka_offset", "_op"}
    assert f"{GOOD} records" in result.stderr


def test_it_goes_on_behind_what_it_noted_and_prints_nothing_twice(harness: Cli, kept_table: str, tmp_path: Path):
    position = tmp_path / "position"
    words = ("stream", kept_table, "--no-follow", "--resume", str(position))
    first = harness(*words, "--limit", "7").stdout
    assert len(first.splitlines()) == 7
    assert ids(first + harness(*words).stdout) == list(range(GOOD))
    assert harness(*words).stdout == ""


def test_csv_has_its_header_once(harness: Cli, kept_table: str, tmp_path: Path):
    position = tmp_path / "position"
    words = (
        "stream",
        kept_table,
        "--no-follow",
        "--format",
        "csv",
        "--columns",
        "id,amount",
        "--resume",
        str(position),
    )
    lines = harness(*words, "--limit", "3").stdout.splitlines() + harness(*words).stdout.splitlines()
    assert lines[0].startswith('"id","amount","_kafka_partition"')
    assert sum(line.startswith('"id"') for line in lines) == 1
    assert len(lines) == GOOD + 1


def test_wrong_words_end_with_2_and_say_why(harness: Cli, kept_table: str, tmp_path: Path):
    position = tmp_path / "position"
    position.write_text("not a token\n")
    assert "partition 9" in harness("stream", kept_table, "--partitions", "0,9", code=2).stderr
    assert "--partitions needs numbers" in harness("stream", kept_table, "--partitions", "a", code=2).stderr
    said = harness("stream", kept_table, "--from", "latest", "--resume", str(position), code=2).stderr
    assert "--from and --resume cannot be combined" in said
    assert "is not a token" in harness("stream", kept_table, "--resume", str(position), code=2).stderr
    assert "has no key" in harness("stream", kept_table, "--state-first", code=2).stderr


def test_it_waits_for_more_until_it_is_interrupted_and_a_reader_may_leave(harness: Cli, table: str):
    with harness.start("stream", table) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(GOOD)]
        assert ids("".join(seen)) == list(range(GOOD))
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130

    command = f"{sys.executable} -m harness_pipelines.cli.main --home={harness.home} stream {table} | head -n 2"
    piped = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    assert len(piped.stdout.splitlines()) == 2
    assert "Traceback" not in piped.stderr


def test_changes_go_on_with_each_version_that_comes(harness: Cli, table: str):
    assert "omit --to" in harness("changes", table, "--from", "1", "--to", "1", "--follow", code=2).stderr
    with harness.start("changes", table, "--from", "1", "--columns", "id", "--follow") as process:
        harness("run", table, "--stage", "tier", "--until-idle")
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(GOOD)]
        assert sorted(line["id"] for line in lines) == list(range(GOOD))
        assert {line["_version"] for line in lines} == {2}
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
    some = harness("changes", table, "--from", "1", "--columns", "id", "--limit", "7", "--json")
    assert len(json.loads(some.stdout)["changes"]) == 7
    assert f"the first 7 of {GOOD} changes" in harness("changes", table, "--from", "1", "--limit", "7").stderr
