"""Kafka, Postgres and the registry over TLS, by an authority of the test: bad certificates are named."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import adbc_driver_manager
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.errors import PySparkException

import harness_pipelines as hp
from harness_pipelines.chaos.standby import Server, give
from harness_pipelines.drivers.adbc import AdbcSessions
from harness_pipelines.drivers.certificates import CertificateRefused
from harness_pipelines.drivers.postgres import Connection, explained
from harness_pipelines.drivers.postgres_session import session_dsn
from harness_pipelines.engines.spark import write
from harness_pipelines.engines.spark.jdbc import jdbc_options
from harness_pipelines.engines.spark.kafka import read_kafka, tls_place
from harness_pipelines.engines.spark.session import open_spark
from harness_pipelines.engines.spark.troubles import SparkLoginFailed
from harness_pipelines.errors import UsageError
from harness_pipelines.ledgers.postgres.migrations import migrate
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.services import Endpoints
from harness_pipelines.sources.kafka.client import KafkaTimeouts
from harness_pipelines.sources.kafka.log import KafkaLog
from harness_pipelines.sources.registry import Registry
from harness_pipelines_tests.certificates import Authority, Pair
from harness_pipelines_tests.integration.kafka.broker import READER_PASSWORD, PrivateBroker
from harness_pipelines_tests.producer import DEADLINE_S, KafkaRig
from harness_pipelines_tests.promise import within
from harness_pipelines_tests.registry import serving
from harness_pipelines_tests.rig import COLUMNS, TableRig, new_warehouse, settings_for

TIMEOUTS = KafkaTimeouts(request_s=100.0, lost_after_s=100.0, probe_after_s=0.5)
PROMPT_S = 10.0  #: far less than an outage is waited for
TABLE: Any = SimpleNamespace(name="shop.orders")
MOVE: Any = SimpleNamespace(move_id=7, attempt=2)
BAD = {
    "expired": "its certificate has expired",
    "elsewhere": "its certificate is made for another host",
    "untrusted": "its certificate is signed by an authority that is not trusted here",
    "forged": "its certificate is signed by an authority that is not trusted here",
}
BAD_CLIENTS = {
    "none": "certificate of this client",
    "untrusted": "does not accept the certificate of this client",
    "expired": "does not accept the certificate of this client",
}
COMMON = """
listener.name.sasl.sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_reader="{password}";
listener.name.mutual.ssl.client.auth=required
super.users=User:ANONYMOUS;User:reader;User:CN=reader
"""
STORE = """
listener.name.{name}.ssl.keystore.type=PEM
listener.name.{name}.ssl.keystore.location={pair}
listener.name.{name}.ssl.truststore.type=PEM
listener.name.{name}.ssl.truststore.location={root}
"""


class Made:
    """The authority, and a pair of each kind."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        strangers = Authority(folder / "others", "stranger")
        self.root, self.strangers = authority.root, strangers.root
        self.pairs: dict[str, Pair] = {
            "good": authority.sign("good"),
            "reader": authority.sign("reader"),
            "expired": authority.sign("expired", expired=True),
            "elsewhere": authority.sign("elsewhere", host="db.elsewhere"),
            "untrusted": strangers.sign("untrusted"),
            "forged": Authority(folder / "forgers").sign("forged"),  # by one who has the name of ours
        }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateBroker]:
    pairs = {"SASL": "good", "MUTUAL": "good", **{name.upper(): name for name in BAD}}
    stores = [
        STORE.format(name=name.lower(), pair=made.pairs[pair].both, root=made.root) for name, pair in pairs.items()
    ]
    found = PrivateBroker(
        tmp_path_factory.mktemp("tls-broker"),
        settings=COMMON.format(password=READER_PASSWORD) + "".join(stores),
        listeners={name: "SASL_SSL" if name == "SASL" else "SSL" for name in pairs},
    )
    try:
        found.start()
        yield found
    finally:
        found.kill()


