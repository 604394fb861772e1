"""A ledger that is restored or made again takes over what the lake has, and is reverted afterwards.

The buffer is part of the ledger's database: what a backup did not have in it, or the lake alone has, it never held.
What a revert gives back to the buffer must be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from harness_pipelines.protocol.lake.history import floor_after
from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.build import Published
from harness_pipelines_tests.model.explorer import Step

Offsets = tuple[int, ...]
BEGUN = (Published((0,), (0,), 1),)


class Books(NamedTuple):
    """What a backup has: the ledger and the buffer."""

    buffer_hi: int = 0
    held: Offsets = ()  #: rows of the buffer
    floor: int = 0  #: trim floor
    versions: tuple[Published, ...] = BEGUN


class State(NamedTuple):
    now: Books
    backup: Books | None
    lake: tuple[int, Offsets]  #: how far the newest metadata reaches, and its rows
    log_start: int
    is_older: bool  #: the ledger was set back, and reconcile has not looked at it
    taken_over: bool
    reverts: int
    restores: int


@dataclass(frozen=True, slots=True)
class Restores:
    """*records* records in one partition; *bad* names what is left out or done wrong (see `mutants`)."""

    records: int = 4
    reverts: int = 2
    restores: int = 1
    bad: frozenset[str] = frozenset()
    name: str = "restores"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "the buffer had a part of what was taken over": lambda s: s.taken_over and 0 < len(s.now.held) < s.lake[0],
            "a ledger that was made again took the lake over": lambda s: s.taken_over and s.backup is None,
            "a revert after the lake was taken over": lambda s: s.taken_over and s.now.versions[-1].revert_of > 0,
            "a ledger that was set back goes on from the log": lambda s: (
                s.restores < self.restores and not s.is_older and not s.taken_over
            ),
        }

    def first(self) -> State:
        return State(
            now=Books(),
            backup=None,
            lake=(0, ()),
            log_start=0,
            is_older=False,
            taken_over=False,
            reverts=self.reverts,
            restores=self.restores,
        )

    def canonical(self, state: State) -> State:
        return state

    def broken(self, s: State) -> str | None:
        if s.is_older:
            return None  # nobody reads it or works on it
        head = s.now.versions[-1]
        low = head.stream_hi[0]
        shown = sorted([*head.files, *(o for o in s.now.held if low <= o < s.now.buffer_hi)])
        if shown != list(range(s.now.buffer_hi)):
            return f"S1: a read shows {shown} of [0, {s.now.buffer_hi})"
        if set(range(s.now.floor, s.now.buffer_hi)) - set(s.now.held):
            return f"S13: a revert may count on the buffer from {s.now.floor} on, it holds {list(s.now.held)}"
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        del before, step
        return None

    def is_goal(self, s: State) -> bool:
        return not s.is_older and s.now.versions[-1].stream_hi[0] == s.now.buffer_hi == self.records

    def show(self, s: State) -> str:
        head = s.now.versions[-1]
        return (
            f"v{len(s.now.versions)} lake {list(head.files)} below {head.stream_hi[0]} buffer {list(s.now.held)} to "
            f"{s.now.buffer_hi} floor {s.now.floor} log from {s.log_start}{' older' if s.is_older else ''}"
        )

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        if s.is_older:
            yield from self._reconcile(s)
            return
        yield from self._work(s)
        for target in range(1, len(s.now.versions) if s.reverts else 1):
            plan = build.revert(s.now.versions, target, s.now.floor, (), ())
            if plan.refused is None:
                made = build.restoring(s.now.versions, target, s.now.buffer_hi)
                floor = min(s.now.floor, made.stream_hi[0])
                then = _published(s, made)
                then = then._replace(now=then.now._replace(floor=floor), reverts=s.reverts - 1)
                yield Step("operator", f"revert.publish to v{target}", then)
        if s.restores:
            if s.backup is None:
                yield Step("operator", "backup", s._replace(backup=s.now))
            books, what = (Books(), "lose") if s.backup is None else (s.backup, "restore")
            if s.log_start <= max(books.buffer_hi, s.lake[0]):  # else records are lost, which reconcile names
                yield Step("operator", what, _set_back(s, books))
            if s.log_start < s.lake[0]:
                yield Step("log", "drop", s._replace(log_start=s.lake[0]))

    def _work(self, s: State) -> Iterator[Step[State]]:
        now, head = s.now, s.now.versions[-1]
        if now.buffer_hi < self.records and s.log_start <= now.buffer_hi:
            taken = now._replace(buffer_hi=now.buffer_hi + 1, held=(*now.held, now.buffer_hi))
            yield Step("ingest", f"ingest.commit {now.buffer_hi}", s._replace(now=taken))
        low = head.stream_hi[0]
        for high in {low + 1, now.buffer_hi} if low < now.buffer_hi else ():
            rows = (*head.files, *(o for o in now.held if low <= o < high))
            made = Published((high,), (now.buffer_hi,), len(now.versions) + 1, rows)
            yield Step("tier", f"tier.publish to {high}", _published(s, made)._replace(lake=(high, rows)))
        if now.floor < low:
            trimmed = now._replace(floor=low, held=tuple(o for o in now.held if o >= low))
            yield Step("expire", f"expire.trim below {low}", s._replace(now=trimmed))

    def _reconcile(self, s: State) -> Iterator[Step[State]]:
        now, (high, rows) = s.now, s.lake
        if s.log_start <= now.buffer_hi or high <= now.versions[-1].stream_hi[0]:
            yield Step("operator", "reconcile.go_on", s._replace(is_older=False))
            return
        floor = floor_after(now.floor, buffer_hi=now.buffer_hi, stream_hi=high)
        made = Published((high,), (max(high, now.buffer_hi),), len(now.versions) + 1, rows)
        books = now._replace(buffer_hi=made.buffer_hi[0], floor=floor)
        then = _published(s._replace(now=books), made)
        yield Step("operator", "reconcile.adopt", then._replace(is_older=False, taken_over=True))


def _published(s: State, made: Published) -> State:
    return s._replace(now=s.now._replace(versions=(*s.now.versions, made)))


def _set_back(s: State, books: Books) -> State:
    return s._replace(now=books, is_older=True, restores=s.restores - 1)
