"""One consumer for the readers of many topics, and the thread that hands out what it fetches.

A reader gets a lane: it looks like a consumer of the client library that has this reader's partitions alone. What was
fetched for a lane waits there, and its reader is woken. A lane that is not emptied has its own partitions paused, so a
slow reader holds up no other one.

The client library drops what it had fetched when a partition is assigned again. The thread may hold a message from
before that: the one that it waited for. It is dropped too, so no message is skipped or repeated.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from harness_pipelines.ports.errors import KafkaFailed
from harness_pipelines.sources.kafka.client import KafkaClient, Trail

log = structlog.get_logger(__name__)
SLICE_RECORDS = 1024
WAIT_S = 0.05  #: how long the thread waits for a message, and a reader for its first one
REST_S = 1.0  #: and how long while nobody reads; a reader wakes it
LANE_BYTES_MAX = 8 * 2**20  #: what waits in one lane before it is paused; older messages fall out of the caches
ALL_BYTES_MAX = 256 * 2**20  #: what waits in all lanes, before each is paused that has its share
SHARE_BYTES = 2**20
CLOSE_S = 5.0
Place = tuple[str, int]  #: topic and partition


class Lane:
    """What a reader uses as its consumer. Not safe for use by two threads at once."""

    def __init__(self, of: SharedConsumer, owner: str, topic: str, wake: Callable[[], None]) -> None:
        self._of, self.owner, self.topic, self._wake = of, owner, topic, wake
        self._fetched: deque[list[Message]] = deque()  # as it was handed out, each list of one partition
        self._changed = threading.Condition()
        self.bytes = 0  #: that wait
        self.places: dict[Place, int] = {}  #: the offset that is expected next
        self.kept_back: set[Place] = set()  #: paused by the reader
        self.is_full = False

    def consume(self, num_messages: int, _timeout: float) -> list[Message]:
        """What has been fetched, up to *num_messages*. Raises: KafkaFailed, where nothing more will be."""
        if self._of.failure is not None:
            raise self._of.failure
        taken: list[Message] = []
        with self._changed:
            while self._fetched and len(taken) < num_messages:
                part = self._fetched.popleft()
                if (left := num_messages - len(taken)) < len(part):
                    self._fetched.appendleft(part[left:])
                    part = part[:left]
                taken = taken + part if taken else part
            self.bytes -= sum(map(len, taken))
        self._of.taken(self)
        return taken

    def poll(self, timeout: float) -> Message | None:
        """The next message, or None after *timeout* seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._fetched, timeout)
        return next(iter(self.consume(1, 0)), None)

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._of.assign(self, partitions)

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        self._of.unassign(self, partitions)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self.kept_back |= {(at.topic, at.partition) for at in partitions}
        self._of.doubt(self)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self.kept_back -= {(at.topic, at.partition) for at in partitions}
        self._of.doubt(self)

    def keeps_back(self, place: Place) -> bool:
        """Nothing more is to be fetched of *place* for now."""
        return self.is_full or place in self.kept_back

    def close(self) -> None:
        self._of.leave(self)

    def put(self, messages: list[Message]) -> None:
        """Add what was fetched of one partition, and wake the reader."""
        with self._changed:
            if messages:
                self._fetched.append(messages)
            self.bytes += sum(map(len, messages))
            self._changed.notify_all()
        self._wake()

    def forget(self, places: set[Place]) -> None:
        """Drop what was fetched for *places*."""
        with self._changed:
            self._fetched = deque(part for part in self._fetched if _place(part[0]) not in places)
            self.bytes = sum(sum(map(len, part)) for part in self._fetched)