def login(made: Made, *, client: str | None = None, sasl: bool = False) -> dict[str, str]:
    """Settings of a Kafka client."""
    found = {"security.protocol": "SASL_SSL" if sasl else "SSL", "ssl.ca.location": str(made.root)}
    if client is not None:
        pair = made.pairs[client]
        found |= {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)}
    if sasl:
        found |= {"sasl.mechanism": "PLAIN", "sasl.username": "reader", "sasl.password": READER_PASSWORD}
    return found


# -- Kafka --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["SASL", "MUTUAL"])
def test_a_topic_is_read_over_tls_with_a_password_or_a_certificate(made: Made, broker, topic: str, how: str):
    properties = login(made, sasl=True) if how == "SASL" else login(made, client="reader")
    log = KafkaLog(broker.more[how], properties, timeouts=TIMEOUTS)
    with log.reader(topic, {0: 0}) as reader:
        [batch] = reader.poll(100, DEADLINE_S)
    assert batch.values == [b"a", b"b"]


@pytest.mark.parametrize("bad", BAD)
def test_a_broker_with_a_bad_certificate_is_refused_at_once_and_by_name(made: Made, broker, bad: str):
    log = KafkaLog(broker.more[bad.upper()], login(made), timeouts=TIMEOUTS)
    refused = pytest.raises(CertificateRefused, match=rf"Kafka at localhost:\d+ .*{BAD[bad]}.*HARNESS_KAFKA_SSL")
    with within(PROMPT_S, "a refusal"), refused:
        log.describe("orders")


@pytest.mark.parametrize("client", BAD_CLIENTS)
def test_a_broker_that_refuses_our_certificate_is_not_taken_for_one_that_is_away(made: Made, broker, client: str):
    properties = login(made, client=None if client == "none" else client)
    log = KafkaLog(broker.more["MUTUAL"], properties, timeouts=TIMEOUTS)
    with within(PROMPT_S, "a refusal"), pytest.raises(CertificateRefused, match=BAD_CLIENTS[client]):
        log.describe("orders")


# -- Postgres -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def database(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that speaks TLS; `present` chooses its certificate."""
    server = Server(tmp_path_factory.mktemp("tls-postgres"))
    server.start(fresh=True)
    try:
        for path in (made.root, *(pair.both for pair in made.pairs.values())):
            copy = server.data / path.name
            copy.touch(mode=0o600)
            copy.write_bytes(path.read_bytes())
        give(server.data)
        server.configure(ssl_ca_file=made.root.name)
        present(server, made, "good")
        yield server
    finally:
        server.end()


def present(server: Server, made: Made, name: str) -> None:
    file = made.pairs[name].both.name
    server.configure(ssl_cert_file=file, ssl_key_file=file, ssl="on")
    server.run("SELECT pg_reload_conf()")


def over_tls(server: Server, made: Made, **more: str) -> str:
    return make_conninfo(
        server.dsn, host="localhost", sslmode="verify-full", sslrootcert=str(made.root), gssencmode="disable", **more
    )


def test_a_database_is_used_over_tls_with_its_certificate_checked(made: Made, database: Server):
    present(database, made, "good")
    with Connection.of(over_tls(database, made)) as connection:
        found = connection.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone()
    assert found == {"ssl": True}


@pytest.mark.parametrize("bad", BAD)
def test_a_database_with_a_bad_certificate_is_refused_by_name(made: Made, database: Server, bad: str):
    present(database, made, bad)
    dsn = over_tls(database, made)
    with (
        pytest.raises(CertificateRefused, match=rf"Postgres at localhost:\d+ .*{BAD[bad]}.*sslrootcert"),
        explained(dsn),
    ):
        psycopg.connect(dsn).close()


CLIENT_SAID = {
    "none": "it asks for a certificate of this client",
    "expired": "does not accept the certificate of this client",
    "untrusted": "does not accept the certificate of this client",
    "not there": "a file of certificates cannot be used",
}


