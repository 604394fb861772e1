"""The command line's frame: lazy commands, exit codes, JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import adbc_driver_manager
import click
import pytest
from click.testing import CliRunner

from harness_pipelines.cli import main
from harness_pipelines.cli.commands import COMMANDS
from harness_pipelines.errors import HarnessError, OutcomeUnknown, TryAgain, UsageError
from harness_pipelines.show.logs import plain_line
from harness_pipelines.show.output import emit, json_option, printable

SLOW_MODULES = {
    "confluent_kafka",
    "dagster",
    "pandas",
    "psycopg",
    "pyarrow",
    "pydantic",
    "pyiceberg",
    "pyspark",
    "rich",
}


def run_failing(error: BaseException):
    @click.group(cls=main.LazyGroup)
    def group() -> None:
        """Stands for `harness`."""

    @group.command()
    def fail() -> None:
        raise error

    return CliRunner().invoke(group, ["fail"])


def test_help_lists_every_command_and_imports_nothing_slow():
    code = (
        "import sys; sys.argv = ['harness', '--help']\n"
        "from harness_pipelines.cli.main import main\n"
        "try: main()\n"
        "finally: print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert all(f"  {name}" in shown.stdout for name in COMMANDS)
    imported = shown.stderr.splitlines()
    assert SLOW_MODULES.isdisjoint(imported)
    assert not [name for name in imported if name in {one.module for one in COMMANDS.values()}]
    lines = [line for line in shown.stdout.splitlines() if line.startswith("  ") and line.split()[0] in COMMANDS]
    assert len(lines) == len(COMMANDS)
    assert all(line.endswith(".") and len(line) <= 80 for line in lines)


def test_a_list_of_quarantined_records_loads_no_reader_of_the_lake(tmp_path):
    code = (
        "import sys; sys.argv = ['harness', 'quarantine', 'list', 'shop.orders']\n"
        "from harness_pipelines.cli.main import main\n"
        "try: main()\n"
        "finally: print('\\n'.join(sys.modules))"
    )
    nowhere = {"HARNESS_DSN": "postgresql://127.0.0.1:1/none", "HARNESS_HOME": str(tmp_path)}
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **nowhere}, check=False
    )

    assert shown.returncode == TryAgain.exit_code, shown.stderr  # it got as far as Postgres
    assert {"pandas", "pyiceberg"}.isdisjoint(shown.stdout.splitlines())


def test_every_command_can_be_loaded():
    with click.Context(main.cli) as context:
        assert all(main.cli.get_command(context, name) for name in main.cli.list_commands(context))


@pytest.mark.parametrize(
    ("kind", "code"), [(HarnessError, 1), (UsageError, 2), (TryAgain, 75), (OutcomeUnknown, 76)], ids=lambda x: str(x)
)
def test_an_error_of_ours_is_one_message_and_its_exit_code(kind, code):
    result = run_failing(kind("table shop.orders: nothing was written"))

    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr == "harness: table shop.orders: nothing was written\n"


def test_a_message_never_shows_a_password():
    assert "hunter2" not in run_failing(HarnessError("cannot reach postgresql://me:hunter2@db/x")).stderr


def test_ctrl_c_ends_with_130_and_one_clean_line():
    result = run_failing(KeyboardInterrupt())

    assert result.exit_code == 130
    assert result.stderr.strip() == "harness: interrupted"


@pytest.mark.parametrize(
    ("said", "code"),
    [("canceling statement due to user request", 130), ("canceling statement due to statement timeout", 75)],
)
def test_ctrl_c_in_a_statement_of_adbc_ends_with_130_and_a_timeout_does_not(said: str, code: int):
    """ADBC takes the signal for itself, cancels the statement, and raises the server's answer."""
    behind = adbc_driver_manager.OperationalError(
        said, status_code=adbc_driver_manager.AdbcStatusCode.CANCELLED, sqlstate="57014"
    )
    error = TryAgain("Postgres ended the statement")
    error.__cause__ = behind
    assert run_failing(error).exit_code == code


def test_wrong_usage_ends_with_2_and_names_what_was_meant():
    result = CliRunner().invoke(main.cli, ["servics"])

    assert result.exit_code == 2
    assert "services" in result.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell):
    result = CliRunner().invoke(main.cli, ["completion", shell], prog_name="harness")

    assert result.exit_code == 0
    assert "_HARNESS_COMPLETE" in result.stdout


@click.command()
@json_option
def a_command(json_target: str | None) -> None:
    emit(
        {"rows": 3, "at": datetime(2026, 1, 2, tzinfo=UTC), "sum": Decimal("1.10")},
        json_target,
        lambda: print("3 rows"),
    )


def test_without_json_people_get_their_form():
    assert CliRunner().invoke(a_command, []).stdout == "3 rows\n"


def test_json_prints_one_object_and_nothing_else():
    shown = CliRunner().invoke(a_command, ["--json"]).stdout

    assert json.loads(shown) == {"rows": 3, "at": "2026-01-02T00:00:00+00:00", "sum": "1.10"}


def test_json_with_a_file_writes_it_there_and_shows_the_form_for_people(tmp_path):
    result = CliRunner().invoke(a_command, ["--json", str(tmp_path / "new" / "out.json")])

    assert json.loads((tmp_path / "new" / "out.json").read_text())["rows"] == 3
    assert result.stdout == "3 rows\n"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out.json"]


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()

    result = CliRunner().invoke(a_command, ["--json", str(tmp_path / "file" / "out.json")])

    assert result.exit_code == 1
    assert "out.json" in result.stderr


@pytest.mark.parametrize("output", ["--version", "--help"])
def test_an_output_without_room_is_named_without_a_traceback(output):
    command = [sys.executable, "-m", "harness_pipelines.cli.main", output]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    [said] = done.stderr.splitlines()
    assert said == "harness: there is no room for what was to be written: [Errno 28] No space left on device"


@pytest.mark.parametrize(
    "words",
    [
        "read a.b --at {}", "read a.b --limit {}", "explain a.b --at {}", "quarantine show a.b 0 {}",
        "quarantine show a.b {} 0", "quarantine list a.b --partition 0 --offset {}", "quarantine list a.b --limit {}",
        "state show s --limit {}", "get a.b 1 --at {}",
    ],
)  # fmt: skip
def test_a_number_that_no_table_can_have_is_wrong_usage(words):
    done = CliRunner().invoke(main.cli, words.format(2**63).split())
    assert done.exit_code == 2, done.output
    assert str(2**63) in done.stderr


def test_what_a_producer_wrote_cannot_pass_for_our_own_words():
    assert printable("a\x1b[31m\n\u202eb\x9b\0é") == "a\\x1b[31m\\n\\u202eb\\x9b\\x00é"
    line = plain_line(None, "", {"event": "x", "detail": "bad\x1b]0;\u202e\nlevel=error", "name": "a\x9b"})
    assert line.isprintable()


def test_a_command_opens_the_harness_where_its_log_lines_go_to_standard_error():
    commands = [path for path in Path(main.__file__).parent.rglob("*.py") if path.name != "common.py"]
    assert [path.name for path in commands if "app.client import connect" in path.read_text()] == []
