"""A spec that fits no record is seen: at apply, by a table that stops, and by a table that says how much it refuses."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import structlog
from pyspark.sql import Observation

from harness_pipelines.app.checks import few_are_refused
from harness_pipelines.formats.schema.registry import SchemaUnusable
from harness_pipelines.ledgers.postgres.acts.drop import TableInUse
from harness_pipelines.ports.decoded import RecordRefused
from harness_pipelines.ports.ledger import TableExists
from harness_pipelines.protocol.changes.corrections import Wanted
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.serve.page.content import Facts, everything
from harness_pipelines.show.status import KafkaEnds, look
from harness_pipelines.spec.load import dump_spec
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages.ingest.on_engine import IngestTaskStopped
from harness_pipelines.stages.ingest.refusing import FIRST_RECORDS, NothingFits, RefusedTooMany
from harness_pipelines.stages.replay.quarantine import drop, replay
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines.stages.table.sampled import sample
from harness_pipelines_tests.rig import INGEST, TIER, TableRig

from .conftest import MakeRig

LATE = {"id": {"type": "long", "required": True}, "n": "int", "s": "string", "at": "timestamp"}


def applied(rig: TableRig, **words: Any) -> None:
    """Apply the rig's spec with other words."""
    rig.table = rig.harness.apply(TableSpec.model_validate({**dump_spec(rig.table.spec), **words}))


def timed(number: int) -> bytes:
    return b'{"id":%d,"n":1,"s":"row","at":%d}' % (number, 1_700_000_000_000 + number)


@pytest.mark.parametrize("words", [
    {"format": "avro"},
    {"format": "protobuf"},
    {"format": "json-schema"},
    {"format": "debezium-avro", "key": ["id"], "views": "both"},
    {"key": ["id"], "key_format": "avro", "views": "both"},
])  # fmt: skip
def test_a_format_that_needs_a_schema_and_has_none_makes_no_table(make_rig: MakeRig, words: dict[str, Any]):
    word = "key_format: avro" if words.get("key_format") else f"format: {words['format']}"
    with pytest.raises(SchemaUnusable, match=rf"`{word}` needs a schema, and there is none.*HARNESS_REGISTRY"):
        make_rig(**words)


def test_a_table_of_which_no_record_is_a_row_stops_by_name_after_the_first_thousand(make_rig: MakeRig):
    rig = make_rig(partitions=2)
    for partition in (0, 1):
        rig.kafka.produce(rig.topic, partition, [b'{"id":"%d"}' % n for n in range(1200)])
    with pytest.raises(NothingFits, match=rf"{rig.name}: partition \d, offset \d+: all of the first 1,000 .* apply"):
        rig.ingest()
    kept = len(rig.quarantine())
    assert FIRST_RECORDS <= kept <= 2 * FIRST_RECORDS, "what comes before is kept; partitions are taken side by side"
    assert "all of the first 1,000" in (rig.harness.table(rig.name).row.stopped or "")
    with pytest.raises(NothingFits):
        rig.ingest()
    assert len(rig.quarantine()) == kept
    applied(rig, stop_above={"refused": "100%"})
    rig.ingest()
    assert len(rig.quarantine()) == 2400, "with a `stop_above` of its own it goes on"


@pytest.mark.parametrize("route", ["buffer: none", "tasks of Spark"])
def test_that_stop_does_not_depend_on_the_route(make_rig: MakeRig, route: str):
    buffer = "none" if route == "buffer: none" else "postgres"
    rig = make_rig(partitions=1, buffer=buffer)
    rig.kafka.produce(rig.topic, 0, [b'{"id":"%d"}' % n for n in range(1200)])
    stages = TIER if buffer == "none" else INGEST
    options = WorkerOptions(stages=stages, ingest_on="threads" if buffer == "none" else "spark", until_idle=True)
    worker = Worker(rig.stores, [rig.table.row], options)
    with pytest.raises((NothingFits, IngestTaskStopped), match="all of the first 1,000"):
        worker.run()
    assert "all of the first 1,000" in (rig.harness.table(rig.name).row.stopped or "")
    assert len(rig.quarantine()) == (0 if buffer == "none" else FIRST_RECORDS)


