"""Loads of one table wait for each other, and one answers for all that came before it began.

Each of them would find the same state: a load shows what there is when it begins, and those that wait began earlier. So
a table that moves is looked at once for all clients that ask meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from weakref import WeakValueDictionary

from harness_pipelines.serve.values import CutAnswer, TableBusy, Warehouse

WAIT_S = 30.0  #: for another load of the same table, which makes a cut


class _Turn:
    """The loads of one table; it is forgotten once none runs or waits."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.loads = 0  #: that run or wait
        self.last: dict[str, tuple[float, CutAnswer]] = {}  #: by the prefix of a warehouse, with when it began


class Turns:
    """One load of a table at a time: those that wait hold no thread, which loads of other tables need."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()

    async def cut(self, table: str, warehouse: Warehouse, load: Callable[[], Awaitable[CutAnswer]]) -> CutAnswer:
        """What *load* finds, or another load of the same that began after this one came.

        Raises: TableBusy, and what *load* raises: who waits for one that fails tries it again.
        """
        came = self._clock()
        async with self._turn(turn_of(table, warehouse)) as turn:
            began, found = turn.last.get(warehouse.prefix, (came, None))
            if found is not None and began > came:
                return replace(found, made_s=None, made_bytes=0)  # it was made once
            began = self._clock()
            found = await load()
            turn.last[warehouse.prefix] = began, found
            return found

    @asynccontextmanager
    async def alone(self, what: str) -> AsyncIterator[None]:
        """The block runs while no other one of *what* does. Raises: TableBusy."""
        async with self._turn(what):
            yield

    @asynccontextmanager
    async def _turn(self, what: str) -> AsyncIterator[_Turn]:
        turn = self._turns.setdefault(what, _Turn())
        turn.loads += 1
        try:
            await self._lock(turn, what)
            try:
                yield turn
            finally:
                turn.lock.release()
        finally:
            turn.loads -= 1

    async def _lock(self, turn: _Turn, what: str) -> None:
        if turn.loads == 1:  # it is free, and a timer takes more time than all else of a turn
            await turn.lock.acquire()
            return
        try:
            async with asyncio.timeout(WAIT_S):
                await turn.lock.acquire()
        except TimeoutError as late:
            raise TableBusy(f"{what}: a cut has been made for more than {WAIT_S:g} s; load it again") from late


def turn_of(table: str, warehouse: Warehouse) -> str:
    """Loads of one table wait for each other; those of its named snapshots wait for no others, nor others for them."""
    return f"{table} {warehouse.kind}" if warehouse.snapshot else table
