"""Writing to Kafka, for the demo and chaos: a new topic, and a producer that reports each acknowledgement."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]  # not in __all__

from harness_pipelines.errors import TryAgain
from harness_pipelines.ports.errors import TopicMissing
from harness_pipelines.sources.kafka.client import KafkaClient, KafkaTimeouts, Trail, as_kafka_error
from harness_pipelines.sources.kafka.log import KafkaLog
from harness_pipelines.spec.settings import Settings

TOPIC_TIMEOUT_S = 30.0
_STEP_S = 0.1

#: Called with the offset and the monotonic time at which the broker's answer came.
Acked = Callable[[int, float], None]


class NotProduced(TryAgain):
    """The broker did not accept a record."""


def recreate_topic(settings: Settings, topic: str, *, partitions: int) -> None:
    """Delete *topic* with all its records if it exists, and re-create it.

    Raises: KafkaUnreachable, NotProduced when the cluster does not follow in time.
    """
    client = _client(settings)
    admin, log = AdminClient(client.admin_config(Trail())), KafkaLog.from_settings(settings)
    before = _topic_id(log, topic)
    if before is not None:
        admin.delete_topics([topic])[topic].result(TOPIC_TIMEOUT_S)
    deadline = time.monotonic() + TOPIC_TIMEOUT_S
    while not _created(admin, topic, partitions) or _topic_id(log, topic) in {None, before}:
        if time.monotonic() > deadline:
            raise NotProduced(f"topic {topic!r} could not be created again within {TOPIC_TIMEOUT_S:g} s")
        time.sleep(_STEP_S)


def add_partitions(settings: Settings, topic: str, total: int) -> None:
    """Let partitions join *topic* until there are *total*. Raises: NotProduced when the cluster does not answer."""
    admin = AdminClient(_client(settings).admin_config(Trail()))
    try:
        admin.create_partitions([NewPartitions(topic, total)])[topic].result(TOPIC_TIMEOUT_S)
    except KafkaException as error:
        raise NotProduced(f"topic {topic!r} did not get {total} partitions: {as_kafka_error(error).str()}") from error


def _created(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Create *topic*; False while the old one is still being deleted."""
    try:
        admin.create_topics([NewTopic(topic, partitions)])[topic].result(TOPIC_TIMEOUT_S)
    except KafkaException as error:
        return as_kafka_error(error).code() == KafkaError.TOPIC_ALREADY_EXISTS
    return True


def _topic_id(log: KafkaLog, topic: str) -> str | None:
    try:
        return log.describe(topic).topic_id
    except TopicMissing:
        return None


def _client(settings: Settings) -> KafkaClient:
    assert settings.kafka is not None
    return KafkaClient(settings.kafka, settings.kafka_properties, timeouts=KafkaTimeouts())


class RecordProducer:
    """Sends records in order, each exactly once. Not safe for use by two threads at once.

    If the answer to a record is lost, the client sends it again, and the broker says only that it has it already
    (DUPLICATE_SEQUENCE_NUMBER): the client reports it as delivered, without an offset (librdkafka 2.16). The record
    follows the one before it, as long as nobody else writes to the partition.
    """

    def __init__(self, settings: Settings, topic: str, *, patience_s: float | None = None) -> None:
        """*patience_s*: how long a record is tried for; `None`: as long as the client does by itself, 5 minutes."""
        self._topic = topic
        self._failed: str | None = None
        self._next: dict[int | None, int] = {}  #: per partition the offset after the last one that was acknowledged
        own = {
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
        }
        if patience_s is not None:
            own["message.timeout.ms"] = int(patience_s * 1000)
        self._producer = Producer({**_client(settings).admin_config(Trail()), **own})

    def send(self, partition: int, value: bytes | None, acked: Acked, *, key: bytes | None = None) -> None:
        """Queue one record, without a value a tombstone; *acked* is called from a later `serve` or `flush`."""
        sent_at = time.monotonic()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._failed = error.str()
                return
            known, into = message.offset(), message.partition()
            offset = known if known is not None and known >= 0 else self._next.get(into, 0)
            self._next[into] = offset + 1
            acked(offset, sent_at + (message.latency() or 0.0))

        while True:
            try:
                self._producer.produce(self._topic, value, key, partition=partition, on_delivery=delivered)
                return
            except BufferError:
                self.serve(0.05)

    def serve(self, timeout_s: float = 0.0) -> None:
        """Run the callbacks of what was answered. Raises: NotProduced."""
        self._producer.poll(timeout_s)
        self._check()

    def flush(self, timeout_s: float = 60.0) -> None:
        """Wait until everything is answered. Raises: NotProduced."""
        left = self._producer.flush(timeout_s)
        self._check()
        if left:
            raise NotProduced(f"Kafka did not take {left:,} records of topic {self._topic!r} within {timeout_s:g} s")

    def partitions(self, *, timeout_s: float) -> int | None:
        """How many the topic has by now; `None` when the cluster does not answer in time."""
        try:
            found = self._producer.list_topics(self._topic, timeout_s)
        except KafkaException:
            return None
        return len(found.topics[self._topic].partitions)

    def _check(self) -> None:
        if self._failed is not None:
            raise NotProduced(f"Kafka refused a record of topic {self._topic!r}: {self._failed}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._producer.purge()
        self._producer.flush(5.0)
