"""The rules of reading and of what may go: leases, old versions, the trim floor; over the reference and Postgres."""

from __future__ import annotations

import uuid
from datetime import timedelta

import psycopg
import pytest
from psycopg.errors import CheckViolation, InsufficientPrivilege

from harness_pipelines.drivers.postgres import READER
from harness_pipelines.drivers.postgres_session import session_dsn
from harness_pipelines.errors import TryAgain
from harness_pipelines.ports.ledger import LeaseEnded, ReadState, TableRow
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.claims import FencedOut, Stage
from harness_pipelines.protocol.versions import VersionGone
from harness_pipelines_tests.contract.stores_rig import HOUR, MINUTE, RealRig, StoresRig

GRACE = timedelta(minutes=10)  #: of a spec that says nothing
RETENTION = {"versions": "1h"}


@pytest.fixture
def table(stores: StoresRig):
    """One partition; [0, 10) lies in a closed segment, [10, 15) in the open one."""
    made = stores.table(partitions=1, retention=RETENTION)
    stores.ingest(made, {0: (0, 10)})
    stores.segments.rotate(made)
    stores.ingest(made, {0: (10, 15)})
    return made


def look(stores: StoresRig, table: TableRow, *, at: int | None = None, lease: timedelta = HOUR) -> ReadState:
    return stores.leases.look(table, holder="test", lease=lease, at=at)


def names(state: ReadState) -> list[str]:
    return [s.name for s in state.segments]


def segments(stores: StoresRig, table: TableRow, *states: str) -> list[str]:
    return [s.name for s in stores.segments.all(table) if s.state in states]


def trimmed(stores: StoresRig, table: TableRow, *, dry_run: bool = False):
    """One run of expire's decision."""
    claim = stores.claim(table, Stage.EXPIRE)
    decision = stores.upkeep.trim(stores.again(table), claim, dry_run=dry_run)
    stores.ledger.release(claim)
    return decision


def settle(stores: StoresRig, table: TableRow) -> None:
    """Move everything, and let all that waits for it pass."""
    stores.move(table, {0: 0}, {0: 15})
    stores.pass_time(2 * HOUR)


# -- reading ------------------------------------------------------------------------------------------------


def test_a_read_sees_the_head_and_the_buffer_of_one_instant(stores: StoresRig, table):
    published = stores.move(table, {0: 0}, {0: 4})

    state = look(stores, table)

    assert state.version == published
    assert state.bounds == {0: Bounds(start=0, batch_hi=0, stream_hi=4, buffer_hi=15)}
    assert names(state) == segments(stores, table, "closed", "open")
    assert state.answered_by is None


def test_a_read_names_no_segment_for_a_partition_that_has_nothing_buffered(stores: StoresRig):
    """Such a segment may retire and be dropped while the read's lease lives."""
    made = stores.table(partitions=2, retention=RETENTION)
    stores.ingest(made, {0: (0, 4), 1: (0, 4)})
    stores.segments.rotate(made)
    stores.move(made, {0: 0, 1: 0}, {0: 4, 1: 4})
    stores.ingest(made, {0: (4, 6)})
    stores.pass_time(2 * HOUR)

    state = look(stores, made)
    retired = trimmed(stores, made).retire

    assert [s.name for s in retired] == segments(stores, made, "retired")
    assert names(state) == segments(stores, made, "open")


def test_rows_that_were_buffered_after_the_version_are_in_its_read(stores: StoresRig, table):
    stores.move(table, {0: 0}, {0: 15})
    stores.ingest(table, {0: (15, 18)})

    assert look(stores, table).bounds[0].buffer_hi == 18


def test_the_head_that_is_asked_for_by_its_number_has_its_own_bounds(stores: StoresRig, table):
    head = stores.move(table, {0: 0}, {0: 4})
    asked = look(stores, table, at=head.version)
    stores.ingest(table, {0: (15, 18)})
    stores.join(table, {1: 7})

    again = look(stores, table, at=head.version)

    assert again.bounds == asked.bounds == {0: Bounds(start=0, batch_hi=0, stream_hi=4, buffer_hi=15)}
    assert names(again) == segments(stores, table, "closed", "open")
    assert look(stores, table).bounds[0].buffer_hi == 18, "without a number it is read up to this instant"


def test_a_partition_that_joined_is_read_from_its_start(stores: StoresRig, table):
    stores.join(table, {1: 7})

    assert look(stores, table).bounds[1] == Bounds.at(7)


