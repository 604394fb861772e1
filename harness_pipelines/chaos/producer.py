"""The producer, a separate process: a steady rate, and a journal of every acknowledgement for each table.

It is the one part that is never broken: what it wrote down decides what a read must show. Nothing of it is retried by
hand, so a record that was not acknowledged in time ends the run instead of leaving its outcome open.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from harness_pipelines.chaos.content import Subject, is_misfit, subjects_of
from harness_pipelines.chaos.processes import stop_with_parent
from harness_pipelines.chaos.truth import ENTRY
from harness_pipelines.sources.kafka.producer import RecordProducer
from harness_pipelines.spec.settings import Settings

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

    def __init__(self, subject: Subject, journal: Journal, producer: RecordProducer) -> None:
        self.subject, self.journal, self.producer = subject, journal, producer
        self._partitions = subject.partitions
        self._sent = 0

    def send_up_to(self, count: float) -> None:
        while self._sent < count:
            self._send(self._sent)
            self._sent += 1

    def find_partitions(self) -> None:
        """New partitions get records too; a topic that cannot be looked at now is looked at later."""
        self._partitions = max(self._partitions, self.producer.partitions(timeout_s=0.5) or 0)

    def _send(self, number: int) -> None:
        partition = self.subject.home_of(number, self._partitions)

        def acked(offset: int, _at: float) -> None:
            self.journal.add(partition, offset, number)

        self.producer.send(partition, self.subject.value(number), acked)


def produce(settings: Settings, journals: Mapping[Subject, Journal], *, rate: float) -> None:
    """Produce until the parent ends, then wait for what is under way. Raises: NotProduced for a refused record."""
    stopping = stop_with_parent()
    sources = [
        Source(subject, journal, RecordProducer(settings, subject.topic, patience_s=PATIENCE_S))
        for subject, journal in journals.items()
    ]
    began = looked = time.monotonic()
    while not stopping.is_set():
        for source in sources:
            source.send_up_to((time.monotonic() - began) * rate * source.subject.share)
        for source in sources:
            source.producer.serve(POLL_S / len(sources))
            source.journal.write()
        if time.monotonic() > looked + LOOK_S:
            for source in sources:
                if source.subject.grows:
                    source.find_partitions()
            looked = time.monotonic()
    for source in sources:
        source.producer.flush(PATIENCE_S)
        source.journal.write()


def journal_of(folder: Path, subject: Subject) -> Path:
    """Where the acknowledgements of a table are written."""
    return folder / f"journal{subject.suffix}"


if __name__ == "__main__":
    folder_, rate_, crowd_ = sys.argv[1:]
    found_ = {subject: Journal(journal_of(Path(folder_), subject)) for subject in subjects_of(int(crowd_))}
    produce(Settings.from_env(), found_, rate=float(rate_))
