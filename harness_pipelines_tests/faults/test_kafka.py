"""Kafka away, or no longer what the table was made from."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import harness_pipelines as hp
from harness_pipelines.ports.errors import RecordsLost, TopicCompacted, TopicMissing, TopicRecreated
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.sources.kafka.client import KafkaTimeouts
from harness_pipelines.sources.kafka.log import KafkaLog
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.integration.kafka.broker import PrivateBroker
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.rig import INGEST, Command, TableRig, await_trouble, running

from .conftest import MakeRig

HASTY = KafkaTimeouts(request_s=1.0, lost_after_s=2.0, probe_after_s=0.5)
SPEC = "table: faults.nowhere\ntopic: nowhere\ncolumns: {id: long}\n"


@contextmanager
def nobody_listens() -> Iterator[str]:
    """An address that refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def hasty(settings: Settings, bootstrap: str) -> hp.Harness:
    """A harness on another cluster that gives up early."""
    harness = hp.connect(replace(settings, kafka=bootstrap, kafka_properties={}))
    harness.stores.__dict__["log"] = KafkaLog(bootstrap, timeouts=HASTY)
    return harness


@pytest.mark.long
def test_a_command_without_kafka_ends_with_75_and_names_the_address_and_the_way_on(settings: Settings, tmp_path: Path):
    spec = tmp_path / "t.yaml"
    spec.write_text(SPEC)
    with (
        nobody_listens() as address,
        Command(replace(settings, kafka=address), "table", "apply", str(spec)) as command,
    ):
        code, said = command.await_end()
    assert code == 75, said
    assert re.search(rf"Kafka at {address} gave no answer.*HARNESS_KAFKA.*run the same command again", said), said
    assert "Traceback" not in said


def test_a_worker_without_kafka_says_so_waits_and_goes_on_by_itself(rig: TableRig, settings: Settings):
    rig.produce(5)
    with nobody_listens() as address, hasty(settings, address) as lost:
        worker = Worker(lost.stores, [rig.table.row], WorkerOptions(stages=INGEST))
        with running(worker):
            said = await_trouble(worker, Stage.INGEST)
            assert re.search(rf"Kafka at {address} gave no answer.*nothing was written.*HARNESS_KAFKA", said)
            lost.stores.__dict__["log"] = rig.stores.log
    rig.ingest()
    rig.assert_exact()


@pytest.mark.long
def test_a_broker_that_is_killed_and_comes_back_costs_only_time(private_broker: PrivateBroker, settings: Settings):
    kafka = KafkaRig(private_broker.bootstrap)
    with hasty(settings, private_broker.bootstrap) as harness:
        rig = TableRig(harness, kafka)
        rig.produce(300)
        with rig.working() as worker:
            rig.await_exact()
            private_broker.kill()
            said = await_trouble(worker, Stage.INGEST)
            assert f"Kafka at {private_broker.bootstrap} gave no answer" in said
            assert rig.read() == rig.truth  # what is in the buffer is readable meanwhile
            private_broker.start()
            rig.produce(300)
            rig.await_exact()
            wait_until(lambda: not worker.progress[0].trouble, "the trouble is forgotten")
    kafka.close()


def test_a_table_over_a_topic_that_is_not_there_is_refused_and_the_topic_named(harness: hp.Harness):
    with pytest.raises(TopicMissing, match=r"'faults.f_nowhere' does not exist at .*Create it, or correct `topic`"):
        harness.apply(hp.TableSpec.model_validate({"table": "faults.f_nowhere", "columns": {"id": "long"}}))


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_over_a_compacted_topic_only_a_keyed_table_is_made(make_rig: MakeRig, policy: str):
    config = {"cleanup.policy": policy}
    with pytest.raises(TopicCompacted, match=rf"keeps every record .* is compacted \(cleanup.policy={policy}\).*`key`"):
        make_rig(topic_config=config)
    assert make_rig(topic_config=config, key=["id"]).table.spec.key == ("id",)


@pytest.mark.long
def test_a_topic_deleted_under_a_table_is_named_and_what_was_read_stays_readable(rig: TableRig):
    rig.produce(20)
    with rig.working() as worker:
        rig.await_exact()
        rig.kafka.delete(rig.topic)
        said = await_trouble(worker, Stage.INGEST)
    assert re.search(rf"'{rig.topic}' does not exist.*stays readable; a recreated topic needs a new table", said)
    rig.assert_exact()


def test_a_topic_created_again_is_never_mistaken_for_the_one_that_the_table_follows(rig: TableRig):
    rig.produce(20)
    rig.ingest()
    old = rig.truth
    rig.kafka.delete(rig.topic)
    rig.kafka.create(2, topic=rig.topic)
    rig.produce(40)
    with pytest.raises(
        TopicRecreated,
        match=rf"{rig.topic}.*deleted and created again: expected topic id .*found.*apply a new table",
    ):
        rig.ingest()
    assert rig.read() == old


@pytest.mark.parametrize("count", [10, 40], ids=["fewer records", "more records"])
@pytest.mark.parametrize("buffer", ["postgres", "none"])
def test_a_read_of_the_tail_takes_no_record_of_a_topic_created_again(make_rig: MakeRig, buffer: str, count: int):
    rig = make_rig(buffer=buffer)
    rig.produce(20)
    if buffer == "postgres":
        rig.ingest()
    assert rig.read(tail=True) == rig.truth
    rig.kafka.delete(rig.topic)
    rig.kafka.create(2, topic=rig.topic)
    rig.produce(count)
    with pytest.raises(TopicRecreated, match=rf"{rig.topic}.*deleted and created again"):
        rig.read(tail=True)


def test_a_topic_created_again_under_a_running_worker_adds_no_row(rig: TableRig):
    rig.produce(20)
    with rig.working() as worker:
        rig.await_exact()
        old = rig.truth
        rig.kafka.delete(rig.topic)
        rig.kafka.create(2, topic=rig.topic)
        rig.produce(40)
        said = await_trouble(worker, Stage.INGEST)
        assert rig.topic in said
    assert rig.read() == old


def test_retention_that_passed_unread_records_stops_that_table_by_name_and_no_other(make_rig: MakeRig):
    sick, well = make_rig(partitions=2), make_rig(partitions=1)
    sick.produce(10)
    sick.ingest()
    seen = sick.truth
    sick.produce(10)
    sick.kafka.delete_records(sick.topic, 1, 15)
    worker = Worker(sick.stores, [sick.table.row, well.table.row], WorkerOptions(stages=INGEST))
    with running(worker):
        said = await_trouble(worker, Stage.INGEST)
        well.produce(10)
        well.await_exact()
    assert re.search(
        rf"'{sick.topic}' partition 1 starts at offset 15, above the position 10: retention removed \[10, 15\).*"
        "harness accept-loss",
        said,
    )
    assert not seen - sick.read()
    assert not [row for row in sick.read() if row[0] == 1 and row[1] >= 10]
    with pytest.raises(RecordsLost, match=rf"{sick.topic}.*partition 1"):
        sick.ingest()
