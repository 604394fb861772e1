"""The log port for tables of several topics: forwards each call to the topics concerned.

Only here, and where Spark reads Kafka, a table's partition numbers become Kafka's; see `protocol.topics`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Self, TypeVar

from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.errors import PartitionsMissing, RecordsLost
from harness_pipelines.ports.source import (
    MAX_BYTES,
    Feed,
    Log,
    LogReader,
    OpenTransaction,
    PartitionBatch,
    Start,
    TopicIdentity,
    Watermark,
)
from harness_pipelines.protocol.topics import by_topic, kafka_partition, table_partition, topics_of
from harness_pipelines.sources.kafka.log import KafkaLog
from harness_pipelines.spec.settings import Settings

Answer = TypeVar("Answer")
_ROUND_S = 0.05  #: how long all readers together wait before the first is asked again


def open_log(settings: Settings) -> Log:
    """The topics of the cluster that *settings* name. Raises: UsageError."""
    return JoinedLog(KafkaLog.from_settings(settings))


class JoinedLog:
    """`Log` over *log*. A single topic goes through as it is."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def topics(self) -> list[str]:
        return self._log.topics()

    def describe(self, topic: str) -> TopicIdentity:
        return _joined(topic, [self._log.describe(one) for one in topics_of(topic)])

    def identities(self, topics: Collection[str]) -> dict[str, TopicIdentity | HarnessError]:
        asked = self._log.identities({one for topic in topics for one in topics_of(topic)})
        found: dict[str, TopicIdentity | HarnessError] = {}
        for topic in topics:
            parts = [asked[one] for one in topics_of(topic)]
            failed = next((one for one in parts if isinstance(one, HarnessError)), None)
            found[topic] = failed or _joined(topic, [one for one in parts if isinstance(one, TopicIdentity)])
        return found

    def identity_async(self, topic: str) -> Callable[[], TopicIdentity]:
        asked = [self._log.identity_async(one) for one in topics_of(topic)]
        return lambda: _joined(topic, [answer() for answer in asked])

    def watermarks(self, topic: str, partitions: Iterable[int]) -> dict[int, Watermark]:
        return self._each(topic, partitions, self._log.watermarks)

    def unstable(self, wanted: Mapping[str, Collection[int]]) -> set[str]:
        names = {topic: self._by_name(topic, partitions) for topic, partitions in wanted.items()}
        every: dict[str, set[int]] = {}
        for parts in names.values():
            for name, numbers in parts.items():
                every.setdefault(name, set()).update(numbers.values())
        found = self._log.unstable(every)
        return {topic for topic, parts in names.items() if not found.isdisjoint(parts)}

    def held(self, topic: str, partitions: Iterable[int]) -> dict[int, OpenTransaction]:
        found: dict[int, OpenTransaction] = {}
        for name, numbers in self._by_name(topic, partitions).items():
            answer = self._log.held(name, numbers.values())
            found |= {number: answer[partition] for number, partition in numbers.items() if partition in answer}
        return found

    def watermarks_of(self, wanted: Mapping[str, Collection[int]]) -> dict[str, dict[int, Watermark] | HarnessError]:
        parts = {topic: self._by_name(topic, partitions) for topic, partitions in wanted.items()}
        every: dict[str, set[int]] = {}
        for names in parts.values():
            for name, numbers in names.items():
                every.setdefault(name, set()).update(numbers.values())
        answers = self._log.watermarks_of(every)
        found: dict[str, dict[int, Watermark] | HarnessError] = {}
        for topic, names in parts.items():
            marks: dict[int, Watermark] = {}
            for name, numbers in names.items():
                answer = answers[name]
                if isinstance(answer, HarnessError):
                    found[topic] = answer
                    break
                marks |= {number: answer[partition] for number, partition in numbers.items()}
            else:
                found[topic] = marks
        return found

    def start_offsets(self, topic: str, partitions: Iterable[int], start: Start) -> dict[int, int]:
        return self._each(topic, partitions, lambda one, wanted: self._log.start_offsets(one, wanted, start))

    def cleanup_policy(self, topic: str) -> str | None:
        found = {self._log.cleanup_policy(one) for one in topics_of(topic)} - {None}
        return ",".join(sorted(filter(None, found))) if found else None

    def reader(
        self,
        topic: str,
        positions: Mapping[int, int],
        *,
        identity: TopicIdentity | None = None,
        feed: Feed | None = None,
    ) -> LogReader:
        if len(topics_of(topic)) == 1:
            return self._log.reader(topic, positions, identity=identity, feed=feed)
        return _JoinedReader(self._log, identity or self.describe(topic), positions, feed)

    def close(self) -> None:
        self._log.close()

    def _each(
        self, topic: str, partitions: Iterable[int], ask: Callable[[str, Collection[int]], dict[int, Answer]]
    ) -> dict[int, Answer]:
        """The answers of all topics, by the partitions of the table."""
        found: dict[int, Answer] = {}
        for name, numbers in self._by_name(topic, partitions).items():
            answer = ask(name, numbers.values())
            found |= {number: answer[partition] for number, partition in numbers.items()}
        return found

    def _by_name(self, topic: str, partitions: Iterable[int]) -> dict[str, dict[int, int]]:
        """By topic the partitions of the table, and Kafka's numbers of them. Raises: PartitionsMissing."""
        topics = topics_of(topic)
        if len(topics) == 1:
            return {topic: {p: p for p in sorted(set(partitions))}}
        wanted = by_topic(partitions)
        if unknown := [table_partition(i, p) for i in wanted if not 0 <= i < len(topics) for p in wanted[i]]:
            raise PartitionsMissing(topic, expected=unknown, found=self.describe(topic).partitions)
        return {topics[i]: {table_partition(i, p): p for p in found} for i, found in wanted.items()}


