"""A log that loses records which were read, and gives their offsets to others, stops the table by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

import harness_pipelines as hp
from harness_pipelines.ports.errors import LogRewritten
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import TopicIdentity, check_epochs
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.run.worker import Worker
from harness_pipelines_tests.integration.kafka.broker import PrivateBroker
from harness_pipelines_tests.memory.log import MemoryLog
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.rig import Row, TableRig

SAYS = r"the last record below the position 20 has leader epoch \d+, the table read it in epoch \d+"


@contextmanager
def read_to_20(broker: PrivateBroker, settings: Settings, **spec: Any) -> Iterator[TableRig]:
    """A table that has read two batches of ten records of one partition."""
    kafka = KafkaRig(broker.bootstrap)
    with hp.connect(replace(settings, kafka=broker.bootstrap, kafka_properties={})) as harness:
        rig = TableRig(harness, kafka, partitions=1, **spec)
        rig.produce(10)
        rig.produce(10)
        rig.tier() if "buffer" in spec else rig.ingest()
        yield rig
    kafka.close()


def cut_and_grown(broker: PrivateBroker, *rigs: TableRig, grown: int) -> None:
    """The second batch of each table is gone; *grown* records come from the offset on where it was."""
    broker.kill()
    for rig in rigs:
        broker.cut(rig.topic, 0, 10)
    broker.start()
    for rig in rigs:
        assert rig.stores.log.watermarks(rig.topic, [0])[0].end == 10
        rig.kafka.produce(rig.topic, 0, rig.values(grown))


@dataclass(frozen=True, slots=True)
class Cut:
    """Tables whose logs were cut while one broker was down: with a buffer, without one, and under a worker."""

    buffered: TableRig
    direct: TableRig
    worked: TableRig
    worker: Worker
    grown: int
    before: Counter[Row]  #: what a read of the first one showed


@pytest.fixture(
    scope="module", params=[pytest.param(10, marks=pytest.mark.long), 15], ids=["to where it was", "beyond"]
)
def cut(request: pytest.FixtureRequest, private_broker: PrivateBroker, settings: Settings) -> Iterator[Cut]:
    with ExitStack() as until:
        buffered, direct, worked = (
            until.enter_context(read_to_20(private_broker, settings, engine="arrow", **spec))
            for spec in ({}, {"buffer": "none"}, {})
        )
        before, worker = buffered.read(), until.enter_context(worked.working())
        cut_and_grown(private_broker, worked, buffered, direct, grown=request.param)
        yield Cut(buffered, direct, worked, worker, request.param, before)


def test_a_log_that_was_cut_while_no_worker_ran_and_has_grown_again_stops_its_table(cut: Cut):
    rig = cut.buffered

    with pytest.raises(LogRewritten, match=SAYS):
        rig.ingest()

    assert rig.read() == cut.before, "what was read stays readable"
    assert rig.status() == {0: (0, 20)}
    assert "leader epoch" in (rig.harness.table(rig.name).row.stopped or "")


def test_without_a_buffer_a_log_that_was_cut_and_has_grown_again_stops_its_table_too(cut: Cut):
    rig = cut.direct
    if cut.grown == 10:
        rig.kafka.produce(rig.topic, 0, rig.values(1))  # what has nothing new is not looked at

    with pytest.raises(LogRewritten, match=SAYS):
        rig.tier()

    assert rig.status() == {0: (20, 20)}
    assert "leader epoch" in (rig.harness.table(rig.name).row.stopped or "")


def test_a_log_that_is_cut_under_a_worker_and_has_grown_again_stops_its_table(cut: Cut):
    wait_until(
        lambda: "leader epoch" in cut.worker.progress[0].trouble.get(Stage.INGEST, ""),
        "the table stops by name",
        deadline_s=120,
    )
    assert cut.worked.status() == {0: (0, 20)}


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
