"""What `harness doctor` asks Postgres: about sessions, rights, and the row of a table on trial in the catalog."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from psycopg import errors

from harness_pipelines.drivers.postgres import Connection
from harness_pipelines.ledgers.postgres.views.server import (
    brief_session,
    forget_pointer,
    has_ledger,
    idle_holders,
    lacking,
    pointer_of,
    server_seen,
    show_pointer,
)
from harness_pipelines_tests.contract.stores_rig import CATALOG, RealRig

WORKER = "harness_worker"


@pytest.fixture
def worker(real: RealRig) -> Iterator[Connection]:
    with brief_session(real.dsn, role=WORKER) as session:
        yield session


def test_a_table_on_trial_leaves_the_catalog_and_none_that_is_called_like_it(real: RealRig, worker: Connection):
    one = (CATALOG, f"trial_{uuid.uuid4().hex}", "t")
    namesakes = [(f"{CATALOG}_2", *one[1:]), (CATALOG, f"{one[1]}_2", "t"), (*one[:2], "u")]
    for number, place in enumerate([one, *namesakes]):
        show_pointer(worker, place, f"{number}.json")
    assert [pointer_of(worker, place) for place in (one, *namesakes)] == ["0.json", "1.json", "2.json", "3.json"]
    with pytest.raises(errors.UniqueViolation):
        show_pointer(worker, one, "again.json")

    forget_pointer(worker, one)
    forget_pointer(worker, one)

    assert [pointer_of(worker, place) for place in namesakes] == ["1.json", "2.json", "3.json"]
    show_pointer(worker, one, "4.json")  # it was gone
    for place in (one, *namesakes):
        forget_pointer(worker, place)


def test_a_right_that_a_role_lacks_is_named(real: RealRig, worker: Connection):
    assert lacking(worker) == []
    owned = "REVOKE INSERT ON harness.outbox FROM harness_worker"
    with real.owner.transaction() as owner:
        owner.execute("SET LOCAL ROLE NONE")
        owner.execute(owned)
        owner.execute("SET LOCAL ROLE harness_worker")
        assert lacking(owner) == ["INSERT on harness.outbox"]
        owner.rollback()
    assert lacking(worker) == []


def test_a_lock_of_the_harness_without_a_transaction_is_somebody_elses(real: RealRig):
    with Connection.of(real.dsn, autocommit=True) as idle, Connection.of(real.dsn, autocommit=True) as looker:
        [pid] = [row["pid"] for row in idle.execute("SELECT pg_backend_pid() AS pid")]
        for number, is_ours in ((1752330863, False), (1752330864, True), (1752330870, True), (1752330871, False)):
            idle.execute("SELECT pg_advisory_lock(%s, 0)", [number])
            found = [who for who in idle_holders(looker) if who.startswith(f"session {pid} of ")]
            assert bool(found) is is_ours, number
            idle.execute("SELECT pg_advisory_unlock_all()")
        with idle.transaction():
            idle.execute("SELECT pg_advisory_xact_lock(1752330864, 0)")
            assert not [who for who in idle_holders(looker) if who.startswith(f"session {pid} of ")]


def test_a_server_says_what_a_login_may(real: RealRig):
    with brief_session(real.dsn, role=None) as owner:
        seen = server_seen(owner)
        assert has_ledger(owner)
    assert (seen.is_owner, seen.creates_schemas, seen.is_stand_by, seen.is_read_only) == (True, True, False, False)
    assert 0 < seen.connections <= seen.connections_max
    assert abs(seen.ahead_s) < 60
