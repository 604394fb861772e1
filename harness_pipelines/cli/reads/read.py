"""`harness read`: the rows of a table as one consistent cut."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness_pipelines.cli.common import LONG_MAX, at_option, opened, split_names
from harness_pipelines.cli.reads.written import FORMATS, form_of, write_rows
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    import pyarrow as pa

    from harness_pipelines.app.table import Table

TABLE_ROWS = 100  #: shown by `--format table` unless --limit says otherwise


@click.command()
@click.argument("table")
@click.option(
    "--columns", callback=split_names, metavar="A,B", help="Only these columns; coordinate columns are allowed."
)
@click.option("--where", metavar="SQL", help="Only rows that match, such as \"amount > 10 and city = 'Oslo'\".")
@at_option("Read this version, snapshot or time: always the same rows.  [default: the newest rows]")
@click.option("--limit", type=click.IntRange(0, LONG_MAX), metavar="N", help=f"At most N rows.  [table: {TABLE_ROWS}]")
@click.option(
    "--sample",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="SHARE",
    help="Read about this share of the rows, such as 0.01; always the same rows.",
)
@click.option("--tail", is_flag=True, help="Also the records that are only in Kafka.")
@click.option(
    "--coordinates",
    is_flag=True,
    help="Also the columns for partition, offset, timestamp, operation and schema version.",
)
@click.option(
    "--format", "form", type=click.Choice(FORMATS), help="[default: by the suffix of --output; table on a terminal]"
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write to FILE.")
@json_option
@click.pass_obj
def read(settings: Settings, /, table: str, **options: Any) -> None:
    """Print the rows of a table: exactly the records below one offset vector, from lake and buffer.

    `json` prints an array with one row per line and decimals as strings. `parquet` needs a file or a pipe.

    \b
    Examples:
      harness read shop.orders --limit 10
      harness read shop.orders --columns order_id,amount --where "amount > 100" --format csv | head
      harness read shop.orders --at 3 --output orders.parquet
      harness read shop.orders --at 2026-11-22T10:30:00Z
      harness read shop.orders --sample 0.01 --format csv
      harness read shop.orders --columns _kafka_partition,_kafka_offset --tail --format json
    """
    target = options["json_target"]
    form = form_of(options["form"], options["output"], target)
    with opened(settings) as harness:
        found = harness.table(table)
        wanted = {
            "columns": _columns(found, options["columns"], coordinates=options["coordinates"]),
            "where": options["where"],
            "at": options["at"],
            "limit": options["limit"],
            "tail": options["tail"],
        }
        if target is not None:
            from harness_pipelines.show.rows import json_rows

            rows = _rows(found, wanted, options["sample"])
            emit({"table": found.name, "rows": list(json_rows(rows))}, target)
        elif form == "table":
            unlimited = options["limit"] is None and options["output"] is None  # a file is whole, a terminal has pages
            limit = TABLE_ROWS + 1 if unlimited else options["limit"]
            rows = _rows(found, {**wanted, "limit": limit}, options["sample"])
            _show(rows, options["limit"], options["output"])
        else:
            write_rows(_batches(found, wanted, options["sample"]), form, options["output"])


def _rows(table: Table, wanted: dict[str, Any], sample: float | None) -> pa.Table:
    return table.read(**wanted) if sample is None else table.sample(sample, **wanted)


def _batches(
    table: Table, wanted: dict[str, Any], sample: float | None
) -> AbstractContextManager[pa.RecordBatchReader]:
    """Return the rows as a stream; a sample is small and is read at once."""
    if sample is None:
        return table.reader(**wanted)
    batches: AbstractContextManager[pa.RecordBatchReader] = table.sample(sample, **wanted).to_reader()
    return batches


def _columns(table: Table, named: list[str] | None, *, coordinates: bool) -> Sequence[str] | None:
    if not coordinates:
        return named
    from harness_pipelines.spec.arrow import COORDINATES

    chosen = named if named is not None else [c.name for c in table.spec.columns]
    return list(dict.fromkeys([*chosen, *COORDINATES.names]))


def _show(rows: pa.Table, limit: int | None, output: Path | None) -> None:
    """Print *rows* as a table; one more row than shown means that there are more."""
    from harness_pipelines.show.rows import table_lines

    more = limit is None and output is None and rows.num_rows > TABLE_ROWS
    rows = rows.slice(0, TABLE_ROWS) if more else rows
    lines = table_lines(rows)
    if output:
        output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    else:
        for line in lines:
            click.echo(line)
    count = quantity(rows.num_rows, "row")
    note(f"first {count}; more: --limit N, or --format csv" if more else count)
