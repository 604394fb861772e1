"""The columns of a table change in all tiers at one instant: rows, old versions, records and workers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from harness_pipelines.protocol.evolution import Changes
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.rig import OTREE, TableRig


def add(name: str, type_: str) -> Column:
    return Column(name=name, type=parse_type(type_))


def rows(rig: TableRig, *, at: int | None = None, spark: bool = False) -> list[dict[str, Any]]:
    table = rig.harness.table(rig.name)
    found: pa.Table = table.to_spark(rig.stores.spark(), at=at).toArrow() if spark else table.read(at=at)
    return sorted(found.to_pylist(), key=lambda row: row["id"])


def merged(rig: TableRig) -> None:
    rig.worker(OTREE, until_idle=True).run()


def same(rig: TableRig, expected: list[dict[str, Any]], *, at: int | None = None) -> None:
    assert rows(rig, at=at) == expected
    assert rows(rig, at=at, spark=True) == expected


@pytest.mark.parametrize("views", ["both", "stream", "batch"])
def test_a_column_is_there_in_every_tier_from_one_version_on(make_rig: MakeRig, views: str):
    rig = make_rig(views=views, layout={"columns": ["id"]}, partitions=1)
    rig.produce(4)
    rig.ingest()
    rig.tier()
    rig.produce(3)
    rig.ingest()
    if views == "both":
        merged(rig)  # a version with rows in the buffer
        rig.tier()
        rig.produce(3)
        rig.ingest()
    before = rows(rig)
    old = rig.stores.tables.head(rig.table.row).version
    then = {version: rows(rig, at=version) for version in range(1, old)}

    published = rig.harness.table(rig.name).evolve(Changes(add=(add("more", "string"),)))

    assert (published.version, published.schema_version) == (old + 1, 2)
    later = [{**row, "more": None} for row in before]
    then[old] = rows(rig, at=old)
    assert {*then[old][0]} == {"id", "n", "s"}
    same(rig, later)
    for version, found in then.items():
        same(rig, found, at=version)
    rig.kafka.produce(rig.topic, 0, [b'{"id":1000,"n":1,"s":"x","more":"yes"}'])
    rig.ingest()
    later.append({"id": 1000, "n": 1, "s": "x", "more": "yes"})
    same(rig, later)
    rig.tier()
    same(rig, later)
    if views == "both":
        merged(rig)
        same(rig, later)
    for version, found in then.items():
        same(rig, found, at=version)
