"""Records of each format from a real topic to a read, by ingest and by Spark, with a schema registry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import harness_pipelines as hp
from harness_pipelines.ledgers.postgres.views.quarantine import set_aside
from harness_pipelines.protocol.changes.corrections import Wanted
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.sources.registry import RegistryAway
from harness_pipelines.stages.ingest.on_engine import ingest_on_spark
from harness_pipelines.stages.run.worker import Worker
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.registry import RegistryServer, serving
from harness_pipelines_tests.rig import INGEST, TIER, TableRig, await_trouble
from harness_pipelines_tests.wire import avro_bytes, framed, proto_field

AVRO = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"}, {"name": "n", "type": "int"}, {"name": "s", "type": ["null", "string"]},
    ],
}  # fmt: skip
PROTO = """
syntax = "proto3"; package shop; import "common/unit.proto";
message Order { int64 id = 1; int32 n = 2; optional string s = 3; common.Unit unit = 4; }
"""
UNIT = 'syntax = "proto3"; package common; message Unit { string name = 1; }'
JSON = '{"type": "object", "properties": {"n": {"minimum": 0}}}'


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with serving(login="reader:s3cret") as server:
        yield server


@contextmanager
def with_registry(harness: hp.Harness, server: RegistryServer) -> Iterator[hp.Harness]:
    """The same services and the registry."""
    properties = {"basic.auth.user.info": server.login or "", "timeout": "2"}
    settings = replace(harness.stores.settings, registry=server.url, registry_properties=properties)
    with hp.connect(settings) as found:
        yield found


def value(server: RegistryServer, format_: str, number: int) -> bytes:
    """A record of the format, written by other means than it is read by."""
    text = f"row {number}"
    match format_:
        case "avro":
            schema_id = server.register("orders-value", AVRO)
            return framed(avro_bytes(AVRO, {"id": number, "n": number % 100, "s": text}), schema_id)
        case "protobuf":
            server.register("unit", UNIT, kind="PROTOBUF")
            references = [{"name": "common/unit.proto", "subject": "unit", "version": 1}]
            schema_id = server.register("orders-value", PROTO, kind="PROTOBUF", references=references)
            payload = proto_field(1, number) + proto_field(2, number % 100) + proto_field(3, text)
            return framed(payload, schema_id, indexes=(0,))
        case "json-schema":
            schema_id = server.register("orders-value", JSON, kind="JSON")
            return framed(b'{"id":%d,"n":%d,"s":"%s"}' % (number, number % 100, text.encode()), schema_id)
    raise AssertionError(format_)


COLUMNS = {"id": {"type": "long", "required": True}, "n": "int", "s": "string"}
COUNT = 40


def shown(rig: TableRig) -> list[tuple[Any, ...]]:
    found = rig.table.read(columns=["id", "n", "s"])
    return sorted(zip(*(found.column(name).to_pylist() for name in ("id", "n", "s")), strict=True))


@pytest.mark.turns("buffer")
@pytest.mark.parametrize("buffer", ["postgres", "none"])
@pytest.mark.parametrize("format_", ["avro", "protobuf", "json-schema"])
def test_what_was_produced_is_read(
    harness: hp.Harness, kafka: KafkaRig, registry: RegistryServer, format_: str, buffer: str
):
    with with_registry(harness, registry) as known:
        rig = TableRig(known, kafka, format=format_, buffer=buffer, columns=COLUMNS)
        for partition in (0, 1):
            wanted = [value(registry, format_, i) for i in range(partition, COUNT, 2)]
            kafka.produce(rig.topic, partition, [*wanted[:5], b"\x00\x00", framed(b"\x00", 4_711), *wanted[5:]])
        meant = [(i, i % 100, f"row {i}") for i in range(COUNT)]
        if buffer == "none":
            assert shown(rig) == meant  # from the log
        else:
            rig.ingest()
            assert shown(rig) == meant
        rig.tier()
        assert shown(rig) == meant
        reasons = [reason for reason, _, _ in rig.quarantine().values()]
        assert sorted(reasons) == ["truncated_header"] * 2 + ["unknown_schema"] * 2
        by_schema = set_aside(rig.stores.readers, rig.table.row, Wanted(schema_id=4_711), limit=9)
        assert [one["reason"] for one in by_schema] == ["unknown_schema"] * 2
        assert rig.table.audit(full=True).to_json()["ok"]


@pytest.mark.parametrize("buffer", ["postgres", "none"])
def test_bytes_and_headers_are_read_as_they_were_sent(harness: hp.Harness, kafka: KafkaRig, buffer: str):
    columns = {
        "v": "binary", "k": {"type": "binary", "from": "raw_key"},
        "h": {"type": "list<struct<key: string, value: binary>>", "from": "headers"},
    }  # fmt: skip
    rig = TableRig(harness, kafka, format="raw", buffer=buffer, columns=columns, partitions=1)
    kafka.produce(rig.topic, 0, [b"\x00\xff"], key=b"\x01", headers=[("a", b"\x00"), ("a", None)])
    kafka.produce(rig.topic, 0, [None])
    meant = [
        {"v": b"\x00\xff", "k": b"\x01", "h": [{"key": "a", "value": b"\x00"}, {"key": "a", "value": None}]},
        {"v": None, "k": None, "h": None},
    ]
    if buffer == "postgres":
        rig.ingest()
        assert rig.table.read(columns=["v", "k", "h"]).to_pylist() == meant
    else:
        assert rig.table.read(columns=["v", "k", "h"]).to_pylist() == meant
    rig.tier()
    assert rig.table.read(columns=["v", "k", "h"]).to_pylist() == meant
    assert rig.table.audit(full=True).to_json()["ok"]


def test_while_the_registry_is_away_its_table_waits_and_others_go_on(
    harness: hp.Harness, kafka: KafkaRig, registry: RegistryServer
):
    with with_registry(harness, registry) as known:
        waiting = TableRig(known, kafka, format="avro", columns=COLUMNS, partitions=1)
        kafka.produce(waiting.topic, 0, [value(registry, "avro", i) for i in range(3)])
        other = TableRig(known, kafka, partitions=1)
        registry.fail_with = 503
        other.produce(3)
        with other.working(), waiting.working() as worker:
            assert "the schema registry at http://127.0.0.1" in await_trouble(worker, Stage.INGEST)
            other.await_exact()
            assert waiting.quarantine() == {}
            registry.fail_with = None
            wait_until(lambda: len(shown(waiting)) == 3, "the table goes on")
        assert waiting.quarantine() == {}


#: How a registry keeps its schemas to itself: its status (0: it is slow) and answer, and what is shown meanwhile.
DENIALS: dict[str, tuple[int, Any, str]] = {
    "login": (401, {"error_code": 401, "message": "Unauthorized"}, "the login at the schema registry"),
    "rights": (403, {"error_code": 403, "message": "Forbidden"}, "the login at the schema registry"),
    "too many": (429, {"error_code": 429, "message": "Too Many Requests"}, "gave no answer .*HTTP 429"),
    "maintenance": (503, "<html>", "gave no answer .*HTTP 503"),
    "a gateway": (200, {"message": "please log in"}, "gave no answer .*no schema registry"),
    "a wrong path": (404, {"error_code": 404, "message": "Not Found"}, "gave no answer .*HTTP 404"),
    "slow": (0, None, "gave no answer .*Timeout"),
}


def says(worker: Worker, why: str) -> bool:
    return re.search(why, await_trouble(worker, Stage.INGEST)) is not None


def has(rig: TableRig, rows: int) -> bool:
    return len(shown(rig)) == rows


def test_a_registry_that_denies_for_a_while_sets_no_record_aside_and_is_asked_again(
    harness: hp.Harness, kafka: KafkaRig, registry: RegistryServer
):
    with with_registry(harness, registry) as known:
        rig = TableRig(known, kafka, format="avro", columns=COLUMNS, partitions=1)
        with rig.working(INGEST) as worker:
            for number, (status, answer, why) in enumerate(DENIALS.values()):
                schema = {**AVRO, "doc": f"registered for {number}"}  # one that nobody has asked for
                schema_id = registry.register("orders-value", schema)
                registry.fail_with, registry.answer_with = status or None, answer
                registry.delay_s = 0.0 if status else 3.0
                row = {"id": number, "n": number, "s": f"row {number}"}
                kafka.produce(rig.topic, 0, [framed(avro_bytes(AVRO, row), schema_id)])
                wait_until(partial(says, worker, why), why)
                assert len(shown(rig)) == number and rig.quarantine() == {}
                registry.fail_with, registry.delay_s = None, 0.0
                wait_until(partial(has, rig, number + 1), "the table goes on")
        assert rig.quarantine() == {}
        assert shown(rig) == [(i, i, f"row {i}") for i in range(len(DENIALS))]


@pytest.mark.long
@pytest.mark.parametrize("denial", ["login", "a gateway"])
def test_without_a_buffer_a_registry_that_denies_for_a_while_is_asked_again(
    harness: hp.Harness, kafka: KafkaRig, registry: RegistryServer, denial: str
):
    with with_registry(harness, registry) as known:
        rig = TableRig(known, kafka, format="avro", columns=COLUMNS, buffer="none", partitions=1, tier={"max_rows": 1})
        kafka.produce(rig.topic, 0, [value(registry, "avro", i) for i in range(3)])
        registry.fail_with, registry.answer_with, _ = DENIALS[denial]
        with rig.working(TIER) as worker:
            assert "registry" in await_trouble(worker, Stage.TIER)
            registry.fail_with = None
            wait_until(lambda: rig.status()[0][0] == 3, "the table goes on")
        assert shown(rig) == [(i, i, f"row {i}") for i in range(3)]


@pytest.mark.long
def test_without_a_buffer_an_outage_of_the_registry_counts_against_no_move(
    harness: hp.Harness, kafka: KafkaRig, registry: RegistryServer
):
    with with_registry(harness, registry) as known:
        rig = TableRig(known, kafka, format="avro", columns=COLUMNS, buffer="none", partitions=1, tier={"max_rows": 1})
        kafka.produce(rig.topic, 0, [value(registry, "avro", i) for i in range(3)])
        registry.fail_with = 503
        with rig.working(TIER) as worker:
            assert "RegistryAway" in await_trouble(worker, Stage.TIER)
            registry.fail_with = None
            wait_until(lambda: rig.status()[0][0] == 3, "the table goes on")
        assert shown(rig) == [(i, i, f"row {i}") for i in range(3)]


def test_a_keyed_table_of_avro_shows_the_newest_row_and_deletes_by_its_key(
    harness: hp.Harness, kafka: KafkaRig, registry: RegistryServer
):
    with with_registry(harness, registry) as known:
        rig = TableRig(known, kafka, format="avro", columns=COLUMNS, key=["id"], partitions=1)
        key = registry.register("orders-key", '"long"')
        for number, there in ((1, True), (2, True), (1, False)):
            sent = value(registry, "avro", number) if there else None
            kafka.produce(rig.topic, 0, [sent], key=framed(avro_bytes("long", number), key))
        rig.worker(INGEST, until_idle=True).run()
        assert shown(rig) == [(2, 2, "row 2")]
        rig.tier()
        assert shown(rig) == [(2, 2, "row 2")]


def test_a_spec_with_a_schema_that_does_not_give_its_columns_is_not_applied(harness: hp.Harness, kafka: KafkaRig):
    with pytest.raises(hp.HarnessError, match="the `schema` of the spec: `s`: a union of int, string"):
        broken = str(AVRO).replace("'", '"').replace('["null", "string"]', '["int", "string"]')
        TableRig(harness, kafka, format="avro", columns=COLUMNS, schema={"text": broken})


def test_a_read_says_try_again_while_the_registry_is_away(
    harness: hp.Harness, kafka: KafkaRig, registry: RegistryServer
):
    with with_registry(harness, registry) as known:
        rig = TableRig(known, kafka, format="avro", columns=COLUMNS, buffer="none", partitions=1)
        kafka.produce(rig.topic, 0, [value(registry, "avro", 1)])
        registry.fail_with = 500
        with pytest.raises(RegistryAway):
            rig.table.read()


def test_ingest_in_spark_tasks_asks_the_registry_from_there(
    harness: hp.Harness, kafka: KafkaRig, registry: RegistryServer
):
    with with_registry(harness, registry) as known:
        rig = TableRig(known, kafka, format="avro", columns=COLUMNS, partitions=1)
        kafka.produce(rig.topic, 0, [value(registry, "avro", i) for i in range(5)])
        ingest_on_spark(known.stores, rig.table.row, rig.claim(Stage.INGEST))
        assert shown(rig) == [(i, i, f"row {i}") for i in range(5)]
