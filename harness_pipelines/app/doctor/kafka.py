"""Kafka: the cluster as this machine reaches it, and the login's rights on each table's topics."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from harness_pipelines.app.doctor.check import Check, Finding, Notes
from harness_pipelines.drivers.postgres import READER, Database
from harness_pipelines.errors import HarnessError
from harness_pipelines.ledgers.postgres.ledger import PostgresLedger
from harness_pipelines.ledgers.postgres.views.server import brief
from harness_pipelines.ports.errors import TopicForbidden
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import added_partitions
from harness_pipelines.protocol.topics import topics_of
from harness_pipelines.sources.joined import JoinedLog
from harness_pipelines.sources.kafka.client import KafkaTimeouts
from harness_pipelines.sources.kafka.log import KafkaLog
from harness_pipelines.sources.kafka.versions import has_topic_ids, release_of, requests_of
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import quantity

ASK_S, REACH_S, AT_ONCE = 6.0, 2.0, 8
NOT_SET = "HARNESS_KAFKA is not set, and no embedded Kafka runs"


def kafka(settings: Settings) -> list[Check]:
    """One check of the cluster, and one of the topics of all tables."""
    if settings.kafka is None:
        return [Check(system="kafka", name="cluster", look=_absent)]
    return [
        Check(system="kafka", name="cluster", look=partial(_cluster, settings=settings), deadline_s=15.0),
        Check(system="kafka", name="topics", look=partial(_topics, settings=settings), deadline_s=24.0),
    ]


def _absent(notes: Notes) -> Iterator[Finding]:
    yield notes.skipped("cluster", NOT_SET, "set HARNESS_KAFKA, or `harness services up`")


def _cluster(notes: Notes, *, settings: Settings) -> Iterator[Finding]:
    assert settings.kafka is not None
    log = _opened(settings)
    protocol = settings.kafka_properties.get("security.protocol", "plaintext").lower()
    requests = requests_of(settings.kafka, tls=protocol.endswith("ssl"))
    if requests is None:
        text = f"no address of {settings.kafka} answers as a broker ({protocol})"
        yield notes.warn("version", text, "check HARNESS_KAFKA and HARNESS_KAFKA_SECURITY_PROTOCOL")
    elif not has_topic_ids(requests):
        text = (
            f"Kafka {release_of(requests)}: its topics have no ids, so a topic made again is not told from the old one"
        )
        yield notes.fail("version", text, "use Kafka 2.8 or newer")
    else:
        yield notes.ok("version", f"Kafka {release_of(requests)}")
    brokers = log.brokers()
    who = settings.kafka_properties.get("sasl.username")
    yield notes.ok("login", f"{who} was let in ({protocol})" if who else f"none is needed ({protocol})")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        away = [why for why in pool.map(_away, *zip(*brokers.values(), strict=True)) if why] if brokers else []
    if away:
        way_on = "let advertised.listeners of each broker name an address that this machine, and Spark's, can reach"
        yield notes.fail("brokers", f"clients are sent to brokers that do not answer: {'; '.join(away)}", way_on)
    else:
        yield notes.ok("brokers", f"{len(brokers)}, all reached by the addresses that they advertise")


def _topics(notes: Notes, *, settings: Settings) -> Iterator[Finding]:
    """Describe and Read on the topics of each table, which are those that the table was made of."""
    if settings.dsn is None:
        yield notes.skipped("topics", "which tables there are is in the ledger, and HARNESS_DSN is not set")
        return
    database = Database(brief(settings.dsn), role=READER, size=1)
    try:
        tables, sick = PostgresLedger(database, catalog=settings.catalog_name).survey()
    except HarnessError as error:
        yield notes.skipped("topics", f"the ledger does not say which tables there are: {error}", "see postgres")
        return
    finally:
        database.close()
    for one in sick:
        yield notes.fail(f"table {one.name}", one.why, f"`harness status {one.name}` says what is wrong")
    log = _opened(settings)
    joined = JoinedLog(log)
    log.brokers()  # who does not answer, or refuses the login, is not asked about each topic
    fine = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for finding in pool.map(lambda table: _of_table(notes, log, joined, table), tables):
            if finding is None:
                fine += 1
            else:
                yield finding
    if fine:
        yield notes.ok("topics", f"those of {quantity(fine, 'table')} are there and may be read")
    elif not tables:
        yield notes.skipped("topics", "there are no tables yet", "`harness table apply FILE` creates one")


def _of_table(notes: Notes, log: KafkaLog, joined: JoinedLog, table: TableRow) -> Finding | None:
    """What is wrong with the topics of *table*, if something is."""
    name = f"topic of {table.name}"
    try:
        found = joined.describe(table.identity.topic)
        if (more := added_partitions(table.identity, found)) and table.spec.key:
            text = f"{table.identity.topic} has {len(more)} more partitions than the keyed table was made for"
            return notes.fail(name, text, f"`harness status {table.name}` says what to do")
        for topic in topics_of(table.identity.topic):
            if "READ" not in log.operations(topic):
                raise TopicForbidden(topic, bootstrap=log.bootstrap)
    except HarnessError as error:
        return notes.raised(name, error)
    return None


def _opened(settings: Settings) -> KafkaLog:
    return KafkaLog.from_settings(settings, timeouts=KafkaTimeouts(request_s=ASK_S))


def _away(host: str, port: int) -> str | None:
    """Why nothing takes connections there."""
    try:
        socket.create_connection((host, port), timeout=REACH_S).close()
    except OSError as error:
        return f"{host}:{port} ({error})"
    return None