@pytest.fixture
def asking(made: Made, database: Server) -> Iterator[Server]:
    """The database, which takes over TCP those alone who show a certificate of its authority."""
    present(database, made, "good")
    rules = database.data / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"hostssl all all all scram-sha-256 clientcert=verify-ca\n{before}")
    database.run("SELECT pg_reload_conf()")
    try:
        yield database
    finally:
        rules.write_text(before)
        with Connection.of(over_tls(database, made, **shown(made, "reader")), autocommit=True) as connection:
            connection.execute("SELECT pg_reload_conf()")


def shown(made: Made, client: str) -> dict[str, str]:
    """The settings with which *client* shows its certificate."""
    if client == "none":
        return {"sslcert": "/dev/null/none", "sslkey": "/dev/null/none"}  # not those of whoever runs the test
    if client == "not there":
        return {"sslcert": str(made.pairs["reader"].certificate), "sslkey": str(made.root.with_name("none.key"))}
    pair = made.pairs[client]
    return {"sslcert": str(pair.certificate), "sslkey": str(pair.key)}


def test_a_database_that_asks_for_a_certificate_of_the_client_is_given_ours(made: Made, asking: Server):
    with Connection.of(over_tls(asking, made, **shown(made, "reader"))) as connection:
        found = connection.execute(
            "SELECT client_dn, client_serial IS NOT NULL AS known FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        ).fetchone()
    assert found == {"client_dn": "/CN=reader", "known": True}


@pytest.mark.parametrize("client", CLIENT_SAID)
def test_a_database_that_refuses_the_client_s_certificate_is_not_taken_for_one_that_is_away(
    made: Made, asking: Server, client: str
):
    dsn = over_tls(asking, made, **shown(made, client))
    with (
        pytest.raises(CertificateRefused, match=rf"Postgres at localhost:\d+ .*{CLIENT_SAID[client]}.*sslcert"),
        explained(dsn),
    ):
        psycopg.connect(dsn).close()


# -- the registry -------------------------------------------------------------------------------------------


def serve_registry(pair: Pair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.both)
    return context


def test_a_registry_is_asked_over_tls(made: Made):
    with serving(tls=serve_registry(made.pairs["good"])) as server:
        number = server.register("a-value", '{"type": "long"}')
        with closing(Registry(server.url, {"ssl.ca.location": str(made.root)})) as registry:
            found = registry.by_id(number)
    assert found is not None and found.text == '{"type": "long"}'


@pytest.mark.parametrize("bad", BAD)
def test_a_registry_with_a_bad_certificate_is_refused_by_name(made: Made, bad: str):
    with (
        serving(tls=serve_registry(made.pairs[bad])) as server,
        closing(Registry(server.url, {"ssl.ca.location": str(made.root)})) as registry,
        pytest.raises(CertificateRefused, match=rf"registry at https://localhost:\d+ .*{BAD[bad]}.*HARNESS_REGISTRY"),
    ):
        registry.by_id(1)


REGISTRY_SAID = {
    "none": "it asks for a certificate of this client",
    "expired": "does not accept the certificate of this client: it has expired",
    "untrusted": "does not accept the certificate of this client: it does not trust who signed it",
}


def mutual(made: Made) -> ssl.SSLContext:
    context = serve_registry(made.pairs["good"])
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(made.root)
    return context


def of_client(made: Made, client: str) -> dict[str, str]:
    found = {"ssl.ca.location": str(made.root)}
    if client != "none":
        pair = made.pairs[client]
        found |= {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)}
    return found


def test_a_registry_that_asks_for_a_certificate_of_the_client_is_given_ours(made: Made):
    with serving(tls=mutual(made)) as server, closing(Registry(server.url, of_client(made, "reader"))) as registry:
        number = server.register("a-value", '{"type": "long"}')
        found = registry.by_id(number)
    assert found is not None and found.text == '{"type": "long"}'


