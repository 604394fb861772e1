"""Passwords and certificates that change under a running process: it says what is wrong and goes on by itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import harness_pipelines as hp
from harness_pipelines.chaos.standby import Server, give
from harness_pipelines.drivers import postgres
from harness_pipelines.drivers.certificates import CertificateRefused
from harness_pipelines.drivers.postgres import Database, PostgresLoginFailed, PostgresUnreachable
from harness_pipelines.ledgers.postgres.migrations import migrate
from harness_pipelines.ports.errors import KafkaPropertyRefused, TopicMissing
from harness_pipelines.services import Endpoints
from harness_pipelines.sources.kafka.log import KafkaLog
from harness_pipelines.sources.registry import Registry
from harness_pipelines_tests.integration.kafka.broker import PrivateBroker
from harness_pipelines_tests.integration.tls.test_tls import STORE, TIMEOUTS, Made, mutual
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.registry import serving
from harness_pipelines_tests.rig import INGEST, TableRig, running, settings_for

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


def is_back(database: Database) -> bool:
    """Like `is_there`. A login that began before the password was right may be refused after it."""
    with suppress(PostgresLoginFailed):
        return is_there(database)
    return False


def refusal(server: Server, database: Database) -> str:
    """What *database* says to the end of its sessions."""
    ended = "SELECT pg_terminate_backend(pid, 60000)"  # until it has ended a session answers as before
    server.run(f"{ended} FROM pg_stat_activity WHERE usename = '{USER}'")
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
        wait_until(lambda: is_back(database), "the pool has a session again", deadline_s=ROTATED_S)


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
        wait_until(lambda: is_back(database), "the pool has a session again", deadline_s=ROTATED_S)
    server.run(f"ALTER ROLE {USER} PASSWORD 'first'")


@pytest.fixture
def asking(made: Made, server: Server) -> Iterator[Server]:
    """The server, which takes the login only with a certificate of its authority."""
    for path in (made.root, made.pairs["good"].both):
        copy = server.data / path.name
        copy.touch(mode=0o600)
        copy.write_bytes(path.read_bytes())
    give(server.data)
    pair, rules = made.pairs["good"].both.name, server.data / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"hostssl all {USER} all scram-sha-256 clientcert=verify-ca\n{before}")
    server.configure(ssl_ca_file=made.root.name, ssl_cert_file=pair, ssl_key_file=pair, ssl="on")
    server.run("SELECT pg_reload_conf()")
    try:
        yield server
    finally:
        rules.write_text(before)
        server.configure(ssl="off")
        server.run("SELECT pg_reload_conf()")


@pytest.mark.parametrize("case", ["another certificate", "no key", "another authority", "no authority"])
def test_a_pool_opens_sessions_with_the_files_that_are_there_now(
    made: Made,
    asking: Server,
    ours: Callable[[str], dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: str,
):
    monkeypatch.setattr(postgres, "WAIT_S", inf)  # what is waited for ends the test by its limit
    roots, files = tmp_path / "roots.pem", ours("reader")
    certificate, key = (Path(files[f"ssl.{kind}.location"]) for kind in ("certificate", "key"))
    shutil.copy(made.root, roots)
    changes: dict[str, tuple[Callable[[], object], str]] = {
        "another certificate": (lambda: ours("expired"), "does not accept the certificate of this client"),
        "no key": (key.unlink, "a file of certificates cannot be used"),
        "another authority": (lambda: shutil.copy(made.strangers, roots), "by an authority that is not trusted here"),
        "no authority": (roots.unlink, "a file of certificates cannot be used"),
    }
    change, said = changes[case]
    dsn = address(
        asking, password="first", gssencmode="disable", sslmode="require", sslrootcert=str(roots),
        sslcert=str(certificate), sslkey=str(key),
    )  # fmt: skip
    with closing(Database(dsn, role=None)) as database:
        assert is_there(database)
        change()
        assert is_there(database)  # a session that is open needs no file
        asking.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{USER}'")
        with suppress(PostgresUnreachable, CertificateRefused):  # the session may be tried out before, or not
            is_there(database)
        for _ in range(2):
            with pytest.raises(CertificateRefused, match=rf"(?s)Postgres at 127.0.0.1:\d+ .*{said}.*sslcert"):
                is_there(database)
        ours("reader")
        shutil.copy(made.root, roots)
        assert is_there(database)


# -- Kafka --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trusted(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The authorities that the broker trusts."""
    return Path(shutil.copy(made.root, tmp_path_factory.mktemp("trusted") / "roots.pem"))


