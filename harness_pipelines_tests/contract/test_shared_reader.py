"""Readers that share a consumer: each gets its own records, all of them, once, and none waits for another one."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from harness_pipelines.ports.errors import KafkaFailed
from harness_pipelines.ports.source import Feed, LogReader
from harness_pipelines.services import Endpoints
from harness_pipelines.sources.kafka import shared
from harness_pipelines.sources.kafka.reader import KafkaReader
from harness_pipelines_tests.producer import KafkaRig, wait_until

Open = Callable[..., LogReader]
DEADLINE_S = 60.0


@pytest.fixture
def kafka(endpoints: Endpoints) -> Iterator[KafkaRig]:
    assert endpoints.kafka is not None
    rig = KafkaRig(endpoints.kafka, properties=endpoints.kafka_login)
    yield rig
    rig.log.close()
    rig.close()


@pytest.fixture
def opened(kafka: KafkaRig) -> Iterator[Open]:
    """Opens readers that share a consumer."""
    with ExitStack() as until:

        def open_(topic: str, positions: dict[int, int], *, owner: str = "me", wake: threading.Event | None = None):
            feed = Feed(owner, (wake or threading.Event()).set)
            return until.enter_context(kafka.log.reader(topic, positions, feed=feed))

        yield open_


def values(count: int, prefix: str = "v") -> list[bytes | None]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def read_to(reader: LogReader, ends: dict[int, int]) -> dict[int, list[int]]:
    """The offsets that *reader* gives until it is at *ends*."""
    found: dict[int, list[int]] = {}

    def there() -> bool:
        for batch in reader.poll(500, 0.0):
            found.setdefault(batch.partition, []).extend(batch.offsets.tolist())
        return all(reader.positions[p] >= end for p, end in ends.items())

    wait_until(there, f"the reader is at {ends}", deadline_s=DEADLINE_S)
    return found


def consumers() -> int:
    return sum(thread.name == "kafka" for thread in threading.enumerate())


def test_each_reader_gets_its_own_topic_by_one_consumer(kafka: KafkaRig, opened: Open):
    topics = [kafka.create(2) for _ in range(4)]
    before = consumers()
    readers = {topic: opened(topic, {0: 0, 1: 0}) for topic in topics}
    for number, topic in enumerate(topics):
        for partition in (0, 1):
            kafka.produce(topic, partition, values(10 + number))
    for number, topic in enumerate(topics):
        wanted = list(range(10 + number))
        assert read_to(readers[topic], {0: 10 + number, 1: 10 + number}) == {0: wanted, 1: wanted}
    assert consumers() == before + 1
    for reader in readers.values():
        reader.close()
    wait_until(lambda: consumers() == before, "without a reader there is no consumer")


def test_a_record_wakes_its_reader(kafka: KafkaRig, opened: Open):
    topic, woken = kafka.create(1), threading.Event()
    reader = opened(topic, {0: 0}, wake=woken)
    assert read_to(reader, {0: 0}) == {}
    wait_until(lambda: reader.poll(10, 0.0) == [] and not reader.positions[0], "it is at the end")
    woken.clear()
    kafka.produce(topic, 0, values(1))
    assert woken.wait(DEADLINE_S)
    assert read_to(reader, {0: 1}) == {0: [0]}


def test_two_owners_of_readers_of_a_topic_get_all_of_it(kafka: KafkaRig, opened: Open):
    topic = kafka.create(1)
    readers = [opened(topic, {0: 0}, owner=owner) for owner in ("one", "two")]
    kafka.produce(topic, 0, values(50))
    for reader in readers:
        assert read_to(reader, {0: 50}) == {0: list(range(50))}


def test_a_reader_that_does_not_read_holds_up_no_other_one(
    kafka: KafkaRig, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shared, "LANE_BYTES_MAX", 10_000)
    slow_topic, topic = kafka.create(1), kafka.create(1)
    slow, quick = opened(slow_topic, {0: 0}), opened(topic, {0: 0})
    big: list[bytes | None] = [b"x" * 1000] * 500
    kafka.produce(slow_topic, 0, big)
    for number in range(3):
        kafka.produce(topic, 0, values(100))
        wanted = list(range(100 * number, 100 * (number + 1)))
        assert read_to(quick, {0: 100 * (number + 1)}) == {0: wanted}
    assert read_to(slow, {0: 500}) == {0: list(range(500))}


def test_a_reader_whose_lane_is_full_gets_what_it_is_assigned_again(
    kafka: KafkaRig, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    """The lane's partitions are paused by then, and the client keeps that of a partition that is taken away."""
    monkeypatch.setattr(shared, "LANE_BYTES_MAX", 10_000)
    topic = kafka.create(1)
    kafka.produce(topic, 0, [b"x" * 1000] * 100)
    reader = opened(topic, {0: 0})
    assert isinstance(reader, KafkaReader)
    lane = reader._consumer
    assert isinstance(lane, shared.Lane)
    wait_until(lambda: (topic, 0) in lane._of._paused, "the lane is full", deadline_s=DEADLINE_S)
    reader.assign({})
    reader.assign({0: 50})
    assert read_to(reader, {0: 100}) == {0: list(range(50, 100))}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_a_reader_that_goes_back_and_forth_skips_nothing_and_repeats_nothing(kafka: KafkaRig, opened: Open, seed: int):
    """Records come meanwhile, so the consumer's thread holds some of them just when a partition is assigned again."""
    dice, topic = random.Random(seed), kafka.create(2)
    reader = opened(topic, {0: 0, 1: 0})
    total = 0
    for _ in range(25):
        kafka.produce(topic, 0, values(20))
        kafka.produce(topic, 1, values(20))
        total += 20
        start = dice.randrange(total)
        if dice.random() < 0.5:
            reader.seek(0, start)
        else:
            reader.assign({0: start, 1: reader.positions[1]})
        first = reader.positions[1]
        found = read_to(reader, {0: total, 1: total})
        assert found[0] == list(range(start, total))
        assert found.get(1, []) == list(range(first, total))


def test_readers_of_a_consumer_that_broke_say_so_and_begin_with_another_one(
    kafka: KafkaRig, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    topic, woken = kafka.create(1), threading.Event()
    kafka.produce(topic, 0, values(5))
    real = shared.SharedConsumer._hand_out

    def hand_out(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(shared.SharedConsumer, "_hand_out", hand_out)
    reader = opened(topic, {0: 0}, wake=woken)
    assert woken.wait(DEADLINE_S)
    with pytest.raises(KafkaFailed, match="ZeroDivisionError: a defect"):
        reader.poll(10, 0.0)
    monkeypatch.setattr(shared.SharedConsumer, "_hand_out", real)
    reader.close()
    assert read_to(opened(topic, {0: 0}), {0: 5}) == {0: list(range(5))}