def _joined(topic: str, found: list[TopicIdentity]) -> TopicIdentity:
    if len(found) == 1:
        return found[0]
    return TopicIdentity(
        cluster_id=found[0].cluster_id,
        topic=topic,
        topic_id=",".join(one.topic_id for one in found),
        partitions=tuple(table_partition(i, p) for i, one in enumerate(found) for p in one.partitions),
    )


class _JoinedReader:
    """`LogReader` over one reader per topic."""

    def __init__(self, log: Log, identity: TopicIdentity, positions: Mapping[int, int], feed: Feed | None) -> None:
        self._log, self._identity, self._feed = log, identity, feed
        self._readers: dict[int, LogReader] = {}
        self._turn = 0
        try:
            self.assign(positions)
        except BaseException:
            self.close()
            raise

    @property
    def positions(self) -> Mapping[int, int]:
        return {table_partition(i, p): o for i, one in self._readers.items() for p, o in one.positions.items()}

    def poll(self, max_records: int, timeout_s: float, *, max_bytes: int = MAX_BYTES) -> list[PartitionBatch]:
        deadline = time.monotonic() + timeout_s
        wait_s = 0.0
        while True:
            readers = sorted(i for i, one in self._readers.items() if one.positions)
            if len(readers) == 1:
                wait_s = max(0.0, deadline - time.monotonic())
            found = self._round(readers, max_records, max_bytes, wait_s)
            left_s = deadline - time.monotonic()
            if found or left_s <= 0:
                return found
            wait_s = min(left_s, _ROUND_S) / max(1, len(readers))

    def _round(self, readers: list[int], max_records: int, max_bytes: int, wait_s: float) -> list[PartitionBatch]:
        """Poll each reader once, starting with another one each time; after the first batch, none waits."""
        self._turn += 1
        first = self._turn % max(1, len(readers))
        taken: list[tuple[int, PartitionBatch]] = []
        try:
            for index in readers[first:] + readers[:first]:
                if max_records <= 0 or max_bytes <= 0:
                    break
                for batch in self._ask(index, max_records, 0.0 if taken else wait_s, max_bytes):
                    taken.append((index, batch))
                    max_records -= len(batch)
                    max_bytes -= sum(len(value) for value in batch.values if value is not None)
        except BaseException:  # what was taken is in no batch that anybody gets: it comes again
            for index, batch in taken:
                self._readers[index].seek(batch.partition, batch.low)
            raise
        return [replace(batch, partition=table_partition(index, batch.partition)) for index, batch in sorted(
            taken, key=lambda one: (one[0], one[1].partition))]  # fmt: skip

    def _ask(self, index: int, max_records: int, wait_s: float, max_bytes: int) -> list[PartitionBatch]:
        try:
            return self._readers[index].poll(max_records, wait_s, max_bytes=max_bytes)
        except RecordsLost as lost:  # the way on names the partition as the table does
            raise RecordsLost(
                self._identity.topic,
                partition=table_partition(index, lost.partition),
                expected=lost.expected,
                log_start=lost.log_start,
            ) from lost

    def seek(self, partition: int, offset: int) -> None:
        index, there = kafka_partition(partition)
        self._readers[index].seek(there, offset)

    def assign(self, positions: Mapping[int, int]) -> None:
        wanted = {
            index: {p: positions[table_partition(index, p)] for p in partitions}
            for index, partitions in by_topic(positions).items()
        }
        for index, reader in self._readers.items():
            reader.assign(wanted.get(index, {}))
        for index in wanted.keys() - self._readers.keys():
            self._readers[index] = self._open(index, wanted[index])

    def _open(self, index: int, positions: Mapping[int, int]) -> LogReader:
        topic, topic_id = (text.split(",")[index] for text in (self._identity.topic, self._identity.topic_id))
        known = tuple(by_topic(self._identity.partitions).get(index, ()))
        identity = TopicIdentity(cluster_id=self._identity.cluster_id, topic=topic, topic_id=topic_id, partitions=known)
        return self._log.reader(topic, positions, identity=identity, feed=self._feed)

    def pause(self, partition: int) -> None:
        index, there = kafka_partition(partition)
        self._readers[index].pause(there)

    def resume(self, partition: int) -> None:
        index, there = kafka_partition(partition)
        self._readers[index].resume(there)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
