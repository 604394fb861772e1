"""`harness dev`: Dagster's UI and daemon over the embedded services, until Ctrl-C."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import click

from harness_pipelines.cli.common import page_port_option
from harness_pipelines.cli.output import note
from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.spec.settings import Settings

DATABASE = "dagster"
READY_S = 120.0
STOP_S = 20.0


class DagsterFailed(HarnessError):
    """A process of Dagster ended by itself."""


@click.command(epilog="Example: harness dev --port 3000")
@click.option("--port", type=click.IntRange(1024, 65535), help="Port of the UI on 127.0.0.1.  [default: a free one]")
@page_port_option
@click.option("--for", "for_s", type=float, hidden=True, help="End after so many seconds (tests).")
@click.pass_obj
def dev(settings: Settings, port: int | None, page_port: int | None, for_s: float | None) -> None:
    """Open Dagster's UI on the tables of this installation, and the status page beside it.

    Starts the embedded services if they do not run, keeps Dagster's own state in a database of its own, and ends both
    processes of Dagster on Ctrl-C. The services go on: `harness services down` stops them.
    """
    from harness_pipelines.cli.page import serving
    from harness_pipelines.client import connect
    from harness_pipelines.services import Services

    # Ended from outside it leaves as little behind as on Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    services = Services.from_settings(settings)
    filled = services.up(progress=note).fill(settings)
    _make_tables_known(filled)
    environment = _environment(filled)
    chosen = port or _free_port()
    with (
        connect(filled) as harness,
        serving(harness, page_port) as page,
        _processes(environment, chosen, settings.home / "logs") as running,
    ):
        _await_ui(chosen, running)
        note(f"Dagster UI: http://127.0.0.1:{chosen}  (Ctrl-C ends it)\nstatus page: {page}")
        deadline = None if for_s is None else time.monotonic() + for_s
        while deadline is None or time.monotonic() < deadline:
            for name, process in running.items():
                if process.poll() is not None:
                    raise DagsterFailed(
                        f"dagster-{name} ended with code {process.returncode}; see {settings.home}/logs"
                    )
            time.sleep(0.5)


def _make_tables_known(settings: Settings) -> None:
    """The ledger must be there, and with it at least the demo's table, so that there is something to see."""
    from harness_pipelines.cli.demo.lineitem import Lineitem
    from harness_pipelines.cli.demo.scenario import PARTITIONS
    from harness_pipelines.client import connect
    from harness_pipelines.stores.kafka_producer import recreate_topic

    with connect(settings) as harness:
        harness.init()
        if not harness.tables():
            spec = Lineitem().spec
            recreate_topic(settings, spec.topic, partitions=PARTITIONS)
            harness.apply(spec)


def _environment(settings: Settings) -> dict[str, str]:
    """What Dagster's processes need: its home, its database, and the harness's addresses."""
    source = Path(__file__).resolve().parents[2]
    if not (source / "workspace.yaml").is_file():
        raise UsageError("`harness dev` needs a checkout: workspace.yaml and dagster.yaml are not part of the wheel")
    home = settings.home / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("workspace.yaml", "dagster.yaml"):
        shutil.copyfile(source / name, home / name)
    return {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "DAGSTER_PG_URL": _dagster_database(settings),
        "HARNESS_HOME": str(settings.home),
        "HARNESS_DSN": settings.dsn or "",
        "HARNESS_KAFKA": settings.kafka or "",
        "HARNESS_SPARK": settings.spark or "",
        "HARNESS_WAREHOUSE": settings.warehouse or "",
    }


def _dagster_database(settings: Settings) -> str:
    """Make Dagster's database on the ledger's server if it is missing; returns its URL."""
    from harness_pipelines.stores.dagster_database import ensure_database

    assert settings.dsn is not None
    return ensure_database(settings.dsn, DATABASE)


@contextmanager
def _processes(environment: dict[str, str], port: int, logs: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """The web server and the daemon, each in a group of its own, both ended at the end."""
    home = environment["DAGSTER_HOME"]
    workspace = ["-w", f"{home}/workspace.yaml"]
    commands = {
        "webserver": ["dagster-webserver", "-h", "127.0.0.1", "-p", str(port), *workspace],
        "daemon": ["dagster-daemon", "run", *workspace],
    }
    logs.mkdir(parents=True, exist_ok=True)
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in commands.items():
            program = str(Path(sys.executable).with_name(command[0]))
            with (logs / f"dagster-{name}.log").open("ab") as log:
                running[name] = subprocess.Popen(
                    [program, *command[1:]], env=environment, cwd=home, stdout=log, stderr=log, start_new_session=True
                )
        yield running
    finally:
        _end(running)


def _end(running: dict[str, subprocess.Popen[bytes]]) -> None:
    for process in running.values():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
    for process in running.values():
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await_ui(port: int, running: dict[str, subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if (ended := running["webserver"].poll()) is not None:
            raise DagsterFailed(f"dagster-webserver ended with code {ended} before it answered")
        try:
            with urlopen(f"http://127.0.0.1:{port}/server_info", timeout=2):
                return
        except (URLError, OSError):
            time.sleep(0.3)
    raise DagsterFailed(f"Dagster's UI did not answer on port {port} within {READY_S:g} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
