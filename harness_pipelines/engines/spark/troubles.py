"""Errors of Spark as errors of the harness, for stages, tasks, reads and queries.

Spark quotes the errors of its drivers, also those of its tasks. This module separates errors that a person must correct
from outages that end by themselves; the caller names the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
from pyspark.errors import AnalysisException, PySparkException

from harness_pipelines.drivers.certificates import CertificateRefused, TlsPlace, why_refused
from harness_pipelines.drivers.object_stores.troubles import StoreRefused, is_away, refusal
from harness_pipelines.drivers.postgres import LOGIN_REFUSED
from harness_pipelines.engines.spark.session import (
    Py4JError,
    Py4JNetworkError,
    SessionLost,
    SparkAway,
    SparkBroken,
    is_lost_channel,
)
from harness_pipelines.errors import HarnessError
from harness_pipelines.secret import redact

SHOWN_CHARS_MAX = 500
#: In Spark's messages when the session is lost.
_LOST = (
    "SparkContext was shut down",
    "UNAVAILABLE",
    "too_many_pings",  # a server that allows fewer than Spark's own: the client sends fewer then
    "INVALID_HANDLE",
    "NO_ACTIVE_SESSION",
    "SESSION_CLOSED",
    "SESSION_CHANGED",
)
#: In them when the machine or a service that a task needs failed, not the move or the session.
_OUTAGES = (
    "No space left on device",
    "Connection refused",
    "Connection reset",
    "refused. Check that the hostname and port are correct",  # Postgres's driver
    "The connection attempt failed",
    "An I/O error occurred while sending to the backend",  # also of a server that does not answer in time
    "Read timed out",
    "the database system is",
    "terminating connection",
    "too many clients",
    "too many connections",
    "remaining connection slots",
    "Timed out waiting for a node assignment",
    "This connection has been closed",
    # The catalog in Postgres. Iceberg's own message leaves out why: a login that is refused is met by others, too.
    "org.apache.iceberg.jdbc.UncheckedSQLException",
)
#: In them when Spark's JVM failed to initialize a class once: it does not try again.
_UNUSABLE_CLASS = re.compile(r"Could not initialize class ([\w.$]+)|ExceptionInInitializerError")
#: In them when what failed was a request to the object store.
_STORE = re.compile(r"S3Exception|software\.amazon\.awssdk|S3FileIO|SdkClientException")
#: In them when a task could not ask the schema registry.
_REGISTRY = ("RegistryAway", "RegistryPropertyRefused", "no schema registry is known")
_RAISED = re.compile(r"^\s*(?:\w+\.)*Registry\w+: ")
_ROLE = re.compile(
    r'permission denied to set role|invalid value for parameter "role"|role "harness_\w+" does not exist'
)
_LOGINS: tuple[tuple[re.Pattern[str], str], ...] = (
    (_ROLE, "Spark's Postgres login may not act as its role: check HARNESS_SPARK_DSN (HARNESS_DSN where "
            "it is not set), and that `harness init` was run and the role granted"),
    (LOGIN_REFUSED, "Postgres refused Spark's login: check HARNESS_SPARK_DSN (HARNESS_DSN where it is not "
                    "set)"),
    (re.compile(r"SaslAuthenticationException|Authentication failed during authentication|UnsupportedSaslMechanism"),
     "Kafka refused the login: check HARNESS_KAFKA_SECURITY_PROTOCOL, HARNESS_KAFKA_SASL_* and HARNESS_KAFKA_SSL_*"),
    (re.compile(r"TopicAuthorizationException|GroupAuthorizationException|ClusterAuthorizationException"),
     "Kafka does not let this user read the topic: give it Describe and Read, or log in as another by HARNESS_KAFKA_*"),
    (re.compile(r"RegistryLoginFailed: "),
     "the schema registry refused the login: check HARNESS_REGISTRY_BASIC_AUTH_USER_INFO and HARNESS_REGISTRY_SSL_*"),
)  # fmt: skip


class SparkLoginFailed(HarnessError):
    """A server that Spark reads from refused its login; trying again does not help."""

    way_on = "correct the variable that the message names, then start the worker again"


def named(error: Exception, where: str, *, outcome: str, kafka: TlsPlace | None = None) -> HarnessError | None:
    """Return the harness's error for *error* of a call of Spark; None if there is none.

    Messages begin with *where* and give the *outcome*. *kafka*: the address of Kafka, if Spark may have failed to reach
    it over TLS: its Java client does not give the reason.
    """
    if isinstance(error, AnalysisException):  # quotes the query, which may contain any text
        return None
    text = redact(str(error)).strip()
    shown = shown_line(text)
    if (why := why_refused(text, kafka)) is not None:
        server = f"{where}: a server that it needs"
        settings = "the files that HARNESS_SPARK_DSN, HARNESS_DSN, HARNESS_KAFKA_* and HARNESS_REGISTRY_* name"
        return CertificateRefused(server, why=why, said=shown, settings=settings)
    for words, check in _LOGINS:
        if found := words.search(text):
            return SparkLoginFailed(f"{where}: {check} ({_line_of(text, found.start())}); {outcome}")
    if (unusable := _UNUSABLE_CLASS.search(text)) is not None:
        what = f"the class {unusable[1]}" if unusable[1] else "a class"
        return SparkBroken(
            f"{where}: Spark's JVM failed to initialize {what}, and does not try again: restart the Spark server "
            f"({_line_of(text, unusable.start())}); {outcome}, it is tried again"
        )
    if (stored := _STORE.search(text)) is not None and (way_on := refusal(text)) is not None:
        return StoreRefused(f"{where}: {way_on} ({_line_of(text, stored.start())}); {outcome}")
    if isinstance(error, grpc.RpcError | OSError | Py4JNetworkError) or any(s in text for s in _LOST):
        return SessionLost(f"{where}: {shown}; {outcome}, it is tried again")
    if any(s in text for s in (*_OUTAGES, *_REGISTRY)) or (_STORE.search(text) and is_away(text)):
        return SparkAway(f"{where}: {shown}; {outcome}, it is tried again")
    return None


@contextmanager
def explained(
    where: str,
    *,
    outcome: str,
    failed: Callable[[str], HarnessError] | None = None,
    kafka: TlsPlace | None = None,
) -> Iterator[None]:
    """Raise Spark's errors as the harness's. *failed* makes an error from the text of others; without it they pass."""
    try:
        yield
    except (PySparkException, Py4JError, grpc.RpcError, OSError) as error:
        found = named(error, where, outcome=outcome, kafka=kafka)
        if found is None and failed is None:
            raise
        if found is None and failed is not None:
            found = failed(redact(str(error)).strip())
        assert found is not None
        raise found from error
    except ValueError as error:
        if not is_lost_channel(error):
            raise
        raise SessionLost(
            f"{where}: the Spark server or the session went away ({shown_line(redact(str(error)))}); {outcome}, "
            "it is tried again"
        ) from error


def shown_line(text: str) -> str:
    """The most telling line of Spark's *text*: the registry's, if there is one, else the first."""
    lines = text.splitlines() or ["no reason was given"]
    asked = [line for line in lines if any(s in line for s in (*_REGISTRY, "RegistryLoginFailed"))]
    raised = [line for line in asked if _RAISED.search(line)]  # not the line of code that a traceback quotes
    return (raised or asked or lines)[0].strip()[:SHOWN_CHARS_MAX]


def _line_of(text: str, at: int) -> str:
    """The line of *text* around position *at*."""
    end = text.find("\n", at)
    return text[text.rfind("\n", 0, at) + 1 : len(text) if end < 0 else end].strip()[:SHOWN_CHARS_MAX]
