"""What only Kafka has: it is read from the topic that the table was made from, to the end, or not at all."""

from __future__ import annotations

import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from harness_pipelines.app.table import Table
from harness_pipelines.drivers.postgres import PostgresUnreachable
from harness_pipelines.formats.schema.registry import NoSchemas
from harness_pipelines.ports.errors import KafkaUnreachable, LogTruncated, TopicRecreated
from harness_pipelines.ports.ledger import new_lease, view_names
from harness_pipelines.ports.source import PartitionBatch
from harness_pipelines.protocol.keys import PartitionsGrown
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.read import tail
from harness_pipelines.read.plan import make_plan
from harness_pipelines.read.tail import TailSilent, read_tail
from harness_pipelines.spec.types import iceberg_fields
from harness_pipelines.spec.where import WhereError
from harness_pipelines_tests.contract.stores_rig import MemoryRig, fresh_view
from harness_pipelines_tests.memory.log import MemoryLog, MemoryLogReader

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
        self.stores: Any = SimpleNamespace(leases=self.rig.leases, log=self.log, schemas=NoSchemas())

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
        lease = timedelta(minutes=1)
        return make_plan(self.stores, self.table, at=None, tail=True, holder="test", lease=lease, lease_id=new_lease())

    def rows(self, plan: ReadPlan) -> pa.Table:
        assert plan.tail is not None
        return read_tail(self.stores, self.table, plan.tail)

    @property
    def leases(self) -> int:
        """How many are alive."""
        with self.rig.state.transaction() as books:
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
    monkeypatch.setattr(reader, "poll", lambda *_, **__: polled)
    monkeypatch.setattr(world.log, "reader", lambda *_, **__: reader)
    with pytest.raises(TopicRecreated):
        world.rows(plan)


class OneSilent:
    """A reader to whom partition 0 gives records without end, and partition 1 none."""

    def __init__(self, log: MemoryLog, *, heeds_pause: bool) -> None:
        self._log, self._inner, self._heeds_pause = log, log.reader(TOPIC, {0: 0}), heeds_pause
        self._deadline = time.monotonic() + 60.0

    def __enter__(self) -> OneSilent:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to give back."""

    def poll(self, *_: object, **__: object) -> list[PartitionBatch]:
        assert time.monotonic() < self._deadline, "the read does not end"
        self._log.append(TOPIC, 0, b'{"id": 1}')
        return self._inner.poll(1, 0)

    def pause(self, partition: int) -> None:
        if self._heeds_pause:
            self._inner.pause(partition)


@pytest.mark.parametrize("heeds_pause", [True, False])
def test_a_silent_partition_ends_the_read_however_much_another_one_has(
    heeds_pause: bool, monkeypatch: pytest.MonkeyPatch
):
    world = World()
    world.produce(2)
    plan = world.plan()
    monkeypatch.setattr(tail, "SILENCE_S_MAX", 0.05)
    reader = OneSilent(world.log, heeds_pause=heeds_pause)
    monkeypatch.setattr(world.log, "reader", lambda *_, **__: reader)
    with pytest.raises(TailSilent, match=r"no record of t for 0.05 s, waiting for \{1: 2\}"):
        world.rows(plan)


def test_nothing_is_fetched_of_a_partition_that_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch):
    world = World()
    world.produce(5)
    plan = world.plan()
    paused: list[int] = []
    monkeypatch.setattr(MemoryLogReader, "pause", lambda _, partition: paused.append(partition))
    world.rows(plan)
    assert sorted(paused) == [0, 1]


def test_a_plan_that_fails_leaves_no_lease():
    world = World()
    world.produce(5)
    world.log.reachable = False
    with pytest.raises(KafkaUnreachable):
        world.plan()
    world.log.reachable = True
    world.create_again()
    with pytest.raises(TopicRecreated):
        world.plan()
    assert world.leases == 0


def test_a_plan_that_fails_while_the_ledger_goes_away_says_what_failed_first(monkeypatch: pytest.MonkeyPatch):
    world = World()
    world.log.reachable = False

    def away(_: str) -> None:
        raise PostgresUnreachable("Postgres is not answering")

    monkeypatch.setattr(world.rig.leases, "end", away)
    with pytest.raises(KafkaUnreachable):
        world.plan()


def test_a_frame_that_cannot_be_made_leaves_no_lease_but_its_callers():
    world = World()
    nobody: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda _name, default: default))
    harness: Any = SimpleNamespace(stores=world.stores)
    table = Table(harness, world.table)
    with pytest.raises(WhereError):
        table.to_spark(nobody, where="id = = 1", lease_s=86_400)
    assert world.leases == 0
    plan = table.plan()
    with pytest.raises(WhereError):
        table.to_spark(nobody, where="id = = 1", plan=plan)
    assert world.leases == 1


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
