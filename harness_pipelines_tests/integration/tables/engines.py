"""Other engines: each reads rows of a view from its metadata file alone, without a catalog and without a network.

They are imported where they are used: an import may start threads, and a process that is forked later would hang.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The rows of a metadata file for which a comparison such as ``i < 0`` holds, each engine's own types as Arrow's.
Reader = Callable[[str, str], pa.Table]


def with_spark(session: SparkSession) -> Reader:
    def read(metadata: str, where: str) -> pa.Table:
        return session.read.format("iceberg").load(metadata).filter(where).toArrow()

    return read


def with_pyiceberg(metadata: str, where: str) -> pa.Table:
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(metadata).scan(row_filter=where).to_arrow()


def with_duckdb(metadata: str, where: str) -> pa.Table:
    import duckdb
    import duckdb_extension_avro  # type: ignore[import-untyped]  # only a shared library
    import duckdb_extension_iceberg  # type: ignore[import-untyped]  # only a shared library

    connection = duckdb.connect()
    for extension in (duckdb_extension_avro, duckdb_extension_iceberg):
        [library] = Path(extension.__file__).parent.rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{library}'")
    connection.execute("SET TimeZone = 'UTC'")
    return connection.execute(f"FROM iceberg_scan(?) WHERE {where}", [_plain(metadata)]).to_arrow_table()


def with_polars(metadata: str, where: str) -> pa.Table:
    import polars as pl

    with patch.dict(os.environ, POLARS_ICEBERG_PLANNER="pyiceberg"):
        return pl.scan_iceberg(metadata).filter(pl.sql_expr(where)).collect().to_arrow()


def with_daft(metadata: str, where: str) -> pa.Table:
    """Without the columns of type uuid: what PyIceberg says of them and what Parquet holds are two types to Daft."""
    with patch.dict(os.environ, DO_NOT_TRACK="1"):  # read at import
        import daft
    from pyiceberg.table import StaticTable
    from pyiceberg.types import UUIDType

    columns = StaticTable.from_metadata(metadata).schema().fields
    unread = [column.name for column in columns if isinstance(column.field_type, UUIDType)]
    return daft.read_iceberg(metadata).exclude(*unread).where(where).to_arrow()


def with_chdb(metadata: str, where: str) -> pa.Table:
    """ClickHouse has no NULL list, map or struct: they are empty, or a struct of NULLs. Bytes are shown as hex."""
    import chdb

    view = Path(_plain(metadata)).parents[1]
    relation = f"icebergLocal('{view}', SETTINGS iceberg_metadata_file_path = 'metadata/{Path(metadata).name}')"
    query = f"SELECT * REPLACE (hex(raw) AS raw) FROM {relation} WHERE {where} SETTINGS session_timezone = 'UTC'"
    with chdir(view):  # it reads local files below the working folder only
        found = chdb.query(query, "Arrow")
    return pa.ipc.open_file(found.bytes()).read_all()


def with_datafusion(metadata: str, where: str) -> pa.Table:
    from datafusion import SessionContext
    from pyiceberg.table import StaticTable

    context = SessionContext()
    context.register_table("view", StaticTable.from_metadata(metadata))
    return context.sql(f"SELECT * FROM view WHERE {where}").to_arrow_table()


READERS: Mapping[str, Reader] = {
    "PyIceberg": with_pyiceberg,
    "DuckDB": with_duckdb,
    "Polars": with_polars,
    "Daft": with_daft,
    "chDB": with_chdb,
    "DataFusion": with_datafusion,
}


def _plain(metadata: str) -> str:
    return metadata.removeprefix("file://")
