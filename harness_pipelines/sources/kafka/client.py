"""Common parts of all Kafka clients: properties, timeouts and error mapping."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from harness_pipelines.drivers.certificates import CertificateRefused, TlsPlace, why_refused
from harness_pipelines.errors import HarnessError
from harness_pipelines.files import endless
from harness_pipelines.ports.errors import (
    KafkaFailed,
    KafkaLoginFailed,
    KafkaPropertyRefused,
    KafkaUnreachable,
    TopicForbidden,
    TopicMissing,
)
from harness_pipelines.secret import redact
from harness_pipelines.sources.kafka.login import mechanisms_of

Properties = dict[str, str | int | float | bool]

#: The promises of the reader rest on these; a user's value for one of them is refused.
OWNED: Properties = {
    "group.id": "harness-reader",  # the client wants one; nothing is ever committed to it
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "check.crcs": True,
    "allow.auto.create.topics": False,
    "max.poll.interval.ms": 86_400_000,
}
OWNED_WITHOUT_VALUE = frozenset({"bootstrap.servers", "metadata.broker.list", "group.instance.id"})

#: Chosen for a lone record within a millisecond or two and a backlog at full speed; a user may override them.
TUNED: Properties = {
    "fetch.min.bytes": 1,
    # A partition that is assigned while a fetch of the others waits at the broker joins only the next fetch.
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 5,
    "fetch.error.backoff.ms": 50,
    # A short queue stays in the processor's cache: 32 MB read 30 % faster than 256 MB.
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 32_768,
    "receive.message.max.bytes": 209_715_200,
    "topic.metadata.propagation.max.ms": 2_000,
}
SHARED: Properties = {
    "client.id": "harness",
    "socket.timeout.ms": 15_000,
    "socket.keepalive.enable": True,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "log_level": 0,  # errors come by callback and get a name; the client would print them to standard error
}

AWAY = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._WAIT_CACHE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.BROKER_NOT_AVAILABLE,
    }
)
UNSETTLED = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError._DESTROY,  # of a broker that the client was given and lets go of once it has learnt of them all
        KafkaError._DESTROY_BROKER,  # of a broker that the cluster no longer names
    }
)
LOGIN = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    }
)
#: Words of the client in the error of a login that was lost in the middle, which it calls a failed one.
_CUT_SHORT = tuple(KafkaError(code).str() for code in sorted(AWAY))
FORBIDDEN = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})
UNKNOWN_TOPIC = frozenset(
    {
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.INCONSISTENT_TOPIC_ID,
        KafkaError._NOENT,  # how the client says that it found no leader of a partition
    }
)
_BROKER = re.compile(r"\bssl://\[?(?P<host>[^/\s]+?)\]?:(?P<port>\d+)/")
_SECRET_PROPERTY = re.compile(r"password|secret|\.key\.pem|jaas|token|oauthbearer\.config")


class LeaderUnsettled(KafkaUnreachable):
    """A partition has no leader that is ready to answer: it is new, or its leader changes. Worth asking again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTimeouts:
    """How long the harness waits for a cluster."""

    request_s: float = 10.0  #: for the answer to one question
    lost_after_s: float = 60.0  #: without a word from any partition's leader before `poll` raises
    probe_after_s: float = 5.0  #: of silence before a reader asks whether the leaders still answer


@dataclass(slots=True)
class Trail:
    """The last message of a client's error callback; empty while there is none."""

    last: str = ""
    login_failed: str = ""
    at: float = field(default_factory=time.monotonic)

    def clear(self) -> None:
        self.last = self.login_failed = ""


