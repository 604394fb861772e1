"""Several topics of one table: which partition of which topic a number means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.ports.errors import LogTruncated, RecordsLost
from harness_pipelines.protocol.topics import (
    PARTITIONS_MAX,
    by_topic,
    kafka_partition,
    label,
    place,
    table_partition,
)
from harness_pipelines.show.bars import Spans, bars
from harness_pipelines.spec.table import TOPICS_MAX


@given(st.integers(0, TOPICS_MAX - 1), st.integers(0, PARTITIONS_MAX - 1))
def test_a_number_means_one_partition_of_one_topic_and_fits_an_int(index: int, partition: int):
    number = table_partition(index, partition)
    assert 0 <= number < 2**31
    assert kafka_partition(number) == (index, partition)
    assert by_topic([number]) == {index: [partition]}


def test_a_partition_that_would_be_one_of_the_next_topic_has_no_number():
    with pytest.raises(ValueError, match="65536"):
        table_partition(0, PARTITIONS_MAX)


def test_people_are_told_the_topic_and_kafkas_number_where_there_are_several():
    assert (place("a,b", 65_537), label("a,b", 65_537)) == (("b", 1), "b 1")
    assert (place("a,b", 3), label("a,b", 3)) == (("a", 3), "a 3")
    assert (place("a", 70_000), label("a", 70_000)) == (("a", 70_000), 70_000)
    assert label("a,b", -1) == -1  # adopted rows are of no topic


def test_a_lost_record_is_named_as_kafka_does_and_the_way_on_as_the_table_does():
    lost = RecordsLost("a,b", partition=65_537, expected=3, log_start=9)
    assert "topic 'b' partition 1 starts at offset 9" in str(lost)
    assert "--partition 65537 --to 9" in str(lost)
    assert "topic 'b' partition 1 ends at offset 2" in str(LogTruncated("a,b", partition=65_537, expected=3, end=2))


def test_bars_of_several_topics_name_them():
    spans = [Spans(partition=p, lake=1, buffer=0, tail=0) for p in (0, 65_536)]
    assert [line.plain.split("█")[0].strip() for line in bars(spans, topic="a,b")] == ["a 0", "b 0"]
    assert [line.plain.split("█")[0].strip() for line in bars(spans)] == ["0", "65536"]
