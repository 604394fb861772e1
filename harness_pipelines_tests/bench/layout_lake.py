"""Tables of events for rewrites, in a catalog of their own beside the harness's."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import StaticTable

import harness_pipelines as hp
from harness_pipelines.engines.spark.session import catalog_options
from harness_pipelines.lakes.iceberg.read.regions import region_files
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.files import FileStats
from harness_pipelines_tests.bench.layout_data import Dataset
from harness_pipelines_tests.bench.records import PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG, NAMESPACE = "bench_layout", "bench"
_PAGES, _SEED = 200, 1  #: of the payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A table in arrival order that is rewritten."""

    name: str
    metadata: str
    columns: Sequence[IndexedColumn]
    files: Sequence[FileStats]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def target_bytes(self) -> int:
        """Of a file: rewrites shall end with as many files as there are."""
        return self.bytes // len(self.files)


class Lake:
    """Tables in a catalog of their own, beside the harness's; all dropped with the block."""

    def __init__(self, harness: hp.Harness) -> None:
        self._stores = harness.stores
        self._scratch = harness.settings.home / "bench" / f"rewrites_{uuid.uuid4().hex[:10]}"
        self._made: list[str] = []

    @property
    def spark(self) -> SparkSession:
        return self._stores.spark()

    def __enter__(self) -> Self:
        self._scratch.mkdir(parents=True)
        prefix = f"spark.sql.catalog.{CATALOG}"
        for name, given in catalog_options(self._stores.dsn, warehouse=f"{self._stores.warehouse}/{CATALOG}").items():
            self.spark.conf.set(f"{prefix}.{name}" if name else prefix, given)
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{NAMESPACE}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self._made:
            self.spark.sql(f"DROP TABLE IF EXISTS {name} PURGE")
        shutil.rmtree(self._scratch, ignore_errors=True)

    def source(self, data: Dataset, *, rows_per_file: int) -> Source:
        """*data* with payload and coordinates, in files of about *rows_per_file* rows in arrival order."""
        path = self._scratch / f"{uuid.uuid4().hex[:10]}.parquet"
        pq.write_table(_events(data), path)
        arrived = self.spark.read.parquet(path.as_uri())
        name = self.create(arrived.schema.toDDL(), {})
        files = -(-data.rows // rows_per_file)
        in_order = arrived.repartitionByRange(files, "_kafka_offset")
        in_order.sortWithinPartitions("_kafka_offset", "_kafka_partition").writeTo(name).append()
        columns = [IndexedColumn(column, of) for column, of in zip(data.names, data.types, strict=True)]
        metadata = self.metadata(name)
        return Source(name=name, metadata=metadata, columns=columns, files=self.files(name, columns))

    def create(self, columns: str, properties: Mapping[str, str]) -> str:
        """An empty table with *columns* (DDL); returns its name."""
        name = f"{CATALOG}.{NAMESPACE}.t_{uuid.uuid4().hex[:10]}"
        self._made.append(name)
        given = {"write.distribution-mode": "none", "write.parquet.compression-codec": "zstd", **properties}
        listed = ", ".join(f"'{key}'='{value}'" for key, value in given.items())
        self.spark.sql(f"CREATE TABLE {name} ({columns}) USING iceberg TBLPROPERTIES ({listed})")
        return name

    def like(self, source: Source, properties: Mapping[str, str]) -> str:
        """An empty table with the columns of *source*."""
        return self.create(self.spark.table(source.name).schema.toDDL(), properties)

    def metadata(self, name: str) -> str:
        """The table's metadata file now."""
        newest = f"SELECT file FROM {name}.metadata_log_entries ORDER BY timestamp DESC LIMIT 1"
        return str(self.spark.sql(newest).collect()[0][0])

    def files(self, name: str, columns: Sequence[IndexedColumn]) -> list[FileStats]:
        """The table's files with the bounds of *columns*, from its manifests."""
        return region_files(StaticTable.from_metadata(self.metadata(name)), columns)


def _events(data: Dataset) -> pa.Table:
    """*data* as rows of an event log: its columns, some payload, coordinates that go round the partitions."""
    rng = np.random.default_rng(_SEED)
    number = np.arange(data.rows)
    time_us, user, amount = data.columns
    return pa.table(
        {
            "time": pa.array(time_us, pa.timestamp("us", "UTC")),
            "user": pa.array(user, pa.int64()),
            "amount": pa.array(amount, pa.float64()),
            "page": pa.array([f"/page/{n}" for n in rng.integers(0, _PAGES, data.rows).tolist()]),
            "duration_ms": pa.array(rng.integers(1, 60_000, data.rows), pa.int32()),
            "note": pa.array([f"event {n}" for n in number.tolist()]),
            "_kafka_partition": pa.array(number % PARTITIONS, pa.int32()),
            "_kafka_offset": pa.array(number // PARTITIONS, pa.int64()),
        }
    )
