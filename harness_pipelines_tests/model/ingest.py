"""Two workers of ingest, the segments that they write to, and a schema that changes under them.

An ingest commit is one transaction, but not one step: it shares the segment's row, writes rows and locks the position,
looks at the claim, and commits. Closing a segment waits for whoever shares its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from harness_pipelines.protocol.segments import check_unit, check_writable, may_retire
from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.build import ClaimRow
from harness_pipelines_tests.model.explorer import Step

IDLE, TAKING, HELD, POLLED = "idle", "taking", "held", "polled"
SHARING, WRITTEN, UNKNOWN = "sharing", "written", "unknown"
NOBODY, OPEN_END = -1, -1


class Segment(NamedTuple):
    state: str
    max_hi: int  #: -1 while it is open
    schema: int
    rows: tuple[int, ...]


class Worker(NamedTuple):
    """One ingest worker, and the unit that it has in hand."""

    pc: str = IDLE
    epoch: int = 0
    low: int = 0
    high: int = 0
    schema: int = 0  #: that the unit was decoded with
    segment: int = -1
    alive_then: bool = False


class Left(NamedTuple):
    """Faults and other events that may still happen."""

    crashes: int = 0
    ends: int = 0
    lost: int = 0
    rotations: int = 0
    evolutions: int = 0


class State(NamedTuple):
    buffer_hi: int
    schema: int  #: of the ingest position
    stream_hi: int
    lake: tuple[int, ...]
    segments: tuple[Segment, ...]
    claim: ClaimRow
    pending: tuple[int, Worker] | tuple[()]  #: whose COMMIT is under way, without its client
    mixed: bool  #: a row was committed under another schema than it was decoded with
    workers: tuple[Worker, Worker]
    left: Left


@cache
def _retires(max_hi: int, stream_hi: int) -> bool:
    return may_retire(None if max_hi < 0 else {0: max_hi}, {0: stream_hi})


@cache
def _unit_refused(low: int, schema: int, buffer_hi: int, schema_now: int) -> str | None:
    key = {"partition": 0, "low": low, "decoded_with": schema}
    return build.verdict(lambda: check_unit("t", buffer_hi=buffer_hi, schema_version=schema_now, **key))


@dataclass(frozen=True, slots=True)
class Ingest:
    """*records* records in one partition; *bad* names what is left out or done wrong (see `mutants`)."""

    left: Left
    records: int = 2
    bad: frozenset[str] = frozenset()
    name: str = "ingest"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "two holders have units in hand": lambda s: all(w.pc in (POLLED, SHARING, WRITTEN) for w in s.workers),
            "a segment is closed": lambda s: any(g.state == "closed" for g in s.segments),
            "a segment is retired": lambda s: any(g.state == "retired" for g in s.segments),
            "a unit waits to commit to a segment that is not the newest": lambda s: any(
                w.pc == SHARING and w.segment < len(s.segments) - 1 for w in s.workers
            ),
            "a COMMIT is under way without its client": lambda s: bool(s.pending),
            "a unit was decoded with an older schema": lambda s: any(0 < w.schema < s.schema for w in s.workers),
        }

    def first(self) -> State:
        return State(
            buffer_hi=0,
            schema=1,
            stream_hi=0,
            lake=(),
            segments=(Segment("open", OPEN_END, 1, ()),),
            claim=ClaimRow(NOBODY, 0, False),
            pending=(),
            mixed=False,
            workers=(Worker(), Worker()),
            left=self.left,
        )

    def canonical(self, state: State) -> State:
        """Workers in their natural order; a claim that they hold moves with them."""
        one, two = state.workers
        if one < two:
            return state
        swap = {0: 1, 1: 0}
        claim = state.claim._replace(holder=swap.get(state.claim.holder, state.claim.holder))
        pending = (swap[state.pending[0]], state.pending[1]) if state.pending else ()
        swapped = state._replace(workers=(two, one), claim=claim, pending=pending)
        return min(state, swapped) if one == two else swapped

    def broken(self, s: State) -> str | None:
        if s.lake != tuple(range(s.stream_hi)):
            return f"S1: the lake has {list(s.lake)} of [0, {s.stream_hi})"
        hot = sorted(r for g in s.segments if g.state != "retired" for r in g.rows if r >= s.stream_hi)
        if hot != list(range(s.stream_hi, s.buffer_hi)):
            return f"S1/S13: the buffer has {hot} of [{s.stream_hi}, {s.buffer_hi})"
        return "S22: a record was decoded with one schema and committed under another" if s.mixed else None

    def broke(self, before: State, step: Step[State]) -> str | None:
        action, then = step.what.partition(" ")[0], step.then
        if then.buffer_hi < before.buffer_hi:
            return "S3: buffer_hi fell"
        if action == "ingest.take_claim" and then.claim.epoch > before.claim.epoch and before.claim.alive:
            return "S5: a claim was taken whose lease had not ended"
        if action not in ("ingest.write", "ingest.commit"):
            return None
        i = int(step.who[1:]) - 1
        worker = before.pending[1] if before.pending and "late" in step.what else before.workers[i]
        if action == "ingest.commit" and worker.epoch != before.claim.epoch:
            return f"S5: the holder of epoch {worker.epoch} committed, the claim is at epoch {before.claim.epoch}"
        if action == "ingest.write" and then.workers[i].pc == WRITTEN and not before.claim.alive:
            return "S5: the fence let a holder pass whose lease had ended"
        return None

    def is_goal(self, s: State) -> bool:
        return s.stream_hi == self.records and not s.pending and all(w.pc == IDLE for w in s.workers)

    def show(self, s: State) -> str:
        segments = " ".join(f"{g.state}<{g.max_hi if g.max_hi >= 0 else '?'}{list(g.rows)}" for g in s.segments)
        lease = "" if s.claim.alive else " ended"
        return f"buffer_hi {s.buffer_hi} stream_hi {s.stream_hi} {segments} claim e{s.claim.epoch}{lease}"

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[Step[State]]:
        yield from self._world(state)
        yield from self._segments(state)
        for i, worker in enumerate(state.workers):
            for what, then in self._worker(state, i, worker):
                yield Step(f"w{i + 1}", what, then)

    def _world(self, s: State) -> Iterator[Step[State]]:
        if s.claim.alive and (s.claim.holder == NOBODY or s.left.ends):
            spent = s.left if s.claim.holder == NOBODY else s.left._replace(ends=s.left.ends - 1)
            yield Step("clock", "lease_ends", s._replace(claim=s.claim._replace(alive=False), left=spent))
        if s.pending:
            i, worker = s.pending
            yield Step(f"w{i + 1}", "ingest.commit late", _committed(s, worker)._replace(pending=()))
            yield Step("postgres", "roll_back", s._replace(pending=()))
        if s.stream_hi < s.buffer_hi:
            named = [g for g in s.segments if g.state != "retired"]
            taken = sorted(r for g in named for r in g.rows if s.stream_hi <= r < s.buffer_hi)
            yield Step("tier", "tier.move", s._replace(stream_hi=s.buffer_hi, lake=(*s.lake, *taken)))

    def _segments(self, s: State) -> Iterator[Step[State]]:
        newest = len(s.segments) - 1
        if s.left.rotations:
            left = s.left._replace(rotations=s.left.rotations - 1)
            made = s._replace(segments=(*s.segments, Segment("open", OPEN_END, s.schema, ())), left=left)
            yield Step("worker", "ingest.rotate", made)
        if s.left.evolutions and not self._locked(s):  # who has not come so far finds the schema changed
            yield Step("evolve", "evolve.publish", self._evolved(s))
        for i, segment in enumerate(s.segments):
            if segment.state == "open" and i < newest and self._may_close(s, i):
                max_hi = s.buffer_hi
                if "max_hi_before_lock" in self.bad:
                    max_hi = max(segment.rows, default=-1) + 1
                yield Step(
                    "worker", f"ingest.close seg{i}", _segment(s, i, segment._replace(state="closed", max_hi=max_hi))
                )
            if segment.state == "closed" and self._may_retire(s, segment):
                yield Step("expire", f"expire.retire seg{i}", _segment(s, i, segment._replace(state="retired")))

    def _may_close(self, s: State, i: int) -> bool:
        return "close_without_waiting" in self.bad or not self._sharers(s, i)

    def _may_retire(self, s: State, segment: Segment) -> bool:
        return "retire_ahead_of_tier" in self.bad or _retires(segment.max_hi, s.stream_hi)

    def _sharers(self, s: State, i: int) -> bool:
        """Does a transaction hold the segment's row FOR KEY SHARE?"""
        if "segment_not_shared" in self.bad:
            return False
        held = [w.segment for w in s.workers if w.pc in (SHARING, WRITTEN)]
        return i in held or bool(s.pending and s.pending[1].segment == i)

    @staticmethod
    def _locked(s: State) -> bool:
        """Does a transaction hold the partition's position?"""
        return any(w.pc == WRITTEN for w in s.workers) or bool(s.pending)

    @staticmethod
    def _evolved(s: State) -> State:
        """A schema publish: the open segments closed, the positions at the new schema, the next segment opened."""
        closed = [g._replace(state="closed", max_hi=s.buffer_hi) if g.state == "open" else g for g in s.segments]
        fresh = Segment("open", OPEN_END, s.schema + 1, ())
        left = s.left._replace(evolutions=s.left.evolutions - 1)
        return s._replace(schema=s.schema + 1, segments=(*closed, fresh), left=left)

    def _worker(self, s: State, i: int, w: Worker) -> Iterator[tuple[str, State]]:
        if w.pc != IDLE and s.left.crashes:
            gone = s.claim._replace(holder=NOBODY) if s.claim.holder == i and s.claim.alive else s.claim
            left = s.left._replace(crashes=s.left.crashes - 1)
            yield "crash", _with(s, i, Worker())._replace(claim=gone, left=left)
        match w.pc:
            case "idle" if build.free(s.claim) and s.buffer_hi < self.records:
                yield "ingest.see_claim", _with(s, i, w._replace(pc=TAKING))
            case "taking" if not self._claim_shared(s):
                yield "ingest.take_claim", self._taken(s, i)
            case "held" if s.buffer_hi < self.records:
                for high in range(s.buffer_hi + 1, self.records + 1):
                    yield self._poll(s, i, w, high)
            case "held":
                released = s.claim._replace(alive=False) if s.claim[:2] == (i, w.epoch) else s.claim
                yield "ingest.release", _with(s, i, Worker())._replace(claim=released)
            case "polled":
                yield self._share(s, i, w)
            case "sharing" if not self._locked(s):
                yield self._write(s, i, w)
            case "written":
                yield f"ingest.commit [{w.low},{w.high})", _with(_committed(s, w), i, Worker(HELD, w.epoch))
                if s.left.lost and not s.pending:
                    left = s.left._replace(lost=s.left.lost - 1)
                    yield "lose_answer", _with(s, i, w._replace(pc=UNKNOWN))._replace(pending=(i, w), left=left)
            case "unknown" if not s.pending:
                again = w._replace(pc=POLLED) if "blind_retry" in self.bad else Worker(HELD, w.epoch)
                yield "ingest.refresh", _with(s, i, again)

    def _claim_shared(self, s: State) -> bool:
        return self._locked(s) and "claim_read_plainly" not in self.bad

    def _taken(self, s: State, i: int) -> State:
        if not build.free(s.claim) and "thief_looks_once" not in self.bad:
            return _with(s, i, Worker())
        claim = ClaimRow(i, s.claim.epoch + 1, True)
        return _with(s, i, Worker(HELD, claim.epoch))._replace(claim=claim)

    @staticmethod
    def _poll(s: State, i: int, w: Worker, high: int) -> tuple[str, State]:
        """Poll and decode: position, schema and segment are plain reads."""
        newest = max(n for n, g in enumerate(s.segments) if g.state == "open" and g.schema == s.schema)
        unit = w._replace(pc=POLLED, low=s.buffer_hi, high=high, schema=s.schema, segment=newest)
        return f"ingest.poll [{s.buffer_hi},{high})", _with(s, i, unit)

    def _share(self, s: State, i: int, w: Worker) -> tuple[str, State]:
        state = s.segments[w.segment].state
        refused = build.verdict(lambda: check_writable("seg", state))
        if refused and "closed_segment_written" not in self.bad:
            return f"ingest.share {refused}", _with(s, i, Worker(HELD, w.epoch))
        return f"ingest.share seg{w.segment}", _with(s, i, w._replace(pc=SHARING, alive_then=s.claim.alive))

    def _write(self, s: State, i: int, w: Worker) -> tuple[str, State]:
        """COPY, the bounds where they are what was polled from, and last the fence."""
        schema = s.schema if "schema_unchecked" in self.bad else w.schema
        low = s.buffer_hi if "range_unchecked" in self.bad else w.low
        if refused := _unit_refused(low, schema, s.buffer_hi, s.schema):
            return f"ingest.write {refused}", _with(s, i, Worker(HELD, w.epoch))
        claim = s.claim._replace(alive=w.alive_then) if "fence_by_now" in self.bad else s.claim
        if "unfenced" not in self.bad and build.fenced_out(i, w.epoch, claim):
            return "ingest.write FencedOut", _with(s, i, Worker())
        return f"ingest.write [{w.low},{w.high})", _with(s, i, w._replace(pc=WRITTEN))


def _committed(s: State, w: Worker) -> State:
    segment = s.segments[w.segment]
    rows = tuple(sorted((*segment.rows, *range(w.low, w.high))))
    after = _segment(s, w.segment, segment._replace(rows=rows))
    return after._replace(buffer_hi=max(s.buffer_hi, w.high), mixed=s.mixed or w.schema != s.schema)


def _with(s: State, i: int, worker: Worker) -> State:
    return s._replace(workers=(*s.workers[:i], worker, *s.workers[i + 1 :]))  # type: ignore[arg-type]


def _segment(s: State, i: int, segment: Segment) -> State:
    return s._replace(segments=(*s.segments[:i], segment, *s.segments[i + 1 :]))
