"""The producer, a process of its own: a steady rate, and a journal of every acknowledgement.

It is the one part that is never broken: what it wrote down decides what a read must show. Nothing of it is retried by
hand, so a record that was not acknowledged in time ends the run instead of leaving its outcome open.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from confluent_kafka import KafkaError, Message, Producer

from harness_pipelines_tests.chaos.child import stop_with_parent
from harness_pipelines_tests.chaos.content import PARTITIONS, is_misfit, value
from harness_pipelines_tests.chaos.truth import ENTRY

PATIENCE_S = 900  #: longer than any outage of a run
POLL_S = 0.02


class Journal:
    """Acknowledged records on their way to the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: list[tuple[int, int, int]] = []

    def add(self, partition: int, offset: int, number: int) -> None:
        self._entries.append((partition, offset, -1 - number if is_misfit(number) else number))

    def write(self) -> None:
        entries, self._entries = self._entries, []
        if entries:
            with self._path.open("ab") as journal:
                journal.write(np.array(entries, ENTRY).tobytes())


def produce(bootstrap: str, topic: str, journal: Journal, *, rate: float) -> None:
    """Produce until the parent ends, then wait for what is under way. Raises: RuntimeError for a refused record."""
    stopping = stop_with_parent()
    refused: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": PATIENCE_S * 1000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )

    def send(number: int) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None:
                refused.append(f"record {number}: {error}")
            else:
                journal.add(number % PARTITIONS, offset, number)

        producer.produce(topic, value(number), partition=number % PARTITIONS, on_delivery=delivered)

    began, sent = time.monotonic(), 0
    while not stopping.is_set():
        while sent < (time.monotonic() - began) * rate:
            send(sent)
            sent += 1
        producer.poll(POLL_S)
        journal.write()
        if refused:
            raise RuntimeError(f"Kafka refused {refused[0]}")
    left = producer.flush(PATIENCE_S)
    journal.write()
    if refused or left:
        raise RuntimeError(f"{left} records were not acknowledged, {len(refused)} were refused {refused[:1]}")


if __name__ == "__main__":
    bootstrap_, topic_, path_, rate_ = sys.argv[1:]
    produce(bootstrap_, topic_, Journal(Path(path_)), rate=float(rate_))