@pytest.fixture(scope="module")
def broker(made: Made, trusted: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateBroker]:
    found = PrivateBroker(
        tmp_path_factory.mktemp("rotated-broker"),
        settings="listener.name.mutual.ssl.client.auth=required\n"
        "super.users=User:ANONYMOUS;User:CN=reader;User:CN=untrusted\n"
        + STORE.format(name="mutual", pair=made.pairs["good"].both, root=trusted),
        listeners={"MUTUAL": "SSL"},
    )
    try:
        found.start()
        yield found
    finally:
        found.kill()


@contextmanager
def trusting(broker: PrivateBroker, trusted: Path, root: Path) -> Iterator[None]:
    """The broker trusts those alone whom *root* signed, until the block ends."""
    before = trusted.read_bytes()
    for content in (root.read_bytes(), before):
        broker.kill()
        trusted.write_bytes(content)
        broker.start()
        if content != before:
            yield


def test_questions_are_asked_with_the_certificate_that_is_there_now(
    made: Made, broker: PrivateBroker, ours: Callable[[str], dict[str, str]]
):
    properties = {"security.protocol": "SSL", "ssl.ca.location": str(made.root), **ours("expired")}
    log = KafkaLog(broker.more["MUTUAL"], properties, timeouts=TIMEOUTS)
    with pytest.raises(CertificateRefused, match="does not accept the certificate of this client"):
        log.describe("orders")
    Path(properties["ssl.certificate.location"]).unlink()
    for _ in range(2):
        with pytest.raises(KafkaPropertyRefused, match=r"ssl\.certificate\.location.*HARNESS_KAFKA"):
            log.describe("orders")
    ours("reader")
    with pytest.raises(TopicMissing):  # the broker has answered
        log.describe("orders")


@pytest.mark.long
def test_a_worker_whose_authority_the_broker_trusts_no_more_goes_on_with_another_certificate(
    made: Made,
    broker: PrivateBroker,
    trusted: Path,
    server: Server,
    ours: Callable[[str], dict[str, str]],
    endpoints: Endpoints,
    tmp_path: Path,
):
    migrate(server.dsn)
    with closing(KafkaRig(broker.bootstrap)) as kafka:
        settings = replace(
            settings_for(
                endpoints, tmp_path, dsn=server.dsn, warehouse=f"file://{tmp_path}/lake", catalog_name="rotated"
            ),
            kafka=broker.more["MUTUAL"],
            kafka_properties={"security.protocol": "SSL", "ssl.ca.location": str(made.root), **ours("reader")},
        )
        with hp.connect(settings) as harness:
            rig = TableRig(harness, kafka, partitions=1)
            rig.produce(20)
            worker = rig.worker(INGEST)

            def trouble() -> str:
                return worker.progress[0].trouble.get("ingest", "")

            def reached() -> int:
                return rig.stores.segments.positions(rig.table.row)[0].buffer_hi

            with running(worker):
                wait_until(lambda: reached() == 20, "what is there is ingested", deadline_s=ROTATED_S)
                with trusting(broker, trusted, made.strangers):
                    wait_until(
                        lambda: "does not accept the certificate of this client" in trouble(),
                        "ingest says what is wrong",
                        deadline_s=ROTATED_S,
                    )
                    rig.produce(20)
                    ours("untrusted")
                    wait_until(lambda: reached() == 40, "ingest goes on without a restart", deadline_s=ROTATED_S)
                    wait_until(lambda: not trouble(), "its trouble is over", deadline_s=ROTATED_S)
            assert worker.progress[0].refused == 0
            rig.assert_exact()


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
