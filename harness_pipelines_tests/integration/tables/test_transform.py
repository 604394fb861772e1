"""Records that are transformed on their way: by ingest, by Spark, from the tail; and what audits make of them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

import harness_pipelines as hp
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.formats.transform import TransformUnusable
from harness_pipelines.ledgers.postgres.views.status import Overview
from harness_pipelines.ports.ledger import TableExists
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages.ingest.on_engine import ingest_on_spark
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import OTREE, TableRig

COLUMNS: dict[str, Any] = {"id": {"type": "long", "required": True}, "city": "string", "total": "decimal(12,2)"}
TRANSFORM: dict[str, Any] = {
    "fields": {"price": "decimal(9,2)", "quantity": "int", "customer": "struct<city: string>", "op": "string"},
    "derive": {"city": "customer.city", "total": "price * quantity"},
    "filter": "op IS DISTINCT FROM 'test'",
}
COUNT = 30


def record(number: int) -> bytes:
    """Each fifth is a test; each seventh has a total that is too large."""
    op = "test" if number % 5 == 4 else "order"
    price = "9999999.99" if number % 7 == 6 else f"{number}.50"
    quantity = 2_000_000 if number % 7 == 6 else 2
    return b'{"id":%d,"price":%b,"quantity":%d,"customer":{"city":"c%d"},"op":"%b"}' % (
        number, price.encode(), quantity, number % 3, op.encode(),
    )  # fmt: skip


TESTS = [n for n in range(COUNT) if n % 5 == 4]
LARGE = [n for n in range(COUNT) if n % 7 == 6 and n not in TESTS]
MEANT = [(n, f"c{n % 3}", Decimal(f"{n * 2 + 1}.00")) for n in range(COUNT) if n not in TESTS and n not in LARGE]


def shown(table: hp.Table) -> list[tuple[Any, ...]]:
    found = table.read(columns=["id", "city", "total"])
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


def produced(harness: hp.Harness, kafka: KafkaRig, **words: Any) -> TableRig:
    rig = TableRig(harness, kafka, columns=COLUMNS, transform=TRANSFORM, **words)
    for partition in (0, 1):
        kafka.produce(rig.topic, partition, [record(n) for n in range(partition, COUNT, 2)])
    return rig


@pytest.mark.parametrize("way", ["ingest", "ingest on Spark", "no buffer"])
def test_a_row_is_what_the_transform_makes_of_its_record(harness: hp.Harness, kafka: KafkaRig, way: str):
    rig = produced(harness, kafka, buffer="none" if way == "no buffer" else "postgres", views="both")
    if way == "ingest":
        rig.ingest()
    elif way == "ingest on Spark":
        ingest_on_spark(rig.stores, rig.table.row, rig.claim(Stage.INGEST))
    assert shown(rig.table) == MEANT
    rig.tier()
    rig.worker(OTREE, until_idle=True).run()
    assert shown(rig.table) == MEANT
    assert {reason for reason, _, _ in rig.quarantine().values()} == {"transform"}
    assert len(rig.quarantine()) == len(LARGE)
    assert rig.table.audit(full=True).to_json()["ok"]
    assert fsck(rig.stores, [rig.name]).ok
    if way != "no buffer":
        assert Overview(rig.stores.readers).counts(rig.table.row).filtered == len(TESTS)


def test_one_topic_becomes_two_tables(harness: hp.Harness, kafka: KafkaRig):
    orders = produced(harness, kafka, buffer="none")
    words = {**orders.table.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)}
    words |= {"table": f"{orders.name}_tests", "transform": {**TRANSFORM, "filter": "op = 'test'"}}
    tests = harness.apply(hp.TableSpec.model_validate(words))
    assert shown(orders.table) == MEANT
    assert [row[0] for row in shown(tests)] == [n for n in TESTS if n % 7 != 6]


def test_a_transform_cannot_change_and_one_that_is_unusable_makes_no_table(harness: hp.Harness, kafka: KafkaRig):
    rig = produced(harness, kafka)
    rig.ingest()
    other = rig.table.spec.model_copy(update={"transform": None})
    with pytest.raises(TableExists, match="another `transform`"):
        harness.apply(other)
    words = rig.table.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    words |= {"table": f"{rig.name}_wrong", "transform": {**TRANSFORM, "filter": "random() > 0.5"}}
    with pytest.raises(TransformUnusable, match=r"random\(\) gives another value"):
        harness.apply(hp.TableSpec.model_validate(words))
    assert f"{rig.name}_wrong" not in [table.name for table in harness.tables()]
