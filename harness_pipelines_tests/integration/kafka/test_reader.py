"""What only a real broker can show: large records, transactions in flight, interrupts, and how soon a record comes."""

from __future__ import annotations

import _thread
import gc
import random
import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from harness_pipelines.ports.errors import KafkaFailed, KafkaUnreachable
from harness_pipelines.sources.kafka.client import KafkaClient, KafkaTimeouts, Trail
from harness_pipelines.sources.kafka.contact import Contact
from harness_pipelines.sources.kafka.log import KafkaLog
from harness_pipelines.sources.kafka.reader import KafkaReader
from harness_pipelines_tests.producer import DEADLINE_S, Acked, KafkaRig, wait_until
from harness_pipelines_tests.promise import Load, within

TEN_MB = 10_000_000


def drain(reader, topic_ends: dict[int, int], *, seed: int) -> Acked:
    """Read to the ends, at times going back over a batch as a rolled-back commit does."""
    dice = random.Random(seed)
    found: Acked = {partition: {} for partition in topic_ends}

    def there() -> bool:
        for batch in reader.poll(dice.choice([1, 50, 5000]), 0.2):
            if dice.random() < 0.05:
                reader.seek(batch.partition, batch.low)
                continue
            values = dict(zip(batch.offsets.tolist(), batch.values, strict=True))
            assert not values.keys() & found[batch.partition].keys()
            found[batch.partition].update(values)
        return all(reader.positions[partition] >= end for partition, end in topic_ends.items())

    wait_until(there, f"the reader is at {topic_ends}")
    return found


def test_a_record_of_ten_megabytes_comes_whole_between_small_ones(rig: KafkaRig):
    topic = rig.create(1, config={"max.message.bytes": str(16 * 1024 * 1024)})
    values = [b"small", random.Random(1).randbytes(TEN_MB), b"small too"]
    rig.produce(topic, 0, values)
    got: list[bytes | None] = []
    with rig.log.reader(topic, {0: 0}) as reader:

        def there() -> bool:
            got.extend(value for batch in reader.poll(100, 0.5) for value in batch.values)
            return len(got) >= 3

        wait_until(there, "all came")
    assert got == values


@pytest.mark.long
def test_committed_aborted_and_plain_records_written_while_they_are_read_come_exactly_once(rig: KafkaRig):
    topic = rig.create(2)
    seed = random.SystemRandom().randrange(1_000_000)
    dice = random.Random(seed)

    def write() -> None:
        for step in range(20):
            partition = dice.randrange(2)
            values: list[bytes | None] = [f"{step}-{i}".encode() for i in range(dice.randrange(1, 200))]
            kind = dice.choice(["plain", "commit", "abort"])
            if kind == "plain":
                rig.produce(topic, partition, values)
                continue
            transaction = rig.begin()
            transaction.produce(topic, partition, values)
            (transaction.commit if kind == "commit" else transaction.abort)()

    writer = threading.Thread(target=write)
    with rig.log.reader(topic, {0: 0, 1: 0}) as reader:
        writer.start()
        part = drain(reader, {0: 1, 1: 0}, seed=seed)
        writer.join()
        marks = rig.log.watermarks(topic, [0, 1])
        rest = drain(reader, {p: mark.end for p, mark in marks.items()}, seed=seed + 1)
    for partition in (0, 1):
        assert {**part[partition], **rest[partition]} == rig.acked(topic)[partition], f"seed {seed}"


def test_an_interrupt_ends_a_waiting_poll_at_once_and_the_reader_goes_on(rig: KafkaRig):
    topic = rig.create(1)
    with rig.log.reader(topic, {0: 0}) as reader:
        with within(5, "a poll that is interrupted"), pytest.raises(KeyboardInterrupt):
            threading.Timer(0.2, _thread.interrupt_main).start()
            reader.poll(100, DEADLINE_S)
        rig.produce(topic, 0, [b"after"])
        [batch] = reader.poll(100, DEADLINE_S)
    assert batch.values == [b"after"]


def test_a_lone_record_is_returned_within_milliseconds_of_its_acknowledgement(rig: KafkaRig):
    topic = rig.create(2)
    waits_ms: list[float] = []
    with rig.log.reader(topic, {0: 0, 1: 0}) as reader:
        reader.poll(1, 0.2)
        load = Load()
        for step in range(30):
            load.note()
            acked_at: list[float] = []

            def produce(partition: int = step % 2, at: list[float] = acked_at) -> None:
                rig.produce(topic, partition, [b"lone"])
                at.append(time.perf_counter())

            writer = threading.Thread(target=produce)
            writer.start()
            batches = reader.poll(1000, DEADLINE_S)
            returned_at = time.perf_counter()
            writer.join()
            assert [len(batch) for batch in batches] == [1]
            waits_ms.append((returned_at - acked_at[0]) * 1000)
    assert float(np.median(waits_ms)) < 10.0 * load.stretch  # about 1 on an idle machine


class ScriptedConsumer:
    """Gives one slice of messages, then nothing; notes where partitions are started."""

    def __init__(self, messages: list[Message]) -> None:
        self.slices = [messages]
        self.started: list[tuple[int, int]] = []

    def consume(self, _count, _timeout):
        return self.slices.pop() if self.slices else []

    def poll(self, _timeout):
        return None

    def incremental_unassign(self, partitions):
        assert partitions

    def incremental_assign(self, partitions):
        self.started += [(where.partition, where.offset) for where in partitions]

    def close(self):
        assert not self.slices


