"""The lake is plain Iceberg: other engines read the stream view from its metadata file and see the same rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import duckdb_extension_avro  # type: ignore[import-untyped]  # only a shared library
import duckdb_extension_iceberg  # type: ignore[import-untyped]  # only a shared library
import polars as pl
import pyarrow as pa
import pytest

from harness_pipelines_tests.rig import COORDINATES, TableRig

COLUMNS = {
    "id": {"type": "long", "required": True},
    "price": "decimal(12,2)",
    "at": "timestamptz",
    "day": "date",
    "name": "string",
    "tags": "list<string>",
}
RECORDS = 250


def record(number: int) -> bytes:
    return (
        b'{"id":%d,"price":"%d.%02d","at":"2026-03-01T12:00:00.%06dZ","day":"2026-03-%02d","name":"n%d","tags":["a","%d"]}'
        % (number, number, number % 100, number, number % 28 + 1, number, number)
    )


@pytest.fixture
def lake(make_rig: Callable[..., TableRig]) -> TableRig:
    """A table whose rows came to the lake in two moves."""
    rig = make_rig(columns=COLUMNS)
    for round_ in range(2):
        for partition in range(2):
            first = (round_ * 2 + partition) * RECORDS
            rig.kafka.produce(rig.topic, partition, [record(i) for i in range(first, first + RECORDS)])
        rig.ingest()
        rig.tier()
    return rig


def metadata(rig: TableRig) -> str:
    return rig.stores.ledger.head(rig.table.row).stream.metadata


def expected(rig: TableRig) -> pa.Table:
    found = rig.table.read(columns=["id", "price", "day", "name", *COORDINATES])
    assert found.num_rows == 4 * RECORDS
    return found.sort_by("id")


def test_duckdb_reads_the_same_rows_from_the_metadata_file(lake: TableRig) -> None:
    connection = duckdb.connect()
    for extension in (duckdb_extension_avro, duckdb_extension_iceberg):
        connection.execute(f"LOAD '{duckdb_file(extension)}'")
    location = metadata(lake).removeprefix("file://")

    rows = connection.execute(
        "SELECT id, price, day, name, _kafka_partition, _kafka_offset FROM iceberg_scan(?) ORDER BY id", [location]
    ).to_arrow_table()

    assert rows.to_pylist() == expected(lake).to_pylist()


def test_polars_reads_the_same_rows_from_the_metadata_file(lake: TableRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    rows = (
        pl.scan_iceberg(metadata(lake))
        .select("id", "price", "day", "name", *COORDINATES)
        .sort("id")
        .collect()
        .to_arrow()
    )

    assert rows.to_pylist() == expected(lake).to_pylist()


def duckdb_file(extension: object) -> Path:
    """The extension's shared library, as its package ships it."""
    [found] = Path(str(extension.__file__)).parent.rglob("*.duckdb_extension")  # type: ignore[attr-defined]
    return found
