"""Those who delete the files of a dropped table, beside somebody who makes a table of these files again.

One folder with one file. A purge looks which folders are noted, notes that it begins, and sends a request for what it
has listed: each of these is a step. Then it begins again, until a listing shows nothing; then the note goes. Meanwhile
somebody may take the file out of a backup, make a table of it, and drop that table with a purge as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from harness_pipelines_tests.model.explorer import Step

LOOKED, BEGUN, DONE, EMPTY = "looked", "begun", "done", "empty"


Hand = tuple[str, bool]  #: what a purge has done, and whether it is the last one that noted that it begins


class State(NamedTuple):
    is_stored: bool
    note: str  #: "asked" by a drop; "begun" by a purge; "" when there is none
    hands: tuple[Hand, ...]
    is_placed: bool  #: a table lies in the folder
    is_broken: bool  #: and its file was deleted
    purges: int  #: that may still be started
    makers: int  #: of a table from the folder
    restores: int  #: of the file from a backup
    drops: int  #: of such a table


@dataclass(frozen=True, slots=True)
class Purges:
    """Up to *purges* run at once or one after the other; *bad* names what is left out or done wrong (`mutants`)."""

    purges: int = 3
    makers: int = 2
    restores: int = 2
    drops: int = 1
    bad: frozenset[str] = frozenset()
    name: str = "purges"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "a table lies in a folder that a purge has looked at": lambda s: (
                s.is_placed and any(did == LOOKED for did, _ in s.hands)
            ),
            "a purge stands between two requests beside a table": lambda s: (
                s.is_placed and any(did == DONE for did, _ in s.hands)
            ),
            "two purges have their requests before them": lambda s: [did for did, _ in s.hands].count(BEGUN) == 2,
            "a purge is about to forget a note with which another one has begun": lambda s: (
                s.note == "begun" and (EMPTY, False) in s.hands and (BEGUN, True) in s.hands
            ),
            "all is gone and forgotten": lambda s: not s.is_stored and not s.note and not s.hands,
        }

    def first(self) -> State:
        return State(True, "asked", (), False, False, self.purges, self.makers, self.restores, self.drops)

    def canonical(self, state: State) -> State:
        return state._replace(hands=tuple(sorted(state.hands)))

    def broken(self, s: State) -> str | None:
        return "S10: a file of a table was deleted by the purge of an earlier one" if s.is_broken else None

    def broke(self, before: State, step: Step[State]) -> str | None:
        return None

    def is_goal(self, s: State) -> bool:
        """Nothing is left to do, or nobody is left to do it."""
        return not s.note or s.is_placed or not s.purges

    def show(self, s: State) -> str:
        place = "a table" if s.is_placed else "no table"
        return f"{place}, {'stored' if s.is_stored else 'gone'}, note {s.note or 'none'}, {list(s.hands)}"

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        for at, (did, is_last) in enumerate(s.hands):
            rest = (*s.hands[:at], *s.hands[at + 1 :])
            yield self._purge(s, did, is_last, rest)
            yield Step("machine", "purge.die", s._replace(hands=rest))
        if s.purges and s.note and not s.is_placed:
            yield Step("purge", "purge.look", s._replace(hands=(*s.hands, (LOOKED, False)), purges=s.purges - 1))
        yield from self._operator(s)

    def _purge(self, s: State, did: str, is_last: bool, rest: tuple[Hand, ...]) -> Step[State]:
        def then(state: State, now: str) -> State:
            return state._replace(hands=(*rest, (now, is_last)))

        if did == BEGUN:
            gone = s._replace(is_stored=False, is_broken=s.is_placed and s.is_stored)
            return Step("purge", "purge.delete", then(gone, DONE))
        if did == DONE and not s.is_stored:
            return Step("purge", "purge.list nothing", then(s, EMPTY))
        if did == EMPTY:
            forgets = is_last or "forgets_any_note" in self.bad
            return Step("purge", "purge.forget", s._replace(hands=rest, note="" if forgets else s.note))
        if did == DONE and "begins_once" in self.bad:
            return Step("purge", "purge.go_on", then(s, BEGUN))
        return self._begin(s, rest)

    def _begin(self, s: State, rest: tuple[Hand, ...]) -> Step[State]:
        """One transaction; a rebuild of a table waits for its end."""
        if not s.note or (s.is_placed and "begins_on_a_table" not in self.bad):
            return Step("purge", "purge.begin nothing", s._replace(hands=rest))
        note = s.note if "begin_not_noted" in self.bad else "begun"
        return Step("purge", "purge.begin", s._replace(note=note, hands=(*_none_is_last(rest), (BEGUN, True))))

    def _operator(self, s: State) -> Iterator[Step[State]]:
        under_way = any(did == BEGUN for did, _ in s.hands)
        if s.restores and not s.is_stored and not s.is_placed and not under_way:  # no request lasts as long as that
            yield Step("operator", "restore", s._replace(is_stored=True, restores=s.restores - 1))
        if s.makers and s.is_stored and not s.is_placed:
            refused = s.note == "begun" and "notes_ignored" not in self.bad
            made = s._replace(is_placed=not refused, makers=s.makers - 1)
            yield Step("operator", "make.refused" if refused else "make", made)
        if s.drops and s.is_placed:
            left = s._replace(is_placed=False, drops=s.drops - 1)
            if s.note:  # of the drop before, which somebody made this table without
                yield Step("operator", "drop", left)
            else:
                yield Step("operator", "drop", left._replace(note="asked", hands=_none_is_last(s.hands)))


def _none_is_last(hands: tuple[Hand, ...]) -> tuple[Hand, ...]:
    return tuple((did, False) for did, _ in hands)
