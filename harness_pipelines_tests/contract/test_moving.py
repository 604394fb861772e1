"""How a move that fails is tried again, made smaller, or given up; over the reference and over Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.errors import HarnessError, OutcomeUnknown, Recovery, TryAgain
from harness_pipelines.ledgers.postgres.boundary import CommitLost
from harness_pipelines.ports.errors import BaseGone
from harness_pipelines.ports.lake import Staged
from harness_pipelines.ports.ledger import MoveDraft, TableRow
from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.moves import ATTEMPTS_MAX, NO_RESULT, Move, MoveClosed, MoveState, MoveStuck
from harness_pipelines.protocol.versions import Version
from harness_pipelines.stages.run.moving import FAILURES_MAX, PLANS_MAX, Moving, Pointless, Tally
from harness_pipelines.stages.tier.sources import Attempt
from harness_pipelines_tests.contract.stores_rig import StoresRig


class Boom(HarnessError):
    """The attempt itself is at fault."""

    recovery = Recovery.REFRESH


class Killed(BaseException):
    """The worker died there: nothing of it is noted."""


class Trying:
    """A stage of which each attempt ends as the test says; without an end it is published."""

    def __init__(self, stores: StoresRig, table: TableRow, *, stage: Stage = Stage.TIER, hi: Vector) -> None:
        self.name = stage
        self.ends: list[BaseException] = []
        self.tried: list[Move] = []
        self._stores, self._table, self._hi = stores, table, hi

    def plan(self, claim: Claim, *, trigger: str, run_id: str | None, below: Vector | None = None) -> Move:
        head, hi = self._stores.ledger.head(self._table), self._hi if below is None else below
        draft = MoveDraft(
            stage=self.name,
            shard=0,
            lo={p: head.stream_hi[p] for p in hi},
            hi=hi,
            base_version=head.version,
            schema_version=1,
            trigger=trigger,
            run_id=run_id,
        )
        return self._stores.ledger.plan_move(claim, draft)

    def stage(self, move: Move) -> Attempt:
        self.tried.append(move)
        if self.ends:
            raise self.ends.pop(0)
        return Attempt(staged=Staged(files=(), rows=3, bytes=50))

    def publish(self, claim: Claim, move: Move, attempt: Attempt) -> Version:
        return self._stores.publish(self._table, claim, move)


@pytest.fixture
def table(stores: StoresRig) -> TableRow:
    """Two partitions with [0, 10) and [0, 20) in the buffer."""
    made = stores.table()
    stores.ingest(made, {0: (0, 10), 1: (0, 20)})
    return made


@pytest.fixture
def claim(stores: StoresRig, table: TableRow) -> Iterator[Claim]:
    held = stores.claim(table)
    yield held
    stores.ledger.release(held)


def moving(stores: StoresRig, table: TableRow, mover: Trying) -> Moving[Attempt]:
    opened: Any = SimpleNamespace(ledger=stores.ledger)
    return Moving(opened, table, mover)


def finish(stores: StoresRig, table: TableRow, claim: Claim, mover: Trying) -> Version | None:
    """The next attempt, which nothing disturbs."""
    return moving(stores, table, mover).once(claim, trigger="test", run_id=None)


def fail(stores: StoresRig, table: TableRow, claim: Claim, mover: Trying, *ends: BaseException) -> None:
    """One attempt for each of *ends*, which ends by it."""
    for end in ends:
        mover.ends = [end]
        with pytest.raises(type(end)):
            moving(stores, table, mover).once(claim, trigger="test", run_id=None)


def errors(stores: StoresRig, table: TableRow) -> list[tuple[str, str | None]]:
    """(state, error) of tier's moves, oldest first."""
    return [(str(m["state"]), m["error"]) for m in stores.ledger.moves(table, stage=Stage.TIER)][::-1]


# -- what becomes of it -------------------------------------------------------------------------------------


