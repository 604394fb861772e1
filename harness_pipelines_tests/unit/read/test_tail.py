"""What only Kafka has: it is read from the topic that the table was made from, to the end, or not at all."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from harness_pipelines.protocol.keys import PartitionsGrown
from harness_pipelines.protocol.plan import ReadPlan
from harness_pipelines.read.plan import make_plan
from harness_pipelines.read.tail import read_tail
from harness_pipelines.spec.types import iceberg_fields
from harness_pipelines.stores.errors import LogTruncated, TopicRecreated
from harness_pipelines.stores.memory.log import MemoryLog
from harness_pipelines.stores.ports import view_names
from harness_pipelines_tests.contract.stores_rig import MemoryRig, fresh_view

TOPIC = "t"


class World:
    """A table over a topic in memory. *buffer* "postgres": what was ingested is in the buffer."""

    def __init__(self, *, buffer: str = "postgres", partitions: int = 2, **spec: Any) -> None:
        self.rig, self.log, self.partitions = MemoryRig(), MemoryLog(), partitions
        self.log.create_topic(TOPIC, partitions)
        made = self.rig.spec(buffer=buffer, **spec)
        self.table = self.rig.ledger.create_table(
            made,
            self.log.describe(TOPIC),
            starts=dict.fromkeys(range(partitions), 0),
            fields=iceberg_fields(made.columns),
            views={name: fresh_view() for name in view_names(made)},
        )
        self.stores: Any = SimpleNamespace(leases=self.rig.leases, log=self.log)

    def produce(self, count: int) -> None:
        """*count* records in every partition."""
        for partition in self.log.describe(TOPIC).partitions:
            for _ in range(count):
                self.log.append(TOPIC, partition, b'{"id": 1}')

    def ingest(self, count: int) -> None:
        """*count* records of every partition come to the buffer."""
        self.rig.ingest(self.table, {p: (0, count) for p in range(self.partitions)})

    def create_again(self) -> None:
        self.log.delete_topic(TOPIC)
        self.log.create_topic(TOPIC, self.partitions)

    def plan(self) -> ReadPlan:
        return make_plan(self.stores, self.table, at=None, tail=True, holder="test", lease=timedelta(minutes=1))

    def rows(self, plan: ReadPlan) -> pa.Table:
        assert plan.tail is not None
        return read_tail(self.stores, self.table, plan.tail)

    @property
    def leases(self) -> int:
        """How many are alive."""
        with self.rig.leases.state.transaction() as books:
            return len(books.leases)


@pytest.mark.parametrize("ingested", [0, 5])
def test_a_tail_has_what_the_buffer_has_not(ingested: int):
    world = World(buffer="postgres" if ingested else "none")
    world.produce(8)
    if ingested:
        world.ingest(ingested)
    rows = world.rows(world.plan())
    found = sorted(zip(rows["_kafka_partition"].to_pylist(), rows["_kafka_offset"].to_pylist(), strict=True))
    assert found == [(p, o) for p in (0, 1) for o in range(ingested, 8)]


@pytest.mark.parametrize("produced", [3, 8], ids=["fewer records", "more records"])
@pytest.mark.parametrize("buffer", ["postgres", "none"])
def test_records_of_a_topic_created_again_are_no_tail(buffer: str, produced: int):
    world = World(buffer=buffer)
    world.produce(5)
    if buffer == "postgres":
        world.ingest(5)
    world.create_again()
    world.produce(produced)
    with pytest.raises(TopicRecreated, match="deleted and created again"):
        world.plan()


def test_a_topic_created_again_between_plan_and_read_gives_no_rows():
    world = World()
    world.produce(5)
    plan = world.plan()
    world.create_again()
    world.produce(8)
    with pytest.raises(TopicRecreated):
        world.rows(plan)


def test_a_topic_created_again_after_the_last_poll_gives_no_rows(monkeypatch: pytest.MonkeyPatch):
    world = World()
    world.produce(5)
    plan = world.plan()
    reader = world.log.reader(TOPIC, plan.tail.low if plan.tail else {})
    polled = reader.poll(100, 0.1)
    world.create_again()
    world.produce(8)
    monkeypatch.setattr(reader, "poll", lambda *_: polled)
    monkeypatch.setattr(world.log, "reader", lambda *_, **__: reader)
    with pytest.raises(TopicRecreated):
        world.rows(plan)


@pytest.mark.parametrize("key", [[], ["id"]], ids=["append", "keyed"])
def test_a_topic_that_grew_has_no_tail_for_a_keyed_table(key: list[str]):
    world = World(key=key)
    world.produce(5)
    world.log.add_partitions(TOPIC, 3)
    if not key:
        assert set(world.plan().bounds) == {0, 1}  # the worker lets the third one join
    else:
        with pytest.raises(PartitionsGrown, match="has 3 now"):
            world.plan()


def test_a_log_that_ends_below_the_buffer_is_no_empty_tail():
    world = World()
    world.produce(5)
    world.ingest(5)
    world.log.truncate(TOPIC, 1, 3)
    with pytest.raises(LogTruncated, match=r"partition 1 ends at offset 3, below the position 5"):
        world.plan()
