"""UUIDs that Iceberg's Java side compares in another order than their bytes have: no filter may lose a row."""

from __future__ import annotations

import random
import uuid

import orjson
import pytest

from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.rig import TableRig

COLUMNS = {"id": {"type": "long", "required": True}, "v": "uuid", "s": {"type": "struct<v: uuid, n: int>"}}
RNG = random.Random(1)
VALUES = [str(uuid.UUID(int=RNG.getrandbits(128))) for _ in range(200)]
MIDDLE, ONE = "80000000-0000-0000-0000-000000000000", VALUES[0]


@pytest.fixture(scope="module")
def records() -> list[bytes]:
    rows = [{"id": i, "v": v, "s": {"v": v, "n": i} if i % 2 else None} for i, v in enumerate(VALUES)]
    return [orjson.dumps(row) for row in rows]


@pytest.fixture
def lake(make_rig: MakeRig, records: list[bytes]) -> TableRig:
    """All of it in the lake."""
    rig = make_rig(partitions=1, columns=COLUMNS)
    rig.kafka.produce(rig.topic, 0, records)
    rig.ingest()
    rig.tier()
    return rig


def test_a_filter_on_uuids_finds_its_rows_in_arrow_and_in_spark_whether_given_to_the_read_or_added(lake: TableRig):
    spark = lake.stores.spark()
    for where, matches in (
        (f"v = '{ONE}'", [ONE]),
        (f"v < '{MIDDLE}'", [v for v in VALUES if v < MIDDLE]),
        ("v >= '7fffffff-0000-0000-0000-000000000000'", [v for v in VALUES if v >= "7fffffff"]),
    ):
        arrow = lake.table.read(columns=["v"], where=where).column("v").to_pylist()
        assert sorted(str(uuid.UUID(bytes=v)) for v in arrow) == sorted(matches)
        given = lake.table.to_spark(spark, columns=["v"], where=where)
        added = lake.table.to_spark(spark, columns=["v"]).where(where)
        for frame in (given, added):
            assert sorted(row.v for row in frame.collect()) == sorted(matches)


def test_uuids_inside_of_a_struct_are_filtered_by_spark_alone_too(lake: TableRig):
    found = lake.table.to_spark(lake.stores.spark()).where(f"s.v >= '{MIDDLE}'").collect()
    assert sorted(row.s.v for row in found) == sorted(v for v in VALUES[1::2] if v >= MIDDLE)
    assert all(row.s.n == row.id for row in found)
