"""Calls that take long, made on another thread than the one that waits for them, so that Ctrl-C always ends them.

Python runs a signal handler on the main thread, between two bytecode instructions. A DuckDB call that returns no row
reaches none. An exception that the handler raises inside a scan passes through C++ and can be lost there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

AGAIN_S = 0.05
GIVEN_UP_S = 10.0  #: a scan that waits for a server is not interrupted: its thread is left behind

Args = ParamSpec("Args")
Result = TypeVar("Result")


class Aside:
    """One thread that makes the calls of its block. *interrupt* ends the one that runs."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def __enter__(self) -> Aside:
        threading.Thread(target=self._work, name="query", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.put(None)

    def call(self, function: Callable[Args, Result], *args: Args.args, **words: Args.kwargs) -> Result:
        """What *function* returns or raises. What a signal raises here is raised once the call is over."""
        future: Future[Result] = Future()
        self._calls.put((future, lambda: function(*args, **words)))
        try:
            future.exception()  # waits, and keeps what the call raises apart from what a signal does
        except BaseException:
            self._end(future)
            raise
        return future.result()

    def _end(self, future: Future[Any]) -> None:
        """DuckDB forgets an interrupt that comes between two of its steps, so it is sent until the call is over."""
        for _ in range(int(GIVEN_UP_S / AGAIN_S)):
            self._interrupt()
            try:
                future.exception(AGAIN_S)
                return
            except TimeoutError:
                continue

    def _work(self) -> None:
        while (asked := self._calls.get()) is not None:
            future, call = asked
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
