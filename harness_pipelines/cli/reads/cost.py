"""`harness cost`: what tables did by day, and what that took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harness_pipelines.cli.common import chosen_tables, opened
from harness_pipelines.errors import HarnessError
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.app.table import Table
    from harness_pipelines.protocol.versions import Version
    from harness_pipelines.read.report.costs import TableCost

DAYS_MAX = 400


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option("--days", type=click.IntRange(1, DAYS_MAX), default=7, show_default=True, help="Days, today included.")
@click.option(
    "--prices", type=click.Path(dir_okay=False), metavar="FILE", help="Prices to multiply by; without it examples."
)
@json_option
@click.pass_obj
def cost(
    settings: Settings, tables: tuple[str, ...], *, days: int, prices: str | None, json_target: str | None
) -> None:
    """Show what TABLES, or all, did on each day (UTC): records, bytes written and written again, CPU of workers.

    And what is stored now, with its price. CPU is that of ingest, tier, otree and compact in workers; what Spark and
    Postgres take is not measured. Without --prices the prices are examples.

    \b
    Examples:
      harness cost
      harness cost shop.orders --days 30
      harness cost --prices prices.yaml --json | jq '.tables[] | [.table, .stored_month_price]'
    """
    from harness_pipelines.read.report.costs import Prices, load_prices, table_costs

    priced = Prices() if prices is None else load_prices(prices)
    with opened(settings) as harness:
        chosen = chosen_tables(harness, tables)
        names = [one.name for one in chosen]
        heads = harness.stores.overview.heads([one.row for one in chosen])
        found = table_costs(
            names,
            harness.stores.costs.days(names, days=days),
            lake={one.name: _lake_bytes(one, heads[one.row.table_id]) for one in chosen},
            buffers={name: grown.bytes for name, grown in harness.stores.stalls.growth().items()},
            prices=priced,
        )
    shown = {"prices": priced.model_dump(mode="json"), "examples": prices is None}
    emit({**shown, "tables": [one.to_json() for one in found]}, json_target, lambda: _show(found, prices is None))


def _lake_bytes(one: Table, head: Version | HarnessError) -> int | None:
    """Bytes of the data files of *head*, the newest version; None while the lake does not answer."""
    from harness_pipelines.read.report.storage import costs

    if isinstance(head, HarnessError):
        note(f"harness: {head}")
        return None
    try:
        return sum(view.bytes for view in costs(one.row, head, one.harness.stores.lake_reads))
    except HarnessError:
        return None


def _show(found: list[TableCost], examples: bool) -> None:
    from harness_pipelines.show.bars import size

    for one in found:
        currency, stored = one.prices.currency, one.stored_month
        lake = "unknown bytes (its head or the lake cannot be read)" if one.lake_bytes is None else size(one.lake_bytes)
        click.echo(f"{one.table}: {lake} in the lake, {size(one.buffer_bytes)} in the buffer")
        if stored is not None:
            click.echo(f"  stored for a month: {stored:,.2f} {currency}{' (prices are examples)' if examples else ''}")
        if not one.days:
            click.echo("  no work was counted in these days: workers and Dagster's sensors count every five minutes")
        for day in one.days:
            click.echo(
                f"  {day.day}  {day.records:>14,} records  written {size(day.written)}, again "
                f"{size(day.written_again)}  worker CPU {day.cpu_s:,.1f} s"
            )
        if one.again is not None:
            click.echo(f"  each byte was written again {one.again:.2f} times")
