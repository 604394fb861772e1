"""A producer that keeps its own log of what was acknowledged: the truth that tests judge the harness against."""

from __future__ import annotations

import faulthandler
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]  # not in __all__

from harness_pipelines.ports.errors import KafkaUnreachable, PartitionsMissing, TopicMissing
from harness_pipelines.ports.source import Headers, Log
from harness_pipelines.sources.kafka import log as kafka_log
from harness_pipelines.sources.kafka.client import KafkaTimeouts
from harness_pipelines.sources.kafka.log import KafkaLog
from harness_pipelines_tests.memory.log import MemoryLog, MemoryTransaction

if TYPE_CHECKING:
    import pytest

DEADLINE_S = 120.0  #: a loaded machine needs a minute for the first batch of a query of Spark
Values = Sequence[bytes | None]
Acked = dict[int, dict[int, bytes | None]]  #: {partition: {offset: value}}


def wait_until(
    condition: Callable[[], bool], what: str, *, deadline_s: float = DEADLINE_S, every_s: float = 0.005
) -> None:
    """Wait until *condition* holds, which is asked *every_s*; fail with *what* after *deadline_s*."""
    until = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > until:
            faulthandler.dump_traceback(file=2)  # where everybody stands, among what pytest captured
            raise AssertionError(f"after {deadline_s} s still not: {what}")
        time.sleep(every_s)


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Kafka where nobody listens is asked for a second, and not for ten."""
    monkeypatch.setattr(kafka_log, "KafkaTimeouts", partial(KafkaTimeouts, request_s=1.0))


class Transaction(Protocol):
    def produce(self, topic: str, partition: int, values: Values) -> list[int]:
        """Return the offsets of the records, which are in the log, invisible until the commit."""
        ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...


class LogRig(Protocol):
    """The other side of a log: producer and administrator. `acked` holds what readers must see, and nothing else."""

    @property
    def log(self) -> Log: ...

    def create(self, partitions: int = 1, *, topic: str | None = None, config: dict[str, str] | None = None) -> str: ...

    def delete(self, topic: str) -> None: ...

    def add_partitions(self, topic: str, total: int) -> None: ...

    def produce(
        self,
        topic: str,
        partition: int,
        values: Values,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int = 0,
    ) -> list[int]: ...

    def begin(self) -> Transaction: ...

    def delete_records(self, topic: str, partition: int, before: int) -> None: ...

    def acked(self, topic: str) -> Acked: ...

    def close(self) -> None: ...


class AckedLog:
    """What was acknowledged, per topic."""

    def __init__(self) -> None:
        self._topics: dict[str, Acked] = {}

    def start(self, topic: str, partitions: Iterable[int]) -> None:
        self._topics[topic] = {partition: {} for partition in partitions}

    def of(self, topic: str) -> Acked:
        """As it is now: other threads go on producing while the caller goes through it."""
        return {partition: dict(records) for partition, records in list(self._topics[topic].items())}

    def add(self, topic: str, partition: int, records: Iterable[tuple[int, bytes | None]]) -> None:
        self._topics[topic].setdefault(partition, {}).update(records)

    def forget_below(self, topic: str, partition: int, before: int) -> None:
        kept = {offset: value for offset, value in self._topics[topic][partition].items() if offset >= before}
        self._topics[topic][partition] = kept


class KafkaRig:
    """`LogRig` over a real broker. `close` ends what is open and deletes its topics."""

    def __init__(
        self, bootstrap: str, *, log: KafkaLog | None = None, properties: Mapping[str, str] | None = None
    ) -> None:
        """*properties*: of every client, such as the login of the embedded broker (`Endpoints.kafka_login`)."""
        self._config: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0, **(properties or {})}
        self.log: KafkaLog = log or KafkaLog(bootstrap, properties)
        self.admin = AdminClient(self._config)
        self.ledger = AckedLog()
        self._producer: Producer | None = None
        self._open: list[KafkaTransaction] = []
        self._topics: set[str] = set()

    def create(self, partitions: int = 1, *, topic: str | None = None, config: dict[str, str] | None = None) -> str:
        """Create a topic and wait until every partition has a leader that answers.

        Its records stay: every five minutes the broker removes those whose timestamps are older than a week, and tests
        write such timestamps.
        """
        name, words = topic or f"t_{uuid.uuid4().hex[:12]}", {"retention.ms": "-1", **(config or {})}
        for done in self.admin.create_topics([NewTopic(name, partitions, 1, config=words)]).values():
            done.result()
        self._topics.add(name)
        self.ledger.start(name, range(partitions))
        self._await_partitions(name, partitions)
        return name

    def delete(self, topic: str) -> None:
        """Delete a topic and wait until the broker no longer knows it."""
        for done in self.admin.delete_topics([topic]).values():
            done.result()
        self._topics.discard(topic)
        wait_until(lambda: not self._exists(topic), f"topic {topic} is gone")

    def add_partitions(self, topic: str, total: int) -> None:
        for done in self.admin.create_partitions([NewPartitions(topic, total)]).values():
            done.result()
        self._await_partitions(topic, total)
        if self._producer is not None:
            self._producer.list_topics(topic, DEADLINE_S)  # it would refuse the new partitions until it next looks

    def produce(
        self,
        topic: str,
        partition: int,
        values: Values,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int = 0,
    ) -> list[int]:
        """Produce *values* and return their offsets once all are acknowledged."""
        if self._producer is None:
            self._producer = Producer({**self._config, "linger.ms": 1, "acks": "all", "message.max.bytes": 16_000_000})
        extra = {"key": key, "headers": headers, "timestamp": timestamp_ms}
        offsets = send(self._producer, topic, partition, values, extra=extra)
        self.ledger.add(topic, partition, zip(offsets, values, strict=True))
        return offsets

    def begin(self, *, timeout_s: float = 600.0) -> KafkaTransaction:
        """Open a transaction with a new producer; the broker lets it stay open longer than a busy test needs."""
        transaction = KafkaTransaction(self, {**self._config, "transaction.timeout.ms": int(timeout_s * 1000)})
        self._open.append(transaction)
        return transaction

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move the log start to *before*."""
        for done in self.admin.delete_records([TopicPartition(topic, partition, before)]).values():
            done.result()
        self.ledger.forget_below(topic, partition, before)

    def acked(self, topic: str) -> Acked:
        return self.ledger.of(topic)

    def close(self) -> None:
        for transaction in self._open:
            transaction.close()
        for done in self.admin.delete_topics(sorted(self._topics)).values() if self._topics else ():
            done.exception()

    def _exists(self, topic: str) -> bool:
        try:
            self.log.describe(topic)
        except TopicMissing:
            return False
        return True

    def _await_partitions(self, topic: str, partitions: int) -> None:
        def there() -> bool:
            try:
                return len(self.log.watermarks(topic, range(partitions))) == partitions
            except (TopicMissing, PartitionsMissing, KafkaUnreachable):  # as before for a while, or without leaders
                return False

        wait_until(there, f"topic {topic} has {partitions} partitions")


