"""What those without a login do, in few lines of the log: the first at once, the others summed up once a minute."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping

import structlog
from starlette.requests import Request

from harness_pipelines.serve.answers import shown
from harness_pipelines.serve.audit_log import place_of

log = structlog.get_logger(__name__)
EVERY_S = 60.0
ADDRESSES_MAX = 8  #: that a line names
Later = Callable[[float, Callable[[], None]], None]  #: makes a call after some seconds


def on_loop(seconds: float, call: Callable[[], None]) -> None:
    """On the event loop that runs."""
    asyncio.get_running_loop().call_later(seconds, call)


def on_thread(seconds: float, call: Callable[[], None]) -> None:
    """On a thread that holds up no process which ends."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()


class Strangers:
    """Counts requests without a good token; any thread may call it. *later* makes the calls that sum up."""

    def __init__(self, *, every_s: float = EVERY_S, later: Later = on_loop) -> None:
        self._every_s, self._later = every_s, later
        self._lock = threading.Lock()
        self._is_summing = False
        self._count = 0
        self._why: dict[str, int] = {}
        self._addresses: dict[str, None] = {}

    def came(self, request: Request, *, why: str) -> None:
        """One came without a token, with a wrong one, or while tokens could not be looked up. *why* is a constant."""
        self.came_from(place_of(request), why=why, path=shown(request.url.path))

    def came_from(self, place: Mapping[str, str], *, why: str, **said: str) -> None:
        """The same for a call that is no request of HTTP; *said* is what the line of the first one has besides."""
        with self._lock:
            if self._is_summing:
                self._count += 1
                self._why[why] = self._why.get(why, 0) + 1
                if len(self._addresses) < ADDRESSES_MAX:
                    self._addresses[place["address"]] = None
                return
            self._is_summing = True
        log.info("serve.unknown", table=None, why=why, **said, **place)
        self._later(self._every_s, self._sum_up)

    def _sum_up(self) -> None:
        """Another minute begins where there was something in this one: a flood makes a line a minute."""
        with self._lock:
            count, why, addresses = self._count, self._why, list(self._addresses)
            self._count, self._why, self._addresses = 0, {}, {}
            self._is_summing = count > 0
        if not count:
            return
        log.info(
            "serve.unknown_more",
            table=None,
            requests=count,
            seconds=self._every_s,
            why=why,
            some_addresses=addresses,
        )
        self._later(self._every_s, self._sum_up)
