"""Properties of the user, logins and rights."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from harness_pipelines.errors import UsageError
from harness_pipelines.ports.errors import KafkaLoginFailed, KafkaPropertyRefused, TopicForbidden
from harness_pipelines.sources.kafka.client import OWNED, KafkaTimeouts
from harness_pipelines.sources.kafka.log import KafkaLog
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.integration.kafka.broker import READER_PASSWORD
from harness_pipelines_tests.producer import DEADLINE_S, KafkaRig, wait_until
from harness_pipelines_tests.promise import within

TIMEOUTS = KafkaTimeouts(request_s=100.0, lost_after_s=100.0, probe_after_s=0.5)


def login(user: str, password: str = READER_PASSWORD) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
    }


def allow(rig: KafkaRig, user: str, topic: str, operation: AclOperation) -> None:
    words = (
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
    for done in rig.admin.create_acls([AclBinding(*words)]).values():
        done.result()
    found = AclBindingFilter(*words)  # the controller answers before the broker's authorizer has heard of it
    wait_until(lambda: bool(rig.admin.describe_acls(found).result()), f"{user} has the right")


def test_a_user_with_read_on_the_topic_alone_reads_it(private_broker, private_rig):
    topic = private_rig.create(1)
    allow(private_rig, "reader", topic, AclOperation.READ)  # implies DESCRIBE; no right on any consumer group
    private_rig.produce(topic, 0, [b"a", b"b"])
    log = KafkaLog(private_broker.login, login("reader"), timeouts=TIMEOUTS)
    assert log.describe(topic) == private_rig.log.describe(topic)
    with log.reader(topic, {0: 0}) as reader:
        [batch] = reader.poll(100, DEADLINE_S)
    assert batch.values == [b"a", b"b"]


def test_a_topic_that_the_user_may_not_see_is_forbidden_and_not_missing(private_broker, private_rig):
    topic = private_rig.create(1)
    log = KafkaLog(private_broker.login, login("nobody"), timeouts=TIMEOUTS)
    with pytest.raises(
        TopicForbidden, match=rf"no right to read topic '{topic}' at {private_broker.login}.*Grant DESCRIBE and READ"
    ):
        log.describe(topic)


def test_a_topic_that_the_user_may_see_and_not_read_is_forbidden_at_the_first_poll(private_broker, private_rig):
    topic = private_rig.create(1)
    allow(private_rig, "nobody", topic, AclOperation.DESCRIBE)
    log = KafkaLog(private_broker.login, login("nobody"), timeouts=TIMEOUTS)
    assert log.describe(topic).partitions == (0,)
    with log.reader(topic, {0: 0}) as reader, pytest.raises(TopicForbidden, match=topic):
        reader.poll(100, DEADLINE_S)


def test_a_wrong_password_fails_before_the_time_limit_and_is_not_shown(private_broker):
    wrong = "open-sesame-99"
    log = KafkaLog(private_broker.login, login("reader", wrong), timeouts=TIMEOUTS)
    with within(10, "a refusal"), pytest.raises(KafkaLoginFailed, match="HARNESS_KAFKA_SASL") as caught:
        log.describe("orders")
    assert wrong not in str(caught.value)


@pytest.mark.parametrize("name", sorted({*OWNED, "bootstrap.servers"}))
def test_a_property_that_the_harness_owns_is_refused(name):
    with pytest.raises(
        UsageError, match=rf"'{name}' belongs to the harness.*HARNESS_KAFKA_{name.upper().replace('.', '_')}"
    ):
        KafkaLog("127.0.0.1:1", {name: "x"})


def test_an_unknown_property_is_refused_by_name():
    with pytest.raises(KafkaPropertyRefused, match="fetch.wings"):
        KafkaLog("127.0.0.1:1", {"fetch.wings": "2"})


def test_a_secret_in_a_refused_property_is_not_shown():
    properties = {"security.protocol": "SSL", "ssl.key.pem": "the-secret-key", "ssl.key.password": "p4ssw0rd-77"}
    with pytest.raises(KafkaPropertyRefused) as caught:
        KafkaLog("127.0.0.1:1", properties)
    text = str(caught.value) + repr(caught.value.__cause__)
    assert "the-secret-key" not in text
    assert "p4ssw0rd-77" not in text


def test_settings_give_address_and_properties(tmp_path, private_broker, private_rig):
    topic = private_rig.create(1)
    allow(private_rig, "reader", topic, AclOperation.READ)
    env = {
        "HARNESS_KAFKA": private_broker.login,
        "HARNESS_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "HARNESS_KAFKA_SASL_MECHANISM": "PLAIN",
        "HARNESS_KAFKA_SASL_USERNAME": "reader",
        "HARNESS_KAFKA_SASL_PASSWORD": READER_PASSWORD,
    }
    log = KafkaLog.from_settings(Settings.from_env(env, home=tmp_path), timeouts=TIMEOUTS)
    assert log.describe(topic).topic == topic
    with pytest.raises(ValueError, match="HARNESS_KAFKA"):
        KafkaLog.from_settings(Settings(home=tmp_path))
