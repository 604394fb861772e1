"""`harness revert`: go back to an earlier version of a table's lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from harness_pipelines.cli.common import check_wish, not_asked, opened, wish_options
from harness_pipelines.show.output import emit, json_option
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.protocol.changes.reverts import RevertPlan
    from harness_pipelines.protocol.versions import Version

HEAD = "HEAD"


def _version(_ctx: click.Context, _option: click.Parameter, value: str) -> int | None:
    """A version's number, or ``None`` for the head (a click callback)."""
    if value.upper() == HEAD:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is not a version; write its number, or {HEAD} for the current one")
    return int(value)


@click.command()
@click.argument("table")
@click.option("--to", required=True, callback=_version, metavar="VERSION", help="Version to restore, or HEAD.")
@wish_options("Show the plan and the oldest version that a revert can reach; change nothing.")
@json_option
@click.pass_obj
def revert(
    settings: Settings, table: str, *, to: int | None, dry_run: bool, yes: bool, json_target: str | None
) -> None:
    """Publish a new version of TABLE with the lake of an old version; no record is lost.

    The buffer or Kafka supplies the records that the old version lacks, and they move to the lake again. The revert
    is refused if no tier holds them. Workers may keep running; their open moves are abandoned.

    `--to HEAD` restores the Iceberg table that the ledger published last. Use it after another writer committed to the
    Iceberg table or dropped it from the catalog.

    \b
    Examples:
      harness revert shop.orders --to 41 --dry-run
      harness revert shop.orders --to 41 --yes
      harness revert shop.orders --to HEAD --yes
    """
    from harness_pipelines.stages.table.revert import plan_revert, revert_table

    check_wish(dry_run=dry_run, yes=yes)
    with opened(settings) as harness:
        one = harness.table(table)
        plan = plan_revert(harness.stores, one.row, to=to)
        made = revert_table(harness.stores, one.row, to=to) if yes else None
    emit(_told(table, plan, made), json_target, lambda: _show(table, plan, made))
    if not yes and not dry_run:
        raise not_asked("revert the table")


def _told(table: str, plan: RevertPlan, made: Version | None) -> dict[str, Any]:
    return {
        "table": table,
        "head": plan.head.version,
        "to": plan.target.version,
        "floor": plan.floor,
        "possible": plan.limit is None and plan.waits is None,
        "waits": None if plan.waits is None else {"why": plan.waits.why, "way_on": plan.waits.way_on},
        "limited_by": None if plan.limit is None else {"tier": plan.limit.tier, "detail": plan.limit.detail},
        "back": {str(r.partition): [r.low, r.high] for r in plan.back},
        "open_moves": [m.move_id for m in plan.open_moves],
        "version": None if made is None else made.version,
    }


def _show(table: str, plan: RevertPlan, made: Version | None) -> None:
    target = plan.target.version
    if made is not None:
        click.echo(f"{table} is at version {made.version}: the lake of version {made.revert_of}")
    elif plan.limit is not None:
        click.echo(f"{table} cannot revert to version {target}; the {plan.limit.tier} limits it: {plan.limit.detail}")
    elif plan.waits is not None:
        click.echo(f"{table} cannot revert to version {target} yet: {plan.waits.why}; run `{plan.waits.way_on}` first")
    else:
        click.echo(
            f"{table} would move from version {plan.head.version} to a new version with the lake of version {target}"
        )
    if plan.limit is None:
        for part in plan.back:
            click.echo(f"  partition {part.partition}  [{part.low}, {part.high}) is moved to the lake again")
        for move in plan.open_moves:
            click.echo(f"  {move.stage} move {move.move_id} (attempt {move.attempt}) is abandoned")
    click.echo(f"  the oldest version that a revert can reach now is {plan.floor}")
