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
from collections.abc import Callable, Mapping, Sequence
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
from harness_pipelines.ledgers.postgres.acts.drop import purge
from harness_pipelines_tests.bench.records import PARTITIONS, SPARK_COLUMNS
from harness_pipelines_tests.producer import wait_until

if TYPE_CHECKING:
    import pyarrow as pa

CATALOG, NAMESPACE = "bench_peer", "bench"
DEADLINE_S = 300.0
POLL_S = 0.02
_POINTERS = (
    "SELECT metadata_location FROM iceberg_tables "
    "WHERE catalog_name = %s AND table_namespace = %s AND table_name = ANY(%s)"
)
_DROP = (
    "DELETE FROM iceberg_tables WHERE catalog_name = %s AND table_namespace = %s AND table_name = ANY(%s) "
    "RETURNING metadata_location"
)


class PeerTable(ABC):
    """A table of a peer for each topic, dropped with the block; made before anything is written to it.

    The table of a topic whose name begins with the namespace has this name, so that records name their table.
    """

    def __init__(self, harness: hp.Harness, *topics: str) -> None:
        self._harness, self.topics = harness, topics
        self._names = [_name_of(topic) for topic in topics]
        self._connection = psycopg.connect(harness.stores.dsn, autocommit=True)
        self._known: dict[str, int] = {}  # rows by the metadata that each table has now

    @property
    def name(self) -> str:
        """Of the first table, and of what the peer has."""
        return self._names[0]

    @property
    def table(self) -> str:
        """The first one."""
        return f"{CATALOG}.{NAMESPACE}.{self.name}"

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
        for name in self._names:
            spark.sql(
                f"CREATE TABLE {CATALOG}.{NAMESPACE}.{name} (kafka_partition INT, kafka_offset BIGINT, "
                f"kafka_timestamp TIMESTAMP, {SPARK_COLUMNS}) USING iceberg TBLPROPERTIES "
                "('write.distribution-mode'='none', 'write.parquet.compression-codec'='zstd')"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        dropped = self._connection.execute(_DROP, [CATALOG, NAMESPACE, self._names]).fetchall()
        self._connection.close()
        for (metadata,) in dropped:
            purge(metadata.rpartition("/metadata/")[0])

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
        """Until the tables that its readers see hold *count* rows."""
        self._await(lambda: self._rows() >= count, f"the peer's tables hold {count} rows")
        assert self._rows() == count, f"the peer's tables hold {self._rows()} rows of {count}"

    def pointer(self) -> str:
        """The metadata file that the catalog names now: what a reader of the first table asks first."""
        [found] = self._pointers(self._names[:1])
        return found

    def _pointers(self, names: Sequence[str]) -> list[str]:
        found = self._connection.execute(_POINTERS, [CATALOG, NAMESPACE, list(names)]).fetchall()
        assert len(found) == len(names), f"{len(found)} of {len(names)} tables are there"
        return [str(row[0]) for row in found]

    def newest(self, metadata: str, above: Mapping[int, int]) -> pa.Table:
        """Coordinates and id of the rows from the offsets *above* on, read as a user of PyIceberg reads them."""
        where = " or ".join(f"(kafka_partition = {p} and kafka_offset >= {above[p]})" for p in range(PARTITIONS))
        columns = ("kafka_partition", "kafka_offset", "id")
        return StaticTable.from_metadata(metadata).scan(row_filter=where, selected_fields=columns).to_arrow()

    def _rows(self) -> int:
        pointers = self._pointers(self._names)
        self._known = {one: self._known[one] if one in self._known else _rows_at(one) for one in pointers}
        return sum(self._known.values())

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            found = condition()
            if not found:
                self._check()
            return found

        wait_until(holds, what, deadline_s=DEADLINE_S, every_s=POLL_S * len(self._names))

    @abstractmethod
    def _looks(self) -> bool:
        """Whether the peer looks for records."""

    @abstractmethod
    def _check(self) -> None:
        """Fail with the peer's own words if it has failed."""


def _name_of(topic: str) -> str:
    namespace, _, name = topic.rpartition(".")
    return name if namespace == NAMESPACE else f"t_{uuid.uuid4().hex[:10]}"


def _rows_at(metadata: str) -> int:
    snapshot = metadata_of(metadata, opened_io()).current_snapshot()
    if snapshot is None or snapshot.summary is None:
        return 0
    return int(snapshot.summary["total-records"] or 0)


class Peer(PeerTable):
    """A streaming query of Spark; stopped with the block."""

    def __init__(self, harness: hp.Harness, *topics: str, trigger_s: int, start: Mapping[int, int] | None) -> None:
        super().__init__(harness, *topics)
        self._trigger_s = trigger_s
        self._start = start
        self._checkpoint = harness.settings.home / "bench" / self.name
        self._query: Any = None

    def begin(self) -> float:
        from pyspark.sql import functions as f

        parsed = f.from_json(f.col("value").cast("string"), SPARK_COLUMNS).alias("record")
        rows = self._records().select("topic", "partition", "offset", "timestamp", parsed)
        rows = rows.selectExpr(
            "topic",
            "partition AS kafka_partition",
            "offset AS kafka_offset",
            "timestamp AS kafka_timestamp",
            "record.*",
        )
        began = time.monotonic()
        self._query = self._start_to_tables(rows)
        return began

    def _records(self) -> Any:
        """The records of all topics as Spark's source has them."""
        settings, spark = self._harness.settings, self._harness.stores.spark()
        starting = (
            "earliest"
            if self._start is None
            else json.dumps({topic: {str(p): o for p, o in self._start.items()} for topic in self.topics})
        )
        source = spark.readStream.format("kafka").option("subscribe", ",".join(self.topics))
        source = source.option("startingOffsets", starting).option("kafka.bootstrap.servers", settings.kafka)
        login = {f"kafka.{name}": given for name, given in java_properties(settings.kafka_properties).items()}
        return source.options(**login).load()

    def _start_to_tables(self, rows: Any) -> Any:
        """The query, which writes *rows* to the one table."""
        return self._writer(rows.drop("topic")).format("iceberg").toTable(self.table)

    def _writer(self, rows: Any) -> Any:
        writer = rows.writeStream.outputMode("append").trigger(processingTime=f"{self._trigger_s} seconds")
        return writer.option("checkpointLocation", self._checkpoint.as_uri())

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
