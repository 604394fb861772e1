"""The log port over Apache Kafka: topic identity, start and end of partitions, readers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from math import inf
from typing import Any

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in __all__
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    OffsetSpec,
)

from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.errors import KafkaFailed, PartitionsMissing, TopicForbidden, TopicMissing
from harness_pipelines.ports.source import STALE_S, Feed, OpenTransaction, Start, TopicIdentity, Watermark
from harness_pipelines.sources.kafka.client import KafkaClient, KafkaTimeouts, LeaderUnsettled, Trail, as_kafka_error
from harness_pipelines.sources.kafka.contact import OffsetAnswer, Offsets
from harness_pipelines.sources.kafka.held import opened_at
from harness_pipelines.sources.kafka.reader import KafkaReader
from harness_pipelines.sources.kafka.shared import Consumers
from harness_pipelines.spec.settings import Settings

LEADERS_KNOWN_S = 30.0  #: far below the age at which the client forgets them (`metadata.max.age.ms`)
LOOKERS = 8  #: topics that are asked about at a time, where each needs its own question
_WAIT_STEP_S = 0.05
_LOGIN_AFTER_S = 1.0  #: of silence before a client without a login asks whether that is why
_ASK_S = 1.0
_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})  #: Kafka's own
_EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # the client has no types here
_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]


@dataclass(slots=True)
class _Asker:
    """A client that questions are put to, and what is known about it.

    It reads the files of certificates once, and does not say that a login was taken which it was refused before.
    """

    admin: AdminClient
    trail: Trail
    led: dict[str, tuple[float, frozenset[int]]] = field(default_factory=dict)  #: topic -> when it had which leaders
    refused: bool = False  #: its login was: the next question is another client's


class KafkaLog:
    """`Log` over a Kafka cluster. Safe for use by several threads; each reader belongs to one thread.

    *bootstrap* is ``host:port[,host:port]``; *properties* are librdkafka's (TLS, SASL, sockets, fetch sizes).
    Connects on first use. Raises: KafkaPropertyRefused.
    """

    def __init__(
        self, bootstrap: str, properties: Mapping[str, str] | None = None, *, timeouts: KafkaTimeouts | None = None
    ) -> None:
        self._client = KafkaClient(bootstrap, properties, timeouts=timeouts or KafkaTimeouts())
        self._cluster_id: str | None = None
        self._lock = threading.Lock()
        self._newest = self._made()
        self._consumers = Consumers(self._client)

    @classmethod
    def from_settings(cls, settings: Settings, *, timeouts: KafkaTimeouts | None = None) -> KafkaLog:
        """Open the cluster that *settings* name; `Settings.kafka` must be filled in."""
        if settings.kafka is None:
            raise ValueError("Settings.kafka is not set: start the services or set HARNESS_KAFKA")
        return cls(settings.kafka, settings.kafka_properties, timeouts=timeouts)

    def _made(self) -> _Asker:
        trail = Trail()
        try:
            return _Asker(AdminClient(self._client.admin_config(trail)), trail)
        except KafkaException as error:
            # The cause could quote the value of a secret property.
            raise self._client.bad_config(error) from None

    def _asker(self) -> _Asker:
        """The client for the next question: a new one after a refused login. Raises: KafkaPropertyRefused."""
        with self._lock:
            if self._newest.refused:
                self._newest = self._made()
            return self._newest

    @property
    def bootstrap(self) -> str:
        return self._client.bootstrap

    def topics(self) -> list[str]:
        asker = self._asker()
        try:
            found = asker.admin.list_topics(timeout=self._client.timeouts.request_s)
        except KafkaException as error:
            raise self._named(asker, error, topic="any", doing="listing the topics") from error
        return sorted(set(found.topics) - _INTERNAL)

    def describe(self, topic: str) -> TopicIdentity:
        try:
            return self._identity(topic, cluster_id=None)()
        except LeaderUnsettled:  # asked again, the client goes by what it has learnt meanwhile
            return self._identity(topic, cluster_id=None)()

    def identities(self, topics: Collection[str]) -> dict[str, TopicIdentity | HarnessError]:
        if not topics:
            return {}
        asker, limit_s = self._asker(), self._client.timeouts.request_s
        asked = asker.admin.describe_topics(TopicCollection(list(topics)), request_timeout=limit_s)
        return {topic: self._described(asker, topic, asked[topic]) for topic in topics}

    def _described(self, asker: _Asker, topic: str, asked: Future[Any]) -> TopicIdentity | HarnessError:
        doing = f"describing topic {topic!r}"
        try:
            found = self._answer(asker, asked, topic=topic, doing=doing)
            self._cluster_id = self._cluster_id or self._cluster_of(asker, topic, doing=doing)
        except HarnessError as error:
            return error
        return TopicIdentity(
            cluster_id=self._cluster_id,
            topic=topic,
            topic_id=str(found.topic_id),
            partitions=tuple(sorted(partition.id for partition in found.partitions)),
        )

    def identity_async(self, topic: str) -> Callable[[], TopicIdentity]:
        # A topic's id is enough to tell two clusters apart until the next `describe`.
        asked = [self._identity(topic, cluster_id=self._cluster_id)]
        return lambda: asked.pop()() if asked else self.describe(topic)

    def _identity(self, topic: str, *, cluster_id: str | None) -> Callable[[], TopicIdentity]:
        limit_s = self._client.timeouts.request_s
        doing = f"describing topic {topic!r}"
        asker = self._asker()
        asked: Future[Any] = asker.admin.describe_topics(TopicCollection([topic]), request_timeout=limit_s)[topic]

        def wait() -> TopicIdentity:
            description = self._answer(asker, asked, topic=topic, doing=doing)
            self._cluster_id = cluster_id or self._cluster_of(asker, topic, doing=doing)
            return TopicIdentity(
                cluster_id=self._cluster_id,
                topic=topic,
                topic_id=str(description.topic_id),
                partitions=tuple(sorted(partition.id for partition in description.partitions)),
            )

        return wait

    def _cluster_of(self, asker: _Asker, topic: str, *, doing: str) -> str:
        """The id of the cluster. Asked about a topic that is there, which is answered while all brokers are fenced.

        `describe_cluster` then ends the process by an assertion of librdkafka (2.16), which takes an answer without
        brokers and topics for one to be repeated, and has no result to hand out.
        """
        try:
            return str(self._metadata(asker, topic, timeout_s=self._client.timeouts.request_s).cluster_id)
        except KafkaException as error:
            raise self._named(asker, error, topic=topic, doing=doing) from error

    def ask(self) -> None:
        """Ask the cluster for an answer, whatever it is. Raises: KafkaUnreachable, KafkaLoginFailed."""
        asker = self._asker()
        try:
            asker.admin.list_topics("harness-is-there", timeout=self._client.timeouts.request_s)
        except KafkaException as error:
            raise self._named(asker, error, topic="any", doing="asking whether it is there") from error

    def brokers(self) -> dict[int, tuple[str, int]]:
        """Host and port that each broker wants its clients to come to, by its id. Raises: as `ask`."""
        asker = self._asker()
        try:
            found = asker.admin.list_topics("harness-is-there", timeout=self._client.timeouts.request_s)
        except KafkaException as error:
            raise self._named(asker, error, topic="any", doing="asking for its brokers") from error
        return {number: (str(broker.host), int(broker.port)) for number, broker in found.brokers.items()}

    def operations(self, topic: str) -> frozenset[str]:
        """What the login may do with *topic*, as ``READ``; all that there is where the broker has no authorizer.

        Raises: as `describe`.
        """
        asker = self._asker()
        asked = asker.admin.describe_topics(
            TopicCollection([topic]),
            include_authorized_operations=True,
            request_timeout=self._client.timeouts.request_s,
        )
        found = self._answer(asker, asked[topic], topic=topic, doing=f"asking for the rights on topic {topic!r}")
        return frozenset(operation.name for operation in found.authorized_operations or ())

    def _metadata(self, asker: _Asker, topic: str, *, timeout_s: float) -> ClusterMetadata:
        """Ask for the leaders of *topic*, which the client then keeps. Raises: KafkaException."""
        found = asker.admin.list_topics(topic, timeout=timeout_s)
        partitions = found.topics[topic].partitions.items()
        asker.led[topic] = (time.monotonic(), frozenset(p for p, about in partitions if about.leader >= 0))
        return found

    def _are_led(self, asker: _Asker, topic: str, partitions: Collection[int]) -> bool:
        """The client *asker* knows the leaders of *partitions*.

        If it does not when it is asked for offsets, librdkafka (2.16) sets out to learn them, and ends the process by a
        segmentation fault when an answer to anything else comes in between two of its steps:
        `rd_kafka_topic_partition_list_query_leaders_async` continues with what that answer has ended. It takes a busy
        machine: of some hundred workers one died so as it started. So nothing is asked of it before this holds.
        """
        asked_at, led = asker.led.get(topic, (-inf, frozenset()))
        return time.monotonic() - asked_at < LEADERS_KNOWN_S and led.issuperset(partitions)

    def watermarks(self, topic: str, partitions: Iterable[int]) -> dict[int, Watermark]:
        wanted = sorted(set(partitions))
        low, end = self._offsets(topic, wanted, _EARLIEST, _LATEST)
        return {partition: Watermark(low[partition], end[partition]) for partition in wanted}

    def watermarks_of(self, wanted: Mapping[str, Collection[int]]) -> dict[str, dict[int, Watermark] | HarnessError]:
        for topic in islice(wanted, 1):  # if this one gets no answer, the others are not asked for
            with suppress(TopicMissing, TopicForbidden):
                self.describe(topic)
        asker = self._asker()
        self._learn_leaders(asker, [topic for topic, parts in wanted.items() if not self._are_led(asker, topic, parts)])
        with ThreadPoolExecutor(LOOKERS) as pool:
            led = {topic: parts for topic, parts in wanted.items() if self._are_led(asker, topic, parts)}
            low, end = (self._ask_all(asker, led, spec) for spec in (_EARLIEST, _LATEST))
            found = {topic: self._marks(asker, topic, parts, (low, end)) for topic, parts in led.items()}
            others = [topic for topic in wanted if found.get(topic) is None]
            asked = pool.map(lambda topic: self._asked_alone(topic, wanted[topic]), others)
            alone = dict(zip(others, asked, strict=True))
        return {topic: alone[topic] if (marks := found.get(topic)) is None else marks for topic in wanted}

    def _learn_leaders(self, asker: _Asker, topics: Collection[str]) -> None:
        """Ask for the leaders of all *topics* by one request. The client keeps them, as those of `_metadata`."""
        if not topics:
            return
        asked_at, limit_s = time.monotonic(), self._client.timeouts.request_s
        asked = asker.admin.describe_topics(TopicCollection(list(topics)), request_timeout=limit_s)
        for topic, answer in asked.items():
            with suppress(HarnessError):  # a request for it alone names the error
                found = self._answer(asker, answer, topic=topic, doing=f"describing topic {topic!r}")
                led = (p.id for p in found.partitions if p.leader is not None and p.leader.id >= 0)
                asker.led[topic] = (asked_at, frozenset(led))

    def _marks(
        self, asker: _Asker, topic: str, partitions: Collection[int], answers: tuple[Offsets, Offsets]
    ) -> dict[int, Watermark] | None:
        """The answers for many topics from one request; None for a topic that has to be asked for alone."""
        doing = f"reading the offsets of topic {topic!r}"
        places = {p: TopicPartition(topic, p) for p in sorted(partitions)}
        try:
            return {
                p: Watermark(*(self._offset(asker, answer[at], topic, doing) for answer in answers))
                for p, at in places.items()
            }
        except HarnessError:
            return None

    def _asked_alone(self, topic: str, partitions: Collection[int]) -> dict[int, Watermark] | HarnessError:
        try:
            return self.watermarks(topic, partitions)
        except HarnessError as error:
            return error

    def unstable(self, wanted: Mapping[str, Collection[int]]) -> set[str]:
        asker = self._asker()
        led = {topic: parts for topic, parts in wanted.items() if self._are_led(asker, topic, parts)}
        # The stable ends are asked for last, as in `held`.
        newest = self._ends(asker, led, IsolationLevel.READ_UNCOMMITTED)
        stable = self._ends(asker, led, IsolationLevel.READ_COMMITTED)
        return {topic for topic in wanted if stable.get(topic) is None or stable[topic] != newest[topic]}

    def _ends(
        self, asker: _Asker, led: Mapping[str, Collection[int]], isolation: IsolationLevel
    ) -> dict[str, dict[int, int] | None]:
        """The ends of each topic; None where one did not answer."""
        answers = self._ask_all(asker, led, _LATEST, isolation=isolation)
        found: dict[str, dict[int, int] | None] = {topic: {} for topic in led}
        for at, answer in answers.items():
            with suppress(HarnessError):
                doing = f"reading the offsets of topic {at.topic!r}"
                if (ends := found[at.topic]) is not None:
                    found[at.topic] = None
                    ends[at.partition] = self._offset(asker, answer, at.topic, doing)
                    found[at.topic] = ends
        return found

    def held(self, topic: str, partitions: Iterable[int]) -> dict[int, OpenTransaction]:
        wanted = sorted(set(partitions))
        # The stable end is asked last: what it has not come to by then lies behind a transaction that is open.
        [newest] = self._offsets(topic, wanted, _LATEST, isolation=IsolationLevel.READ_UNCOMMITTED)
        [end] = self._offsets(topic, wanted, _LATEST)
        firsts = {p: end[p] for p in wanted if end[p] < newest[p]}
        since = opened_at(self._client, topic, firsts) if firsts else {}
        return {p: OpenTransaction(end=at, newest=newest[p], since=since.get(p)) for p, at in firsts.items()}

    def start_offsets(self, topic: str, partitions: Iterable[int], start: Start) -> dict[int, int]:
        wanted = sorted(set(partitions))
        if start == "earliest":
            return {partition: mark.low for partition, mark in self.watermarks(topic, wanted).items()}
        if not isinstance(start, datetime):
            return self._offsets(topic, wanted, _LATEST)[0]
        if start.tzinfo is None:
            raise ValueError("a start time needs a time zone")
        at_ms = -int(-start.timestamp() * 1000 // 1)  # rounded up: a record before the start is never taken
        first, end = self._offsets(topic, wanted, OffsetSpec.for_timestamp(at_ms), _LATEST)
        return {p: min(first[p], end[p]) if first[p] >= 0 else end[p] for p in wanted}

    def cleanup_policy(self, topic: str) -> str | None:
        asker = self._asker()
        asked = asker.admin.describe_configs(
            [ConfigResource(ConfigResource.Type.TOPIC, topic)], request_timeout=self._client.timeouts.request_s
        )
        [answer] = asked.values()
        try:
            found = self._answer(asker, answer, topic=topic, doing=f"reading the settings of topic {topic!r}")
        except (TopicForbidden, KafkaFailed):  # it needs a separate right, which services like Kafka may lack
            return None
        entry = found.get("cleanup.policy")
        return None if entry is None else str(entry.value)

    def reader(
        self,
        topic: str,
        positions: Mapping[int, int],
        *,
        identity: TopicIdentity | None = None,
        feed: Feed | None = None,
    ) -> KafkaReader:
        known = identity or self.describe(topic)
        if feed is None:
            return KafkaReader(self._client, self, known, positions)
        lane = self._consumers.lane(feed.owner, topic, feed.wake)
        try:
            return KafkaReader(self._client, self, known, positions, lane=lane)
        except BaseException:
            lane[0].close()
            raise

    def ask_ends(self, topic: str, partitions: Iterable[int]) -> Offsets:
        """Ask the leaders of *partitions* for their last stable offsets; the answers are futures."""
        asker, wanted = self._asker(), list(partitions)
        if not self._are_led(asker, topic, wanted):
            try:
                failure = self._metadata(asker, topic, timeout_s=_ASK_S).topics[topic].error
            except KafkaException as error:
                failure = as_kafka_error(error)
            if failure is not None:
                return {TopicPartition(topic, partition): _failed(failure) for partition in wanted}
        return self._ask_all(asker, {topic: wanted}, _LATEST) if self._are_led(asker, topic, wanted) else {}

    def _ask_all(
        self,
        asker: _Asker,
        wanted: Mapping[str, Collection[int]],
        spec: Any,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> Offsets:
        question = {TopicPartition(topic, partition): spec for topic in wanted for partition in wanted[topic]}
        if not question:
            return {}
        return asker.admin.list_offsets(
            question,
            isolation_level=isolation,
            request_timeout=self._client.timeouts.request_s,
        )

    def close(self) -> None:
        """End the consumers that readers share; the threads of other clients end with their objects."""
        self._consumers.close()

    def _offsets(
        self,
        topic: str,
        partitions: list[int],
        *specs: Any,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> list[dict[int, int]]:
        """Return {partition: offset} for each of *specs*; all questions are on their way at once."""
        doing = f"reading the offsets of topic {topic!r}"
        began = time.monotonic()
        deadline = began + self._client.timeouts.request_s
        while True:
            try:
                asker = self._asker()
                if not self._are_led(asker, topic, partitions):
                    self.describe(topic)  # not `_metadata`: it names a refused login at once
                if not self._are_led(asker, topic, partitions):
                    raise self._client.unsettled(doing=doing)
                asked = [self._ask_all(asker, {topic: partitions}, spec, isolation=isolation) for spec in specs]
                return [
                    {where.partition: self._offset(asker, answer, topic, doing) for where, answer in one.items()}
                    for one in asked
                ]
            except (TopicMissing, LeaderUnsettled) as error:
                found = self.describe(topic)
                is_stale = not set(partitions) <= set(found.partitions)
                if is_stale and time.monotonic() >= min(deadline, began + STALE_S):
                    raise PartitionsMissing(topic, expected=partitions, found=found.partitions) from None
                # It is there: new, created again, or between two leaders, and the client has not noticed yet; or the
                # partitions were added just now, and this broker has not heard of it.
                if time.monotonic() > deadline:
                    raise self._client.unreachable(doing=doing, detail="a partition has no leader") from error
                time.sleep(_WAIT_STEP_S)

    def _offset(self, asker: _Asker, answer: Future[OffsetAnswer], topic: str, doing: str) -> int:
        offset: int = self._answer(asker, answer, topic=topic, doing=doing).offset
        if offset == OFFSET_INVALID:
            raise self._client.unreachable(doing=doing, detail=asker.trail.last)
        return offset

    def _answer(self, asker: _Asker, answer: Future[Any], *, topic: str, doing: str) -> Any:
        """Wait for *answer*; a refused login ends the wait at once, since the client would try until the limit."""
        began, has_login = time.monotonic(), False
        while True:
            try:
                value = answer.result(timeout=_WAIT_STEP_S)
            except TimeoutError:
                asker.admin.poll(0)  # runs the error callback
                if asker.trail.login_failed:
                    raise self._refused(asker) from None
                waited_s = time.monotonic() - began
                if waited_s > _LOGIN_AFTER_S and not has_login:
                    if (login := self._client.lacks_login()) is not None:
                        raise login from None
                    has_login = True
                if waited_s > self._client.timeouts.request_s + 1.0:
                    raise self._client.unreachable(doing=doing, detail=asker.trail.last, waited_s=waited_s) from None
            except KafkaException as error:
                raise self._named(asker, error, topic=topic, doing=doing) from error
            else:
                asker.trail.clear()
                return value

    def _refused(self, asker: _Asker) -> HarnessError:
        """The name of a refused login; *asker* is asked no more."""
        asker.refused = True
        return self._client.login_failed(asker.trail.login_failed)

    def _named(self, asker: _Asker, error: KafkaException, *, topic: str, doing: str) -> HarnessError:
        """What the client said, by the harness's name."""
        asker.admin.poll(0)
        if asker.trail.login_failed:
            return self._refused(asker)
        return self._client.translate(as_kafka_error(error), topic=topic, doing=doing)


def _failed(failure: KafkaError) -> Future[OffsetAnswer]:
    made: Future[OffsetAnswer] = Future()
    made.set_exception(KafkaException(failure))
    return made