@pytest.mark.parametrize("counts", ["sent", "not sent"])
def test_without_a_buffer_too_a_table_stops_at_a_refused_record_where_its_spec_says_so(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, counts: str
):
    if counts == "not sent":  # as a busy server of Spark Connect does
        monkeypatch.setattr(Observation, "get", property(lambda _: {}))
    rig = make_rig(partitions=1, buffer="none", on_error="stop")
    rig.kafka.produce(rig.topic, 0, [*rig.values(5), b"{", *rig.values(5)])
    with pytest.raises(RecordRefused, match="offset 5: malformed: .* `on_error: stop`"):
        rig.tier()
    assert rig.quarantine() == {}
    assert rig.table.positions()[0].bounds.stream_hi == 0


def test_without_a_buffer_words_of_decoding_change_after_that_stop(make_rig: MakeRig):
    rig = make_rig(partitions=1, columns=LATE, buffer="none")
    rig.kafka.produce(rig.topic, 0, [timed(n) for n in range(1100)])
    with pytest.raises(NothingFits):
        rig.tier()
    applied(rig, columns={**LATE, "at": {"type": "timestamp", "from": "epoch_ms"}})
    rig.table = rig.harness.table(rig.name)
    rig.tier()
    assert rig.table.positions()[0].bounds.stream_hi == 1100
    assert rig.read() == rig.truth


@pytest.mark.parametrize("route", ["threads", "tasks of Spark", "buffer: none"])
def test_a_worker_that_was_started_before_that_change_decodes_by_it_when_it_takes_over(make_rig: MakeRig, route: str):
    """It waited for the claim with the spec of then, in each of the threads that ingest: one finds the change first."""
    buffer = "none" if route == "buffer: none" else "postgres"
    rig = make_rig(partitions=2, columns=LATE, buffer=buffer)
    for partition in range(2):
        rig.kafka.produce(rig.topic, partition, [timed(n) for n in range(1100)])
    with pytest.raises(RefusedTooMany):
        rig.ingest() if buffer == "postgres" else rig.tier()
    options = WorkerOptions(
        stages=frozenset({Stage.INGEST, Stage.TIER}),
        until_idle=True,
        ingest_on="spark" if route == "tasks of Spark" else "threads",
    )
    stand_by = Worker(rig.stores, [rig.table.row], options)
    applied(rig, columns={**LATE, "at": {"type": "timestamp", "from": "epoch_ms"}})
    stand_by.run()
    rig.table = rig.harness.table(rig.name)
    if buffer == "postgres":  # those that the first worker refused
        replay(rig.stores, rig.table.row, Wanted())
    assert rig.read() == rig.truth


def test_a_table_that_took_a_row_is_not_stopped_by_others(make_rig: MakeRig):
    rig = make_rig(partitions=1)
    rig.kafka.produce(rig.topic, 0, [*[b"{"] * (FIRST_RECORDS - 1), *rig.values(1), *[b"{"] * 50])
    rig.ingest()
    rig.kafka.produce(rig.topic, 0, [b"{"] * 1500)
    rig.ingest()
    assert rig.table.positions()[0].bounds.buffer_hi == FIRST_RECORDS + 1550


def test_what_decides_is_the_offset_not_how_records_came_in_batches(make_rig: MakeRig):
    rig = make_rig(partitions=1)
    rig.kafka.produce(rig.topic, 0, [*[b"{"] * (FIRST_RECORDS + 1), *rig.values(1)])
    with pytest.raises(NothingFits, match=f"offset {FIRST_RECORDS}:"):
        rig.ingest()


