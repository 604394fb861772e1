"""Probes: one cheap request to each server in the settings, to check that it answers.

A hanging server may still accept connections, so each probe needs an answer of the server itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from urllib.parse import urlsplit

from harness_pipelines.errors import TryAgain
from harness_pipelines.secret import redact
from harness_pipelines.spec.settings import Settings

ASK_S = 3.0  #: for the answer to one question
CONNECT_PORT = 15002
Ask = Callable[[], None]


class NoAnswer(TryAgain):
    """A server did not answer a cheap request."""


def probes(settings: Settings) -> Mapping[str, Ask]:
    """Return a probe for each server in *settings*, by service. A probe raises a HarnessError."""
    found: dict[str, Ask] = {}
    if settings.dsn:
        found["postgres"] = partial(ask_postgres, settings.dsn)
    if settings.kafka:
        found["kafka"] = partial(ask_kafka, settings)
    if settings.spark and settings.spark.startswith("sc://") and find_spec("grpc"):
        # Its user starts any other Spark; a reader without PySpark never needs one.
        found["spark"] = partial(ask_spark, settings.spark)
    if settings.registry:
        found["registry"] = partial(ask_registry, settings.registry)
    return found


def ask_postgres(dsn: str) -> None:
    """Raises: PostgresUnreachable, PostgresLoginFailed."""
    from harness_pipelines.drivers.postgres import READER, Connection, explained, sql
    from harness_pipelines.drivers.postgres_session import session_dsn

    with explained(dsn), Connection.of(session_dsn(dsn, role=READER), autocommit=True) as connection:
        connection.deadline_s = ASK_S
        connection.execute(sql("reads/now"))


def ask_kafka(settings: Settings) -> None:
    """Raises: KafkaUnreachable, KafkaLoginFailed."""
    from harness_pipelines.sources.kafka.client import KafkaTimeouts
    from harness_pipelines.sources.kafka.log import KafkaLog

    log = KafkaLog.from_settings(settings, timeouts=KafkaTimeouts(request_s=ASK_S))
    try:
        log.ask()
    finally:
        log.close()


def ask_spark(remote: str) -> None:
    """Raises: NoAnswer."""
    import grpc

    place = urlsplit(remote)
    address = f"{place.hostname or 'localhost'}:{place.port or CONNECT_PORT}"
    if "use_ssl=true" in place.path.lower():
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials())
    else:
        channel = grpc.insecure_channel(address)
    try:
        grpc.channel_ready_future(channel).result(timeout=ASK_S)
    except grpc.FutureTimeoutError as late:
        raise NoAnswer(f"Spark Connect at {address} does not answer within {ASK_S:.0f} s") from late
    finally:
        channel.close()


def ask_registry(url: str) -> None:
    """Accept any answer except a server error. Raises: NoAnswer."""
    import httpx

    try:
        answer = httpx.get(url.split(",", maxsplit=1)[0], timeout=ASK_S)
    except httpx.HTTPError as error:
        why = str(error) or type(error).__name__
        raise NoAnswer(f"the schema registry at {redact(url)} does not answer: {redact(why)}") from error
    if answer.is_server_error:
        raise NoAnswer(f"the schema registry at {redact(url)} answers {answer.status_code}")
