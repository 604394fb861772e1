"""`harness state`: positions of consumers that keep their results elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harness_pipelines.cli.common import LONG_MAX, check_wish, not_asked, opened, wish_options
from harness_pipelines.show.output import emit, json_option
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.ledgers.postgres.states import StateCommit


@click.group()
def state() -> None:
    """List, show and drop the positions that consumers keep in the ledger."""


@state.command("list")
@json_option
@click.pass_obj
def list_command(settings: Settings, /, json_target: str | None) -> None:
    """List all states with their holders and last commits.

    \b
    Examples:
      harness state list
      harness read shop.orders --at state:daily-report   # the rows that the state's last commit stands for
    """
    with opened(settings) as harness:
        found = harness.states.all()

    def human() -> None:
        for one in found:
            held = f"held until {one.held_until:%Y-%m-%d %H:%M:%S} UTC" if one.held_until else "not held"
            click.echo(f"{one.name}: {held}")
            if one.last is not None:
                _show(one.last)
        if not found:
            click.echo("no states")

    emit({"states": [one.to_json() for one in found]}, json_target, human)


@state.command()
@click.argument("name")
@click.option(
    "--limit", type=click.IntRange(1, LONG_MAX), default=10, show_default=True, help="Show the newest N commits."
)
@json_option
@click.pass_obj
def show(settings: Settings, /, name: str, limit: int, json_target: str | None) -> None:
    """Show the commits of a state, newest first.

    \b
    Example:
      harness state show daily-report --json
    """
    with opened(settings) as harness:
        found = harness.states.commits(name, limit=limit)

    def human() -> None:
        for one in found:
            _show(one)

    emit({"name": name, "commits": [one.to_json() for one in found]}, json_target, human)


@state.command()
@click.argument("name")
@wish_options("Show what would be dropped; change nothing.")
@json_option
@click.pass_obj
def drop(settings: Settings, /, name: str, dry_run: bool, yes: bool, json_target: str | None) -> None:
    """Drop a state; expire then removes files that only its cuts needed.

    \b
    Example:
      harness state drop daily-report --yes
    """
    check_wish(dry_run=dry_run, yes=yes)
    with opened(settings) as harness:
        last = harness.states.status(name).last
        if yes:
            harness.states.drop(name)

    def human() -> None:
        click.echo(f"{name}: {'dropped' if yes else 'its last commit is' if last else 'nothing was committed'}")
        if last is not None:
            _show(last)

    emit({"name": name, "dropped": yes, "last": last and last.to_json()}, json_target, human)
    if not (yes or dry_run):
        raise not_asked("forget it")


def _show(commit: StateCommit) -> None:
    click.echo(f"  commit {commit.seq}, checkpoint {commit.checkpoint}, {commit.committed_at:%Y-%m-%d %H:%M:%S} UTC")
    for table, vector in sorted(commit.sources.items()):
        offsets = ", ".join(f"{partition}: {offset:,}" for partition, offset in sorted(vector.items()))
        click.echo(f"    {table} below {offsets}")
