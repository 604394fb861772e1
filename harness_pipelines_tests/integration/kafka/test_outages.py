"""Kafka away at the start and midway: bounded waits, a message with the address, and going on without a loss."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from harness_pipelines.ports.errors import KafkaUnreachable, RecordUnreadable
from harness_pipelines.sources.kafka.client import KafkaTimeouts
from harness_pipelines.sources.kafka.log import KafkaLog
from harness_pipelines.sources.kafka.reader import KafkaReader
from harness_pipelines_tests.integration.kafka.broker import PrivateBroker
from harness_pipelines_tests.producer import DEADLINE_S, KafkaRig, wait_until
from harness_pipelines_tests.promise import within

PATIENT = KafkaTimeouts(request_s=5.0, lost_after_s=60.0, probe_after_s=0.5)
HASTY = KafkaTimeouts(request_s=1.0, lost_after_s=2.0, probe_after_s=0.5)


def collect(reader: KafkaReader, count: int) -> dict[int, bytes | None]:
    """Poll partition 0 until *count* records came; each offset once."""
    found: dict[int, bytes | None] = {}

    def there() -> bool:
        for batch in reader.poll(1000, 0.5):
            for offset, value in zip(batch.offsets.tolist(), batch.values, strict=True):
                assert offset not in found
                found[offset] = value
        return len(found) >= count

    wait_until(there, f"{count} records came")
    return found


@contextmanager
def hanging(broker: PrivateBroker) -> Iterator[None]:
    broker.send(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.send(signal.SIGCONT)


def test_an_address_where_nobody_listens_fails_in_bounded_time_and_is_named(capfd):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        log = KafkaLog(address, timeouts=HASTY)
        with within(12, "three questions of a second"):
            with pytest.raises(KafkaUnreachable, match=rf"Kafka at {address} gave no answer.*'orders'.*HARNESS_KAFKA"):
                log.describe("orders")
            with pytest.raises(KafkaUnreachable, match=address):
                log.watermarks("orders", [0])
            with pytest.raises(KafkaUnreachable, match=address):
                log.watermarks_of({f"orders_{number}": [0] for number in range(200)})  # one of them is waited for
    assert capfd.readouterr() == ("", "")  # librdkafka prints to standard error unless told not to


def test_a_broker_that_hangs_midway_is_named_and_its_return_goes_on_without_a_loss(private_broker, private_rig):
    topic = private_rig.create(1)
    private_rig.produce(topic, 0, [b"before"])
    log = KafkaLog(private_broker.bootstrap, timeouts=HASTY)
    with log.reader(topic, {0: 0}) as reader:
        found = collect(reader, 1)
        with hanging(private_broker), pytest.raises(KafkaUnreachable, match=rf"{private_broker.bootstrap}.*polling"):
            reader.poll(100, DEADLINE_S)
        private_rig.produce(topic, 0, [b"after"])
        found |= collect(reader, 1)
    assert found == private_rig.acked(topic)[0]


@pytest.mark.long
def test_a_question_to_a_broker_that_hangs_is_unanswered_and_never_an_invalid_offset(private_broker, private_rig):
    topic = private_rig.create(2)
    log = KafkaLog(private_broker.bootstrap, timeouts=HASTY)
    log.watermarks(topic, [0, 1])
    asks = (
        log.describe,
        lambda t: log.watermarks(t, [0, 1]),
        lambda t: log.start_offsets(t, [0], "latest"),
        lambda t: log.start_offsets(t, [0], datetime(2026, 1, 1, tzinfo=UTC)),
        lambda t: log.reader(t, {0: 0}),
    )
    with hanging(private_broker):
        for ask in asks:
            with within(6, "a question of a second"), pytest.raises(KafkaUnreachable, match=topic):
                ask(topic)
    assert log.describe(topic).partitions == (0, 1)


def test_a_short_hang_is_waited_out_by_the_poll_itself(private_broker, private_rig):
    topic = private_rig.create(1)
    log = KafkaLog(private_broker.bootstrap, timeouts=PATIENT)
    with log.reader(topic, {0: 0}) as reader:
        reader.poll(1, 0.2)
        with hanging(private_broker):
            assert reader.poll(100, 1.5) == []
        private_rig.produce(topic, 0, [b"after"])
        assert collect(reader, 1) == private_rig.acked(topic)[0]


@pytest.mark.long
def test_a_silent_topic_on_a_healthy_broker_is_no_outage(private_broker, private_rig):
    topic = private_rig.create(2)
    with KafkaLog(private_broker.bootstrap, timeouts=HASTY).reader(topic, {0: 0, 1: 0}) as reader:
        assert reader.poll(100, 2 * HASTY.lost_after_s) == []


@pytest.mark.long
def test_a_broker_killed_and_started_again_under_a_reader_loses_and_doubles_nothing(private_broker, private_rig):
    topic = private_rig.create(1)
    private_rig.produce(topic, 0, [f"a{i}".encode() for i in range(500)])
    log = KafkaLog(private_broker.bootstrap, timeouts=PATIENT)
    with log.reader(topic, {0: 0}) as reader:
        found = {o: v for batch in reader.poll(100, DEADLINE_S) for o, v in enumerate(batch.values, batch.low)}
        private_broker.kill()
        restart = threading.Thread(target=private_broker.start)
        restart.start()
        found |= collect(reader, 500 - len(found))
        restart.join()
        later = KafkaRig(private_broker.bootstrap)
        later.ledger.start(topic, [0])
        later.produce(topic, 0, [b"later"])
        found |= collect(reader, 1)
    assert found == {**private_rig.acked(topic)[0], **later.acked(topic)[0]}


def test_a_damaged_batch_in_the_log_is_named_with_its_partition_and_offset(private_broker, private_rig):
    topic = private_rig.create(1)
    private_rig.produce(topic, 0, [b"healthy"])
    private_rig.produce(topic, 0, [b"will be damaged"])
    [segment] = private_broker.data.glob(f"{topic}-0/*.log")
    content = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(content.index(b"will be damaged"))
        file.write(b"W")
    with KafkaLog(private_broker.bootstrap, timeouts=PATIENT).reader(topic, {0: 0}) as reader:
        assert collect(reader, 1) == {0: b"healthy"}
        with pytest.raises(RecordUnreadable, match=rf"'{topic}' partition 0: the batch at or after offset 1"):
            wait_until(lambda: bool(reader.poll(100, 0.5)), "the damage is found")


#: Its only broker is fenced for seconds again and again: its heartbeats come later than its session lasts.
ABSENT_MINDED = "broker.session.timeout.ms=1000\nbroker.heartbeat.interval.ms=4000\n"
ASKING = """
import sys, time
from confluent_kafka.admin import AdminClient
from harness_pipelines.errors import TryAgain
from harness_pipelines.sources.kafka.log import KafkaLog
from harness_pipelines.sources.kafka.client import KafkaTimeouts
bootstrap, topic = sys.argv[1:]
admin, found, fenced = AdminClient({"bootstrap.servers": bootstrap}), set(), 0
until = time.monotonic() + 25
while (fenced < 1 or not found) and time.monotonic() < until:
    if not found:  # a client that has not met a broker yet asks none while there is none
        log = KafkaLog(bootstrap, timeouts=KafkaTimeouts(request_s=1.0))
    fenced += bool(found) and not admin.list_topics(topic, timeout=5).brokers
    try:
        found.add(log.describe(topic).cluster_id)
    except TryAgain:
        pass
print(fenced, found)
"""


def made(rig: KafkaRig) -> str:
    """A topic, as soon as there is a broker for it."""
    topics: list[str] = []

    def created() -> bool:
        with suppress(KafkaException):
            topics.append(rig.create(1))
        return bool(topics)

    wait_until(created, "a broker is not fenced")
    return topics[0]


@pytest.mark.long
def test_a_cluster_whose_brokers_are_all_fenced_does_not_end_the_process(tmp_path: Path):
    """librdkafka's `describe_cluster` aborts it: so did a worker end, whose broker a busy machine had fenced."""
    broker = PrivateBroker(tmp_path, settings=ABSENT_MINDED)
    try:
        broker.start()
        rig = KafkaRig(broker.bootstrap)
        topic = made(rig)
        command = [sys.executable, "-c", ASKING, broker.bootstrap, topic]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        rig.close()
    finally:
        broker.kill()
    assert asked.returncode == 0, asked.stderr[-2000:]
    fenced, _, found = asked.stdout.partition(" ")
    assert int(fenced) >= 1, "it was asked while no broker was there"
    assert found.strip() == "{'cHJpdmF0ZS1icm9rZXItMQ'}"
