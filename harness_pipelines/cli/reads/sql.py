"""`harness sql`: Spark SQL over the tables."""

from __future__ import annotations

from contextlib import ExitStack
from uuid import uuid4

import click

from harness_pipelines.cli.common import opened
from harness_pipelines.cli.reads.sql_tables import parse_query
from harness_pipelines.errors import UsageError
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import quantity

ROWS_MAX = 1000


@click.command()
@click.argument("query")
@click.option(
    "--limit", type=click.IntRange(1, 2**31 - 1), default=ROWS_MAX, show_default=True, help="Print at most N rows."
)
@json_option
@click.pass_obj
def sql(settings: Settings, /, query: str, *, limit: int, json_target: str | None) -> None:
    """Run a Spark SQL query over tables of the harness; each table is one consistent cut.

    Write a table as namespace.name; a single name means a CTE.

    \b
    Examples:
      harness sql "SELECT city, count(*), sum(amount) FROM shop.orders GROUP BY city"
      harness sql "SELECT * FROM shop.orders o JOIN shop.people p ON o.person = p.id" --limit 10
    """
    from harness_pipelines.engines.spark.query import query as run_query

    with opened(settings) as harness:
        known = {table.name: table for table in harness.tables()}
        parsed = parse_query(query, known)
        views = {name: f"harness_{uuid4().hex}" for name in parsed.tables}
        spark = harness.stores.spark()
        with ExitStack() as held:
            for name, view in views.items():
                plan = known[name].plan()
                held.callback(known[name].release, plan)
                known[name].to_spark(spark, view=view, plan=plan)
                held.callback(spark.catalog.dropTempView, view)
            columns, rows = run_query(spark, parsed.with_views(views), rows_max=limit + 1)
    if json_target is not None and len(set(columns)) < len(columns):
        name = max(columns, key=columns.count)
        raise UsageError(f"two columns of the result are named {name!r}, and JSON can hold only one: add an alias")
    shown = {"columns": columns, "rows": [dict(zip(columns, row, strict=True)) for row in rows[:limit]]}
    emit(shown, json_target, lambda: _show(columns, rows[:limit]))
    if len(rows) > limit:
        note(f"first {quantity(limit, 'row')}; more: --limit N")


def _show(columns: list[str], rows: list[tuple[object, ...]]) -> None:
    from harness_pipelines.show.rows import text_lines

    for line in text_lines(columns, rows):
        click.echo(line)
    note(quantity(len(rows), "row"))
