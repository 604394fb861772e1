"""Expire folds old history while tier publishes, people revert and pin versions, and versions go out of reach.

One partition, of which each move of tier takes one offset. The state has what truly happened beside what the ledger
still has of it: the ledger's answers are compared with that after every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

from harness_pipelines.protocol.changes.reverts import in_effect
from harness_pipelines.protocol.checkpoints import (
    FoldableVersion,
    Span,
    folded_through,
    grouped,
    joined,
    without_needed,
)
from harness_pipelines_tests.model.explorer import Step


class Made(NamedTuple):
    """A version: the offset that its move took, or what it restored; and how far the lake reaches."""

    version: int
    low: int
    stream_hi: int
    revert_of: int | None


class Sum(NamedTuple):
    """A checkpoint."""

    kind: str
    low: int
    high: int
    rows: int
    moves: int
    first: int
    last: int


class State(NamedTuple):
    made: tuple[Made, ...]  #: all that ever happened, in order
    kept: tuple[int, ...]  #: versions whose rows the ledger has, with their moves
    undone: tuple[int, ...]  #: those of them whose move a revert took back, as the ledger marks it
    sums: tuple[Sum, ...]
    through: int
    retained: int
    pinned: int  #: 0: none
    taken: tuple[Sum, ...]  #: what was removed, and is in no checkpoint yet
    left: tuple[int, int, int]  #: publishes, reverts, pins

    @property
    def head(self) -> Made:
        return self.made[-1]


@dataclass(frozen=True, slots=True)
class Folds:
    """*bad* names what is left out or done wrong (see `mutants`)."""

    publishes: int = 4
    reverts: int = 2
    pins: int = 1
    bad: frozenset[str] = frozenset()
    name: str = "folds"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "moves are in a checkpoint": lambda s: bool(s.sums),
            "a pinned version is kept among folded ones": lambda s: 1 < s.pinned <= s.through and len(s.sums) > 1,
            "moves that were undone are folded": lambda s: any(one.kind == "undone" for one in s.sums),
            "a revert happens beside folded history": lambda s: (
                bool(s.sums) and s.head.revert_of is not None and s.head.revert_of > s.through
            ),
            "a kept version was folded later": lambda s: s.through > 2 and len(s.sums) == 1 and s.sums[0].moves > 2,
        }

    def first(self) -> State:
        start = Made(1, 0, 0, None)
        left = (self.publishes, self.reverts, self.pins)
        return State((start,), (1,), (), (), 0, 1, 0, (), left)

    def canonical(self, state: State) -> State:
        return state

    def broken(self, s: State) -> str | None:
        if lost := [v for v in (*range(s.retained, s.head.version + 1), s.pinned) if v and v not in s.kept]:
            return f"S39: version {lost[0]} is needed and folded"
        true = in_effect({m.version: m.revert_of for m in s.made}, s.head.version)
        ranges = [(m.low, m.low + 1, 1) for m in s.made if m.version in true and m.low >= 0 and _is_tier(m)]
        told = [
            (m.low, m.low + 1, 1) for m in s.made if m.version in s.kept and m.version not in s.undone and _is_tier(m)
        ]
        told += [(one.low, one.high, one.rows) for one in s.sums if one.kind == "in effect"]
        if sum(rows for *_, rows in told) != sum(rows for *_, rows in ranges):
            return "S39: the ledger counts other rows than its moves brought"
        if _seams(told) != _seams(ranges):
            return "S39: the ledger shows other seams than its moves have"
        known = sum(one.moves for one in s.sums) + sum(_is_tier(m) for m in s.made if m.version in s.kept)
        if known != sum(map(_is_tier, s.made)):
            return "S39: the ledger counts other moves than there were"
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        return None

    def is_goal(self, s: State) -> bool:
        return True

    def show(self, s: State) -> str:
        return f"head {s.head}, kept {s.kept}, undone {s.undone}, through {s.through}, retained {s.retained}, {s.sums}"

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        if s.taken:  # only a fold of two transactions stands here
            yield Step("expire", "expire.note_fold", self._noted(s, s.taken)._replace(taken=()))
            yield Step("machine", "expire.die", s._replace(taken=()))
            return
        if s.left[0]:
            following = Made(s.head.version + 1, s.head.stream_hi, s.head.stream_hi + 1, None)
            yield Step("tier", "tier.publish", self._following(s, following, 0))
        if s.left[1]:
            yield from self._reverts(s)
        if s.left[2] and not s.pinned and s.retained > 1:
            yield Step("person", "pin", s._replace(pinned=s.retained, left=(*s.left[:2], s.left[2] - 1)))
        if s.pinned:
            yield Step("person", "unpin", s._replace(pinned=0))
        if s.retained < s.head.version:
            yield Step("expire", "expire.let_go", s._replace(retained=s.retained + 1))
        if (folded := self._fold(s)) != s:
            yield Step("expire", "expire.fold", folded)

    def _following(self, s: State, made: Made, spent: int) -> State:
        left = tuple(n - (at == spent) for at, n in enumerate(s.left))
        return s._replace(made=(*s.made, made), kept=(*s.kept, made.version), left=left)  # type: ignore[arg-type]

    def _reverts(self, s: State) -> Iterator[Step[State]]:
        for target in s.made[:-1]:
            if target.version >= s.retained:
                made = Made(s.head.version + 1, -1, target.stream_hi, target.version)
                then = self._following(s, made, 1)
                yield Step("person", "revert.publish", then._replace(undone=self._marks(then)))

    def _marks(self, s: State) -> tuple[int, ...]:
        """The moves that the ledger marks: of those that are not folded, by the versions that it still has."""
        lineage = in_effect({m.version: m.revert_of for m in s.made if m.version in s.kept}, s.head.version)
        return tuple(m.version for m in s.made if m.version in s.kept and _is_tier(m) and m.version not in lineage)

    def _fold(self, s: State) -> State:
        reverts = {m.version: m.revert_of for m in s.made if m.version in s.kept and m.revert_of is not None}
        last = s.head.version - 1 if "folds_what_is_retained" in self.bad else s.retained - 1
        if "reverts_not_asked" not in self.bad:
            last = folded_through(last, reverts)
        through = max(s.through, last)
        is_revert = "reverts_folded" not in self.bad
        rows = [
            FoldableVersion(version=m.version, move_id=m.version, revert_of=m.revert_of if is_revert else None)
            for m in s.made
        ]
        needed = {1} if "pins_not_asked" in self.bad else {1, s.pinned}
        moves = {m.version for m in s.made if _is_tier(m) or not is_revert}
        going = without_needed(
            [row for row in rows if row.version in s.kept], through=through, needed=needed, moves=moves
        )
        gone = {row.version for row in going}
        removed = [m for m in s.made if m.version in gone and _is_tier(m)]
        taken = tuple(_sum(m, "undone" if m.version in s.undone else "in effect") for m in removed)
        left = s._replace(
            kept=tuple(v for v in s.kept if v not in gone),
            undone=tuple(v for v in s.undone if v not in gone),
            through=through,
        )
        if "folds_in_two" in self.bad:
            return left._replace(taken=taken)
        return self._noted(left, taken)

    def _noted(self, s: State, taken: tuple[Sum, ...]) -> State:
        spans = [self._span(one, at + 1) for at, one in enumerate(s.sums)] + [self._span(one, None) for one in taken]
        if "seams_closed" in self.bad:
            kinds = {span.kind for span in spans}
            groups = [[span for span in spans if span.kind == kind] for kind in sorted(kinds)]
        else:
            groups = grouped(spans)
        used = {span.checkpoint for group in groups for span in group}
        alone = [one for at, one in enumerate(s.sums) if at + 1 not in used]
        made = [_sum_of(reduce(joined, sorted(group, key=lambda span: span.first_move))) for group in groups]
        return s._replace(sums=tuple(sorted([*alone, *made])))

    def _span(self, one: Sum, number: int | None) -> Span:
        kind = "in effect" if "undone_folded_as_others" in self.bad else one.kind
        ranged = {"lo": {0: one.low}, "hi": {0: one.high}} if kind == "in effect" else {}
        span = Span(stage="tier", kind="in effect", schema_version=1, first_move=one.first, last_move=one.last)
        return replace(span, kind=kind, rows=one.rows, moves=one.moves, checkpoint=number, **ranged)  # type: ignore[arg-type]


def _is_tier(made: Made) -> bool:
    return made.version > 1 and made.revert_of is None


def _sum(made: Made, kind: str) -> Sum:
    return Sum(kind, made.low, made.low + 1, 1, 1, made.version, made.version)


def _sum_of(span: Span) -> Sum:
    return Sum(
        *(span.kind, span.lo.get(0, 0), span.hi.get(0, 0), span.rows, span.moves, span.first_move, span.last_move)
    )


def _seams(ranges: list[tuple[int, int, int]]) -> tuple[int, list[tuple[int, int]]]:
    """Where ranges end that nothing goes on from, and where they overlap or leave a gap."""
    at, found = 0, []
    for low, high, _ in sorted(ranges):
        if low != at:
            found.append((at, low))
        at = max(at, high)
    return at, found
