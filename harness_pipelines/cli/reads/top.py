"""`harness top`: the tables, live."""

from __future__ import annotations

import sys

import click

from harness_pipelines.cli.common import duration, opened
from harness_pipelines.errors import UsageError
from harness_pipelines.spec.settings import Settings


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option(
    "--every", metavar="DURATION", default="2s", show_default=True, callback=duration, help="Pause between two looks."
)
@click.pass_obj
def top(settings: Settings, tables: tuple[str, ...], *, every: float) -> None:
    """Watch TABLES, or all: records that come and are taken, what waits where, refusals and workers.

    A key or a click on its title sorts by a column, Enter opens a table, Escape closes it, q ends.

    \b
    Examples:
      harness top
      harness top shop.orders shop.customers --every 1s
    """
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise UsageError("`harness top` needs a terminal; `harness status` prints the state once, also with --json")
    from harness_pipelines.app.health import Health
    from harness_pipelines.show.look import look_at
    from harness_pipelines.show.top_screen import TopApp

    with opened(settings) as harness:
        health = Health(harness.settings)
        look_at(harness, health, tables)  # what is wrong with the words or the ledger is said before there is a screen
        TopApp(lambda: look_at(harness, health, tables), every_s=every).run()
