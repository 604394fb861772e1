"""Python work on Spark's executors, one task per range."""

from __future__ import annotations

import atexit
import shutil
import threading
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from weakref import WeakSet

import grpc
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import harness_pipelines
from harness_pipelines.engines.spark.executors.functions import Work, in_any_folder
from harness_pipelines.engines.spark.session import Py4JError, SessionLost, is_lost_channel
from harness_pipelines.engines.spark.troubles import named
from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.secret import redact

_shipped: WeakSet[SparkSession] = WeakSet()
_lock = threading.Lock()


class TasksFailed(HarnessError):
    """A task on an executor failed; what it had committed stays committed."""

    recovery = Recovery.REFRESH


class ExecutorsAway(SessionLost):
    """Spark was lost during tasks; their finished commits stay committed."""


def run(
    spark: SparkSession,
    ranges: Sequence[OffsetRange],
    work: Work,
    result: pa.Schema,
) -> list[Mapping[str, Any]]:
    """Run *work* over batches of (partition, low, high), one range per task; returns the rows that it yields.

    Raises: TasksFailed, ExecutorsAway, and what `named` finds.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    try:
        ship(spark)
        rows = [(r.partition, r.low, r.high) for r in ranges]
        frame = spark.createDataFrame(rows, "partition int, low long, high long")
        spread = frame.repartitionByRange(len(rows), "partition")
        return [row.asDict() for row in spread.mapInArrow(in_any_folder(work), from_arrow_schema(result)).collect()]
    except grpc.RpcError as error:
        raise ExecutorsAway(f"Spark was lost: {redact(str(error))[:500]}") from error
    except (PySparkException, Py4JError) as error:
        found = named(error, "a Spark task failed", outcome="what tasks had committed stays")
        raise found or TasksFailed(f"a Spark task failed: {redact(str(error))[:1000]}") from error
    except ValueError as error:
        if not is_lost_channel(error):
            raise
        raise ExecutorsAway("the Spark server went away, or another stage closed the session") from error


def ship(spark: SparkSession) -> None:
    """Give the executors this very package, once per session."""
    with _lock:
        if spark not in _shipped:
            spark.addArtifacts(str(package_zip()), pyfile=True)
            _shipped.add(spark)


@cache
def package_zip() -> Path:
    """The package as a zip that Python can import from, its SQL files included; one per process, gone with it."""
    root, folder = Path(harness_pipelines.__file__).parent, mkdtemp(prefix="harness-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = Path(folder) / "harness_pipelines.zip"
    with zipfile.ZipFile(made, "w") as archive:
        for file in sorted(root.rglob("*")):
            if file.suffix in {".py", ".sql"}:
                archive.write(file, Path("harness_pipelines") / file.relative_to(root))
    return made
