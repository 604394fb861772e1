"""The state file of a home's services, replaced atomically, and its lock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import stat
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness_pipelines.services.base import ServicesBusy, ServicesError
from harness_pipelines.services.process import ProcessId, wait_until

FIRST_PORT, LAST_PORT = 20_000, 32_000  # below the kernel's range for outgoing connections (32768 and up)
LOOPBACK = "127.0.0.1"
FORMAT = 1  #: of a home; raised by a change that an older harness must not start or stop the services of
_LOCK = "services.lock"
_NO_FOLDER = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The saved state of a service; it outlives the process so that a restart finds the same port."""

    ports: tuple[int, ...]
    process: ProcessId | None  #: ``None`` once it was stopped on purpose


class StateFile:
    """``services.json`` of one home. Safe between threads; processes serialise with `exclusive`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._path = home / "services.json"
        self._mutex = threading.Lock()

    def read(self) -> dict[str, Record]:
        """Return the records by service name; empty for a home that never had any.

        Raises: ServicesError for a home that this harness must leave alone.
        """
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ServicesError(
                f"the home {self.home} cannot be read: {error}; nothing was started or stopped. Let HARNESS_HOME (or "
                "--home) name a folder that this user may read and write"
            ) from error
        try:
            found = json.loads(text)
            written = int(found.get("format", FORMAT))
            records = {} if written > FORMAT else {name: _record(one) for name, one in found["services"].items()}
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ServicesError(
                f"{self._path} is not the JSON that was written there ({type(error).__name__}: {error}); nothing was "
                "started or stopped. Remove the file: the next `harness services up` ends what runs and starts it "
                "with its data"
            ) from error
        if written > FORMAT:
            raise ServicesError(
                f"{self.home} was written by a newer harness (its format is {written}, this harness knows {FORMAT}); "
                "nothing was started or stopped. Install that version, or give this one another HARNESS_HOME"
            )
        return records

    def write(self, name: str, record: Record) -> None:
        """Replace the record of one service atomically."""
        with self._mutex:
            records = self.read() | {name: record}
            text = json.dumps(
                {
                    "format": FORMAT,
                    "services": {
                        key: {
                            "ports": list(one.ports),
                            "pid": one.process.pid if one.process else None,
                            "started": one.process.started if one.process else None,
                        }
                        for key, one in records.items()
                    },
                },
                indent=1,
            )
            replace_file(self._path, text)

    @contextlib.contextmanager
    def exclusive(self, *, timeout_s: float, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold the home's lock; a crash of the holder frees it. Raises: ServicesBusy."""
        try:
            make_home(self.home)
            lock = (self.home / _LOCK).open("a")
        except OSError as error:
            if error.errno not in _NO_FOLDER:
                raise
            raise ServicesError(
                f"the home {self.home} is no folder that can be made: {error}; nothing was started or stopped. Let "
                "HARNESS_HOME (or --home) name another one"
            ) from error
        with lock:
            if not _try_lock(lock.fileno()):
                waiting()
                if not wait_until(lambda: _try_lock(lock.fileno()), timeout_s=timeout_s):
                    raise ServicesBusy(
                        f"another call has been starting or stopping the services of {self.home} "
                        f"for {timeout_s:.0f} s; nothing was changed; try again when it has ended"
                    )
            yield


def _record(written: Mapping[str, Any]) -> Record:
    """Raises: LookupError, TypeError, ValueError for what was not written by `StateFile.write`."""
    process = ProcessId(pid=int(written["pid"]), started=str(written["started"])) if written["pid"] else None
    return Record(ports=tuple(map(int, written["ports"])), process=process)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_home(home: Path) -> None:
    """Have the folder *home*, which its user alone may enter.

    A folder that was there before with other things in it, such as a folder for all users, stays as it is: the
    services' own folders in it are private each.
    """
    if not home.exists() or (home / _LOCK).exists() or not any(home.iterdir()):
        make_private(home)


def make_private(folder: Path) -> None:
    """Have *folder*, which its user alone may enter, whatever the umask, and whoever could enter it before.

    So no other user can read its content, whatever the modes of the files.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if stat.S_IMODE(found.st_mode) & 0o077 and os.geteuid() in (0, found.st_uid):
        folder.chmod(0o700)


def replace_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Write *text* so that a reader sees the old or the new file, never half of one."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(path)
    except OSError:  # a full disk: what it had room for would stay
        draft.unlink(missing_ok=True)
        raise


def secret(path: Path) -> str:
    """Return the secret kept in *path* (0600), made on first use."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(path, secrets.token_urlsafe(24), 0o600)
        return path.read_text().strip()


def is_free(port: int) -> bool:
    """Tell whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def answers(port: int) -> bool:
    """Tell whether something accepts connections on this loopback port."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


def free_port(home: Path, name: str) -> int:
    """Choose one port as `free_ports` does: no connection of another program takes it before its server starts."""
    [port] = free_ports(1, home=home, name=name, taken=frozenset())
    return port


def free_ports(count: int, *, home: Path, name: str, taken: frozenset[int]) -> tuple[int, ...]:
    """Choose *count* free loopback ports. Each home and service begins its search elsewhere, to keep them apart."""
    span = LAST_PORT - FIRST_PORT
    begin = zlib.crc32(f"{home}/{name}".encode()) % span
    found: list[int] = []
    for step in range(span):
        port = FIRST_PORT + (begin + step) % span
        if port not in taken and is_free(port):
            found.append(port)
            if len(found) == count:
                return tuple(found)
    raise ServicesBusy(f"no free loopback port between {FIRST_PORT} and {LAST_PORT}; nothing was started")
