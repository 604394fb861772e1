"""The reference log: the rules of Kafka's log that the harness relies on, in plain structures."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

import numpy as np

from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.errors import KafkaUnreachable, PartitionsMissing, TopicForbidden, TopicMissing
from harness_pipelines.ports.source import (
    MAX_BYTES,
    Feed,
    Headers,
    OpenTransaction,
    PartitionBatch,
    Start,
    TopicIdentity,
    Watermark,
    added_partitions,
    check_positions,
)

BOOTSTRAP = "memory"


@dataclass(slots=True, eq=False)
class _Entry:
    offset: int
    timestamp_ms: int
    value: bytes | None = None
    key: bytes | None = None
    headers: Headers | None = None
    transaction: MemoryTransaction | None = None
    epoch: int = 0  #: of the leader that took it
    control: bool = False  #: the marker that ends a transaction; it takes an offset and is never returned

    @property
    def visible(self) -> bool:
        committed = self.transaction is None or self.transaction.state == "committed"
        return committed and not self.control


@dataclass(slots=True)
class _Partition:
    entries: list[_Entry] = field(default_factory=list)
    low: int = 0
    next_offset: int = 0
    epoch: int = 0

    @property
    def end(self) -> int:
        """The last stable offset: the first record of the oldest open transaction, else the end of the log."""
        held = (e.offset for e in self.entries if e.transaction is not None and e.transaction.state == "open")
        return next(held, self.next_offset)

    @property
    def opened_at(self) -> datetime | None:
        """The time of the first record of the oldest open transaction."""
        held = (e.timestamp_ms for e in self.entries if e.transaction is not None and e.transaction.state == "open")
        at_ms = next(held, None)
        return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, tz=UTC)

    def append(self, entry: _Entry) -> int:
        entry.epoch = self.epoch
        self.entries.append(entry)
        self.next_offset = entry.offset + 1
        return entry.offset


@dataclass(slots=True)
class _Topic:
    topic_id: str
    partitions: list[_Partition]
    policy: str


class MemoryTransaction:
    """A transaction of one producer; `state` is open, committed or aborted."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.state = "open"
        self.touched: set[tuple[str, int]] = set()

    def commit(self) -> None:
        self._end("committed")

    def abort(self) -> None:
        self._end("aborted")

    def _end(self, state: str) -> None:
        with self._log.changed:
            self.state = state
            for topic, partition in sorted(self.touched):
                part = self._log.part(topic, partition)
                part.append(_Entry(part.next_offset, self._log.now_ms(), transaction=self, control=True))
            self._log.tell()


