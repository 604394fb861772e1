"""The frame of the boundary commit: its locks have one order, it builds again, and it asks what became of a COMMIT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness_pipelines.errors import OutcomeUnknown
from harness_pipelines.ledgers.postgres.boundary import OPTIMISTIC_BUILDS, BoundaryCommit, BoundaryFrame, CommitLost
from harness_pipelines.ports.errors import BuiltGone
from harness_pipelines.ports.ledger import PointerMoved, Swap, TableRow
from harness_pipelines.protocol.versions import Version
from harness_pipelines_tests.contract.stores_rig import RealRig, fresh_view

Step = Callable[[BoundaryFrame], object]
NO_MOVE = 10**9


@pytest.fixture
def table(real: RealRig) -> TableRow:
    made = real.table(partitions=1)
    real.ingest(made, {0: (0, 10)})
    real.move(made, {0: 0}, {0: 10})
    return made


def commit_of(real: RealRig, table: TableRow, move_id: int = NO_MOVE) -> BoundaryCommit:
    return BoundaryCommit(database=real.database, table=table, catalog=real.pointers, act="tier", move_id=move_id)


@pytest.mark.parametrize(
    ("first", "late"),
    [
        (lambda frame: frame.lock_views(), lambda frame: frame.lock_table()),
        (lambda frame: frame.lock_move(NO_MOVE), lambda frame: frame.lock_view("stream")),
        (lambda frame: frame.lock_positions(), lambda frame: frame.lock_open_moves()),
        (lambda frame: frame.share_trim(), lambda frame: frame.lock_positions()),
        (lambda frame: frame.fence_stages(), lambda frame: frame.lock_trim()),
    ],
)
def test_an_act_that_takes_a_lock_out_of_order_is_refused(real: RealRig, table: TableRow, first: Step, late: Step):
    """Two acts with two orders would wait for each other."""
    with real.database.transaction() as connection:
        frame = BoundaryFrame(connection, table, real.pointers)
        first(frame)
        with pytest.raises(AssertionError, match="is locked behind"):
            late(frame)
        connection.rollback()


def test_a_lock_that_is_held_may_be_taken_again_to_look_again(real: RealRig, table: TableRow):
    with real.database.transaction() as connection:
        frame = BoundaryFrame(connection, table, real.pointers)
        frame.lock_table()
        before = frame.lock_positions()
        frame.lock_trim()
        assert frame.lock_positions() == before


def test_files_are_asked_for_under_the_trim_lock_alone(real: RealRig, table: TableRow):
    """Else expire may choose one of them between the question and the commit."""
    gone = Swap(view="stream", old="a", base_snapshot=1, new=fresh_view(), built=("file:///nowhere/1.parquet",))
    with real.database.transaction() as connection:
        frame = BoundaryFrame(connection, table, real.pointers)
        with pytest.raises(AssertionError):
            frame.check_kept([gone])
        frame.share_trim()
        with pytest.raises(BuiltGone, match=r"1\.parquet"):
            frame.check_kept([gone])


def test_an_act_whose_pointer_moves_each_time_is_built_under_the_locks_at_last(real: RealRig, table: TableRow):
    built: list[str] = []
    head = real.ledger.head(table)

    def prepare() -> Callable[[BoundaryFrame], Version]:
        built.append("ahead")

        def moved(frame: BoundaryFrame) -> Version:
            frame.lock_table()
            raise PointerMoved("somebody was first")

        return moved

    def locked(frame: BoundaryFrame) -> Version:
        built.append("under the locks")
        frame.lock_table()
        return frame.head()[0]

    assert commit_of(real, table).publish(prepare, locked) == head
    assert built == ["ahead"] * OPTIMISTIC_BUILDS + ["under the locks"]


def test_a_lost_answer_is_judged_by_the_move_that_was_sent(real: RealRig, table: TableRow):
    """A ledger that lost a part of its history gives numbers again: another move of that number is no answer."""
    published, unknown = real.ledger.head(table), OutcomeUnknown("a test")
    assert published.move_id is not None
    asked = commit_of(real, table, published.move_id)
    assert asked.resolve(unknown) == published
    with pytest.raises(CommitLost):
        commit_of(real, table).resolve(unknown)

    claim = real.claim(table)
    other = replace(real.plan(table, claim, {0: 10}, {0: 10}), move_id=published.move_id)
    with pytest.raises(CommitLost):
        replace(asked, sent=other).resolve(unknown)
