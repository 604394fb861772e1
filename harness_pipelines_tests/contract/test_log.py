"""The rules of the log port: the same tests over the reference in memory and over a real broker."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from harness_pipelines.ports import source
from harness_pipelines.ports.errors import LogTruncated, PartitionsMissing, RecordsLost, TopicMissing, TopicRecreated
from harness_pipelines.ports.source import (
    LogReader,
    PartitionBatch,
    TopicIdentity,
    Watermark,
    added_partitions,
    check_positions,
    settled,
)
from harness_pipelines.services import Endpoints
from harness_pipelines.sources.kafka import log as kafka_log
from harness_pipelines.sources.kafka.client import KafkaTimeouts
from harness_pipelines.sources.kafka.log import KafkaLog
from harness_pipelines_tests.producer import DEADLINE_S, Acked, KafkaRig, LogRig, MemoryRig, wait_until

POLL_S = 0.2


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that answers without a partition is believed after a second."""
    for module in (source, kafka_log):
        monkeypatch.setattr(module, "STALE_S", 1.0)


@pytest.fixture(params=["memory", "kafka"])
def rig(request: pytest.FixtureRequest) -> Iterator[LogRig]:
    made: LogRig = MemoryRig() if request.param == "memory" else kafka_rig(request.getfixturevalue("endpoints"))
    yield made
    made.close()


def kafka_rig(endpoints: Endpoints) -> KafkaRig:
    """A rig whose readers ask after half a second of silence."""
    assert endpoints.kafka is not None
    log = KafkaLog(endpoints.kafka, endpoints.kafka_login, timeouts=KafkaTimeouts(probe_after_s=0.5))
    return KafkaRig(endpoints.kafka, log=log, properties=endpoints.kafka_login)


def numbered(count: int, prefix: str = "v") -> list[bytes | None]:
    return [f"{prefix}{i}".encode() for i in range(count)]


def read_to(reader: LogReader, ends: dict[int, int], *, max_records: int = 1000) -> list[PartitionBatch]:
    """Poll until the reader stands at *ends*; check on the way that the batches leave no hole between them."""
    batches: list[PartitionBatch] = []
    before = dict(reader.positions)

    def there() -> bool:
        for batch in reader.poll(max_records, POLL_S):
            check_batch(batch, before[batch.partition])
            before[batch.partition] = batch.high
            batches.append(batch)
        assert reader.positions == before
        return all(before[partition] >= end for partition, end in ends.items())

    wait_until(there, f"the reader is at {ends}")
    return batches


def next_batch(reader: LogReader, *, max_bytes: int) -> PartitionBatch:
    found: list[PartitionBatch] = []

    def there() -> bool:
        found.extend(reader.poll(100_000, POLL_S, max_bytes=max_bytes))
        return bool(found)

    wait_until(there, "a batch")
    return found[0]


def check_batch(batch: PartitionBatch, low: int) -> None:
    assert batch.low == low
    assert batch.high > batch.low
    assert len(batch) == len(batch.values) == len(batch.keys) == len(batch.headers)
    assert batch.offsets.shape == batch.timestamps_ms.shape == (len(batch),)
    assert batch.offsets.dtype == batch.timestamps_ms.dtype == np.int64
    if len(batch):
        assert np.all(np.diff(batch.offsets) > 0)
        assert low <= batch.offsets[0] <= batch.offsets[-1] < batch.high


def seen(batches: list[PartitionBatch]) -> Acked:
    """What the batches hold; an offset that comes twice fails."""
    found: Acked = {}
    for batch in batches:
        values = found.setdefault(batch.partition, {})
        for offset, value in zip(batch.offsets.tolist(), batch.values, strict=True):
            assert offset not in values, f"offset {offset} of partition {batch.partition} came twice"
            values[offset] = value
    return found


def ends(rig: LogRig, topic: str) -> dict[int, int]:
    marks = rig.log.watermarks(topic, rig.log.describe(topic).partitions)
    return {partition: mark.end for partition, mark in marks.items()}


def test_a_topic_created_again_has_another_identity(rig):
    topic = rig.create(2)
    first = rig.log.describe(topic)
    assert first.partitions == (0, 1)
    assert rig.log.identity_async(topic)() == first

    rig.delete(topic)
    rig.create(2, topic=topic)
    second = rig.log.describe(topic)

    assert (second.topic, second.cluster_id) == (first.topic, first.cluster_id)
    with pytest.raises(
        TopicRecreated, match=rf"'{topic}' was deleted and created again.*{second.topic_id.replace('+', '.')}"
    ):
        added_partitions(first, second)


