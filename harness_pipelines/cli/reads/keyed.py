"""`harness get` and `harness changes`: rows by key, and the changes between two versions."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from harness_pipelines.cli.common import at_option, opened, split_names
from harness_pipelines.errors import UsageError
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

    from harness_pipelines.app.table import Table

NOT_THERE = 1  #: the exit code when no row has the key


@click.command()
@click.argument("table")
@click.argument("key", nargs=-1, required=True)
@click.option(
    "--columns", callback=split_names, metavar="A,B", help="Only these columns; coordinate columns are allowed."
)
@at_option("Read the row at this version, snapshot or time.")
@click.option("--tail", is_flag=True, help="Also the records that are only in Kafka.")
@json_option
@click.pass_context
def get(ctx: click.Context, /, table: str, key: tuple[str, ...], **options: Any) -> None:
    """Print the newest row of a key of TABLE. KEY is one word per key column.

    Exit code 1 if the key has no row or is deleted.

    \b
    Examples:
      harness get shop.orders 1001
      harness get shop.stock Oslo 4711 --json
    """
    settings: Settings = ctx.obj
    with opened(settings) as harness:
        found = harness.table(table)
        given = _given(found, key)
        row = found.get(given, columns=options["columns"], at=options["at"], tail=options["tail"])
    if options["json_target"] is not None:
        from harness_pipelines.show.rows import json_rows

        shown = None if row is None else next(json_rows(_one_row(found, row)))
        emit({"table": found.name, "found": row is not None, "row": shown}, options["json_target"])
    elif row is not None:
        _show(_one_row(found, row))
    else:
        note(f"{found.name} has no row of this key")
    if row is None:
        ctx.exit(NOT_THERE)


@click.command()
@click.argument("table")
@click.option(
    "--from",
    "since",
    type=click.IntRange(min=1),
    required=True,
    metavar="VERSION",
    help="Leave out the records of this version.",
)
@click.option(
    "--to",
    type=click.IntRange(min=1),
    metavar="VERSION",
    help="Include the records of this version.  [default: up to now]",
)
@click.option("--columns", callback=split_names, metavar="A,B", help="Only these columns and the coordinates.")
@click.option("--where", metavar="SQL", help="Only records that match, such as \"_op = 'delete'\".")
@click.option("--pre-images", is_flag=True, help="For a keyed table: the effect of each record (+I, -U and +U, -D).")
@click.option(
    "--corrections",
    is_flag=True,
    help="Append the rows that a replay corrected, marked by `_correction`.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Print the first N of them.")
@click.option("--follow", is_flag=True, help="Continue with every new version; prints one JSON object per line.")
@json_option
@click.pass_obj
def changes(settings: Settings, /, table: str, **options: Any) -> None:
    """Print the records between two versions, puts and deletes, by partition and offset.

    \b
    Examples:
      harness changes shop.orders --from 3 --to 5 --limit 20
      harness changes shop.orders --from 3 --where "_op = 'delete'" --json
      harness changes shop.orders --from 3 --corrections
      harness changes shop.orders --from 3 --pre-images    # with the replaced or deleted rows
      harness changes shop.orders --from 3 --pre-images --follow
    """
    from harness_pipelines.show.rows import json_rows

    with opened(settings) as harness:
        found = harness.table(table)
        if options["follow"]:
            _follow(found, options)
            return
        rows = found.changes(
            options["since"],
            options["to"],
            columns=options["columns"],
            where=options["where"],
            pre_images=options["pre_images"],
        )
        count = rows.num_rows
        rows = rows.slice(0, options["limit"])
        words = {word: options[word] for word in ("columns", "where")}
        marked = found.corrections(options["since"], options["to"], **words) if options["corrections"] else None
    if options["json_target"] is not None:
        told = {} if marked is None else {"corrections": list(json_rows(marked))}
        emit({"table": found.name, "changes": list(json_rows(rows)), **told}, options["json_target"])
    else:
        _show(rows)
        note(f"{count:,} changes" if rows.num_rows == count else f"the first {rows.num_rows:,} of {count:,} changes")
        if marked is not None:
            _show(marked)
            note(f"{marked.num_rows:,} corrections")


def _follow(table: Table, options: dict[str, Any]) -> None:
    """Print every change with its version. Raises: UsageError if an end is given."""
    from harness_pipelines.show.rows import json_lines

    if any(options[word] is not None for word in ("to", "limit", "json_target")):
        raise UsageError("--follow never ends and always prints JSON: omit --to, --limit and --json")
    write = json_lines(sys.stdout.buffer)
    words = {word: options[word] for word in ("columns", "where", "pre_images")}
    at = options["since"]
    for version, rows in table.changelog(at, **words):
        if options["corrections"]:
            marked = table.corrections(at, version, columns=options["columns"], where=options["where"])
            write(marked.add_column(0, "_version", [[version] * marked.num_rows]))
            at = version
        write(rows.add_column(0, "_version", [[version] * rows.num_rows]))
        sys.stdout.buffer.flush()


def _given(table: Table, words: tuple[str, ...]) -> tuple[Any, ...]:
    """Return the key that *words* give; `Table.get` refuses a wrong number of them."""
    from harness_pipelines.read.point import literal_of_text

    columns = table.spec.key_columns
    return tuple(map(literal_of_text, columns, words)) if len(words) == len(columns) else words


def _one_row(table: Table, row: dict[str, Any]) -> pa.Table:
    import pyarrow as pa

    from harness_pipelines.spec.arrow import arrow_schema

    known = arrow_schema(table.spec.stored, coordinates=True)
    return pa.Table.from_pylist([row], schema=pa.schema([known.field(name) for name in row]))


def _show(rows: pa.Table) -> None:
    from harness_pipelines.show.rows import table_lines

    for line in table_lines(rows):
        click.echo(line)