def test_only_segments_that_can_hold_its_rows_are_named(stores: StoresRig, table):
    stores.move(table, {0: 0}, {0: 10})
    assert names(look(stores, table)) == segments(stores, table, "open")

    stores.move(table, {0: 10}, {0: 15})
    assert names(look(stores, table)) == []


def test_an_old_version_is_answered_by_the_buffer_until_the_lake_has_its_rows(stores: StoresRig, table):
    old = stores.move(table, {0: 0}, {0: 4})
    stores.move(table, {0: 4}, {0: 9})
    state = look(stores, table, at=old.version)
    assert (state.answered_by, names(state)) == (None, segments(stores, table, "closed", "open"))

    stores.ingest(table, {0: (15, 18)})
    answering = stores.move(table, {0: 9}, {0: 15})
    stores.move(table, {0: 15}, {0: 18})

    state = look(stores, table, at=old.version)
    assert state.version == old
    assert state.bounds == {0: Bounds(start=0, batch_hi=0, stream_hi=4, buffer_hi=15)}  # as of the publish
    assert (state.answered_by, names(state)) == (answering, [])


def test_a_version_of_another_table_answers_for_none(stores: StoresRig, table):
    other = stores.table(partitions=1)
    stores.ingest(other, {0: (0, 15)})
    old = stores.move(table, {0: 0}, {0: 4})
    stores.move(other, {0: 0}, {0: 4})
    stores.move(other, {0: 4}, {0: 15})

    state = look(stores, table, at=old.version)
    assert (state.answered_by, names(state)) == (None, segments(stores, table, "closed", "open"))


def test_a_version_that_never_was_is_named(stores: StoresRig, table):
    with pytest.raises(VersionGone, match=f"{table.name}: version 9 is not retained"):
        look(stores, table, at=9)


# -- leases -------------------------------------------------------------------------------------------------


def test_a_lease_ends_by_the_clock_of_the_store_and_then_fails_by_name(stores: StoresRig, table):
    state = look(stores, table, lease=MINUTE)
    stores.leases.renew(state.lease_id, lease=MINUTE)
    stores.pass_time(2 * MINUTE)

    with pytest.raises(
        LeaseEnded, match=f"lease {state.lease_id} of this read has ended: .*nothing is returned"
    ) as caught:
        stores.leases.renew(state.lease_id, lease=HOUR)
    assert caught.value.exit_code == TryAgain.exit_code, "the same read may be begun again"


def test_a_renewed_lease_lives_longer(stores: StoresRig, table):
    state = look(stores, table, lease=MINUTE)
    until = stores.leases.renew(state.lease_id, lease=HOUR)
    stores.pass_time(2 * MINUTE)

    assert until > state.lease_until
    stores.leases.renew(state.lease_id, lease=MINUTE)


def test_a_lease_that_was_given_back_cannot_be_renewed(stores: StoresRig, table):
    state = look(stores, table)
    stores.leases.end(state.lease_id)

    with pytest.raises(LeaseEnded):
        stores.leases.renew(state.lease_id, lease=HOUR)


def test_no_lease_gets_older_than_a_day(stores: StoresRig, table):
    state = look(stores, table, lease=timedelta(days=3))
    for _ in range(3):
        stores.pass_time(timedelta(hours=7))
        stores.leases.renew(state.lease_id, lease=timedelta(days=3))
    stores.pass_time(timedelta(hours=4))

    with pytest.raises(LeaseEnded):
        stores.leases.renew(state.lease_id, lease=HOUR)


# -- what may go --------------------------------------------------------------------------------------------


def test_a_segment_retires_once_the_lake_has_had_its_rows_for_the_grace(stores: StoresRig, table):
    old = segments(stores, table, "closed")
    stores.move(table, {0: 0}, {0: 15})
    stores.pass_time(GRACE - MINUTE)
    assert trimmed(stores, table).retire == ()  # a revert would still need it

    stores.pass_time(2 * MINUTE)
    assert [s.name for s in trimmed(stores, table).retire] == old
    assert segments(stores, table, "retired") == old
    assert [p.trim_floor for p in stores.ledger.positions(table)] == [15]


def test_rows_that_are_not_in_the_lake_never_retire(stores: StoresRig, table):
    stores.move(table, {0: 0}, {0: 9})
    stores.pass_time(2 * HOUR)

    decision = trimmed(stores, table)

    assert (decision.floor, decision.retire) == ({0: 9}, ())


