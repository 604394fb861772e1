"""The peers: other programs that write a topic to an Iceberg table. Each has its own table, with the same columns.

All commit to the same Postgres by Iceberg's JDBC catalog, and write the record's coordinates too. The tables are
unpartitioned and written without a shuffle. Here is Spark Structured Streaming, as its manual says it is done; it runs
in the same Spark as the harness's tier. Kafka Connect is in `bench.connect`.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psycopg
from pyiceberg.table import StaticTable

import harness_pipelines as hp
from harness_pipelines.drivers.object_stores.clients import spark_options
from harness_pipelines.engines.spark.kafka import java_properties
from harness_pipelines.engines.spark.session import catalog_options
from harness_pipelines.lakes.iceberg.checked_io import opened_io
from harness_pipelines.lakes.iceberg.read.manifests import metadata_of
from harness_pipelines_tests.bench.records import PARTITIONS, SPARK_COLUMNS
from harness_pipelines_tests.producer import wait_until

if TYPE_CHECKING:
    import pyarrow as pa

CATALOG, NAMESPACE = "bench_peer", "bench"
DEADLINE_S = 300.0
POLL_S = 0.02
_POINTER = (
    "SELECT metadata_location FROM iceberg_tables WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s"
)


class PeerTable(ABC):
    """A table of a peer, dropped with the block; made before anything is written to it."""

    def __init__(self, harness: hp.Harness, topic: str) -> None:
        self._harness, self._topic = harness, topic
        self._name = f"t_{uuid.uuid4().hex[:10]}"
        self._connection = psycopg.connect(harness.stores.dsn, autocommit=True)

    @property
    def table(self) -> str:
        return f"{CATALOG}.{NAMESPACE}.{self._name}"

    @property
    def catalog(self) -> dict[str, str]:
        """Properties of the catalog, as Iceberg in Java names them."""
        stores = self._harness.stores
        place = f"{stores.warehouse}/bench_peer"
        return catalog_options(stores.dsn, warehouse=place) | spark_options(place, stores.settings.s3)

    def __enter__(self) -> Self:
        spark = self._harness.stores.spark()
        for name, given in self.catalog.items():
            spark.conf.set(f"spark.sql.catalog.{CATALOG}.{name}" if name else f"spark.sql.catalog.{CATALOG}", given)
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{NAMESPACE}")
        spark.sql(
            f"CREATE TABLE {self.table} (kafka_partition INT, kafka_offset BIGINT, kafka_timestamp TIMESTAMP, "
            f"{SPARK_COLUMNS}) USING iceberg TBLPROPERTIES ('write.distribution-mode'='none', "
            "'write.parquet.compression-codec'='zstd')"
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._harness.stores.spark().sql(f"DROP TABLE IF EXISTS {self.table} PURGE")
        self._connection.close()

    @abstractmethod
    def begin(self) -> float:
        """Start the peer; returns the monotonic time just before."""

    def await_running(self) -> None:
        """Until the peer looks for records."""
        self._await(self._looks, "the peer looks for records")

    def await_first_row(self) -> None:
        """Until there is something to read."""
        self._await(lambda: self._rows() > 0, "the peer's table holds rows")

    def await_rows(self, count: int) -> None:
        """Until the table that its readers see holds *count* rows."""
        self._await(lambda: self._rows() >= count, f"the peer's table holds {count} rows")
        assert self._rows() == count, f"the peer's table holds {self._rows()} rows of {count}"

    def pointer(self) -> str:
        """The metadata file that the catalog names now: what a reader of the table asks first."""
        row = self._connection.execute(_POINTER, [CATALOG, NAMESPACE, self._name]).fetchone()
        assert row is not None
        return str(row[0])

    def newest(self, metadata: str, above: Mapping[int, int]) -> pa.Table:
        """Coordinates and id of the rows from the offsets *above* on, read as a user of PyIceberg reads them."""
        where = " or ".join(f"(kafka_partition = {p} and kafka_offset >= {above[p]})" for p in range(PARTITIONS))
        columns = ("kafka_partition", "kafka_offset", "id")
        return StaticTable.from_metadata(metadata).scan(row_filter=where, selected_fields=columns).to_arrow()

    def _rows(self) -> int:
        snapshot = metadata_of(self.pointer(), opened_io()).current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return 0
        return int(snapshot.summary["total-records"] or 0)

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            found = condition()
            if not found:
                self._check()
            return found

        wait_until(holds, what, deadline_s=DEADLINE_S, every_s=POLL_S)

    @abstractmethod
    def _looks(self) -> bool:
        """Whether the peer looks for records."""

    @abstractmethod
    def _check(self) -> None:
        """Fail with the peer's own words if it has failed."""


class Peer(PeerTable):
    """A streaming query of Spark; stopped with the block."""

    def __init__(self, harness: hp.Harness, topic: str, *, trigger_s: int, start: Mapping[int, int] | None) -> None:
        super().__init__(harness, topic)
        self._trigger_s = trigger_s
        self._start = start
        self._checkpoint = harness.settings.home / "bench" / self._name
        self._query: Any = None

    def begin(self) -> float:
        from pyspark.sql import functions as f

        settings, spark = self._harness.settings, self._harness.stores.spark()
        starting = (
            "earliest"
            if self._start is None
            else json.dumps({self._topic: {str(p): o for p, o in self._start.items()}})
        )
        source = spark.readStream.format("kafka").option("subscribe", self._topic).option("startingOffsets", starting)
        source = source.option("kafka.bootstrap.servers", settings.kafka)
        for name, given in java_properties(settings.kafka_properties).items():
            source = source.option(f"kafka.{name}", given)
        parsed = f.from_json(f.col("value").cast("string"), SPARK_COLUMNS).alias("record")
        rows = source.load().select("partition", "offset", "timestamp", parsed)
        rows = rows.selectExpr(
            "partition AS kafka_partition", "offset AS kafka_offset", "timestamp AS kafka_timestamp", "record.*"
        )
        began = time.monotonic()
        self._query = (
            rows.writeStream.format("iceberg")
            .outputMode("append")
            .trigger(processingTime=f"{self._trigger_s} seconds")
            .option("checkpointLocation", self._checkpoint.as_uri())
            .toTable(self.table)
        )
        return began

    def _looks(self) -> bool:
        said = str(self._query.status["message"])
        return said.startswith(("Waiting", "Processing", "Getting offsets", "No new"))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._query is not None:
            self._query.stop()
        super().__exit__(kind, error, trace)
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def _check(self) -> None:
        if (failure := self._query.exception()) is not None:
            raise AssertionError(f"the peer's query failed: {failure}")
