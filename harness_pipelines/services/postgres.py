"""Embedded PostgreSQL from the binaries of the system."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from harness_pipelines.services.base import Place, Progress, ServicesError, ToolMissing
from harness_pipelines.services.process import Launch, ProcessId, child_environment, launch, run, works_in
from harness_pipelines.services.state import LOOPBACK, replace_file, secret
from harness_pipelines.services.values import ServiceName

USER = DATABASE = "harness"
WORKER_LOGIN, SPARK_LOGIN = "harness_app", "harness_spark_app"
DISTRIBUTION_FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin")  # Debian and Ubuntu; Fedora and its kin
UNPRIVILEGED_USERS = ("postgres", "nobody")
SETTINGS = """\
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = ''
password_encryption = 'scram-sha-256'
fsync = on
max_connections = 200
shared_buffers = '256MB'
max_wal_size = '4GB'
checkpoint_timeout = '15min'
wal_compression = on
jit = off
timezone = 'UTC'
log_timezone = 'UTC'
log_line_prefix = '%m [%p] %u@%d '
"""
#: Can be repeated. The roles are those of the ledger, whose migrations give them their rights.
LOGINS = """\
SET client_min_messages = warning;
SELECT 'CREATE DATABASE {database}' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = '{database}') \\gexec
SELECT format('CREATE ROLE %I NOLOGIN', name)
FROM unnest('{{harness_reader,harness_worker,harness_spark}}'::text[]) name
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \\gexec
SELECT format('CREATE ROLE %I', name) FROM unnest('{{{worker},{spark}}}'::text[]) name
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \\gexec
ALTER ROLE {worker} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD '{worker_password}';
ALTER ROLE {spark} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD '{spark_password}';
GRANT harness_worker TO {worker};
GRANT harness_spark TO {spark};
REVOKE ALL ON DATABASE {database} FROM PUBLIC;
GRANT CONNECT ON DATABASE {database} TO harness_reader, harness_worker, harness_spark;
"""


class Postgres:
    """One cluster with one database and its owner, both named ``harness``; loopback and password only.

    The owner is a superuser, and only makes the ledger. Workers and Spark have a login each, of one role alone.
    """

    name: ServiceName = "postgres"
    port_count = 1
    ready_timeout_s = 180.0
    stop_timeout_s = 30.0
    polite: ClassVar[signal.Signals] = signal.SIGINT  # "fast": ends the sessions, then writes a checkpoint

    def __init__(self, place: Place, binaries: Path | None = None) -> None:
        self._place = place
        self._binaries = binaries
        self._folder = place.home / "postgres"
        self._data = self._folder / "data"

    def check_programs(self) -> None:
        """The programs of the server, of the version of the data if there are some. Raises: ToolMissing."""
        self._tool("postgres")

    def prepare(self, ports: tuple[int, ...], progress: Progress) -> None:
        """Make the cluster once, then write its settings for this start."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _give(self._folder)
        if not self._data.exists():
            progress("postgres: creating the cluster")
            self._create_cluster()
        # No process of this home is alive, so a pid file is a leftover; Postgres would refuse to start
        # if another process had taken the pid in it.
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        replace_file(self._data / "harness.conf", SETTINGS.format(port=ports[0]), 0o600)
        _give(self._data / "harness.conf")

    def launch(self, ports: tuple[int, ...]) -> ProcessId:
        """Start the postmaster."""
        with _reachable(self._data) as (shown, descriptors):
            return launch(
                Launch(
                    command=[str(self._tool("postgres")), "-D", shown],
                    cwd=Path("/"),
                    env=child_environment(self._place.home, self.name, {"PGTZ": "UTC"}),
                    user=_runs_as(),
                    keep_fds=descriptors,
                ),
                self._place.log(self.name),
            )

    def is_ready(self, ports: tuple[int, ...]) -> bool:
        """Ask ``pg_isready``."""
        command = [str(self._tool("pg_isready")), "-q", "-h", LOOPBACK, "-p", str(ports[0]), "-t", "2"]
        return subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode == 0

    def finish(self, ports: tuple[int, ...]) -> None:
        """Make the database and the logins that are not there, and give them their passwords and roles."""
        self._psql(
            ports[0],
            LOGINS.format(
                database=DATABASE,
                worker=WORKER_LOGIN,
                worker_password=self._password(WORKER_LOGIN),
                spark=SPARK_LOGIN,
                spark_password=self._password(SPARK_LOGIN),
            ),
        )

    def is_outdated(self) -> bool:
        """Never: `finish` brings a running server up to date."""
        return False

    def address(self, ports: tuple[int, ...]) -> str:
        """Return the DSN of the workers' login, with its password."""
        return self.address_of(WORKER_LOGIN, ports)

    def address_of(self, login: str, ports: tuple[int, ...]) -> str:
        """Return the DSN of one login (`USER`, `WORKER_LOGIN` or `SPARK_LOGIN`), with its password."""
        return f"postgresql://{login}:{self._password(login)}@{LOOPBACK}:{ports[0]}/{DATABASE}"

    def owns(self, proc: Path) -> bool:
        """Every process of a cluster works in its data folder (and wipes its own environment)."""
        return works_in(proc, self._data)

    def clean(self) -> None:
        """Remove the pid file that a killed postmaster left."""
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def _password(self, login: str = USER) -> str:
        return secret(self._place.home / "secrets" / ("postgres" if login == USER else f"postgres-{login}"))

    def _tool(self, name: str) -> Path:
        version_file = self._data / "PG_VERSION"
        wanted = version_file.read_text().strip() if version_file.exists() else None
        return find_binaries(self._binaries, wanted) / name

    def _create_cluster(self) -> None:
        draft = self._folder / "data.new"  # takes its name only when it is whole
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        password = self._folder / "password.new"
        replace_file(password, self._password() + "\n", 0o600)
        for path in (draft, password):
            _give(path)
        initdb = str(self._tool("initdb"))
        settings = ("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-instructions")
        with _reachable(draft) as (shown, descriptors):
            made = run(
                Launch(
                    command=[initdb, "-D", shown, "-U", USER, f"--pwfile={shown}/../{password.name}", *settings],
                    cwd=Path("/"),
                    env=child_environment(self._place.home, self.name, {}),
                    user=_runs_as(),
                    keep_fds=descriptors,
                )
            )
        password.unlink()
        if made.returncode:
            raise ServicesError(
                f"initdb could not make a cluster in {self._data}: {made.stderr.strip()}\n"
                "nothing was started; mend what it names and call `harness services up` again"
            )
        with (draft / "postgresql.conf").open("a") as conf:
            conf.write("\ninclude = 'harness.conf'\n")
        draft.rename(self._data)

    def _psql(self, port: int, script: str) -> None:
        """Run *script*, which may hold passwords: it is no argument, which everybody could see."""
        server = ("-h", LOOPBACK, "-p", str(port), "-U", USER, "-d", "postgres")
        asked = run(
            Launch(
                command=[str(self._tool("psql")), "-X", "-w", "-q", *server, "-v", "ON_ERROR_STOP=1", "-f", "-"],
                cwd=Path("/"),
                env=child_environment(self._place.home, self.name, {"PGPASSWORD": self._password()}),
                text=script,
            )
        )
        if asked.returncode:
            raise ServicesError(
                f"the embedded PostgreSQL refused to set up its database: {asked.stderr.strip()}\n"
                f"see {self._place.log(self.name)}; `harness services down` stops what runs"
            )


