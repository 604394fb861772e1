"""The explorer itself: it visits every state once, finds the shortest way to a violation, and sees dead ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pytest

from harness_pipelines_tests.model.explorer import Step, TooManyStates, explore

IDLE, READ = "idle", "read"


class Counting(NamedTuple):
    """A counter, and per worker what it is about to write: ``(pc, value read, times done)``."""

    counter: int
    workers: tuple[tuple[str, int, int], ...]


class Counter:
    """Two workers add one each, *rounds* times: read, then write. Without the lock an update is lost."""

    name = "counter"

    def __init__(self, *, locked: bool, rounds: int = 1, workers: int = 2, stuck: bool = False) -> None:
        self.locked, self.rounds, self.count, self.ends = locked, rounds, workers, not stuck
        self.witnesses: Mapping[str, Callable[[Counting], bool]] = {
            "both read": lambda s: all(w[0] == READ for w in s.workers)
        }

    def first(self) -> Counting:
        return Counting(0, ((IDLE, 0, 0),) * self.count)

    def steps(self, state: Counting) -> Iterator[Step[Counting]]:
        for i, (pc, value, done) in enumerate(state.workers):
            held = any(w[0] == READ for w in state.workers)
            if pc == IDLE and done < self.rounds and not (self.locked and held):
                yield Step(f"w{i + 1}", "read", self._with(state, i, (READ, state.counter, done)))
            if pc == READ:
                changed = self._with(state, i, (IDLE, 0, done + 1))
                yield Step(f"w{i + 1}", f"write {value + 1}", changed._replace(counter=value + 1))

    def canonical(self, state: Counting) -> Counting:
        return state._replace(workers=tuple(sorted(state.workers)))

    def broken(self, state: Counting) -> str | None:
        done = sum(w[2] for w in state.workers)
        return None if state.counter == done else f"counter is {state.counter} after {done} writes"

    def broke(self, before: Counting, step: Step[Counting]) -> str | None:
        return None if step.then.counter >= before.counter else "the counter fell"

    def is_goal(self, state: Counting) -> bool:
        return self.ends and all(w[2] == self.rounds for w in state.workers)

    def show(self, state: Counting) -> str:
        return f"counter {state.counter}"

    @staticmethod
    def _with(state: Counting, i: int, worker: tuple[str, int, int]) -> Counting:
        return state._replace(workers=(*state.workers[:i], worker, *state.workers[i + 1 :]))


def test_all_states_of_a_sound_model_are_visited_once_and_hold():
    found = explore(Counter(locked=True))

    # idle-idle, read-idle, idle-done, read-done, done-done: the workers' names do not count.
    assert (found.violation, found.states, found.transitions) == (None, 5, 5)
    assert found.depth == 4


def test_a_lost_update_is_found_by_the_shortest_way_and_each_worker_keeps_its_name():
    found = explore(Counter(locked=False))

    assert found.violation == "counter is 1 after 2 writes"
    lines = found.trace.splitlines()
    assert [line.split()[1:3] for line in lines] in (
        [["w1", "read"], ["w2", "read"], ["w1", "write"], ["w2", "write"]],
        [["w1", "read"], ["w2", "read"], ["w2", "write"], ["w1", "write"]],
    )


def test_a_step_that_breaks_a_rule_is_the_last_line_of_the_trace():
    class Falling(Counter):
        def broken(self, state: Counting) -> str | None:
            return None

    found = explore(Falling(locked=False, rounds=2))

    assert found.violation == "the counter fell"
    assert "write 1" in found.trace.splitlines()[-1]


def test_a_state_without_a_way_to_a_goal_is_a_violation():
    found = explore(Counter(locked=True, stuck=True))

    assert found.violation == "L: no goal can be reached from here any more"


def test_a_rule_that_fails_is_a_violation_with_the_way_to_it():
    class Failing(Counter):
        def steps(self, state: Counting) -> Iterator[Step[Counting]]:
            if state.counter:
                raise ValueError("no rule for this")
            yield from super().steps(state)

    found = explore(Failing(locked=True))

    assert found.violation == "a rule failed: ValueError: no rule for this"
    assert len(found.trace.splitlines()) == 2


def test_witnesses_are_named_only_when_they_were_met():
    assert explore(Counter(locked=True)).witnessed == frozenset()
    assert explore(Counter(locked=False), liveness=False).witnessed == {"both read"}


def test_a_model_that_is_too_large_is_refused():
    with pytest.raises(TooManyStates, match="more than 3 states"):
        explore(Counter(locked=True), states_max=3)
