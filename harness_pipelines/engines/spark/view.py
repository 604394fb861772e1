"""A pinned view in Spark: the only place that creates a frame of a lake file."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from harness_pipelines.lakes.iceberg.read.scan import check_ends, named_errors, pinned
from harness_pipelines.protocol.reading.queries import LakeQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from harness_pipelines.protocol.reading.narrowing import Ranges

#: Whether Parquet's reader compares each page with its checksum. It is Hadoop's option, which Spark's session hands on.
VERIFY = "parquet.page.verify-checksum.enabled"


def view_frame(spark: SparkSession, metadata: str, query: LakeQuery) -> DataFrame:
    """All rows of the view that *metadata* fixes, of which those of *query* are wanted.

    Spark compares the pages that it reads. It has no digests, so what its plan is made of is compared here before.
    Raises: LakeFileMissing, LakeFileBroken, LakeUnreadable.
    """
    with named_errors(query, metadata):
        check_ends(pinned(metadata), query)
    if spark.conf.get(VERIFY, None) is None:  # it was not turned off on purpose
        spark.conf.set(VERIFY, "true")
    return spark.read.format("iceberg").load(metadata)


def ranges_of(metadata: str, ranges: Ranges) -> LakeQuery:
    """What a stage wants that reads all columns of some ranges."""
    return LakeQuery(table=metadata, version=0, ranges=ranges, columns=())


def files_of(metadata: str, paths: Collection[str]) -> LakeQuery:
    """What a stage wants that reads some files, all columns and rows."""
    ranges = {p: (0, 2**63 - 1) for p in {file.partition for file in pinned(metadata).files} if p is not None}
    return LakeQuery(
        table=metadata, version=0, ranges=ranges or {0: (0, 2**63 - 1)}, columns=(), files=frozenset(paths)
    )
