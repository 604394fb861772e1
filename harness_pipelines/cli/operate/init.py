"""`harness init`: the ledger in the database."""

from __future__ import annotations

import click

from harness_pipelines.cli.common import opened
from harness_pipelines.cli.show.output import emit, json_option
from harness_pipelines.services import Services
from harness_pipelines.spec.settings import Settings


@click.command()
@json_option
@click.pass_obj
def init(settings: Settings, json_target: str | None) -> None:
    """Create the ledger, the catalog and the roles, or bring them up to date.

    Safe to repeat: a second call changes nothing. The login, HARNESS_OWNER_DSN or else HARNESS_DSN, must own the
    database or have CREATE on it.

    \b
    Examples:
      harness services up && harness init
      HARNESS_OWNER_DSN=postgresql://owner@db/lake harness init
    """
    Services.from_settings(settings).give_logins()
    with opened(settings) as harness:
        applied = harness.init()

    def human() -> None:
        for name in applied:
            click.echo(f"applied {name}")
        click.echo("the ledger is ready" if applied else "the ledger is up to date")

    emit({"applied": applied}, json_target, human)
