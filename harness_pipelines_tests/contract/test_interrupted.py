"""What ends the taking of a lease, a hold or a claim leaves none, at whichever line of ours it comes.

A SIGTERM and a Ctrl-C are exceptions on the main thread, at any line. What they left would hold its table, stage or
state until its time is over.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

import harness_pipelines
from harness_pipelines.ledgers.postgres.states import States
from harness_pipelines.ports.ledger import TableRow, claimed_once
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.read.plan import leased
from harness_pipelines.stages.run.claims import ClaimKeeper
from harness_pipelines_tests.contract.stores_rig import MINUTE, RealRig

OURS = str(Path(harness_pipelines.__file__).parent)
LINES_MAX = 400  #: until the block is reached; more would be another program
Taking = Callable[[RealRig, TableRow, str], AbstractContextManager[object]]


class InterruptedHere(BaseException):
    """What a signal raises."""


@contextmanager
def _interrupted_at(number: int) -> Any:
    """Raise InterruptedHere at the line of ours with this number."""
    left = number

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise InterruptedHere
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def _a_hold(real: RealRig, _table: TableRow, name: str) -> AbstractContextManager[object]:
    return States(real.database).hold(name, lease=MINUTE)


def _a_lease(real: RealRig, table: TableRow, name: str) -> AbstractContextManager[object]:
    stores: Any = SimpleNamespace(leases=real.leases)
    return leased(stores, table, holder=name, lease=MINUTE)


def _a_claim(real: RealRig, table: TableRow, _name: str) -> AbstractContextManager[object]:
    return claimed_once(real.ledger, table, Stage.TIER, lease=MINUTE)


HELD: dict[Taking, str] = {
    _a_hold: "SELECT count(*) AS n FROM harness.states WHERE name = %(name)s AND lease_until > clock_timestamp()",
    _a_lease: "SELECT count(*) AS n FROM harness.leases WHERE table_id = %(table)s AND until > clock_timestamp()",
    _a_claim: "SELECT count(*) AS n FROM harness.claims WHERE table_id = %(table)s AND lease_until > clock_timestamp()",
}


@pytest.mark.parametrize("taking", HELD, ids=lambda taking: taking.__name__.lstrip("_"))
def test_what_is_interrupted_while_it_takes_something_holds_nothing(real: RealRig, taking: Taking):
    table = real.table()
    for line in range(1, LINES_MAX):
        name = str(uuid.uuid4()) if taking is not _a_hold else f"s-{uuid.uuid4().hex[:10]}"
        reached = False
        try:
            with _interrupted_at(line), taking(real, table, name):
                sys.settrace(None)
                reached = True
        except InterruptedHere:
            pass
        held = real.ask(HELD[taking], {"name": name, "table": table.table_id})
        assert held == [{"n": 0}], f"interrupted at line {line}"
        if reached:
            break
    assert reached
    real.ask("DELETE FROM harness.states WHERE name LIKE 's-%%'")


def test_a_keeper_that_is_interrupted_while_it_asks_gives_the_claim_back(real: RealRig, monkeypatch):
    """As an own mover has one, on the main thread."""
    table = real.table()
    claim = real.ledger.claim

    def taken_and_interrupted(*asked: Any, **words: Any) -> Any:
        claim(*asked, **words)
        raise InterruptedHere

    keeper = ClaimKeeper(real.ledger, table, Stage.TIER, holder=str(uuid.uuid4()), lease=MINUTE)
    with monkeypatch.context() as patched:
        patched.setattr(real.ledger, "claim", taken_and_interrupted)
        with pytest.raises(InterruptedHere):
            keeper.acquire()
    keeper.release()
    assert real.ledger.claim(table, Stage.TIER, shard=0, holder=str(uuid.uuid4()), lease=MINUTE) is not None


def test_a_claim_that_may_have_been_taken_is_given_back_by_its_holder_alone_and_no_other_one_is(real: RealRig):
    table, other, holder = real.table(), real.table(), str(uuid.uuid4())
    claims = [(table, Stage.TIER, 0), (table, Stage.TIER, 1), (table, Stage.OTREE, 0), (other, Stage.TIER, 0)]
    for of, stage, shard in claims:
        assert real.ledger.claim(of, stage, shard=shard, holder=holder, lease=MINUTE) is not None

    def lasting() -> list[bool]:
        found = [real.ledger.claimed(of, stage, shard=shard) for of, stage, shard in claims]
        return [one is not None and one[0].lease_until > one[1] for one in found]

    real.ledger.release_of(table, Stage.TIER, shard=0, holder=str(uuid.uuid4()))
    assert lasting() == [True, True, True, True]
    real.ledger.release_of(table, Stage.TIER, shard=0, holder=holder)
    assert lasting() == [False, True, True, True]
    ended = real.ledger.claimed(table, Stage.TIER, shard=0)
    real.ledger.release_of(table, Stage.TIER, shard=0, holder=holder)  # it is over already
    again = real.ledger.claimed(table, Stage.TIER, shard=0)
    assert ended is not None and again is not None and again[0].lease_until == ended[0].lease_until
