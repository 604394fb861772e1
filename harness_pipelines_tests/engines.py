"""Other engines: each reads rows of a view from its metadata file alone, without a catalog.

The file may be in a folder or on an object store: an engine is told of the store in its own words. They are imported
where they are used: an import may start threads, and a process that is forked later would hang.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa

from harness_pipelines.drivers.object_stores.bound import BOUND
from harness_pipelines.spec.locations import local_path
from harness_pipelines.spec.object_stores import S3Settings
from harness_pipelines_tests.other_catalog import pyiceberg_options

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyiceberg.table import StaticTable
    from pyspark.sql import SparkSession

    from harness_pipelines.spec.settings import Settings

#: The rows of a metadata file for which a comparison such as ``i < 0`` holds, each engine's own types as Arrow's.
Reader = Callable[[str, str], pa.Table]


def with_spark(session: SparkSession, settings: Settings) -> Reader:
    """From a folder by Hadoop's access, which needs no catalog; from a store by the catalog of the ledger's pins."""

    def read(metadata: str, where: str) -> pa.Table:
        from harness_pipelines.engines.spark.view import Pins
        from harness_pipelines.lakes.iceberg.read.for_engines import IcebergScans

        if local_path(metadata) is not None:
            return session.read.format("iceberg").load(metadata).filter(where).toArrow()
        return Pins.of(settings, IcebergScans()).load(session, metadata).filter(where).toArrow()

    return read


def static(metadata: str) -> StaticTable:
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(metadata, pyiceberg_options(metadata))


def with_pyiceberg(metadata: str, where: str) -> pa.Table:
    return static(metadata).scan(row_filter=where).to_arrow()


def with_duckdb(metadata: str, where: str) -> pa.Table:
    found = duckdb_with_iceberg(metadata).execute(f"FROM iceberg_scan(?) WHERE {where}", [_plain(metadata)])
    return found.to_arrow_table()


def duckdb_extensions() -> list[Path]:
    """The libraries that read Iceberg, in the order in which they are loaded."""
    import duckdb_extension_avro  # type: ignore[import-untyped]  # only shared libraries
    import duckdb_extension_httpfs  # type: ignore[import-untyped]
    import duckdb_extension_iceberg  # type: ignore[import-untyped]

    packages = (duckdb_extension_httpfs, duckdb_extension_avro, duckdb_extension_iceberg)
    return [library for one in packages for library in Path(one.__file__).parent.rglob("*.duckdb_extension")]


def duckdb_with_iceberg(location: str) -> DuckDBPyConnection:
    """A connection with what reads Iceberg, and the login of the store of *location*."""
    import duckdb

    connection = duckdb.connect()
    for library in duckdb_extensions():
        connection.execute(f"LOAD '{library}'")
    connection.execute("SET TimeZone = 'UTC'")
    if (s3 := store_of(location)) is not None:
        scheme, _, place = (s3.endpoint or "").partition("://")
        connection.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{s3.access_key}', SECRET '{s3.secret_key}', REGION '{s3.region}', "
            f"ENDPOINT '{place}', URL_STYLE 'path', USE_SSL {scheme == 'https'})"
        )
    return connection


def with_polars(metadata: str, where: str) -> pa.Table:
    import polars as pl

    options: dict[str, Any] = {}
    if (s3 := store_of(metadata)) is not None:
        options = {
            "aws_endpoint_url": s3.endpoint,
            "aws_region": s3.region,
            "aws_access_key_id": s3.access_key,
            "aws_secret_access_key": s3.secret_key,
            "aws_allow_http": "true",
        }
    with patch.dict(os.environ, POLARS_ICEBERG_PLANNER="pyiceberg"):
        scanned = pl.scan_iceberg(static(metadata), storage_options=options or None)
        return scanned.filter(pl.sql_expr(where)).collect().to_arrow()


def with_daft(metadata: str, where: str) -> pa.Table:
    """Without the columns of type uuid: what PyIceberg says of them and what Parquet holds are two types to Daft."""
    with patch.dict(os.environ, DO_NOT_TRACK="1"):  # read at import
        import daft
    from daft.io import IOConfig, S3Config
    from pyiceberg.types import UUIDType

    how = None
    if (s3 := store_of(metadata)) is not None:
        how = IOConfig(
            s3=S3Config(
                endpoint_url=s3.endpoint,
                region_name=s3.region,
                key_id=s3.access_key,
                access_key=s3.secret_key,
                use_ssl=False,
                force_virtual_addressing=False,
            )
        )
    view = static(metadata)
    unread = [column.name for column in view.schema().fields if isinstance(column.field_type, UUIDType)]
    return daft.read_iceberg(view, io_config=how).exclude(*unread).where(where).to_arrow()


def with_chdb(metadata: str, where: str) -> pa.Table:
    """ClickHouse has no NULL list, map or struct: they are empty, or a struct of NULLs. Bytes are shown as hex."""
    import chdb

    folder = _plain(static(metadata).location())  # of a cut it is above its metadata
    which = f"SETTINGS iceberg_metadata_file_path = '{_plain(metadata).removeprefix(f'{folder}/')}'"
    if (s3 := store_of(metadata)) is not None:
        place = folder.replace("s3://", f"{s3.endpoint}/")
        relation = f"icebergS3('{place}/', '{s3.access_key}', '{s3.secret_key}', {which})"
    else:
        relation = f"icebergLocal('{folder}', {which})"
    query = f"SELECT * REPLACE (hex(raw) AS raw) FROM {relation} WHERE {where} SETTINGS session_timezone = 'UTC'"
    with chdir(folder if s3 is None else "."):  # it reads local files below the working folder only
        found = chdb.query(query, "Arrow")
    return pa.ipc.open_file(found.bytes()).read_all()


def with_datafusion(metadata: str, where: str) -> pa.Table:
    from datafusion import SessionContext

    context = SessionContext()
    context.register_table("view", static(metadata))
    return context.sql(f"SELECT * FROM view WHERE {where}").to_arrow_table()


READERS: Mapping[str, Reader] = {
    "PyIceberg": with_pyiceberg,
    "DuckDB": with_duckdb,
    "Polars": with_polars,
    "Daft": with_daft,
    "chDB": with_chdb,
    "DataFusion": with_datafusion,
}


def store_of(location: str) -> S3Settings | None:
    """How the store of *location* is reached; None for a local folder."""
    return BOUND.of(location) if local_path(location) is None else None


def _plain(metadata: str) -> str:
    return metadata.removeprefix("file://")