def test_a_topic_keeps_its_identity_for_a_thread_while_another_describes_it(rig):
    topic = rig.create(1)
    first = rig.log.describe(topic)
    over = threading.Event()

    def describe() -> None:
        while not over.is_set():
            rig.log.describe(topic)

    other = threading.Thread(target=describe, daemon=True)
    other.start()
    try:
        found = {rig.log.identity_async(topic)() for _ in range(300)}
    finally:
        over.set()
        other.join()
    assert found == {first}


def test_a_missing_topic_is_named_with_the_cluster_and_the_way_on(rig):
    for ask in (
        rig.log.describe,
        lambda t: rig.log.watermarks(t, [0]),
        lambda t: rig.log.start_offsets(t, [0], "latest"),
    ):
        with pytest.raises(TopicMissing, match=r"topic 'nowhere' does not exist at .*Create it"):
            ask("nowhere")
    answer = rig.log.identity_async("nowhere")
    with pytest.raises(TopicMissing):
        answer()


@pytest.mark.usefixtures("impatient")
def test_a_partition_that_the_topic_does_not_have_is_named(rig):
    topic = rig.create(2)
    with pytest.raises(PartitionsMissing, match=r"no partition 7"):
        rig.log.watermarks(topic, [0, 7])


@pytest.mark.usefixtures("impatient")
def test_of_many_topics_one_that_fails_tells_why_and_costs_no_other(rig):
    first, second, small = rig.create(2), rig.create(1), rig.create(1)
    rig.produce(first, 1, [b"a", b"b"])
    rig.produce(second, 0, [b"c"])
    found = rig.log.watermarks_of({"nowhere": [0], first: [0, 1], small: [0, 7], second: [0]})
    assert list(found) == ["nowhere", first, small, second]
    assert found[first] == {0: Watermark(0, 0), 1: Watermark(0, 2)}
    assert found[second] == {0: Watermark(0, 1)}
    assert isinstance(found["nowhere"], TopicMissing)
    assert isinstance(found[small], PartitionsMissing)
    assert rig.log.watermarks_of({}) == {}
    assert rig.log.watermarks_of({first: [], second: [0]}) == {first: {}, second: {0: Watermark(0, 1)}}


@pytest.mark.parametrize("policy", ["delete", "compact", "compact,delete"])
def test_what_a_topic_keeps_is_told_by_its_policy(rig, policy: str):
    topic = rig.create(config={} if policy == "delete" else {"cleanup.policy": policy})
    assert rig.log.cleanup_policy(topic) == policy
    with pytest.raises(TopicMissing):
        rig.log.cleanup_policy("nowhere")


def test_added_partitions_show_in_the_identity_and_can_be_joined(rig):
    topic = rig.create(1)
    before = rig.log.describe(topic)
    rig.produce(topic, 0, numbered(3))
    with rig.log.reader(topic, {0: 0}) as reader:
        first = read_to(reader, {0: 3})
        rig.add_partitions(topic, 3)
        rig.produce(topic, 2, numbered(4, "w"))

        new = added_partitions(before, rig.log.describe(topic))
        assert new == (1, 2)
        reader.assign({**reader.positions, **rig.log.start_offsets(topic, new, "earliest")})
        later = read_to(reader, {0: 3, 2: 4})

    assert seen(first + later) == {p: v for p, v in rig.acked(topic).items() if v}


@pytest.mark.long
def test_every_acknowledged_record_comes_once_and_in_order_whatever_the_batch_size(rig):
    topic = rig.create(3)
    for partition in range(3):
        rig.produce(topic, partition, numbered(700, f"p{partition}-"))
    for max_records in (1, 64, 10_000):
        positions = {0: 690, 1: 650, 2: 0} if max_records < 10_000 else dict.fromkeys(range(3), 0)
        with rig.log.reader(topic, positions) as reader:
            batches = read_to(reader, dict.fromkeys(range(3), 700), max_records=max_records)
        assert max(len(batch) for batch in batches) <= max_records
        wanted = {p: {o: v for o, v in rig.acked(topic)[p].items() if o >= positions[p]} for p in range(3)}
        assert seen(batches) == wanted