@pytest.mark.parametrize("client", REGISTRY_SAID)
def test_a_registry_that_refuses_the_client_s_certificate_is_not_taken_for_one_that_is_away(made: Made, client: str):
    with (
        serving(tls=mutual(made)) as server,
        closing(Registry(server.url, of_client(made, client))) as registry,
        pytest.raises(CertificateRefused, match=rf"registry at https://localhost:\d+ .*{REGISTRY_SAID[client]}"),
    ):
        registry.by_id(1)


# -- Spark, and all of them ---------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("how", ["SASL", "MUTUAL"])
def test_spark_reads_the_topic_over_tls(made: Made, broker, topic: str, endpoints: Endpoints, tmp_path: Path, how: str):
    properties = login(made, sasl=True) if how == "SASL" else login(made, client="reader")
    settings = settings_for(endpoints, tmp_path, kafka=broker.more[how], kafka_properties=properties)
    spec = hp.TableSpec.model_validate({"table": "tls.orders", "topic": topic, "columns": COLUMNS})
    spark = open_spark(settings)
    try:
        frame = read_kafka(spark, settings, spec, [OffsetRange(partition=0, low=0, high=2)])
        assert [bytes(row["value"]) for row in frame.collect()] == [b"a", b"b"]
    finally:
        spark.stop()


SSL = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"