def test_an_open_segment_never_retires(stores: StoresRig, table):
    settle(stores, table)

    trimmed(stores, table)

    assert len(segments(stores, table, "open")) == 1


def test_what_a_leased_reader_was_given_stays_while_the_lease_lives(stores: StoresRig, table):
    state = look(stores, table, lease=6 * HOUR)
    given = names(state)
    settle(stores, table)

    assert trimmed(stores, table).retire == ()
    assert set(given) <= set(segments(stores, table, "closed", "open"))

    stores.leases.end(state.lease_id)
    assert [s.name for s in trimmed(stores, table).retire] == given[:1]


def test_a_reader_keeps_the_rows_of_a_partition_that_joined_after_its_version(stores: StoresRig):
    table = stores.table(partitions=1, retention=RETENTION)
    stores.join(table, {1: 7})
    stores.ingest(table, {1: (7, 9)})
    stores.segments.rotate(table)
    state = look(stores, table, lease=6 * HOUR)
    stores.move(table, {1: 7}, {1: 9})
    stores.pass_time(2 * HOUR)

    assert trimmed(stores, table).retire == ()
    assert set(names(state)) <= set(segments(stores, table, "closed", "open"))
    stores.leases.end(state.lease_id)
    assert len(trimmed(stores, table).retire) == 1


def test_a_lease_that_ended_holds_nothing(stores: StoresRig, table):
    look(stores, table, lease=MINUTE)
    settle(stores, table)

    assert len(trimmed(stores, table).retire) == 1


def test_a_retired_segment_is_named_to_no_reader(stores: StoresRig, table):
    settle(stores, table)
    gone = [s.name for s in trimmed(stores, table).retire]

    assert not set(gone) & set(names(look(stores, table)))


def test_an_old_version_that_the_lake_does_not_answer_for_holds_the_floor(stores: StoresRig, table):
    stores.move(table, {0: 0}, {0: 9})  # version 2 still needs [9, 15) of the buffer
    stores.move(table, {0: 9}, {0: 10})
    stores.pass_time(GRACE + MINUTE)
    decision = trimmed(stores, table)
    assert (decision.floor, decision.retire) == ({0: 9}, ())

    stores.pass_time(HOUR)  # now it is not retained any more
    decision = trimmed(stores, table)
    assert (decision.floor, [s.name for s in decision.retire]) == ({0: 10}, segments(stores, table, "retired"))


def test_the_floor_of_a_partition_is_its_own(stores: StoresRig):
    """Partition 0 was moved a moment ago: a revert finds its rows in the buffer, also where the lake has them."""
    both = stores.table(partitions=2, retention=RETENTION)
    stores.ingest(both, {0: (0, 10), 1: (0, 10)})
    stores.move(both, {1: 0}, {1: 10})
    stores.pass_time(2 * GRACE)
    stores.move(both, {0: 0}, {0: 10})

    trimmed(stores, both)

    assert {p.partition: p.trim_floor for p in stores.ledger.positions(both)} == {0: 0, 1: 10}


def test_the_floor_never_falls(stores: StoresRig, table):
    settle(stores, table)
    trimmed(stores, table)
    look(stores, table, lease=HOUR)
    stores.ingest(table, {0: (15, 18)})

    trimmed(stores, table)

    assert [p.trim_floor for p in stores.ledger.positions(table)] == [15]


def test_versions_go_when_they_were_superseded_for_the_retention_and_the_head_never(stores: StoresRig, table):
    stores.move(table, {0: 0}, {0: 10})
    stores.pass_time(2 * HOUR)
    assert trimmed(stores, table).retained_from == 2
    stores.move(table, {0: 10}, {0: 15})
    assert trimmed(stores, table).retained_from == 2  # it was the head until just now

    with pytest.raises(VersionGone, match=r"version 1 is not retained \(the oldest is 2\)"):
        look(stores, table, at=1)
    assert [v.version for v in stores.ledger.versions(stores.again(table))] == [2, 3]


def test_versions_go_by_the_retention_in_force_not_by_the_one_that_a_worker_began_with(stores: StoresRig, table):
    stores.move(table, {0: 0}, {0: 10})
    stores.pass_time(2 * HOUR)
    longer = table.spec.retention.model_copy(update={"versions": 86_400.0})
    stores.ledger.update_spec(table, table.spec.model_copy(update={"retention": longer}))
    claim = stores.claim(table, Stage.EXPIRE)

    decision = stores.upkeep.trim(table, claim)  # the row of then, as a worker has it that was not started again

    assert decision.retained_from == 1
    assert look(stores, table, at=1).version.version == 1