def test_values_keys_headers_and_timestamps_come_as_they_were_produced(rig):
    topic = rig.create(1)
    rig.produce(
        topic, 0, [b"\x00\xff", None, b""], key=b"k", headers=[("a", b"1"), ("a", None)], timestamp_ms=1_700_000_000_123
    )
    rig.produce(topic, 0, [b"plain"])
    with rig.log.reader(topic, {0: 0}) as reader:
        batches = read_to(reader, {0: 4})
    values = [value for batch in batches for value in batch.values]
    assert values == [b"\x00\xff", None, b"", b"plain"]
    assert [key for batch in batches for key in batch.keys] == [b"k", b"k", b"k", None]
    assert [h for batch in batches for h in batch.headers] == [[("a", b"1"), ("a", None)]] * 3 + [None]
    assert [t for batch in batches for t in batch.timestamps_ms.tolist()][:3] == [1_700_000_000_123] * 3
    assert batches[0].leader_epoch == 0


def test_an_empty_topic_gives_no_batch_and_keeps_its_position(rig):
    topic = rig.create(2)
    with rig.log.reader(topic, {0: 0, 1: 0}) as reader:
        assert reader.poll(100, POLL_S) == []
        assert reader.positions == {0: 0, 1: 0}
    assert rig.log.watermarks(topic, [0, 1]) == {0: Watermark(0, 0), 1: Watermark(0, 0)}


def test_a_waiting_poll_returns_as_soon_as_a_record_arrives(rig):
    topic = rig.create(2)
    with rig.log.reader(topic, {0: 0, 1: 0}) as reader:
        reader.poll(100, POLL_S)
        late = threading.Timer(0.05, lambda: rig.produce(topic, 1, [b"lone"]))
        late.start()
        batches = reader.poll(100, DEADLINE_S)
        late.join()
    assert seen(batches) == {1: {0: b"lone"}}


def test_bytes_bound_a_poll_but_never_stop_it(rig):
    topic = rig.create(1)
    rig.produce(topic, 0, [bytes(1000)] * 9000)
    with rig.log.reader(topic, {0: 0}) as reader:
        batches = read_to(reader, {0: 9000}, max_records=100_000)
        reader.seek(0, 0)
        small = next_batch(reader, max_bytes=1)
    assert len(seen(batches)[0]) == 9000
    assert 1 <= len(small) < 9000


def test_the_position_passes_the_control_records_of_a_committed_transaction(rig):
    topic = rig.create(1)
    transaction = rig.begin()
    transaction.produce(topic, 0, numbered(3))
    transaction.commit()
    with rig.log.reader(topic, {0: 0}) as reader:
        batches = read_to(reader, {0: 4})
    assert seen(batches) == rig.acked(topic)
    assert ends(rig, topic) == {0: 4}  # three records and the marker


def test_an_aborted_tail_is_passed_by_an_empty_batch(rig):
    topic = rig.create(1)
    rig.produce(topic, 0, numbered(2))
    with rig.log.reader(topic, {0: 0}) as reader:
        read_to(reader, {0: 2})
        transaction = rig.begin()
        transaction.produce(topic, 0, numbered(5, "aborted"))
        transaction.abort()

        tail = read_to(reader, {0: 8})

    assert [(batch.low, batch.high, len(batch)) for batch in tail] == [(2, 8, 0)]
    assert tail[0].leader_epoch is None
    assert tail[0].offsets.tolist() == tail[0].values == []


def test_aborted_records_in_the_middle_are_gaps_in_a_range_without_gaps(rig):
    topic = rig.create(1)
    rig.produce(topic, 0, numbered(2, "a"))
    aborted = rig.begin()
    aborted.produce(topic, 0, numbered(5, "aborted"))
    aborted.abort()
    rig.produce(topic, 0, numbered(2, "b"))
    with rig.log.reader(topic, {0: 0}) as reader:
        batches = read_to(reader, ends(rig, topic))
    assert seen(batches) == rig.acked(topic)
    assert list(rig.acked(topic)[0]) == [0, 1, 8, 9]


