"""A pool of sessions: what it waits for, what it says at once, and how many sessions it opens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from math import inf

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harness_pipelines.chaos.standby import Server
from harness_pipelines.drivers import postgres
from harness_pipelines.drivers.postgres import Database, NotInitialised, PostgresLoginFailed, PostgresUnreachable
from harness_pipelines.errors import HarnessError
from harness_pipelines_tests.producer import wait_until

USER, DATABASE = "rotated", "pooled"
DEADLINE_S = 120.0  #: on a busy machine
ENDED_MS = 60_000  #: for how long the end of a session is waited for: until then it answers as before


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("pool-postgres"))
    found.start(fresh=True)
    try:
        yield found
    finally:
        found.end()


@pytest.fixture
def database(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A pool with a session in it, of a login that the test may break. It waits for ever."""
    for statement in (
        f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)",
        f"DROP ROLE IF EXISTS {USER}",
        f"CREATE ROLE {USER} LOGIN PASSWORD 'first'",
        f"CREATE DATABASE {DATABASE}",
    ):
        server.run(statement)
    monkeypatch.setattr(postgres, "WAIT_S", inf)
    port = conninfo_to_dict(server.dsn)["port"]
    dsn = make_conninfo(host="127.0.0.1", port=port, dbname=DATABASE, user=USER, password="first")
    with closing(Database(dsn, role=None, size=2)) as made:
        assert is_there(made)
        yield made


def is_there(database: Database) -> bool:
    with database.session() as session:
        return session.execute("SELECT 1 AS one").fetchone() == {"one": 1}


def end_sessions(server: Server, database: Database) -> None:
    server.run(f"SELECT pg_terminate_backend(pid, {ENDED_MS}) FROM pg_stat_activity WHERE datname = '{DATABASE}'")
    with suppress(HarnessError):  # a session that was used a moment ago is not tried out before
        is_there(database)


def rename(server: Server) -> None:
    server.run("DROP DATABASE IF EXISTS another")
    server.run(f"SELECT pg_terminate_backend(pid, {ENDED_MS}) FROM pg_stat_activity WHERE usename = '{USER}'")
    server.run(f"ALTER DATABASE {DATABASE} RENAME TO another")


REFUSED: dict[str, tuple[Callable[[Server], object], str]] = {
    "another password": (lambda server: server.run(f"ALTER ROLE {USER} PASSWORD 'second'"), "authentication failed"),
    "no login": (lambda server: server.run(f"ALTER ROLE {USER} NOLOGIN"), "is not permitted to log in"),
    "no database": (rename, 'database "pooled" does not exist'),
    "no right": (
        lambda server: server.run(f"REVOKE CONNECT ON DATABASE {DATABASE} FROM PUBLIC"),
        "permission denied for database",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_login_that_is_refused_is_not_waited_for(server: Server, database: Database, case: str):
    change, said = REFUSED[case]
    change(server)
    end_sessions(server, database)
    for _ in range(2):  # each request gets the reason of now
        told = pytest.raises(PostgresLoginFailed, match=rf"^shop\.orders: .*refused the login.*{said}")
        with told, database.session(table="shop.orders"):
            pass


def test_a_session_that_is_in_use_is_waited_for_although_another_login_is_refused(server: Server, database: Database):
    with ThreadPoolExecutor() as pool:
        with database.session() as used:
            server.run(f"ALTER ROLE {USER} PASSWORD 'second'")
            waiting = pool.submit(is_there, database)
            wait_until(lambda: database._refused_at > -inf, "another session is refused", deadline_s=DEADLINE_S)
            used.execute("SELECT 1")
        assert waiting.result(DEADLINE_S)


def test_a_server_that_starts_again_is_waited_for(server: Server, database: Database):
    def ask() -> bool:
        with suppress(PostgresUnreachable):  # by the session that was used a moment ago
            return is_there(database)
        return is_there(database)

    server.end()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(ask)
        wait_until(lambda: database._refused_at > -inf, "it was found away", deadline_s=DEADLINE_S)
        server.start()
        assert waiting.result(DEADLINE_S)


def test_a_server_that_stays_away_is_named_when_the_wait_is_over(
    server: Server, database: Database, monkeypatch: pytest.MonkeyPatch
):
    server.end()
    with suppress(PostgresUnreachable):  # by the session that was used a moment ago
        is_there(database)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(is_there, database)
        try:
            wait_until(lambda: database._pool.get_stats()["requests_waiting"] > 0, "it waits", deadline_s=DEADLINE_S)
            since = database._refused_at
            wait_until(lambda: database._refused_at > since, "it was found away", deadline_s=DEADLINE_S)
            monkeypatch.setattr(postgres, "WAIT_S", 0.0)  # the wait is over
            with pytest.raises(PostgresUnreachable, match=r"is not answering: .*Connection refused"):
                waiting.result(DEADLINE_S)
        finally:
            server.start()


def test_a_role_that_is_missing_is_not_waited_for(server: Server, database: Database):
    with closing(Database(make_conninfo(server.dsn, dbname=DATABASE), role="harness_reader")) as reader:
        assert is_there(reader)
        server.run("ALTER ROLE harness_reader RENAME TO gone")
        try:
            end_sessions(server, reader)
            with pytest.raises(NotInitialised, match="no role of the harness yet"):
                is_there(reader)
        finally:
            server.run("ALTER ROLE gone RENAME TO harness_reader")


def test_one_after_another_uses_one_session(database: Database):
    """The pool has it back before its user continues, not when another thread gets to it."""
    before = database.connections
    for _ in range(200):
        with database.transaction() as session:
            session.execute("SELECT 1")
    assert database.connections == max(before, 1)


def test_a_pool_whose_sessions_are_all_in_use_says_so(database: Database, monkeypatch: pytest.MonkeyPatch):
    given, over = threading.Barrier(3), threading.Event()

    def use() -> None:
        with database.session():
            given.wait(DEADLINE_S)
            over.wait(DEADLINE_S)

    with ThreadPoolExecutor() as pool:
        used = [pool.submit(use) for _ in range(2)]
        try:
            given.wait(DEADLINE_S)  # the second session is opened for its user, which takes its time
            monkeypatch.setattr(postgres, "WAIT_S", 0.0)
            with pytest.raises(PostgresUnreachable, match="no session came free within 0 s"):
                is_there(database)
        finally:
            over.set()
        for one in used:
            one.result(DEADLINE_S)
    assert is_there(database)
