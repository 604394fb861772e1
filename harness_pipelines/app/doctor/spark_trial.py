"""Spark on trial: its version, whether its executors work, and whether it reads and writes a table of the warehouse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness_pipelines.engines.spark.query import short_reason
from harness_pipelines.engines.spark.session import close_spark, hang_up, open_spark
from harness_pipelines.engines.spark.troubles import explained
from harness_pipelines.engines.spark.view import Pins
from harness_pipelines.engines.spark.write import SparkFailed
from harness_pipelines.lakes.iceberg.read.for_engines import IcebergScans
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS, ROWS = 8, 1000


class SparkTrial:
    """Questions to one session."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark, self._settings = spark, settings

    def version(self) -> str:
        return str(self._spark.version)

    def master(self) -> str:
        return str(self._spark.conf.get("spark.master", "an unknown master"))

    def run_tasks(self) -> int:
        """Let executors count some rows, and return how many tasks there were. Without executors it never ends."""
        counted = self._spark.range(0, ROWS, 1, TASKS).count()
        if counted != ROWS:
            raise SparkFailed(f"Spark counted {counted} of {ROWS} rows")
        return TASKS

    def read(self, metadata: str) -> list[int]:
        """The values of the trial table that *metadata* fixes, read as Spark reads every view."""
        return sorted(row[0] for row in Pins.of(self._settings, IcebergScans()).load(self._spark, metadata).collect())

    def append(self, identifier: tuple[str, str], value: int) -> None:
        """Write one more row; Spark's catalog moves the pointer, as for a branch of a move."""
        namespace, table = identifier
        self._spark.sql(f"INSERT INTO {self._settings.catalog_name}.{namespace}.{table} VALUES ({value:d})").collect()

    def hang_up(self) -> None:
        """End all calls, also those that are never answered."""
        hang_up(self._spark, self._settings)


@contextmanager
def spark_on_trial(settings: Settings) -> Iterator[SparkTrial]:
    """A new session, which ends with the block.

    Raises: SparkUnreachable, SparkJarsMissing, SparkFailed, and what `troubles.named` finds.
    """

    def failed(text: str) -> SparkFailed:
        return SparkFailed(f"Spark on trial: {short_reason(text)}")

    with explained("Spark on trial", outcome="no table was touched", failed=failed):
        spark = open_spark(settings, app_name="harness doctor")
        try:
            yield SparkTrial(spark, settings)
        finally:
            close_spark(spark, settings)
