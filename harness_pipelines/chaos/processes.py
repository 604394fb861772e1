"""The processes of a chaos run: children that end with the run, and workers that are killed, stopped and replaced."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from harness_pipelines.spec.settings import Settings

END_S = 20.0
RESTART_S = 1.0  #: until a worker that asked to be tried again is started again
TRY_AGAIN = 75
LOG_LINES = 15
ABORT_S = 5.0
ABORT_LINES = 200  #: the stacks of all threads


class Child:
    """A Python module in a separate session, so that Ctrl-C reaches only the run; it ends when its stdin does."""

    def __init__(self, module: str, *arguments: str, env: Mapping[str, str], log: Path) -> None:
        self.name = log.stem
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def told(self) -> list[dict[str, Any]]:
        """Return the output since the last call."""
        found = []
        while not self._told.empty():
            found.append(self._told.get())
        return found

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    @property
    def is_stopped(self) -> bool:
        """Return whether a signal has stopped it and it was not continued yet."""
        return state_of(self._process.pid) == "T"

    def wake(self) -> None:
        """SIGCONT."""
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGCONT)

    def ask_to_end(self) -> None:
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()

    def end(self, *, patience_s: float = END_S) -> int:
        """Let it end, by force if need be; returns its exit code."""
        self.ask_to_end()
        self.wake()
        try:
            code = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._listener.join(END_S)
        return code

    def abandon(self) -> None:
        """SIGKILL, also when it is stopped; nothing is waited for."""
        self._process.kill()

    def last_words(self) -> str:
        return tail(self._log)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._told.put(orjson.loads(line))


class Worker:
    """`harness run`, or another command that stays, under a supervisor.

    It is started again after a kill, and when it ends by itself with "try again".
    """

    def __init__(self, arguments: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        self._command = [sys.executable, "-X", "faulthandler", "-m", "harness_pipelines.cli.main", *arguments]
        self._env, self._log = dict(env), log
        self._process: subprocess.Popen[bytes] | None = None
        self._start_at: float | None = time.monotonic()
        self._killed = False
        self._dies_at, self._is_armed = "", False
        self.stopped = False
        self.deaths = 0  #: at a crash point that `kill` armed
        self._rests = False
        self.starts = 0
        self.defects: list[str] = []  #: unexpected ends

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def broken_stages(self) -> list[str]:
        """The errors without a name that its stages met; each stage was held, and the worker continued."""
        return broken_stages(self._log)

    def supervise(self) -> None:
        """Note an end, and start it again when it is time."""
        if self._rests:
            return
        if self._process is not None and self._process.poll() is not None:
            code = self._process.returncode
            self._process, self.stopped = None, False
            if self._is_armed and not self._killed and code == -signal.SIGKILL:
                self._killed, self._start_at = True, time.monotonic() + RESTART_S
                self.deaths += 1
            if not self._killed and code != TRY_AGAIN:
                self.defects.append(f"{self._log.stem} ended by itself with code {code}:\n{tail(self._log)}")
            if not self._killed:
                self._start_at = time.monotonic() + RESTART_S
        if self._process is None and self._start_at is not None and time.monotonic() >= self._start_at:
            self._start()

    def kill(self, *, back_after_s: float, dies_at: str = "") -> bool:
        """SIGKILL; another one, which *dies_at* a crash point, is started after *back_after_s*.

        False when it does not run.
        """
        if self._rests or self._process is None or self._process.poll() is not None:
            return False
        self._killed, self._start_at = True, time.monotonic() + back_after_s
        self._dies_at = dies_at
        self._process.kill()
        return True

    def stop(self) -> bool:
        """SIGSTOP. False when it does not run or is stopped already."""
        if self._rests or self.stopped or not self._send(signal.SIGSTOP):
            return False
        self.stopped = True
        return True

    def wake(self) -> None:
        """SIGCONT, if it is stopped."""
        if self.stopped:
            self._send(signal.SIGCONT)
        self.stopped = False

    def rest(self) -> None:
        """As a person stops a worker: SIGTERM, then SIGKILL. It is started again by `resume`."""
        self._rests = self._killed = True
        self.wake()
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:  # what it waits for on Spark or Postgres may be away by another fault
            process.kill()
            process.wait()

    def resume(self) -> None:
        """Start it again after a rest."""
        self._start_at, self._rests = time.monotonic(), False

    def end(self) -> None:
        """SIGTERM, then SIGKILL; it is not started again."""
        self._start_at, self._rests = None, False
        self.wake()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # Python writes where all its threads are, and ends
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(ABORT_S)
            self._process.kill()
            self._process.wait()
            said = tail(self._log, lines=ABORT_LINES)
            self.defects.append(f"{self._log.stem} did not end within {END_S:g} s of SIGTERM:\n{said}")

    def abandon(self) -> None:
        """SIGKILL, also when it is stopped; nothing is waited for, and it is not started again."""
        self._start_at, self._rests = None, True
        if self._process is not None:
            self._process.kill()

    def _start(self) -> None:
        env = {**self._env, **({"HARNESS_FAULT": f"{self._dies_at}=kill"} if self._dies_at else {})}
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self._start_at, self._killed = None, False
        self._dies_at, self._is_armed = "", bool(self._dies_at)
        self.starts += 1

    def _send(self, number: signal.Signals) -> bool:
        if self._process is None or self._process.poll() is not None:
            return False
        os.kill(self._process.pid, number)
        return True


def environment(settings: Settings, **more: str) -> dict[str, str]:
    """The environment of a command that shall use *settings*."""
    named = {
        "HARNESS_HOME": str(settings.home),
        "HARNESS_DSN": settings.dsn or "",
        **settings.kafka_environment(),
        "HARNESS_SPARK": settings.spark or "",
        "HARNESS_WAREHOUSE": settings.warehouse or "",
        **settings.s3.environment(),
        "PYTHONUNBUFFERED": "1",
    }
    # A Connect session of this process marks its environment; a command decides for itself.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
    return {**inherited, **named, **more}


def state_of(pid: int) -> str:
    """The kernel's letter for what a process does; "T" is stopped."""
    return _stat(pid)[0]