def test_a_segment_is_dropped_in_a_later_run_than_it_was_retired_in(stores: StoresRig, table):
    settle(stores, table)
    retired = [s.name for s in trimmed(stores, table).retire]

    assert stores.upkeep.drop_retired(table, retired_for=GRACE) == []
    assert set(retired) <= set(stores.buffered(table))  # its rows are still there for a statement under way

    stores.pass_time(GRACE + MINUTE)
    assert stores.upkeep.drop_retired(table, retired_for=GRACE) == retired
    assert not set(retired) & set(stores.buffered(table))


def test_a_dry_run_changes_nothing_and_says_what_a_run_would_do(stores: StoresRig, table):
    look(stores, table, lease=MINUTE)
    settle(stores, table)
    claim = stores.claim(table, Stage.EXPIRE)
    before = stores.contents(table)

    told = stores.upkeep.trim(table, claim, dry_run=True)

    assert stores.contents(table) == before
    assert stores.upkeep.trim(table, claim) == told
    assert len(told.retire) == 1


def test_an_expire_that_slept_through_a_takeover_decides_nothing(stores: StoresRig, table):
    settle(stores, table)
    asleep, _ = stores.taken_over(table, Stage.EXPIRE)
    before = stores.contents(table)

    with pytest.raises(FencedOut, match="epoch 1 was taken over"):
        stores.upkeep.trim(table, asleep)
    assert stores.contents(table) == before


def test_a_reader_reaches_leases_by_functions_alone_and_none_lasts_longer_than_a_day(real: RealRig):
    table = real.table()
    mine = real.leases.look(table, holder="me", lease=HOUR).lease_id
    for statement in (
        "UPDATE harness.leases SET until = 'infinity'",
        "DELETE FROM harness.leases",
        "INSERT INTO harness.leases (lease_id, table_id, version, bounds, holder, until, born) "
        f"VALUES (gen_random_uuid(), {table.table_id}, 1, '{{}}', 'me', 'infinity', now())",
    ):
        with pytest.raises(InsufficientPrivilege), psycopg.connect(session_dsn(real.dsn, role=READER)) as connection:
            connection.execute(statement)
    with psycopg.connect(session_dsn(real.dsn, role=READER)) as connection:
        taken = f"gen_random_uuid(), {table.table_id}, 1::bigint, '{{}}'::jsonb, 'me', interval '1000 days'"
        connection.execute(f"SELECT harness.lease_take({taken})")
    [longest] = real.ask(
        "SELECT max(until - born) AS longest FROM harness.leases WHERE table_id = %s", [table.table_id]
    )
    assert longest["longest"] == timedelta(hours=24)
    with pytest.raises(CheckViolation):
        real.ask("UPDATE harness.leases SET until = 'infinity' WHERE lease_id = %s", [mine])


def test_no_login_touches_anothers_lease(real: RealRig):
    table = real.table()
    theirs = real.leases.look(table, holder="another", lease=HOUR).lease_id
    name = f"login_{uuid.uuid4().hex[:8]}"
    real.ask(f"CREATE ROLE {name} LOGIN IN ROLE harness_reader")
    try:
        with psycopg.connect(real.dsn, autocommit=True) as connection:
            connection.execute(f"SET SESSION AUTHORIZATION {name}")
            renewed = connection.execute(
                "SELECT harness.lease_renew(%s::uuid, interval '2 hours')", [theirs]
            ).fetchone()
            ended = connection.execute("SELECT harness.lease_end(%s::uuid)", [theirs]).fetchone()
        assert (renewed, ended) == ((None,), (None,))
        real.leases.finish(theirs)
    finally:
        real.ask(f"DROP ROLE {name}")


def test_definers_functions_of_leases_look_nowhere_else(real: RealRig):
    found = real.ask(
        "SELECT proname, proconfig FROM pg_proc WHERE prosecdef AND pronamespace = 'harness'::regnamespace "
        "AND proname LIKE 'lease%%'",
        {},
    )
    assert {row["proname"] for row in found} == {"lease_take", "lease_renew", "lease_end"}
    assert all("search_path=pg_catalog, pg_temp" in row["proconfig"] for row in found)
