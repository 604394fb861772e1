"""A reader of the head against ingest, tier, retire and drop: the trim lock, lease first and then look.

The reader's short transaction is three steps (lock, look, commit), and so is the one that retires (lock, ended leases
go, decide and commit). Two partitions, so that a vector can be ahead in one and behind in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.reading.reads import cut_now
from harness_pipelines.protocol.segments import retirable
from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.build import Published, Vec
from harness_pipelines_tests.model.explorer import Step

IDLE, ASKED, LOOKED, READING, MIDWAY, DONE, FAILED = "idle", "asked", "looked", "reading", "midway", "done", "failed"
OPEN, CLOSED, RETIRED, DROPPED = "open", "closed", "retired", "dropped"
NO_LEASE, ALIVE, ENDED, GONE = "", "alive", "ended", "gone"
Row = tuple[int, int]  #: (partition, offset)


class Segment(NamedTuple):
    state: str
    high: Vec  #: () while it is open
    rows: tuple[Row, ...]

    @property
    def max_hi(self) -> Mapping[int, int] | None:
        return build.vector(self.high) if self.high else None


class Named(NamedTuple):
    """A segment and its place in the table, as `protocol.segments` sees it."""

    number: int
    state: str
    high: Vec

    @property
    def max_hi(self) -> Mapping[int, int] | None:
        return build.vector(self.high) if self.high else None


class Reader(NamedTuple):
    pc: str = IDLE
    lease: str = NO_LEASE
    version: int = 0
    stream_hi: Vec = ()
    buffer_hi: Vec = ()
    segments: tuple[int, ...] = ()
    seen: tuple[Row, ...] = ()
    early: tuple[int, Vec, tuple[Named, ...]] | tuple[()] = ()  #: what a mutant read too early


class Trim(NamedTuple):
    pc: str = IDLE
    early: tuple[int, ...] | None = None  #: leased versions as a mutant read them before the lock


class State(NamedTuple):
    buffer_hi: Vec
    versions: tuple[Published, ...]
    lake: tuple[tuple[Row, ...], ...]  #: rows of each version's stream view
    segments: tuple[Segment, ...]
    reader: Reader
    trim: Trim
    ends: int  #: leases that may still end
    rotations: int


@cache
def _cut(number: int, head: Published, buffer_hi: Vec, segments: tuple[Named, ...]) -> tuple[Vec, Vec, tuple[int, ...]]:
    positions = {p: Bounds(start=0, batch_hi=0, stream_hi=0, buffer_hi=hi) for p, hi in enumerate(buffer_hi)}
    cut = cut_now(build.version(number, head), positions, segments)
    low = tuple(cut.bounds[p].stream_hi for p in sorted(cut.bounds))
    high = tuple(cut.bounds[p].buffer_hi for p in sorted(cut.bounds))
    return low, high, tuple(s.number for s in cut.segments)


@cache
def _retires(segments: tuple[Named, ...], floor: Vec) -> tuple[int, ...]:
    return tuple(s.number for s in retirable(segments, build.vector(floor)))


@dataclass(frozen=True, slots=True)
class Reading:
    """*ends* offsets per partition; *bad* names what is left out or done wrong (see `mutants`)."""

    ends: Vec = (1, 1)
    rotations: int = 1
    lease_ends: int = 1
    bad: frozenset[str] = frozenset()
    name: str = "reading"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "a read returns rows of both tiers": lambda s: (
                s.reader.pc == DONE and any(s.reader.stream_hi) and s.reader.stream_hi != s.reader.buffer_hi
            ),
            "the lake moved under a reader": lambda s: (
                s.reader.pc in (READING, MIDWAY) and s.reader.version < len(s.versions)
            ),
            "a reader waits for a decision of expire": lambda s: s.reader.pc == IDLE and s.trim.pc != IDLE,
            "expire waits for a reader's look": lambda s: s.reader.pc == LOOKED,
            "a segment was dropped under a reader whose lease had ended": lambda s: (
                s.reader.pc in (READING, MIDWAY) and any(s.segments[n].state == DROPPED for n in s.reader.segments)
            ),
            "a read ends loudly": lambda s: s.reader.pc == FAILED,
            "one partition is ahead of the other": lambda s: len(set(s.versions[-1].stream_hi)) > 1,
        }

    def first(self) -> State:
        zero = tuple(0 for _ in self.ends)
        return State(
            buffer_hi=zero,
            versions=(Published(zero, zero, 1),),
            lake=((),),
            segments=(Segment(OPEN, (), ()),),
            reader=Reader(),
            trim=Trim(),
            ends=self.lease_ends,
            rotations=self.rotations,
        )

    def canonical(self, state: State) -> State:
        return state

    def broken(self, s: State) -> str | None:
        head, reader = s.versions[-1], s.reader
        if sorted(s.lake[-1]) != _rows(head.stream_hi):
            return f"S1: the lake has {s.lake[-1]} below {head.stream_hi}"
        hot = [r for g in s.segments if g.state != DROPPED for r in g.rows if r[1] >= head.stream_hi[r[0]]]
        wanted = [r for r in _rows(s.buffer_hi) if r[1] >= head.stream_hi[r[0]]]
        if sorted(hot) != wanted:
            return f"S13: the buffer has {sorted(hot)} of {wanted}"
        if reader.pc in (READING, MIDWAY) and reader.lease == ALIVE:
            gone = [n for n in reader.segments if s.segments[n].state == DROPPED]
            if gone:
                return f"S10: segment {gone[0]} was dropped, a live lease names it"
        if reader.pc == DONE and sorted(reader.seen) != _rows(reader.buffer_hi):
            return f"S2: a reader below {reader.buffer_hi} got {sorted(reader.seen)}"
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        then = step.then
        if any(a < b for b, a in zip(before.buffer_hi, then.buffer_hi, strict=True)):
            return "S3: buffer_hi fell"
        looked = step.what.startswith("read.look") and then.reader.buffer_hi
        if looked and then.reader.buffer_hi != before.buffer_hi:
            return f"S2: the cut {then.reader.buffer_hi} is not one of this instant, which is {before.buffer_hi}"
        return None

    def is_goal(self, s: State) -> bool:
        settled = s.versions[-1].stream_hi == s.buffer_hi == self.ends and s.trim.pc == IDLE
        return settled and s.reader.pc in (DONE, FAILED) and all(g.state in (OPEN, DROPPED) for g in s.segments)

    def show(self, s: State) -> str:
        segments = " ".join(f"{g.state}<{list(g.high) or '?'}{list(g.rows)}" for g in s.segments)
        return (
            f"v{len(s.versions)} stream_hi {s.versions[-1].stream_hi} buffer_hi {s.buffer_hi} {segments} "
            f"reader {s.reader.pc} lease {s.reader.lease or 'none'}"
        )

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        yield from self._writers(s)
        yield from self._read(s)
        yield from self._trim(s)

    def _writers(self, s: State) -> Iterator[Step[State]]:
        newest = len(s.segments) - 1
        for p, end in enumerate(self.ends):
            if s.buffer_hi[p] < end:
                row = (p, s.buffer_hi[p])
                grown = s.segments[-1]._replace(rows=(*s.segments[-1].rows, row))
                high = tuple(hi + (q == p) for q, hi in enumerate(s.buffer_hi))
                yield Step("ingest", f"ingest.commit {row}", _segment(s, newest, grown)._replace(buffer_hi=high))
        if s.rotations:
            made = (*s.segments, Segment(OPEN, (), ()))
            yield Step("ingest", "ingest.rotate", s._replace(segments=made, rotations=s.rotations - 1))
        for i, g in enumerate(s.segments):
            if g.state == OPEN and i < newest:
                yield Step("ingest", f"ingest.close seg{i}", _segment(s, i, g._replace(state=CLOSED, high=s.buffer_hi)))
        head = s.versions[-1]
        if s.trim.pc == IDLE and head.stream_hi != s.buffer_hi:  # both lock the table's row
            for p in range(len(self.ends)):
                if head.stream_hi[p] < s.buffer_hi[p]:
                    yield Step("tier", f"tier.publish partition {p}", self._tiered(s, p))
        if s.reader.lease == ALIVE and s.ends:
            ended = s._replace(reader=s.reader._replace(lease=ENDED), ends=s.ends - 1)
            yield Step("clock", "lease_ends", ended)

    @staticmethod
    def _tiered(s: State, p: int) -> State:
        head = s.versions[-1]
        stream_hi = tuple(s.buffer_hi[q] if q == p else hi for q, hi in enumerate(head.stream_hi))
        named = [g for g in s.segments if g.state not in (RETIRED, DROPPED)]
        taken = [r for g in named for r in g.rows if r[0] == p and head.stream_hi[p] <= r[1] < stream_hi[p]]
        made = Published(stream_hi, s.buffer_hi, len(s.versions) + 1)
        return s._replace(versions=(*s.versions, made), lake=(*s.lake, (*s.lake[-1], *taken)))

    # -- the reader -----------------------------------------------------------------------------------------

    def _read(self, s: State) -> Iterator[Step[State]]:
        r = s.reader
        match r.pc:
            case "idle" if s.trim.pc == IDLE or "reader_without_lock" in self.bad:
                early = _now(s) if self.bad & {"two_statements", "segments_listed_before"} else ()
                yield _reads(s, "read.lock shared", r._replace(pc=ASKED, early=early))
            case "asked":
                yield _reads(s, "read.look", self._look(s, r))
            case "looked":
                lease = NO_LEASE if "look_before_lease" in self.bad else ALIVE
                yield _reads(s, "read.commit lease", r._replace(pc=READING, lease=lease))
            case "reading" if r.lease == NO_LEASE:
                yield _reads(s, "read.lease late", r._replace(lease=ALIVE))
            case "reading":
                rows = [w for w in s.lake[r.version - 1] if w[1] < r.stream_hi[w[0]]]
                yield _reads(s, "read.lake", r._replace(pc=MIDWAY, seen=tuple(rows)))
            case "midway":
                yield self._read_buffer(s, r)

    def _look(self, s: State, r: Reader) -> Reader:
        """One statement: the head, the positions, the segments, and the lease that names the version."""
        number, buffer_hi, segments = _now(s)
        if "two_statements" in self.bad and r.early:
            _, buffer_hi, segments = r.early
        if "segments_listed_before" in self.bad and r.early:
            segments = r.early[2]
        low, high, named = _cut(number, s.versions[-1], buffer_hi, segments)
        return Reader(pc=LOOKED, version=number, stream_hi=low, buffer_hi=high, segments=named)

    def _read_buffer(self, s: State, r: Reader) -> Step[State]:
        """Segments in [stream_hi, buffer_hi), then the last check of the lease."""
        lost = [n for n in r.segments if s.segments[n].state == DROPPED]
        ended = r.lease != ALIVE and "lease_unchecked" not in self.bad
        if ended or (lost and "missing_is_empty" not in self.bad):
            return _reads(s, "read.finish LeaseEnded", r._replace(pc=FAILED, seen=()))
        found = [w for n in r.segments if n not in lost for w in s.segments[n].rows]
        unbounded = "tiers_unbounded" in self.bad
        hot = [w for w in found if (unbounded or w[1] >= r.stream_hi[w[0]]) and w[1] < r.buffer_hi[w[0]]]
        return _reads(s, "read.finish", r._replace(pc=DONE, seen=(*r.seen, *hot), lease=GONE))

    # -- expire ---------------------------------------------------------------------------------------------

    def _trim(self, s: State) -> Iterator[Step[State]]:
        held = s.reader.pc in (ASKED, LOOKED) and "reader_without_lock" not in self.bad
        match s.trim.pc:
            case "idle" if self._would_retire(s):
                early = self._leased(s) if "decided_before_lock" in self.bad else None
                if early is not None:
                    yield Step("expire", "expire.read early", s._replace(trim=Trim("waiting", early)))
                elif not held:
                    yield Step("expire", "expire.lock", s._replace(trim=Trim("locked")))
            case "waiting" if not held:
                yield Step("expire", "expire.lock", s._replace(trim=Trim("locked", s.trim.early)))
            case "locked":
                reader = s.reader._replace(lease=GONE) if s.reader.lease == ENDED else s.reader
                yield Step(
                    "expire", "expire.delete_leases", s._replace(reader=reader, trim=Trim("clean", s.trim.early))
                )
            case "clean":
                yield Step("expire", "expire.retire", self._retired(s))
        for i, g in enumerate(s.segments):
            if g.state == RETIRED:
                yield Step("expire", f"expire.drop seg{i}", _segment(s, i, g._replace(state=DROPPED)))

    def _would_retire(self, s: State) -> bool:
        return any(g.state == CLOSED for g in s.segments)

    def _leased(self, s: State) -> tuple[int, ...]:
        """What the ledger's lease rows name; an ended one counts until it is deleted."""
        visible = s.reader.lease in (ALIVE, ENDED)
        return (s.reader.version,) if visible and "leases_ignored" not in self.bad else ()

    def _retired(self, s: State) -> State:
        leased = self._leased(s) if s.trim.early is None else s.trim.early
        settled = len(s.versions)
        floor = build.floor(s.versions, settled, leased, aged=settled)
        if "floor_of_ingest" in self.bad:
            floor = s.buffer_hi
        if "floor_of_fastest_partition" in self.bad:
            floor = tuple(max(floor) for _ in floor)
        segments = s.segments
        for number in _retires(_named(s), floor):
            gone = segments[number]._replace(state=RETIRED)
            segments = (*segments[:number], gone, *segments[number + 1 :])
        return s._replace(segments=segments, trim=Trim())


def _rows(high: Vec) -> list[Row]:
    return [(p, o) for p, hi in enumerate(high) for o in range(hi)]


def _named(s: State) -> tuple[Named, ...]:
    return tuple(Named(i, g.state, g.high) for i, g in enumerate(s.segments) if g.state != DROPPED)


def _now(s: State) -> tuple[int, Vec, tuple[Named, ...]]:
    return len(s.versions), s.buffer_hi, _named(s)


def _reads(s: State, what: str, reader: Reader) -> Step[State]:
    return Step("reader", what, s._replace(reader=reader))


def _segment(s: State, i: int, segment: Segment) -> State:
    return s._replace(segments=(*s.segments[:i], segment, *s.segments[i + 1 :]))
