"""Loads of one table wait for each other, and those that came before one began share what it finds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from harness_pipelines.errors import TryAgain
from harness_pipelines.serve import turns as module
from harness_pipelines.serve.turns import Turns
from harness_pipelines.serve.values import CutAnswer, TableBusy, Warehouse
from harness_pipelines_tests.producer import DEADLINE_S
from harness_pipelines_tests.served import cut_of

FRESH = Warehouse.parse("")


class State:
    """A table whose cut of a load has the number of that load; `go_on` lets the running one end."""

    def __init__(self) -> None:
        self.loads, self.go_on, self.failing = 0, asyncio.Event(), set[int]()

    async def load(self) -> CutAnswer:
        self.loads += 1
        number = self.loads
        await self.go_on.wait()
        if number in self.failing:
            raise TryAgain("the ledger is away")
        return replace(cut_of("shop.orders", number), made_s=1.0, made_bytes=9)


class Clock:
    """Each look is one later than the last. A load looks when it comes, and once more when it begins."""

    def __init__(self) -> None:
        self._looks, self._awaited = 0, dict[int, asyncio.Future[None]]()

    def __call__(self) -> float:
        self._looks += 1
        if (awaited := self._awaited.pop(self._looks, None)) is not None:
            awaited.set_result(None)
        return float(self._looks)

    async def looked_at(self, times: int) -> None:
        """Wait until it was looked at so often. What looked then runs or waits for its turn."""
        if self._looks < times:
            self._awaited[times] = asyncio.get_running_loop().create_future()
            await asyncio.wait_for(self._awaited[times], DEADLINE_S)


def run(test: Callable[[Turns, State, Clock], Awaitable[None]]) -> None:
    async def within() -> None:
        clock = Clock()
        await test(Turns(clock=clock), State(), clock)

    asyncio.run(within())


def loads(turns: Turns, state: State, count: int, *warehouses: Warehouse) -> list[asyncio.Task[CutAnswer]]:
    wanted = warehouses or (FRESH,)
    return [asyncio.create_task(turns.cut("shop.orders", one, state.load)) for one in wanted for _ in range(count)]


def test_one_load_answers_for_all_that_came_before_it_began():
    async def test(turns: Turns, state: State, clock: Clock) -> None:
        first = loads(turns, state, 1)
        await clock.looked_at(2)
        waiting = loads(turns, state, 7)
        await clock.looked_at(9)
        assert state.loads == 1
        state.go_on.set()
        found = await asyncio.gather(*first, *waiting)
        assert [cut.snapshot_id for cut in found] == [1] + [2] * 7, "who came while it ran gets no older state"
        assert [cut.made_s for cut in found] == [1.0, 1.0] + [None] * 6, "it was made once"
        assert sum(cut.made_bytes for cut in found) == 2 * 9

    run(test)


def test_a_load_that_comes_later_looks_again():
    async def test(turns: Turns, state: State, clock: Clock) -> None:
        state.go_on.set()
        found = [(await loads(turns, state, 1)[0]).snapshot_id for _ in range(3)]
        assert found == [1, 2, 3]

    run(test)


def test_other_states_of_the_table_are_not_shared():
    async def test(turns: Turns, state: State, clock: Clock) -> None:
        pin = Warehouse.parse("pin:5s")
        running = loads(turns, state, 1)
        await clock.looked_at(2)
        waiting = loads(turns, state, 2, FRESH, pin)
        await clock.looked_at(6)
        state.go_on.set()
        await asyncio.gather(*running)
        assert [one.snapshot_id for one in await asyncio.gather(*waiting)] == [2, 2, 3, 3]

    run(test)


def test_a_load_that_fails_answers_for_no_other():
    async def test(turns: Turns, state: State, clock: Clock) -> None:
        running = loads(turns, state, 1)
        await clock.looked_at(2)
        waiting = loads(turns, state, 3)
        await clock.looked_at(5)
        state.failing = {2}
        state.go_on.set()
        await asyncio.gather(*running)
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(found[0], TryAgain)
        assert [one.snapshot_id for one in found[1:] if isinstance(one, CutAnswer)] == [3, 3]

    run(test)


def test_named_snapshots_do_not_wait_for_the_newest_state(monkeypatch: pytest.MonkeyPatch):
    async def test(turns: Turns, state: State, clock: Clock) -> None:
        running = loads(turns, state, 1)
        await clock.looked_at(2)
        named = loads(turns, state, 1, Warehouse.parse("at:june"))
        await clock.looked_at(4)
        assert state.loads == 2
        monkeypatch.setattr(module, "WAIT_S", 0.01)
        with pytest.raises(TableBusy, match=r"shop\.orders"):
            await loads(turns, state, 1)[0]
        state.go_on.set()
        await asyncio.gather(*running, *named)

    run(test)


def test_a_load_that_comes_when_the_turn_is_another_s_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch):
    """The one that has just ended comes again before the one that waits has gone on: nobody has the lock then."""
    hangs, ends, waits = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def one(turns: Turns) -> None:
        async with turns.alone("x"):
            waits.set()
            await ends.wait()
        with pytest.raises(TableBusy, match="for more than"):
            async with turns.alone("x"):
                raise AssertionError("it is another's turn")

    async def other(turns: Turns) -> None:
        async with turns.alone("x"):
            await hangs.wait()

    def end() -> None:
        """The other one waits by now."""
        monkeypatch.setattr(module, "WAIT_S", 0.05)
        ends.set()

    async def test(turns: Turns, state: State, clock: Clock) -> None:
        first = asyncio.create_task(one(turns))
        await asyncio.wait_for(waits.wait(), DEADLINE_S)
        monkeypatch.setattr(module, "WAIT_S", DEADLINE_S)
        second = asyncio.create_task(other(turns))
        asyncio.get_running_loop().call_soon(end)
        await asyncio.wait_for(first, DEADLINE_S)
        hangs.set()
        await asyncio.wait_for(second, DEADLINE_S)

    run(test)