class KafkaClient:
    """An address, the user's properties, and the time limits; makes configurations and names errors."""

    def __init__(self, bootstrap: str, properties: Mapping[str, str] | None = None, *, timeouts: KafkaTimeouts) -> None:
        """Raises: KafkaPropertyRefused."""
        self.bootstrap, self.timeouts = bootstrap, timeouts
        self._properties = dict(properties or {})
        self._is_plain = self._properties.get("security.protocol", "plaintext").lower() == "plaintext"
        self._secrets = [value for name, value in self._properties.items() if value and _SECRET_PROPERTY.search(name)]
        for name in self._properties:
            if name in OWNED or name in OWNED_WITHOUT_VALUE:
                raise KafkaPropertyRefused(
                    f"Kafka property {name!r} belongs to the harness: exactly-once reading rests on it. Remove "
                    f"{_variable(name)}; connection, TLS, SASL and fetch properties may be set"
                )
            if name.endswith(".location") and (why := endless(self._properties[name])) is not None:
                raise KafkaPropertyRefused(f"{_variable(name)}: the file {self._properties[name]} {why}")

    def admin_config(self, trail: Trail) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, **SHARED, **self._properties, "error_cb": self._callback(trail)}

    def consumer_config(self, trail: Trail) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            **SHARED,
            **TUNED,
            **self._properties,
            **OWNED,
            "error_cb": self._callback(trail),
        }

    def bad_config(self, error: KafkaException) -> KafkaPropertyRefused:
        """Name the refusal of a configuration by the client library."""
        reason = self.clean(as_kafka_error(error).str())
        return KafkaPropertyRefused(
            f"the Kafka client refused its properties: {reason}. Correct the HARNESS_KAFKA_* settings"
        )

    def clean(self, text: str) -> str:
        """Return *text* without the values of secret properties."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return redact(text)

    def translate(self, error: KafkaError, *, topic: str, doing: str) -> HarnessError:
        """Return the error of the harness that *error* means."""
        code = error.code()
        detail = self.clean(error.str())
        if code in UNKNOWN_TOPIC:
            return TopicMissing(topic, bootstrap=self.bootstrap)
        if code in FORBIDDEN:
            return TopicForbidden(topic, bootstrap=self.bootstrap)
        if refuses_login(error):
            return self.login_failed(detail)
        if code == KafkaError.TOPIC_EXCEPTION:
            return KafkaPropertyRefused(
                f"{topic!r} is no valid name of a Kafka topic: {detail}. Correct `topic` in the spec"
            )
        if code in UNSETTLED:
            return self.unsettled(doing=doing, detail=detail)
        if code in AWAY | LOGIN:  # a login that was cut short
            return self.unreachable(doing=doing, detail=detail)
        return KafkaFailed(self.bootstrap, doing=doing, detail=detail)

    def login_failed(self, detail: str) -> HarnessError:
        """The name of a login that was refused, by a certificate or otherwise."""
        why = why_refused(detail, self._tls_place(detail))
        if why is None:
            return KafkaLoginFailed(self.bootstrap, detail=detail)
        settings = "HARNESS_KAFKA_SSL_* and the names in HARNESS_KAFKA"
        return CertificateRefused(f"Kafka at {self.bootstrap}", why=why, said=detail, settings=settings)

    def _tls_place(self, detail: str) -> TlsPlace | None:
        """The broker that *detail* is about."""
        found = _BROKER.search(detail)
        if found is None or "ssl.ca.pem" in self._properties:
            return None
        roots = self._properties.get("ssl.ca.location")
        return TlsPlace(host=found["host"], port=int(found["port"]), roots=None if roots == "probe" else roots)

    def unsettled(self, *, doing: str, detail: str = "a partition has no leader") -> LeaderUnsettled:
        return LeaderUnsettled(self.bootstrap, waited_s=self.timeouts.request_s, doing=doing, detail=detail)

    def lacks_login(self) -> KafkaLoginFailed | None:
        """The reason why a broker does not answer us, where it is that we have no login."""
        if not self._is_plain or not (mechanisms := mechanisms_of(self.bootstrap)):
            return None
        return KafkaLoginFailed(self.bootstrap, detail=f"it wants one by {' or '.join(mechanisms)}, and none is set")

    def unreachable(self, *, doing: str, detail: str = "", waited_s: float | None = None) -> HarnessError:
        if (login := self.lacks_login()) is not None:
            return login
        waited_s = self.timeouts.request_s if waited_s is None else waited_s
        return KafkaUnreachable(self.bootstrap, waited_s=waited_s, doing=doing, detail=self.clean(detail))

    def _callback(self, trail: Trail) -> Any:
        def note(error: KafkaError) -> None:
            trail.last, trail.at = self.clean(error.str()), time.monotonic()
            if refuses_login(error):
                trail.login_failed = trail.last

        return note


def as_kafka_error(error: KafkaException) -> KafkaError:
    """Return the KafkaError inside *error*; the client wraps one in every exception that it raises."""
    inner = error.args[0]
    return inner if isinstance(inner, KafkaError) else KafkaError(KafkaError._FAIL, str(inner))


def refuses_login(error: KafkaError) -> bool:
    """Whether a broker refused the login. One that ended in the middle of it did not, whatever the client says."""
    code, words = error.code(), error.str()
    if code == KafkaError._TRANSPORT:  # a broker that refuses our certificate hangs up after the handshake
        return why_refused(words) is not None
    return code in LOGIN and not any(cut in words for cut in _CUT_SHORT)


def _variable(name: str) -> str:
    return "HARNESS_KAFKA_" + name.upper().replace(".", "_")
