"""Records behind an open transaction, which readers of committed records cannot see yet."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from confluent_kafka import Consumer, KafkaException, TopicPartition

from harness_pipelines.sources.kafka.client import KafkaClient, Trail

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SINCE_S_MAX = 2.0  #: for the time of the first record; without it the rest is shown all the same


def opened_at(client: KafkaClient, topic: str, firsts: Mapping[int, int]) -> dict[int, datetime]:
    """By partition the time of the record at its offset, as far as the broker gives it in time.

    Offsets are those of the first records of open transactions.
    """
    try:
        consumer = Consumer({**client.consumer_config(Trail()), "isolation.level": "read_uncommitted"})
    except KafkaException as error:
        raise client.bad_config(error) from None
    found: dict[int, datetime] = {}
    try:
        consumer.assign([TopicPartition(topic, partition, first) for partition, first in sorted(firsts.items())])
        deadline = time.monotonic() + _SINCE_S_MAX
        while len(found) < len(firsts) and time.monotonic() < deadline:
            for message in consumer.consume(len(firsts), timeout=0.1):
                partition, (kind, at_ms) = message.partition(), message.timestamp()
                if message.error() is None and partition is not None and kind and at_ms >= 0:
                    found.setdefault(partition, _EPOCH + timedelta(milliseconds=min(at_ms, _MS_MAX)))
    finally:
        consumer.close()
    return found


_MS_MAX = 253_402_300_799_000  #: the end of the year 9999
