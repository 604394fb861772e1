"""Engines attach `harness serve` and read tables while their data moves: every read is one cut, and none goes back."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress

import pyarrow as pa
import pytest

import harness_pipelines as hp
from harness_pipelines.drivers.object_stores.clients import spark_options
from harness_pipelines_tests.engines import READERS, duckdb_with_iceberg
from harness_pipelines_tests.integration.serve.judged import Read, read_append, read_keyed, rows_of
from harness_pipelines_tests.integration.serve.server import Served
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.rig import COORDINATES, TableRig

SLOW = ("Daft", "chDB", "DataFusion", "Polars")  #: whose import takes seconds


# -- engines ---------------------------------------------------------------------------------------------------


def by_pyiceberg(served: Served, harness: hp.Harness) -> Read:
    catalog = served.catalog()
    return lambda name: catalog.load_table(name).scan().to_arrow()


def by_duckdb(served: Served, harness: hp.Harness) -> Read:
    connection = duckdb_with_iceberg(served.settings.warehouse or "")
    connection.execute(f"ATTACH '' AS h (TYPE iceberg, ENDPOINT '{served.url}', TOKEN '{served.token}')")
    return lambda name: connection.execute(f"FROM h.{name}").to_arrow_table()


def by_spark(served: Served, harness: hp.Harness) -> Read:
    session = harness.stores.spark()
    name = f"h_{uuid.uuid4().hex[:8]}"
    options = {
        "": "org.apache.iceberg.spark.SparkCatalog", "type": "rest", "uri": served.url, "token": served.token,
        "cache-enabled": "false", **spark_options(served.settings.warehouse or "", served.settings.s3),
    }  # fmt: skip
    for word, value in options.items():
        session.conf.set(f"spark.sql.catalog.{name}{'.' if word else ''}{word}", value)

    def read(table: str) -> pa.Table:
        for _ in range(3):
            with suppress(ValueError):  # columns changed between its two loads of a table; it says so
                return session.table(f"{name}.{table}").toArrow()
        raise AssertionError(f"the columns of {table} change with each load")

    return read


def by_file(engine: str) -> Callable[[Served, hp.Harness], Read]:
    """Engines that open the metadata file which the catalog names."""

    def made(served: Served, harness: hp.Harness) -> Read:
        catalog, read = served.catalog(), READERS[engine]
        return lambda name: read(catalog.load_table(name).metadata_location, "n >= 0")

    return made


ENGINES: Mapping[str, Callable[[Served, hp.Harness], Read]] = {
    "PyIceberg": by_pyiceberg,
    "DuckDB": by_duckdb,
    "Spark": by_spark,
    **{engine: by_file(engine) for engine in SLOW},
}
engines = pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=[pytest.mark.long] if name in SLOW else []) for name in ENGINES]
)


reads = pytest.mark.parametrize("reads", [5, pytest.param(50, marks=pytest.mark.long)])


@reads
@engines
def test_each_read_of_an_append_table_is_a_cut_and_none_goes_back(
    harness: hp.Harness, kafka: KafkaRig, served: Served, engine: str, reads: int
):
    read_append(harness, kafka, ENGINES[engine](served, harness), times=reads)


@reads
@engines
def test_each_read_of_a_keyed_table_is_a_state_and_none_goes_back(
    harness: hp.Harness, kafka: KafkaRig, served: Served, engine: str, reads: int
):
    read_keyed(harness, kafka, ENGINES[engine](served, harness), times=reads)


def test_the_lake_alone_is_what_was_merged(harness: hp.Harness, kafka: KafkaRig, served: Served):
    rig = TableRig(harness, kafka, views="both", layout={"columns": ["n"], "regions": 4})
    rig.produce(30)
    rig.worker(until_idle=True).run()
    wait_until(lambda: rig.stores.ledger.head(rig.table.row).batch is not None, "something was merged")
    merged = rows_of(served.catalog(warehouse="lake").load_table(rig.name).scan().to_arrow(), (*COORDINATES, "id"))
    rig.produce(10)
    rig.ingest()
    lake, fresh = (
        rows_of(served.catalog(**words).load_table(rig.name).scan().to_arrow(), (*COORDINATES, "id"))
        for words in ({"warehouse": "lake"}, {})
    )
    assert (merged.total(), lake) == (60, merged)
    assert fresh == rig.truth
