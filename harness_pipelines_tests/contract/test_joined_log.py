"""Several topics as one log: the rules of the log port hold over both, and each topic is watched for itself."""

from __future__ import annotations

import pytest

from harness_pipelines.ports.errors import PartitionsMissing, RecordsLost, TopicMissing, TopicRecreated
from harness_pipelines.ports.source import PartitionBatch, Watermark, added_partitions, check_positions
from harness_pipelines.protocol.topics import table_partition
from harness_pipelines.sources.joined import JoinedLog
from harness_pipelines_tests.contract.test_log import POLL_S, numbered, read_to, rig, seen
from harness_pipelines_tests.producer import Acked, LogRig, wait_until

__all__ = ["rig"]
SECOND = table_partition(1, 0)  #: the first partition of the second topic


def both(rig: LogRig, *topics: str) -> Acked:
    """What was acknowledged, by the partitions of a table of *topics*."""
    return {
        table_partition(i, p): records for i, one in enumerate(topics) for p, records in rig.acked(one).items()
    }  # fmt: skip


def test_topics_are_read_as_partitions_of_one_with_numbers_of_their_own(rig):
    first, second = rig.create(2), rig.create(1)
    log, topic = JoinedLog(rig.log), f"{first},{second}"
    for one, partition in ((first, 0), (first, 1), (second, 0)):
        rig.produce(one, partition, numbered(700, f"{one}{partition}-"), timestamp_ms=1_000)
    identity = log.describe(topic)
    assert identity.partitions == (0, 1, SECOND)
    assert log.identity_async(topic)() == identity
    assert log.describe(first) == rig.log.describe(first), "a topic alone is as it is"
    marks = dict.fromkeys(identity.partitions, Watermark(0, 700))
    assert log.watermarks(topic, identity.partitions) == marks
    assert log.start_offsets(topic, [1, SECOND], "latest") == {1: 700, SECOND: 700}

    with log.reader(topic, {0: 0, 1: 650, SECOND: 0}, identity=identity) as reader:
        batches = read_to(reader, dict.fromkeys(identity.partitions, 700), max_records=100)
        assert reader.poll(10, 0) == []
        reader.seek(SECOND, 699)
        reader.assign({SECOND: 699})
        assert [(b.partition, b.low, b.high) for b in read_to(reader, {SECOND: 700})] == [(SECOND, 699, 700)]

    wanted = both(rig, first, second)
    wanted[1] = {offset: value for offset, value in wanted[1].items() if offset >= 650}
    assert seen(batches) == wanted
    assert max(map(len, batches)) <= 100


def test_of_topics_asked_about_together_one_that_fails_fails_those_that_have_it(rig):
    first, second = rig.create(1), rig.create(1)
    log = JoinedLog(rig.log)
    rig.produce(second, 0, numbered(3))
    both_, gone = f"{first},{second}", f"{second},nowhere"
    found = log.watermarks_of({first: [0], both_: [0, SECOND], gone: [0, SECOND]})
    assert found[first] == {0: Watermark(0, 0)}
    assert found[both_] == {0: Watermark(0, 0), SECOND: Watermark(0, 3)}
    assert isinstance(found[gone], TopicMissing)
    with pytest.raises(PartitionsMissing, match="131072"):
        log.watermarks(both_, [table_partition(2, 0)])


def test_a_second_topic_that_was_created_again_is_named(rig):
    first, second = rig.create(1), rig.create(1)
    log, topic = JoinedLog(rig.log), f"{first},{second}"
    before = log.describe(topic)
    rig.delete(second)
    rig.create(1, topic=second)
    with pytest.raises(TopicRecreated, match=f"topic '{second}' was deleted and created again"):
        added_partitions(before, log.describe(topic))


def test_partitions_that_are_added_to_a_topic_join(rig):
    first, second = rig.create(1), rig.create(1)
    log, topic = JoinedLog(rig.log), f"{first},{second}"
    before = log.describe(topic)
    with log.reader(topic, {0: 0}, identity=before) as reader:
        rig.add_partitions(first, 2)
        rig.produce(first, 1, numbered(2))
        rig.produce(second, 0, numbered(3))
        assert added_partitions(before, log.describe(topic)) == (1,)
        reader.assign({0: 0, 1: 0, SECOND: 0})
        batches = read_to(reader, {1: 2, SECOND: 3})
    assert seen(batches) == {p: values for p, values in both(rig, first, second).items() if values}


def test_a_lost_record_of_one_topic_costs_none_of_what_was_taken_of_another(rig):
    first, second = rig.create(1), rig.create(1)
    log, topic = JoinedLog(rig.log), f"{first},{second}"
    rig.produce(first, 0, numbered(5))
    rig.produce(second, 0, numbered(5))
    rig.delete_records(second, 0, 3)
    with pytest.raises(RecordsLost, match=f"topic '{second}' partition 0 starts at offset 3"):
        check_positions(topic, {SECOND: 1}, log.watermarks(topic, [SECOND]))
    with log.reader(topic, {0: 0, SECOND: 1}, identity=log.describe(topic)) as reader:
        taken: list[PartitionBatch] = []
        lost = None

        def failed() -> bool:
            nonlocal lost
            try:
                taken.extend(reader.poll(1000, POLL_S))
            except RecordsLost as error:
                lost = error
            return lost is not None

        wait_until(failed, "the reader fails")
        assert f"--partition {SECOND} --to 3" in str(lost)
        reader.assign({0: reader.positions[0]})
        if reader.positions[0] < 5:
            taken += read_to(reader, {0: 5})
    assert seen(taken)[0] == rig.acked(first)[0]
