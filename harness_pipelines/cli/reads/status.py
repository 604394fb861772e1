"""`harness status` and `harness top`: the place of each table's records, and its workers."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from harness_pipelines.cli.common import duration, opened
from harness_pipelines.errors import TryAgain, UsageError
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.app.client import Harness
    from harness_pipelines.app.health import Health


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option("--watch", is_flag=True, help="Refresh until interrupted.")
@click.option(
    "--every", metavar="DURATION", default="2s", show_default=True, callback=duration, help="Pause of --watch."
)
@json_option
@click.pass_obj
def status(settings: Settings, tables: tuple[str, ...], *, watch: bool, every: float, json_target: str | None) -> None:
    """Show where the records are (batch and stream view, buffer, Kafka tail), the lag of each stage, and the workers.

    If Kafka does not answer, the command still shows the state in the ledger. `harness serve` shows the same in a
    browser, as of now.

    \b
    Examples:
      harness status
      harness status shop.orders --json | jq '.tables[0].lag'
      harness status --watch --every 5s
    """
    from harness_pipelines.app.health import Health
    from harness_pipelines.show.look import look_at
    from harness_pipelines.show.status_text import show_tables

    if watch and json_target is not None:
        raise UsageError("--watch shows the state to people; `harness status --json` prints it once")
    with opened(settings) as harness:
        health = Health(harness.settings)
        if watch:
            _watch(harness, health, tables, every_s=every)
        seen = look_at(harness, health, tables)
    emit(seen.to_json(), json_target, lambda: show_tables(seen.tables, seen.sick))
    for trouble in seen.troubles:
        note(trouble)


def _watch(harness: Harness, health: Health, tables: tuple[str, ...], *, every_s: float) -> None:
    """Show one look after the other: in a terminal on one screen, elsewhere below each other."""
    from rich.live import Live
    from rich.text import Text

    from harness_pipelines.show import bars
    from harness_pipelines.show.look import look_at
    from harness_pipelines.show.status_text import show_tables

    out = bars.console()
    with ExitStack() as closing:
        live = closing.enter_context(Live(console=out, screen=True, auto_refresh=False)) if out.is_terminal else None
        seen = look_at(harness, health, tables)  # wrong words, or a ledger that is away from the start, end it
        away: list[str] = []
        while True:
            with out.capture() as captured:
                out.print(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, every {every_s:g} s", style="dim")
                show_tables(seen.tables, seen.sick, out)
                for trouble in (*away, *seen.troubles):
                    out.print(trouble, style="red", markup=False)
            if live is not None:
                live.update(Text.from_ansi(captured.get()), refresh=True)
            else:
                click.echo(captured.get())
            time.sleep(every_s)
            try:
                seen, away = look_at(harness, health, tables), []
            except TryAgain as error:
                away = [f"harness: not refreshed: {error}"]


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option(
    "--every", metavar="DURATION", default="2s", show_default=True, callback=duration, help="Pause between two looks."
)
@click.pass_obj
def top(settings: Settings, tables: tuple[str, ...], *, every: float) -> None:
    """Watch TABLES, or all: produced and ingested records per second, lags, refusals and workers.

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
