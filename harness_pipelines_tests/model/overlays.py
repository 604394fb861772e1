"""Recalled rows: recall, merge, release and revert of a keyed table, expire of its overlays, a reader, late attempts.

All records are in the stream view from the start. The lake is the rows that no delete file hides; an overlay is named
0, 1, ... in the order in which attempts made them. The boundary commit is one step: `moves` takes it apart, and `views`
has the claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from harness_pipelines.errors import HarnessError
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.changes.reverts import Retained, limit_of, reverted
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.overlays import (
    Overlay,
    OverlayChange,
    needless,
    next_generation,
    overlay_name,
    recalled,
    split,
)
from harness_pipelines.protocol.moves import Move, MoveState, check_open, next_attempt
from harness_pipelines.protocol.versions import Version, View, advance
from harness_pipelines_tests.model.explorer import Step
from harness_pipelines_tests.model.views_state import deletes, folded

Names = tuple[int, ...]
MERGE, RECALL, RELEASE = "merge", "recall", "release"
_THEN = datetime(2026, 1, 1, tzinfo=UTC)


class Row(NamedTuple):
    """A version: how far its batch view reaches, the rows in the lake, and its overlays."""

    batch_hi: int
    lake: Names
    overlays: Names
    revert_of: int = 0


class Attempt(NamedTuple):
    """A move in one of its attempts, and what this staged."""

    number: int
    kind: str
    base: int
    hi: int
    attempt: int = 1
    staged: bool = False
    removed: Names = ()  #: rows that it hides in the lake
    added: Names = ()  #: rows that it brings there
    on: Names = ()
    overlays: Names = ()


class Reader(NamedTuple):
    version: int = 0
    alive: bool = False


class Left(NamedTuple):
    """What may still happen."""

    recalls: int = 1
    releases: int = 1
    crashes: int = 0
    reverts: int = 0
    reads: int = 0


class State(NamedTuple):
    versions: tuple[Row, ...]
    retained_from: int
    contents: tuple[Names, ...]  #: the rows in each overlay
    owners: Names  #: the move that made each
    retired: Names
    stored: Names  #: those that are not dropped
    open: Attempt | tuple[()]  #: the move as the ledger knows it
    worker: Attempt | tuple[()]  #: the attempt that is at work
    late: Attempt | tuple[()]  #: one that was overtaken, and will wake up
    moves: int
    reader: Reader
    left: Left

    @property
    def head(self) -> Row:
        return self.versions[-1]


def _overlay(name: int, s: State) -> Overlay:
    return Overlay(segment=overlay_name(1, name, 1), rows=0, bytes=0, schema_version=1, digest="", move=s.owners[name])


def _names(overlays: tuple[Overlay, ...]) -> Names:
    return tuple(int(one.segment.split("_")[2]) for one in overlays)


def _version(number: int, row: Row, s: State, records: int) -> Version:
    return Version(
        table_id=1,
        version=number,
        stream=View(metadata="stream", snapshot=1),
        batch=View(metadata=str(number), snapshot=number),
        schema_version=1,
        bounds={0: Bounds(start=0, batch_hi=row.batch_hi, stream_hi=records, buffer_hi=records)},
        move_id=None,
        committed_at=_THEN,
        overlays=tuple(_overlay(name, s) for name in row.overlays),
    )


def _move(a: Attempt, low: int, state: MoveState = MoveState.PLANNED) -> Move:
    ranged = a.kind == MERGE
    return Move(
        move_id=a.number,
        table_id=1,
        stage=Stage.OTREE,
        shard=0,
        lo={0: low} if ranged else {},
        hi={0: a.hi} if ranged else {},
        base_version=a.base,
        schema_version=1,
        state=state,
        attempt=a.attempt,
        epoch=1,
    )


@dataclass(frozen=True, slots=True)
class Overlays:
    """*records* records of *keys* keys; *bad* names what is left out or done wrong (see `mutants`)."""

    left: Left = Left()  # noqa: RUF009  # a tuple, which nothing changes
    records: int = 4
    merged: int = 2  #: so far the batch view reaches at the start
    keys: int = 2
    bad: frozenset[str] = frozenset()
    name: str = "overlays"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "rows are recalled": lambda s: bool(s.head.overlays),
            "a merge makes the next generation": lambda s: (
                bool(s.head.overlays) and len(s.versions) > 1 and s.head.batch_hi > s.versions[-2].batch_hi
            ),
            "nothing is left of what was recalled": lambda s: (
                any(v.overlays for v in s.versions) and not s.head.overlays and s.head.batch_hi == self.records
            ),
            "a revert names an old generation again": lambda s: bool(s.head.revert_of and s.head.overlays),
            "an overlay is dropped": lambda s: len(s.stored) < len(s.contents),
            "an overlay outlives the retention of its version under a lease": lambda s: (
                s.reader.alive and s.reader.version < s.retained_from and bool(self._of(s, s.reader.version).overlays)
            ),
            "a late attempt wakes up after its move was published": lambda s: (
                bool(s.late) and bool(s.late.staged) and not s.open
            ),
        }

    def first(self) -> State:
        return State(
            versions=(Row(self.merged, folded(range(self.merged), self.keys), ()),),
            retained_from=1,
            contents=(),
            owners=(),
            retired=(),
            stored=(),
            open=(),
            worker=(),
            late=(),
            moves=0,
            reader=Reader(),
            left=self.left,
        )

    def canonical(self, state: State) -> State:
        return state

    # -- safety ---------------------------------------------------------------------------------------------

    def broken(self, s: State) -> str | None:
        for number in {*range(s.retained_from, len(s.versions) + 1), *((s.reader.version,) if s.reader.alive else ())}:
            row = self._of(s, number)
            if gone := [name for name in row.overlays if name not in s.stored]:
                held = "retained" if number >= s.retained_from else "leased"
                return f"S10: overlay {gone[0]} is gone, version {number} is {held} and names it"
            found = sorted([*row.lake, *(o for name in row.overlays for o in s.contents[name])])
            wanted = list(folded(range(row.batch_hi), self.keys))
            if found != wanted:
                return f"S16/S17: lake and overlays of version {number} have {found}, the records fold to {wanted}"
        at_work = s.worker and s.open and s.worker[:5] == s.open[:5]
        if s.worker and at_work and any(name not in s.stored for name in s.worker.overlays):
            return "S27: an overlay of an open move was dropped"
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        if step.then.contents[: len(before.contents)] != before.contents:
            return "S10: an overlay was changed, versions name it as it was"
        return None

    def is_goal(self, s: State) -> bool:
        return s.head.batch_hi == self.records and not s.open and not s.reader.alive and self._clean(s)

    def _clean(self, s: State) -> bool:
        return s.retained_from == len(s.versions) and set(s.stored) == set(s.head.overlays)

    def show(self, s: State) -> str:
        held = {name: list(s.contents[name]) for name in s.head.overlays}
        lease = f" lease v{s.reader.version}" if s.reader.alive else ""
        opened = f" {s.open.kind}#{s.open.attempt}" if s.open else ""
        return f"v{len(s.versions)} batch_hi {s.head.batch_hi} lake {list(s.head.lake)} overlays {held}{opened}{lease}"

    @staticmethod
    def _of(s: State, number: int) -> Row:
        return s.versions[number - 1]

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        yield from self._plan(s)
        yield from self._work(s)
        yield from self._revert(s)
        yield from self._readers(s)
        yield from self._expire(s)

    def _plan(self, s: State) -> Iterator[Step[State]]:
        if s.open:
            return
        base, low = len(s.versions), s.head.batch_hi
        kinds = [MERGE] if low < self.records else []
        if s.left.recalls and s.head.lake:
            kinds.append(RECALL)
        if s.left.releases and s.head.overlays:
            kinds.append(RELEASE)
        for kind in kinds:
            left = s.left
            if kind == RECALL:
                left = left._replace(recalls=left.recalls - 1)
            if kind == RELEASE:
                left = left._replace(releases=left.releases - 1)
            planned = Attempt(s.moves, kind, base, low + (kind == MERGE))
            then = s._replace(open=planned, worker=planned, moves=s.moves + 1, left=left)
            yield Step("worker", f"otree.plan {kind}", then)

    def _work(self, s: State) -> Iterator[Step[State]]:
        w = s.worker
        if w and not w.staged:
            yield Step("worker", f"otree.stage {w.kind}", self._staged(s, w))
        if w and w.staged:
            yield Step("worker", f"otree.publish v{len(s.versions) + 1}", self._published(s, w)._replace(worker=()))
        if s.late:
            yield Step("late", f"otree.publish v{len(s.versions) + 1}", self._published(s, s.late)._replace(late=()))
        if w and s.left.crashes:
            left = s.left._replace(crashes=s.left.crashes - 1)
            following = Attempt(w.number, w.kind, w.base, w.hi, next_attempt(_move(w, 0), epoch=1).attempt)
            again = s._replace(open=following, worker=following, left=left)
            yield Step("worker", "crash, next attempt", again)
            if w.staged:
                yield Step("worker", "asleep, next attempt", again._replace(late=w))

    def _staged(self, s: State, w: Attempt) -> State:
        base = self._of(s, w.base)
        held = {o % self.keys: o for name in base.overlays for o in s.contents[name]}
        lake = {o % self.keys: o for o in base.lake}
        on = tuple(_overlay(name, s) for name in base.overlays)
        if w.kind == RECALL:
            made = tuple(o for o in lake.values() if o % self.keys == 1)
            if not made:
                return s._replace(open=(), worker=())  # the move ends without effect
            hidden = () if "recall_leaves" in self.bad else made
            return self._with_made(s, w._replace(removed=hidden), on, made, beside=True)
        if w.kind == RELEASE:
            return self._with_made(s, w._replace(added=tuple(held.values())), on, None, beside=False)
        changes = {o % self.keys: o for o in range(base.batch_hi, w.hi)}
        mine, rest = split(changes, () if "merge_ignores_overlays" in self.bad else held)
        if "deletes_stay_recalled" in self.bad:
            mine = {key: o for key, o in mine.items() if not deletes(o)}
        w = w._replace(
            removed=tuple(lake[key] for key in rest if key in lake),
            added=tuple(o for o in rest.values() if not deletes(o)),
        )
        if not mine:
            return s._replace(worker=w._replace(staged=True, on=base.overlays, overlays=base.overlays))
        rows = tuple(sorted(o for o in (held | mine).values() if not deletes(o)))
        if "generation_in_place" in self.bad:
            contents = tuple(rows if n == base.overlays[0] else was for n, was in enumerate(s.contents))
            staged = w._replace(staged=True, on=base.overlays, overlays=base.overlays)
            return s._replace(contents=contents, worker=staged)
        return self._with_made(s, w, on, rows or None, beside=False)

    def _with_made(self, s: State, w: Attempt, on: tuple[Overlay, ...], rows: Names | None, *, beside: bool) -> State:
        """The attempt has staged, and made an overlay of *rows* beside those that there are or for them."""
        then = s
        if rows is not None:
            name = len(s.contents)
            then = s._replace(contents=(*s.contents, rows), owners=(*s.owners, w.number), stored=(*s.stored, name))
        made = None if rows is None else _overlay(len(s.contents), then)
        change = recalled(on, made) if beside and made is not None else next_generation(on, made)
        overlays = _names(change.on if "recall_names_nothing" in self.bad and beside else change.then)
        return then._replace(worker=w._replace(staged=True, on=_names(on), overlays=overlays))

    def _published(self, s: State, a: Attempt) -> State:
        current = None if not s.open or s.open.number != a.number else _move(s.open, s.head.batch_hi)
        if "closed_move_published" not in self.bad:
            try:
                check_open(_move(a, s.head.batch_hi), current)
            except HarnessError:
                return s
        if not {*a.removed} <= {*s.head.lake}:
            return s  # files that it hides rows of are not what they were
        head = _version(len(s.versions), s.head, s, self.records)
        change = OverlayChange(on=tuple(_overlay(n, s) for n in a.on), then=tuple(_overlay(n, s) for n in a.overlays))
        low = self._of(s, a.base).batch_hi
        try:
            made = advance(
                head,
                _move(a, low),
                view=View(metadata="new", snapshot=len(s.versions) + 1),
                buffer_hi={0: self.records},
                starts={0: 0},
                now=_THEN,
                overlays=None if "overlays_unchecked" in self.bad else change,
            )
        except HarnessError:
            return s
        named = a.overlays if "overlays_unchecked" in self.bad else _names(made.overlays)
        lake = [o for o in s.head.lake if o not in a.removed] + list(a.added)
        row = Row(made.bounds[0].batch_hi, tuple(sorted(lake)), named)
        closes = s.open and s.open.number == a.number
        return s._replace(versions=(*s.versions, row), open=() if closes else s.open)

    def _revert(self, s: State) -> Iterator[Step[State]]:
        if not s.left.reverts:
            return
        head = _version(len(s.versions), s.head, s, self.records)
        there = [_overlay(n, s).segment for n in s.stored if n not in s.retired]
        held = Retained(retained_from=s.retained_from, hot="buffer", hot_from={0: self.records}, overlays=there)
        for number in range(1, len(s.versions)):
            row = self._of(s, number)
            target = _version(number, row, s, self.records)
            if limit_of(head, target, held, starts={0: 0}) is not None:
                continue
            views = {"stream": head.stream, "batch": View(metadata="restored", snapshot=len(s.versions) + 1)}
            made = reverted(
                head,
                target,
                views=views,  # type: ignore[arg-type]
                buffer_hi={0: self.records},
                starts={0: 0},
                move_id=0,
                now=_THEN,
            )
            overlays = s.head.overlays if "revert_keeps_overlays" in self.bad else _names(made.overlays)
            then = s._replace(
                versions=(*s.versions, Row(made.bounds[0].batch_hi, row.lake, overlays, number)),
                open=s.open if "revert_leaves_moves" in self.bad else (),
                left=s.left._replace(reverts=s.left.reverts - 1),
            )
            yield Step("operator", f"revert.publish to v{number}", then)

    def _readers(self, s: State) -> Iterator[Step[State]]:
        if s.left.reads and not s.reader.version:
            for number in range(s.retained_from, len(s.versions) + 1):
                looked = s._replace(reader=Reader(number, True), left=s.left._replace(reads=s.left.reads - 1))
                yield Step("reader", f"read.look at v{number}", looked)
        if s.reader.alive:
            yield Step("reader", "read.finish", s._replace(reader=Reader(s.reader.version)))

    # -- expire ---------------------------------------------------------------------------------------------

    def _expire(self, s: State) -> Iterator[Step[State]]:
        for first in range(s.retained_from, len(s.versions) + 1):
            kept = s._replace(retained_from=first)
            trimmed = kept._replace(retired=tuple(sorted({*s.retired, *self._needless(kept)} & {*s.stored})))
            if trimmed != s:
                yield Step("expire", f"expire.trim retained from v{first}", trimmed)
        if s.retired:
            left = tuple(n for n in s.stored if n not in s.retired)
            yield Step("expire", f"expire.drop {list(s.retired)}", s._replace(stored=left, retired=()))

    def _needless(self, s: State) -> Names:
        numbers = {*range(s.retained_from, len(s.versions) + 1)}
        if "only_the_head_names" in self.bad:
            numbers = {len(s.versions)}
        if s.reader.alive and "leases_name_nothing" not in self.bad:
            numbers.add(s.reader.version)
        if s.open:
            numbers.add(s.open.base)
        in_reach = [_version(n, self._of(s, n), s, self.records).overlays for n in sorted(numbers)]
        opened = {s.open.number} if s.open and "open_moves_ignored" not in self.bad else set()
        made = {_overlay(n, s).segment: s.owners[n] for n in s.stored}
        return tuple(sorted(int(name.split("_")[2]) for name in needless(made, in_reach=in_reach, open_moves=opened)))
