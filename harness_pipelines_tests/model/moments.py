"""Reads of a moment beside two publishers: the time of a version is taken before its COMMIT, which may stand still.

Time is a small number that a clock moves on. A publisher locks the table, takes the lock of publishers, takes the
time of its version, and commits. A reader asks for the moment 1: he looks whether it is over, waits for the lock of
publishers, and looks for the newest version of then. He does so twice, and has to be given the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from harness_pipelines_tests.model.explorer import Step

MOMENT = 1
IDLE, LOCKED, TIMED, DONE = "idle", "locked", "timed", "done"
OVER, WAITED = "over", "waited"  #: what a reader has seen to


class Publisher(NamedTuple):
    pc: str = IDLE
    at: int = 0  #: the time of its version


class State(NamedTuple):
    now: int
    times: tuple[int, ...]  #: of the versions, by number
    publishers: tuple[Publisher, ...]
    reader: str
    seen: int  #: versions that were there when the reader's statement began; -1: it has not begun
    given: tuple[int, ...]  #: the version of each read


@dataclass(frozen=True, slots=True)
class Moments:
    """*publishers* publish one version each while *reads* reads are made; *bad* names what is left out."""

    publishers: int = 2
    reads: int = 2
    end: int = 2  #: where the clock stands still
    bad: frozenset[str] = frozenset()
    name: str = "moments"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "a reader waits for a version of before the moment": lambda s: (
                s.reader == OVER and any(p.pc == TIMED and p.at <= MOMENT for p in s.publishers)
            ),
            "a version is committed after the moment that it is of": lambda s: s.now > MOMENT in s.times,
            "a version is newer than the moment that was read": lambda s: bool(s.given) and s.times[-1] > MOMENT,
        }

    def first(self) -> State:
        return State(0, (0,), (Publisher(),) * self.publishers, IDLE, -1, ())

    def canonical(self, state: State) -> State:
        return state._replace(publishers=tuple(sorted(state.publishers)))

    def broken(self, s: State) -> str | None:
        if len(set(s.given)) > 1:
            return f"S2: reads of one moment were given the versions {list(s.given)}"
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        was, now = before.times, step.then.times
        return f"S2: the times of versions fall: {list(now)}" if now != was and now[-1] < now[-2] else None

    def is_goal(self, s: State) -> bool:
        return len(s.given) == self.reads and all(p.pc == DONE for p in s.publishers)

    def show(self, s: State) -> str:
        return f"time {s.now}, versions of {list(s.times)}, {[tuple(p) for p in s.publishers]}, given {list(s.given)}"

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        if s.now < self.end:
            yield Step("clock", "tick", s._replace(now=s.now + 1))
        for i, one in enumerate(s.publishers):
            yield from self._publish(s, i, one)
        if len(s.given) < self.reads:
            yield from self._read(s)

    def _publish(self, s: State, i: int, one: Publisher) -> Iterator[Step[State]]:
        def put(now: Publisher, state: State = s) -> State:
            return state._replace(publishers=(*state.publishers[:i], now, *state.publishers[i + 1 :]))

        is_free = not any(p.pc in (LOCKED, TIMED) for p in s.publishers if p.pc != DONE and p is not one)
        match one.pc:
            case "idle" if "time_before_the_lock" in self.bad and not one.at:
                yield Step("tier", "tier.take_time", put(Publisher(IDLE, s.now + 1)))
            case "idle" if is_free:
                yield Step("tier", "tier.lock", put(one._replace(pc=LOCKED)))
            case "locked":
                at = one.at - 1 if one.at else s.now
                yield Step("tier", "tier.take_time", put(Publisher(TIMED, at)))
            case "timed":
                made = s._replace(times=(*s.times, one.at))
                yield Step("tier", "tier.commit", put(Publisher(DONE), made))

    def _read(self, s: State) -> Iterator[Step[State]]:
        """Three statements: whether the moment is over, the lock, the newest version of then."""
        is_over = s.now > MOMENT or "read_before_it_is_over" in self.bad
        is_held = any(p.pc in (LOCKED, TIMED) for p in s.publishers) and "publishers_not_awaited" not in self.bad
        first_the_lock = "awaited_before_it_is_over" in self.bad
        match s.reader:
            case "idle" if is_over if not first_the_lock else not is_held:
                seen = len(s.times) if "looks_while_it_waits" in self.bad else -1
                yield Step("reader", "read.is_over", s._replace(reader=OVER, seen=seen))
            case "over" if not is_held if not first_the_lock else is_over:
                yield Step("reader", "read.await_publishers", s._replace(reader=WAITED))
            case "waited":
                there = s.times if s.seen < 0 else s.times[: s.seen]
                found = max(n for n, at in enumerate(there, start=1) if at <= MOMENT)
                yield Step("reader", "read.look", s._replace(reader=IDLE, seen=-1, given=(*s.given, found)))
