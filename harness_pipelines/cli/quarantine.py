"""`harness quarantine`: records that did not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from harness_pipelines.cli.common import opened
from harness_pipelines.cli.output import emit, json_option
from harness_pipelines.codecs.base import Reason
from harness_pipelines.errors import HarnessError
from harness_pipelines.spec.settings import Settings

LIST_MAX = 20
VALUE_CHARS_MAX = 80


class NotQuarantined(HarnessError):
    """No such record was set aside."""


@click.group()
def quarantine() -> None:
    """Look at records that did not fit their table's columns."""


@quarantine.command("list")
@click.argument("table")
@click.option("--reason", type=click.Choice([str(reason) for reason in Reason]), help="Only these.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=LIST_MAX, show_default=True, help="At most so many records."
)
@json_option
@click.pass_obj
def list_command(settings: Settings, /, table: str, *, limit: int, json_target: str | None, **wanted: Any) -> None:
    """Count a table's quarantined records by reason, and list the first ones.

    \b
    Example:
      harness quarantine list shop.orders --reason wrong_type
    """
    from harness_pipelines.stores.overview import Overview

    with opened(settings) as harness:
        row, books = harness.table(table).row, Overview(harness.stores.readers)
        reasons = books.quarantine_reasons(row)
        records = books.quarantine(row, limit=limit, **wanted)
    shown = {"table": table, "reasons": [dict(r) for r in reasons], "records": [_plain(r) for r in records]}

    def human() -> None:
        for one in reasons:
            where = f"partition {one['partition']}, offsets {one['first_offset']:,} to {one['last_offset']:,}"
            click.echo(f"{one['records']:,} {one['reason']}: {where}")
        for record in records:
            click.echo(f"  {record['partition']}:{record['offset']}  {record['reason']}: {record['detail']}")
        if not reasons:
            click.echo("nothing is quarantined")

    emit(shown, json_target, human)


@quarantine.command("show")
@click.argument("table")
@click.argument("partition", type=int)
@click.argument("offset", type=int)
@json_option
@click.pass_obj
def show_command(settings: Settings, /, table: str, partition: int, offset: int, *, json_target: str | None) -> None:
    """Show one quarantined record with its raw bytes.

    \b
    Example:
      harness quarantine show shop.orders 0 5000
    """
    from harness_pipelines.stores.overview import Overview

    with opened(settings) as harness:
        row = harness.table(table).row
        found = Overview(harness.stores.readers).quarantine(row, partition=partition, offset=offset)
    if not found:
        raise NotQuarantined(
            f"{table}: no quarantined record at partition {partition}, offset {offset}; "
            f"`harness quarantine list {table}` lists them"
        )
    shown = _plain(found[0])

    def human() -> None:
        click.echo(f"{table}, partition {partition}, offset {offset}, set aside at {shown['recorded_at']:%F %T} UTC")
        click.echo(f"{shown['reason']}: {shown['detail']}")
        for part in ("key", "value"):
            click.echo(f"{part}:   {_text(found[0][part])}")
        for name, value in shown["headers"]:
            click.echo(f"header {name}: {value}")

    emit(shown, json_target, human)


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record for JSON: bytes as text where they are text, and as hex always."""
    raw = {part: None if record[part] is None else bytes(record[part]) for part in ("key", "value")}
    texts = {f"{part}_text": _decoded(value) for part, value in raw.items()}
    return {**record, **raw, **texts}


def _decoded(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _text(value: bytes | None) -> str:
    if value is None:
        return "null"
    text = _decoded(bytes(value))
    return bytes(value).hex() if text is None else text
