"""`harness sql`: SQL over the tables, by DuckDB in this process or by Spark; without a query on a terminal, a shell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click

from harness_pipelines.cli.common import LONG_MAX, at_option, duration, opened, size
from harness_pipelines.cli.reads.written import FORMATS, form_of, write_rows
from harness_pipelines.errors import UsageError
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    import pyarrow as pa

    from harness_pipelines.app.sql import Sql
    from harness_pipelines.engines.duckdb.database import Limits
    from harness_pipelines.protocol.reading.reads import At

ROWS_MAX = 1000


@click.command()
@click.argument("query", required=False)
@click.option(
    "--engine", type=click.Choice(["duckdb", "spark"]), default="duckdb", show_default=True,
    help="What runs the query: DuckDB on this machine, or Spark with Spark's SQL.",
)  # fmt: skip
@click.option(
    "-f", "--file", "source", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Read the SQL from FILE (- for standard input). With DuckDB it may hold several statements.",
)  # fmt: skip
@at_option("Read the tables as of this snapshot or time; of one table, a version.  [default: the newest rows]")
@click.option(
    "--limit", type=click.IntRange(0, LONG_MAX), metavar="N",
    help=f"At most N rows.  [table and --json: {ROWS_MAX}; else all]",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(FORMATS), help="[default: by the suffix of --output; table without]"
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write to FILE.")
@click.option(
    "--memory", callback=size, metavar="SIZE",
    help="Memory that DuckDB may take, such as 4GB; what does not fit goes to a temporary folder.  [default: 1GiB]",
)  # fmt: skip
@click.option("--timeout", callback=duration, metavar="TIME", help="End each query after this time, such as 30s.")
@json_option
@click.pass_obj
def sql(settings: Settings, /, query: str | None, **options: Any) -> None:
    """Run SQL over the tables: each table that a query names is read as one consistent cut of now.

    Write a table as namespace.name; a single name means a CTE. Queries only read, and they read these tables only: no
    files and no network. Without a query, SQL is read from standard input; on a terminal a shell starts (.help).

    \b
    Examples:
      harness sql "SELECT city, count(*), sum(amount) FROM shop.orders GROUP BY city"
      harness sql -f report.sql --output report.parquet
      harness sql "SELECT * FROM shop.orders o JOIN shop.people p ON o.person = p.id" --at noon --limit 10
      harness sql
    """
    target = options["json_target"]
    form = form_of(options["form"], options["output"], target)
    text = _text(query, options["source"])
    if options["engine"] == "spark":
        _on_spark(settings, text, options)
    elif text is None:
        _shell(settings, options)
    else:
        _on_duckdb(settings, text, form, options)


def _text(query: str | None, source: Path | None) -> str | None:
    """The SQL of the call; None on a terminal, where a person writes it. Raises: UsageError."""
    if query is not None and source is not None:
        raise UsageError("give the SQL as an argument or by -f, not both")
    if query is not None and query != "-":
        return query
    if source is None and query is None and sys.stdin.isatty():
        return None
    try:
        if source is None or str(source) == "-":
            return sys.stdin.read()
        return source.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"the SQL in {source or 'standard input'} is not text in UTF-8: {error}") from error
    except OSError as error:
        raise click.FileError(str(source), hint=error.strerror or str(error)) from error


def _limits(options: dict[str, Any]) -> Limits:
    from harness_pipelines.extras import needs

    with needs("sql", "`harness sql`"):
        from harness_pipelines.engines.duckdb.database import MEMORY_BYTES, Limits
    return Limits(memory_bytes=options["memory"] or MEMORY_BYTES, time_s=options["timeout"])


def _on_duckdb(settings: Settings, text: str, form: str, options: dict[str, Any]) -> None:
    limits = _limits(options)
    from harness_pipelines.app.sql import Sql

    limit, at, target = options["limit"], options["at"], options["json_target"]
    with opened(settings) as harness, Sql(harness.stores, limits) as engine:
        statements = engine.session.split(text)
        if not statements:
            raise UsageError("there is no SQL statement in the text")
        if form != "table" or target is not None or options["output"] is not None:
            if len(statements) > 1:
                raise UsageError(f"one result is written, and this text has {len(statements)} statements")
            if form != "table" or options["output"] is not None:
                write_rows(_limited(engine, statements[0], at, limit), form, options["output"])
                return
        for one in statements:
            rows, is_all = first_rows(engine, one, at, ROWS_MAX if limit is None else limit)
            _emit(rows, target, is_all=is_all)


@contextmanager
def _limited(engine: Sql, text: str, at: At | None, limit: int | None) -> Iterator[pa.RecordBatchReader]:
    """The rows of a statement, at most *limit*."""
    import pyarrow as pa

    with engine.run(text, at=at) as found:
        yield found if limit is None else pa.RecordBatchReader.from_batches(found.schema, _cut(found, limit))


def _cut(found: pa.RecordBatchReader, limit: int) -> Iterator[pa.RecordBatch]:
    left = limit
    while left > 0 and (batch := next(found, None)) is not None:
        yield batch.slice(0, left)
        left -= min(left, batch.num_rows)


def first_rows(engine: Sql, text: str, at: At | None, limit: int) -> tuple[pa.Table, bool]:
    """At most *limit* rows of a statement, and whether these are all. The query ends there."""
    import pyarrow as pa

    with engine.run(text, at=at) as found:
        rows = pa.Table.from_batches(_cut(found, limit + 1), found.schema)
    return rows.slice(0, limit), rows.num_rows <= limit


def _emit(rows: pa.Table, target: str | None, *, is_all: bool) -> None:
    from harness_pipelines.show.rows import json_rows, table_lines

    def human() -> None:
        for line in table_lines(rows):
            click.echo(line)

    if target is not None:
        check_names(rows.schema.names)
    emit({"columns": rows.schema.names, "rows": list(json_rows(rows)) if target else []}, target, human)
    if target is None:
        note(quantity(rows.num_rows, "row") if is_all else f"first {quantity(rows.num_rows, 'row')}; more: --limit N")
    elif not is_all:
        note(f"first {quantity(rows.num_rows, 'row')}; more: --limit N")


def check_names(columns: list[str]) -> None:
    """Raises: UsageError for names that an object of JSON cannot hold."""
    if len(set(columns)) < len(columns):
        name = max(columns, key=columns.count)
        raise UsageError(f"two columns of the result are named {name!r}, and JSON can hold only one: add an alias")


def _shell(settings: Settings, options: dict[str, Any]) -> None:
    if options["output"] or options["form"] or options["json_target"]:
        raise UsageError("the shell shows its results: give a query with --output, --format or --json, or use .mode")
    from harness_pipelines.cli.reads.sql_shell import run_shell

    run_shell(settings, limits=_limits(options), at=options["at"], limit=options["limit"])


def _on_spark(settings: Settings, text: str | None, options: dict[str, Any]) -> None:
    unknown = [name for name in ("form", "output", "memory", "timeout") if options[name] is not None]
    if unknown:
        word = "--format" if unknown[0] == "form" else f"--{unknown[0]}"
        raise UsageError(f"{word} is not for `--engine spark`")
    if text is None:
        raise UsageError("`--engine spark` needs a query; the shell runs on DuckDB")
    limit, target = options["limit"], options["json_target"]
    limit = ROWS_MAX if limit is None else limit
    columns, rows = _rows_on_spark(settings, text, at=options["at"], rows_max=limit + 1)
    if target is not None:
        check_names(columns)
    shown = {"columns": columns, "rows": [dict(zip(columns, row, strict=True)) for row in rows[:limit]]}
    emit(shown, target, lambda: _show(columns, rows[:limit]))
    if len(rows) > limit:
        note(f"first {quantity(limit, 'row')}; more: --limit N")


def _rows_on_spark(
    settings: Settings, text: str, *, at: At | None, rows_max: int
) -> tuple[list[str], list[tuple[object, ...]]]:
    """The columns and at most *rows_max* rows of a query. Raises: SqlError, QueryFailed, and as `Table.to_spark`."""
    from harness_pipelines.cli.reads.sql_tables import parse_query
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


def _show(columns: list[str], rows: list[tuple[object, ...]]) -> None:
    from harness_pipelines.show.rows import text_lines

    for line in text_lines(columns, rows):
        click.echo(line)
    note(quantity(len(rows), "row"))
