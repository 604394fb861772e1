"""The parts of a union read as Spark frames. DataFrame API only: Connect and any master."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from harness_pipelines.engines.spark.fold import quoted
from harness_pipelines.engines.spark.jdbc import JdbcOptions
from harness_pipelines.engines.spark.predicates import to_spark
from harness_pipelines.engines.spark.segments import columns_of
from harness_pipelines.engines.spark.view import Pins, view_frame
from harness_pipelines.layout.row_hash import COORDINATE, SAMPLE_BITS
from harness_pipelines.layout.tree import LAYER
from harness_pipelines.ports.buffer import SegmentScans, SqlScan
from harness_pipelines.protocol.coordinates import COORDINATES
from harness_pipelines.protocol.reading.narrowing import Ranges
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.protocol.reading.queries import LakeQuery
from harness_pipelines.spec.arrow import Named
from harness_pipelines.spec.predicate import TRUE, Predicate
from harness_pipelines.spec.types import DecimalType, ListType, MapType, Primitive, StructType, Type

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

FETCH_ROWS = 10_000
_WIDENED = {("long", "int"), ("double", "float")}  #: a column of a view, and what an older read asks for
TASK_OFFSETS_MAX = 250_000  #: a JDBC task reads no more offsets; small ranges share a task


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedJdbc:
    """The buffer's address, and the lease without which nothing is read from it.

    The guard runs in each task's session before its query, so even a dropped segment is reported as an ended lease.
    """

    options: JdbcOptions
    scans: SegmentScans
    lease_id: str

    def load(self, spark: SparkSession, scan: SqlScan, predicates: Sequence[str]) -> DataFrame:
        properties = {
            **self.options.properties,
            "fetchsize": str(FETCH_ROWS),
            "sessionInitStatement": self.scans.guard(self.lease_id),
            # Spark does not evaluate again what it hands to a database, where text has the database's collation, a
            # float is compared as a double and infinity is a column. What may be asked of it is in the relation.
            "pushDownPredicate": "false",
            "preferTimestampNTZ": "false",  # else the session's setting would say what a moment is
        }
        return spark.read.jdbc(self.options.url, scan.relation, predicates=list(predicates), properties=properties)


def lake_frame(spark: SparkSession, metadata: str, query: LakeQuery, pins: Pins) -> DataFrame:
    """The rows of *query* in a pinned view; files outside of its ranges are not opened.

    Raises: LakeFileMissing, LakeUnreadable.
    """
    from pyspark.sql import functions as f

    frame, scan = view_frame(spark, metadata, query, pins)
    if query.layer and scan.has_layer:
        frame = frame.filter(f.col(LAYER.name))
    if not scan.is_covered:
        frame = frame.filter(reduce(or_, (_inside(p, *query.ranges[p]) for p in sorted(query.ranges))))
    wanted = {column.name: column.type for column in query.columns}
    frame = frame.select(
        *(
            _as_asked(f.col(quoted(column.name)), column.type, wanted[column.shown]).alias(column.shown)
            for column in scan.columns
        )
    )
    return frame if query.where == TRUE else frame.filter(to_spark(query.where))


def _as_asked(value: SparkColumn, kind: Type, wanted: Type | None) -> SparkColumn:
    """*value* of a column that may have been widened since; what an old version shows of it fits the type of then.

    So do structs, by the names of their fields: those that an old version has are there, as nothing that was written
    after a drop answers for it, and have their names.
    """
    from pyspark.sql import functions as f

    if wanted is None or not _is_other(kind, wanted):
        return _comparable(value, kind)
    match kind, wanted:
        case StructType(fields), StructType(parts):
            types = {part.name: part.type for part in fields}
            shown = [_as_asked(value.getField(p.name), types[p.name], p.type).alias(p.name) for p in parts]
            return f.when(value.isNotNull(), f.struct(*shown))
        case ListType(there), ListType(element):
            return f.transform(value, lambda one: _as_asked(one, there, element))
        case MapType(_, there), MapType(_, of_map):
            return f.transform_values(value, lambda _, one: _as_asked(one, there, of_map))
    return value.cast(str(wanted))


def _is_other(kind: Type, wanted: Type) -> bool:
    """Return whether a view has *kind* where the type of then is *wanted*."""
    match kind, wanted:
        case StructType(fields), StructType(parts):
            if [part.name for part in fields] != [part.name for part in parts]:
                return True
            return any(_is_other(a.type, b.type) for a, b in zip(fields, parts, strict=True))
        case ListType(there), ListType(element):
            return _is_other(there, element)
        case MapType(_, there), MapType(_, of_map):
            return _is_other(there, of_map)
        case DecimalType(), DecimalType():
            return str(kind) != str(wanted)
    return (str(kind), str(wanted)) in _WIDENED


def _comparable(value: SparkColumn, kind: Type) -> SparkColumn:
    """*value* so that filters on its UUIDs are Spark's own work.

    Iceberg's Java side compares UUIDs as two signed numbers but keeps bounds in the order of their bytes, so a filter
    that reaches it leaves out files that have matches (apache/iceberg#14216). It is not handed a function of a column.
    """
    from pyspark.sql import functions as f

    if kind == Primitive("uuid"):
        return f.lower(value)  # which it is
    if isinstance(kind, StructType) and "uuid" in str(kind):
        parts = [_comparable(value.getField(part.name), part.type).alias(part.name) for part in kind.fields]
        return f.when(value.isNotNull(), f.struct(*parts))
    return value


def segments_frame(
    spark: SparkSession,
    jdbc: GuardedJdbc,
    *,
    segments: Sequence[SegmentRef],
    columns: Sequence[Named],
    rows: RowsWanted,
) -> DataFrame:
    """The rows of *segments* in *rows*, columns in order; some tasks, each with its own statement."""
    user = [c for c in columns if c.name not in COORDINATES]
    scan = jdbc.scans.rows(user, segments, where=rows.where, stores_op=rows.stores_op)
    tasks = [_one_task(rows.ranges)] if rows.are_few else list(_tasks(rows.ranges))
    frame = _user_columns(jdbc.load(spark, scan, tasks), scan, columns)
    return frame if rows.where == TRUE else frame.filter(to_spark(rows.where))


def guard_frame(spark: SparkSession, jdbc: GuardedJdbc, *, columns: Sequence[Named]) -> DataFrame:
    """No rows; its every use fails when the lease has ended. Neither Spark nor Postgres can see that it is empty."""
    user = [c for c in columns if c.name not in COORDINATES]
    scan = jdbc.scans.no_rows(user, lease_id=jdbc.lease_id)
    return _user_columns(jdbc.load(spark, scan, ["true"]), scan, columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWanted:
    """Ranges per partition and what must hold in them."""

    ranges: Ranges
    where: Predicate = TRUE
    stores_op: bool = False  #: of a keyed table
    are_few: bool = False  #: far fewer rows than offsets: one task reads them


def filtered(frame: DataFrame, where: Predicate, columns: Sequence[str]) -> DataFrame:
    """Rows of *frame* for which *where* holds, with *columns* in order."""
    kept = frame if where == TRUE else frame.filter(to_spark(where))
    return kept.select(*map(quoted, columns))


def sampled(frame: DataFrame, *, below: int, columns: Sequence[str]) -> DataFrame:
    """Rows of *frame*, which has the coordinate, whose `row_hash` is *below* it, with *columns* in order."""
    return filtered(frame.filter(row_hash() < below), TRUE, columns)


def row_hash() -> SparkColumn:
    """`harness_pipelines.layout.row_hash` of a row that has the coordinate."""
    from pyspark.sql import functions as f

    return f.pmod(f.xxhash64(*COORDINATE), f.lit(2**SAMPLE_BITS))


def _user_columns(raw: DataFrame, scan: SqlScan, columns: Sequence[Named]) -> DataFrame:
    user = [c for c in columns if c.name not in COORDINATES]
    frame = raw.select(*columns_of(scan, user))
    return frame.select(*(quoted(c.name) for c in columns))


def _inside(partition: int, low: int, high: int) -> SparkColumn:
    from pyspark.sql import functions as f

    offset = f.col("_kafka_offset")
    return (f.col("_kafka_partition") == partition) & (offset >= low) & (offset < high)


def _one_task(ranges: Ranges) -> str:
    return " OR ".join(
        f"(_kafka_partition = {partition} AND _kafka_offset >= {low} AND _kafka_offset < {high})"
        for partition, (low, high) in sorted(ranges.items())
    )


def _tasks(ranges: Ranges) -> Iterator[str]:
    """One condition per JDBC task: large ranges are cut, small ones share a task."""
    shared: list[str] = []
    room = TASK_OFFSETS_MAX
    for partition in sorted(ranges):
        low, high = ranges[partition]
        while low < high:
            upto = min(high, low + room)
            shared.append(f"(_kafka_partition = {partition} AND _kafka_offset >= {low} AND _kafka_offset < {upto})")
            room -= upto - low
            low = upto
            if room == 0:
                yield " OR ".join(shared)
                shared, room = [], TASK_OFFSETS_MAX
    if shared:
        yield " OR ".join(shared)
