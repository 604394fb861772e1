"""`harness reconcile`: show and repair the state of a table after a crash, a restore or a loss."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness_pipelines.cli.common import check_wish, not_asked, opened, wish_options
from harness_pipelines.errors import UsageError
from harness_pipelines.show.output import emit, json_option
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    from harness_pipelines.app.client import Harness
    from harness_pipelines.audit.repair.foreign import ForeignRows
    from harness_pipelines.audit.repair.rebuild import Rebuild
    from harness_pipelines.audit.repair.reconcile import ReconcileReport


@click.command()
@click.argument("table")
@wish_options("Show the state and the planned actions; change nothing.")
@click.option("--rebuild", is_flag=True, help="Rebuild the table after the database was lost. TABLE is its YAML file.")
@click.option("--location", metavar="URI", help="With --rebuild: the folder of the view, if there are several.")
@click.option(
    "--take-over",
    is_flag=True,
    help="Assign the warehouse to this database; use it only if the other database is gone for good.",
)
@click.option("--accept-foreign", is_flag=True, help="Accept rows that another writer committed to the stream view.")
@click.option("--repair-file", metavar="PATH", help="Recreate a damaged data, delete or metadata file.")
@json_option
@click.pass_obj
def reconcile(settings: Settings, /, table: str, *, json_target: str | None, **options: Any) -> None:
    """Settle leftovers of crashes and restores: open moves, expired leases, dead branches, a ledger that was set back.

    Stop the table's workers first. If the database was restored from an older backup, the table continues from Kafka
    as long as Kafka still has the records. Otherwise reconcile adopts the newest metadata of the lake.

    Rows that --accept-foreign accepts get `_kafka_partition` -1 and new offsets. Other engines see them in the Iceberg
    table, and audit counts them. Reads of the harness show only records of the topic and omit them.

    --repair-file recreates a damaged or missing data or delete file with the same rows. It takes the rows from the
    other view, the buffer or Kafka and compares them with the digests in the ledger. It recreates the newest metadata
    file from an older one and the manifest list. The table stays in use meanwhile.

    \b
    Examples:
      harness reconcile shop.orders --dry-run
      harness reconcile shop.orders --yes
      harness reconcile orders.yaml --rebuild --dry-run
      harness reconcile orders.yaml --rebuild --take-over --yes
      harness reconcile shop.orders --accept-foreign --yes
      harness reconcile shop.orders --repair-file 00000-7-a1b2.parquet --dry-run
    """
    check_wish(dry_run=options["dry_run"], yes=options["yes"])
    chosen = [f"--{word.replace('_', '-')}" for word in ("rebuild", "accept_foreign", "repair_file") if options[word]]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} exclude each other")
    if options["location"] and not options["rebuild"]:
        raise UsageError("--location names the folder of a rebuild and needs --rebuild")
    with opened(settings) as harness:
        if options["rebuild"]:
            _rebuild(harness, table, options, json_target)
        elif options["accept_foreign"]:
            _accept(harness, table, options, json_target)
        elif options["repair_file"]:
            _repair(harness, table, options, json_target)
        else:
            _settle(harness, table, options, json_target)
    if not options["yes"] and not options["dry_run"]:
        raise not_asked("settle it")


def _settle(harness: Harness, name: str, options: dict[str, Any], json_target: str | None) -> None:
    from harness_pipelines.audit.repair.reconcile import look, settle

    row, take_over = harness.table(name).row, options["take_over"]
    report = look(harness.stores, row, take_over=take_over)
    if json_target is None:
        _show(report)
    if options["yes"]:
        report = settle(harness.stores, row, report, take_over=take_over)
    emit(report.to_json(), json_target, lambda: _show_end(report, done=options["yes"]))


def _show(report: ReconcileReport) -> None:
    for one in report.verdicts:
        act = f"; {one.act}" if one.act else ""
        click.echo(f"{one.kind:<7} {one.subject}: {one.verdict}{act}")
    _show_ranges("from Kafka again", report.lake.to_json()["again"])
    _show_ranges("LOST: neither lake, buffer nor Kafka has it", report.lake.to_json()["lost"])


def _show_end(report: ReconcileReport, *, done: bool) -> None:
    if not report.acts:
        click.echo(f"{report.table}: nothing to settle")
    elif done:
        click.echo(f"{report.table}: settled {len(report.acts)}")
    else:
        click.echo(f"{report.table}: {len(report.acts)} to settle; nothing was changed")
    if report.lake.lost:
        click.echo(
            f"next: `harness accept-loss {report.table} --partition P --to OFFSET --yes` continues after the loss"
        )


def _show_ranges(what: str, ranges: list[dict[str, int]]) -> None:
    for taken in ranges:
        click.echo(f"{what}: partition {taken['partition']} [{taken['low']}, {taken['high']})")


def _rebuild(harness: Harness, file: str, options: dict[str, Any], json_target: str | None) -> None:
    from harness_pipelines.audit.repair.rebuild import plan_rebuild, rebuild
    from harness_pipelines.spec.load import load_spec

    if not Path(file).is_file():
        raise UsageError(
            f"--rebuild needs the table's YAML file, because the spec was in the lost ledger; there is no file {file!r}"
        )
    plan = plan_rebuild(harness.stores, load_spec(file), location=options["location"])
    if json_target is None:
        _show_rebuild(plan)
    if options["yes"]:
        rebuild(harness.stores, plan, take_over=options["take_over"])
    emit({**plan.to_json(), "rebuilt": options["yes"]}, json_target, lambda: _show_rebuilt(plan, done=options["yes"]))


def _show_rebuild(plan: Rebuild) -> None:
    shown = plan.to_json()
    if plan.owner is not None:
        click.echo(
            f"the warehouse belongs to {plan.owner}; if that is gone for good, --take-over assigns it to this database"
        )
    click.echo(f"{shown['table']}: from {shown['metadata']}")
    for other in plan.others:
        click.echo(f"not taken: {other}")
    for part in shown["partitions"]:
        click.echo(
            f"partition {part['partition']}: the lake has [{part['start']}, {part['stream_hi']}), {part['rows']} rows"
        )
    _show_ranges("from Kafka again", shown["again"])
    _show_ranges("LOST: neither lake nor Kafka has it", shown["lost"])
    for note in plan.notes:
        click.echo(f"note: {note}")


def _show_rebuilt(plan: Rebuild, *, done: bool) -> None:
    name = plan.spec.table
    click.echo(f"{name}: rebuilt; next: harness run {name}" if done else f"{name}: nothing was changed")


def _repair(harness: Harness, name: str, options: dict[str, Any], json_target: str | None) -> None:
    from harness_pipelines.stages.replay.damaged_file import repair_file

    done = repair_file(harness.stores, harness.table(name).row, options["repair_file"], dry_run=not options["yes"])

    def show() -> None:
        what = f"{quantity(done.rows, 'row')} of {done.file} from {done.source}; they agree with {done.checked}"
        end = f"repaired in version {done.version}" if done.version is not None else "nothing was changed"
        click.echo(f"{done.table}: {what}; {end}")

    emit(done.to_json(), json_target, show)


def _accept(harness: Harness, name: str, options: dict[str, Any], json_target: str | None) -> None:
    from harness_pipelines.audit.repair.foreign import accept_foreign, find_foreign

    row = harness.table(name).row
    found = find_foreign(harness.stores, row)
    if options["yes"] and found.rows:
        found = accept_foreign(harness.stores, row, found)
    emit(found.to_json(), json_target, lambda: _show_foreign(found, done=options["yes"]))


def _show_foreign(found: ForeignRows, *, done: bool) -> None:
    if not found.rows:
        click.echo(f"{found.table}: no rows of another writer")
        return
    where = f"partition -1, offsets [{found.low}, {found.low + found.rows})"
    if done:
        click.echo(f"{found.table}: {found.rows} rows are accepted as {where}, version {found.version}")
    else:
        what = f"{quantity(found.rows, 'row')} in {quantity(found.files, 'file')}"
        click.echo(f"{found.table}: {what} would be accepted as {where}")
