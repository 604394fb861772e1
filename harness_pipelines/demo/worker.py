"""The demo's worker: `harness run` in a separate process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from harness_pipelines.errors import HarnessError
from harness_pipelines.spec.settings import Settings

END_TIMEOUT_S = 60.0
LOG_LINES = 5


class WorkerFailed(HarnessError):
    """The demo's worker ended by itself."""


class WorkerProcess:
    """Runs while the block lasts; ended with SIGTERM, so that its claims are given back."""

    def __init__(self, settings: Settings, table: str, *, log: Path, at_most_s: float) -> None:
        self._command = [
            sys.executable,
            "-m",
            "harness_pipelines.cli.main",
            f"--home={settings.home}",
            "run",
            table,
            f"--for={at_most_s:.0f}s",  # should this process be killed, the worker does not stay for ever
        ]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as out:
            # In its own session: Ctrl-C is for the demo, which then ends the worker.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        return self

    def check(self) -> None:
        """Raises: WorkerFailed if it no longer runs."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise WorkerFailed(f"the demo's worker ended with code {self._process.returncode}:\n{self._tail()}")

    def ask_to_end(self) -> None:
        """Let it give its claims back and end; this does not wait for it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it by force, for a demo that cannot wait."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> None:
        """Stop it. Raises: WorkerFailed when it does not end cleanly."""
        assert self._process is not None
        self.ask_to_end()
        try:
            code = self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise WorkerFailed(f"the demo's worker did not end within {END_TIMEOUT_S:g} s:\n{self._tail()}") from None
        if code:
            raise WorkerFailed(f"the demo's worker ended with code {code}:\n{self._tail()}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.ask_to_end()
            try:
                self._process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _tail(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-LOG_LINES:])
