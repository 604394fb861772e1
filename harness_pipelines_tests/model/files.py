"""Files and old reads: what versions, leases and open moves reach, and how expire removes the rest.

Condemning, pardoning and deleting read what is reached first and act later; publishers and readers act in between.
Version v has a metadata file named -v; data files have names of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from harness_pipelines.protocol.lake.reach import Main, Newest, Span, is_reached
from harness_pipelines.protocol.reading.reads import Cut, cut_of_version
from harness_pipelines.protocol.segments import HasMaxHi
from harness_pipelines.protocol.versions import reached_versions
from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.build import PLANNED, MoveRow, Published
from harness_pipelines_tests.model.explorer import Step

Names = tuple[int, ...]


class Move(NamedTuple):
    """The open tier move; *file* is 0 until it is written."""

    base: int
    hi: int
    file: int
    written: bool = False


class Reader(NamedTuple):
    """A reader of an old version, and the names that its plan has."""

    version: int = 0
    metadata: Names = ()
    files: Names = ()
    needs_buffer_from: int = -1
    alive: bool = False
    done: bool = False


class State(NamedTuple):
    buffer_hi: int
    dropped: int
    versions: tuple[Published, ...]
    aged: int  #: so many versions are older than the retention
    retained_from: int
    stored: Names  #: data and metadata files that exist
    old: Names  #: files written longer than the grace ago
    condemned: Names
    ripe: Names  #: condemned for longer than the grace
    move: Move | tuple[()]
    moves: int  #: how many were planned; their files are named 10, 11, ...
    reader: Reader
    marking: tuple[Names] | tuple[()]  #: what condemn has seen as reached, before it marks
    deleting: tuple[Names] | tuple[()]  #: what delete has found to be ripe and not reached, before it deletes
    compactions: int
    reverts: int
    crashes: int
    lease_ends: int


@cache
def _spans(rows: tuple[Published, ...]) -> tuple[Span, ...]:
    """What the versions reach, kept by difference. Each data file has a manifest for itself."""
    newest = Newest()
    for version, row in enumerate(rows, start=1):
        manifests = {f"of {name}": (str(name),) for name in row.files}
        newest.follow(version, Main(metadata=str(-version), manifest_list=None, manifests=manifests))
    return tuple(span for span in newest.spans() if span.kind != "manifest")


@cache
def _reached(rows: tuple[Published, ...], retained_from: int, leased: Names, bases: Names) -> Names:
    found = reached_versions(build.versions(rows), retained_from=retained_from, leased=leased, bases=bases)
    pinned = [v.version for v in found if v.version < retained_from]
    spans = [s for s in _spans(rows) if is_reached(s.first, s.last, retained_from=retained_from, pinned=pinned)]
    return tuple(sorted({int(span.path) for span in spans}))


@cache
def _plan(rows: tuple[Published, ...], number: int) -> Reader:
    """What a reader of version *number* opens."""
    known = build.versions(rows)
    cut: Cut[HasMaxHi] = cut_of_version(known[number - 1], known[number:], ())
    metadata, files = [-number], list(rows[number - 1].files)
    bounds = cut.bounds[0]
    if cut.answered_by is not None and cut.answered_by.version != number:
        metadata.append(-cut.answered_by.version)
        files += rows[cut.answered_by.version - 1].files
    buffered = cut.answered_by is None and bounds.buffer_hi > bounds.stream_hi
    return Reader(
        version=number,
        metadata=tuple(metadata),
        files=tuple(sorted(set(files))),
        needs_buffer_from=bounds.stream_hi if buffered else -1,
        alive=True,
    )


@dataclass(frozen=True, slots=True)
class Files:
    """*records* records in one partition; *bad* names what is left out or done wrong (see `mutants`)."""

    records: int = 2
    compactions: int = 1
    reverts: int = 0
    crashes: int = 0
    lease_ends: int = 1
    readers: int = 1
    bad: frozenset[str] = frozenset()
    name: str = "files"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "an old read takes its buffered rows from a later version": lambda s: len(s.reader.metadata) > 1,
            "an old read needs the buffer": lambda s: s.reader.needs_buffer_from >= 0,
            "a lease outlives the retention of its version": lambda s: (
                s.reader.alive and s.reader.version < s.retained_from
            ),
            "a data file is condemned": lambda s: any(n > 0 for n in s.condemned),
            "a metadata file is deleted": lambda s: -1 not in s.stored,
            "a data file is deleted": lambda s: (
                s.moves > 0 and any(n not in s.stored for n in range(10, 10 + s.moves)) and not s.move
            ),
            "a move's file is as old as the grace while it is open": lambda s: bool(s.move) and s.move.file in s.old,
            "a move publishes while expire looks at files": lambda s: bool(s.marking) and not s.move and s.moves > 0,
        }

    def first(self) -> State:
        return State(
            buffer_hi=self.records,
            dropped=0,
            versions=(Published((0,), (self.records,), 1),),
            aged=0,
            retained_from=1,
            stored=(-1,),
            old=(-1,),
            condemned=(),
            ripe=(),
            move=(),
            moves=0,
            reader=Reader(),
            marking=(),
            deleting=(),
            compactions=self.compactions,
            reverts=self.reverts,
            crashes=self.crashes,
            lease_ends=self.lease_ends,
        )

    def canonical(self, state: State) -> State:
        return state

    def broken(self, s: State) -> str | None:
        stored = frozenset(s.stored)
        for number in range(s.retained_from, len(s.versions) + 1):
            plan = _plan(s.versions, number)
            if gone := sorted({*plan.metadata, *plan.files} - stored):
                return f"S10: file {gone[0]} is gone, version {number} is retained and needs it"
            if 0 <= plan.needs_buffer_from < s.dropped:
                return f"S13: version {number} is retained, its buffered rows are gone"
        if s.reader.alive:
            if gone := sorted({*s.reader.metadata, *s.reader.files} - stored):
                return f"S10: file {gone[0]} is gone, a live lease of version {s.reader.version} names it"
            if 0 <= s.reader.needs_buffer_from < s.dropped:
                return f"S10: the buffered rows of version {s.reader.version} are gone under a live lease"
        if s.move:
            if -s.move.base not in stored:
                return f"S10: the base of an open move, version {s.move.base}, is gone"
            if s.move.written and s.move.file not in stored:
                return "S27: a file of an open move was removed"
        if s.dropped > s.versions[-1].stream_hi[0]:
            return f"S13: the buffer's rows below {s.dropped} are gone, the lake ends at {s.versions[-1].stream_hi[0]}"
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        gone = set(before.stored) - set(step.then.stored)
        young = gone - {*before.ripe, *(before.deleting[0] if before.deleting else ())}
        return f"S11: file {min(young)} was deleted before it was condemned for a grace" if young else None

    def is_goal(self, s: State) -> bool:
        lake_done = s.versions[-1].stream_hi[0] == s.buffer_hi and not s.move
        return lake_done and not s.reader.alive and not s.marking and not s.deleting and self._clean(s)

    def _clean(self, s: State) -> bool:
        reached = _reached(s.versions, s.retained_from, (), ())
        return set(s.stored) == set(reached) and s.retained_from == len(s.versions)

    def show(self, s: State) -> str:
        lease = f" lease v{s.reader.version}" if s.reader.alive else ""
        return (
            f"v{len(s.versions)} retained from v{s.retained_from} stored {list(s.stored)} condemned "
            f"{list(s.condemned)}{' ripe' if s.ripe else ''} head {list(s.versions[-1].files)}{lease}"
        )

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        yield from self._publishers(s)
        yield from self._readers(s)
        yield from self._clock(s)
        yield from self._expire(s)

    def _publishers(self, s: State) -> Iterator[Step[State]]:
        head, move = s.versions[-1], s.move
        if not move and head.stream_hi[0] < s.buffer_hi:
            planned = Move(len(s.versions), head.stream_hi[0] + 1, 10 + s.moves)
            yield Step("tier", f"tier.plan on v{len(s.versions)}", s._replace(move=planned, moves=s.moves + 1))
        if move:
            if not move.written:
                yield Step(
                    "tier", f"tier.stage {move.file}", _stored(s, move.file)._replace(move=move._replace(written=True))
                )
            else:
                made = Published((move.hi,), (s.buffer_hi,), len(s.versions) + 1, (*head.files, move.file))
                yield Step("tier", f"tier.publish v{len(s.versions) + 1}", _published(s, made)._replace(move=()))
            if s.crashes:
                yield Step("expire", "expire.abandon", s._replace(move=(), crashes=s.crashes - 1))
        if s.compactions and len(head.files) > 0:
            name = 20 + s.compactions
            made = head._replace(files=(name,), snapshot=len(s.versions) + 1, buffer_hi=(s.buffer_hi,), revert_of=0)
            then = _published(_stored(s, name), made)._replace(compactions=s.compactions - 1)
            yield Step("compact", f"compact.publish v{len(s.versions) + 1}", then)
        if s.reverts:
            for target in range(1, len(s.versions)):
                yield from self._revert(s, target)

    def _revert(self, s: State, target: int) -> Iterator[Step[State]]:
        row = MoveRow(0, s.move.hi, s.move.base, PLANNED, 1, 1) if s.move else None
        retained = 1 if "revert_to_unretained" in self.bad else s.retained_from
        moves = (row,) if row else ()
        plan = build.revert(s.versions, target, s.dropped, moves, (), min(retained, len(s.versions)))
        if plan.refused:
            return
        then = _published(s, build.restoring(s.versions, target, s.buffer_hi))._replace(
            move=() if plan.closes else s.move, reverts=s.reverts - 1
        )
        yield Step("operator", f"revert.publish to v{target}", then)

    def _readers(self, s: State) -> Iterator[Step[State]]:
        if not s.reader.version and self.readers:
            for number in range(s.retained_from, len(s.versions)):
                yield Step("reader", f"read.look at v{number}", s._replace(reader=_plan(s.versions, number)))
        elif s.reader.alive:
            yield Step("reader", "read.finish", s._replace(reader=Reader(version=s.reader.version, done=True)))
            if s.lease_ends:
                ended = Reader(version=s.reader.version)
                yield Step("clock", "lease_ends", s._replace(reader=ended, lease_ends=s.lease_ends - 1))

    def _clock(self, s: State) -> Iterator[Step[State]]:
        if s.aged < len(s.versions):
            yield Step("clock", f"retention_ends v{s.aged + 1}", s._replace(aged=s.aged + 1))
        young = tuple(n for n in s.stored if n not in s.old)
        if young:
            yield Step("clock", "files_age", s._replace(old=tuple(sorted((*s.old, *young)))))
        if set(s.condemned) - set(s.ripe):
            yield Step("clock", "grace_ends", s._replace(ripe=s.condemned))

    # -- expire ---------------------------------------------------------------------------------------------

    def _expire(self, s: State) -> Iterator[Step[State]]:
        kept = build.kept_from(s.versions, s.aged)
        leased = (s.reader.version,) if s.reader.alive else ()
        floor = build.floor(s.versions, len(s.versions), leased, s.aged, first=s.retained_from)[0]
        if "trim_forgets_old_reads" in self.bad:
            floor = s.versions[-1].stream_hi[0]
        if kept > s.retained_from or floor > s.dropped:
            trimmed = s._replace(retained_from=max(kept, s.retained_from), dropped=max(floor, s.dropped))
            yield Step("expire", f"expire.trim below {floor}, retained from v{trimmed.retained_from}", trimmed)
        if s.marking:
            yield Step("expire", "expire.condemn", self._condemned(s, s.marking[0]))
        else:
            # Looked at only where it would change something: a run that finds nothing is no step.
            reached = self._reached(s)
            if self._condemned(s, reached) != s:
                yield Step("expire", "expire.look_reached", s._replace(marking=(reached,)))
        if s.deleting:
            yield Step("expire", f"expire.delete {list(s.deleting[0])}", _removed(s, s.deleting[0]))
        elif s.ripe:
            reached = () if "deleted_without_recheck" in self.bad else self._reached(s)
            going = tuple(n for n in s.ripe if n not in reached)
            if going:
                yield Step("expire", "expire.recheck", s._replace(deleting=(going,)))

    def _reached(self, s: State) -> Names:
        leased = (s.reader.version,) if s.reader.alive and "leases_do_not_reach" not in self.bad else ()
        bases = (s.move.base,) if s.move and "bases_not_reached" not in self.bad else ()
        retained = len(s.versions) if "only_the_head_reaches" in self.bad else s.retained_from
        if "answering_not_reached" in self.bad:
            numbers = {*range(retained, len(s.versions) + 1), *leased, *bases}
            return tuple(sorted({n for v in numbers for n in (-v, *s.versions[v - 1].files)}))
        return _reached(s.versions, retained, leased, bases)

    def _condemned(self, s: State, reached: Names) -> State:
        is_open = bool(s.move) and "open_moves_ignored" not in self.bad
        names = []
        for name in s.stored:
            mine = s.move.file == name if s.move else False
            if name not in reached and build.may_condemn(name in s.old, mine, is_open and mine):
                names.append(name)
        ripe = tuple(n for n in s.ripe if n in names)
        if "deleted_without_grace" in self.bad:
            return _removed(s, tuple(names))
        return s._replace(condemned=tuple(names), ripe=ripe, marking=())


def _stored(s: State, name: int) -> State:
    return s._replace(stored=tuple(sorted((*s.stored, name))))


def _published(s: State, made: Published) -> State:
    return _stored(s, -len(s.versions) - 1)._replace(versions=(*s.versions, made))


def _removed(s: State, gone: Names) -> State:
    def left(names: Names) -> Names:
        return tuple(n for n in names if n not in gone)

    return s._replace(
        stored=left(s.stored), old=left(s.old), condemned=left(s.condemned), ripe=left(s.ripe), deleting=(), marking=()
    )
