"""`harness recluster`: write parts of the batch view anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from harness_pipelines.cli.common import check_wish, not_asked, opened, wish_options
from harness_pipelines.cli.show.output import emit, json_option, note
from harness_pipelines.errors import UsageError
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.app.table import Table
    from harness_pipelines.stages.otree.recluster import Reclustering

ROOT = "root"
PARTS_SHOWN_MAX = 10


@click.command()
@click.argument("table")
@click.option(
    "--regions", multiple=True, metavar="PATH", help="A region or a larger part of the tree; may be repeated."
)
@click.option("--where", metavar="SQL", help="Only regions with files that may hold such rows.")
@click.option("--rebuild", is_flag=True, help="Write what is clustered anew too, after a change of `layout`.")
@wish_options("Only show parts, files, bytes and an estimate.")
@click.option("--cancel", is_flag=True, help="Give up the open requests; what is done stays.")
@json_option
@click.pass_obj
def recluster(
    settings: Settings, /, table: str, *, dry_run: bool, yes: bool, json_target: str | None, **o: Any
) -> None:
    """Write parts of TABLE's batch view anew: files that are not clustered yet go to their regions, large ones are cut.

    No row changes, and readers are not disturbed: each move publishes within a byte budget what it has written. The
    request is kept in the ledger, so after an interruption the same command goes on, and what is done is not done
    again; a worker of the table takes it up too. Regions are named as `harness layout TABLE --json` names them; `root`
    is all of them, which is the default.

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
        raise not_asked("write them anew")


def _check(*, dry_run: bool, yes: bool, cancel: bool, chooses: bool) -> None:
    check_wish(dry_run=dry_run, yes=yes)
    if cancel and (dry_run or yes or chooses):
        raise UsageError("--cancel gives up all open requests of the table; it goes with no other option")


def _cancel(one: Table, json_target: str | None) -> None:
    stores = one.harness.stores
    given_up = stores.reclusters.open(one.row)
    for request in given_up:
        stores.reclusters.end(one.row, request)
    numbers = [request.request_id for request in given_up]
    emit({"table": one.name, "cancelled": numbers}, json_target, lambda: click.echo(f"gave up {len(numbers)} requests"))


def _work(one: Table, plan: Reclustering) -> Reclustering:
    """Ask, and work or look on until nothing is left; returns what was done."""
    from harness_pipelines.cli.show.bars import size
    from harness_pipelines.stages.otree.recluster import ask, run

    begun = ask(one.harness.stores, one.row, plan)
    if begun.bytes < plan.bytes:
        note(f"{one.name}: goes on with request {begun.request.request_id}, {size(begun.bytes)} are left of it")
    before = begun.bytes
    note(f"{one.name}: {_count(len(begun.parts), 'part')} to write anew, {size(begun.bytes)}")
    for left in run(one.harness.stores, one.row, begun.request):
        if left.bytes != before:
            before = left.bytes
            note(f"{one.name}: {_count(len(left.parts), 'part')} left, {size(left.bytes)}")
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
    from harness_pipelines.cli.show.bars import ago, size

    if not plan.parts:
        click.echo(
            f"{plan.table}: nothing to do, all files there are clustered (--rebuild writes them anew all the same)"
        )
        return
    pace = "" if plan.seconds is None or done else f", about {ago(plan.seconds)} at the pace of the last moves"
    click.echo(
        f"{plan.table}: {'wrote' if done else 'would write'} {_count(len(plan.parts), 'part')} anew: "
        f"{_count(plan.files, 'file')}, {size(plan.bytes)} read and written in {_count(plan.moves, 'move')}{pace}"
    )
    for part in plan.parts[:PARTS_SHOWN_MAX]:
        click.echo(f"  {part.path or ROOT}  {size(part.bytes)}, {size(part.staged_bytes)} of it not clustered")
    if len(plan.parts) > PARTS_SHOWN_MAX:
        click.echo(f"  and {len(plan.parts) - PARTS_SHOWN_MAX:,} more: --json has them all")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
