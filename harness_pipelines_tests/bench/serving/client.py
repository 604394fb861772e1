"""What loads tables of a running server as engines do: one connection, kept open."""

from __future__ import annotations

import http.client
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from harness_pipelines_tests.bench.base import Run, timed
from harness_pipelines_tests.integration.serve.judged import EVERY_S
from harness_pipelines_tests.integration.serve.server import Served, serving
from harness_pipelines_tests.producer import wait_until

ANSWER_S = 120.0


@contextmanager
def server(run: Run, *options: str) -> Iterator[Served]:
    """`harness serve` as a process, with its log in a file."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        log = str(Path(folder) / "serve.log")
        with serving(run.harness, Path(folder), "--log-file", log, *options) as served:
            yield served


class Client:
    """One connection to the catalog; a thread has its own."""

    def __init__(self, served: Served) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(served.url).netloc, timeout=ANSWER_S)
        self._headers = {"authorization": f"Bearer {served.token}"}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def load(self, name: str) -> None:
        """loadTable of the table *name*, whole."""
        namespace, _, short = name.partition(".")
        self._connection.request("GET", f"/v1/namespaces/{namespace}/tables/{short}", headers=self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, f"{name} was not loaded: {answer.status} {body[:300]!r}"

    def load_anew_s(self, name: str) -> float:
        """Seconds of a load that looks at the state: the last cut is too old to be given out without that."""
        due = time.monotonic() + EVERY_S
        wait_until(lambda: time.monotonic() >= due, "the last cut is too old", every_s=EVERY_S / 20)
        return timed(lambda: self.load(name))


@contextmanager
def repeated(action: Callable[[], object], *, every_s: float) -> Iterator[list[float]]:
    """Call *action* every so often in a thread while the block lasts; gives the seconds of each call so far.

    What it raises is raised at the end.
    """
    took: list[float] = []
    failed: list[BaseException] = []
    ended = threading.Event()

    def work() -> None:
        due = time.monotonic()
        try:
            while not ended.wait(max(0.0, due - time.monotonic())):
                due += every_s
                took.append(timed(action))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield took
    finally:
        ended.set()
        thread.join()
    if failed:
        raise failed[0]
