"""Results of Spark queries as text, with shortened Spark errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from harness_pipelines.engines.spark.session import unreported
from harness_pipelines.ports.errors import QueryFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Result = TypeVar("Result")


def query(spark: SparkSession, text: str, *, rows_max: int) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run one SQL query; returns the column names and at most *rows_max* rows.

    Raises: QueryFailed, and what `troubles.named` finds.
    """
    return _explained(lambda: collect(spark.sql(text), rows_max=rows_max))


def collect(frame: DataFrame, *, rows_max: int) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and at most *rows_max* rows of *frame*."""
    limited = frame.limit(rows_max)
    return list(limited.columns), [tuple(row) for row in limited.collect()]


def _explained(run: Callable[[], Result]) -> Result:
    from harness_pipelines.engines.spark import troubles

    def failed(text: str) -> QueryFailed:
        return QueryFailed(f"Spark did not run the query: {short_reason(text)}")

    with (
        unreported(),
        troubles.explained("Spark did not run the query", outcome="nothing is returned", failed=failed),
    ):
        return run()


def short_reason(text: str) -> str:
    """Return Spark's message without the plan and the stack trace behind it."""
    for end in ("JVM stacktrace", "\n\tat ", ";\n'", ";\n+-"):
        text = text.partition(end)[0]
    return text.strip()
