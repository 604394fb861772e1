"""`harness snapshot`: named states of tables that stay readable."""

from __future__ import annotations

import click

from harness_pipelines.cli.common import opened
from harness_pipelines.errors import UsageError
from harness_pipelines.show.output import emit, json_option
from harness_pipelines.spec.settings import Settings


@click.group()
def snapshot() -> None:
    """Create, list and drop named states of tables."""


@snapshot.command()
@click.argument("name")
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
@json_option
@click.pass_obj
def create(settings: Settings, /, name: str, tables: tuple[str, ...], json_target: str | None) -> None:
    """Name the current state of all TABLEs as one consistent cut, buffered rows included.

    Expire keeps the files of a snapshot until you drop it.

    \b
    Examples:
      harness snapshot create month-end shop.orders shop.payments
      harness read shop.orders --at month-end
    """
    with opened(settings) as harness:
        try:
            made = harness.snapshot(name, tables)
        except ValueError as error:
            raise UsageError(str(error)) from error

    def human() -> None:
        for pinned in made.tables:
            high = ", ".join(f"{partition}: {offset:,}" for partition, offset in sorted(pinned.buffer_hi.items()))
            click.echo(f"{made.name}: {pinned.table} at version {pinned.version}, offsets below {high}")

    emit(made.to_json(), json_target, human)


@snapshot.command("list")
@json_option
@click.pass_obj
def list_command(settings: Settings, /, json_target: str | None) -> None:
    """List all snapshots, oldest first.

    \b
    Example:
      harness snapshot list
    """
    with opened(settings) as harness:
        found = harness.snapshots()

    def human() -> None:
        for one in found:
            tables = ", ".join(f"{p.table} at version {p.version}" for p in one.tables) or "its tables were dropped"
            click.echo(f"{one.name}  {one.created_at:%Y-%m-%d %H:%M:%S} UTC  {tables}")
        if not found:
            click.echo("no snapshot yet: `harness snapshot create NAME TABLE` makes one")

    emit({"snapshots": [one.to_json() for one in found]}, json_target, human)


@snapshot.command()
@click.argument("name")
@json_option
@click.pass_obj
def drop(settings: Settings, /, name: str, json_target: str | None) -> None:
    """Drop a snapshot; the next runs of expire remove files that only it needed.

    \b
    Example:
      harness snapshot drop month-end
    """
    with opened(settings) as harness:
        harness.drop_snapshot(name)
    emit({"name": name, "dropped": True}, json_target, lambda: click.echo(f"dropped {name}"))
