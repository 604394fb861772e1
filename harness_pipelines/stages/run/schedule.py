"""Which unit of work a free thread takes next: the one that is furthest behind its objective.

Pure: the caller gives the time, in monotonic seconds, and locks. A unit is due at a moment, and waits from then on; how
far it is behind is its wait as a share of its objective, so whatever waits is taken in the end. Kinds of work have
rooms: moves that take minutes leave the room of ingest alone. A unit that runs for long gives its place up, so that one
that hangs costs a thread and no other unit; how many do so at a time is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heappop, heappush, nlargest
from itertools import count
from math import inf

LATE_TIMES = 2.0  #: a unit that starts later than this many objectives after it was due is named
LONG_S = 30.0  #: a unit that runs for longer gives its place up
JOINED_MAX = 31  #: units that run together with one
LONG_MAX = 16  #: this many of them at a time; what runs beyond keeps its place


class Room(StrEnum):
    """Kinds of work that do not wait for each other."""

    LOG = "log"  #: ingest, and looks for partitions: short
    LAKE = "lake"  #: tier and mirror: what the freshness of the lake depends on
    UPKEEP = "upkeep"  #: otree, compact and expire


PLACES = {Room.LOG: 4, Room.LAKE: 4, Room.UPKEEP: 4}
THREADS_MAX = sum(PLACES.values()) + LONG_MAX


@dataclass(slots=True, eq=False)
class Turn:
    """When a unit is due, and since when it runs."""

    table: str
    work: str  #: what is done for the table
    room: Room
    objective_s: float
    due_at: float = inf
    started_at: float | None = None
    again_at: float = inf  #: when it is due again, as it was asked for while it runs
    joins: bool = False  #: it may run in one thread with others of its room
    is_guest: bool = False  #: it runs in the place of another one

    def late_s(self, now: float) -> float:
        """How long it has waited beyond what it may."""
        return 0.0 if self.started_at is not None else max(0.0, now - self.due_at - LATE_TIMES * self.objective_s)


_Entry = tuple[float, int, Turn]  # when it is due; a number, which keeps the order of those due at once


@dataclass(slots=True)
class Schedule:
    """The turns of all units of a process."""

    places: dict[Room, int] = field(default_factory=lambda: dict(PLACES))
    _waiting: list[_Entry] = field(default_factory=list)  # a heap; entries that moved on are dropped
    # Heaps of turns that are due. Of those with one objective the first is always the one that is furthest behind, so
    # that a thousand tables that are due cost no more than one.
    _due: dict[tuple[Room, float], list[_Entry]] = field(default_factory=dict)
    _running: dict[Turn, None] = field(default_factory=dict)
    _number: count[int] = field(default_factory=count)

    def ask(self, turn: Turn, at: float) -> None:
        """*turn* is due *at* this moment at the latest; while it runs, it is due again then."""
        if turn.started_at is not None:
            turn.again_at = min(turn.again_at, at)
        elif at < turn.due_at:
            turn.due_at = at
            heappush(self._waiting, (at, next(self._number), turn))

    def drop(self, turn: Turn) -> None:
        """*turn* is not due any more; one that runs ends as it would."""
        turn.due_at = turn.again_at = inf

    def take(self, now: float) -> Turn | None:
        """The turn that is furthest behind and has a place; it runs from now on."""
        self._collect(now)
        free, heads = self._free(now), self._heads()
        found = max(
            (at for at in heads if free[at[0]] > 0), key=lambda at: (now - heads[at].due_at) / at[1], default=None
        )
        if found is None:
            return None
        _, _, turn = heappop(self._due[found])
        turn.started_at, turn.again_at = now, inf
        self._running[turn] = None
        return turn

    def join(self, turn: Turn, now: float) -> list[Turn]:
        """What runs with *turn*, which was taken, in its place: the others that are due and furthest behind."""
        if not turn.joins:
            return []
        due = dict.fromkeys(
            one
            for (room, _), heap in self._due.items()
            if room is turn.room
            for entry in heap
            if (one := entry[2]).joins and _is_valid(entry)
        )
        found = nlargest(JOINED_MAX, due, key=lambda one: (now - one.due_at) / one.objective_s)
        for one in found:
            one.started_at, one.again_at, one.is_guest = now, inf, True
            self._running[one] = None
        return found

    def done(self, turn: Turn, next_at: float) -> None:
        """*turn* has ended, and is due again at *next_at* or when it was asked for meanwhile."""
        del self._running[turn]
        at = min(next_at, turn.again_at)
        turn.started_at, turn.due_at, turn.again_at, turn.is_guest = None, inf, inf, False
        if at < inf:
            self.ask(turn, at)

    def next_at(self, now: float) -> float:
        """When `take` may find one next; a turn that waits for a place alone is not counted before one is given up."""
        self._collect(now)
        free, heads = self._free(now), self._heads()
        if any(free[room] > 0 for room, _ in heads):
            return now
        at = self._waiting[0][0] if self._waiting else inf
        if heads:
            given_up = (turn.started_at + LONG_S for turn in self._running if turn.started_at is not None)
            at = min(at, min((one for one in given_up if one > now), default=inf))
        return at

    def late(self, now: float) -> dict[Turn, float]:
        """The turns that wait for longer than they may, and for how many seconds beyond that."""
        self._collect(now)
        due = (entry for heap in self._due.values() for entry in heap if _is_valid(entry))
        return {turn: late_s for _, _, turn in due if (late_s := turn.late_s(now)) > 0.0}

    def long(self, now: float) -> dict[Turn, float]:
        """The turns that have run for long enough to give up their places, and for how many seconds."""
        return {
            turn: now - turn.started_at
            for turn in self._running
            if turn.started_at is not None and now - turn.started_at >= LONG_S
        }

    @property
    def running(self) -> Iterable[Turn]:
        return self._running

    def _collect(self, now: float) -> None:
        while self._waiting and self._waiting[0][0] <= now:
            entry = heappop(self._waiting)
            if _is_valid(entry):
                turn = entry[2]
                heappush(self._due.setdefault((turn.room, turn.objective_s), []), entry)

    def _heads(self) -> dict[tuple[Room, float], Turn]:
        """The turn of each heap that is furthest behind; heaps without one are dropped."""
        for heap in self._due.values():
            while heap and not _is_valid(heap[0]):
                heappop(heap)
        self._due = {at: heap for at, heap in self._due.items() if heap}
        return {at: heap[0][2] for at, heap in self._due.items()}

    def _free(self, now: float) -> dict[Room, int]:
        """Places that are free, by room."""
        free, long_left = dict(self.places), LONG_MAX
        for turn in self._running:  # the oldest first
            if turn.is_guest:
                continue
            if turn.started_at is not None and now - turn.started_at >= LONG_S and long_left > 0:
                long_left -= 1
            else:
                free[turn.room] -= 1
        return free


def _is_valid(entry: _Entry) -> bool:
    """The turn is still due at that moment, and nobody has taken it."""
    at, _, turn = entry
    return turn.due_at == at and turn.started_at is None
