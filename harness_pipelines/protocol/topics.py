"""Several topics as one: ``a,b``, which is no topic's name, and partition numbers that say which topic is meant.

A table has one vector of partitions, whatever the number of its topics: partition p of topic number i is number
``i * 65,536 + p`` there. A single topic keeps Kafka's own numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

PARTITIONS_MAX = 65_536  #: of each of several topics; Kafka has fewer on a whole cluster


FOREIGN_PARTITION = -1  #: the pseudo-partition of accepted rows: no partition of the log, so no read shows them


def topics_of(topic: str) -> tuple[str, ...]:
    """The topics that *topic*, which a table has, stands for; most often it alone."""
    return tuple(topic.split(","))


def table_partition(index: int, partition: int) -> int:
    """The number in the table of *partition* of topic number *index*."""
    if not 0 <= partition < PARTITIONS_MAX:
        raise ValueError(f"partition {partition} of topic number {index}: of several topics each has {PARTITIONS_MAX}")
    return index * PARTITIONS_MAX + partition


def kafka_partition(number: int) -> tuple[int, int]:
    """Which of several topics the table's partition *number* is of, and its number there."""
    return divmod(number, PARTITIONS_MAX)


def by_topic(numbers: Iterable[int]) -> dict[int, list[int]]:
    """Partitions of Kafka by the number of their topic, from those of a table with several."""
    found: dict[int, list[int]] = {}
    for number in sorted(set(numbers)):
        index, partition = kafka_partition(number)
        found.setdefault(index, []).append(partition)
    return found


def place(topic: str, number: int) -> tuple[str, int]:
    """Topic and partition by Kafka's names of the partition that is *number* in a table of *topic*."""
    topics = topics_of(topic)
    index, partition = kafka_partition(number)
    return (topic, number) if len(topics) == 1 or not 0 <= index < len(topics) else (topics[index], partition)


def label(topic: str, number: int) -> int | str:
    """The name of a partition in output: its number, with its topic if there are several (``b 1``)."""
    name, partition = place(topic, number)
    return number if name == topic else f"{name} {partition}"
