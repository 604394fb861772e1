"""Everything breaks on purpose for a minute; the long form is `harness chaos --for 30m --yes`."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner, Result

from harness_pipelines.chaos.result import Options
from harness_pipelines.chaos.run import run_chaos
from harness_pipelines.chaos.schedule import OF_DAGSTER, WORKERS, schedule
from harness_pipelines.cli.main import cli
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import ENDLESS_S

SEEDS = (2, 3, 5, 7, 11, 13, 17, 19)  #: between them they break everything
SECONDS = 60.0
RATE = 100.0
THAW_S = 180.0  #: other tests may run beside it


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.mark.long
@pytest.mark.timeout(1800)  # about three minutes where the machine has nothing else to do
def test_a_minute_of_chaos_loses_and_doubles_nothing_and_no_read_is_wrong():
    jars = os.environ.get("HARNESS_JARS")
    seed = random.choice(SEEDS)  # pytest-randomly prints its own
    threads = threads_but_renewals()

    options = Options(seed=seed, seconds=SECONDS, rate=RATE, thaw_s=THAW_S, jars=Path(jars) if jars else None)
    result = run_chaos(options, print)

    assert result.ok, "\n".join([f"seed {seed}, logs in {result.home}", *result.findings])
    assert (result.lost, result.doubled, result.wrong_reads) == (0, 0, 0)
    assert (result.unrepeatable, result.frozen) == (0, 0)
    assert len(result.outages) >= 6
    assert result.reads >= 20
    assert result.moves >= 3
    assert result.produced >= SECONDS * RATE / 2
    assert len(left := threads_but_renewals()) <= len(threads) + 4, f"what it started is gone, but for clients': {left}"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_chaos_run_that_is_ended_while_spark_and_workers_stand_leaves_no_process(tmp_path: Path):
    services = ("HARNESS_DSN", "HARNESS_KAFKA", "HARNESS_SPARK")
    env = {name: value for name, value in os.environ.items() if name not in services} | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "harness_pipelines.cli.main", "chaos", "--yes", "--for=600s"]
    with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as chaos:
        logs = partial(tmp_path.glob, "harness-chaos-*/logs/worker-*.log")
        wait_until(lambda: sum(1 for _ in logs()) == WORKERS, "the workers are started", deadline_s=600)
        ours = processes_of(tmp_path)
        for pid, words in ours.items():
            if "java" in words or " run " in words:
                os.kill(pid, signal.SIGSTOP)
        chaos.send_signal(signal.SIGTERM)
        chaos.wait(timeout=ENDLESS_S)
    assert ours
    assert chaos.returncode == 128 + signal.SIGTERM
    wait_until(lambda: not processes_of(tmp_path), "all of its processes are gone")


def threads_but_renewals() -> list[str]:
    """All threads but the one of a process that renews leases, which stays."""
    return [thread.name for thread in threading.enumerate() if thread.name != "lease-renewals"]


def processes_of(folder: Path) -> dict[int, str]:
    """The command lines of those that have *folder* in it, or in their environment."""
    found = {}
    for one in Path("/proc").iterdir():
        with suppress(OSError):  # it ended, or is no process
            words, around = (one / "cmdline").read_bytes(), (one / "environ").read_bytes()
            if str(folder).encode() in words + around:
                found[int(one.name)] = words.replace(b"\0", b" ").decode(errors="replace")
    return found


def run(*words: str, **env: str) -> Result:
    cleared: dict[str, str | None] = {name: None for name in os.environ if name.startswith("HARNESS_")}
    return CliRunner().invoke(cli, ["chaos", *words], env={**cleared, **env})


@pytest.mark.parametrize("name", ["HARNESS_DSN", "HARNESS_KAFKA", "HARNESS_SPARK"])
def test_chaos_refuses_to_break_services_that_are_not_its_own(name: str):
    result = run("--yes", **{name: "somebody's"})
    assert (result.exit_code, name in result.output) == (2, True)
    assert "nothing was started" in result.output


def test_chaos_is_asked_for_by_yes_and_shown_by_a_dry_run():
    assert run().exit_code == 2
    assert run("--yes", "--dry-run").exit_code == 2
    assert run("--yes", "--for", "5s").exit_code == 2
    shown = json.loads(run("--for", "60s", "--seed", "7", "--dry-run", "--json").output)
    assert (shown["seed"], shown["seconds"]) == (7, 60)
    assert shown["schedule"] == json.loads(json.dumps([fault.to_json() for fault in schedule(7, 60, switches=True)]))
    assert shown == json.loads(run("--for", "1m", "--seed", "7", "--dry-run", "--json").output)


def test_only_a_run_with_dagster_breaks_dagster():
    assert not {fault.kind for fault in schedule(7, 900)} & {*OF_DAGSTER}
    shown = json.loads(run("--for", "60s", "--seed", "7", "--dagster", "--dry-run", "--json").output)
    wanted = [fault.to_json() for fault in schedule(7, 60, dagster=True, switches=True)]
    assert shown["schedule"] == json.loads(json.dumps(wanted))


def test_alerts_are_refused_where_no_table_waits_for_spark(tmp_path: Path):
    result = run("--yes", "--engine", "arrow", "--alerts", str(tmp_path))
    assert (result.exit_code, "--engine" in result.output) == (2, True)
