"""Threads run units as they are due, as many as have places, and none waits for one that hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from math import inf

import pytest
from structlog.testing import capture_logs

from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages.run import schedule
from harness_pipelines.stages.run.pool import LINES_MAX, Pool, Unit
from harness_pipelines.stages.run.schedule import PLACES, Room, Turn
from harness_pipelines_tests.producer import wait_until


class Work:
    """A unit that does *act*, and rests as long as that says."""

    stage = Stage.TIER

    def __init__(self, act: Callable[[], float], *, room: Room = Room.LAKE, objective_s: float = 1.0) -> None:
        self.turn, self._act = Turn("a.b", "tier", room, objective_s), act
        self.ran = 0

    def run(self) -> float:
        found = self._act()
        self.ran += 1
        return found


def hangs(over: threading.Event) -> Callable[[], float]:
    """What is at work until it is *over*."""

    def act() -> float:
        over.wait(60)
        return inf

    return act


@pytest.fixture
def broken() -> list[BaseException]:
    return []


@pytest.fixture
def pool(broken: list[BaseException]) -> Pool:
    return Pool(broken.append)


def ended(pool: Pool) -> None:
    pool.stop()
    pool.join(10.0)
    assert not pool.is_alive


def test_a_unit_runs_again_when_it_is_due_or_asked_for(pool: Pool):
    often, once = Work(lambda: 0.01), Work(lambda: inf)
    for unit in (often, once):
        pool.ask(unit)
    wait_until(lambda: often.ran >= 5 and once.ran == 1, "the one is due again")
    pool.ask(once)
    wait_until(lambda: once.ran == 2, "the other was asked for")
    pool.ask(once, in_s=60.0)
    pool.ask(once, in_s=0.01)
    wait_until(lambda: once.ran == 3, "the earlier moment counts")
    pool.drop(often)
    ended(pool)
    assert once.ran == 3


class Joining(Work):
    """Work that is done with others of its kind."""

    def __init__(self, groups: list[list[Joining]]) -> None:
        super().__init__(lambda: inf, room=Room.LOG)
        self.turn.joins, self._groups = True, groups

    def run_with(self, others: Sequence[Unit]) -> list[float]:
        group = [self, *(one for one in others if isinstance(one, Joining))]
        self._groups.append(group)
        for one in group:
            one.ran += 1
            one.turn.joins = False
        return [0.0 if number == 1 else inf for number in range(len(group))]


def test_units_that_are_due_together_run_together_and_each_is_due_again_by_itself(pool: Pool):
    over = threading.Event()
    hanging = [Work(hangs(over), room=Room.LOG) for _ in range(PLACES[Room.LOG])]
    for unit in hanging:
        pool.ask(unit)
    wait_until(lambda: len(pool.running_s()) == len(hanging), "all places are taken")
    groups: list[list[Joining]] = []
    units = [Joining(groups) for _ in range(3)]
    for one in units:
        pool.ask(one)
    over.set()
    wait_until(lambda: sum(one.ran for one in units) == 4, "one of them is due again at once")
    ended(pool)
    assert [set(group) for group in groups] == [set(units)]


def test_units_that_hang_hold_up_no_other_one_and_are_known(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schedule, "LONG_S", 0.2)
    over = threading.Event()
    hanging = [Work(hangs(over)) for _ in range(PLACES[Room.LAKE])]
    for unit in hanging:
        pool.ask(unit)
    wait_until(lambda: len(pool.running_s()) == len(hanging), "all places are taken")
    waiting, elsewhere = Work(lambda: inf, objective_s=0.01), Work(lambda: inf, room=Room.LOG)
    pool.ask(waiting)
    pool.ask(elsewhere)
    wait_until(lambda: elsewhere.ran == 1, "another kind of work has places")
    wait_until(lambda: waiting.ran == 1, "those that hang gave up theirs")
    assert pool.running_s().keys() == set(hanging)
    assert all(pool.is_running(unit) for unit in hanging)
    over.set()
    ended(pool)


def test_a_unit_that_waits_for_too_long_is_late(pool: Pool):
    over = threading.Event()
    for _ in range(PLACES[Room.LAKE]):
        pool.ask(Work(hangs(over)))
    waiting = Work(lambda: inf, objective_s=0.05)
    wait_until(lambda: len(pool.running_s()) == PLACES[Room.LAKE], "all places are taken")
    pool.ask(waiting)
    wait_until(lambda: pool.late().keys() == {waiting}, "it is late")
    pool.name_slow()
    over.set()
    wait_until(lambda: waiting.ran == 1 and not pool.late(), "it has begun")
    ended(pool)


def test_of_a_thousand_units_that_are_late_the_log_has_the_slowest_and_how_many_there_are(pool: Pool):
    over = threading.Event()
    for _ in range(PLACES[Room.LAKE]):
        pool.ask(Work(hangs(over)))
    wait_until(lambda: len(pool.running_s()) == PLACES[Room.LAKE], "all places are taken")
    waiting = [Work(lambda: inf, objective_s=0.01 if number else 0.005) for number in range(1000)]
    for unit in waiting:
        pool.ask(unit)
    wait_until(lambda: len(pool.late()) == len(waiting), "all are late")
    with capture_logs() as told:
        pool.name_slow()
        pool.name_slow()
    assert [line["event"] for line in told] == ["unit.late"] * LINES_MAX
    assert {line["others"] for line in told} == {len(waiting) - 1}
    assert [line["late_s"] for line in told] == sorted((line["late_s"] for line in told), reverse=True)
    over.set()
    wait_until(lambda: all(unit.ran == 1 for unit in waiting), "each has its turn")
    ended(pool)


def test_what_a_unit_does_not_handle_is_told_and_the_others_end(pool: Pool, broken: list[BaseException]):
    def fail() -> float:
        raise ZeroDivisionError("a defect")

    bad, good = Work(fail), Work(lambda: 0.01)
    pool.ask(bad)
    pool.ask(good)
    wait_until(lambda: bool(broken) and good.ran >= 2, "it is told")
    ended(pool)
    assert [type(error) for error in broken] == [ZeroDivisionError]
    assert not pool.is_running(bad)
