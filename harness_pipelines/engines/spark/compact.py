"""Spark's part of the compact stage: rows of small files in offset order, one task per new file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from harness_pipelines.engines.spark.view import files_of, view_frame
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.lake.compaction import Run

PARTITION, OFFSET = "_kafka_partition", "_kafka_offset"


def rows_in_pieces(spark: SparkSession, metadata: str, runs: Sequence[Run]) -> DataFrame:
    """The rows of the files of *runs* in the stream view that *metadata* fixes, all columns; a task has one piece."""
    pieces = sorted((piece for run in runs for piece in run.pieces), key=lambda r: (r.partition, r.low))
    placed = _rows(spark, metadata, runs).repartitionById(len(pieces), _index(pieces))
    return placed.sortWithinPartitions(PARTITION, OFFSET)


def _rows(spark: SparkSession, metadata: str, runs: Sequence[Run]) -> DataFrame:
    # Iceberg prunes files by the ranges; which of the files that are left are meant, their names say.
    paths = [file.path for run in runs for file in run.files]
    view = view_frame(spark, metadata, files_of(metadata, paths))
    return view.where(reduce(or_, (_inside(run.hull) for run in runs))).where(f.col("_file").isin(paths))


def _inside(hull: OffsetRange) -> Column:
    offset = f.col(OFFSET)
    return (f.col(PARTITION) == hull.partition) & (offset >= hull.low) & (offset < hull.high)


def _index(pieces: Sequence[OffsetRange], first: int = 0) -> Column:
    """The number of a row's piece, found by halving; *first* is the number of the first one."""
    if len(pieces) == 1:
        return f.lit(first)
    half = len(pieces) // 2
    partition, low = pieces[half].partition, pieces[half].low
    below = (f.col(PARTITION) < partition) | ((f.col(PARTITION) == partition) & (f.col(OFFSET) < low))
    return f.when(below, _index(pieces[:half], first)).otherwise(_index(pieces[half:], first + half))
