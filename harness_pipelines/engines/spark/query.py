"""Results of Spark queries as text, with shortened Spark errors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from harness_pipelines.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Result = TypeVar("Result")


class QueryFailed(UsageError):
    """Spark refused or could not finish a query."""


def query(spark: SparkSession, text: str, *, rows_max: int) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run one SQL query; returns the column names and at most *rows_max* rows. Raises: QueryFailed."""
    return _explained(lambda: collect(spark.sql(text), rows_max=rows_max))


def collect(frame: DataFrame, *, rows_max: int) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and at most *rows_max* rows of *frame*."""
    limited = frame.limit(rows_max)
    return list(limited.columns), [tuple(row) for row in limited.collect()]


def _explained(run: Callable[[], Result]) -> Result:
    from pyspark.errors import PySparkException

    reports = logging.getLogger("SQLQueryContextLogger")  # prints the whole plan and stack to standard error
    was, reports.disabled = reports.disabled, True
    try:
        return run()
    except PySparkException as error:
        raise QueryFailed(f"Spark did not run the query: {short_reason(str(error))}") from error
    finally:
        reports.disabled = was


def short_reason(text: str) -> str:
    """What Spark says, without the plan and the stack that follow it."""
    for end in ("JVM stacktrace", "\n\tat ", ";\n'", ";\n+-"):
        text = text.partition(end)[0]
    return text.strip()