def test_an_open_transaction_holds_the_end_and_the_reader_until_it_is_over(rig):
    topic = rig.create(1)
    rig.produce(topic, 0, numbered(2))
    transaction = rig.begin()
    transaction.produce(topic, 0, numbered(3, "held"))
    rig.produce(topic, 0, numbered(2, "behind"))
    assert rig.log.watermarks(topic, [0]) == {0: Watermark(0, 2)}
    assert rig.log.start_offsets(topic, [0], "latest") == {0: 2}
    [held] = rig.log.held(topic, [0]).values()
    assert (held.end, held.newest) == (2, 7)
    assert held.since is not None
    assert datetime.now(UTC) - held.since < timedelta(minutes=5)

    with rig.log.reader(topic, {0: 0}) as reader:
        first = read_to(reader, {0: 2})
        assert reader.poll(100, POLL_S) == []
        assert reader.positions == {0: 2}
        transaction.commit()
        rest = read_to(reader, {0: 8})
        assert rig.log.held(topic, [0]) == {}

    assert seen(first + rest) == rig.acked(topic)


def test_start_offsets_are_the_log_start_the_stable_end_or_the_first_record_not_before_a_time(rig):
    topic = rig.create(2)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for minute in range(5):
        at_ms = int((begin + timedelta(minutes=minute)).timestamp() * 1000)
        rig.produce(topic, 0, [b"x"], timestamp_ms=at_ms)
    rig.delete_records(topic, 0, 1)

    def start(when):
        return rig.log.start_offsets(topic, [0, 1], when)

    assert start("earliest") == {0: 1, 1: 0}
    assert start("latest") == {0: 5, 1: 0}
    assert start(begin + timedelta(minutes=2)) == {0: 2, 1: 0}
    assert start(begin + timedelta(minutes=2, microseconds=1)) == {0: 3, 1: 0}
    assert start(begin - timedelta(days=1)) == {0: 1, 1: 0}
    assert start(begin + timedelta(days=1)) == {0: 5, 1: 0}
    with pytest.raises(ValueError, match="time zone"):
        start(datetime(2026, 1, 1))


def test_a_seek_back_gives_the_same_records_again(rig):
    topic = rig.create(2)
    rig.produce(topic, 0, numbered(300, "a"))
    rig.produce(topic, 1, numbered(300, "b"))
    dice = random.Random(7)
    with rig.log.reader(topic, {0: 0, 1: 0}) as reader:
        for _ in range(15):
            reader.poll(dice.choice([1, 10, 100]), POLL_S)
            back = dice.randrange(300)
            reader.seek(0, back)
            again = read_to(reader, {0: back + 1}, max_records=50)
            first = next(batch for batch in again if batch.partition == 0)
            wanted = [rig.acked(topic)[0][o] for o in range(back, back + len(first))]
            assert first.values == wanted
        reader.seek(1, 0)
        batches = [batch for batch in read_to(reader, {1: 300}) if batch.partition == 1]
    assert seen(batches)[1] == rig.acked(topic)[1]


def test_a_paused_partition_waits_and_loses_nothing(rig):
    topic = rig.create(2)
    rig.produce(topic, 0, numbered(50, "a"))
    rig.produce(topic, 1, numbered(50, "b"))
    with rig.log.reader(topic, {0: 0, 1: 0}) as reader:
        reader.pause(1)
        first = read_to(reader, {0: 50}, max_records=7)
        assert reader.poll(100, POLL_S) == []
        assert {batch.partition for batch in first} == {0}
        reader.resume(1)
        rest = read_to(reader, {1: 50}, max_records=7)
    assert seen(first + rest) == rig.acked(topic)


def test_assign_keeps_what_stays_and_drops_what_goes(rig):
    topic = rig.create(3)
    for partition in range(3):
        rig.produce(topic, partition, numbered(20, f"{partition}-"))
    with rig.log.reader(topic, {0: 0, 1: 0}) as reader:
        read_to(reader, {0: 20, 1: 20})
        reader.assign({1: 20, 2: 5})
        assert reader.positions == {1: 20, 2: 5}
        rig.produce(topic, 0, [b"not mine"])
        rig.produce(topic, 1, [b"mine"])
        batches = read_to(reader, {1: 21, 2: 20})
    assert seen(batches) == {1: {20: b"mine"}, 2: {o: v for o, v in rig.acked(topic)[2].items() if o >= 5}}


def test_a_log_start_above_the_position_is_records_lost_with_the_range(rig):
    topic = rig.create(2)
    rig.produce(topic, 0, numbered(10))
    rig.delete_records(topic, 0, 6)
    with pytest.raises(
        RecordsLost, match=r"partition 0 starts at offset 6, above the position 2.*\[2, 6\).*accept-loss"
    ):
        check_positions(topic, {0: 2, 1: 0}, rig.log.watermarks(topic, [0, 1]))
    with rig.log.reader(topic, {0: 2, 1: 0}) as reader, pytest.raises(RecordsLost) as caught:
        reader.poll(100, DEADLINE_S)
    assert (caught.value.partition, caught.value.expected, caught.value.log_start) == (0, 2, 6)


