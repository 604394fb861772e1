"""`harness events`: what happened to a table."""

from __future__ import annotations

import sys

import click

from harness_pipelines.cli.common import opened
from harness_pipelines.cli.output import to_json
from harness_pipelines.spec.settings import Settings


@click.command()
@click.argument("table")
@click.option(
    "--after",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="SEQ",
    help="Only what comes behind it.",
)
@click.option("--follow", is_flag=True, help="Wait for more.")
@click.pass_obj
def events(settings: Settings, /, table: str, after: int, follow: bool) -> None:
    """Print what happened to a table, one JSON object per line: versions published, reverted, reconciled.

    Each event was recorded in the transaction that it tells of: none is missing, none tells of what was not. `seq` has
    no gaps; a program that keeps the last one goes on with --after.

    \b
    Examples:
      harness events shop.orders | tail -n 3
      harness events shop.orders --after 41 --follow
    """
    with opened(settings) as harness:
        for event in harness.table(table).events(after=after, follow=follow):
            click.echo(to_json(event.to_json()))
            sys.stdout.flush()
