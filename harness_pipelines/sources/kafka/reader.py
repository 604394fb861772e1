"""A consumer by assignment: no group, no commits, exact ranges, one cheap pass over the messages."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import Any, Self

import numpy as np
import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from numpy.typing import NDArray

from harness_pipelines.errors import HarnessError
from harness_pipelines.formats.base import UNREADABLE_HEADERS
from harness_pipelines.ports.errors import KafkaFailed, KafkaUnreachable, PartitionsMissing, RecordUnreadable
from harness_pipelines.ports.source import (
    MAX_BYTES,
    Headers,
    PartitionBatch,
    TopicIdentity,
    added_partitions,
    check_positions,
)
from harness_pipelines.sources.kafka.client import AWAY, FORBIDDEN, LOGIN, UNKNOWN_TOPIC, UNSETTLED, KafkaClient, Trail
from harness_pipelines.sources.kafka.contact import Contact, Questions
from harness_pipelines.sources.kafka.shared import Lane

log = structlog.get_logger(__name__)

_SLICE_RECORDS = 1024  # larger slices fall out of the processor's cache and into older generations of the collector
_WAIT_STEP_S = 0.5
_TRIES = 5
_SECOND = itemgetter(1)
#: What the client raises for a header's name; the interpreter finds that it gives a result all the same.
_NO_TEXT = (UnicodeDecodeError, SystemError)

POSITION_LOST = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError._LOG_TRUNCATION,
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    }
)
DAMAGED = frozenset({KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError.INVALID_MSG})


@dataclass(slots=True)
class _Part:
    """The result of one poll for one partition."""

    low: int
    high: int
    leader_epoch: int | None = None
    offsets: list[NDArray[np.int64]] = field(default_factory=list)
    timestamps_ms: list[NDArray[np.int64]] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    headers: list[Headers | None] = field(default_factory=list)

    def batch(self, partition: int) -> PartitionBatch:
        return PartitionBatch(
            partition=partition,
            low=self.low,
            high=self.high,
            offsets=_joined(self.offsets),
            timestamps_ms=_joined(self.timestamps_ms),
            values=self.values,
            keys=self.keys,
            headers=self.headers,
            leader_epoch=self.leader_epoch,
        )


@dataclass(slots=True)
class _Gathered:
    positions: Mapping[int, int]
    parts: dict[int, _Part] = field(default_factory=dict)
    records: int = 0
    size: int = 0  #: bytes of values

    def part(self, partition: int) -> _Part:
        found = self.parts.get(partition)
        if found is None:
            position = self.positions[partition]
            found = self.parts[partition] = _Part(position, position)
        return found

    @property
    def moved(self) -> bool:
        return any(part.high > part.low for part in self.parts.values())

    def batches(self) -> list[PartitionBatch]:
        return [part.batch(partition) for partition, part in sorted(self.parts.items()) if part.high > part.low]


class KafkaReader:
    """`LogReader` over one librdkafka consumer, or over a lane of a shared one; opened by `KafkaLog.reader`."""

    def __init__(
        self,
        client: KafkaClient,
        questions: Questions,
        identity: TopicIdentity,
        positions: Mapping[int, int],
        *,
        lane: tuple[Lane, Trail] | None = None,
    ) -> None:
        self._client, self._questions, self._identity = client, questions, identity
        self._topic = identity.topic
        self._trail = Trail() if lane is None else lane[1]
        self._positions: dict[int, int] = {}
        self._paused: set[int] = set()
        self._failed: dict[int, HarnessError] = {}
        self._suspects: dict[int, str] = {}  #: partitions that stopped and why, to be looked into between two batches
        self._tries: dict[int, int] = {}
        self._contact = Contact(client, questions, self._topic, self._trail)
        self._torn = False  #: the consumer is ahead of the positions
        self._closed = False
        self._consumer: Consumer | Lane
        try:
            self._consumer = Consumer(client.consumer_config(self._trail)) if lane is None else lane[0]
        except KafkaException as error:
            raise client.bad_config(error) from None
        self.assign(positions)

    @property
    def positions(self) -> Mapping[int, int]:
        return self._positions

    def poll(self, max_records: int, timeout_s: float, *, max_bytes: int = MAX_BYTES) -> list[PartitionBatch]:
        if self._torn:
            self._restart(self._positions)
            self._torn = False
        self._diagnose_suspects()
        self._raise_failed()
        gathered = _Gathered(self._positions)
        try:
            self._gather(gathered, max_records, max_bytes, time.monotonic() + timeout_s)
        except HarnessError:
            self._torn = gathered.moved
            raise
        except BaseException:
            # Ctrl-C: the consumer may have handed over messages that no batch will ever hold.
            self._torn = True
            raise
        batches = gathered.batches()
        if not batches:
            self._raise_failed()
        for batch in batches:
            self._positions[batch.partition] = batch.high
            self._tries.pop(batch.partition, None)
        return batches

    def seek(self, partition: int, offset: int) -> None:
        self._replace({partition: offset}, gone=[partition])

    def assign(self, positions: Mapping[int, int]) -> None:
        stays = {p for p, offset in positions.items() if self._positions.get(p) == offset and p not in self._failed}
        gone = [p for p in self._positions if p not in stays]
        self._replace({p: offset for p, offset in positions.items() if p not in stays}, gone=gone)

    def pause(self, partition: int) -> None:
        self._paused.add(partition)
        self._consumer.pause([TopicPartition(self._topic, partition)])

    def resume(self, partition: int) -> None:
        self._paused.discard(partition)
        self._contact.expect(partition)
        self._consumer.resume([TopicPartition(self._topic, partition)])

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _replace(self, positions: Mapping[int, int], *, gone: list[int]) -> None:
        """Drop *gone* with all that was fetched for it, then start at *positions*."""
        dropped = [self._at(partition) for partition in gone if partition in self._positions]
        if dropped:
            self._consumer.incremental_unassign(dropped)
        for partition in gone:
            self._positions.pop(partition, None)
            self._failed.pop(partition, None)
            self._suspects.pop(partition, None)
            self._contact.forget(partition)
        for partition, offset in positions.items():
            self._positions[partition] = offset
            self._contact.expect(partition)
        if positions:
            self._consumer.incremental_assign([TopicPartition(self._topic, p, o) for p, o in positions.items()])
        self._paused &= set(self._positions)
        if self._paused:
            self._consumer.pause([self._at(partition) for partition in self._paused])

    def _at(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)

    def _raise_failed(self) -> None:
        for _, failure in sorted(self._failed.items()):
            raise failure

    def _gather(self, gathered: _Gathered, max_records: int, max_bytes: int, deadline: float) -> None:
        while gathered.records < max_records and gathered.size < max_bytes and not self._failed:
            # Without a timeout, since with one `consume` waits for all that it was asked for.
            messages = self._consumer.consume(min(_SLICE_RECORDS, max_records - gathered.records), 0)
            if not messages:
                if gathered.moved:
                    break
                messages = self._wait(deadline)
                if not messages:
                    break
            self._take(messages, gathered)
            if self._suspects:
                # A diagnosis may restart a partition at its position, which moves only when the batch is returned.
                if gathered.moved:
                    break
                self._diagnose_suspects()

    def _wait(self, deadline: float) -> list[Message]:
        while not self._failed:
            left_s = deadline - time.monotonic()
            message = self._consumer.poll(max(0.0, min(left_s, _WAIT_STEP_S)))
            if message is not None:
                return [message]
            for partition in self._contact.check(set(self._positions) - self._paused):
                self._diagnose(partition, "its leader does not know it")
            if left_s <= 0:
                break
        return []

    def _take(self, messages: list[Message], gathered: _Gathered) -> None:
        """Sort *messages* by partition. This is the hot path: work per message is done by C functions under `map`."""
        errors = list(map(Message.error, messages))
        if any(errors):  # never by `==`: comparing a KafkaError with None leaves a stray exception behind
            self._take_events([m for m, error in zip(messages, errors, strict=True) if error is not None], gathered)
            messages = [m for m, error in zip(messages, errors, strict=True) if error is None]
            if not messages:
                return
        count = len(messages)
        partitions = np.fromiter(map(Message.partition, messages), np.int32, count)
        offsets = np.fromiter(map(Message.offset, messages), np.int64, count)
        stamps = np.fromiter(map(_SECOND, map(Message.timestamp, messages)), np.int64, count)
        values = list(map(Message.value, messages))
        keys = list(map(Message.key, messages))
        headers = _headers_of(messages)
        gathered.records += count
        gathered.size += sum(map(len, messages))
        edges = [0, *(np.flatnonzero(partitions[1:] != partitions[:-1]) + 1).tolist(), count]
        for first, end in pairwise(edges):
            partition = int(partitions[first])
            part = gathered.part(partition)
            part.offsets.append(offsets[first:end])
            part.timestamps_ms.append(stamps[first:end])
            part.values += values[first:end]
            part.keys += keys[first:end]
            part.headers += headers[first:end]
            # Not below the end-of-partition events of these messages, which were taken first.
            part.high = max(part.high, int(offsets[end - 1]) + 1)
            part.leader_epoch = messages[end - 1].leader_epoch()
            self._contact.heard(partition)

    def _take_events(self, messages: list[Message], gathered: _Gathered) -> None:
        for message in messages:
            error, partition = message.error(), message.partition()
            if error is None:
                continue
            if partition is None or partition not in self._positions:
                self._take_error(error)
            elif error.code() == KafkaError._PARTITION_EOF:
                part = gathered.part(partition)
                part.high = max(part.high, message.offset() or 0)
                self._contact.heard(partition)
            else:
                self._take_partition_error(partition, message.offset(), error)

    def _take_error(self, error: KafkaError) -> None:
        """An error of no partition: a fatal one ends the reader, the others heal or show as silence."""
        if error.fatal():
            raise KafkaFailed(self._client.bootstrap, doing=self._doing, detail=self._client.clean(error.str()))

    def _take_partition_error(self, partition: int, offset: int | None, error: KafkaError) -> None:
        code, detail = error.code(), self._client.clean(error.str())
        if code in POSITION_LOST or code in UNKNOWN_TOPIC:
            self._suspects[partition] = detail
        elif code in DAMAGED:
            position = max(self._positions[partition], -1 if offset is None else offset)
            self._failed[partition] = RecordUnreadable(
                self._topic, partition=partition, position=position, detail=detail
            )
        elif code in FORBIDDEN or code in LOGIN or error.fatal():
            self._failed[partition] = self._client.translate(error, topic=self._topic, doing=self._doing)
        elif code not in AWAY | UNSETTLED:
            log.warning(
                "kafka.partition_failed", topic=self._topic, partition=partition, code=error.name(), detail=detail
            )

    def _diagnose_suspects(self) -> None:
        while self._suspects:
            self._diagnose(*self._suspects.popitem())

    def _diagnose(self, partition: int, detail: str) -> None:
        """Find out why the cluster does not serve *partition* at its position, and fail it by that name.

        When all is well after all (a leader that was not yet caught up), the partition starts again at its position.
        """
        position = self._positions[partition]
        try:
            found = self._questions.describe(self._topic)
            added_partitions(self._identity, found)
            if partition not in found.partitions:
                raise PartitionsMissing(self._topic, expected=[partition], found=found.partitions)
            check_positions(self._topic, {partition: position}, self._questions.watermarks(self._topic, [partition]))
            self._tries[partition] = self._tries.get(partition, 0) + 1
            if self._tries[partition] > _TRIES:
                raise KafkaFailed(self._client.bootstrap, doing=self._doing, detail=f"partition {partition}: {detail}")
        except KafkaUnreachable:
            self._restart([partition])
        except PartitionsMissing as failure:  # or a broker that has not heard yet of partitions that were added
            self._tries[partition] = self._tries.get(partition, 0) + 1
            if self._tries[partition] > _TRIES:
                self._failed[partition] = failure
            else:
                self._restart([partition])
        except HarnessError as failure:
            self._failed[partition] = failure
        else:
            log.info(
                "kafka.partition_restarted", topic=self._topic, partition=partition, offset=position, detail=detail
            )
            self._restart([partition])

    def _restart(self, partitions: Iterable[int]) -> None:
        """Drop what was fetched ahead of *partitions* and start again at their positions."""
        again = list(partitions)
        self._consumer.incremental_unassign([self._at(partition) for partition in again])
        self._consumer.incremental_assign([TopicPartition(self._topic, p, self._positions[p]) for p in again])
        paused = [self._at(partition) for partition in again if partition in self._paused]
        if paused:
            self._consumer.pause(paused)

    @property
    def _doing(self) -> str:
        return f"polling topic {self._topic!r}"


def _headers_of(messages: list[Message]) -> list[Any]:
    """The headers of *messages*; of a record with a name that is not UTF-8 the client gives none.

    It raises for such a record, and ends the process if the record is asked a second time: each is asked once.
    """
    found: list[Any] = []
    rest = map(Message.headers, messages)
    while len(found) < len(messages):
        try:
            found.extend(rest)  # keeps what came before an error; the next call continues after it
        except _NO_TEXT:
            found.append(list(UNREADABLE_HEADERS))
    return found


def _joined(chunks: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    if len(chunks) == 1:
        return chunks[0]
    return np.concatenate(chunks) if chunks else np.empty(0, np.int64)
