"""Change events of a real connector through all tiers: a read shows what its source database held in the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import harness_pipelines as hp
from harness_pipelines.formats.json.objects import JsonCodec
from harness_pipelines_tests.fixtures.debezium import Event, load, state
from harness_pipelines_tests.fixtures.debezium.tables import TABLES
from harness_pipelines_tests.keyed import KeyedRig
from harness_pipelines_tests.producer import KafkaRig


def send(rig: KeyedRig, events: list[Event]) -> None:
    for event in events:
        rig.kafka.produce(rig.topic, event.partition, [event.value], key=event.key)


def in_the_end(rig: KeyedRig, name: str) -> list[Any]:
    """What the source's table held, read by the codec of plain JSON."""
    found = JsonCodec([replace(column, source=None) for column in rig.table.spec.columns]).decode(state(name))
    assert found.refused == []
    return sorted(map(repr, found.rows.to_pylist()))


def shown(rig: KeyedRig) -> list[Any]:
    return sorted(map(repr, rig.table.read().to_pylist()))


@pytest.mark.long
@pytest.mark.parametrize(("kind", "name"), [("schema", "customers"), ("plain", "kinds")])
def test_a_read_of_change_events_shows_the_state_of_their_source(
    harness: hp.Harness, kafka: KafkaRig, kind: str, name: str
):
    rig = KeyedRig(harness, kafka, format="debezium", delete="tombstone", layout={}, **TABLES[name])
    events = list(load(kind, name))
    first = len(events) // 2
    send(rig, events[:first])
    rig.merge_all()
    send(rig, events[first:])
    rig.ingest()
    assert shown(rig) == in_the_end(rig, name)  # batch view and buffer
    rig.to_stream()
    assert shown(rig) == in_the_end(rig, name)  # batch view and stream view
    rig.merge_all()
    assert shown(rig) == in_the_end(rig, name) != []  # batch view
    assert rig.batch_rows().num_rows == len(state(name))
    assert rig.quarantine() == {}
    assert rig.table.audit(full=True).to_json()["ok"]


def test_without_a_buffer_spark_reads_change_events_the_same(harness: hp.Harness, kafka: KafkaRig):
    words = {"format": "debezium", "delete": "tombstone", "layout": {}, "buffer": "none", **TABLES["papers_full"]}
    rig = KeyedRig(harness, kafka, **words)
    send(rig, list(load("schema", "papers_full")))
    rig.tier()
    assert shown(rig) == in_the_end(rig, "papers_full") != []


def test_events_that_put_and_delete_nothing_go_to_quarantine_by_name(harness: hp.Harness, kafka: KafkaRig):
    words = {"format": "debezium", "delete": "tombstone", "layout": {}, "views": "stream", **TABLES["papers"]}
    rig = KeyedRig(harness, kafka, **words)
    send(rig, [*load("plain", "papers"), *load("plain", "wiped"), *load("plain", "__debezium-heartbeat.plain")])
    rig.ingest()
    reasons = sorted(reason for reason, _, _ in rig.quarantine().values())
    assert reasons == ["missing_block", *["unavailable_value"] * 3, "unsupported_op"]
    assert rig.table.audit(full=True).to_json()["ok"]
