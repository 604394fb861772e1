"""What `harness doctor` asks Postgres: about sessions, rights, and the row of a table on trial in the catalog."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

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
ROLES = ("harness_reader", WORKER, "harness_spark")


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


def test_rights_that_a_role_lacks_are_named(real: RealRig):
    """By column or by table: a role that has either may do what it needs."""
    with real.owner.transaction() as owner:
        owner.execute("SET LOCAL ROLE NONE")
        for role in ROLES:
            assert _lacking(owner, role) == []
        owner.execute("REVOKE INSERT ON harness.outbox FROM harness_worker")
        owner.execute("REVOKE UPDATE ON harness.claims FROM harness_worker")
        owner.execute("REVOKE SELECT ON harness.versions FROM harness_reader")
        assert _lacking(owner, "harness_worker") == ["INSERT on harness.outbox", "UPDATE on harness.claims"]
        assert "SELECT on harness.versions" in _lacking(owner, "harness_reader")
        assert _lacking(owner, "harness_spark") == []
        owner.execute("GRANT UPDATE (lease_until) ON harness.claims TO harness_worker")
        assert _lacking(owner, "harness_worker") == ["INSERT on harness.outbox"]
        owner.execute("ALTER TABLE harness.outbox RENAME TO outbox_of_before")
        assert _lacking(owner, "harness_worker") == []  # what is not there is for `has_ledger` and `harness init`
        owner.rollback()


def _lacking(owner: Connection, role: str) -> list[str]:
    owner.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
    found = lacking(owner)
    owner.execute("SET LOCAL ROLE NONE")
    return found


@pytest.fixture
def other(make_database: Callable[[], str]) -> str:
    """A database of the same server without a ledger."""
    return make_database()


def _held(looker: Connection, *sessions: Connection) -> list[bool]:
    """Whether each of *sessions* is named, by its number."""
    found = idle_holders(looker)
    pids = [session.info.backend_pid for session in sessions]
    named = [pid for one in found for pid in pids if one.startswith(f"session {pid} of ")]
    assert named == sorted(named)
    return [pid in named for pid in pids]


def test_a_lock_of_the_harness_without_a_transaction_is_somebody_elses(real: RealRig, other: str):
    with (
        Connection.of(real.dsn, autocommit=True) as looker,
        Connection.of(real.dsn, autocommit=True) as one,
        Connection.of(real.dsn, autocommit=True) as two,
        Connection.of(real.dsn, autocommit=True) as nothing,
        Connection.of(other, autocommit=True) as elsewhere,
    ):
        for number, is_ours in ((1752330863, False), (1752330864, True), (1752330870, True), (1752330871, False)):
            for session in (two, elsewhere):
                session.execute("SELECT pg_advisory_lock(%s, 0)", [number])
            one.execute("SELECT pg_advisory_lock_shared(%s, 1)", [number])
            assert _held(looker, one, two, nothing, elsewhere) == [is_ours, is_ours, False, False], number
            for session in (one, two, elsewhere):
                session.execute("SELECT pg_advisory_unlock_all()")
        with one.transaction():
            one.execute("SELECT pg_advisory_xact_lock(1752330864, 0)")
            assert _held(looker, one) == [False]


def test_a_server_says_what_a_login_may(real: RealRig, other: str):
    """The owner of one database, who is nobody elsewhere."""
    login = f"login_{uuid.uuid4().hex[:8]}"
    with Connection.of(other, autocommit=True) as admin:
        named = {"login": sql.Identifier(login), "word": sql.Literal(login), "name": sql.Identifier(admin.info.dbname)}
        admin.execute(sql.SQL("CREATE ROLE {login} LOGIN PASSWORD {word}").format(**named))
        admin.execute(sql.SQL("ALTER DATABASE {name} OWNER TO {login}").format(**named))
        with brief_session(make_conninfo(other, user=login, password=login), role=None) as session:
            seen = server_seen(session)
            assert not has_ledger(session)
            session.execute("CREATE SCHEMA of_theirs CREATE VIEW harness_migrations AS SELECT 1 AS n")
            assert not has_ledger(session)
        [row] = admin.execute("SELECT count(*) AS n FROM pg_stat_activity WHERE backend_type = 'client backend'")
        admin.execute(sql.SQL("ALTER DATABASE {name} OWNER TO CURRENT_USER").format(**named))
        admin.execute(sql.SQL("DROP OWNED BY {login} CASCADE").format(**named))
        admin.execute(sql.SQL("DROP ROLE {login}").format(**named))
    assert (seen.login, seen.database) == (login, named["name"].as_string().strip('"'))
    assert (seen.is_owner, seen.creates_schemas, seen.is_superuser, seen.creates_roles) == (True, True, False, False)
    assert 0 < seen.connections < row["n"] + 4 <= seen.connections_max  # five more are the server's own, at least
    with brief_session(real.dsn, role=WORKER) as session:
        seen = server_seen(session)
        assert has_ledger(session)
    assert (seen.is_stand_by, seen.is_read_only) == (False, False)
    [own] = real.ask("SELECT rolsuper, rolcreaterole FROM pg_roles WHERE rolname = session_user")
    assert (seen.is_superuser, seen.creates_roles) == (own["rolsuper"], own["rolcreaterole"]) == (True, True)
    assert abs(seen.ahead_s) < 60
