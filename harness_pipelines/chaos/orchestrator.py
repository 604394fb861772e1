"""Dagster over one table of a chaos run: a daemon that is started again, its code servers, and the runs it starts."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from harness_pipelines.chaos.processes import RESTART_S, name_of, processes_with, send
from harness_pipelines.services.control_room import ControlRoom
from harness_pipelines.spec.settings import Settings

LOOK_S = 0.1
CODE_SERVER = "api grpc"  #: in the command of a code server
_RUN = "spawn_main"  #: in the command of a run that a code server started in a new Python
TEMPLATE_NAME, RUN_NAME = "harness-forks", "harness-run"  #: what code servers fork runs from, and runs (defs/warm.py)


class Orchestrator:
    """A daemon under a supervisor. Processes are found by their environment, those without a parent too."""

    def __init__(self, settings: Settings, *, through: Mapping[str, str]) -> None:
        """*through*: variables of its processes that lead through the proxies; its own database is reached directly."""
        self._room = ControlRoom(settings, more=through)
        self._start_at: float | None = time.monotonic()  #: not before; None: it rests

    def supervise(self) -> None:
        """Start the daemon when it is time, and again after it has ended."""
        now = time.monotonic()
        if self._start_at is not None and now >= self._start_at:
            self._start_at = now + RESTART_S
            self._room.start("daemon", ["dagster-daemon", "run", "-w", f"{self._room.home}/workspace.yaml"])

    def kill_daemon(self, *, back_after_s: float) -> bool:
        """SIGKILL; runs continue, and another daemon is started after *back_after_s*. False when none runs."""
        daemon = self._room.processes.get("daemon")
        if self._start_at is None or daemon is None or daemon.poll() is not None:
            return False
        self._start_at = time.monotonic() + back_after_s
        daemon.kill()
        return True

    def kill_code_servers(self) -> bool:
        """SIGKILL of what runs sensors and starts runs. False when there is none."""
        return any([send(pid, signal.SIGKILL) for pid in self._processes(CODE_SERVER) if is_code_server(pid)])

    def send_to_a_run(self, number: signal.Signals, *, which: float) -> int | None:
        """*number* to the run at *which* (0 to 1) among those at work; returns its pid. None when there is none."""
        runs = [*self._processes(_RUN), *(pid for pid in self._processes("") if name_of(pid) == RUN_NAME)]
        chosen = runs[int(which * len(runs))] if runs else None
        return chosen if chosen is not None and send(chosen, number) else None

    def rest(self) -> None:
        """SIGKILL for all of it, and wait until it is gone. `resume` starts it again."""
        self._start_at = None
        while self._send_to_all(signal.SIGKILL):  # one that is about to end may start another one
            time.sleep(LOOK_S)
        for process in self._room.processes.values():
            process.wait()

    def resume(self) -> None:
        """Start it again after a rest."""
        self._start_at = time.monotonic()

    def end(self) -> None:
        """End the daemon, with time for its runs; what is left then is killed."""
        self._start_at = None
        self._send_to_all(signal.SIGCONT)
        self._room.down()
        self.rest()

    def abandon(self) -> None:
        """SIGKILL for all of it; nothing is waited for."""
        self._start_at = None
        self._send_to_all(signal.SIGKILL)

    def _send_to_all(self, number: signal.Signals) -> bool:
        """False when there is none."""
        return any([send(pid, number) for pid in self._processes("")])

    def _processes(self, word: str) -> list[int]:
        """Those of this Dagster with *word* in their command, but for this process."""
        found = processes_with(f"DAGSTER_HOME={self._room.home}")
        return [pid for pid, command in sorted(found.items()) if word in command and pid != os.getpid()]


def is_code_server(pid: int) -> bool:
    """Of a process with `CODE_SERVER` in its command: return whether it is neither a run nor their template."""
    return name_of(pid) not in {TEMPLATE_NAME, RUN_NAME}
