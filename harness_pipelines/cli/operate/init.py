"""`harness init`: create or update the ledger in the database."""

from __future__ import annotations

import click

from harness_pipelines.cli.common import opened
from harness_pipelines.services import Services
from harness_pipelines.show.output import emit, json_option
from harness_pipelines.spec.settings import Settings


@click.command()
@json_option
@click.pass_obj
def init(settings: Settings, json_target: str | None) -> None:
    """Create or update the ledger, the catalog and the roles.

    Safe to repeat: a second call changes nothing. The login in HARNESS_OWNER_DSN, or else in HARNESS_DSN, must own the
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
