"""Passwords and certificates that change under a running process: it says what is wrong and goes on by itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harness_pipelines.chaos.standby import Server
from harness_pipelines.drivers.certificates import CertificateRefused
from harness_pipelines.drivers.postgres import Database, PostgresLoginFailed, PostgresUnreachable
from harness_pipelines.sources.registry import Registry
from harness_pipelines_tests.integration.tls.test_tls import Made, mutual
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.registry import serving

ROTATED_S = 120.0  #: for the next try, on a busy machine
USER = "rotated"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def ours(made: Made, tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Puts a pair where the client's files are; returns the settings that name them."""

    def put(name: str) -> dict[str, str]:
        pair, at = made.pairs[name], {"certificate": tmp_path / "client.crt", "key": tmp_path / "client.key"}
        for kind, path in at.items():
            shutil.copy(getattr(pair, kind), path)
            path.chmod(0o600)
        return {f"ssl.{kind}.location": str(path) for kind, path in at.items()}

    return put


# -- Postgres -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("rotated-postgres"))
    found.start(fresh=True)
    try:
        found.run(f"CREATE ROLE {USER} LOGIN PASSWORD 'first'")
        found.run(f"GRANT CONNECT ON DATABASE harness TO {USER}")
        yield found
    finally:
        found.end()


def address(server: Server, **more: str) -> str:
    """Of the server, with the login whose password changes."""
    place = conninfo_to_dict(server.dsn)
    return make_conninfo(host="127.0.0.1", port=place["port"], dbname=place["dbname"], user=USER, **more)


def is_there(database: Database) -> bool:
    with database.session() as session:
        return session.execute("SELECT 1 AS one").fetchone() == {"one": 1}


def refusal(server: Server, database: Database) -> str:
    """What *database* says to the end of its sessions."""
    server.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{USER}'")
    with suppress(PostgresUnreachable):  # a session that was used a moment ago is not tried out before
        is_there(database)
    with pytest.raises(PostgresLoginFailed, match=r"Postgres at 127.0.0.1:\d+ refused the login") as caught:
        is_there(database)
    return str(caught.value)


def test_a_pool_says_that_its_password_is_refused_any_more_and_goes_on_once_it_is_taken_again(server: Server):
    with closing(Database(address(server, password="first"), role=None)) as database:
        assert is_there(database)
        server.run(f"ALTER ROLE {USER} PASSWORD 'second'")
        assert "another password it takes when it is started again" in refusal(server, database)
        server.run(f"ALTER ROLE {USER} PASSWORD 'first'")
        wait_until(lambda: is_there(database), "the pool has a session again", deadline_s=ROTATED_S)


@pytest.mark.long
def test_a_pool_takes_another_password_of_a_file_without_a_restart(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "pgpass"
    file.touch(mode=0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    monkeypatch.delenv("PGPASSWORD", raising=False)
    server.run(f"ALTER ROLE {USER} PASSWORD 'second'")
    file.write_text("*:*:*:*:second\n")
    with closing(Database(address(server), role=None)) as database:
        assert is_there(database)
        server.run(f"ALTER ROLE {USER} PASSWORD 'third'")
        assert "it reads the file of passwords (PGPASSFILE) each time" in refusal(server, database)
        file.write_text("*:*:*:*:third\n")
        wait_until(lambda: is_there(database), "the pool has a session again", deadline_s=ROTATED_S)
    server.run(f"ALTER ROLE {USER} PASSWORD 'first'")


# -- the registry -------------------------------------------------------------------------------------------


def test_the_registry_is_asked_with_the_certificate_that_is_there_now(
    made: Made, ours: Callable[[str], dict[str, str]]
):
    with (
        serving(tls=mutual(made)) as server,
        closing(Registry(server.url, {"ssl.ca.location": str(made.root), **ours("expired")})) as registry,
    ):
        number = server.register("a-value", '{"type": "long"}')
        for _ in range(2):
            with pytest.raises(CertificateRefused, match="does not accept the certificate of this client"):
                registry.by_id(number)
        ours("reader")
        found = registry.by_id(number)
    assert found is not None and found.text == '{"type": "long"}'