def test_psycopg_adbc_and_spark_go_to_the_database_by_the_same_settings(
    made: Made, database: Server, endpoints: Endpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    present(database, made, "good")
    login = conninfo_to_dict(database.dsn)
    lines = [f"{name}={login[name]}" for name in ("port", "user", "password", "dbname")]
    services = tmp_path / "services.conf"
    services.write_text("\n".join(["[lake]", "host=localhost", "sslmode=require", *lines]))
    demands = {"SSLROOTCERT": str(made.root), "CHANNELBINDING": "require", "REQUIREAUTH": "scram-sha-256"}
    for name, value in {"SERVICEFILE": str(services), "TARGETSESSIONATTRS": "read-write", **demands}.items():
        monkeypatch.setenv(f"PG{name}", value)
    dsn = "service=lake"
    spark = open_spark(settings_for(endpoints, tmp_path))

    def by_psycopg() -> Any:
        with Connection.of(session_dsn(dsn, role=None)) as connection:
            found = connection.execute(SSL).fetchone()
            return found and found["ssl"]

    def by_adbc() -> Any:
        with (
            closing(AdbcSessions(dsn, role=None)) as sessions,
            closing(sessions.open(autocommit=True)) as session,
            session.cursor() as cursor,
        ):
            return cursor.execute(SSL).fetchone()[0]

    def by_spark() -> Any:
        jdbc = jdbc_options(dsn, role=None)
        return spark.read.jdbc(jdbc.url, f"({SSL}) AS one", properties=dict(jdbc.properties)).collect()[0][0]

    try:
        for ask in (by_psycopg, by_adbc, by_spark):
            assert ask() is True
        stranger = made.root.parent / "others" / "stranger.pem"
        for name, value in {"REQUIREAUTH": "md5", "SSLROOTCERT": str(stranger)}.items():
            with monkeypatch.context() as changed:
                changed.setenv(f"PG{name}", value)
                for ask in (by_psycopg, by_adbc, by_spark):
                    with pytest.raises((psycopg.Error, adbc_driver_manager.Error, PySparkException)):
                        ask()
        monkeypatch.setenv("PGSSLCRL", str(made.root))
        with pytest.raises(UsageError, match="PGSSLCRL"):
            by_spark()
    finally:
        spark.stop()


@pytest.mark.long
def test_a_table_is_ingested_tiered_and_read_with_every_service_over_tls(
    made: Made, broker, database: Server, endpoints: Endpoints, tmp_path: Path
):
    present(database, made, "good")
    dsn = over_tls(database, made)
    migrate(dsn)
    with serving(tls=serve_registry(made.pairs["good"])) as registry, closing(KafkaRig(broker.bootstrap)) as kafka:
        settings = replace(
            settings_for(
                endpoints, tmp_path, dsn=dsn, warehouse=new_warehouse(endpoints, tmp_path), catalog_name="tls"
            ),
            kafka=broker.more["MUTUAL"],
            kafka_properties=login(made, client="reader"),
            registry=registry.url,
            registry_properties={"ssl.ca.location": str(made.root)},
        )
        with hp.connect(settings) as harness:
            rig = TableRig(harness, kafka, partitions=1)
            rig.produce(20)
            rig.ingest()
            rig.tier()
            rig.assert_exact()


@pytest.mark.long
@pytest.mark.parametrize("client", ["reader", "none", "untrusted"])
def test_spark_shows_the_certificate_of_the_client(
    made: Made, asking: Server, endpoints: Endpoints, tmp_path: Path, client: str
):
    given = {} if client == "none" else shown(made, client)
    jdbc = jdbc_options(over_tls(asking, made, **given), role=None)
    spark = open_spark(settings_for(endpoints, tmp_path))

    def read() -> list[Any]:
        one = "(SELECT client_dn FROM pg_stat_ssl WHERE pid = pg_backend_pid()) AS one"
        with write.explained(TABLE, MOVE):
            return [row[0] for row in spark.read.jdbc(jdbc.url, one, properties=dict(jdbc.properties)).collect()]

    try:
        if client == "reader":
            assert read() == ["/CN=reader"]
        else:
            with pytest.raises(CertificateRefused, match="of this client"):
                read()
    finally:
        spark.stop()


@pytest.mark.long
@pytest.mark.parametrize("bad", [*BAD, "none"])
def test_spark_names_a_kafka_whose_certificate_or_login_is_refused(
    made: Made, broker, topic: str, endpoints: Endpoints, tmp_path: Path, bad: str
):
    place = broker.more["MUTUAL" if bad == "none" else bad.upper()]
    settings = settings_for(endpoints, tmp_path, kafka=place, kafka_properties=login(made))
    spec = hp.TableSpec.model_validate({"table": "tls.orders", "topic": topic, "columns": COLUMNS})
    spark = open_spark(settings)
    try:
        said = "of this client" if bad == "none" else BAD[bad]
        with pytest.raises(CertificateRefused, match=said), write.explained(TABLE, MOVE, kafka=tls_place(settings)):
            read_kafka(spark, settings, spec, [OffsetRange(partition=0, low=0, high=2)]).collect()
    finally:
        spark.stop()


@pytest.mark.long
def test_spark_names_a_login_that_kafka_refuses(made: Made, broker, topic: str, endpoints: Endpoints, tmp_path: Path):
    wrong = {**login(made, sasl=True), "sasl.password": "wrong"}
    settings = settings_for(endpoints, tmp_path, kafka=broker.more["SASL"], kafka_properties=wrong)
    spec = hp.TableSpec.model_validate({"table": "tls.orders", "topic": topic, "columns": COLUMNS})
    spark = open_spark(settings)
    try:
        with pytest.raises(SparkLoginFailed, match="HARNESS_KAFKA_SASL_"), write.explained(TABLE, MOVE):
            read_kafka(spark, settings, spec, [OffsetRange(partition=0, low=0, high=2)]).collect()
    finally:
        spark.stop()


@pytest.mark.long
@pytest.mark.parametrize("bad", BAD)
def test_spark_names_a_database_with_a_bad_certificate(
    made: Made, database: Server, endpoints: Endpoints, tmp_path: Path, bad: str
):

    present(database, made, bad)
    jdbc = jdbc_options(over_tls(database, made), role=None)
    spark = open_spark(settings_for(endpoints, tmp_path))
    try:
        with (
            pytest.raises(CertificateRefused, match=BAD[bad]),
            write.explained(TABLE, MOVE),
        ):
            spark.read.jdbc(jdbc.url, "(SELECT 1 AS a) AS one", properties=dict(jdbc.properties)).collect()
    finally:
        spark.stop()
