"""The worker of a bench: `harness run` as a process of its own, as users run it."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from types import TracebackType
from typing import Self

import harness_pipelines as hp
from harness_pipelines.ledgers.postgres.views.status import Overview
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import environment

START_S, END_S = 60.0, 60.0
START_OF_TABLE_S = 0.5


class WorkerProcess:
    """Runs all stages of *tables* while the block lasts; ended with SIGTERM, so that its claims are given back."""

    def __init__(self, *tables: hp.Table, at_most_s: float) -> None:
        self._tables = tables
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed in __exit__
        self._at_most_s = at_most_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        settings = self._tables[0].harness.settings
        more = {"HARNESS_JARS": str(settings.jars)} if settings.jars else {}
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "harness_pipelines.cli.main",
                "run",
                *(table.name for table in self._tables),
                f"--for={self._at_most_s:.0f}s",
            ],
            env=environment(settings, **more),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self._await_claims()
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def check(self) -> None:
        """Raises: AssertionError with its last lines when it is not running any more."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the worker ended with code {self._process.returncode}:\n{self._tail()}")

    def _await_claims(self) -> None:
        books = Overview(self._tables[0].harness.stores.readers)
        deadline = time.monotonic() + START_S + len(self._tables) * START_OF_TABLE_S
        for table in self._tables:
            left_s = max(deadline - time.monotonic(), 0.0)
            wait_until(lambda t=table: self._has(t, books), f"it has {table.name}", deadline_s=left_s, every_s=0.05)  # type: ignore[misc]

    def _has(self, table: hp.Table, books: Overview) -> bool:
        self.check()
        return {"ingest", "tier"} <= {claim["stage"] for claim in books.claims(table.row) if claim["alive"]}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        try:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            self._log.close()

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]
