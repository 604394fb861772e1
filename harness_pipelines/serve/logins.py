"""Tokens are looked up for many requests at once, so that a flood of wrong ones keeps no client waiting.

Whatever strangers send, the ledger gets one question at a time, and at most `1 / LOOK_EVERY_S` of them a second. Tokens
that were good before are asked for first. So a login waits for two questions at most, unless strangers send thousands
of tokens that have the form of ours within that time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from typing import Generic, TypeVar

import structlog
from anyio import to_thread

from harness_pipelines.errors import TryAgain
from harness_pipelines.ports.serving.tokens import ends_soon
from harness_pipelines.serve.auth import KnownTokens, Principal

LOOK_EVERY_S = 0.05
AT_ONCE_MAX = 1000  #: tokens that are asked for by one question
WAITING_MAX = 4000
WARNED_EVERY_S = 86400.0
R = TypeVar("R")
log = structlog.get_logger(__name__)


class LoginsFull(TryAgain):
    """More unknown tokens wait for their look-up than there may be."""

    way_on = "nothing: the client repeats its request; `serve.unknown` in the log says where wrong tokens come from"


class Logins:
    """Looks up the holders of tokens; used on one event loop."""

    def __init__(self, tokens: KnownTokens, *, every_s: float = LOOK_EVERY_S, waiting_max: int = WAITING_MAX) -> None:
        self._tokens, self._every_s, self._waiting_max = tokens, every_s, waiting_max
        self._waiting: dict[str, asyncio.Future[Principal | None]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def holder(self, secret: str) -> Principal | None:
        """The holder of a token, if it is good. Raises: LoginsFull; TryAgain while the ledger is away."""
        is_known, found = self._tokens.known(secret)
        if is_known:
            return found
        if secret not in self._waiting:
            if len(self._waiting) >= self._waiting_max and not self._tokens.was_good(secret):
                raise LoginsFull(f"{self._waiting_max} tokens wait for their look-up already; try again")
            self._waiting[secret] = asyncio.get_running_loop().create_future()
        answer = self._waiting[secret]
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(answer)  # others may wait for it, too

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            began = loop.time()
            asked = sorted(self._waiting, key=lambda secret: not self._tokens.was_good(secret))[:AT_ONCE_MAX]
            answers = [self._waiting.pop(secret) for secret in asked]
            try:
                found = await to_thread.run_sync(self._tokens.check, asked, abandon_on_cancel=True)
            except Exception as error:  # it is raised by each request that waits
                for answer in answers:
                    answer.set_exception(error)
                    answer.exception()  # where no client waits any more, asyncio would log it
            else:
                for answer, holder in zip(answers, found, strict=True):
                    answer.set_result(holder)
            await asyncio.sleep(began + self._every_s - loop.time())


class Expiries:
    """Warns of secrets in use that end soon: once a day each."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._warned: dict[str, float] = {}  #: as many as there are tokens

    def look(self, holder: Principal, now: datetime) -> None:
        if not ends_soon(holder.expires, now) or self._clock() < self._warned.get(holder.name, float("-inf")):
            return
        self._warned[holder.name] = self._clock() + WARNED_EVERY_S
        log.warning("serve.token_ends", table=None, reader=holder.name, at=str(holder.expires))


class SharedCall(Generic[R]):
    """One run of a call that may block, for all who ask while it runs and for *keep_s* after it."""

    def __init__(self, call: Callable[[], R], *, keep_s: float) -> None:
        self._call, self._keep_s = call, keep_s
        self._running: asyncio.Task[R] | None = None
        self._fresh_until = 0.0

    async def get(self) -> R:
        loop = asyncio.get_running_loop()
        if self._running is None or (self._running.done() and loop.time() >= self._fresh_until):
            self._running = loop.create_task(self._run())
        return await asyncio.shield(self._running)

    async def _run(self) -> R:
        try:
            return await to_thread.run_sync(self._call, abandon_on_cancel=True)
        finally:
            self._fresh_until = asyncio.get_running_loop().time() + self._keep_s
