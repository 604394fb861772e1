"""A pinned view in Spark: the only place that creates a frame of lake files; and its small files in new pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from hashlib import blake2b, md5
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from harness_pipelines.drivers.object_stores.clients import spark_options
from harness_pipelines.drivers.postgres import READER, SPARK
from harness_pipelines.engines.spark.session import catalog_options
from harness_pipelines.ports.engine import LakeScan, LakeScans
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.coordinates import OFFSET, PARTITION
from harness_pipelines.protocol.lake.compaction import Run, WideRun
from harness_pipelines.protocol.reading.queries import LakeQuery
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from harness_pipelines.protocol.reading.narrowing import Ranges

#: Whether Parquet's reader compares each page with its checksum. It is Hadoop's option, which Spark's session hands on.
VERIFY = "parquet.page.verify-checksum.enabled"
SCHEMA = "harness_pins"
NAMESPACE = "pin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """The catalog that shows a ledger's pinned metadata files as tables.

    ``load("<...>.metadata.json")`` goes through Hadoop's file access whatever a session says, and that knows no object
    store without more jars. A catalog's table is opened with the catalog's own access. So the ledger shows each
    metadata file that a version pins as a table, and a session asks it, with the login that reads segments.
    The catalog's name has what it is made of, so that two of them fit into one session.
    """

    catalog: str
    options: Mapping[str, str] = field(repr=False)
    scans: LakeScans

    @classmethod
    def of(cls, settings: Settings, scans: LakeScans) -> Pins:
        dsn, role = (settings.spark_dsn, SPARK) if settings.spark_dsn else (settings.dsn or "", READER)
        warehouse = settings.warehouse or "file:///nowhere"  # nothing is made in it; Iceberg wants one
        options = catalog_options(dsn, warehouse=warehouse, role=role) | spark_options(warehouse, settings.s3)
        digest = blake2b("\0".join(f"{k}={v}" for k, v in sorted(options.items())).encode(), digest_size=6)
        name = f"{SCHEMA}_{digest.hexdigest()}"
        session = f"{options['jdbc.options']} -c search_path={SCHEMA} -c harness.pins={name}"
        # A pin never changes, so its table may be kept.
        return cls(catalog=name, options={**options, "jdbc.options": session, "cache-enabled": "true"}, scans=scans)

    def load(self, spark: SparkSession, metadata: str) -> DataFrame:
        """All rows of the view that *metadata* fixes. The session is given the catalog if it does not have it yet."""
        prefix = f"spark.sql.catalog.{self.catalog}"
        if spark.conf.get(prefix, None) is None:
            for name, value in sorted(self.options.items(), reverse=True):  # the class last: it tells that all is there
                spark.conf.set(f"{prefix}.{name}" if name else prefix, value)
        return spark.table(f"{self.catalog}.{NAMESPACE}.{pin_name(metadata)}")


def pin_name(metadata: str) -> str:
    """The table that the ledger shows *metadata* as."""
    return f"t{md5(metadata.encode(), usedforsecurity=False).hexdigest()}"


def view_frame(spark: SparkSession, metadata: str, query: LakeQuery, pins: Pins) -> tuple[DataFrame, LakeScan]:
    """All rows of the view that *metadata* fixes, and how those that *query* wants are found among them.

    Spark compares the pages that it reads. It has no digests, so what its plan is made of is compared here before.
    Raises: LakeFileMissing, LakeFileBroken, LakeUnreadable.
    """
    scan = pins.scans.scan(metadata, query)
    if spark.conf.get(VERIFY, None) is None:  # it was not turned off on purpose
        spark.conf.set(VERIFY, "true")
    return pins.load(spark, metadata), scan


def ranges_of(metadata: str, ranges: Ranges) -> LakeQuery:
    """What a stage wants that reads all columns of some ranges."""
    return LakeQuery(table=metadata, version=0, ranges=ranges, columns=())


def rows_in_pieces(spark: SparkSession, metadata: str, runs: Sequence[Run | WideRun], pins: Pins) -> DataFrame:
    """The rows of the files of *runs* in the stream view that *metadata* fixes, all columns; a task has one piece."""
    return in_parts(_rows(spark, metadata, runs, pins), [part for run in runs for part in run.parts])


def in_parts(rows: DataFrame, parts: Sequence[Sequence[OffsetRange]]) -> DataFrame:
    """*rows*, of which a task has those of one part, by partition and offset; no part lies within another one."""
    pieces = sorted((part[0] for part in parts), key=lambda r: (r.partition, r.low))
    return rows.repartitionById(len(pieces), _index(pieces)).sortWithinPartitions(PARTITION, OFFSET)


def _rows(spark: SparkSession, metadata: str, runs: Sequence[Run | WideRun], pins: Pins) -> DataFrame:
    # Iceberg prunes files by the ranges; of the remaining ones, the names select the wanted files.
    paths = [file.path for run in runs for file in run.files]
    view, _ = view_frame(spark, metadata, pins.scans.of_files(metadata, paths), pins)
    return view.where(reduce(or_, (_near(run.hulls) for run in runs))).where(f.col("_file").isin(paths))


def _inside(hull: OffsetRange) -> Column:
    offset = f.col(OFFSET)
    return (f.col(PARTITION) == hull.partition) & (offset >= hull.low) & (offset < hull.high)


def _near(hulls: Sequence[OffsetRange]) -> Column:
    """Holds for all rows of *hulls*, and of several partitions for others too: there may be a thousand."""
    if len(hulls) == 1:
        return _inside(hulls[0])
    partitions = f.col(PARTITION).between(hulls[0].partition, hulls[-1].partition)
    return partitions & f.col(OFFSET).between(min(h.low for h in hulls), max(h.high for h in hulls) - 1)


def _index(pieces: Sequence[OffsetRange], first: int = 0) -> Column:
    """The number of a row's piece, found by halving; *first* is the number of the first one."""
    if len(pieces) == 1:
        return f.lit(first)
    half = len(pieces) // 2
    partition, low = pieces[half].partition, pieces[half].low
    below = (f.col(PARTITION) < partition) | ((f.col(PARTITION) == partition) & (f.col(OFFSET) < low))
    return f.when(below, _index(pieces[:half], first)).otherwise(_index(pieces[half:], first + half))