def test_an_end_below_the_position_is_a_truncated_log_with_the_range(rig):
    topic = rig.create(1)
    rig.produce(topic, 0, numbered(4))
    with pytest.raises(LogTruncated, match=r"ends at offset 4, below the position 9.*\[4, 9\)"):
        check_positions(topic, {0: 9}, rig.log.watermarks(topic, [0]))
    with rig.log.reader(topic, {0: 9}) as reader, pytest.raises(LogTruncated) as caught:
        reader.poll(100, DEADLINE_S)
    assert (caught.value.partition, caught.value.expected, caught.value.end) == (0, 9, 4)


def test_a_sick_partition_names_itself_on_each_poll_until_it_is_taken_out(rig):
    topic = rig.create(2)
    rig.produce(topic, 0, numbered(10))
    rig.delete_records(topic, 0, 6)
    with rig.log.reader(topic, {0: 2, 1: 0}) as reader:
        for _ in range(2):
            with pytest.raises(RecordsLost):
                reader.poll(100, DEADLINE_S)
        rig.produce(topic, 1, numbered(3))
        reader.assign({1: reader.positions[1]})
        healthy = read_to(reader, {1: 3})
        reader.assign({**reader.positions, 0: 6})
        healed = read_to(reader, {0: 10})
    assert seen(healthy + healed) == rig.acked(topic)


def test_a_topic_that_is_deleted_under_a_reader_is_named(rig):
    topic = rig.create(1)
    rig.produce(topic, 0, numbered(4))
    with rig.log.reader(topic, {0: 0}) as reader:
        read_to(reader, {0: 4})
        rig.delete(topic)
        with pytest.raises(TopicMissing, match=topic):
            reader.poll(100, DEADLINE_S)


def test_a_topic_that_is_created_again_with_fewer_records_is_named_and_not_called_truncated(rig):
    topic = rig.create(1)
    rig.produce(topic, 0, numbered(4))
    known = rig.log.describe(topic)
    rig.delete(topic)
    rig.create(1, topic=topic)
    rig.produce(topic, 0, numbered(1))
    with rig.log.reader(topic, {0: 4}, identity=known) as reader, pytest.raises(TopicRecreated):
        reader.poll(100, DEADLINE_S)


# -- brokers that have not heard of partitions yet --------------------------------------------------------------


def stale_for_a_second(log: KafkaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a broker that answers without the last partition for a second."""
    until, describe, are_led = time.monotonic() + 1.0, log.describe, log._are_led

    def stale(topic: str) -> TopicIdentity:
        found = describe(topic)
        return found if time.monotonic() > until else replace(found, partitions=found.partitions[:-1])

    monkeypatch.setattr(log, "describe", stale)
    monkeypatch.setattr(log, "_are_led", lambda *asked: time.monotonic() > until and are_led(*asked))


def test_partitions_that_a_broker_does_not_know_yet_are_asked_for_again(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
):
    with closing(kafka_rig(endpoints)) as rig:
        topic = rig.create(2)
        assert isinstance(rig.log, KafkaLog)
        expected = rig.log.describe(topic)
        stale_for_a_second(rig.log, monkeypatch)
        assert set(rig.log.watermarks(topic, [0, 1])) == {0, 1}
        stale_for_a_second(rig.log, monkeypatch)
        assert settled(expected, lambda: rig.log.describe(topic)) == expected


@pytest.mark.usefixtures("impatient")
def test_partitions_that_stay_away_are_named(endpoints: Endpoints):
    with closing(kafka_rig(endpoints)) as rig:
        found = rig.log.describe(rig.create(2))
        expected = replace(found, partitions=(0, 1, 2))
        with pytest.raises(PartitionsMissing, match="no partition 2"):
            settled(expected, lambda: found)


def test_another_topic_of_that_name_is_told_at_once(endpoints: Endpoints):
    with closing(kafka_rig(endpoints)) as rig:
        found = rig.log.describe(rig.create(2))
        asked = list[TopicIdentity]()

        def ask() -> TopicIdentity:
            asked.append(found)
            return found

        with pytest.raises(TopicRecreated):
            settled(replace(found, topic_id="another", partitions=(0, 1, 2)), ask)
        assert len(asked) == 1