class MemoryLog:
    """`Log` in memory, with the producer's and the administrator's side beside it. Safe for use by several threads."""

    def __init__(self, *, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self.cluster_id = str(uuid.uuid4())
        self.now_ms = now_ms
        self.changed = threading.Condition(threading.RLock())
        self.reachable = True  #: set to False for a cluster that gives no answer
        self.forbidden: set[str] = set()  #: topics that the user may not read
        self.lost_after_s = 60.0
        self._topics: dict[str, _Topic] = {}
        self._feeds: list[Feed] = []

    # -- the administrator's and the producer's side

    def create_topic(self, topic: str, partitions: int, *, policy: str = "delete") -> None:
        with self.changed:
            self._topics[topic] = _Topic(str(uuid.uuid4()), [_Partition() for _ in range(partitions)], policy)

    def delete_topic(self, topic: str) -> None:
        with self.changed:
            del self._topics[topic]
            self.tell()

    def add_partitions(self, topic: str, total: int) -> None:
        with self.changed:
            have = self._topics[topic].partitions
            have += [_Partition() for _ in range(total - len(have))]

    def append(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        transaction: MemoryTransaction | None = None,
    ) -> int:
        """Return the offset of the new record."""
        with self.changed:
            part = self.part(topic, partition)
            stamp = self.now_ms() if timestamp_ms is None else timestamp_ms
            offset = part.append(_Entry(part.next_offset, stamp, value, key, headers, transaction))
            if transaction is not None:
                transaction.touched.add((topic, partition))
            self.tell()
            return offset

    def begin(self) -> MemoryTransaction:
        return MemoryTransaction(self)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move the log start, as retention does."""
        with self.changed:
            part = self.part(topic, partition)
            part.low = before
            part.entries = [entry for entry in part.entries if entry.offset >= before]
            self.tell()

    def truncate(self, topic: str, partition: int, end: int) -> None:
        """Drop acknowledged records, as an unclean leader election does."""
        with self.changed:
            part = self.part(topic, partition)
            part.entries = [entry for entry in part.entries if entry.offset < end]
            part.next_offset = end
            part.epoch += 1
            self.tell()

    def tell(self) -> None:
        """Let all look that wait for something of the log. The lock is held."""
        self.changed.notify_all()
        for feed in self._feeds:
            feed.wake()

    # -- the port

    def topics(self) -> list[str]:
        with self.changed:
            return sorted(self._topics)

    def describe(self, topic: str) -> TopicIdentity:
        return self.identity_async(topic)()

    def identities(self, topics: Collection[str]) -> dict[str, TopicIdentity | HarnessError]:
        found: dict[str, TopicIdentity | HarnessError] = {}
        for topic in topics:
            try:
                found[topic] = self.describe(topic)
            except (TopicMissing, TopicForbidden) as error:
                found[topic] = error
        return found

    def identity_async(self, topic: str) -> Callable[[], TopicIdentity]:
        with self.changed:
            try:
                self._answer(topic, f"describing topic {topic!r}")
                found = self._topics[topic]
            except HarnessError as failure:
                return _raiser(failure)
            identity = TopicIdentity(
                cluster_id=self.cluster_id,
                topic=topic,
                topic_id=found.topic_id,
                partitions=tuple(range(len(found.partitions))),
            )
        return lambda: identity

    def watermarks(self, topic: str, partitions: Iterable[int]) -> dict[int, Watermark]:
        with self.changed:
            self._answer(topic, f"reading the offsets of topic {topic!r}")
            return {p: Watermark(self.part(topic, p).low, self.part(topic, p).end) for p in sorted(set(partitions))}

    def unstable(self, wanted: Mapping[str, Collection[int]]) -> set[str]:
        with self.changed:
            parts = {topic: [self.part(topic, p) for p in partitions] for topic, partitions in wanted.items()}
            return {topic for topic, found in parts.items() if any(one.end < one.next_offset for one in found)}

    def held(self, topic: str, partitions: Iterable[int]) -> dict[int, OpenTransaction]:
        with self.changed:
            self._answer(topic, f"reading the offsets of topic {topic!r}")
            found = {p: self.part(topic, p) for p in sorted(set(partitions))}
            return {
                p: OpenTransaction(end=part.end, newest=part.next_offset, since=part.opened_at)
                for p, part in found.items()
                if part.end < part.next_offset
            }

    def watermarks_of(self, wanted: Mapping[str, Collection[int]]) -> dict[str, dict[int, Watermark] | HarnessError]:
        found: dict[str, dict[int, Watermark] | HarnessError] = {}
        for topic, partitions in wanted.items():
            try:
                found[topic] = self.watermarks(topic, partitions)
            except (TopicMissing, TopicForbidden, PartitionsMissing) as error:
                found[topic] = error
        return found

    def start_offsets(self, topic: str, partitions: Iterable[int], start: Start) -> dict[int, int]:
        with self.changed:
            marks = self.watermarks(topic, partitions)
            if start == "earliest":
                return {p: mark.low for p, mark in marks.items()}
            if not isinstance(start, datetime):
                return {p: mark.end for p, mark in marks.items()}
            if start.tzinfo is None:
                raise ValueError("a start time needs a time zone")
            first: dict[int, int] = {}
            for p, mark in marks.items():
                late = (e.offset for e in self.part(topic, p).entries if e.timestamp_ms >= start.timestamp() * 1000)
                first[p] = min(next(late, mark.end), mark.end)
            return first

    def cleanup_policy(self, topic: str) -> str | None:
        with self.changed:
            self._answer(topic, f"reading the settings of topic {topic!r}")
            return self._topics[topic].policy

    def reader(
        self,
        topic: str,
        positions: Mapping[int, int],
        *,
        identity: TopicIdentity | None = None,
        feed: Feed | None = None,
    ) -> MemoryLogReader:
        if feed is not None:
            self._feeds.append(feed)
            feed.wake()
        return MemoryLogReader(self, identity or self.describe(topic), positions)

    def close(self) -> None:
        """Nothing to give back."""

    def part(self, topic: str, partition: int) -> _Partition:
        """Raises: TopicMissing, PartitionsMissing."""
        found = self._topics.get(topic)
        if found is None:
            raise TopicMissing(topic, bootstrap=BOOTSTRAP)
        if not 0 <= partition < len(found.partitions):
            raise PartitionsMissing(topic, expected=[partition], found=range(len(found.partitions)))
        return found.partitions[partition]

    def _answer(self, topic: str, doing: str) -> None:
        if not self.reachable:
            raise KafkaUnreachable(BOOTSTRAP, waited_s=0.0, doing=doing)
        if topic in self.forbidden:
            raise TopicForbidden(topic, bootstrap=BOOTSTRAP)
        if topic not in self._topics:
            raise TopicMissing(topic, bootstrap=BOOTSTRAP)


class MemoryLogReader:
    """`LogReader` over a `MemoryLog`."""

    def __init__(self, log: MemoryLog, identity: TopicIdentity, positions: Mapping[int, int]) -> None:
        self._log, self._identity = log, identity
        self._positions = dict(positions)
        self._paused: set[int] = set()

    @property
    def positions(self) -> Mapping[int, int]:
        return self._positions

    def poll(self, max_records: int, timeout_s: float, *, max_bytes: int = MAX_BYTES) -> list[PartitionBatch]:
        began = time.monotonic()
        with self._log.changed:
            while True:
                batches = self._batches(max_records, max_bytes) if self._log.reachable else []
                left_s = timeout_s - (time.monotonic() - began)
                silent_s = time.monotonic() - began
                if not self._log.reachable and silent_s >= self._log.lost_after_s:
                    doing = f"polling topic {self._identity.topic!r}"
                    raise KafkaUnreachable(BOOTSTRAP, waited_s=silent_s, doing=doing)
                if batches or left_s <= 0:
                    break
                self._log.changed.wait(min(left_s, max(self._log.lost_after_s - silent_s, 0.001)))
        for batch in batches:
            self._positions[batch.partition] = batch.high
        return batches

    def seek(self, partition: int, offset: int) -> None:
        self._positions[partition] = offset

    def assign(self, positions: Mapping[int, int]) -> None:
        self._positions = dict(positions)
        self._paused &= set(positions)

    def pause(self, partition: int) -> None:
        self._paused.add(partition)

    def resume(self, partition: int) -> None:
        self._paused.discard(partition)

    def close(self) -> None:
        """Nothing to give back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _batches(self, max_records: int, max_bytes: int) -> list[PartitionBatch]:
        topic = self._identity.topic
        batches: list[PartitionBatch] = []
        failure: HarnessError | None = None
        for partition in sorted(set(self._positions) - self._paused):
            try:
                self._check(partition)
            except HarnessError as found:
                failure = failure or found
                continue
            batch = self._batch(self._log.part(topic, partition), partition, max_records, max_bytes)
            if batch.high > batch.low:
                batches.append(batch)
                max_records -= len(batch)
                max_bytes -= sum(len(value) for value in batch.values if value is not None)
        # What the healthy partitions have comes first; the error stays for the next poll.
        if failure is not None and not batches:
            raise failure
        return batches

    def _check(self, partition: int) -> None:
        topic, position = self._identity.topic, self._positions[partition]
        added_partitions(self._identity, self._log.describe(topic))
        check_positions(topic, {partition: position}, self._log.watermarks(topic, [partition]))

    def _batch(self, part: _Partition, partition: int, max_records: int, max_bytes: int) -> PartitionBatch:
        low, end, size = self._positions[partition], part.end, 0
        taken: list[_Entry] = []
        high = end
        for entry in part.entries:
            if not (low <= entry.offset < end and entry.visible):
                continue
            if len(taken) >= max_records or size >= max_bytes:
                high = taken[-1].offset + 1 if taken else low
                break
            taken.append(entry)
            size += len(entry.value or b"")
        return PartitionBatch(
            partition=partition,
            low=low,
            high=high,
            offsets=np.array([entry.offset for entry in taken], np.int64),
            timestamps_ms=np.array([entry.timestamp_ms for entry in taken], np.int64),
            values=[entry.value for entry in taken],
            keys=[entry.key for entry in taken],
            headers=[entry.headers for entry in taken],
            leader_epoch=taken[-1].epoch if taken else None,
        )


def _raiser(failure: HarnessError) -> Callable[[], TopicIdentity]:
    def wait() -> TopicIdentity:
        raise failure

    return wait