class KafkaTransaction:
    """One transaction of one transactional producer."""

    def __init__(self, rig: KafkaRig, config: dict[str, Any]) -> None:
        self._rig = rig
        self._sent: dict[tuple[str, int], dict[int, bytes | None]] = {}
        self._producer = Producer({**config, "transactional.id": f"x_{uuid.uuid4().hex}", "linger.ms": 1})
        self._producer.init_transactions(DEADLINE_S)
        self._producer.begin_transaction()
        self._over = False

    def produce(self, topic: str, partition: int, values: Values) -> list[int]:
        offsets = send(self._producer, topic, partition, values, extra={})
        self._sent.setdefault((topic, partition), {}).update(zip(offsets, values, strict=True))
        return offsets

    def commit(self) -> None:
        """Commit, and wait until the markers are in the log: a broker answers before it has written them."""
        self._producer.commit_transaction(DEADLINE_S)
        self._over = True
        for (topic, partition), records in self._sent.items():
            self._rig.ledger.add(topic, partition, records.items())
        self._await_markers()

    def abort(self) -> None:
        """Abort, and wait until the markers are in the log."""
        self._producer.abort_transaction(DEADLINE_S)
        self._over = True
        self._await_markers()

    def close(self) -> None:
        if not self._over:
            self._over = True
            try:
                self._producer.abort_transaction(DEADLINE_S)
            except KafkaException as error:
                if not isinstance(error.args[0], KafkaError):
                    raise

    def _await_markers(self) -> None:
        for (topic, partition), records in self._sent.items():
            last = max(records, default=-1)
            wait_until(
                lambda t=topic, p=partition, o=last: self._rig.log.watermarks(t, [p])[p].end > o + 1,  # type: ignore[misc]
                f"the transaction in {topic} {partition} is over",
            )


