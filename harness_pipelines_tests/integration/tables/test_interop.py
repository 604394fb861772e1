"""The lake is plain Iceberg: other engines read both views from their metadata files and see what was produced."""

from __future__ import annotations

import random
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

import harness_pipelines as hp
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.services import Endpoints
from harness_pipelines.stages.otree.otree import otree_once
from harness_pipelines_tests.engine_rows import COLUMNS, Row, plain, record, without_nested_null
from harness_pipelines_tests.engines import READERS, with_spark
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import COORDINATES, TableRig

RECORDS = 120  #: per partition and round
PARTITIONS, ROUNDS = 2, 2


def encoded(row: Row) -> bytes:
    def text(value: Any) -> str:
        return b64encode(value).decode() if isinstance(value, bytes) else str(value)

    clock = row["clock"] and str(row["clock"])  # orjson 3.13 leaves out a leading 0 of a time's microseconds
    return orjson.dumps(row | {"clock": clock}, default=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """A table that went through two merges and a relayout."""

    views: Mapping[str, str]  #: metadata files by what they pin
    rows: list[Row]  #: what was produced, with its coordinate, in that order


@pytest.fixture(scope="module")
def lake(harness: hp.Harness, endpoints: Endpoints) -> Iterator[Lake]:
    assert endpoints.kafka is not None
    with closing(KafkaRig(endpoints.kafka, properties=endpoints.kafka_login)) as kafka:
        yield filled(harness, kafka)


def filled(harness: hp.Harness, kafka: KafkaRig) -> Lake:
    rng = random.Random(5)
    layout = {"columns": ["i", "s", "wide"], "regions": 6}
    rig = TableRig(harness, kafka, partitions=PARTITIONS, views="both", columns=COLUMNS, layout=layout)
    made: dict[int, Row] = {}
    for _ in range(ROUNDS):
        for partition in range(PARTITIONS):
            rows = [record(len(made) + i, rng) for i in range(RECORDS)]
            kafka.produce(rig.topic, partition, [encoded(row) for row in rows])
            made |= {row["id"]: row for row in rows}
        rig.ingest()
        rig.tier()
        clustered(rig)
    merged = batch(rig)
    clustered(rig)
    assert [bool(move["lo"]) for move in harness.stores.ledger.moves(rig.table.row, stage=Stage.OTREE)] == [
        False, True, True,
    ], "newest first: a relayout after two merges"  # fmt: skip
    rig.assert_exact()
    stream = harness.stores.ledger.head(rig.table.row).stream.metadata
    return Lake(
        views={"stream view": stream, "after merges": merged, "after a relayout": batch(rig)},
        rows=[made[number] | dict(zip(COORDINATES, at, strict=True)) for *at, number in sorted(rig.truth)],
    )


def clustered(rig: TableRig) -> None:
    """One move of otree."""
    claim = rig.claim(Stage.OTREE)
    assert otree_once(rig.stores, rig.table.row, claim, trigger="test") is not None
    rig.stores.ledger.release(claim)


def batch(rig: TableRig) -> str:
    found = rig.stores.ledger.head(rig.table.row).batch
    assert found is not None
    return found.metadata


@pytest.mark.parametrize("engine", [*READERS, "Spark"])
def test_other_engines_see_the_rows_that_were_produced(lake: Lake, harness: hp.Harness, engine: str):
    read = with_spark(harness.stores.spark(), harness.stores.settings) if engine == "Spark" else READERS[engine]
    unread = {"u"} if engine == "Daft" else set()
    expected = [{name: value for name, value in row.items() if name not in unread} for row in lake.rows]
    if engine == "chDB":
        expected = list(map(without_nested_null, expected))

    for where, holds in (("id >= 0", lambda row: True), ("i < -1000000000", is_low)):
        wanted = [row for row in expected if holds(row)]
        assert len(wanted) > RECORDS / 2
        for view, metadata in lake.views.items():
            found = read(metadata, where).select(list(wanted[0])).to_pylist()
            rows = sorted(map(plain, found), key=lambda row: [row[name] for name in COORDINATES])
            assert rows == wanted, f"{view}, {where}"


def is_low(row: Row) -> bool:
    return row["i"] is not None and row["i"] < -1_000_000_000
