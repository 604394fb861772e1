"""SCRAM users of a Kafka cluster."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in __all__
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from harness_pipelines.sources.kafka.client import KafkaClient, KafkaTimeouts, Trail, as_kafka_error

ITERATIONS = 4096  #: the least that the mechanism takes: a random password of 190 bits needs no slow digest
READY_S = 30.0


def give_scram_login(bootstrap: str, login: Mapping[str, str], *, by: Mapping[str, str]) -> None:
    """Let the user of *login* (properties of a client, SCRAM-SHA-512) in; *by* is a login that may make users.

    Returns when the login is taken. Can be repeated; another password replaces the one before.
    Raises: KafkaLoginFailed, KafkaUnreachable, KafkaFailed.
    """
    user, password = login["sasl.username"], login["sasl.password"]
    maker = KafkaClient(bootstrap, by, timeouts=KafkaTimeouts(request_s=READY_S))
    trail = Trail()
    wanted = UserScramCredentialUpsertion(
        user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS), password=password.encode()
    )
    admin = AdminClient(maker.admin_config(trail))
    try:
        for done in admin.alter_user_scram_credentials([wanted], request_timeout=READY_S).values():
            done.result()
        # The broker follows its controller, which answered: the first try may come too early, so the client repeats it.
        trial = KafkaClient(bootstrap, login, timeouts=maker.timeouts)
        AdminClient(trial.admin_config(trail)).list_topics(timeout=READY_S)
    except KafkaException as error:
        if trail.login_failed:
            raise maker.login_failed(trail.login_failed) from error
        raise maker.translate(as_kafka_error(error), topic="", doing=f"making the user {user!r}") from error
