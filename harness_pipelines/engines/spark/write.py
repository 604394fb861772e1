"""Spark's part of the tier stage: read a move's ranges and write them to the attempt's branch.

Each Spark task reads one run of offsets of one Kafka partition and writes one file, so no shuffle is needed and every
file lies in offset order inside one partition. DataFrame API only: it runs on Spark Connect and on any master.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from harness_pipelines.drivers.certificates import CertificateRefused, why_refused
from harness_pipelines.engines.spark.session import (
    Py4JError,
    Py4JNetworkError,
    SessionLost,
    SparkAway,
    is_closed_channel,
)
from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.lake.properties import ATTEMPT, MOVE, RANGES, SCHEMA_VERSION, told_of
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.secret import redact

if TYPE_CHECKING:
    from harness_pipelines.engines.spark.session import JdbcOptions

FETCH_ROWS = 20_000
#: What Spark's messages say when the session is of no use any more.
_LOST = (
    "SparkContext was shut down",
    "UNAVAILABLE",
    "too_many_pings",  # a server that allows fewer than Spark's own: the client sends fewer then
    "INVALID_HANDLE",
    "NO_ACTIVE_SESSION",
    "SESSION_CLOSED",
    "SESSION_CHANGED",
)
#: What they say when the machine or a service that a task needs is at fault, not the move, and not the session.
_OUTAGES = (
    "No space left on device",
    "Connection refused",
    "Connection reset",
    "the database system is",
    "terminating connection",
    "too many clients",
    "too many connections",
    "remaining connection slots",
    "The connection attempt failed",
    "An I/O error occurred while sending to the backend",
    "This connection has been closed",
    # The catalog in Postgres. Iceberg's own message leaves out why: a login that is refused is met by others, too.
    "org.apache.iceberg.jdbc.UncheckedSQLException",
)
#: What they say when a task could not ask the schema registry.
_REGISTRY = ("RegistryAway", "RegistryLoginFailed", "RegistryPropertyRefused", "no schema registry is known")


class SparkFailed(HarnessError):
    """Spark could not do the work of a move; after some attempts the move is halved."""

    recovery = Recovery.REFRESH


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchTarget:
    """Where an attempt writes."""

    catalog: str
    table: TableRow
    move: Move


def task_ranges(ranges: Sequence[OffsetRange], *, offsets_max: int) -> list[OffsetRange]:
    """Cut ranges so that no task takes more than *offsets_max* offsets."""
    return [piece for taken in ranges for piece in _cut(taken, offsets_max)]


def _cut(taken: OffsetRange, offsets_max: int) -> Iterator[OffsetRange]:
    pieces = max(-(-taken.span // offsets_max), 1)
    for i in range(pieces):
        low = taken.low + taken.span * i // pieces
        yield OffsetRange(partition=taken.partition, low=low, high=taken.low + taken.span * (i + 1) // pieces)


def append_to_branch(frame: DataFrame, target: BranchTarget, *, file_bytes: int | None = None) -> None:
    """Write *frame* to the attempt's branch, with the move in the snapshot's summary.

    *file_bytes*: a task's file that grows above is followed by another one; else as the view's properties say.
    """
    move, table = target.move, target.table
    name = f"{target.catalog}.{table.spec.namespace}.{table.views[table.effects[move.stage].view]}.branch_{move.branch}"
    properties: Mapping[str, str] = {
        MOVE: str(move.move_id),
        ATTEMPT: str(move.attempt),
        **told_of(move),
        SCHEMA_VERSION: str(move.schema_version),
        RANGES: ",".join(f"{r.partition}:{r.low}-{r.high}" for r in move.ranges),
    }
    writer = frame.writeTo(name)
    if file_bytes is not None:
        writer = writer.option("target-file-size-bytes", str(file_bytes))
    for key, value in properties.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    writer.append()


def append_counted(frame: DataFrame, target: BranchTarget) -> tuple[int, int] | None:
    """Write the rows of *frame* that are not ``_refused``; returns (rows written, rows and refused together).

    None: Spark did not say. A server of Spark Connect waits a tenth of a second for what a write has counted and then
    answers without it, which on a busy machine may be so each time. Nor is it there where the connection was lost under
    the last part of the answer. What was written is not written once more for that.
    """
    seen = Observation()
    counts = f.count(f.lit(1)).alias("records"), f.count_if(~f.col("_refused")).alias("rows")
    append_to_branch(frame.observe(seen, *counts).where(~f.col("_refused")).drop("_refused"), target)
    told = seen.get
    return (int(told["rows"]), int(told["records"])) if told else None


@contextmanager
def explained(table: TableRow, move: Move) -> Iterator[None]:
    """Spark's errors as the harness's: an outage may be waited for, anything else counts against the move."""
    try:
        yield
    except (PySparkException, Py4JError, grpc.RpcError, OSError) as error:
        text = redact(str(error)).strip()
        where = f"{table.name}: Spark could not stage move {move.move_id}, attempt {move.attempt}"
        asked = [line for line in text.splitlines() if any(s in line for s in _REGISTRY)]
        shown = (asked or text.splitlines() or [type(error).__name__])[0].strip()[:500]
        if (why := why_refused(text)) is not None:
            server, settings = f"{where}: a server that it needs", "the files that HARNESS_DSN and HARNESS_KAFKA_* name"
            raise CertificateRefused(server, why=why, said=shown, settings=settings) from error
        if isinstance(error, grpc.RpcError | OSError | Py4JNetworkError) or any(s in text for s in _LOST):
            raise SessionLost(f"{where}: {shown}; nothing was published, it is tried again") from error
        if asked or any(s in text for s in _OUTAGES):
            raise SparkAway(f"{where}: {shown}; nothing was published, it is tried again") from error
        raise SparkFailed(f"{where}: {shown}; nothing was published") from error
    except ValueError as error:
        if not is_closed_channel(error):
            raise
        raise SessionLost(
            f"{table.name}: the Spark session was closed under move {move.move_id}, attempt {move.attempt}; nothing "
            "was published, it is tried again"
        ) from error


def read_segments(
    spark: SparkSession,
    table: TableRow,
    *,
    segments: Sequence[SegmentRef],
    ranges: Sequence[OffsetRange],
    jdbc: JdbcOptions,
) -> DataFrame:
    """The rows of *ranges* in *segments*, with all coordinates, in the column order of the view."""
    from harness_pipelines.buffers.postgres.types import jdbc_select, spark_columns

    source = jdbc_select(table.spec.columns, segments, stores_op=bool(table.spec.key))
    predicates = [
        f"_kafka_partition = {r.partition} AND _kafka_offset >= {r.low} AND _kafka_offset < {r.high}" for r in ranges
    ]
    frame = spark.read.jdbc(
        url=jdbc.url, table=source, predicates=predicates, properties={**jdbc.properties, "fetchsize": str(FETCH_ROWS)}
    )
    return frame.select(*spark_columns(table.spec.columns))