def test_words_of_decoding_change_while_no_record_is_a_row_and_what_was_refused_comes_back(make_rig: MakeRig):
    rig = make_rig(partitions=1, columns=LATE)
    rig.kafka.produce(rig.topic, 0, [timed(n) for n in range(1100)])
    with pytest.raises(RefusedTooMany):
        rig.ingest()
    right = {**LATE, "at": {"type": "timestamp", "from": "epoch_ms"}}
    claim = rig.claim(Stage.INGEST)
    with pytest.raises(TableInUse, match=r"holds ingest; nothing was changed. Stop the worker"):
        applied(rig, columns=right)
    rig.stores.ledger.release(claim)
    applied(rig, columns=right)
    rig.ingest()
    rig.tier()
    done = replay(rig.stores, rig.harness.table(rig.name).row, Wanted())
    assert done.replayed == FIRST_RECORDS, done
    assert rig.read() == rig.truth
    with pytest.raises(TableExists, match="another `columns`"):
        applied(rig, columns=LATE)
    with pytest.raises(TableExists, match=r"another `transform`.*only while no record is a row"):
        applied(rig, transform={"filter": "n > 1"})


def test_apply_says_how_a_sample_fits(make_rig: MakeRig):
    rig = make_rig(partitions=2, columns=LATE)
    good = [b'{"id":%d,"at":"2026-01-01T00:00:00"}' % n for n in range(30)]
    rig.kafka.produce(rig.topic, 0, [*good, timed(1)])
    rig.kafka.produce(rig.topic, 1, good[:3])
    found = sample(rig.stores, rig.table.spec)
    assert found.summary() == (
        "33 of 34 fit; 1 wrong_type in at: expected string, got integer (partition 0, offset 30)"
    )
    assert found.to_json()["records"] == 34


def test_apply_says_that_tombstones_would_name_no_row(make_rig: MakeRig):
    columns = {"a": {"type": "long", "required": True}, "b": {"type": "long", "required": True}}
    rig = make_rig(partitions=1, columns=columns, key=["a", "b"])
    rig.kafka.produce(rig.topic, 0, [b'{"a":1,"b":2}'], key=b'{"a":1,"b":2}')
    assert sample(rig.stores, rig.table.spec).summary() == "1 of 1 fit"
    rig.kafka.produce(rig.topic, 0, [b'{"a":1,"b":3}'], key=b'{"a":1}')
    found = sample(rig.stores, rig.table.spec)
    assert (found.fit, found.records) == (2, 2), "the puts are rows all the same"
    assert found.summary().startswith(
        "2 of 2 fit; a tombstone would be refused, for the record's key does not name a row: "
    )
    assert "`b`" in found.summary() and "(partition 0, offset 1)" in found.summary()


def test_a_table_that_refuses_more_than_one_in_a_hundred_says_so_everywhere(make_rig: MakeRig):
    rig = make_rig(partitions=2)
    rig.kafka.produce(rig.topic, 0, [*rig.values(99), b"{"])
    with structlog.testing.capture_logs() as logs:
        rig.ingest()
    assert state_of(rig) is None and few_are_refused(rig.stores, rig.table.row).passed, "one in a hundred"
    [told] = [one for one in logs if one["event"] == "records.refused"]
    assert (told["reason"], told["offset"], told["records"]) == ("malformed", 99, 1)
    rig.kafka.produce(rig.topic, 1, [*rig.values(98), b"{", b"[]"])
    rig.ingest()
    assert state_of(rig) == "refusing"
    found = few_are_refused(rig.stores, rig.table.row)
    assert not found.passed and "2 of the last 100 offsets of partition 1 are refused" in found.description
    [state] = rig.stores.watch.states([rig.name], limit=timedelta(seconds=30))
    assert state.refused_share == 0.02
    page = Facts(rig.harness)
    lines = page.status(rig.name, sees=everything)
    assert lines["tables"][0]["state"] == "refusing" or lines["tables"][0]["state"] == "stopped"
    assert [one["state"] for one in lines["tables"] if one["table"] == rig.name] == ["refusing"]
    assert any("refusing: 2 of the last 100" in one["text"] for one in lines["open"]["notices"])
    page.close()
    drop(rig.stores, rig.harness.table(rig.name).row, Wanted(partition=1))
    assert state_of(rig) is None, "somebody has dealt with them"


def state_of(rig: TableRig) -> str | None:
    return look(rig.harness, rig.harness.table(rig.name), KafkaEnds(rig.harness)).state