def counts(tally: Tally) -> Tally:
    """Without the CPU time, which no test knows."""
    return replace(tally, cpu_s=0.0)


def test_what_becomes_of_attempts_and_moves_is_counted(stores: StoresRig, table: TableRow, claim: Claim):
    mover, tally = Trying(stores, table, hi={0: 10, 1: 20}), Tally()
    opened: Any = SimpleNamespace(ledger=stores.ledger)
    counted = Moving(opened, table, mover, tally=tally)
    for end in (Boom("once"), TryAgain("Spark is away"), Boom("twice"), Boom("and again")):
        mover.ends = [end]
        with pytest.raises(HarnessError):
            counted.once(claim, trigger="test", run_id=None)
    assert counts(tally) == Tally(failed=4)

    assert counted.once(claim, trigger="test", run_id=None) is not None
    assert counts(tally) == Tally(failed=4, given_up=1, committed=1, records=3, bytes=50), "it was halved first"

    mover.ends = [Pointless("not better")]
    assert counted.once(claim, trigger="test", run_id=None) is None
    assert (tally.given_up, tally.committed) == (2, 1)


def test_attempts_that_take_spark_or_their_worker_down_make_the_next_ones_smaller(
    stores: StoresRig, table: TableRow, claim: Claim
):
    """L3: they count as no failures, so nothing else would end such a move."""
    mover = Trying(stores, table, hi={0: 10, 1: 20})
    fail(stores, table, claim, mover, *[TryAgain("Spark is away"), Killed()] * (ATTEMPTS_MAX // 2))

    published = finish(stores, table, claim, mover)

    assert [(move.attempt, dict(move.hi)) for move in mover.tried] == [
        *((turn, {0: 10, 1: 20}) for turn in range(1, ATTEMPTS_MAX + 1)),
        (1, {0: 5, 1: 10}),
    ]
    assert published is not None
    assert published.stream_hi == {0: 5, 1: 10}


def test_half_of_a_move_that_took_effect_after_all_is_not_planned(
    stores: StoresRig, table: TableRow, claim: Claim, monkeypatch: pytest.MonkeyPatch
):
    """Its COMMIT may still be under way when the worker looks for an open move."""
    mover = Trying(stores, table, hi={0: 10})
    fail(stores, table, claim, mover, *[TryAgain("Spark is away")] * ATTEMPTS_MAX)
    seen = stores.ledger.open_move(table, Stage.TIER, shard=0)
    assert seen is not None
    published = stores.publish(table, claim, seen)

    with monkeypatch.context() as patched:
        patched.setattr(stores.ledger, "open_move", lambda *_, **__: seen)
        with pytest.raises(MoveClosed, match=f"move {seen.move_id} is not open in attempt {ATTEMPTS_MAX} any more"):
            finish(stores, table, claim, mover)

    assert stores.ledger.head(table) == published
    assert stores.ledger.open_move(table, Stage.TIER, shard=0) is None


def test_what_cannot_be_halved_is_tried_for_as_long_as_an_outage_lasts(
    stores: StoresRig, table: TableRow, claim: Claim
):
    mover = Trying(stores, table, hi={0: 1, 1: 1})
    fail(stores, table, claim, mover, *[TryAgain("Spark is away")] * (ATTEMPTS_MAX + 1))

    assert finish(stores, table, claim, mover) is not None
    assert [move.attempt for move in mover.tried] == list(range(1, ATTEMPTS_MAX + 3))


def test_a_commit_whose_answer_was_lost_counts_against_no_move(stores: StoresRig, table: TableRow, claim: Claim):
    mover = Trying(stores, table, hi={0: 1})
    lost = [CommitLost("it took no effect"), OutcomeUnknown("COMMIT was sent, its answer was lost")]
    fail(stores, table, claim, mover, *lost * FAILURES_MAX)

    assert finish(stores, table, claim, mover) is not None, "it was stuck, for three outages"


# -- what is said of it -------------------------------------------------------------------------------------


def test_a_move_that_is_stuck_says_what_went_wrong_last(stores: StoresRig, table: TableRow, claim: Claim):
    mover = Trying(stores, table, hi={0: 1})
    fail(stores, table, claim, mover, *(Boom(f"boom {turn}") for turn in range(FAILURES_MAX)))

    with pytest.raises(MoveStuck, match=r"partition 0 \[0, 1\) failed in every attempt"):
        finish(stores, table, claim, mover)

    said = f"every attempt failed; its last error: boom {FAILURES_MAX - 1}"
    assert errors(stores, table) == [("QUARANTINED", said)]
    stuck = stores.ledger.open_move(table, Stage.TIER, shard=0)
    assert stuck is not None
    stores.ledger.close_move(claim, stuck, state=MoveState.ABANDONED, error="abandoned by --retry-stuck")
    assert errors(stores, table) == [("ABANDONED", f"abandoned by --retry-stuck; its last error: {said}")]


def test_a_move_that_was_halved_says_what_went_wrong_last(stores: StoresRig, table: TableRow, claim: Claim):
    mover = Trying(stores, table, hi={0: 10})
    fail(stores, table, claim, mover, *[Boom("boom")] * FAILURES_MAX)

    finish(stores, table, claim, mover)

    assert [dict(move.hi) for move in mover.tried] == [{0: 10}] * FAILURES_MAX + [{0: 5}]
    assert errors(stores, table) == [
        ("ABANDONED", "halved after failed attempts; its last error: boom"),
        ("COMMITTED", None),
    ]


def test_an_attempt_of_which_nothing_is_known_takes_no_error_away(stores: StoresRig, table: TableRow, claim: Claim):
    fail(stores, table, claim, Trying(stores, table, hi={0: 10}), Boom("boom"), Killed(), Killed())

    assert errors(stores, table) == [("PLANNED", "boom")]


def test_of_attempts_that_left_no_error_that_is_said(stores: StoresRig, table: TableRow, claim: Claim):
    fail(stores, table, claim, Trying(stores, table, hi={0: 10}), Killed(), Killed())

    assert errors(stores, table) == [("PLANNED", NO_RESULT)]


def test_trouble_is_told_when_the_ledger_is_too_busy_to_note_it(
    stores: StoresRig, table: TableRow, claim: Claim, monkeypatch: pytest.MonkeyPatch
):
    def busy(*_: object, **__: object) -> int:
        raise TryAgain("another session holds what is needed")

    mover = Trying(stores, table, hi={0: 10})
    with monkeypatch.context() as patched:
        patched.setattr(stores.ledger, "note_failure", busy)
        fail(stores, table, claim, mover, Boom("boom"))

    finish(stores, table, claim, mover)
    assert errors(stores, table) == [("COMMITTED", NO_RESULT)]


@pytest.mark.parametrize("overtaken", [PLANS_MAX - 1, PLANS_MAX])
def test_a_plan_that_is_overtaken_is_made_again_a_few_times_and_no_more(
    stores: StoresRig, table: TableRow, claim: Claim, overtaken: int, monkeypatch: pytest.MonkeyPatch
):
    # These views are names alone.
    monkeypatch.setattr("harness_pipelines.stages.run.moving.check_ours", lambda *_: None)
    mover = Trying(stores, table, hi={0: 10})
    mover.ends = [BaseGone("the base is not retained any more")] * overtaken
    tally = Tally()
    opened: Any = SimpleNamespace(ledger=stores.ledger)
    run = Moving(opened, table, mover, tally=tally)
    if overtaken < PLANS_MAX:
        assert run.once(claim, trigger="test", run_id=None) is not None
    else:
        with pytest.raises(BaseGone):
            run.once(claim, trigger="test", run_id=None)
    assert len({move.move_id for move in mover.tried}) == PLANS_MAX
    assert tally.given_up == overtaken
    assert stores.ledger.open_move(table, Stage.TIER, shard=0) is None
