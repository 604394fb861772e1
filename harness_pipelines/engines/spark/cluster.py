"""Spark's part of the otree stage: a sample of rows for the tree, and files by region.

Only JVM expressions stand in the row path: a row finds its region by nested comparisons with the cuts of the tree.
Source: the recipe of section 7 of the design; one file per task by `repartitionById`.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from harness_pipelines.drivers.tree_values import WHOLE, to_values
from harness_pipelines.engines.spark.read import row_hash
from harness_pipelines.engines.spark.view import Pins, ranges_of, view_frame
from harness_pipelines.layout import curve
from harness_pipelines.layout.boxes import At, Cut, Slab
from harness_pipelines.layout.columns import ColumnValues, IndexedColumn, Value, rescaled
from harness_pipelines.layout.curve import Extents, scale_of
from harness_pipelines.layout.row_hash import COORDINATE, threshold
from harness_pipelines.layout.tree import LAYER

if TYPE_CHECKING:
    from harness_pipelines.layout.files import Extent, FileStats
    from harness_pipelines.layout.tree import RegionTree
    from harness_pipelines.protocol.reading.narrowing import Ranges

_DRAW_BITS = 31
_REGION, _PIECE, _CURVE = "_harness_region", "_harness_piece", "_harness_curve"
_NESTED_MAX = 20  #: cuts in one expression: what is sent to Spark may nest 100 deep, a cut and a projection 2 each
_LEAVES_MAX = 100  #: in one expression: 5,000 bytes of code
_EPOCH = date(1970, 1, 1)


def stream_rows(spark: SparkSession, metadata: str, ranges: Ranges, *, layer: float, pins: Pins) -> DataFrame:
    """The rows of *ranges* in the stream view that *metadata* fixes, all columns, `with_layer`."""
    wanted = [
        (f.col("_kafka_partition") == p) & (f.col("_kafka_offset") >= low) & (f.col("_kafka_offset") < high)
        for p, (low, high) in sorted(ranges.items())
    ]
    view, _ = view_frame(spark, metadata, ranges_of(metadata, ranges), pins)
    return with_layer(view.where(reduce(or_, wanted)), layer)


def with_layer(rows: DataFrame, layer: float) -> DataFrame:
    """*rows* and which of them the sample layer takes; *layer* is its share, 0 for a view without one."""
    return rows.withColumn(LAYER.name, row_hash() < threshold(layer)) if layer else rows


def file_rows(
    spark: SparkSession, metadata: str, files: Sequence[FileStats], columns: Sequence[IndexedColumn], *, pins: Pins
) -> DataFrame:
    """The rows of some files of the batch view that *metadata* fixes, all columns.

    Iceberg does not prune by ``_file``, so the hull of the files' bounds keeps it from opening most of the others.
    """
    paths = [file.path for file in files]
    view, _ = view_frame(spark, metadata, pins.scans.of_files(metadata, paths), pins)
    for axis, column in enumerate(columns):
        if (hull := _hull(column, [file.extents[axis] for file in files])) is not None:
            view = view.where(hull)
    return view.where(f.col("_file").isin(paths))


def _hull(column: IndexedColumn, extents: Sequence[Extent]) -> Column | None:
    """What holds for *column* in all files of these extents; None where one does not tell.

    None for UUIDs too: Iceberg's Java side compares them as two signed numbers, its bounds and Spark byte by byte.
    """
    if column.is_float or column.type == "uuid":
        return None
    empty = [e.lower is None and e.nulls is not None and e.nulls > 0 for e in extents]  # nothing but NULL
    told = [e for e, is_empty in zip(extents, empty, strict=True) if not is_empty]
    if not told or any(e.lower is None or e.upper is None for e in told):
        return None
    low, high = min(e.lower for e in told), max(e.upper for e in told)  # type: ignore[type-var]
    inside = (_comparable(column) >= _literal(column, low)) & (_comparable(column) <= _literal(column, high))
    return inside if all(e.nulls == 0 for e in extents) else inside | _named(column).isNull()


def sampled(frame: DataFrame, columns: Sequence[IndexedColumn], *, share: float) -> list[ColumnValues]:
    """The indexed columns of about *share* of the rows: which rows, their coordinates decide, so always the same.

    By another hash than that of the sample layer: it takes of the layer as much as of the other rows.
    """
    drawn = f.pmod(f.hash(*COORDINATE), f.lit(2**_DRAW_BITS)) < int(share * 2**_DRAW_BITS)
    chosen = frame if share >= 1 else frame.where(drawn)
    rows = chosen.select(*(quoted(column.name) for column in columns)).toArrow()
    return [to_values(rows.column(i), column) for i, column in enumerate(columns)]


def with_regions(frame: DataFrame, tree: RegionTree) -> DataFrame:
    """*frame*, `_numbers`, and the index of each row's region in ``tree.regions()``.

    By nested comparisons with the cuts. Of a large tree every part is a column first, of which the part above takes
    one: each row is compared in all parts, and no code is too long to be compiled.
    """
    steps, numbers = _steps(tree), _numbers(tree.columns)
    for step in (numbers, *steps) if numbers else steps:  # of text and UUIDs there are none
        frame = frame.withColumns(step)
    return frame.drop(*(name for step in steps for name in step if name != _REGION))


@dataclass(frozen=True, slots=True)
class _Part:
    """Of a tree: where its rows go."""

    region: Column
    leaves: int = 1
    depth: int = 0
    step: int = 0  #: the projection in which all that it is made of is there


def _steps(tree: RegionTree) -> list[dict[str, Column]]:
    """The projections that lead to `_REGION`, in order: columns by name."""
    steps: list[dict[str, Column]] = []

    def column(part: _Part, name: str) -> _Part:
        if name != _REGION and part.leaves == 1:
            return part
        steps.extend({} for _ in range(len(steps), part.step + 1))
        steps[part.step][name] = _in_method(part.region)
        return _Part(f.col(name), step=part.step + 1)

    leaf, parts = len(tree), list[_Part]()
    for number, node in reversed([*enumerate(tree.nodes())]):  # in preorder: both sides of a node come before it
        if node is None:
            leaf -= 1
            parts.append(_Part(f.lit(leaf)))
            continue
        low, high = parts.pop(), parts.pop()
        if low.leaves + high.leaves > _LEAVES_MAX or max(low.depth, high.depth) == _NESTED_MAX:
            low, high = column(low, f"{_REGION}_low_{number}"), column(high, f"{_REGION}_high_{number}")
        found = _divided(tree.columns, *node, low=low.region, high=high.region)
        depth, step = max(low.depth, high.depth) + 1, max(low.step, high.step)
        parts.append(_Part(found, low.leaves + high.leaves, depth, step))
    [root] = parts
    column(root, _REGION)
    return steps


def _divided(columns: Sequence[IndexedColumn], axis: int, cut: Cut, *, low: Column, high: Column) -> Column:
    """*low* below the cut, *high* elsewhere: NULL and NaN are never below one."""
    column = columns[axis]
    if isinstance(cut, At):
        if _is_number(column):
            return _either(f.col(_numbered(axis)) < f.lit(cut.value), low, high)
        return _either(_named(column) < _literal(column, cut.value), low, high)
    slab = _named(column).isNull() if cut is Slab.NULL else f.isnan(_named(column))
    return _either(slab, high, low)


def _either(holds: Column, one: Column, other: Column) -> Column:
    """As `when`, in less code."""
    return f.call_function("if", holds, one, other)


def _in_method(bits: Column) -> Column:
    """*bits*, a whole number, which Spark computes in its own method: it does so with what stands twice.

    A method of more than 8,000 bytes the JVM does not compile, so Spark runs a stage that has one operator by operator
    (`spark.sql.codegen.hugeMethodLimit`). The loop over the rows, into which all else goes, has no room for a tree.
    """
    return bits.bitwiseAND(bits)


def _numbers(columns: Sequence[IndexedColumn]) -> dict[str, Column]:
    """Per column that `_is_number`, by the name that it is given, its values; NULL is the greatest, as NaN is."""
    return {
        _numbered(axis): f.coalesce(_number(column), f.lit(math.nan if column.is_float else column.greatest))
        for axis, column in enumerate(columns)
        if _is_number(column)
    }


def _is_number(column: IndexedColumn) -> bool:
    return column.is_float or column.type in WHOLE


def _numbered(axis: int) -> str:
    return f"_harness_number_{axis}"


def _number(column: IndexedColumn) -> Column:
    """A value as the number that it is in `harness_pipelines.layout.columns`."""
    named = _named(column)
    match column.type:
        case "date":
            return f.unix_date(named)
        case "timestamp" | "timestamptz":
            return f.unix_micros(named.cast("timestamp"))
        case "boolean":
            return named.cast("int")
        case _:
            return named


def in_pieces(
    frame: DataFrame, tree: RegionTree, values: Sequence[ColumnValues], *, pieces: Sequence[int]
) -> DataFrame:
    """*frame* with one task, so one file, per region of *tree*; region i has ``pieces[i]`` of them.

    Inside a file rows lie along a Morton curve over the region, whose extents the sample *values* tells, so that row
    groups are small boxes too; rows of one place on it by their coordinates.
    """
    first = np.concatenate([[0], np.cumsum(pieces)]).astype(int)
    frame = with_regions(frame, tree)
    index = f.col(_REGION)
    if len(first) - 1 < int(first[-1]):  # some region has several: its rows are dealt out
        starts, counts = _of_region(first[:-1]), _of_region(pieces)
        index = starts + f.pmod(row_hash(), counts).cast("int")
    # Each step is its own projection: an expression that stands in the next one ten times is computed ten times.
    cells = _cells(tree, values)
    if cells:  # of text and UUIDs there are none
        frame = frame.withColumns(cells)
    placed = frame.withColumn(_CURVE, _in_method(_interleaved(list(cells)))).withColumn(_PIECE, index)
    placed = placed.repartitionById(int(first[-1]), _PIECE)
    ordered = placed.sortWithinPartitions(_CURVE, "_kafka_partition", "_kafka_offset")
    return ordered.drop(_PIECE, _REGION, _CURVE, *cells, *_numbers(tree.columns))


def in_one_piece(frame: DataFrame) -> DataFrame:
    """*frame* with one task, so one file, its rows by their coordinates.

    Not by `coalesce`, which would have one task read all that few rows are made of.
    """
    return frame.repartition(1).sortWithinPartitions("_kafka_partition", "_kafka_offset")


def _cells(tree: RegionTree, values: Sequence[ColumnValues]) -> dict[str, Column]:
    """Per indexed column, by the name that it is given, which part of its region a row lies in."""
    return {f"_harness_cell_{one.axis}": _cell(tree, one) for one in curve.extents_of(tree, values)}


def _interleaved(cells: Sequence[str]) -> Column:
    """A row's place on the curve of its region: the bits of its cells, interleaved."""
    rank = f.lit(0).cast("long")
    for bit in range(curve.CELL_BITS):
        for place, cell in enumerate(cells):
            taken = f.shiftright(cell, bit).bitwiseAND(f.lit(1).cast("long"))
            rank = rank.bitwiseOR(f.shiftleft(taken, bit * len(cells) + place))
    return rank