class SharedConsumer:
    """A consumer, its thread and its lanes. Thread-safe.

    The thread alone calls the client, which lets one call in at a time: who called it beside would wait until a message
    came. Readers leave what they want behind; the thread settles all of it between two waits.
    """

    def __init__(self, client: KafkaClient) -> None:
        """Raises: KafkaPropertyRefused."""
        self.trail = Trail()
        try:
            self._consumer = Consumer(client.consumer_config(self.trail))
        except KafkaException as error:
            raise client.bad_config(error) from None
        self._asked = threading.Condition()  # guards all that follows, but for the client
        self._lanes: set[Lane] = set()
        self._readers: dict[Place, Lane] = {}
        self._fetching: set[Place] = set()  # what the client has been given
        self._gone: set[Place] = set()  # of these, what it is to drop, with all that it fetched
        self._new: set[Place] = set()  # to fetch from the offset that the lane expects
        self._paused: set[Place] = set()  # as the client has it
        self._doubtful: set[Place] = set()  # to pause or to resume, perhaps
        self._ended = threading.Event()
        self._client = client
        self.failure: KafkaFailed | None = None  #: why it fetches nothing more
        self._thread = threading.Thread(target=self._run, name="kafka", daemon=True)

    @property
    def is_usable(self) -> bool:
        """A reader may begin with it: its login was not refused, and it was not closed."""
        return not (self.failure or self.trail.login_failed or self._ended.is_set())

    def lane(self, owner: str, topic: str, wake: Callable[[], None]) -> Lane | None:
        """A lane for one more reader; *wake* is called whenever something was fetched for it.

        None: another owner reads *topic* by this consumer, which fetches a partition once, or it is over.
        """
        made = Lane(self, owner, topic, wake)
        with self._asked:
            if not self.is_usable or any(one.topic == topic and one.owner != owner for one in self._lanes):
                return None
            self._lanes.add(made)
            if self._thread.ident is None:
                self._thread.start()
        return made

    def leave(self, lane: Lane) -> None:
        """Take the partitions of *lane* away; without any lane the consumer is closed. It waits for neither."""
        with self._asked:
            self._lanes.discard(lane)
            self._drop(lane, list(lane.places))
            if not self._lanes:
                self._ended.set()
            self._asked.notify()

    @property
    def is_alive(self) -> bool:
        """Its thread has not ended."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End the thread, and close the consumer once it is idle."""
        with self._asked:
            self._ended.set()
            self._asked.notify()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    def assign(self, lane: Lane, partitions: Sequence[TopicPartition]) -> None:
        with self._asked:
            for at in partitions:
                place = (at.topic, at.partition)
                self._readers[place], lane.places[place] = lane, at.offset
                self._gone |= {place} & self._fetching
                self._new.add(place)
            self._asked.notify()

    def unassign(self, lane: Lane, partitions: Sequence[TopicPartition]) -> None:
        with self._asked:
            self._drop(lane, [(at.topic, at.partition) for at in partitions])

    def doubt(self, lane: Lane) -> None:
        """What *lane* has paused is not what it had."""
        with self._asked:
            self._doubtful |= lane.places.keys()

    def taken(self, lane: Lane) -> None:
        """A reader took some of what waited in *lane*."""
        if lane.is_full and lane.bytes < LANE_BYTES_MAX // 2:
            with self._asked:
                self._open_again(lane)

    def _open_again(self, lane: Lane) -> None:
        """Let more be fetched for *lane* if it was full and has room again. The lock is held."""
        has_room = lane.bytes < SHARE_BYTES // 2 or self._waiting() < ALL_BYTES_MAX // 2
        if lane.is_full and lane.bytes < LANE_BYTES_MAX // 2 and has_room:
            lane.is_full = False
            self._doubtful |= lane.places.keys()

    def _drop(self, lane: Lane, places: Sequence[Place]) -> None:
        """The lock is held."""
        for place in places:
            lane.places.pop(place, None)
            self._readers.pop(place, None)
        self._new.difference_update(places)
        self._gone |= self._fetching.intersection(places)
        lane.forget(set(places))
        self._open_again(lane)

    # -- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._fetch()
        except Exception as error:  # whatever it is, the readers have to know, or they would wait for ever
            log.exception("kafka.consumer_broken", error=str(error))
            detail = self._client.clean(f"{type(error).__name__}: {error}")
            self.failure = KafkaFailed(self._client.bootstrap, doing="fetching for all topics", detail=detail)
            with self._asked:
                lanes = list(self._lanes)
            for lane in lanes:
                lane.put([])
        finally:
            self._consumer.close()

    def _fetch(self) -> None:
        """Hand out what is there, or wait for a message for a moment."""
        with self._asked:
            self._settle()
            if messages := self._consumer.consume(SLICE_RECORDS, 0):
                self._hand_out(messages)
                return
            if not self._fetching:
                self._asked.wait_for(lambda: self._new or self._ended.is_set(), REST_S)
                return
        if (message := self._consumer.poll(WAIT_S)) is not None:
            with self._asked:
                place = _place(message)
                if place not in self._gone and place not in self._new:  # else it is of before
                    self._hand_out([message])

    def _settle(self) -> None:
        """Let the client fetch what the readers want by now. The lock is held.

        The client drops what it fetched of a partition that is taken away, so what it gives after this is wanted.
        """
        if self._gone:
            if paused := self._gone & self._paused:  # or they would stay so when they are assigned again
                self._consumer.resume([TopicPartition(*place) for place in paused])
            self._consumer.incremental_unassign([TopicPartition(*place) for place in self._gone])
            self._fetching -= self._gone
            self._paused -= self._gone
            self._gone = set()
        if self._new:
            wanted = [TopicPartition(*place, self._readers[place].places[place]) for place in self._new]
            self._consumer.incremental_assign(wanted)
            self._fetching |= self._new
            self._doubtful |= self._new
            self._new = set()
        if self._doubtful:
            asked, self._doubtful = self._doubtful & self._readers.keys(), set()
            paused = {place for place in asked if self._readers[place].keeps_back(place)}
            if pause := paused - self._paused:
                self._consumer.pause([TopicPartition(*place) for place in pause])
            if resume := (asked - paused) & self._paused:
                self._consumer.resume([TopicPartition(*place) for place in resume])
            self._paused = (self._paused | paused) - resume

    def _hand_out(self, messages: list[Message]) -> None:
        """Put *messages* into their lanes, and pause those that are full. The lock is held."""
        for part in _by_place(messages):
            place = _place(part[0])
            lane = self._readers.get(place)
            if lane is not None:
                lane.places[place] = _next_offset(part, lane.places[place])
                lane.put(part)
                self._keep_back(lane)
            elif place[1] < 0 or not place[0]:  # an error of no partition
                for each in list(self._lanes):
                    each.put(part)

    def _waiting(self) -> int:
        return sum(lane.bytes for lane in self._lanes)

    def _keep_back(self, lane: Lane) -> None:
        is_full = lane.bytes >= LANE_BYTES_MAX
        if not is_full and lane.bytes >= SHARE_BYTES:
            is_full = self._waiting() >= ALL_BYTES_MAX
        if is_full and not lane.is_full:
            lane.is_full = True
            self._doubtful |= lane.places.keys()


