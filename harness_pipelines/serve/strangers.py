"""What those without a login do, in few lines of the log: the first at once, the others summed up once a minute."""

from __future__ import annotations

import asyncio

import structlog
from starlette.requests import Request

from harness_pipelines.serve.answers import shown
from harness_pipelines.serve.audit_log import place_of

log = structlog.get_logger(__name__)
EVERY_S = 60.0
ADDRESSES_MAX = 8  #: that a line names


class Strangers:
    """Counts requests without a good token; used on one event loop."""

    def __init__(self, *, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._timer: asyncio.TimerHandle | None = None
        self._count = 0
        self._why: dict[str, int] = {}
        self._addresses: dict[str, None] = {}

    def came(self, request: Request, *, why: str) -> None:
        """One came without a token, with a wrong one, or while tokens could not be looked up. *why* is a constant."""
        place = place_of(request)
        if self._timer is None:
            log.info("serve.unknown", table=None, why=why, path=shown(request.url.path), **place)
            self._timer = asyncio.get_running_loop().call_later(self._every_s, self._sum_up)
            return
        self._count += 1
        self._why[why] = self._why.get(why, 0) + 1
        if len(self._addresses) < ADDRESSES_MAX:
            self._addresses[place["address"]] = None

    def _sum_up(self) -> None:
        """Another minute begins where there was something in this one: a flood makes a line a minute."""
        self._timer = None
        if not self._count:
            return
        log.info(
            "serve.unknown_more",
            table=None,
            requests=self._count,
            seconds=self._every_s,
            why=dict(self._why),
            some_addresses=list(self._addresses),
        )
        self._count, self._why, self._addresses = 0, {}, {}
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._sum_up)