def _cell(tree: RegionTree, extents: Extents) -> Column:
    """Which of 2^CELL_BITS equal parts of its region's extent in one column; NULL and NaN in the last."""
    axis, column = extents.axis, tree.columns[extents.axis]
    number = f.col(_numbered(axis)) if _is_number(column) else _named(column)
    share = (number.cast("double") - _of_region(extents.low)) / _of_region(extents.width)
    cell = f.floor(f.greatest(f.lit(0.0), f.least(f.lit(1.0), share)) * curve.LAST)  # of 1 and NaN 1 is the least
    # Not by the number that stands for NULL: where all values are the greatest there is, they lie at the other end.
    return _in_method(_either(_named(column).isNull(), f.lit(curve.LAST), cell).cast("long"))


def _of_region(numbers: Sequence[int] | npt.NDArray[Any]) -> Column:
    """One of *numbers* by the row's region."""
    return f.element_at(f.array(*(f.lit(n) for n in np.asarray(numbers).tolist())), f.col(_REGION) + 1)


def _comparable(column: IndexedColumn) -> Column:
    return _named(column).cast("int") if column.type == "boolean" else _named(column)


def _literal(column: IndexedColumn, value: Value) -> Column:
    """A cut as a literal of the type that the column has in Spark."""
    if column.type.startswith("decimal"):
        return f.lit(rescaled(value, scale_of(column)))
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


def _named(column: IndexedColumn) -> Column:
    return f.col(quoted(column.name))


def quoted(name: str) -> str:
    """A column of any name, as Spark wants it."""
    return "`" + name.replace("`", "``") + "`"
