"""`harness recluster`: rewrite parts of the batch view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from harness_pipelines.cli.common import check_wish, not_asked, opened, wish_options
from harness_pipelines.errors import UsageError
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    from harness_pipelines.app.table import Table
    from harness_pipelines.stages.otree.recluster import Reclustering

ROOT = "root"
PARTS_SHOWN_MAX = 10


@click.command()
@click.argument("table")
@click.option(
    "--regions", multiple=True, metavar="PATH", help="Rewrite this region or larger part of the tree; may be repeated."
)
@click.option("--where", metavar="SQL", help="Only regions with files that may hold matching rows.")
@click.option("--rebuild", is_flag=True, help="Also rewrite clustered files, for example after a change of `layout`.")
@wish_options("Show parts, files, bytes and an estimated duration; change nothing.")
@click.option("--cancel", is_flag=True, help="Cancel the open requests; finished parts stay rewritten.")
@json_option
@click.pass_obj
def recluster(
    settings: Settings, /, table: str, *, dry_run: bool, yes: bool, json_target: str | None, **o: Any
) -> None:
    """Rewrite parts of TABLE's batch view; rerunning resumes where it stopped.

    Unclustered files move into their regions and large files are split. No row changes, and readers continue. Each
    move rewrites and publishes at most its byte budget. The ledger keeps the request: after an interruption the same
    command continues it, and so does a worker of the table. Regions have the names that `harness layout TABLE --json`
    prints; `root`, the default, is the whole tree.

    \b
    Examples:
      harness recluster shop.orders --dry-run
      harness recluster shop.orders --where "ordered_at >= '2026-11-01'" --yes
      harness recluster shop.orders --regions 0110 --regions 10 --yes
      harness recluster shop.orders --rebuild --yes
    """
    from harness_pipelines.stages.otree.recluster import plan_recluster

    _check(dry_run=dry_run, yes=yes, cancel=o["cancel"], chooses=bool(o["regions"] or o["where"] or o["rebuild"]))
    with opened(settings) as harness:
        one = harness.table(table)
        if o["cancel"]:
            _cancel(one, json_target)
            return
        paths = ["" if path == ROOT else path for path in o["regions"]]
        plan = plan_recluster(harness.stores, one.row, regions=paths, where=o["where"], rebuild=o["rebuild"])
        if plan.parts and yes:
            plan = _work(one, plan)
        elif not dry_run:
            _show(plan, done=False)
    shown = {**_told(plan), "done": yes}
    emit(shown, json_target, lambda: _show(plan, done=yes) if yes or dry_run else None)
    if not yes and not dry_run and plan.parts:
        raise not_asked("rewrite them")


def _check(*, dry_run: bool, yes: bool, cancel: bool, chooses: bool) -> None:
    check_wish(dry_run=dry_run, yes=yes)
    if cancel and (dry_run or yes or chooses):
        raise UsageError("--cancel cancels all open requests of the table and takes no other option")


def _cancel(one: Table, json_target: str | None) -> None:
    stores = one.harness.stores
    given_up = stores.reclusters.open(one.row)
    for request in given_up:
        stores.reclusters.cancel(one.row, request)
    numbers = [request.request_id for request in given_up]
    what = quantity(len(numbers), "request")
    emit({"table": one.name, "cancelled": numbers}, json_target, lambda: click.echo(f"cancelled {what}"))


def _work(one: Table, plan: Reclustering) -> Reclustering:
    """Record the request and work on it, or follow another worker, until it is done; return the finished plan."""
    from harness_pipelines.show.bars import size
    from harness_pipelines.stages.otree.recluster import ask, run

    begun = ask(one.harness.stores, one.row, plan)
    if begun.bytes < plan.bytes:
        note(f"{one.name}: continues request {begun.request.request_id}, {size(begun.bytes)} left")
    before = begun.bytes
    note(f"{one.name}: {quantity(len(begun.parts), 'part')} to rewrite, {size(begun.bytes)}")
    for left in run(one.harness.stores, one.row, begun.request):
        if left.bytes != before:
            before = left.bytes
            note(f"{one.name}: {quantity(len(left.parts), 'part')} left, {size(left.bytes)}")
    return begun


def _told(plan: Reclustering) -> dict[str, Any]:
    return {
        "table": plan.table,
        "request": plan.request.request_id or None,
        "rebuild": plan.request.rebuild,
        "regions": [path or ROOT for path in plan.request.paths],
        "parts": [
            {"path": part.path or ROOT, "bytes": part.bytes, "staged_bytes": part.staged_bytes} for part in plan.parts
        ],
        "files": plan.files,
        "bytes": plan.bytes,
        "moves": plan.moves,
        "seconds": None if plan.seconds is None else round(plan.seconds, 1),
    }


def _show(plan: Reclustering, *, done: bool) -> None:
    from harness_pipelines.show.bars import ago, size

    if not plan.parts:
        click.echo(f"{plan.table}: nothing to do, all files there are clustered (--rebuild rewrites them anyway)")
        return
    pace = "" if plan.seconds is None or done else f", about {ago(plan.seconds)} at the pace of the last moves"
    click.echo(
        f"{plan.table}: {'rewrote' if done else 'would rewrite'} {quantity(len(plan.parts), 'part')}: "
        f"{quantity(plan.files, 'file')}, {size(plan.bytes)} read and written in {quantity(plan.moves, 'move')}{pace}"
    )
    for part in plan.parts[:PARTS_SHOWN_MAX]:
        click.echo(f"  {part.path or ROOT}  {size(part.bytes)}, {size(part.staged_bytes)} of it not clustered")
    if len(plan.parts) > PARTS_SHOWN_MAX:
        click.echo(f"  and {len(plan.parts) - PARTS_SHOWN_MAX:,} more: --json prints all of them")
