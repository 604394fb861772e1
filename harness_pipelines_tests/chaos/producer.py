"""The producer, a process of its own: a steady rate, and a journal of every acknowledgement for each table.

It is the one part that is never broken: what it wrote down decides what a read must show. Nothing of it is retried by
hand, so a record that was not acknowledged in time ends the run instead of leaving its outcome open.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.chaos.child import stop_with_parent
from harness_pipelines_tests.chaos.content import SUBJECTS, Subject, is_misfit
from harness_pipelines_tests.chaos.truth import ENTRY

PATIENCE_S = 900  #: longer than any outage of a run
POLL_S = 0.02
LOOK_S = 1.0  #: how often partitions that joined are looked for


class Journal:
    """Acknowledged records of one table on their way to the file."""

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


class Source:
    """The records of one table, numbered from 0."""

    def __init__(self, subject: Subject, journal: Journal, producer: Producer) -> None:
        self.subject, self.journal = subject, journal
        self.refused: list[str] = []
        self._producer = producer
        self._partitions = subject.partitions
        self._sent = 0

    def send_up_to(self, count: float) -> None:
        while self._sent < count:
            self._send(self._sent)
            self._sent += 1

    def find_partitions(self) -> None:
        """New partitions get records too; a topic that cannot be looked at now is looked at later."""
        try:
            found = self._producer.list_topics(self.subject.topic, timeout=0.5)
        except KafkaException:
            return
        self._partitions = max(self._partitions, len(found.topics[self.subject.topic].partitions))

    def _send(self, number: int) -> None:
        partition = self.subject.home_of(number, self._partitions)

        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None:
                self.refused.append(f"record {number} of {self.subject.topic}: {error}")
            else:
                self.journal.add(partition, offset, number)

        value = self.subject.value(number)
        self._producer.produce(self.subject.topic, value, partition=partition, on_delivery=delivered)


def produce(bootstrap: str, journals: Mapping[Subject, Journal], *, rate: float) -> None:
    """Produce until the parent ends, then wait for what is under way. Raises: RuntimeError for a refused record."""
    stopping = stop_with_parent()
    producer = Producer(
        {
            **Settings.from_env().kafka_properties,
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": PATIENCE_S * 1000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )
    sources = [Source(subject, journal, producer) for subject, journal in journals.items()]
    began = looked = time.monotonic()
    while not stopping.is_set():
        for source in sources:
            source.send_up_to((time.monotonic() - began) * rate * source.subject.share)
        producer.poll(POLL_S)
        _write(sources)
        if time.monotonic() > looked + LOOK_S:
            for source in sources:
                if source.subject.grows:
                    source.find_partitions()
            looked = time.monotonic()
    left = producer.flush(PATIENCE_S)
    _write(sources)
    if left:
        raise RuntimeError(f"{left} records were not acknowledged")


def _write(sources: list[Source]) -> None:
    for source in sources:
        source.journal.write()
        if source.refused:
            raise RuntimeError(f"Kafka refused {source.refused[0]}")


def journal_of(folder: Path, subject: Subject) -> Path:
    """Where the acknowledgements of a table are written."""
    return folder / f"journal{subject.suffix}"


if __name__ == "__main__":
    bootstrap_, folder_, rate_ = sys.argv[1:]
    found_ = {subject: Journal(journal_of(Path(folder_), subject)) for subject in SUBJECTS}
    produce(bootstrap_, found_, rate=float(rate_))
