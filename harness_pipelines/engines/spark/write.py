"""Spark's part of the tier stage: read a move's ranges and write them to the attempt's branch.

Each Spark task reads what goes in one file, so no shuffle is needed. That is one run of offsets of one Kafka partition.
Of a wide topic it is a run of several, in the order of partition and offset. DataFrame API only: it runs on Spark
Connect and on any master.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from harness_pipelines.drivers.certificates import TlsPlace
from harness_pipelines.engines.spark import troubles
from harness_pipelines.engines.spark.segments import columns_of
from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines.ports.buffer import SegmentScans
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.coordinates import OFFSET, PARTITION
from harness_pipelines.protocol.lake.properties import ATTEMPT, MOVE, RANGES, SCHEMA_VERSION, told_of
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.reading.plan import SegmentRef

if TYPE_CHECKING:
    from harness_pipelines.engines.spark.jdbc import JdbcOptions

FETCH_ROWS = 20_000


class SparkFailed(HarnessError):
    """Spark could not do the work of a move; after some attempts the move is halved."""

    recovery = Recovery.REFRESH


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchTarget:
    """Where an attempt writes."""

    catalog: str
    table: TableRow
    move: Move


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
    the last part of the answer. The files are not written again for that.
    """
    seen = Observation()
    append_to_branch(frame.observe(seen, *_counts()).where(~f.col("_refused")).drop("_refused"), target)
    told = seen.get
    return (int(told["rows"]), int(told["records"])) if told else None


def counts_of(frame: DataFrame) -> tuple[int, int]:
    """As `append_counted` says of *frame*, for what is already written: it is computed once more, and only counted."""
    [told] = frame.agg(*_counts()).collect()
    return int(told["rows"]), int(told["records"])


def _counts() -> tuple[Column, Column]:
    return f.count(f.lit(1)).alias("records"), f.count_if(~f.col("_refused")).alias("rows")


@contextmanager
def explained(table: TableRow, move: Move, *, kafka: TlsPlace | None = None) -> Iterator[None]:
    """Spark's errors as the harness's: an outage may be waited for, anything else counts against the move."""
    where = f"{table.name}: Spark could not stage move {move.move_id}, attempt {move.attempt}"
    outcome = "nothing was published"

    def failed(text: str) -> HarnessError:
        return SparkFailed(f"{where}: {troubles.shown_line(text)}; {outcome}")

    with troubles.explained(where, outcome=outcome, failed=failed, kafka=kafka):
        yield


def read_segments(
    spark: SparkSession,
    table: TableRow,
    *,
    segments: Sequence[SegmentRef],
    tasks: Sequence[Sequence[OffsetRange]],
    source: tuple[SegmentScans, JdbcOptions],
) -> DataFrame:
    """The rows of *segments* in the ranges of *tasks*, with all coordinates, in the column order of the view.

    Rows of a task of several ranges are sorted by partition and offset.
    """
    scans, jdbc = source
    scan = scans.rows(table.spec.columns, segments, stores_op=bool(table.spec.key))
    predicates = [
        " OR ".join(
            f"(_kafka_partition = {r.partition} AND _kafka_offset >= {r.low} AND _kafka_offset < {r.high})"
            for r in task
        )
        for task in tasks
    ]
    frame = spark.read.jdbc(
        url=jdbc.url,
        table=scan.relation,
        predicates=predicates,
        properties={**jdbc.properties, "fetchsize": str(FETCH_ROWS)},
    )
    rows = frame.select(*columns_of(scan, table.spec.columns))
    return rows.sortWithinPartitions(PARTITION, OFFSET) if any(len(task) > 1 for task in tasks) else rows
