"""Other engines read a table's views from an object store, by the metadata file that a published version names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

import harness_pipelines as hp
from harness_pipelines.services import Endpoints
from harness_pipelines_tests.engines import READERS, with_spark
from harness_pipelines_tests.keyed import KeyedRig
from harness_pipelines_tests.producer import KafkaRig

LIGHT = ("PyIceberg", "DuckDB", "Polars")  #: whose import and first read take no time worth waiting for elsewhere


@pytest.fixture(scope="module")
def merged(harness: hp.Harness, endpoints: Endpoints) -> Iterator[KeyedRig]:
    """A keyed table with hidden rows: its batch view has delete files."""
    assert endpoints.kafka is not None
    columns = {"id": {"type": "long", "required": True}, "n": "int", "raw": "binary"}
    with closing(KafkaRig(endpoints.kafka, properties=endpoints.kafka_login)) as kafka:
        rig = KeyedRig(harness, kafka, columns=columns, key=["id"], layout={"target_file_mb": 1})
        rig.put(*({"id": i, "n": i, "raw": "AAEC"} for i in range(300)))
        rig.worker(until_idle=True).run()
        rig.relayout()
        rig.put(*({"id": i, "n": 1000 + i, "raw": None} for i in range(0, 300, 20)))
        rig.delete(*((i,) for i in range(1, 300, 20)))
        rig.worker(until_idle=True).run()
        yield rig


@pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=[] if name in LIGHT else [pytest.mark.long]) for name in [*READERS, "Spark"]]
)
def test_an_engine_reads_a_published_version_from_a_store(merged: KeyedRig, engine: str):
    stores = merged.stores
    read = with_spark(stores.spark(), stores.settings) if engine == "Spark" else READERS[engine]
    head = stores.ledger.head(merged.table.row)
    assert head.batch is not None
    assert head.batch.metadata.startswith("s3://")
    rows = merged.table.read(columns=["id", "n"])
    state = sorted(zip(rows.column("id").to_pylist(), rows.column("n").to_pylist(), strict=True))
    assert len(state) == 285
    for where, least, most in (("id >= 0", 0, 2000), ("n < 100", 0, 100)):
        found = read(head.batch.metadata, where)
        got = sorted(zip(found.column("id").to_pylist(), found.column("n").to_pylist(), strict=True))
        assert got == [(id_, n) for id_, n in state if least <= n < most], where
    changes = read(head.stream.metadata, "id >= 0")
    assert changes.num_rows == 330, "the changelog has each record"
