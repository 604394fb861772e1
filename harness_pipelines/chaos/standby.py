"""A Postgres primary with an asynchronous stand-by that is cut off, promoted, or left behind."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from harness_pipelines.drivers.postgres import Connection
from harness_pipelines.services.base import Place, ServicesError
from harness_pipelines.services.postgres import USER, WORKER_LOGIN, Postgres, find_binaries
from harness_pipelines.services.process import ProcessId, identify, wait_until
from harness_pipelines.services.state import free_port

SERVER_S = 90.0


class Server:
    """One Postgres server; its folder outlives it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "logs").mkdir(parents=True, exist_ok=True)
        self._service = Postgres(Place(home=home, jars=None))
        self.port = free_port(home, "standby")
        self._process: ProcessId | None = None

    @property
    def data(self) -> Path:
        return self.home / "postgres" / "data"

    @property
    def dsn(self) -> str:
        return self._service.address_of(USER, (self.port,))

    @property
    def worker_dsn(self) -> str:
        """With a worker's login, which may not create the ledger."""
        return self._service.address_of(WORKER_LOGIN, (self.port,))

    def start(self, *, fresh: bool = False) -> None:
        """Start it, with a new cluster and database if it is *fresh*, and wait until it answers."""
        self._service.prepare((self.port,), lambda _: None)
        self._process = self._service.launch((self.port,))
        await_server(lambda: self._service.is_ready((self.port,)), "the server answers")
        if fresh:
            self._service.finish((self.port,))

    def end(self, number: signal.Signals = signal.SIGQUIT) -> None:
        """End it, by default at once, as a machine does that fails."""
        process, self._process = self._process, None
        if process is not None and identify(process.pid) == process:
            os.kill(process.pid, number)
            await_server(lambda: identify(process.pid) != process, "the server ended")

    def processes(self) -> list[int]:
        """The server's process, and those that serve its sessions."""
        assert self._process is not None
        first = self._process.pid
        return [first, *map(int, Path(f"/proc/{first}/task/{first}/children").read_text().split())]

    def configure(self, **settings: str) -> None:
        """Settings for the next start, or for the next reload."""
        for name, value in settings.items():
            self.run(f"ALTER SYSTEM SET {name} = '{value}'")

    def run(self, text: str) -> list[tuple[object, ...]]:
        with Connection.of(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            return [tuple(row.values()) for row in cursor.fetchall()] if cursor.description else []

    def copy_to(self, home: Path, *, standby: bool) -> Server:
        """A base backup taken now, as a second server that is not started; a *standby* follows this one."""
        made = Server(home)
        made.data.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.home / "secrets", home / "secrets")
        tool = find_binaries(None, None) / "pg_basebackup"
        command = [str(tool), "-d", self.dsn, "-D", str(made.data), "-X", "stream", "-c", "fast", *(["-R"] * standby)]
        subprocess.run(command, check=True, timeout=SERVER_S, capture_output=True)
        give(made.data.parent)
        return made

    # -- a stand-by ---------------------------------------------------------------------------------------------

    def await_caught_up(self, primary: Server) -> None:
        """Wait until this stand-by has replayed all that *primary* has written by now."""
        [(wanted,)] = primary.run("SELECT pg_current_wal_flush_lsn()::text")

        def is_there() -> bool:
            return bool(self.run(f"SELECT coalesce(pg_last_wal_replay_lsn() >= '{wanted}', false)")[0][0])

        await_server(is_there, "the stand-by has caught up")

    def cut_off(self) -> None:
        """Nothing that the primary commits from now on reaches this stand-by."""
        self.configure(primary_conninfo="")
        self.run("SELECT pg_reload_conf()")
        await_server(lambda: not self.run("SELECT FROM pg_stat_wal_receiver"), "the stand-by is cut off")

    def promote(self) -> None:
        assert self.run("SELECT pg_promote(true, 60)") == [(True,)]


def await_server(condition: Callable[[], bool], what: str) -> None:
    """Wait until *condition* holds. Raises: ServicesError that says *what* did not come."""
    if not wait_until(condition, timeout_s=SERVER_S):
        raise ServicesError(f"after {SERVER_S:g} s still not: {what}")


def give(folder: Path) -> None:
    """Let the user that the servers run as have *folder*."""
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


__all__ = ["USER", "Server", "give"]
