"""Logins at Kafka by SCRAM over TLS: each mechanism reads, and what is wrong with a login is named at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in __all__
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

import harness_pipelines as hp
from harness_pipelines.engines.spark import write
from harness_pipelines.engines.spark.kafka import read_kafka
from harness_pipelines.engines.spark.session import open_spark
from harness_pipelines.engines.spark.troubles import SparkLoginFailed
from harness_pipelines.ports.errors import KafkaLoginFailed, KafkaUnreachable, TopicForbidden, TopicMissing
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.services import Endpoints
from harness_pipelines.sources.kafka.log import KafkaLog
from harness_pipelines_tests.certificates import Authority
from harness_pipelines_tests.integration.kafka.broker import PrivateBroker
from harness_pipelines_tests.integration.tls.test_tls import MOVE, PROMPT_S, STORE, TABLE, TIMEOUTS
from harness_pipelines_tests.producer import DEADLINE_S, KafkaRig, wait_until
from harness_pipelines_tests.promise import within
from harness_pipelines_tests.rig import COLUMNS, settings_for

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
SETTINGS = f"""
listener.name.scram.sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512
listener.name.scram.scram-sha-256.sasl.jaas.config={MODULE}
listener.name.scram.scram-sha-512.sasl.jaas.config={MODULE}
super.users=User:ANONYMOUS;User:both;User:only-256
"""
PASSWORD = 'rose"bud\\4711'  #: with what a JAAS file would read otherwise
MECHANISMS = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}
#: Logins that are wrong: user, password, mechanism.
WRONG = {
    "password": ("both", "open-sesame-99", "SCRAM-SHA-512"),
    "user": ("nobody", PASSWORD, "SCRAM-SHA-256"),
    "mechanism of the user": ("only-256", PASSWORD, "SCRAM-SHA-512"),
    "mechanism of the broker": ("both", PASSWORD, "PLAIN"),
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateBroker]:
    store = STORE.format(name="scram", pair=authority.sign("good").both, root=authority.root)
    found = PrivateBroker(
        tmp_path_factory.mktemp("scram-broker"), settings=SETTINGS + store, listeners={"SCRAM": "SASL_SSL"}
    )
    try:
        found.start()
        for user, mechanisms in {
            "both": [*MECHANISMS],
            "only-256": ["SCRAM-SHA-256"],
            "rotated": [*MECHANISMS],
        }.items():
            for mechanism in mechanisms:  # a request takes one of a user
                give_password(found, user, mechanism, PASSWORD)
        yield found
    finally:
        found.kill()


def give_password(broker: PrivateBroker, user: str, mechanism: str, password: str) -> None:
    made = UserScramCredentialUpsertion(user, ScramCredentialInfo(MECHANISMS[mechanism], 4096), password.encode())
    wanted: list[UserScramCredentialAlteration] = [made]
    with closing(KafkaRig(broker.bootstrap)) as rig:
        for done in rig.admin.alter_user_scram_credentials(wanted).values():
            done.result(120)


def login(authority: Authority, user: str, password: str, mechanism: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL", "ssl.ca.location": str(authority.root), "sasl.mechanism": mechanism,
        "sasl.username": user, "sasl.password": password,
    }  # fmt: skip


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_topic_is_read_with_a_login_of_each_mechanism(authority, broker, topic: str, mechanism: str):
    log = KafkaLog(broker.more["SCRAM"], login(authority, "both", PASSWORD, mechanism), timeouts=TIMEOUTS)
    with log.reader(topic, {0: 0}) as reader:
        [batch] = reader.poll(100, DEADLINE_S)
    assert batch.values == [b"a", b"b"]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_login_that_is_wrong_is_named_at_once_and_not_shown(authority, broker, wrong: str):
    user, password, mechanism = WRONG[wrong]
    log = KafkaLog(broker.more["SCRAM"], login(authority, user, password, mechanism), timeouts=TIMEOUTS)
    with within(PROMPT_S, "a refusal"), pytest.raises(KafkaLoginFailed, match=r"HARNESS_KAFKA_SASL") as caught:
        log.describe("orders")
    assert password not in str(caught.value)


def test_a_login_that_was_refused_is_taken_by_the_same_process_once_the_broker_has_its_password(authority, broker):
    user, mechanism, ours = "rotated", "SCRAM-SHA-512", "open-sesame-99"
    log = KafkaLog(broker.more["SCRAM"], login(authority, user, ours, mechanism), timeouts=TIMEOUTS)
    for _ in range(2):
        with pytest.raises(KafkaLoginFailed, match="when it is started again"):
            log.describe("orders")
    give_password(broker, user, mechanism, ours)

    def is_taken() -> bool:
        try:
            log.describe("orders")
        except (TopicForbidden, TopicMissing):
            return True
        except (KafkaLoginFailed, KafkaUnreachable):
            return False
        return True

    wait_until(is_taken, "the login is taken", deadline_s=300.0)


def test_a_mechanism_that_nobody_knows_is_refused_by_name(authority, broker):
    with pytest.raises(hp.HarnessError, match=r"SCRAM-SHA-1\b"):
        KafkaLog(broker.more["SCRAM"], login(authority, "both", PASSWORD, "SCRAM-SHA-1"), timeouts=TIMEOUTS).describe(
            "orders"
        )


@pytest.mark.long
def test_spark_reads_with_a_login_of_each_mechanism_and_names_what_is_wrong(
    authority, broker, topic: str, endpoints: Endpoints, tmp_path: Path
):
    spec = hp.TableSpec.model_validate({"table": "tls.orders", "topic": topic, "columns": COLUMNS})
    spark = open_spark(settings_for(endpoints, tmp_path))

    def read(user: str, password: str, mechanism: str) -> list[Any]:
        properties = login(authority, user, password, mechanism)
        settings = settings_for(endpoints, tmp_path, kafka=broker.more["SCRAM"], kafka_properties=properties)
        with write.explained(TABLE, MOVE):
            frame = read_kafka(spark, settings, spec, [OffsetRange(partition=0, low=0, high=2)])
            return [bytes(row["value"]) for row in frame.collect()]

    try:
        for mechanism in MECHANISMS:
            assert read("both", PASSWORD, mechanism) == [b"a", b"b"]
        for wrong in WRONG.values():
            with pytest.raises(SparkLoginFailed, match="HARNESS_KAFKA_SASL_") as caught:
                read(*wrong)
            assert wrong[1] not in str(caught.value)
    finally:
        spark.stop()
