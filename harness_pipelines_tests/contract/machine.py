"""Random steps on a table: what each must do is said by the oracle, and by the other store if there are two.

A step that must not go through has to fail by the name of (one of) its faults and change nothing. After every step the
stores hold what the oracle says, no more and no less.
"""

from __future__ import annotations

import sys
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, initialize, invariant, multiple, rule

from harness_pipelines.drivers.postgres import SegmentMissing
from harness_pipelines.errors import HarnessError, OutcomeUnknown
from harness_pipelines.lakes.iceberg.write.checks import ForeignFiles
from harness_pipelines.ledgers.postgres.boundary import CommitLost
from harness_pipelines.ports.errors import BaseGone, LakeFileMissing
from harness_pipelines.ports.ledger import LeaseEnded
from harness_pipelines.protocol.bounds import BoundaryGap
from harness_pipelines.protocol.claims import FencedOut, Stage
from harness_pipelines.protocol.moves import MoveClosed, MoveState
from harness_pipelines.protocol.segments import SegmentClosed
from harness_pipelines.protocol.versions import VersionGone
from harness_pipelines_tests.contract.sides import KEPT, UNDONE, Seen, Side
from harness_pipelines_tests.contract.truth import (
    CLAIM_M,
    RETIRED_FOR_M,
    Held,
    Rows,
    TrueAttempt,
    TrueLease,
    TrueMove,
    Truth,
    Unit,
)

Errors = Collection[type[HarnessError]]
HOUR_M = 60
PARTITIONS_MAX = 3
ENDED: Errors = {LeaseEnded, SegmentMissing, LakeFileMissing}  #: a reader whose lease has ended meets one of them

partitions = st.integers(0, PARTITIONS_MAX - 1)
records = st.lists(st.sampled_from(["good", "good", "good", "bad", "gap"]), min_size=1, max_size=6)
shares = st.integers(1, 4)  #: quarters of what there is
shifts = st.sampled_from([0, 0, 0, 0, 1, -1])
names = st.sampled_from(["holder", "holder", "holder", "ended", "robbed"])
answers = st.sampled_from([None, None, None, KEPT, UNDONE])
lengths = st.sampled_from([90, 330, 30 * HOUR_M])
stages = st.sampled_from([Stage.INGEST, Stage.TIER, Stage.EXPIRE])


def minutes(number: int) -> timedelta:
    return timedelta(minutes=number)


