"""What Spark does for the otree stage: a sample of rows for the tree, and files by region.

Only JVM expressions stand in the row path: a row finds its region by nested comparisons with the cuts of the tree.
Source: the recipe of section 7 of the design; one file per task by `repartitionById`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from harness_pipelines.layout.boxes import At, Slab
from harness_pipelines.layout.columns import ColumnValues, IndexedColumn, Value, column_values

if TYPE_CHECKING:
    from harness_pipelines.layout.tree import RegionTree
    from harness_pipelines.protocol.predicate import Ranges

SAMPLE_BITS = 31
_EPOCH = date(1970, 1, 1)
_WHOLE = ("boolean", "int", "long", "date", "time", "timestamp", "timestamptz")


def stream_rows(spark: SparkSession, metadata: str, ranges: Ranges) -> DataFrame:
    """The rows of *ranges* in the stream view that *metadata* fixes, all columns."""
    wanted = [
        (f.col("_kafka_partition") == p) & (f.col("_kafka_offset") >= low) & (f.col("_kafka_offset") < high)
        for p, (low, high) in sorted(ranges.items())
    ]
    return spark.read.format("iceberg").load(metadata).where(reduce(or_, wanted))


def file_rows(spark: SparkSession, metadata: str, paths: Sequence[str]) -> DataFrame:
    """The rows of some files of the batch view that *metadata* fixes, all columns."""
    view = spark.read.format("iceberg").load(metadata)
    return view.where(f.col("_file").isin(list(paths)))


def sampled(frame: DataFrame, columns: Sequence[IndexedColumn], *, share: float) -> list[ColumnValues]:
    """The indexed columns of about *share* of the rows: which rows, their coordinates decide, so always the same."""
    chosen = frame if share >= 1 else frame.where(_hashed(SAMPLE_BITS) < int(share * 2**SAMPLE_BITS))
    rows = chosen.select(*(_quoted(column.name) for column in columns)).toArrow()
    return [to_values(rows.column(i), column) for i, column in enumerate(columns)]


def to_values(column: pa.ChunkedArray, of: IndexedColumn) -> ColumnValues:
    """Arrow's values in the domain of the tree, see `harness_pipelines.layout.columns`."""
    nulls = np.asarray(column.is_null())
    if of.type in _WHOLE:
        whole = column.cast(pa.int32()) if of.type == "date" else column
        filled = pc.fill_null(whole.cast(pa.int64()), 0)
        return ColumnValues(np.asarray(filled), nulls)
    if of.is_float:
        filled = np.asarray(pc.fill_null(column.cast(pa.float64()), 0.0)) + 0.0  # -0.0 is 0.0
        return ColumnValues(filled, nulls)
    return column_values(of, [None if v is None else _plain(v, of) for v in column.to_pylist()])


def _plain(value: Any, of: IndexedColumn) -> Value:
    if isinstance(value, Decimal):
        return int(value.scaleb(_scale(of)))
    return uuid.UUID(value).bytes if of.type == "uuid" else value


def _scale(of: IndexedColumn) -> int:
    return int(of.type.rpartition(",")[2].rstrip(") "))


def region_index(tree: RegionTree) -> Column:
    """The index of a row's region in ``tree.regions()``."""
    nodes, leaf = iter(tree.nodes()), iter(range(len(tree)))

    def side() -> Column:
        node = next(nodes)
        if node is None:
            return f.lit(next(leaf))
        axis, cut = node
        column = tree.columns[axis]
        low, high = side(), side()
        if isinstance(cut, At):  # NULL and NaN are never below a cut
            return f.when(_comparable(column) < _literal(column, cut.value), low).otherwise(high)
        slab = _named(column).isNull() if cut is Slab.NULL else f.isnan(_named(column))
        return f.when(slab, high).otherwise(low)

    return side()


def in_pieces(frame: DataFrame, tree: RegionTree, *, pieces: Sequence[int], order: Sequence[str]) -> DataFrame:
    """*frame* with one task, so one file, per region of *tree*; region i has ``pieces[i]`` of them.

    Rows are in *order* inside a file, and those of equal keys by their coordinates.
    """
    first = np.concatenate([[0], np.cumsum(pieces)]).astype(int)
    index: Column = region_index(tree)
    if len(first) - 1 < int(first[-1]):  # some region has several: its rows are dealt out
        starts, counts = (f.array(*(f.lit(int(n)) for n in numbers)) for numbers in (first[:-1], pieces))
        frame = frame.withColumn("_region", index)
        at = f.col("_region") + 1
        index = f.element_at(starts, at) + f.pmod(_hash(), f.element_at(counts, at)).cast("int")
    placed = frame.withColumn("_piece", index).repartitionById(int(first[-1]), "_piece")
    by = [*(_quoted(name) for name in order), "_kafka_partition", "_kafka_offset"]
    return placed.sortWithinPartitions(*by).drop("_piece", "_region")


def _comparable(column: IndexedColumn) -> Column:
    return _named(column).cast("int") if column.type == "boolean" else _named(column)


def _literal(column: IndexedColumn, value: Value) -> Column:
    """A cut as a literal of the type that the column has in Spark."""
    if column.type.startswith("decimal"):
        return f.lit(Decimal(value).scaleb(-_scale(column)))
    match column.type:
        case "date":
            return f.lit(_EPOCH + timedelta(days=value))
        case "timestamptz":
            return f.timestamp_micros(f.lit(value))
        case "timestamp":
            return f.timestamp_micros(f.lit(value)).cast("timestamp_ntz")  # the session's time zone is UTC
        case "uuid":
            return f.lit(str(uuid.UUID(bytes=value)))
        case _:
            return f.lit(value)


def _hash() -> Column:
    """A number of a row that only its coordinates decide."""
    return f.xxhash64("_kafka_partition", "_kafka_offset")


def _hashed(bits: int) -> Column:
    return f.pmod(_hash(), f.lit(2**bits))


def _named(column: IndexedColumn) -> Column:
    return f.col(_quoted(column.name))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def routed_counts(tree: RegionTree, values: Sequence[ColumnValues], *, share: float) -> Mapping[str, float]:
    """Rows per region, estimated from a sample of *share* of them."""
    counts = np.bincount(tree.route(values), minlength=len(tree)) / share
    return dict(zip(tree.paths(), counts.tolist(), strict=True))
