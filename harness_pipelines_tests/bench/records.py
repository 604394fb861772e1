"""The records of the benches: about 130 bytes of JSON, written in id order, id i to partition ``i % PARTITIONS``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaException, Producer

from harness_pipelines.sources.kafka.log import KafkaLog
from harness_pipelines.spec.settings import Settings

PARTITIONS = 4
COLUMNS: Mapping[str, Any] = {
    "id": {"type": "long", "required": True},
    "customer": "int",
    "amount": "decimal(12,2)",
    "status": "string",
    "note": "string",
    "at": {"type": "timestamptz", "from": "iso8601"},
}
#: The same columns as Spark's `from_json` names them.
SPARK_COLUMNS = "id BIGINT, customer INT, amount DECIMAL(12,2), status STRING, note STRING, at TIMESTAMP"
_STATUS = (b"placed", b"paid", b"shipped", b"returned")


def value(number: int) -> bytes:
    """The record with id *number*."""
    return (
        b'{"id":%d,"customer":%d,"amount":%d.%02d,"status":"%b","note":"order %d",'
        b'"at":"2026-03-%02dT%02d:%02d:%02d.%06dZ"}'
        % (
            number,
            number * 7919 % 100_000,
            number * 31 % 9_000 + 100,
            number % 100,
            _STATUS[number % 4],
            number,
            number // 86_400 % 28 + 1,
            number // 3600 % 24,
            number // 60 % 60,
            number % 60,
            number * 997 % 1_000_000,
        )
    )


def produce_backlog(
    settings: Settings, topic: str, *, count: int, first: int = 0, make: Callable[[int], bytes] = value
) -> None:
    """Write records *first* to *first + count* as fast as the broker takes them, each once and in order.

    *make* gives the record with a number.

    Raises: KafkaException; AssertionError when the log does not end where it must.
    """
    failed: list[Any] = []
    own = {"enable.idempotence": True, "linger.ms": 20, "compression.type": "lz4"}
    limits = {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 262_144}
    names = {"bootstrap.servers": settings.kafka, **settings.kafka_properties}
    producer = Producer({**names, **own, **limits, "error_cb": failed.append})
    for number in range(first, first + count):
        while True:
            try:
                producer.produce(topic, make(number), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    left = producer.flush(120)
    if left:
        raise KafkaException(failed[0]) if failed else AssertionError(f"{left} records were not acknowledged")
    ends = KafkaLog.from_settings(settings).watermarks(topic, range(PARTITIONS))
    assert sum(mark.end for mark in ends.values()) == first + count, f"the log of {topic} ends at {ends}"