def a_record(offset: int) -> Message:
    return Message("t", 0, offset, value=b"v", timestamp=(1, 0))


def an_event(offset: int, code: int) -> Message:
    return Message("t", 0, offset, error=KafkaError(code))


def scripted(rig: KafkaRig, messages: list[Message]) -> tuple[KafkaReader, ScriptedConsumer]:
    topic = rig.create(1)
    rig.produce(topic, 0, [b"x"] * 5)
    reader = rig.log.reader(topic, {0: 0})
    reader._consumer.close()
    consumer = ScriptedConsumer(messages)
    reader._consumer = consumer  # type: ignore[assignment]
    return reader, consumer


def test_an_end_event_in_the_same_slice_as_records_still_moves_the_position_past_the_gap(rig: KafkaRig):
    reader, _ = scripted(rig, [a_record(0), an_event(5, KafkaError._PARTITION_EOF)])
    [batch] = reader.poll(100, 0.0)
    assert (batch.low, batch.high, batch.offsets.tolist()) == (0, 5, [0])


def test_a_partition_that_stops_behind_records_starts_again_behind_them(rig: KafkaRig):
    reader, consumer = scripted(rig, [a_record(0), a_record(1), an_event(2, KafkaError.OFFSET_OUT_OF_RANGE)])
    [batch] = reader.poll(100, 0.0)
    assert batch.high == 2
    assert consumer.started == []
    assert reader.poll(100, 0.0) == []
    assert consumer.started == [(0, 2)]


def test_a_partition_that_stops_again_and_again_without_a_reason_is_given_up_by_name(rig: KafkaRig):
    reader, consumer = scripted(rig, [an_event(0, KafkaError.OFFSET_OUT_OF_RANGE)])
    with pytest.raises(KafkaFailed, match="partition 0"):
        for _ in range(10):
            reader.poll(100, 0.0)
            consumer.slices.append([an_event(0, KafkaError.OFFSET_OUT_OF_RANGE)])
    assert 1 < len(consumer.started) < 10


def test_records_that_an_interrupt_took_from_a_poll_come_with_the_next_one(rig: KafkaRig, monkeypatch):
    topic = rig.create(1)
    rig.produce(topic, 0, [b"a", b"b", b"c"])
    with rig.log.reader(topic, {0: 0}) as reader:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(reader, "_take", interrupt)
            reader.poll(100, DEADLINE_S)
        assert reader.positions == {0: 0}
        assert drain(reader, {0: 3}, seed=1) == rig.acked(topic)


def interrupt(*_arguments):
    raise KeyboardInterrupt


class StoppedClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Mute:
    """A cluster that never answers."""

    def ask_ends(self, topic, partitions):
        return {}


def test_time_away_from_polling_is_no_silence_of_the_cluster():
    clock = StoppedClock()
    timeouts = KafkaTimeouts(lost_after_s=60.0, probe_after_s=5.0)
    contact = Contact(KafkaClient("b:1", timeouts=timeouts), Mute(), "t", Trail(), clock=clock)  # type: ignore[arg-type]
    contact.expect(0)
    contact.check({0})
    clock.now_s += 3600.0  # stopped with SIGSTOP, or busy elsewhere
    assert contact.check({0}) == set()
    with pytest.raises(KafkaUnreachable, match=r"Kafka at b:1 gave no answer"):
        for _ in range(200):
            clock.now_s += 0.5
            contact.check({0})
    contact.heard(0)
    assert contact.check({0}) == set()


def test_a_broker_that_the_client_lets_go_of_while_it_is_asked_is_asked_again(
    rig: KafkaRig, monkeypatch: pytest.MonkeyPatch
):
    topic = rig.create(1)
    log, admin = rig.log, rig.log._newest.admin
    gone: Future[object] = Future()
    gone.set_exception(KafkaException(KafkaError(KafkaError._DESTROY, "Failed while waiting for response from broker")))
    answers = iter([{topic: gone}])
    ask = admin.describe_topics
    monkeypatch.setattr(admin, "describe_topics", lambda what, **how: next(answers, None) or ask(what, **how))
    assert log.describe(topic).topic == topic
    assert next(answers, None) is None, "the first answer was the error"


def test_the_client_knows_the_leaders_before_it_is_asked_for_offsets(rig, endpoints, capfd):
    """Else librdkafka sets out to learn them, which now and then ends the process: see `KafkaLog._are_led`."""
    topics = [rig.create(2) for _ in range(3)]
    log = KafkaLog(rig.log.bootstrap, {**endpoints.kafka_login, "debug": "metadata", "log_level": "7"})
    for topic in topics:
        log.watermarks(topic, [0, 1])
        log.start_offsets(topic, [0, 1], "latest")
        assert {where.partition for where in log.ask_ends(topic, [0, 1])} == {0, 1}
    del log
    gc.collect()
    said = capfd.readouterr().err
    assert "Terminating instance" in said, "else the client says it while another test captures"
    assert "metadata" in said.lower()
    assert "query partition leaders" not in said
