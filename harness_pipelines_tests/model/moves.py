"""Two workers of tier, attempts, lost answers, and other publishers beside them (revert, compaction).

What one Postgres transaction does is one step only where its locks make it so. The publish is four: build on the head
without a lock, lock and validate, the fence, COMMIT; and a COMMIT whose answer was lost stays under way for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from harness_pipelines.protocol.bounds import Bounds, buffered
from harness_pipelines.protocol.moves import branch_of, dead_branches, halve, next_attempt, plan_ranges
from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.build import ABANDONED, COMMITTED, PLANNED, ClaimRow, MoveRow, Published
from harness_pipelines_tests.model.explorer import Step

IDLE, TAKING, HELD, FOUND, PLANNING = "idle", "taking", "held", "found", "planning"
READY, STAGED, BUILT, LOCKED, FENCED, UNKNOWN = "ready", "staged", "built", "locked", "fenced", "unknown"
NOBODY, PENDING = -1, 9  #: who holds the table's row: nobody, a worker, a transaction whose client is gone
FOREIGN_ROW, FOREIGN_SNAPSHOT = 0, -1
ATTEMPTS_MAX = 7  #: more than sound models ever take; keeps those of mutants finite


class Worker(NamedTuple):
    """One tier worker: where it is, and what it believes."""

    pc: str = IDLE
    epoch: int = 0  #: of the claim that it thinks it holds
    move: int = -1
    mine: tuple[int | str, ...] = ()  #: the move's row as this attempt knows it
    plan: tuple[int, ...] = ()  #: (lo, hi, base) before the move is recorded
    rows: tuple[int, ...] = ()  #: what was staged
    built: tuple[tuple[int, ...], int] = ((), 0)  #: rows and snapshot of main that it built on
    fresh: bool = False  #: the pointer has not moved since
    head: int = 0  #: the newest version when it built
    alive_then: bool = False  #: the lease was alive when the transaction began


class Left(NamedTuple):
    """Faults and other events that may still happen."""

    crashes: int = 0
    ends: int = 0  #: leases that end under a holder that is only slow
    lost: int = 0
    failures: int = 0
    reverts: int = 0
    compactions: int = 0
    foreign: int = 0


class State(NamedTuple):
    buffer_hi: int
    floor: int  #: as recorded in lake_positions
    dropped: int  #: the buffer has nothing below
    versions: tuple[Published, ...]
    settled: int  #: so many versions are older than the grace
    main: tuple[tuple[int, ...], int]  #: rows and snapshot of the catalog's pointer
    branches: tuple[tuple[int, int, tuple[int, ...]], ...]  #: (move, attempt, rows)
    moves: tuple[MoveRow, ...]
    claim: ClaimRow
    locked: int
    pending: tuple[int, Worker] | tuple[()]  #: whose COMMIT is under way, without its client
    revert: tuple[int, bool] | tuple[()]  #: (target, the pointer has not moved since it was built)
    stopped: bool
    workers: tuple[Worker, ...]
    left: Left


@dataclass(frozen=True, slots=True)
class Moves:
    """Tier with *records* records in one partition; *bad* names what is left out or done wrong (see `mutants`)."""

    left: Left
    records: int = 2
    workers: int = 2
    bad: frozenset[str] = frozenset()
    name: str = "moves"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "a second attempt is published": lambda s: any(m.attempt > 1 and m.state == COMMITTED for m in s.moves),
            "a holder works on after its claim was taken over": lambda s: any(
                w.pc in (STAGED, BUILT, LOCKED) and w.epoch < s.claim.epoch for w in s.workers
            ),
            "two thieves saw the same lease end": lambda s: sum(w.pc == TAKING for w in s.workers) == 2,
            "branches of two attempts": lambda s: len({b[1] for b in s.branches}) > 1,
            "a COMMIT is under way without its client": lambda s: bool(s.pending),
            "the pointer moved after a build": lambda s: any(w.pc == BUILT and not w.fresh for w in s.workers),
            "a revert lowered the lake": lambda s: (
                len(s.versions) > 1 and s.versions[-1].stream_hi < s.versions[-2].stream_hi
            ),
            "records are moved again after a revert": lambda s: (
                any(v.revert_of for v in s.versions)
                and s.versions[-1].stream_hi > next(v for v in s.versions if v.revert_of).stream_hi
            ),
            "a move was abandoned and planned anew": lambda s: (
                any(m.state == ABANDONED for m in s.moves) and s.moves[-1].state == COMMITTED
            ),
            "another writer committed to the view": lambda s: s.main[1] == FOREIGN_SNAPSHOT,
        }

    def first(self) -> State:
        return State(
            buffer_hi=0,
            floor=0,
            dropped=0,
            versions=(Published((0,), (0,), 1),),
            settled=0,
            main=((), 1),
            branches=(),
            moves=(),
            claim=ClaimRow(NOBODY, 0, False),
            locked=NOBODY,
            pending=(),
            revert=(),
            stopped=False,
            workers=(Worker(),) * self.workers,
            left=self.left,
        )

    def canonical(self, state: State) -> State:
        """Workers in their natural order: a claim and a lock that they hold move with them."""
        if len(state.workers) == 1:
            return state
        one, two = state.workers
        if one < two:
            return state
        swap = {0: 1, 1: 0}
        claim = state.claim._replace(holder=swap.get(state.claim.holder, state.claim.holder))
        pending = (swap[state.pending[0]], state.pending[1]) if state.pending else ()
        locked = swap.get(state.locked, state.locked)
        swapped = state._replace(workers=(two, one), claim=claim, locked=locked, pending=pending)
        return min(state, swapped) if one == two else swapped

    # -- safety and liveness --------------------------------------------------------------------------------

    def broken(self, state: State) -> str | None:
        head, hi = state.versions[-1], state.versions[-1].stream_hi[0]
        if tuple(r for r in head.files if r < hi) != tuple(range(hi)):
            return f"S1/S2: the lake has {head.files} of offsets [0, {hi})"
        if any(r >= hi for r in head.files):
            return f"S37: a live file holds an offset at or above {hi}"
        if state.dropped > hi:
            return f"S13: the buffer's rows below {state.dropped} are gone, the lake has [0, {hi})"
        recent = [v.stream_hi[0] for v in state.versions[max(state.settled - 1, 0) :]]
        if state.dropped > min(recent):
            return f"S34: a revert within the grace would need [{min(recent)}, {state.dropped}) of the buffer"
        for before, after in zip(state.versions, state.versions[1:], strict=False):
            if after.buffer_hi < before.buffer_hi:
                return f"S3: buffer_hi fell from {before.buffer_hi[0]} to {after.buffer_hi[0]}"
            if after.stream_hi < before.stream_hi and not after.revert_of:
                return f"S3: stream_hi fell from {before.stream_hi[0]} to {after.stream_hi[0]} without a revert"
        opened = [m for m in state.moves if m.state == PLANNED]
        if len(opened) > 1:
            return "S8: two open moves of one stage"
        if any(m.lo != hi for m in opened):
            return f"S6: an open move starts at {opened[0].lo}, the lake ends at {hi}"
        return "S9: a move took effect twice" if any(m.effects > 1 for m in state.moves) else None

    def broke(self, before: State, step: Step[State]) -> str | None:
        action, then = step.what.partition(" ")[0], step.then
        for old, new in zip(before.moves, then.moves, strict=False):
            if old[:3] != new[:3]:
                return "S25: a later attempt has another range or base than the first"
            if new.effects > old.effects and old.state != PLANNED:
                return f"S9: a move that is {old.state} took effect"
        if action == "tier.take_claim" and then.claim.epoch > before.claim.epoch and before.claim.alive:
            return "S5: a claim was taken whose lease had not ended"
        if action == "tier.resolve" and before.pending:
            return "S24: the outcome was judged while the transaction was still open"
        if len(then.versions) > len(before.versions) and before.main[1] == FOREIGN_SNAPSHOT and not then.stopped:
            return None if then.versions[-1].revert_of else "S7: built on rows that another writer committed"
        return self._broke_fence(before, step, action) if action in _FENCED_ACTIONS else None

    def _broke_fence(self, before: State, step: Step[State], action: str) -> str | None:
        if step.then.moves == before.moves and action != "tier.fence":
            return None  # it was refused
        who = before.pending[1] if before.pending else before.workers[int(step.who[1:]) - 1]
        if action == "tier.fence":
            passed = step.then.workers[int(step.who[1:]) - 1].pc == FENCED
            return (
                "S5: the fence let a holder pass whose lease had ended" if passed and not before.claim.alive else None
            )
        if who.epoch != before.claim.epoch:
            return f"S5: the holder of epoch {who.epoch} changed the ledger, the claim is at epoch {before.claim.epoch}"
        if action == "tier.commit" and who.built[1] != before.main[1]:
            return "S7: published what was validated against an older head"
        return None

    def is_goal(self, state: State) -> bool:
        hi = state.versions[-1].stream_hi[0]
        idle = state.locked == NOBODY and not state.revert and all(w.pc == IDLE for w in state.workers)
        return idle and hi == state.buffer_hi == self.records and not self._open(state) and not state.branches

    def show(self, state: State) -> str:
        head = state.versions[-1]
        moves = " ".join(f"m{i}[{m.lo},{m.hi})#{m.attempt}{m.state[0]}" for i, m in enumerate(state.moves))
        lease = "" if state.claim.alive else " ended"
        return (
            f"v{len(state.versions)} stream_hi {head.stream_hi[0]} buffer [{state.dropped},{state.buffer_hi}) "
            f"lake {list(head.files)} claim e{state.claim.epoch}{lease} {moves}"
        )

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[Step[State]]:
        yield from self._world(state)
        yield from self._expire(state)
        yield from self._revert(state)
        for i, worker in enumerate(state.workers):
            for what, then in self._worker(state, i, worker):
                yield Step(f"w{i + 1}", what, then)

    def _world(self, s: State) -> Iterator[Step[State]]:
        """Records, time, and what goes wrong."""
        left = s.left
        if s.buffer_hi < self.records:
            yield Step("producer", f"ingest {s.buffer_hi}", s._replace(buffer_hi=s.buffer_hi + 1))
        if s.claim.alive:
            gone = s.claim.holder == NOBODY
            if gone or left.ends:
                spent = left if gone else left._replace(ends=left.ends - 1)
                ended = s.claim._replace(alive=False)
                yield Step("clock", "lease_ends" + ("" if gone else " early"), s._replace(claim=ended, left=spent))
        if s.settled < len(s.versions) and self.left.reverts:  # without a revert the grace changes nothing
            yield Step("clock", f"grace_ends v{s.settled + 1}", s._replace(settled=s.settled + 1))
        if s.pending:
            i, worker = s.pending
            yield Step(
                f"w{i + 1}", "tier.commit late", self._committed(s, i, worker)._replace(pending=(), locked=NOBODY)
            )
            yield Step("postgres", "roll_back", s._replace(pending=(), locked=NOBODY))
        if left.foreign and left.reverts and s.locked == NOBODY and s.versions[-1].stream_hi[0]:
            rows = tuple(sorted((*s.main[0], FOREIGN_ROW)))
            moved = _pointer(s, (rows, FOREIGN_SNAPSHOT))
            yield Step("foreign", "append", moved._replace(left=left._replace(foreign=0)))
        if left.compactions and s.locked == NOBODY and s.main[1] == s.versions[-1].snapshot:
            made = s.versions[-1]._replace(snapshot=len(s.versions) + 1, buffer_hi=(s.buffer_hi,), revert_of=0)
            moved = _pointer(s, (made.files, made.snapshot))._replace(versions=(*s.versions, made))
            spent = left._replace(compactions=left.compactions - 1)
            yield Step("compact", f"compact.publish v{len(s.versions) + 1}", moved._replace(left=spent))

    def _expire(self, s: State) -> Iterator[Step[State]]:
        if s.locked != NOBODY:
            return
        names = {branch_of(move, attempt): (move, attempt) for move, attempt, _ in s.branches}
        dead = {names[n] for n in dead_branches(names, [(i, m.attempt, m.state) for i, m in enumerate(s.moves)])}
        if dead:
            kept = tuple(b for b in s.branches if b[:2] not in dead)
            yield Step("expire", "expire.drop_branches", _pointer(s, s.main)._replace(branches=kept))
        known = s.versions[: max(s.settled, 1)] if "trim_forgets_reverts" in self.bad else s.versions
        settled = len(s.versions) if "trim_without_grace" in self.bad else s.settled
        floor = build.floor(known, settled, aged=settled)[0]  # retained for no longer than the grace
        if floor > s.dropped:
            kept_floor = max(s.floor, min(floor, s.versions[-1].stream_hi[0]))
            yield Step("expire", f"expire.trim below {floor}", s._replace(dropped=floor, floor=kept_floor))

    def _revert(self, s: State) -> Iterator[Step[State]]:
        if not s.revert:
            if s.left.reverts:
                targets = range(1, len(s.versions) + (s.main[1] == FOREIGN_SNAPSHOT))
                for target in targets:
                    if not self._revert_refused(s, target):
                        yield Step("operator", f"revert.build to v{target}", s._replace(revert=(target, True)))
            return
        target, fresh = s.revert
        if s.locked != NOBODY:
            return
        if not fresh or ("revert_unchecked_lock" not in self.bad and self._revert_refused(s, target)):
            yield Step("operator", "revert.refused", s._replace(revert=()))
            return
        yield Step("operator", f"revert.publish to v{target}", self._reverted(s, target))

    def _revert_refused(self, s: State, target: int) -> str | None:
        return None if "revert_below_buffer" in self.bad else self._plan_revert(s, target).refused

    @staticmethod
    def _plan_revert(s: State, target: int) -> build.Revert:
        return build.revert(s.versions, target, s.floor, s.moves, (s.claim,))

    def _reverted(self, s: State, target: int) -> State:
        made = build.restoring(s.versions, target, s.buffer_hi)
        plan = self._plan_revert(s, target)
        moves = tuple(m._replace(state=ABANDONED) if i in plan.closes else m for i, m in enumerate(s.moves))
        return _pointer(s, (made.files, made.snapshot))._replace(
            versions=(*s.versions, made),
            moves=s.moves if "revert_leaves_moves" in self.bad else moves,
            claim=s.claim if "revert_keeps_claims" in self.bad else plan.claims[0],
            revert=(),
            stopped=False,
            left=s.left._replace(reverts=s.left.reverts - 1),
        )

    # -- one worker -----------------------------------------------------------------------------------------

    def _worker(self, s: State, i: int, w: Worker) -> Iterator[tuple[str, State]]:
        if w.pc != IDLE and s.left.crashes:
            yield "crash", self._crashed(s, i, w)
        free_row = s.locked == NOBODY
        match w.pc:
            case "idle" if not s.stopped and build.free(s.claim) and self._work(s):
                yield "tier.see_claim", _with(s, i, w._replace(pc=TAKING))
            case "taking" if not self._shared(s):
                yield "tier.take_claim", self._taken(s, i, w)
            case "held":
                yield self._look(s, i, w)
            case "found" if free_row and s.moves[w.move].attempt < ATTEMPTS_MAX:
                yield self._take_attempt(s, i, w)
            case "planning" if free_row:
                yield self._plan(s, i, w)
            case "ready" if free_row:
                yield self._stage(s, i, w)
                if s.left.failures:
                    yield self._give_up(s, i, w)
            case "staged":
                yield self._build(s, i, w)
            case "built" if free_row:
                yield self._lock(s, i, w)
            case "locked":
                yield self._fence(s, i, w)
            case "fenced":
                done = self._committed(s, i, w)
                yield f"tier.commit v{len(done.versions)}", _with(done, i, _done(w))._replace(locked=NOBODY)
                if s.left.lost:
                    lost = s._replace(pending=(i, w), locked=PENDING, left=s.left._replace(lost=s.left.lost - 1))
                    yield "lose_answer", _with(lost, i, w._replace(pc=UNKNOWN))
            case "unknown" if free_row or "resolve_unlocked" in self.bad:
                yield self._resolve(s, i, w)

    def _work(self, s: State) -> bool:
        return self._open(s) is not None or s.buffer_hi > s.versions[-1].stream_hi[0]

    @staticmethod
    def _open(s: State) -> int | None:
        return next((i for i, m in enumerate(s.moves) if m.state == PLANNED), None)

    def _shared(self, s: State) -> bool:
        """Does a commit hold the claim's row, so that a thief waits?"""
        held = any(w.pc == FENCED for w in s.workers) or bool(s.pending)
        return held and "claim_read_plainly" not in self.bad

    def _refused(self, s: State, i: int, w: Worker, *, unless: str) -> str | None:
        return None if unless in self.bad else build.fenced_out(i, w.epoch, s.claim)

    @staticmethod
    def _crashed(s: State, i: int, w: Worker) -> State:
        """The process is gone; its transaction is rolled back, its lease lasts on."""
        claim = s.claim._replace(holder=NOBODY) if s.claim.holder == i and s.claim.alive else s.claim
        locked = NOBODY if s.locked == i else s.locked
        left = s.left._replace(crashes=s.left.crashes - 1)
        return _with(s, i, Worker())._replace(claim=claim, locked=locked, left=left)

    def _taken(self, s: State, i: int, w: Worker) -> State:
        if not build.free(s.claim) and "thief_looks_once" not in self.bad:
            return _with(s, i, Worker())
        claim = ClaimRow(i, s.claim.epoch + 1, True)
        return _with(s, i, Worker(pc=HELD, epoch=claim.epoch))._replace(claim=claim)

    def _look(self, s: State, i: int, w: Worker) -> tuple[str, State]:
        """Which move is open? These are plain reads: all of it may be old when it is used."""
        found = None if s.stopped else self._open(s)
        if found is not None:
            return f"tier.find m{found}", _with(s, i, w._replace(pc=FOUND, move=found, mine=tuple(s.moves[found])))
        head = s.versions[-1]
        bounds = Bounds(start=0, batch_hi=0, stream_hi=head.stream_hi[0], buffer_hi=s.buffer_hi)
        lo, hi = plan_ranges(buffered({0: bounds}), offsets_max=self.records)
        if not lo or s.stopped:
            released = s.claim._replace(alive=False) if s.claim[:2] == (i, w.epoch) else s.claim
            return "tier.release", _with(s, i, Worker())._replace(claim=released)
        plan = (lo[0], hi[0], len(s.versions))
        return f"tier.choose [{lo[0]},{hi[0]})", _with(s, i, Worker(pc=PLANNING, epoch=w.epoch, plan=plan))

    def _plan(self, s: State, i: int, w: Worker) -> tuple[str, State]:
        lo, hi, base = w.plan
        if self._open(s) is not None and "two_open_moves" not in self.bad:
            return "tier.plan MoveClosed", _with(s, i, Worker(pc=HELD, epoch=w.epoch))
        if self._refused(s, i, w, unless="plan_unfenced"):
            return "tier.plan FencedOut", _with(s, i, Worker())
        row = MoveRow(lo, hi, base, PLANNED, 1, w.epoch)
        ready = w._replace(pc=READY, move=len(s.moves), mine=tuple(row), plan=())
        return f"tier.plan m{len(s.moves)} [{lo},{hi})", _with(s, i, ready)._replace(moves=(*s.moves, row))

    def _take_attempt(self, s: State, i: int, w: Worker) -> tuple[str, State]:
        row, seen = s.moves[w.move], MoveRow(*w.mine)  # type: ignore[arg-type]
        if row.state != PLANNED or row.attempt != seen.attempt:
            return "tier.take_attempt MoveClosed", _with(s, i, Worker(pc=HELD, epoch=w.epoch))
        if self._refused(s, i, w, unless="attempt_unfenced"):
            return "tier.take_attempt FencedOut", _with(s, i, Worker())
        following = next_attempt(build.move(w.move, row), epoch=w.epoch)
        taken = row._replace(attempt=following.attempt, epoch=following.epoch, hi=following.hi[0])
        if "retry_recomputes" in self.bad:
            taken = taken._replace(hi=s.buffer_hi)
        then = _with(s, i, w._replace(pc=READY, mine=tuple(taken)))
        return f"tier.take_attempt m{w.move}#{taken.attempt}", _moved(then, w.move, taken)

    def _give_up(self, s: State, i: int, w: Worker) -> tuple[str, State]:
        """The move failed too often: abandoned, and half of it is planned again."""
        if self._refused(s, i, w, unless="close_unfenced"):
            return "tier.close FencedOut", _with(s, i, Worker())
        row = s.moves[w.move]
        left = s.left._replace(failures=s.left.failures - 1)
        closed = _moved(s, w.move, row._replace(state=ABANDONED) if row.state == PLANNED else row)
        half = halve({0: row.lo}, {0: row.hi})[0]
        again = Worker(pc=PLANNING, epoch=w.epoch, plan=(row.lo, half, len(s.versions)))
        return f"tier.close m{w.move} abandoned", _with(closed, i, again)._replace(left=left)

    def _stage(self, s: State, i: int, w: Worker) -> tuple[str, State]:
        """Spark writes what the buffer has of the range to the attempt's branch: the pointer moves."""
        mine = MoveRow(*w.mine)  # type: ignore[arg-type]
        rows = tuple(range(max(mine.lo, s.dropped), mine.hi))
        attempt = 0 if "branch_shared" in self.bad else mine.attempt
        earlier = [b for b in s.branches if b[:2] == (w.move, attempt)]
        on_branch = tuple(sorted((*earlier[0][2], *rows))) if earlier else rows
        branches = tuple(sorted((*(b for b in s.branches if b not in earlier), (w.move, attempt, on_branch))))
        staged = _with(_pointer(s, s.main), i, w._replace(pc=STAGED, rows=rows))
        return f"tier.stage m{w.move}#{mine.attempt}", staged._replace(branches=branches)

    def _build(self, s: State, i: int, w: Worker) -> tuple[str, State]:
        mine = MoveRow(*w.mine)  # type: ignore[arg-type]
        attempt = 0 if "branch_shared" in self.bad else mine.attempt
        branch = next((b[2] for b in s.branches if b[:2] == (w.move, attempt)), w.rows)
        if any(r >= mine.lo for r in s.main[0]) and "range_unchecked" not in self.bad:
            return "tier.build ForeignFiles", _with(s, i, Worker(pc=HELD, epoch=w.epoch))
        rows = branch if "branch_shared" in self.bad else w.rows
        built = w._replace(pc=BUILT, rows=rows, built=s.main, fresh=True, head=len(s.versions))
        return f"tier.build m{w.move}#{mine.attempt}", _with(s, i, built)

    def _lock(self, s: State, i: int, w: Worker) -> tuple[str, State]:
        """The publish's transaction up to the fence: what was built is validated against the locked head."""
        mine, head = MoveRow(*w.mine), s.versions[-1]  # type: ignore[arg-type]
        if build.closed(w.move, mine, s.moves[w.move]) and "closed_move_published" not in self.bad:
            return "tier.lock MoveClosed", _with(s, i, Worker(pc=HELD, epoch=w.epoch))
        if not w.fresh and "pointer_not_compared" not in self.bad:
            return "tier.lock PointerMoved", _with(s, i, w._replace(pc=STAGED, built=((), 0)))
        if build.foreign(head, len(s.versions), w.built[1]) and "foreign_taken_over" not in self.bad:
            return "tier.lock ForeignCommit", _with(s, i, w._replace(pc=HELD))._replace(stopped=True)
        reached = build.advanced(len(s.versions), head, mine, s.buffer_hi)
        if isinstance(reached, str) and "range_unchecked" not in self.bad:
            return f"tier.lock {reached}", _with(s, i, Worker(pc=HELD, epoch=w.epoch))
        locked = w._replace(pc=LOCKED, alive_then=s.claim.alive)
        return "tier.lock", _with(s, i, locked)._replace(locked=i)

    def _fence(self, s: State, i: int, w: Worker) -> tuple[str, State]:
        claim = s.claim._replace(alive=w.alive_then) if "fence_by_now" in self.bad else s.claim
        if "unfenced" not in self.bad and build.fenced_out(i, w.epoch, claim):
            return "tier.fence FencedOut", _with(s, i, Worker())._replace(locked=NOBODY)
        return "tier.fence", _with(s, i, w._replace(pc=FENCED))

    def _committed(self, s: State, i: int, w: Worker) -> State:
        """The boundary commit as all see it at once; whoever built on the old pointer will notice."""
        mine, row = MoveRow(*w.mine), s.moves[w.move]  # type: ignore[arg-type]
        head = s.versions[w.head - 1] if "version_from_stale_copy" in self.bad else s.versions[-1]
        reached = build.advanced(len(s.versions), head, mine, s.buffer_hi)
        stream_hi, buffer_hi = (mine.hi, s.buffer_hi) if isinstance(reached, str) else reached
        if "version_from_stale_copy" in self.bad:
            buffer_hi = max(head.buffer_hi[0], stream_hi)
        rows = tuple(sorted((*w.built[0], *w.rows)))
        made = Published((stream_hi,), (buffer_hi,), len(s.versions) + 1, rows)
        attempt = 0 if "branch_shared" in self.bad else mine.attempt
        branches = tuple(b for b in s.branches if b[:2] != (w.move, attempt))
        done = row._replace(state=COMMITTED, effects=row.effects + 1)
        after = _pointer(_moved(s, w.move, done), (rows, made.snapshot))
        return after._replace(versions=(*s.versions, made), branches=branches)

    def _resolve(self, s: State, i: int, w: Worker) -> tuple[str, State]:
        """After a lost answer: the move is read under the publish's own locks."""
        effect = build.took(w.move, MoveRow(*w.mine), s.moves[w.move])  # type: ignore[arg-type]
        if not effect or "blind_retry" in self.bad:
            again = w._replace(pc=STAGED, built=((), 0)) if "blind_retry" in self.bad else Worker(HELD, w.epoch)
            return "tier.resolve no effect", _with(s, i, again)
        return "tier.resolve took effect", _with(s, i, _done(w))


_FENCED_ACTIONS = ("tier.plan", "tier.take_attempt", "tier.close", "tier.fence", "tier.commit")


def _with(s: State, i: int, worker: Worker) -> State:
    return s._replace(workers=(*s.workers[:i], worker, *s.workers[i + 1 :]))


def _moved(s: State, number: int, row: MoveRow) -> State:
    return s._replace(moves=(*s.moves[:number], row, *s.moves[number + 1 :]))


def _pointer(s: State, main: tuple[tuple[int, ...], int]) -> State:
    """The catalog's pointer moves: what was built on the old one is not fresh any more."""
    workers = tuple(w._replace(fresh=False) if w.fresh else w for w in s.workers)
    return s._replace(main=main, workers=workers, revert=(s.revert[0], False) if s.revert else ())


def _done(w: Worker) -> Worker:
    return Worker(pc=HELD, epoch=w.epoch)
