"""Records with the old and the new name of a field, side by side in one topic, by every way into a table."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

import harness_pipelines as hp
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages.ingest.on_engine import ingest_on_spark
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import OTREE, TableRig

COLUMNS: dict[str, Any] = {
    "id": {"type": "long", "required": True, "aliases": ["nr"]},
    "total": {"type": "decimal(12,2)", "aliases": ["amount", "sum"]},
}
COUNT = 30
MEANT = [(n, Decimal(f"{n}.50")) for n in range(COUNT) if n % 10 != 7]


def record(number: int) -> bytes:
    """Each third has one of the names; each tenth has none of the key's."""
    key = b"x" if number % 10 == 7 else (b"id", b"nr")[number % 2]
    return b'{"%b":%d,"%b":"%d.5"}' % (key, number, (b"total", b"amount", b"sum")[number % 3], number)


def shown(table: hp.Table, **words: Any) -> list[tuple[Any, ...]]:
    found = table.read(columns=["id", "total"], **words)
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("way", ["ingest", "ingest on Spark", "no buffer"])
def test_a_field_is_found_by_any_of_its_names(harness: hp.Harness, kafka: KafkaRig, way: str):
    rig = TableRig(harness, kafka, columns=COLUMNS, buffer="none" if way == "no buffer" else "postgres", views="both")
    for partition in (0, 1):
        kafka.produce(rig.topic, partition, [record(n) for n in range(COUNT) if n // 2 % 2 == partition])
    assert shown(rig.table, tail=True) == MEANT
    if way == "ingest":
        rig.ingest()
    elif way == "ingest on Spark":
        ingest_on_spark(rig.stores, rig.table.row, rig.claim(Stage.INGEST))
    assert shown(rig.table) == MEANT
    rig.tier()
    rig.worker(OTREE, until_idle=True).run()
    assert shown(rig.table) == MEANT
    assert [detail for _, detail, _ in rig.quarantine().values()] == ["`id`: required, but missing"] * 3
    assert rig.table.audit(full=True).to_json()["ok"]
    assert fsck(rig.stores, [rig.name]).ok
    assert harness.table(rig.name).spec == rig.table.spec  # as the ledger keeps it
