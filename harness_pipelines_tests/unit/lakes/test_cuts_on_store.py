"""Cuts in an object store: engines read them there by their own clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness_pipelines.drivers.files import listed
from harness_pipelines.drivers.object_stores.bound import BOUND
from harness_pipelines_tests.engines import READERS
from harness_pipelines_tests.store import moto_store
from harness_pipelines_tests.unit.lakes.cut_rig import full, rows, run, whole


@pytest.fixture(scope="module")
def warehouse() -> Iterator[str]:
    with moto_store() as (s3, place):
        BOUND.bind(place, s3)
        yield place


def test_a_cut_in_an_object_store_is_what_the_plan_reads(warehouse: str):
    rig = full(warehouse)
    first = rig.cut()
    rig.at(0, 0, 15, 30, 45)
    rig.buffer = rows(run(0, 30, 45) + run(1, 20, 25))
    second = rig.cut(previous=first)
    wanted = rig.read()
    assert whole(rig, second).equals(wanted)
    places = wanted.select(["id", "_kafka_partition", "_kafka_offset"]).to_pylist()
    for engine in ("DuckDB", "PyIceberg"):
        found = READERS[engine](second.metadata, "id >= 0").select(["id", "_kafka_partition", "_kafka_offset"])
        assert sorted(found.to_pylist(), key=lambda row: row["id"]) == sorted(places, key=lambda row: row["id"])
    folder = second.metadata.rpartition("/metadata/")[0]
    assert {file.path for file in listed(folder)} == {*first.files, *second.files}
