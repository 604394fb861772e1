"""Several topics of one table, and several tables of one topic. Judged by the producer's own logs."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import orjson
import pytest

import harness_pipelines as hp
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.buffers.postgres import reader
from harness_pipelines.ports.errors import TopicCompacted, TopicRecreated
from harness_pipelines.ports.ledger import TableExists
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.topics import place, table_partition
from harness_pipelines.stages.ingest.ingest import join_partitions
from harness_pipelines.stages.ingest.on_engine import ingest_on_spark
from harness_pipelines_tests.integration.tables.test_otree import merged
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import COLUMNS, COORDINATES, Row, TableRig

PARTS = (0, 1, table_partition(1, 0))


class TwoTopics(TableRig):
    """A table of two topics, of two partitions and of one."""

    def __init__(self, harness: hp.Harness, kafka: KafkaRig, **spec: Any) -> None:
        self.harness, self.kafka = harness, kafka
        name = f"f_{uuid.uuid4().hex[:10]}"
        self.topics = [kafka.create(2, topic=f"{name}_a"), kafka.create(1, topic=f"{name}_b")]
        self.spec = {"table": f"faults.{name}", "topics": self.topics, "columns": COLUMNS, **spec}
        self.table = harness.apply(hp.TableSpec.model_validate(self.spec))
        self._next, self._misfits = 0, set()

    def produce(self, count: int) -> None:
        for number in PARTS:
            self.kafka.produce(*place(",".join(self.topics), number), self.values(count))

    def produce_misfit(self, value: bytes | None, partition: int = 0) -> int:
        [offset] = self.kafka.produce(*place(",".join(self.topics), partition), [value])
        self._misfits.add((partition, offset))
        return offset

    @property
    def truth(self) -> Counter[Row]:
        return Counter(
            (table_partition(i, p), offset, orjson.loads(value or b"")["id"])
            for i, topic in enumerate(self.topics)
            for p, records in self.kafka.acked(topic).items()
            for offset, value in records.items()
            if (table_partition(i, p), offset) not in self._misfits
        )

    def by_spark(self) -> Counter[Any]:
        found = self.table.to_spark(self.stores.spark(), columns=["id", *COORDINATES])
        return Counter((r["_kafka_partition"], r["_kafka_offset"], r["id"]) for r in found.collect())

    def assert_sound(self) -> None:
        report = audit_table(self.stores, self.table.row, full=True, processes=1)
        assert report.ok, report.to_json()
        checked = fsck(self.stores, [self.name])
        assert checked.ok, checked.to_json()


def test_two_topics_are_one_table_in_every_tier_until_one_of_them_is_another(
    harness: hp.Harness, kafka: KafkaRig, monkeypatch: pytest.MonkeyPatch
):
    rig = TwoTopics(harness, kafka, tier={"max_rows": 1})
    rig.produce(100)
    rig.produce_misfit(b"{not json", PARTS[2])
    rig.ingest()
    rig.assert_exact()
    with monkeypatch.context() as many:
        many.setattr(reader, "POINT_OFFSETS_MAX", 0)  # the way of reads of many offsets
        rig.assert_exact()
        assert rig.table.read(columns=["id"], where=f"_kafka_partition = {PARTS[1]}").num_rows == 100
    rig.tier()
    assert merged(rig) is not None
    rig.produce(20)
    claim = rig.claim(Stage.INGEST)
    assert ingest_on_spark(rig.stores, rig.table.row, claim).rows == 60
    rig.stores.ledger.release(claim)
    rig.assert_exact()
    assert rig.by_spark() == rig.truth
    rig.produce(5)
    assert rig.read(tail=True) == rig.truth
    rig.assert_sound()
    whole = rig.table.read(columns=["id"], where=f"_kafka_partition >= {PARTS[2]}", tail=True)
    assert whole.num_rows == 125, "the second topic by itself"

    other = harness.apply(hp.TableSpec(table=f"{rig.name}_b", topic=rig.topics[1], columns=COLUMNS, views="stream"))
    kafka.add_partitions(rig.topics[0], 3)
    known = rig.stores.segments.positions(rig.table.row)
    assert join_partitions(rig.table.row, rig.stores.log, known=known) == {2: 0}, "what the worker lets join"
    assert other.read(tail=True).num_rows == 125, "one topic has several tables"

    kafka.delete(rig.topics[1])
    kafka.create(1, topic=rig.topics[1])
    with pytest.raises(TopicRecreated, match=f"topic '{rig.topics[1]}' was deleted and created again"):
        rig.read(tail=True)


@pytest.mark.long
def test_without_a_buffer_spark_reads_each_topic_by_its_own_numbers(harness: hp.Harness, kafka: KafkaRig):
    rig = TwoTopics(harness, kafka, buffer="none", views="stream")
    rig.produce(50)
    offset = rig.produce_misfit(b"{not json", PARTS[2])
    rig.tier()
    assert rig.status()[PARTS[2]] == (offset + 1, offset + 1)
    rig.produce(5)
    rig.assert_exact()
    assert rig.by_spark() == rig.truth, "lake and tail"


def test_the_topics_of_a_table_stay_and_none_may_be_compacted(harness: hp.Harness, kafka: KafkaRig):
    rig = TwoTopics(harness, kafka, views="stream")
    assert harness.apply(hp.TableSpec.model_validate(rig.spec)).row == rig.table.row
    with pytest.raises(TableExists, match="exists with another `topic`"):
        harness.apply(hp.TableSpec.model_validate({**rig.spec, "topics": rig.topics[::-1]}))
    compacted = kafka.create(1, config={"cleanup.policy": "compact"})
    with pytest.raises(TopicCompacted, match=f"topic '{compacted}' is compacted"):
        harness.apply(hp.TableSpec(table=f"{rig.name}_c", topics=[rig.topics[0], compacted], columns=COLUMNS))
