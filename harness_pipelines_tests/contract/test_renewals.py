"""All claims of a holder are renewed by one statement, and given back by one; workers that share know each other."""

from __future__ import annotations

import uuid
from datetime import timedelta

from harness_pipelines.drivers.postgres import sql
from harness_pipelines.protocol.claims import Claim, FencedOut, Stage
from harness_pipelines_tests.contract.stores_rig import HOUR, RealRig

MINUTE = timedelta(minutes=1)
STAGES = (Stage.INGEST, Stage.TIER, Stage.OTREE)


def claims(real: RealRig, holder: str) -> list[Claim]:
    """Of two tables, three each."""
    tables = [real.table(), real.table()]
    found = [
        real.ledger.claim(table, stage, shard=0, holder=holder, lease=MINUTE) for table in tables for stage in STAGES
    ]
    return [one for one in found if one is not None]


def test_all_claims_are_renewed_but_those_that_were_lost(real: RealRig):
    holder = str(uuid.uuid4())
    held = claims(real, holder)
    assert len(held) == 6
    lost, taken = held[1], held[4]
    real.ledger.release(lost)
    real.ask(
        "UPDATE harness.claims SET holder = gen_random_uuid(), epoch = epoch + 1 WHERE table_id = %s AND stage = %s",
        [taken.table_id, taken.stage],
    )

    found = real.ledger.renew_all(held, lease=HOUR)

    assert found.keys() == set(held)
    assert {claim for claim, now in found.items() if isinstance(now, FencedOut)} == {lost, taken}
    for claim, now in found.items():
        if not isinstance(now, FencedOut):
            assert (now.epoch, now.holder) == (claim.epoch, holder)
            assert now.lease_until > claim.lease_until + HOUR / 2
    assert real.ledger.renew_all([], lease=HOUR) == {}


def test_a_claim_that_another_session_holds_does_not_hold_up_the_others(real: RealRig):
    held = claims(real, str(uuid.uuid4()))
    locked = held[2]
    key = {"table_id": locked.table_id, "stage": locked.stage, "shard": 0}
    with real.owner.transaction() as connection:
        connection.execute(sql("ledger/lock_claim"), key)
        found = real.ledger.renew_all(held, lease=HOUR)
    assert found.keys() == set(held) - {locked}, "it is neither renewed nor lost"
    assert locked in real.ledger.renew_all(held, lease=HOUR)


def test_claims_are_given_back_at_once_but_those_of_others(real: RealRig):
    holder, other = str(uuid.uuid4()), str(uuid.uuid4())
    mine, theirs = claims(real, holder), claims(real, other)

    real.ledger.release_all(holder, {(one.table_id, one.stage) for one in (*mine, *theirs)})

    assert all(isinstance(now, FencedOut) for now in real.ledger.renew_all(mine, lease=HOUR).values())
    assert not any(isinstance(now, FencedOut) for now in real.ledger.renew_all(theirs, lease=HOUR).values())


def test_workers_of_the_same_stages_know_each_other_until_they_leave_or_say_nothing(real: RealRig):
    first, second, other = (str(uuid.uuid4()) for _ in range(3))
    assert real.ledger.beat(first, STAGES, lease=MINUTE) == {first}
    real.ledger.beat(other, [Stage.EXPIRE], lease=MINUTE)
    assert real.ledger.beat(second, STAGES, lease=MINUTE) == {first, second}
    real.ledger.leave(first)
    assert real.ledger.beat(second, STAGES, lease=MINUTE) == {second}
    real.ledger.beat(first, STAGES, lease=timedelta(0))
    assert real.ledger.beat(second, STAGES, lease=MINUTE) == {second}
