"""`harness sql`: Spark SQL over the tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import ExitStack

import click

from harness_pipelines.cli.common import opened
from harness_pipelines.cli.output import emit, json_option, note
from harness_pipelines.errors import UsageError
from harness_pipelines.spec.settings import Settings

ROWS_MAX = 1000
#: Text, comments and quoted names first, so that nothing inside of them is taken for a table.
_TOKENS = re.compile(
    r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|/\*.*?\*/"
    r"|(?P<name>(?:[A-Za-z_]\w*|`[^`]+`)(?:\s*\.\s*(?:[A-Za-z_]\w*|`[^`]+`))+)",
    re.DOTALL,
)


@click.command()
@click.argument("query")
@click.option("--limit", type=click.IntRange(min=1), default=ROWS_MAX, show_default=True, help="At most so many rows.")
@json_option
@click.pass_obj
def sql(settings: Settings, /, query: str, *, limit: int, json_target: str | None) -> None:
    """Run a Spark SQL query over tables of the harness, each as one consistent cut.

    \b
    Examples:
      harness sql "SELECT city, count(*), sum(amount) FROM shop.orders GROUP BY city"
      harness sql "SELECT * FROM shop.orders o JOIN shop.people p ON o.person = p.id" --limit 10
    """
    from harness_pipelines.stores.spark_query import query as run_query

    with opened(settings) as harness:
        known = {table.name: table for table in harness.tables()}
        views = views_of(query, known)
        if not views:
            names = ", ".join(sorted(known)) or "none yet"
            raise UsageError(f"the query names no table of the harness; tables: {names}")
        spark = harness.stores.spark()
        with ExitStack() as leases:
            for name, view in views.items():
                plan = known[name].plan()
                leases.callback(known[name].release, plan)
                known[name].to_spark(spark, view=view, plan=plan)
            columns, rows = run_query(spark, with_views(query, views), rows_max=limit + 1)
    shown = {"columns": columns, "rows": [dict(zip(columns, row, strict=True)) for row in rows[:limit]]}
    emit(shown, json_target, lambda: _show(columns, rows[:limit]))
    if len(rows) > limit:
        note(f"first {limit:,} rows; more: --limit N")


def views_of(query: str, known: Collection[str]) -> dict[str, str]:
    """The tables of *known* that *query* names, each with the name of its view: the short one where that is unique."""
    found = dict.fromkeys(table for name in _names(query) if (table := _table_of(name, known)))
    short = {name: name.partition(".")[2] for name in found}
    uses = Counter(short.values())
    return {name: short[name] if uses[short[name]] == 1 else name.replace(".", "__") for name in found}


def with_views(query: str, views: Mapping[str, str]) -> str:
    """*query* with each table's name replaced by its view's, also in front of a column."""

    def replaced(match: re.Match[str]) -> str:
        name = match["name"]
        table = _table_of(name, views) if name else None
        if table is None:
            return match[0]
        return ".".join([f"`{views[table]}`", *_parts(name)[2:]])

    return _TOKENS.sub(replaced, query)


def _names(query: str) -> list[str]:
    return [match["name"] for match in _TOKENS.finditer(query) if match["name"]]


def _parts(name: str) -> list[str]:
    return re.findall(r"`[^`]+`|\w+", name)


def _table_of(name: str, known: Collection[str]) -> str | None:
    """The table that a dotted name begins with; case does not count, as in Spark."""
    table = ".".join(part.strip("`").lower() for part in _parts(name)[:2])
    return table if table in known else None


def _show(columns: list[str], rows: list[tuple[object, ...]]) -> None:
    from harness_pipelines.cli.rows import text_lines

    for line in text_lines(columns, rows):
        click.echo(line)
    note(f"{len(rows):,} rows")
