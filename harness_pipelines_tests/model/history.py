"""A server fails and a stand-by that lacks its last commits is promoted, or a backup is restored.

The ledger of a table lives on a server; the lake is one for all. What a worker has begun on one server it may end on
the next one, and the server that was left behind may come back and still have workers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from harness_pipelines.protocol.lake.history import NamedMove, lost_of, number_behind
from harness_pipelines_tests.model.explorer import Step

CLOCK = 100  #: milliseconds when the model begins: larger than any number that its first history gives out
WORKERS = 2
Named = tuple[int, int]  #: number and nonce of a move


class Ledger(NamedTuple):
    """What one server knows of the table."""

    timeline: int = 1
    compared: bool = True  #: with the lake, on this timeline
    head: int = 1  #: number of the newest version
    next_move: int = 1
    moves: tuple[Named, ...] = ()  #: that it gave numbers to
    noted: tuple[Named, ...] = ()  #: that the lake names of a history which is over


class State(NamedTuple):
    primary: Ledger
    copy: Ledger  #: the stand-by, or a backup: what a server has that is promoted
    old: Ledger | None  #: the server that failed
    lake: tuple[Named, ...]  #: moves that metadata files name
    given: tuple[tuple[int, int], ...]  #: version numbers that were given out, each with the nonce of its move
    begun: tuple[Named, ...]  #: moves that workers have staged and not published yet
    mark: int  #: the timeline that the warehouse's mark names
    clock: int
    nonces: int
    stopped: bool
    lost: bool  #: some promotion lost a commit
    left: tuple[int, int, int]  #: publishes, promotions, publishes of the old server
    believed: tuple[Named, ...] = ()  #: what a worker does not ask about, because a server had it once


@dataclass(frozen=True, slots=True)
class History:
    """*bad* names what is left out or done wrong (see `mutants`)."""

    publishes: int = 3
    promotions: int = 2
    bad: frozenset[str] = frozenset()
    name: str = "history"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "a table is stopped because its ledger lost what the lake names": lambda s: s.stopped,
            "a promotion that lost nothing goes on by itself": lambda s: s.primary.timeline > 1 and not s.lost,
            "the same copy is promoted twice": lambda s: s.primary.timeline > 2,
            "a move that was begun on a server that failed is still to be published": lambda s: any(
                move not in s.primary.moves for move in s.begun
            ),
        }

    def first(self) -> State:
        return State(
            primary=Ledger(),
            copy=Ledger(),
            old=None,
            lake=(),
            given=((1, 0),),
            begun=(),
            mark=1,
            clock=CLOCK,
            nonces=1,
            stopped=False,
            lost=False,
            left=(self.publishes, self.promotions, 1),
        )

    def canonical(self, state: State) -> State:
        return state._replace(begun=tuple(sorted(state.begun)))

    def broken(self, s: State) -> str | None:
        numbers = [number for number, _ in s.given]
        if twice := sorted({n for n in numbers if numbers.count(n) > 1}):
            return f"S3: version {twice[0]} was given twice"
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        if step.what.startswith("publish.commit"):
            [mine] = set(before.begun) - set(step.then.begun)
            if mine not in before.primary.moves:
                return f"S9: move {mine} was published by the row of another"
            if self._lost(before.primary, before.lake):
                return "S29: a ledger that lost what the lake names went on"
        if step.what.startswith("old.publish") and before.primary.compared:
            return "S5: a server that was left behind has published"
        return None

    def is_goal(self, s: State) -> bool:
        return s.primary.compared and not s.stopped and not s.begun

    def show(self, s: State) -> str:
        at = s.primary
        return (
            f"timeline {at.timeline}{'' if at.compared else ' not compared'}, v{at.head}, moves {list(at.moves)}, lake "
            f"{list(s.lake)}, begun {s.begun}{', stopped' if s.stopped else ''}"
        )

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        publishes, promotions, _ = s.left
        may = s.primary.compared or "staged_before_compared" in self.bad
        if len(s.begun) < WORKERS and publishes and may and not s.stopped:
            yield Step("worker", "publish.stage", self._staged(s))
        for mine in s.begun:
            yield from self._publish(s, mine)
        if s.copy != s.primary and s.primary.timeline == s.copy.timeline and s.primary.compared:
            yield Step("server", "server.ship", s._replace(copy=s.primary))
        if promotions:
            yield Step("server", "server.promote", self._promoted(s))
        yield from self._compare(s)
        if "verdict_kept" in self.bad and s.primary.compared and s.believed != s.lake:
            yield Step("worker", "compare.again", s._replace(believed=s.lake))
        if s.old is not None and s.left[2]:
            yield from self._old(s, s.old)

    @staticmethod
    def _staged(s: State) -> State:
        """The ledger has the row of a move before a file names it."""
        at, mine = s.primary, (s.primary.next_move, s.nonces)
        known = at._replace(next_move=at.next_move + 1, moves=(*at.moves, mine))
        left = (s.left[0] - 1, *s.left[1:])
        then = s._replace(primary=known, lake=(*s.lake, mine), begun=(*s.begun, mine), nonces=s.nonces + 1)
        return then._replace(left=left, clock=s.clock + 1)

    def _publish(self, s: State, mine: Named) -> Iterator[Step[State]]:
        """The commit asks, under the table's lock, for the history and for the move's row with its nonce."""
        at, others = s.primary, tuple(one for one in s.begun if one != mine)
        there = mine in at.moves
        if "nonce_of_row_ignored" in self.bad:
            there = mine[0] in {number for number, _ in at.moves}
        fenced = not at.compared and "commit_without_history" not in self.bad
        if fenced or not there:
            yield Step("worker", f"publish.refused {mine}", s._replace(begun=others))
            return
        made = at._replace(head=at.head + 1)
        given = (*s.given, (made.head, mine[1]))
        then = s._replace(primary=made, given=given, begun=others, clock=s.clock + 1)
        yield Step("worker", f"publish.commit v{made.head}", then)

    def _promoted(self, s: State) -> State:
        lost = bool(set(s.primary.moves) - set(s.copy.moves))
        fresh = s.copy._replace(timeline=s.primary.timeline + 1, compared=False)
        left = (s.left[0], s.left[1] - 1, s.left[2])
        return s._replace(primary=fresh, old=s.primary, stopped=False, lost=s.lost or lost, left=left)

    def _compare(self, s: State) -> Iterator[Step[State]]:
        """A worker compares ledger and lake before it goes on; where history is lost a person reconciles them."""
        if s.primary.compared:
            return
        lost = self._seen_lost(s.primary, tuple(one for one in s.lake if one not in s.believed))
        if lost and not s.stopped:
            yield Step("worker", "compare.stop", s._replace(stopped=True))
        elif lost:
            noted = s.primary._replace(noted=(*s.primary.noted, *((m.move_id, int(m.nonce)) for m in lost)))
            yield Step("operator", "compare.reconcile", self._begun_anew(s._replace(primary=noted), loses=True))
        else:
            yield Step("worker", "compare.admit", self._begun_anew(s, loses=False))

    def _begun_anew(self, s: State, *, loses: bool) -> State:
        """The head is published once more, by a number that no history gave before."""
        at = s.primary
        now = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=s.clock)
        head = number_behind(at.head, now=now)
        if "numbers_go_on" in self.bad or ("numbers_go_on_unless_lost" in self.bad and not loses):
            head = at.head + 1
        if "numbers_skip_some" in self.bad:
            head = at.head + CLOCK
        made = at._replace(compared=True, head=head)
        given = (*s.given, (head, -at.timeline))
        mark = max(s.mark, at.timeline)
        return s._replace(primary=made, given=given, stopped=False, clock=s.clock + 1, mark=mark)

    def _old(self, s: State, old: Ledger) -> Iterator[Step[State]]:
        """A worker of the server that was left behind: it asks whose the warehouse is."""
        if s.mark > old.timeline and "mark_not_read" not in self.bad:
            return
        if not old.compared or not s.primary.compared:
            return
        left = (*s.left[:2], s.left[2] - 1)
        yield Step("old", "old.publish", s._replace(left=left))

    # -- the rules ------------------------------------------------------------------------------------------

    def _seen_lost(self, at: Ledger, lake: tuple[Named, ...]) -> list[NamedMove]:
        if "lake_not_compared" in self.bad:
            return []
        if "nonces_not_compared" in self.bad:
            known = {number for number, _ in (*at.moves, *at.noted)}
            return [NamedMove(move_id=n, nonce=str(x)) for n, x in lake if n not in known]
        return self._lost(at, lake)

    @staticmethod
    def _lost(at: Ledger, lake: tuple[Named, ...]) -> list[NamedMove]:
        known: dict[int, set[str]] = {}
        for number, nonce in (*at.moves, *at.noted):
            known.setdefault(number, set()).add(str(nonce))
        return lost_of((NamedMove(move_id=n, nonce=str(x)) for n, x in lake), known, highest=at.next_move - 1)
