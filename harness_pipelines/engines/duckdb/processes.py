"""Processes for queries, as the process that has the tables sees them."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any

from harness_pipelines.engines.duckdb.database import Limits
from harness_pipelines.engines.duckdb.template import END, FORK, KILL
from harness_pipelines.engines.duckdb.wire import Line
from harness_pipelines.errors import HarnessError, TryAgain

_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from harness_pipelines.engines.duckdb.template import main; main(int(sys.argv[2]))"
)
#: Of the template: libraries start no threads, and memory is taken when it is needed, not reserved.
_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OPENBLAS_NUM_THREADS": "1",
}
_NOT_INHERITED = "HARNESS_"  #: settings, which name servers and have passwords
WAIT_S = 10.0
SPARES = 2  #: a query of Flight SQL takes one for its columns and one for its rows


class EngineAway(TryAgain):
    """No process for a query can be started now: the system allows no more, or ended the one that starts them."""

    way_on = "run the query again"


class Child:
    """One process for queries. *line* is the connection to it."""

    def __init__(self, limits: Limits) -> None:
        self.ended_for: HarnessError | None = None  #: why it was ended from here
        self._spill = TemporaryDirectory(prefix="harness-sql-", ignore_cleanup_errors=True)
        mine, theirs = socket.socketpair()
        self.line = Line(mine)
        try:
            with theirs:
                self._pid: int = _TEMPLATE.asked(FORK, limits, self._spill.name, files=[theirs.fileno()])
            if self._pid < 0:
                raise EngineAway(f"no process for the query can be started: {os.strerror(-self._pid)}")
        except BaseException:
            self._forget()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether it waits for its first question. Later this tells nothing: an answer looks like its end."""
        return not self.line.has_come

    @property
    def spill(self) -> str:
        """The folder for what does not fit in memory."""
        return self._spill.name

    def kill(self, why: HarnessError) -> None:
        """End it while another thread waits for it."""
        self.ended_for = why
        with suppress(EngineAway):  # which took it along
            _TEMPLATE.asked(KILL, self._pid)

    def end(self) -> int:
        """End it, if it has not ended; how it ended, as `os.waitpid` says it."""
        try:
            return int(_TEMPLATE.asked(END, self._pid))
        except EngineAway:  # which took it along
            return signal.SIGKILL
        finally:
            self._forget()

    def _forget(self) -> None:
        self.line.close()
        self._spill.cleanup()


class Spares:
    """Processes of equal *limits* that wait for the next queries: starting one takes longer than many a query."""

    def __init__(self, limits: Limits, *, count: int = SPARES) -> None:
        self._limits, self._count = limits, count
        self._lock = threading.Lock()
        self._waiting: deque[Child] = deque()
        self._is_closed = False

    def take(self) -> Child:
        """One that waited, or a new one; the next one starts meanwhile. Raises: EngineAway."""
        found = self._waited() or Child(self._limits)
        threading.Thread(target=self._fill, name="spare-queries", daemon=True).start()
        return found

    def _waited(self) -> Child | None:
        with suppress(IndexError):
            while True:
                found = self._waiting.popleft()
                if found.is_alive:
                    return found
                found.end()  # the system had no memory left, or someone ended it
        return None

    def fill(self) -> None:
        """Start what is missing. Raises: EngineAway."""
        with self._lock:
            while len(self._waiting) < self._count and not self._is_closed:
                self._waiting.append(Child(self._limits))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            while self._waiting:
                self._waiting.pop().end()

    def _fill(self) -> None:
        with suppress(EngineAway):  # the next query starts its process itself, and reports it
            self.fill()


class Template:
    """The process of `template`, which starts with the first query."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: tuple[Line, subprocess.Popen[bytes]] | None = None

    def start(self) -> None:
        """Start it, without waiting for it."""
        with self._lock:
            self._started = self._started or _start()

    def asked(self, word: str, *args: Any, files: Sequence[int] = ()) -> Any:
        """Its answer. Raises: EngineAway."""
        with self._lock:
            self._started = self._started or _start()
            line, _ = self._started
            try:
                line.send((word, *args), files=files)
                return line.receive().said
            except (EOFError, OSError) as error:
                self.close()
                raise EngineAway("the process that starts those of queries has ended; run the query again") from error
            except BaseException:  # the answer is lost
                self.close()
                raise

    def close(self) -> None:
        """End it and all that it started."""
        if self._started is not None:
            (line, process), self._started = self._started, None
            line.close()
            process.wait(WAIT_S)

    def forget(self) -> None:
        """Leave it to the process that this one is a copy of."""
        self._lock = threading.Lock()
        self._started = None


def _start() -> tuple[Line, subprocess.Popen[bytes]]:
    mine, theirs = socket.socketpair()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, json.dumps(sys.path), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=inherited | _ENVIRONMENT,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the process that asks
        )
    return Line(mine), process


_TEMPLATE = Template()
atexit.register(_TEMPLATE.close)
os.register_at_fork(after_in_child=_TEMPLATE.forget)
prepare = _TEMPLATE.start  #: so that the first query does not wait for it
