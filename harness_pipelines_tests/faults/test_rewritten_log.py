"""A log that loses records which were read, and gives their offsets to others, stops the table by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

import harness_pipelines as hp
from harness_pipelines.ports.errors import LogRewritten
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import TopicIdentity, check_epochs
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.integration.kafka.broker import PrivateBroker
from harness_pipelines_tests.memory.log import MemoryLog
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.rig import TableRig

SAYS = r"the last record below the position 20 has leader epoch \d+, the table read it in epoch \d+"


@contextmanager
def read_to_20(broker: PrivateBroker, settings: Settings, **spec: Any) -> Iterator[TableRig]:
    """A table that has read two batches of ten records of one partition."""
    kafka = KafkaRig(broker.bootstrap)
    with hp.connect(replace(settings, kafka=broker.bootstrap, kafka_properties={})) as harness:
        rig = TableRig(harness, kafka, partitions=1, **spec)
        rig.produce(10)
        rig.produce(10)
        rig.tier() if spec else rig.ingest()
        yield rig
    kafka.close()


def cut_and_grown(broker: PrivateBroker, rig: TableRig, *, grown: int) -> None:
    """The second batch is gone; *grown* records come from the offset on where it was."""
    broker.kill()
    broker.cut(rig.topic, 0, 10)
    broker.start()
    assert rig.stores.log.watermarks(rig.topic, [0])[0].end == 10
    rig.kafka.produce(rig.topic, 0, rig.values(grown))


@pytest.mark.parametrize("grown", [pytest.param(10, marks=pytest.mark.long), 15], ids=["to where it was", "beyond"])
def test_a_log_that_was_cut_while_no_worker_ran_and_has_grown_again_stops_its_table(
    private_broker: PrivateBroker, settings: Settings, grown: int
):
    with read_to_20(private_broker, settings) as rig:
        before = rig.read()
        cut_and_grown(private_broker, rig, grown=grown)

        with pytest.raises(LogRewritten, match=SAYS):
            rig.ingest()

        assert rig.read() == before, "what was read stays readable"
        assert rig.status() == {0: (0, 20)}
        assert "leader epoch" in (rig.harness.table(rig.name).row.stopped or "")


@pytest.mark.parametrize("grown", [pytest.param(10, marks=pytest.mark.long), 15], ids=["to where it was", "beyond"])
def test_without_a_buffer_a_log_that_was_cut_and_has_grown_again_stops_its_table_too(
    private_broker: PrivateBroker, settings: Settings, grown: int
):
    with read_to_20(private_broker, settings, buffer="none") as rig:
        cut_and_grown(private_broker, rig, grown=grown)
        if grown == 10:
            rig.kafka.produce(rig.topic, 0, rig.values(1))  # what has nothing new is not looked at

        with pytest.raises(LogRewritten, match=SAYS):
            rig.tier()

        assert rig.status() == {0: (20, 20)}
        assert "leader epoch" in (rig.harness.table(rig.name).row.stopped or "")


def test_a_log_that_is_cut_under_a_worker_and_has_grown_again_stops_its_table(
    private_broker: PrivateBroker, settings: Settings
):
    with read_to_20(private_broker, settings) as rig, rig.working() as worker:
        cut_and_grown(private_broker, rig, grown=15)

        wait_until(
            lambda: "leader epoch" in worker.progress[0].trouble.get(Stage.INGEST, ""),
            "the table stops by name",
            deadline_s=120,
        )
        assert rig.status() == {0: (0, 20)}


@pytest.mark.long
def test_a_broker_that_restarts_with_its_whole_log_stops_nobody(private_broker: PrivateBroker, settings: Settings):
    with read_to_20(private_broker, settings) as rig:
        private_broker.kill()
        private_broker.start()
        rig.produce(10)
        rig.ingest()
        rig.assert_exact()


# -- the rule, over a log in memory ---------------------------------------------------------------------------


def a_log(records: int) -> MemoryLog:
    log = MemoryLog()
    log.create_topic("t", 1)
    for number in range(records):
        log.append("t", 0, b"%d" % number)
    return log


def a_table(log: MemoryLog) -> Any:
    class Table:
        name = "a.t"
        identity: TopicIdentity = log.describe("t")

        class spec:
            topic = "t"

    return Table()


def appended(log: MemoryLog, records: int) -> list[int]:
    return [log.append("t", 0, b"again %d" % number) for number in range(records)]


@pytest.mark.parametrize(
    "change",
    [
        lambda log: (log.truncate("t", 0, 9), appended(log, 1)),
        lambda log: (log.truncate("t", 0, 0), appended(log, 30)),
        lambda log: (log.truncate("t", 0, 5), appended(log, 1), log.truncate("t", 0, 6), appended(log, 9)),
    ],
    ids=["its last record", "all of it", "twice"],
)
def test_a_record_below_the_position_of_a_later_leader_is_named(change: Callable[[MemoryLog], object]):
    log = a_log(10)
    table: TableRow = a_table(log)
    check_epochs(table, log, {0: (10, 0)})
    change(log)
    with pytest.raises(LogRewritten):
        check_epochs(table, log, {0: (10, 0)})


def test_a_later_leader_above_the_position_is_no_loss():
    log = a_log(10)
    log.truncate("t", 0, 10)
    appended(log, 5)
    check_epochs(a_table(log), log, {0: (10, 0)})
    check_epochs(a_table(log), log, {0: (15, 1)})


def test_gaps_below_the_position_are_looked_through():
    log = a_log(3)
    transaction = log.begin()
    for number in range(20):
        log.append("t", 0, b"%d" % number, transaction=transaction)
    transaction.abort()
    end = log.watermarks("t", [0])[0].end
    check_epochs(a_table(log), log, {0: (end, 0)})
    log.truncate("t", 0, 2)
    appended(log, 1)
    transaction = log.begin()
    for number in range(20):
        log.append("t", 0, b"%d" % number, transaction=transaction)
    transaction.abort()
    with pytest.raises(LogRewritten):
        check_epochs(a_table(log), log, {0: (end, 0)})


def test_nothing_is_said_where_nothing_below_the_position_is_left():
    log = a_log(10)
    log.delete_records("t", 0, 10)
    check_epochs(a_table(log), log, {0: (10, 0)})