class MemoryRig:
    """`LogRig` over the reference log."""

    def __init__(self) -> None:
        self.log: MemoryLog = MemoryLog()
        self.ledger = AckedLog()

    def create(self, partitions: int = 1, *, topic: str | None = None, config: dict[str, str] | None = None) -> str:
        name = topic or f"t_{uuid.uuid4().hex[:12]}"
        self.log.create_topic(name, partitions, policy=(config or {}).get("cleanup.policy", "delete"))
        self.ledger.start(name, range(partitions))
        return name

    def delete(self, topic: str) -> None:
        self.log.delete_topic(topic)

    def add_partitions(self, topic: str, total: int) -> None:
        self.log.add_partitions(topic, total)

    def produce(
        self,
        topic: str,
        partition: int,
        values: Values,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int = 0,
    ) -> list[int]:
        offsets = [
            self.log.append(topic, partition, value, key=key, headers=headers, timestamp_ms=timestamp_ms or None)
            for value in values
        ]
        self.ledger.add(topic, partition, zip(offsets, values, strict=True))
        return offsets

    def begin(self) -> MemoryRigTransaction:
        return MemoryRigTransaction(self, self.log.begin())

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self.log.delete_records(topic, partition, before)
        self.ledger.forget_below(topic, partition, before)

    def acked(self, topic: str) -> Acked:
        return self.ledger.of(topic)

    def close(self) -> None:
        """Nothing to give back."""


class MemoryRigTransaction:
    def __init__(self, rig: MemoryRig, transaction: MemoryTransaction) -> None:
        self._rig, self._transaction = rig, transaction
        self._sent: list[tuple[str, int, int, bytes | None]] = []

    def produce(self, topic: str, partition: int, values: Values) -> list[int]:
        offsets = [self._rig.log.append(topic, partition, v, transaction=self._transaction) for v in values]
        self._sent += [(topic, partition, offset, value) for offset, value in zip(offsets, values, strict=True)]
        return offsets

    def commit(self) -> None:
        self._transaction.commit()
        for topic, partition, offset, value in self._sent:
            self._rig.ledger.add(topic, partition, [(offset, value)])

    def abort(self) -> None:
        self._transaction.abort()


def send(
    producer: Producer,
    topic: str,
    partition: int,
    values: Values,
    *,
    extra: dict[str, Any],
    deadline_s: float = DEADLINE_S,
) -> list[int]:
    """Produce *values* in order and return their offsets. Raises: KafkaException for a record that was not taken."""
    offsets: list[int] = []
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error)
        else:
            offsets.append(message.offset() or 0)

    for value in values:
        while True:
            try:
                producer.produce(topic, value, partition=partition, on_delivery=delivered, **extra)
                break
            except BufferError:
                producer.poll(0.05)
    left = producer.flush(deadline_s)
    if failures:
        raise KafkaException(failures[0])
    assert left == 0, f"{left} of {len(values)} records were not acknowledged within {deadline_s} s"
    return offsets
