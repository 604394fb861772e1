"""`harness recall`: move rows of the lake to Postgres before a burst of updates, and release them afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from harness_pipelines.cli.common import opened
from harness_pipelines.errors import UsageError
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    from harness_pipelines.app.table import Table
    from harness_pipelines.ports.requests import RecallRequest
    from harness_pipelines.stages.otree.recall import RecallPlan


@click.command()
@click.argument("table")
@click.option("--where", metavar="SQL", help="Recall the rows of the lake for which this holds.")
@click.option("--release", is_flag=True, help="Move all recalled rows back into the lake.")
@click.option("--dry-run", is_flag=True, help="Show the number of rows, bytes and files; change nothing.")
@click.option("--no-wait", is_flag=True, help="Record the request and return; the table's workers carry it out.")
@click.option("--cancel", is_flag=True, help="Cancel the requests that no worker has started.")
@json_option
@click.pass_obj
def recall(settings: Settings, /, table: str, *, json_target: str | None, **o: Any) -> None:
    """Move rows of TABLE's lake to Postgres, where a burst of updates rewrites no files.

    TABLE must be keyed and have both views. One boundary commit moves the rows. Reads return the same rows before,
    during and after it. Merges leave recalled keys in Postgres until they are released. New keys go to the lake as
    usual. `recall: max_rows` of the spec limits the number of recalled rows. The ledger keeps the request: after an
    interruption the same command continues it, and so does a worker of the table.

    \b
    Examples:
      harness recall shop.orders --where "status = 'open'" --dry-run
      harness recall shop.orders --where "ordered_at >= '2026-11-01'"
      harness recall shop.orders --release
    """
    from harness_pipelines.protocol.lake.overlays import OverlayRequest

    _check(o)
    with opened(settings) as harness:
        one = harness.table(table)
        if o["cancel"]:
            _cancel(one, json_target)
        elif o["dry_run"]:
            _plan(one, o["where"], json_target)
        else:
            act = OverlayRequest.RELEASE if o["release"] else OverlayRequest.RECALL
            _ask(one, act, o["where"], wait=not o["no_wait"], json_target=json_target)


def _check(o: dict[str, Any]) -> None:
    if o["cancel"]:
        if o["where"] or o["release"] or o["dry_run"] or o["no_wait"]:
            raise UsageError("--cancel cancels the waiting requests of the table and takes no other option")
    elif bool(o["where"]) == o["release"]:
        raise UsageError("give either --where SQL, the rows to recall, or --release")
    elif o["dry_run"] and o["no_wait"]:
        raise UsageError("--dry-run and --no-wait exclude each other")


def _cancel(one: Table, json_target: str | None) -> None:
    given_up = one.harness.stores.recalls.cancel(one.row)
    left = [request.recall_id for request in one.harness.stores.recalls.open(one.row)]

    def human() -> None:
        taken = f"; {len(left)} already started" if left else ""
        click.echo(f"{one.name}: cancelled {quantity(len(given_up), 'request')}{taken}")

    emit({"table": one.name, "cancelled": given_up, "left": left}, json_target, human)


def _plan(one: Table, where: str | None, json_target: str | None) -> None:
    from harness_pipelines.stages.otree.recall import plan_recall, plan_release

    stores = one.harness.stores
    plan = plan_release(stores, one.row) if where is None else plan_recall(stores, one.row, where)
    emit({**plan.to_json(), "done": False}, json_target, lambda: _show_plan(plan))


def _show_plan(plan: RecallPlan) -> None:
    from harness_pipelines.protocol.lake.overlays import OverlayRequest
    from harness_pipelines.show.bars import size

    if plan.act is OverlayRequest.RELEASE:
        click.echo(
            f"{plan.table}: would move {quantity(plan.rows, 'row')} back into the lake, {size(plan.bytes)} in Postgres"
        )
        return
    held = f"; {plan.held:,} are already recalled" if plan.held else ""
    click.echo(
        f"{plan.table}: would recall {quantity(plan.rows, 'row')}, {size(plan.bytes)}, "
        f"found in {quantity(plan.files, 'file')}{held}"
    )


def _ask(one: Table, act: Any, where: str | None, *, wait: bool, json_target: str | None) -> None:
    from harness_pipelines.stages.otree.recall import ask, run

    request = ask(one.harness.stores, one.row, act, where=where)
    if wait:
        note(f"{one.name}: request {request.recall_id} to {request.act}")
    for now in run(one.harness.stores, one.row, request) if wait else ():
        request = now
    held = sum(overlay.rows for overlay in one.harness.stores.tables.head(one.row).overlays)
    shown = {"table": one.name, **request.to_json(), "done": request.state == "done", "recalled": held}
    emit(shown, json_target, lambda: _show(one.name, request, held))


def _show(table: str, request: RecallRequest, held: int) -> None:
    from harness_pipelines.protocol.lake.overlays import OverlayRequest
    from harness_pipelines.show.bars import size

    if request.is_open:
        click.echo(f"{table}: request {request.recall_id} waits for a worker; `harness status {table}` shows it")
        return
    if request.state != "done":
        click.echo(f"{table}: request {request.recall_id} was {request.state}")
        return
    if not request.rows:
        what = "nothing was recalled" if request.act is OverlayRequest.RELEASE else "no row of the lake matches"
        click.echo(f"{table}: nothing to do, {what}; {held:,} rows are recalled")
        return
    done = "recalled" if request.act is OverlayRequest.RECALL else "moved back into the lake"
    click.echo(
        f"{table}: {quantity(request.rows, 'row')} {done}, {size(request.bytes or 0)}; {held:,} rows are recalled now"
    )
