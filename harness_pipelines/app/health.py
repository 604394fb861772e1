"""Health of an installation's servers, reported in time even if a server hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import structlog

from harness_pipelines.app.probes import Ask, probes
from harness_pipelines.errors import HarnessError
from harness_pipelines.secret import redact
from harness_pipelines.spec.settings import Settings

log = structlog.get_logger(__name__)
LOOK_S_MAX = 4.0  #: a server that has not answered by then does not answer


class Health:
    """Probes all servers in parallel. A running probe is awaited, not started a second time."""

    def __init__(
        self, settings: Settings, *, wait_s: float = LOOK_S_MAX, asks: Mapping[str, Ask] | None = None
    ) -> None:
        self._asks = probes(settings) if asks is None else asks
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._out: dict[str, Future[str | None]] = {}

    def begin(self) -> None:
        """Probe each server without a running probe."""
        with self._lock:
            for name, ask in self._asks.items():
                if name not in self._out or self._out[name].done():
                    answer = self._out[name] = Future()
                    # Not of a pool: Python waits for the threads of pools before it ends.
                    threading.Thread(target=_answer, args=(ask, answer), name=f"ask-{name}", daemon=True).start()

    def look(self) -> dict[str, str | None]:
        """Return by service the reason why it does not answer, or None."""
        self.begin()
        deadline, found = time.monotonic() + self._wait_s, dict[str, str | None]()
        for name, answer in list(self._out.items()):
            try:
                found[name] = answer.result(max(deadline - time.monotonic(), 0))
            except TimeoutError:
                found[name] = f"no answer within {self._wait_s:.0f} s"
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the body of ``/health``."""
        found = self.look()
        return {
            "ok": not any(found.values()),
            "services": {name: {"answers": why is None, "why": why} for name, why in found.items()},
        }


def _answer(ask: Ask, answer: Future[str | None]) -> None:
    try:
        ask()
    except HarnessError as error:
        answer.set_result(redact(str(error)))
    except Exception as error:  # a thread has no caller: logged with its trace, and `/health` says no
        log.exception("health.broken")
        answer.set_result(f"an unexpected error: {type(error).__name__}")
    else:
        answer.set_result(None)