class Consumers:
    """The consumers of one cluster: one, or as many as a topic has readers. Thread-safe."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._made: list[SharedConsumer] = []

    def lane(self, owner: str, topic: str, wake: Callable[[], None]) -> tuple[Lane, Trail]:
        """A lane by which *owner* may read *topic*, and the trail of its consumer. Raises: KafkaPropertyRefused."""
        with self._lock:
            self._made = [one for one in self._made if one.is_usable or one.is_alive]
            for one in self._made:
                if (lane := one.lane(owner, topic, wake)) is not None:
                    return lane, one.trail
            made = SharedConsumer(self._client)
            self._made.append(made)
            lane = made.lane(owner, topic, wake)
            assert lane is not None, "nobody else has it yet"
            return lane, made.trail

    def close(self) -> None:
        with self._lock:
            made, self._made = self._made, []
        for one in made:
            one.close()


def _place(message: Message) -> Place:
    topic, partition = message.topic(), message.partition()
    return topic or "", -1 if partition is None else partition


def _by_place(messages: list[Message]) -> Iterator[list[Message]]:
    """*messages* in their order, those of one place that follow each other together. This is the hot path."""
    topics, partitions = list(map(Message.topic, messages)), list(map(Message.partition, messages))
    if topics.count(topics[0]) == partitions.count(partitions[0]) == len(messages):
        yield messages
        return
    first = 0
    for _, group in groupby(zip(topics, partitions, strict=True)):
        end = first + sum(1 for _ in group)
        yield messages[first:end]
        first = end


def _next_offset(part: list[Message], before: int) -> int:
    """The offset behind *part*, where *before* was expected."""
    for message in reversed(part):
        error, offset = message.error(), message.offset()
        if offset is not None and offset >= 0:
            if error is None:
                return offset + 1
            if error.code() == KafkaError._PARTITION_EOF:
                return offset
    return before
