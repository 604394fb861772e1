"""Which history may be folded, and what a checkpoint keeps of it.

A ledger ends where its history is folded: moves become checkpoints, which keep ranges, counts and digests. Sums and
seams come out as if every move were still there, by three rules:

- A version and its move are folded together or not at all, and only below every version that a revert can reach. What
  is folded stays in effect, or undone, for good.
- A checkpoint takes a move only where the move goes on from it in every partition. A gap or an overlap begins another
  checkpoint, and so stays as visible as it was.
- What people did is not folded: reverts, replays, changes of the schema, repairs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.digest import added

Kind = Literal["in effect", "undone", "abandoned"]
FOLDED_STAGES = frozenset(
    {"ingest", "tier", "otree", "compact"}
)  #: what goes on by itself, for as long as a table lives
#: Of moves of these stages that stand for an act of a person all the same.
PEOPLE = frozenset({"accept-loss", "accept-foreign", "reconcile"})
VERSIONS_AT_ONCE = 50  #: folded in one transaction, which holds the trim lock
NEAR = 4  #: checkpoints of its kind on each side of a move that are looked at
FOLD_AT_LEAST = 100  #: old versions, or moves of ingest: fewer are not worth a transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Moves of one stage, kind and schema: a checkpoint of them, or one move alone."""

    stage: str
    kind: Kind
    schema_version: int
    first_move: int
    last_move: int
    lo: Vector = field(default_factory=dict)  #: of moves in effect alone
    hi: Vector = field(default_factory=dict)
    rows: int = 0  #: over all partitions, as moves count them
    digests: Vector | None = None  #: by partition; None: none were recorded
    moves: int = 1
    checkpoint: int | None = None  #: its number; None: a move

    @property
    def alike(self) -> tuple[str, str, int, bool]:
        """What all moves of a checkpoint have in common."""
        return self.stage, self.kind, self.schema_version, self.kind == "in effect" and self.digests is None

    def goes_on_from(self, before: Span) -> bool:
        """Whether *before* ends where this begins, in every partition that both have."""
        return self.alike == before.alike and all(before.hi.get(p, low) == low for p, low in self.lo.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldableVersion:
    """What the rule looks at of one version."""

    version: int
    move_id: int | None
    revert_of: int | None = None


def folded_through(last: int, reverts: Mapping[int, int]) -> int:
    """The largest version up to *last* below which no revert reaches from above it: what is below stays as it is.

    *reverts* has the version that each revert restored, by the number of the revert.
    """
    while below := [to for number, to in reverts.items() if number > last and to < last]:
        last = min(below)
    return last


def joined(before: Span, after: Span) -> Span:
    """One span of both. *after* goes on from *before*."""
    digests = None
    if before.digests is not None and after.digests is not None:
        both = {*before.digests, *after.digests}
        digests = {p: added(before.digests.get(p, 0), after.digests.get(p, 0)) for p in both}
    return replace(
        before,
        first_move=min(before.first_move, after.first_move),
        last_move=max(before.last_move, after.last_move),
        lo={**after.lo, **before.lo},
        hi={**before.hi, **after.hi},
        rows=before.rows + after.rows,
        digests=digests,
        moves=before.moves + after.moves,
    )


def grouped(spans: Iterable[Span], barriers: Collection[int] = ()) -> list[list[Span]]:
    """Checkpoints and moves, those that become one checkpoint together; a checkpoint alone stays as it is.

    No group reaches over one of the *barriers*: the moves by which a person took something over.
    """
    groups: list[tuple[Span, list[Span]]] = []
    for span in sorted(spans, key=lambda s: (s.first_move, s.last_move)):
        for at, (whole, members) in enumerate(groups):
            apart = any(whole.first_move < barrier < span.last_move for barrier in barriers)
            if not apart and span.goes_on_from(whole):
                groups[at] = joined(whole, span), [*members, span]
                break
        else:
            groups.append((span, [span]))
    return [members for _, members in groups if len(members) > 1 or members[0].checkpoint is None]


def near(known: Iterable[Span], moves: Sequence[Span]) -> list[Span]:
    """Of the checkpoints *known* those that one of *moves* may join: of its kind, `NEAR` before it and behind it.

    The others lie beside what stands there already, or would have been joined before. Where many things stay among old
    moves there are many checkpoints, and to compare all of them takes long.
    """
    alike: dict[object, list[Span]] = {}
    for one in known:
        alike.setdefault(one.alike, []).append(one)
    found: dict[int, Span] = {}
    for kind, checkpoints in alike.items():
        checkpoints.sort(key=lambda one: one.first_move)
        firsts = [one.first_move for one in checkpoints]
        places = {bisect_left(firsts, move.first_move) for move in moves if move.alike == kind}
        for place in places:
            around = checkpoints[max(place - NEAR, 0) : place + NEAR]
            found |= {one.first_move: one for one in around}
    return list(found.values())


def foldable(stage: str, state: str, trigger: str) -> bool:
    """Whether a move of this kind may be folded at all, once it is old and nothing names it."""
    return stage in FOLDED_STAGES and state in ("COMMITTED", "ABANDONED") and trigger not in PEOPLE


def without_needed(
    versions: Sequence[FoldableVersion], *, through: int, needed: Collection[int], moves: Collection[int]
) -> list[FoldableVersion]:
    """Those of *versions* that go: up to *through*, not *needed* by their number, and by a move that goes too.

    *moves* are the numbers of moves that may go.
    """
    return [
        v
        for v in versions
        if v.version <= through and v.version not in needed and v.revert_of is None and v.move_id in moves
    ]