def processes_with(variable: str) -> dict[int, str]:
    """The command lines of the processes that have *variable*, as ``NAME=value``, in their environment."""
    found = {}
    for one in Path("/proc").iterdir():
        with suppress(OSError):  # it ended, or is no process
            if variable.encode() in (one / "environ").read_bytes().split(b"\0"):
                found[int(one.name)] = (one / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def name_of(pid: int) -> str:
    """What ``ps -o comm`` shows of a process; "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal. False when the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def family_of(pid: int) -> list[int]:
    """A process and its children: each backend of the postmaster has a separate session."""
    others = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal()]
    return [pid, *(other for other in others if _stat(other)[1] == str(pid))]


def _stat(pid: int) -> tuple[str, str]:
    """State and parent."""
    try:
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):  # it may end while its file is read
        return "gone", ""
    return state, parent


def broken_stages(log: Path) -> list[str]:
    """The lines of a worker's *log* that tell of errors without a name."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [f"{log.stem}: {line}" for line in lines if " stage.broken " in line]


def tail(log: Path, *, lines: int = LOG_LINES) -> str:
    """The last *lines* of *log*."""
    last = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []
    return "\n".join(f"    {line}" for line in last)


def stop_with_parent() -> threading.Event:
    """Set when standard input ends: the parent closed it, or is gone. Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stopping = threading.Event()

    def wait() -> None:
        sys.stdin.buffer.read()
        stopping.set()

    threading.Thread(target=wait, daemon=True).start()
    return stopping


def tell(message: dict[str, Any]) -> None:
    """Send *message* to the parent."""
    sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
    sys.stdout.buffer.flush()
