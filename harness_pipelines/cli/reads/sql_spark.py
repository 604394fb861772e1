"""`harness sql --engine spark`: each table of the query is a view of one cut in Spark."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING
from uuid import uuid4

from harness_pipelines.cli.common import opened
from harness_pipelines.cli.reads.sql_tables import parse_query
from harness_pipelines.errors import UsageError
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.protocol.reading.reads import At


def rows_of(
    settings: Settings, text: str, *, at: At | None, rows_max: int
) -> tuple[list[str], list[tuple[object, ...]]]:
    """The columns and at most *rows_max* rows of a query. Raises: SqlError, QueryFailed, and as `Table.to_spark`."""
    from harness_pipelines.engines.spark.query import query as run_query

    with opened(settings) as harness:
        known = {table.name: table for table in harness.tables()}
        parsed = parse_query(text, known)
        if isinstance(at, int) and len(parsed.tables) > 1:
            raise UsageError(f"--at {at}: a version is a number of one table; name a snapshot or a time")
        views = {name: f"harness_{uuid4().hex}" for name in parsed.tables}
        spark = harness.stores.spark()
        with ExitStack() as held:
            for name, view in views.items():
                plan = known[name].plan(at=at)
                held.callback(known[name].release, plan)
                known[name].to_spark(spark, view=view, plan=plan)
                held.callback(spark.catalog.dropTempView, view)
            return run_query(spark, parsed.with_views(views), rows_max=rows_max)