def find_binaries(configured: Path | None, wanted: str | None) -> Path:
    """Return the folder of ``postgres``, ``initdb`` and ``psql`` of major version *wanted* (``None``: any).

    Looks into the configured folder, on the PATH, then into the distribution's folders, newest first.
    """
    candidates = [configured] if configured else []
    if not configured:
        on_path = shutil.which("postgres")
        candidates += [Path(on_path).resolve().parent] if on_path else []
        for pattern in DISTRIBUTION_FOLDERS:
            candidates += sorted(Path("/").glob(pattern[1:]), key=_by_version, reverse=True)
    for folder in candidates:
        complete = all((folder / tool).exists() for tool in ("postgres", "initdb", "psql", "pg_isready"))
        if complete and wanted in (None, _major(folder)):
            return folder
    looked = ", ".join(str(folder) for folder in candidates) or "the PATH and " + " ".join(DISTRIBUTION_FOLDERS)
    version = f" of version {wanted} (the data in the home is of that version)" if wanted else ""
    raise ToolMissing(
        f"no PostgreSQL server programs{version} found in {looked}; nothing was started. "
        "Install the package `postgresql` of your distribution, or set HARNESS_DSN to your own server"
    )


def _by_version(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(folder))]


def _major(folder: Path) -> str:
    shown = subprocess.run([str(folder / "postgres"), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+)", shown)
    return found[1] if found else ""


def _runs_as() -> pwd.struct_passwd | None:
    """Return whom to drop to: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in UNPRIVILEGED_USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ServicesError(
        f"PostgreSQL does not run as root and there is none of the users {', '.join(UNPRIVILEGED_USERS)} to drop to; "
        "nothing was started; run as another user, or set HARNESS_DSN to your own server"
    )


def _give(path: Path) -> None:
    if user := _runs_as():
        os.chown(path, user.pw_uid, user.pw_gid)


@contextlib.contextmanager
def _reachable(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield a name of *folder* that the unprivileged user can use, and the descriptors to hand down.

    A home below a folder that only root may enter (``/root`` itself) has no usable path for another user.
    An open folder handed down as a descriptor has: ``/proc/self/fd/N`` asks no permission of its parents.
    """
    if _runs_as() is None:
        yield str(folder), ()
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}", (descriptor,)
    finally:
        os.close(descriptor)
