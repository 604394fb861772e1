"""The columns of a table follow the schemas of its records (`evolution: compatible`), from a real topic to reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import harness_pipelines as hp
from harness_pipelines import faults
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests.integration.tables.test_formats import with_registry
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.registry import RegistryServer, serving
from harness_pipelines_tests.rig import TableRig
from harness_pipelines_tests.wire import avro_bytes, framed, proto_field

COLUMNS = {"id": {"type": "long", "required": True}, "n": "int"}


def order(*fields: tuple[str, Any]) -> dict[str, Any]:
    named = [{"name": name, "type": type_} for name, type_ in (("id", "long"), *fields)]
    return {"type": "record", "name": "Order", "fields": named}


OLD = order(("n", "int"))
NEW = order(("n", "long"), ("more", ["null", "string"]))
BAD = order(("n", "string"))


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with serving(login="reader:s3cret") as server:
        yield server


@pytest.fixture
def known(harness: hp.Harness, registry: RegistryServer) -> Iterator[hp.Harness]:
    with with_registry(harness, registry) as found:
        yield found


def sent(registry: RegistryServer, schema: dict[str, Any], number: int, **more: Any) -> bytes:
    fields = {"id": number, "n": number, **more}
    return framed(avro_bytes(schema, fields), registry.register("orders-value", schema))


def rows(rig: TableRig) -> list[dict[str, Any]]:
    return sorted(rig.harness.table(rig.name).read().to_pylist(), key=lambda row: row["id"])


def whole(rig: TableRig) -> None:
    assert audit_table(rig.stores, rig.harness.table(rig.name).row, full=True).ok
    assert fsck(rig.stores, [rig.name]).ok


def test_the_columns_change_before_the_first_record_that_needs_it_and_what_cannot_be_taken_is_set_aside(
    known: hp.Harness, kafka: KafkaRig, registry: RegistryServer
):
    rig = TableRig(known, kafka, format="avro", columns=COLUMNS, evolution="compatible")
    values = [
        sent(registry, OLD, 1), sent(registry, OLD, 2), sent(registry, NEW, 2**40, more="x"), sent(registry, OLD, 4),
        sent(registry, BAD, 5, n="five"), sent(registry, NEW, 6, more=None),
    ]  # fmt: skip
    kafka.produce(rig.topic, 0, values)
    kafka.produce(rig.topic, 1, [sent(registry, NEW, 7, more="y"), sent(registry, OLD, 8)])

    rig.ingest()

    of_old = {1, 2, 4, 8}
    expected = [
        {"id": number, "n": number, "more": None if number in of_old else text}
        for number, text in ((1, None), (2, None), (4, None), (6, None), (7, "y"), (8, None), (2**40, "x"))
    ]
    assert rows(rig) == expected
    [(at, (reason, detail, _))] = rig.quarantine().items()
    assert (at, reason) == ((0, 4), "schema_not_taken")
    assert "cannot become string" in detail
    table = rig.harness.table(rig.name)
    assert table.row.schema_version == 2
    assert table.row.history[1].starts[0] <= 2  # the other partition may have been first
    [event] = [e.payload for e in table.events() if e.payload.get("stage") == "evolve"]
    assert event["changes"] == ["widen n from int to long", "add more string"]
    assert event["schema_id"] == registry.register("orders-value", NEW)
    rig.tier()
    assert rows(rig) == expected
    whole(rig)


def test_a_table_of_protobuf_follows_beside_a_change_by_hand(
    known: hp.Harness, kafka: KafkaRig, registry: RegistryServer
):
    text = 'syntax = "proto3"; message Order {{ int64 id = 1; int32 n = 2; {} }}'
    old, new = (
        registry.register("protos-value", text.format(more), kind="PROTOBUF")
        for more in ("", "optional string more = 3;")
    )
    rig = TableRig(known, kafka, format="protobuf", columns=COLUMNS, evolution="compatible", partitions=1)
    both = [proto_field(1, number) + proto_field(2, number) for number in (1, 2, 3)]
    values = [framed(both[0], old, indexes=(0,)), framed(both[1] + proto_field(3, "x"), new, indexes=(0,))]
    kafka.produce(rig.topic, 0, [*values, framed(both[2], old, indexes=(0,))])
    by_hand = ColumnChanges(add=(Column(name="hand", type=parse_type("int")),))

    def somebody() -> None:
        rig.harness.table(rig.name).evolve(by_hand)

    faults.arm("evolve.before_lock", somebody)
    try:
        rig.ingest()
    finally:
        faults.disarm()

    assert rows(rig) == [
        {"id": number, "n": number, "hand": None, "more": more} for number, more in ((1, None), (2, "x"), (3, None))
    ]
    history = rig.harness.table(rig.name).row.history
    assert [one.starts for one in history[1:]] == [{0: 1}, {0: 1}]  # what came before is there in the columns of then
    whole(rig)


def test_a_policy_that_was_taken_back_meanwhile_changes_nothing(
    known: hp.Harness, kafka: KafkaRig, registry: RegistryServer
):
    rig = TableRig(known, kafka, format="avro", columns=COLUMNS, evolution="compatible", partitions=1)
    kafka.produce(rig.topic, 0, [sent(registry, NEW, 1, more="x")])

    def by_hand_from_now_on() -> None:
        rig.harness.apply(rig.table.spec.model_copy(update={"evolution": "manual"}))

    faults.arm("ingest.after_plan", by_hand_from_now_on)
    try:
        rig.ingest()
    finally:
        faults.disarm()

    assert rows(rig) == [{"id": 1, "n": 1}]
    table = rig.harness.table(rig.name)
    assert (table.row.schema_version, table.spec.evolution) == (1, "manual")
