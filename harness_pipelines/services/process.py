"""Detached processes on Linux: start one, identify it later, and end it with its children."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

POLL_S = 0.02
MARKER = "HARNESS_SERVICE_OF"  #: environment variable of every service process; its value is home#service
# Settings of another Spark, Java or Postgres must not leak into ours, nor our secrets into a service.
_NOT_INHERITED = (
    "SPARK_",
    "PYSPARK_",
    "JAVA_TOOL_OPTIONS",
    "_JAVA_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "CLASSPATH",
    "PG",
    "HARNESS_",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process that is never taken for a later one with the same pid."""

    pid: int
    started: str  #: boot id and the kernel's start tick


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to start."""

    command: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    user: pwd.struct_passwd | None = None  #: drop to this user first
    keep_fds: tuple[int, ...] = ()
    text: str = field(default="", repr=False)  #: for the standard input of a short command


def identify(pid: int) -> ProcessId | None:
    """Return the identity of the live process *pid*; ``None`` if there is none or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    if state in "ZXx" and threads <= 1:  # with more, its threads are still ending and hold its ports
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ProcessId(pid=pid, started=f"{boot}/{fields[18]}")


def is_alive(process: ProcessId | None) -> bool:
    """Tell whether exactly this process still runs."""
    return process is not None and identify(process.pid) == process


def child_environment(home: Path, service: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a service process: the caller's, less what would change the service."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
    return inherited | {MARKER: f"{home}#{service}", "LC_ALL": "C.UTF-8", **extra}


def run(what: Launch) -> subprocess.CompletedProcess[str]:
    """Run a short command to its end, out of reach of Ctrl-C, and return its output."""
    return subprocess.run(
        what.command,
        cwd=what.cwd,
        env=dict(what.env),
        input=what.text,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        pass_fds=what.keep_fds,
        user=what.user.pw_uid if what.user else None,
        group=what.user.pw_gid if what.user else None,
        extra_groups=[] if what.user else None,
    )


def launch(what: Launch, log_path: Path) -> ProcessId:
    """Start a process in its own session, so that neither Ctrl-C nor the caller's end reaches it.

    A shell in between starts it and goes: the service belongs to init and never becomes the caller's zombie.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        started = subprocess.run(
            ["/bin/sh", "-c", '"$@" >&2 </dev/null & echo $!', "sh", *what.command],
            cwd=what.cwd,
            env=dict(what.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            check=True,
            pass_fds=what.keep_fds,
            user=what.user.pw_uid if what.user else None,
            group=what.user.pw_gid if what.user else None,
            extra_groups=[] if what.user else None,
        )
    pid = int(started.stdout)
    return identify(pid) or ProcessId(pid=pid, started="gone")


def wait_until(condition: Callable[[], bool], *, timeout_s: float) -> bool:
    """Poll *condition* until it holds; ``False`` when the time is up."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def end(process: ProcessId | None, *, polite: signal.Signals, timeout_s: float) -> None:
    """End *process*: the *polite* signal first, SIGKILL after *timeout_s*. Returns when it is gone."""
    if process is None:
        return
    for number, patience_s in ((polite, timeout_s), (signal.SIGKILL, 10.0)):
        if not is_alive(process):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)  # a stopped process takes no polite signal
            os.kill(process.pid, number)
        if wait_until(lambda: not is_alive(process), timeout_s=patience_s):
            return


def strays(belongs: Callable[[Path], bool]) -> Iterator[ProcessId]:
    """Yield every other live process whose folder in ``/proc`` satisfies *belongs*."""
    own = os.getpid()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == own:
            continue
        with contextlib.suppress(OSError):
            if belongs(folder) and (found := identify(int(folder.name))):
                yield found


def has_marker(proc: Path, home: Path, service: str) -> bool:
    """Tell whether a process was started as *service* of *home* (or by such a process)."""
    return f"{MARKER}={home}#{service}".encode() in (proc / "environ").read_bytes().split(b"\0")


def works_in(proc: Path, folder: Path) -> bool:
    """Tell whether a process has *folder* as its working folder."""
    return Path(os.readlink(proc / "cwd")) == folder


def tail(path: Path, lines: int = 15) -> str:
    """Return the last *lines* of a log, or nothing if there is none."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - 16_384))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