class TableMachine(RuleBasedStateMachine):
    """One table on one store, or on several that have to agree."""

    units = Bundle("units")
    attempts = Bundle("attempts")
    leases = Bundle("leases")

    def __init__(self, make: Callable[[], Sequence[Side]]) -> None:
        super().__init__()
        self.sides = make()

    @initialize(count=st.integers(1, 2), start=st.sampled_from([0, 5]))
    def create(self, count: int, start: int) -> None:
        self.truth = Truth(partitions=count, start=start)
        for side in self.sides:
            side.begin(partitions=count, start=start)

    # -- how a step is judged -------------------------------------------------------------------------------

    def step(self, act: Callable[[int, Side], Any], *, wrong: Errors = (), may: Errors = ()) -> list[Any] | None:
        """What *act* gave on every side; ``None`` if it failed, as it must for one of *wrong*, or *may*."""
        before = [side.seen() for side in self.sides] if wrong else []
        found = [_outcome(act, i, side) for i, side in enumerate(self.sides)]
        kinds = {type(one) if isinstance(one, HarnessError) else None for one in found}
        for one in found:
            if not isinstance(one, HarnessError):
                assert not wrong, f"went through in spite of {_names(wrong)}"
            elif type(one) not in {*wrong, *may}:
                raise AssertionError(f"expected {_names(wrong) or 'success'}, got {type(one).__name__}: {one}") from one
        assert len(kinds) == 1 or kinds <= {*ENDED}, f"the stores disagree: {kinds}"
        if wrong:
            assert [side.seen() for side in self.sides] == before, "a step that failed has changed something"
        return found if kinds == {None} else None

    def holder(self, stage: Stage) -> Held:
        """The living claim of a stage; somebody takes it if nobody has it."""
        if self.truth.claims[stage] and self.truth.alive(self.truth.claims[stage][-1]):
            return self.truth.claims[stage][-1]
        made = self.step(lambda i, side: _claim(side, stage))
        assert made is not None
        assert None not in made, "a claim whose lease has ended was not given"
        assert {claim.epoch for claim in made} == {len(self.truth.claims[stage]) + 1}, "epochs grow by one"
        return self.truth.claimed(stage, made)

    def acting(self, stage: Stage, name: str) -> Held:
        """The holder, or one that does not know yet that its lease has *ended*, or that it was *robbed* since."""
        held = self.holder(stage)
        if name != "holder":
            self.step(lambda i, side: side.rig.ledger.release(held.on[i]))
            held.until = self.truth.now
        if name == "robbed":
            self.holder(stage)
        return held

    def fenced(self, held: Held) -> set[type[HarnessError]]:
        return set() if self.truth.alive(held) else {FencedOut}

    # -- the world, and claims ------------------------------------------------------------------------------

    @rule(partition=partitions, kinds=records, start=st.sampled_from([0, 7]))
    def produce(self, partition: int, kinds: list[str], start: int) -> None:
        """Records for a partition; one that nobody knows joins first, and joining again changes nothing."""
        if partition >= len(self.truth.log):
            partition = self.truth.add_partition(start)
            held = self.holder(Stage.INGEST)
            self.step(lambda i, side: side.rig.ledger.add_partitions(held.on[i], {partition: start}))
            self.step(lambda i, side: side.rig.ledger.add_partitions(held.on[i], {0: 99, partition: 99}))
        self.truth.log[partition].kinds += kinds

    @rule(hours=st.sampled_from([1, 2, 3, 7]))
    def pass_time(self, hours: int) -> None:
        self.truth.now += hours * HOUR_M
        for side in self.sides:
            side.pass_time(minutes(hours * HOUR_M))

    @rule(stage=stages, name=names)
    def renew_claim(self, stage: Stage, name: str) -> None:
        """Whoever holds a claim may hold it longer; meanwhile nobody else is given it."""
        held = self.acting(stage, name)
        lease = minutes(CLAIM_M)
        made = self.step(lambda i, side: side.rig.ledger.renew(held.on[i], lease=lease), wrong=self.fenced(held))
        if made:
            held.on, held.until = made, self.truth.now + CLAIM_M
        self.holder(stage)
        assert {None} == set(self.step(lambda i, side: _claim(side, stage)) or ())

    # -- ingest ---------------------------------------------------------------------------------------------

    @rule(target=units, share=shares, shift=shifts, rotate=st.booleans())
    def poll(self, share: int, shift: int, rotate: bool) -> Unit | MultipleResults[Unit]:
        """A unit from where the buffer ends (or, wrongly, beside it), for the segment that is open until a rotation."""
        truth = self.truth
        low = {p: max(at + shift, truth.log[p].start) for p, at in truth.buffer_hi.items()}
        high = {p: at - (at - truth.log[p].end) * share // 4 for p, at in truth.buffer_hi.items()}
        low = {p: at for p, at in low.items() if at < high[p]}
        if not low:
            return multiple()
        made = self.step(lambda i, side: side.poll(truth.log, low, high))
        assert made is not None
        truth.segments = max(truth.segments, 1)
        unit = Unit(low, {p: high[p] for p in low}, truth.segments, made)
        if rotate:
            self.rotate()
        return unit

    @rule(unit=units, name=names, lost=answers)
    def commit(self, unit: Unit, name: str, lost: str | None) -> None:
        """A unit may come late, again, from a sleeper, or for a segment that was closed meanwhile."""
        truth, held = self.truth, self.acting(Stage.INGEST, name)
        wrong = self.fenced(held)
        if unit.segment != truth.segments:
            wrong.add(SegmentClosed)
        if any(truth.buffer_hi[p] != at for p, at in unit.low.items()):
            wrong.add(BoundaryGap)
        unknown = {OutcomeUnknown} if lost and not wrong else set()
        made = self.step(lambda i, side: side.commit(unit.on[i], held.on[i], lost=lost), wrong=wrong, may=unknown)
        assert made is None or lost is None, "the answer was lost"
        if made:
            assert set(made) == {truth.good(unit.low, unit.high).total()}
        if not wrong and lost != UNDONE:
            truth.buffer_hi.update(unit.high)

    @rule(target=units, partition=partitions, kinds=records, name=names, lost=answers, rotate=st.booleans())
    def ingest(
        self, partition: int, kinds: list[str], name: str, lost: str | None, rotate: bool
    ) -> Unit | MultipleResults[Unit]:
        """All that there is in one unit, and the same unit again, at once or for the segment that is closed by then."""
        self.produce(partition, kinds, 0)
        unit = self.poll(4, 0, False)
        assert isinstance(unit, Unit)
        self.commit(unit, name, lost)
        if rotate:
            self.rotate()
        self.commit(unit, "holder", None)
        return unit

    def rotate(self) -> None:
        self.step(lambda i, side: side.rig.segments.rotate(side.table))
        self.truth.segments += 1

    # -- tier -----------------------------------------------------------------------------------------------

    @rule(target=attempts, share=shares, shift=shifts, name=names)
    def plan(self, share: int, shift: int, name: str) -> TrueAttempt | MultipleResults[TrueAttempt]:
        """A move from where the stream ends (or, wrongly, beside it), and what its first attempt writes."""
        truth = self.truth
        if truth.stream_hi == truth.buffer_hi:
            self.ingest(0, ["good", "good"], "holder", None, False)
        lo = {p: max(at + shift, truth.log[p].start) for p, at in truth.stream_hi.items()}
        hi = {p: at - (at - truth.buffer_hi[p]) * share // 4 for p, at in truth.stream_hi.items()}
        lo = {p: at for p, at in lo.items() if at < hi[p]}
        hi = {p: hi[p] for p in lo}
        if not lo:
            return multiple()
        held = self.acting(Stage.TIER, name)
        wrong = self.fenced(held) | ({MoveClosed} if truth.open_move else set())
        made = self.step(lambda i, side: side.plan(held.on[i], lo, hi), wrong=wrong)
        if made is None:
            return multiple()
        truth.moves.append(TrueMove(lo, hi, truth.now))
        return self.staged(TrueAttempt(truth.moves[-1], 1, made))

    def staged(self, attempt: TrueAttempt) -> TrueAttempt:
        """Let *attempt* write; one that is superseded or whose move is closed does not know it."""
        may = set() if attempt.current else {BaseGone, MoveClosed}
        attempt.staged = self.step(lambda i, side: side.stage(attempt.on[i]), may=may) or attempt.staged
        return attempt

    @rule(attempt=attempts, name=names, lost=answers, write_again=st.booleans())
    def publish(self, attempt: TrueAttempt, name: str, lost: str | None, write_again: bool) -> None:
        if write_again:
            self.staged(attempt)
        truth, move, held = self.truth, attempt.move, self.acting(Stage.TIER, name)
        wrong = self.fenced(held)
        if not attempt.current:
            wrong.add(MoveClosed)
        if lost == UNDONE:
            wrong.add(CommitLost)
        if any(truth.stream_hi[p] != at for p, at in move.lo.items()):
            wrong |= {BoundaryGap, ForeignFiles}
        staged = attempt.staged or []
        made = self.step(lambda i, side: side.publish(attempt.on[i], staged[i], held.on[i], lost=lost), wrong=wrong)
        if made:
            truth.published(move)
            assert {v.version for v in made} == {truth.head.number}

    @rule(target=attempts, attempt=attempts, name=names)
    def try_again(self, attempt: TrueAttempt, name: str) -> TrueAttempt | MultipleResults[TrueAttempt]:
        held = self.acting(Stage.TIER, name)
        wrong = self.fenced(held) | (set() if attempt.current else {MoveClosed})
        made = self.step(
            lambda i, side: side.rig.ledger.take_attempt(held.on[i], attempt.on[i], run_id=None), wrong=wrong
        )
        if made is None:
            return multiple()
        attempt.move.attempts += 1
        return self.staged(TrueAttempt(attempt.move, attempt.move.attempts, made))

    @rule(attempt=attempts, name=names)
    def abandon(self, attempt: TrueAttempt, name: str) -> None:
        """A move that is closed stays what it is."""
        held = self.acting(Stage.TIER, name)

        def close(i: int, side: Side) -> None:
            side.rig.ledger.close_move(held.on[i], attempt.on[i], state=MoveState.ABANDONED, error="of no use")

        self.step(close, wrong=self.fenced(held))
        if self.truth.alive(held) and attempt.move.state == "PLANNED":
            attempt.move.state = "ABANDONED"

    @rule(target=attempts, share=shares, name=names, lost=answers)
    def tier(self, share: int, name: str, lost: str | None) -> TrueAttempt | MultipleResults[TrueAttempt]:
        """A whole move instead of one that is open, and its publish again."""
        if (open_move := self.truth.open_move) is not None:
            found_open = [side.rig.ledger.open_move(side.table, Stage.TIER, shard=0) for side in self.sides]
            self.abandon(TrueAttempt(open_move, open_move.attempts, found_open), "holder")
        found = self.plan(share, 0, "holder")
        if isinstance(found, TrueAttempt):
            self.publish(found, name, lost, False)
            self.publish(found, "holder", None, False)
        return found

    # -- reading --------------------------------------------------------------------------------------------

    @rule(target=leases, length=lengths, back=st.sampled_from([0, 0, 1, 2, 3, 99]))
    def look(self, length: int, back: int) -> TrueLease | MultipleResults[TrueLease]:
        """Lease the head, or a version so far back."""
        truth = self.truth
        at = max(truth.head.number - back, 1) if back else None
        wrong = {VersionGone} if truth.promised(at) is None else set()
        made = self.step(lambda i, side: side.look(at=at, lease=minutes(length)), wrong=wrong)
        if made is None:
            return multiple()
        shown = [side.shown(plan) for side, plan in zip(self.sides, made, strict=True)]
        assert shown == shown[:1] * len(shown), "the stores plan differently"
        assert {plan.version for plan in made} == {at or truth.head.number}, "S4"
        return truth.looked(at, length=length, on=made)

    @rule(lease=leases, late=st.sampled_from([False, False, True]), last=st.booleans())
    def read(self, lease: TrueLease, late: bool, last: bool) -> None:
        """All rows of its cut, or an end by name; a *late* one comes when its lease has just ended."""
        if late and lease.until > self.truth.now:
            self.pass_time(-(-(lease.until - self.truth.now) // HOUR_M))
        lives, length = self.truth.lives(lease), minutes(lease.length)
        found = self.step(lambda i, side: side.read(lease.on[i], lease=length), wrong=() if lives else ENDED)
        if found:
            assert all(rows == lease.rows for rows in found), _difference(found, lease.rows)
            self.truth.renewed(lease)
        if last:
            ended = () if self.truth.lives(lease) else {LeaseEnded}
            self.step(lambda i, side: side.rig.leases.finish(lease.on[i].lease_id), wrong=ended)
            lease.until = min(lease.until, self.truth.now)

    # -- expire ---------------------------------------------------------------------------------------------

    @rule(name=names, dry_run=st.sampled_from([False, False, False, True]))
    def expire(self, name: str, dry_run: bool) -> None:
        """A run in the stage's order: what an earlier run decided goes, then it is decided again."""
        held = self.acting(Stage.EXPIRE, name)
        if not dry_run:
            dropped = self.step(lambda i, side: side.drop_retired(retired_for=minutes(RETIRED_FOR_M))) or []
            assert dropped == dropped[:1] * len(self.sides), "the stores drop different segments"
            self.delete_files(held)
        self.trim(held, dry_run)
        alive = [a for a in self.names_to_values.values() if isinstance(a, TrueAttempt) and a.current]
        self.step(lambda i, side: side.drop_dead_branches({a.on[i].branch for a in alive}))
        if not dry_run:
            self.step(lambda i, side: side.condemn_files())

    @rule(moves=st.lists(shares, min_size=1, max_size=4), hours=st.sampled_from([1, 3, 7]))
    def settle(self, moves: list[int], hours: int) -> None:
        """Moves that lag behind a buffer of many segments get older, perhaps than the grace; then expire comes."""
        for share in moves:
            self.ingest(0, ["good", "good"], "holder", None, True)
            self.tier(share, "holder", None)
        self.pass_time(hours)
        self.expire("holder", False)

    def delete_files(self, held: Held) -> None:
        """A fenced holder fails, if it found any file to delete."""
        for i, side in enumerate(self.sides):
            found = _outcome(lambda i, side: side.delete_files(held.on[i]), i, side)
            assert found is None or type(found) in self.fenced(held), found

    def trim(self, held: Held, dry_run: bool) -> None:
        wrong = set() if dry_run else self.fenced(held)
        before = [side.seen() for side in self.sides] if dry_run else []
        made = self.step(lambda i, side: side.trim(held.on[i], dry_run=dry_run), wrong=wrong)
        assert made is None or made == made[:1] * len(made), "the stores decide differently"
        if dry_run:
            assert [side.seen() for side in self.sides] == before, "S35"
        elif made:
            self.truth.trimmed()

    # -- what always holds ----------------------------------------------------------------------------------

    @invariant()
    def stores_hold_what_the_oracle_says(self) -> None:
        seen = [side.seen() for side in self.sides]
        for one in seen[1:]:
            assert one == seen[0], "the stores differ"
        self.check(seen[0])
        for side in self.sides:
            if side.cheap:
                self.check_readers(side)

    def check(self, seen: Seen) -> None:
        truth = self.truth
        wanted = {p: (truth.log[p].start, truth.stream_hi[p], at) for p, at in truth.buffer_hi.items()}
        assert seen.positions == wanted, "S6: the bounds are where the commits have put them"
        kept = [v for v in truth.versions if v.number >= truth.retained_from]
        assert seen.versions == [(v.number, v.stream_hi, v.buffer_hi) for v in kept], "S3, S9"
        moves = [(_ints(lo), _ints(hi), state, attempt) for lo, hi, state, attempt, _ in seen.moves]
        assert moves == [(m.lo, m.hi, m.state, m.attempts) for m in truth.moves], "S5, S8"
        assert seen.refused == truth.refused(), "S31"
        assert [seq for seq, _ in seen.outbox] == [v.number for v in truth.versions], "S33"
        assert all(high < truth.stream_hi[p] for p, _, high in seen.files), "S37"
        assert all(seen.trim_floor[p] <= at for p, at in truth.stream_hi.items()), "S11"
        self.check_buffer(seen)

    def check_buffer(self, seen: Seen) -> None:
        """Nothing is twice in the buffer, and all that somebody needs of it is there."""
        there: Rows = Counter()
        for number, rows in seen.buffered.items():
            if seen.segments[number][0] != "retired":
                there.update(rows)
        committed = self.truth.good(self.truth.starts, self.truth.buffer_hi)
        assert there <= committed, f"S1: nobody committed, or twice: {sorted(there - committed)}"
        needed = self.truth.needed()
        assert needed <= there, f"S11, S13: gone from the buffer: {sorted(needed - there)}"

    def check_readers(self, side: Side, *, every: bool = False) -> None:
        """Living leases, the head and old versions (or just the oldest) give what they promised: S1, S2, S10."""
        truth, i = self.truth, self.sides.index(side)
        for lease in truth.leases:
            if truth.lives(lease):
                found = side.rows(lease.on[i])
                assert found == lease.rows, _difference([found], lease.rows)
        kept = [v.number for v in truth.versions if v.number >= truth.retained_from]
        for version in (None, *(kept if every else kept[:1])):
            plan = side.look(at=version, lease=minutes(CLAIM_M))
            found, wanted = side.rows(plan), truth.promised(version)
            side.rig.leases.end(plan.lease_id)
            assert wanted is not None
            assert found == wanted, f"version {version}: {_difference([found], wanted)}"

    # -- the end --------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """All comes to an end: each record is in the lake or quarantined, and nothing useless is kept (L1, L3, L5)."""
        truth = self.truth
        for side in self.sides:
            self.check_readers(side, every=True)
        unit = self.poll(4, 0, False)
        if isinstance(unit, Unit):
            self.commit(unit, "holder", None)
        self.rotate()
        self.tier(4, "holder", None)
        self.pass_time(31)
        for _ in range(3):
            self.expire("holder", False)
            self.pass_time(7)
        for side in self.sides:
            seen = side.seen()
            self.check(seen)
            self.check_readers(side, every=True)
            assert [state for state, _ in seen.segments.values()] == ["open"], "L5"
        assert truth.stream_hi == truth.ends

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:  # all steps went well
                self.finish()
        finally:
            for side in self.sides:
                side.close()


def _outcome(act: Callable[[int, Side], Any], i: int, side: Side) -> Any:
    try:
        return act(i, side)
    except HarnessError as error:
        return error


def _claim(side: Side, stage: Stage) -> Any:
    return side.rig.ledger.claim(side.table, stage, shard=0, holder=str(uuid.uuid4()), lease=minutes(CLAIM_M))


def _names(errors: Errors) -> str:
    return " or ".join(sorted(error.__name__ for error in errors))


def _ints(vector: dict[str, int]) -> dict[int, int]:
    return {int(p): at for p, at in vector.items()}


def _difference(found: Sequence[Rows], wanted: Rows) -> str:
    return "; ".join(f"missing {sorted(wanted - rows)}, too many {sorted(rows - wanted)}" for rows in found)
