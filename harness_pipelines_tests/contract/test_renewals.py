"""All claims of a holder are taken, renewed and given back by one statement; workers that share know each other."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from harness_pipelines.drivers.postgres import sql
from harness_pipelines.protocol.claims import Claim, FencedOut, Stage
from harness_pipelines_tests.contract.stores_rig import HOUR, RealRig, StoresRig

MINUTE = timedelta(minutes=1)
STAGES = (Stage.INGEST, Stage.TIER, Stage.OTREE)


def claims(real: RealRig, holder: str) -> list[Claim]:
    """Of two tables, three each."""
    tables = [real.table(), real.table()]
    found = [
        real.ledger.claim(table, stage, shard=0, holder=holder, lease=MINUTE) for table in tables for stage in STAGES
    ]
    return [one for one in found if one is not None]


def test_free_claims_are_taken_together_and_those_of_others_stay(stores: StoresRig):
    first, second = stores.table(), stores.table()
    others, ended = stores.claim(first, Stage.TIER), stores.claim(second, Stage.OTREE, lease=MINUTE)
    stores.pass_time(2 * MINUTE)
    given_back = stores.claim(second, Stage.TIER)
    stores.ledger.release(given_back)
    wanted = [(table.table_id, stage) for table in (first, second) for stage in STAGES]
    holder = str(uuid.uuid4())

    taken = stores.ledger.claim_all([*wanted, (10**9, Stage.TIER)], holder=holder, lease=HOUR)

    places = {(one.table_id, one.stage): one for one in taken}
    assert places.keys() == set(wanted) - {(first.table_id, Stage.TIER)}, "a table that is not there has no claim"
    assert len(taken) == len(places)
    assert {one.holder for one in taken} == {holder}
    for before in (ended, given_back):
        assert places[before.table_id, before.stage].epoch > before.epoch, "the holder of before is fenced"
    for one in taken:
        assert stores.ledger.renew(one, lease=HOUR).epoch == one.epoch
    assert stores.ledger.renew(others, lease=HOUR).holder == others.holder
    assert stores.ledger.claim_all(wanted, holder=str(uuid.uuid4()), lease=HOUR) == []
    assert stores.ledger.claim_all([], holder=holder, lease=HOUR) == []


def test_what_another_session_has_locked_does_not_hold_up_the_claims_of_others(real: RealRig):
    kept, dropped, asked = real.table(), real.table(), real.table()
    real.ledger.release(real.claim(asked))
    wanted = [(table.table_id, Stage.TIER) for table in (kept, dropped, asked)]
    with real.owner.transaction() as connection:
        connection.execute(sql("ledger/lock_claim"), {"table_id": asked.table_id, "stage": "tier", "shard": 0})
        connection.execute("SELECT FROM harness.tables WHERE table_id = %s FOR UPDATE", [dropped.table_id])
        taken = real.ledger.claim_all(wanted, holder=str(uuid.uuid4()), lease=HOUR)
    assert [one.table_id for one in taken] == [kept.table_id]
    others = real.ledger.claim_all(wanted, holder=str(uuid.uuid4()), lease=HOUR)
    assert {one.table_id for one in others} == {dropped.table_id, asked.table_id}


def test_two_workers_that_ask_at_once_never_have_one_claim_both(real: RealRig):
    tables = [real.table() for _ in range(5)]
    wanted = [(table.table_id, stage) for table in tables for stage in STAGES]
    with ThreadPoolExecutor(4) as threads:
        found = list(
            threads.map(
                lambda given: real.ledger.claim_all(given, holder=str(uuid.uuid4()), lease=HOUR),
                [wanted, wanted[::-1], wanted, wanted[::-1]],
            )
        )
    taken = [(one.table_id, one.stage) for claims in found for one in claims]
    assert sorted(taken) == sorted(wanted)


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
