"""`harness init`: create or update the ledger in the database."""

from __future__ import annotations

import click

from harness_pipelines.cli.common import opened
from harness_pipelines.cli.operate.doctor import show_findings
from harness_pipelines.services import Services
from harness_pipelines.show.output import emit, json_option
from harness_pipelines.spec.settings import Settings


@click.command()
@json_option
@click.pass_context
def init(ctx: click.Context, json_target: str | None) -> None:
    """Create or update the ledger, the catalog and the roles; then try out the warehouse.

    Safe to repeat: a second call changes nothing. The login in HARNESS_OWNER_DSN, or else in HARNESS_DSN, must own the
    database or have CREATE on it. Exit code 1 when the warehouse does not do what stages need; the ledger is ready all
    the same. `harness doctor` checks everything else.

    \b
    Examples:
      harness services up && harness init
      HARNESS_OWNER_DSN=postgresql://owner@db/lake harness init
    """
    from harness_pipelines.app.doctor.all import warehouse_report

    settings: Settings = ctx.obj
    Services.from_settings(settings).give_logins()
    with opened(settings) as harness:
        applied = harness.init()
        warehouse = warehouse_report(harness.settings)

    def human() -> None:
        for name in applied:
            click.echo(f"applied {name}")
        click.echo("the ledger is ready" if applied else "the ledger is up to date")
        show_findings([one for one in warehouse.findings if one.verdict != "ok"])

    emit({"applied": applied, "warehouse": warehouse.to_json()}, json_target, human)
    if not warehouse.ok:
        ctx.exit(1)
