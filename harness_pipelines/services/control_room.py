"""Dagster's web server and daemon over the tables of one installation, as children of this process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from harness_pipelines.drivers.postgres import explained
from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.extras import require
from harness_pipelines.services.state import free_port, make_home, make_private, secret
from harness_pipelines.spec.settings import Settings

DATABASE = "dagster"
READY_S = 300.0  #: as Spark has: on a busy machine its imports alone take a minute
STOP_S = 7.0  #: for all processes together: their supervisor waits 15 s


class DagsterFailed(HarnessError):
    """A process of Dagster ended by itself."""

    way_on = "the log that the message names says why"


class ControlRoom:
    """The web server, which answers at `url`, and the daemon. Each leads a separate process group."""

    def __init__(
        self, settings: Settings, *, port: int | None = None, database: str = DATABASE, more: Mapping[str, str] = {}
    ) -> None:
        """Over the tables of *settings*, with Dagster's own state in *database*; *more* is added to the environment."""
        self.port = port or free_port(settings.home, "dagster")
        self.url = f"http://127.0.0.1:{self.port}"
        self.home = settings.home / "dagster"
        self.logs = settings.home / "logs"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._settings, self._database, self._more = settings, database, more
        self.environment = self._prepare()

    def _prepare(self) -> dict[str, str]:
        """Create Dagster's home and its database; return the environment of its processes."""
        require("dagster", "Dagster's UI", "dagster_webserver")
        settings, source = self._settings, Path(__file__).resolve().parents[2]
        if not (source / "workspace.yaml").is_file():
            raise UsageError("Dagster needs a checkout: workspace.yaml and dagster.yaml are not part of the wheel")
        assert settings.dsn is not None
        make_home(settings.home)
        for folder in (self.home, self.logs):
            make_private(folder)
        for name in ("workspace.yaml", "dagster.yaml"):
            shutil.copyfile(source / name, self.home / name)
        return {
            **{name: value for name, value in os.environ.items() if name != "HARNESS_OWNER_DSN"},
            "DAGSTER_HOME": str(self.home),
            "DAGSTER_PG_URL": ensure_database(
                settings.owner_dsn or settings.dsn,
                self._database,
                password=secret(settings.home / "secrets" / f"postgres-{self._database}"),
            ),
            "HARNESS_HOME": str(settings.home),
            "HARNESS_DSN": settings.dsn,
            "HARNESS_SPARK_DSN": settings.spark_dsn or "",
            **settings.kafka_environment(),
            "HARNESS_SPARK": settings.spark or "",
            "HARNESS_WAREHOUSE": settings.warehouse or "",
            **settings.s3.environment(),
            **self._more,
        }

    def up(self) -> None:
        """Start what does not run, and return when the UI answers. Raises: DagsterFailed."""
        workspace = ["-w", f"{self.home}/workspace.yaml"]
        self.start("webserver", ["dagster-webserver", "-h", "127.0.0.1", "-p", str(self.port), *workspace])
        self.start("daemon", ["dagster-daemon", "run", *workspace])
        self._await_ui()

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process of Dagster's unless it runs; its output goes to the file ``dagster-<name>.log``."""
        running = self.processes.get(name)
        if running is None or running.poll() is not None:
            program = str(Path(sys.executable).with_name(command[0]))
            with (self.logs / f"dagster-{name}.log").open("ab") as log:
                running = self.processes[name] = subprocess.Popen(
                    [program, *command[1:]],
                    env=self.environment,
                    cwd=self.home,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        return running

    def check(self) -> None:
        """Raises: DagsterFailed for a process that has ended."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise DagsterFailed(f"dagster-{name} ended with code {process.returncode}; see {self.logs}")

    def down(self) -> None:
        """End the processes, and what they have started."""
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
        deadline = time.monotonic() + STOP_S
        for process in self.processes.values():
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _await_ui(self) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            self.check()
            try:
                with urlopen(f"{self.url}/server_info", timeout=2):
                    return
            except (URLError, OSError):
                time.sleep(0.3)
        raise DagsterFailed(f"Dagster's UI did not answer at {self.url} within {READY_S:g} s; see {self.logs}")


@contextmanager
def control_room(settings: Settings, *, port: int | None = None) -> Iterator[ControlRoom]:
    """One that is up, and is ended with the block."""
    room = ControlRoom(settings, port=port)
    try:
        room.up()
        yield room
    finally:
        room.down()


def ensure_database(dsn: str, name: str, *, password: str) -> str:
    """Make database and role *name*, with this *password*, if they are missing; returns the URL that Dagster takes.

    *dsn* is that of a login that may make them. No other role can connect to the database.
    """
    place = conninfo_to_dict(dsn)
    role, database = sql.Identifier(name), sql.Identifier(name)
    with explained(dsn), psycopg.connect(dsn, autocommit=True) as connection:
        verb = "ALTER" if _exists(connection, "SELECT FROM pg_roles WHERE rolname = %s", name) else "CREATE"
        connection.execute(sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(sql.SQL(verb), role, sql.Literal(password)))
        if not _exists(connection, "SELECT FROM pg_database WHERE datname = %s", name):
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(database, role))
        connection.execute(sql.SQL("REVOKE CONNECT ON DATABASE {} FROM PUBLIC").format(database))
    host, port = place.get("host") or "127.0.0.1", place.get("port") or 5432
    return f"postgresql://{name}:{password}@{quote(str(host))}:{port}/{name}"


def _exists(connection: psycopg.Connection, question: str, name: str) -> bool:
    return connection.execute(question, [name]).fetchone() is not None
