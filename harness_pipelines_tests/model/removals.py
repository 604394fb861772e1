"""A holder of expire that sleeps while it removes a file, beside reconcile, which found that file in the lake.

One file. A holder chooses what is ripe, looks at what is reached, notes that it begins, and sends the request: each of
these is a step, and between any two of them its claim may be lost. Reconcile fences all claims, pardons what was
condemned, looks whether the file is there, and commits: a transaction that holds the claims, beside which requests of
holders that noted before it arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from harness_pipelines_tests.model.explorer import Step

CHOSEN, LOOKED, BEGUN = "chosen", "looked", "begun"


class State(NamedTuple):
    is_stored: bool
    is_condemned: bool
    noted: str  #: "lately": a holder began to remove the file within the hour; "": none did; "long ago"
    epoch: int  #: of the claim of expire
    hands: tuple[tuple[int, str], ...]  #: (epoch, what it has done) of each holder in the midst of its work
    adopting: bool  #: reconcile has fenced, pardoned and looked; its COMMIT comes
    adopted: bool
    thefts: int  #: claims that may still be lost
    attempts: int  #: of reconcile


@dataclass(frozen=True, slots=True)
class Removals:
    """*thefts* holders lose their claim; *bad* names what is left out or done wrong (see `mutants`)."""

    thefts: int = 2
    attempts: int = 2
    bad: frozenset[str] = frozenset()
    name: str = "removals"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "a holder sleeps with its request before it": lambda s: (s.epoch - 1, BEGUN) in s.hands,
            "a holder was killed after its note": lambda s: s.noted == "lately" and s.is_stored and not s.hands,
            "a note is older than the hour": lambda s: s.noted == "long ago" and s.is_stored,
            "reconcile comes upon a holder that has chosen": lambda s: (
                s.adopting and any(did in (CHOSEN, LOOKED) for _, did in s.hands)
            ),
            "a file was adopted that had been condemned": lambda s: s.adopted and s.is_stored,
            "a file was removed before anybody asked for it": lambda s: not s.is_stored and not s.adopted,
        }

    def first(self) -> State:
        return State(True, True, "", 1, (), False, False, self.thefts, self.attempts)

    def canonical(self, state: State) -> State:
        return state._replace(hands=tuple(sorted(state.hands)))

    def broken(self, s: State) -> str | None:
        if s.adopted and not s.is_stored:
            return "S10: reconcile published a version, a file of it is gone"
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        return None

    def is_goal(self, s: State) -> bool:
        """The file is adopted or removed, or reconcile has no attempt left."""
        return s.adopted or not s.is_stored or not s.attempts

    def show(self, s: State) -> str:
        said = "adopted" if s.adopted else "condemned" if s.is_condemned else "pardoned"
        return f"{said}, {'stored' if s.is_stored else 'gone'}, noted {s.noted or 'never'}, e{s.epoch} {list(s.hands)}"

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        for at, (epoch, did) in enumerate(s.hands):
            rest = (*s.hands[:at], *s.hands[at + 1 :])
            yield from self._hold(s, epoch, did, rest)
            yield Step("machine", "expire.die", s._replace(hands=rest))
        if not any(epoch == s.epoch for epoch, _ in s.hands) and s.is_condemned and not s.adopted and not s.adopting:
            yield Step("expire", "expire.choose", s._replace(hands=(*s.hands, (s.epoch, CHOSEN))))
        if s.thefts and not s.adopting:  # reconcile has the rows of all claims
            yield Step("expire", "expire.take_over", s._replace(epoch=s.epoch + 1, thefts=s.thefts - 1))
        if s.noted == "lately" and not any(did == BEGUN for _, did in s.hands):  # no request lasts for an hour
            yield Step("clock", "hour_ends", s._replace(noted="long ago"))
        yield from self._reconcile(s)

    def _hold(self, s: State, epoch: int, did: str, rest: tuple[tuple[int, str], ...]) -> Iterator[Step[State]]:
        def put(state: State, now: str) -> State:
            return state._replace(hands=(*rest, (epoch, now)))

        if did == CHOSEN:
            then = s._replace(hands=rest) if s.adopted else put(s, LOOKED)
            yield Step("expire", "expire.recheck", then)
        elif did == LOOKED:
            yield from self._begin(s, epoch, s._replace(hands=rest), put)
        else:
            gone = s._replace(is_stored=False, is_condemned=False, hands=rest)
            yield Step("expire", "expire.delete", gone if s.is_stored else s._replace(hands=rest))

    def _begin(self, s: State, epoch: int, over: State, put: Callable[[State, str], State]) -> Iterator[Step[State]]:
        """One transaction: the claim's row, then those of the condemned files, both of which reconcile has."""
        if epoch != s.epoch and "begin_unfenced" not in self.bad:
            yield Step("expire", "expire.begin FencedOut", over)
        elif not s.is_condemned and "begins_what_was_pardoned" not in self.bad:
            yield Step("expire", "expire.begin nothing", over)
        elif not s.adopting or {"begin_unfenced", "begins_what_was_pardoned"} <= self.bad:
            noted = s if "removal_not_noted" in self.bad else s._replace(noted="lately")
            yield Step("expire", "expire.begin", put(noted, BEGUN))

    def _reconcile(self, s: State) -> Iterator[Step[State]]:
        if s.adopting:
            yield Step("operator", "reconcile.adopt", s._replace(adopting=False, adopted=True))
        elif s.attempts and not s.adopted and not any(epoch == s.epoch for epoch, _ in s.hands):  # its claim has ended
            begun = s._replace(attempts=s.attempts - 1)
            if s.noted != "lately" or "pardon_takes_notes" in self.bad:
                begun = begun._replace(is_condemned=False, noted="")
            refused = not s.is_stored or (begun.noted and "notes_ignored" not in self.bad)
            if refused:  # its transaction is undone
                yield Step("operator", "reconcile.refused", s._replace(attempts=s.attempts - 1))
            else:
                yield Step("operator", "reconcile.look", begun._replace(epoch=s.epoch + 1, adopting=True))
