"""`harness audit` proves that every record is there; `harness accept-loss` continues after Kafka lost some."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from harness_pipelines.cli.common import check_wish, not_asked, opened, wish_options
from harness_pipelines.show.output import emit, json_option
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    from harness_pipelines.audit.proof.report import Account, AuditReport, RangeAudit
    from harness_pipelines.audit.repair.accept_loss import Loss

WIDTH_MIN = 140
SHOWN_MAX = 20  #: findings of each kind that people see; --json has more


@click.command()
@click.argument("table")
@click.option(
    "--full",
    is_flag=True,
    help="Also read ranges that an earlier audit signed off, and compare them with the recorded digests.",
)
@click.option("--processes", type=click.IntRange(min=1), help="Number of parallel jobs.  [default: one per processor]")
@json_option
@click.pass_context
def audit(ctx: click.Context, table: str, *, full: bool, processes: int | None, json_target: str | None) -> None:
    """Prove that every record is in exactly one tier, with its content.

    Audit compares the content with Kafka's records. Where Kafka has dropped them, it compares digests that ingest
    recorded. It names each missing, doubled, changed or unexplained offset. Exit code 1 if it finds a fault.

    Audit signs off a range that is complete in the lake. The next audit reads the range again only if other files
    hold it, or if the storage reports a later write to one of its files. Use --full to find bytes that changed on the
    disk without a write.

    A batch view must hold the rows of the stream view below batch_hi. Audit compares their counts from metadata;
    with --full it reads the rows and compares digests.

    \b
    Examples:
      harness audit shop.orders
      harness audit shop.orders --full --json audit.json
    """
    from harness_pipelines.audit.proof.complete import audit_table

    settings: Settings = ctx.obj
    with opened(settings) as harness, _progress() as shown:
        report = audit_table(harness.stores, harness.table(table).row, full=full, progress=shown, processes=processes)
    emit(report.to_json(), json_target, lambda: _show(report))
    if not report.ok:
        ctx.exit(1)


@click.command("accept-loss")
@click.argument("table")
@click.option("--partition", required=True, type=click.IntRange(min=0), help="The partition that lost records.")
@click.option(
    "--to",
    required=True,
    type=click.IntRange(min=0),
    metavar="OFFSET",
    help="Continue at this offset; at most Kafka's log start.",
)
@wish_options("Show the loss that would be recorded; change nothing.")
@json_option
@click.pass_obj
def accept_loss(
    settings: Settings, table: str, *, partition: int, to: int, yes: bool, dry_run: bool, json_target: str | None
) -> None:
    """Continue after records that Kafka dropped before they were read; the loss is recorded as a move.

    Stop the worker first. The error that stopped the table names partition and offset.

    \b
    Examples:
      harness accept-loss shop.orders --partition 0 --to 1200 --dry-run
      harness accept-loss shop.orders --partition 0 --to 1200 --yes
    """
    from harness_pipelines.audit.repair import accept_loss as losing

    check_wish(dry_run=dry_run, yes=yes)
    with opened(settings) as harness:
        record = losing.accept_loss if yes else losing.find_loss
        loss = record(harness.stores, harness.table(table).row, partition=partition, to=to)
    emit(loss.to_json(), json_target, lambda: _show_loss(loss))
    if not yes and not dry_run:
        raise not_asked("give up these records for good")


def _show_loss(loss: Loss) -> None:
    what = f"{loss.table}: partition {loss.partition}: offsets [{loss.low}, {loss.high})"
    if loss.move_id is None:
        click.echo(
            f"{what} would be recorded as lost; Kafka has all from offset {loss.log_start} on. Nothing was changed."
        )
    else:
        click.echo(f"{what} are recorded as lost (move {loss.move_id}); ingest continues at {loss.high}.")


class _Bar:
    """A progress bar on standard error, shown only on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._progress = Progress(console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("judging offsets", total=None)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)


def _progress() -> _Bar | nullcontext[None]:
    import sys

    return _Bar() if sys.stderr.isatty() else nullcontext()


def _show(report: AuditReport) -> None:
    from rich.console import Console
    from rich.table import Table

    from harness_pipelines.audit.proof.report import FINDINGS_MAX, Kind, Status, Witness

    plain = Console()
    # A digest that is cut off cannot be compared.
    console = Console(soft_wrap=True, highlight=False, width=max(plain.width, WIDTH_MIN))
    table = Table("partition", "tier", box=None, pad_edge=False)
    for name in ("from", "to", "records", "rows", "quarantined"):
        table.add_column(name, justify="right")
    table.add_column("digest", no_wrap=True, min_width=19)
    table.add_column("judged")
    table.add_column("read")
    colours = {Status.VERIFIED: "green", Status.LOST: "red"}
    for r in report.ranges:
        fields = r.to_json()
        records = "?" if fields["records"] is None else f"{r.records:,}"
        cells = (str(r.partition), str(r.tier), str(r.low), str(r.high), records, f"{r.rows:,}", f"{r.quarantined:,}")
        colour = colours.get(r.status, "yellow" if r.witness is Witness.NOBODY else "green")
        if fields["kafka_digest"] not in (None, fields["digest"]):
            colour = "red"
        table.add_row(*cells, f"[{colour}]{fields['digest']}[/]", f"[{colour}]{r.judged}[/]", _read(r))
    console.print(table)
    for kind in Kind:
        for finding in report.of(kind)[:SHOWN_MAX]:
            where = f"[{finding.offset}, {finding.to})" if finding.to is not None else f"offset {finding.offset}"
            line = f"[red]{kind}[/]  partition {finding.partition}, {where}, {finding.tier}: "
            console.print(line, end="")
            console.print(finding.detail, markup=False)
        if (count := report.counts[kind]) > SHOWN_MAX:
            console.print(f"[red]{kind}[/]  {count:,} in total; --json lists the first {FINDINGS_MAX:,}")
    for account in report.accounts:
        console.print(
            f"[red]accounting[/]  {account.title} moved "
            f"{quantity(account.rows, 'row')}, the tiers hold {account.found:,}{_changed(account)}"
        )
    if report.foreign:
        console.print(f"[red]foreign[/]  {report.foreign}")
    if report.batch is not None:
        console.print(f"[{'green' if report.batch.ok else 'red'}]batch[/]  {report.batch.said}")
    _verdict(console, report)


def _read(part: RangeAudit) -> str:
    if part.signed_off is not None:
        return f"signed off {part.signed_off:%Y-%m-%d %H:%M:%S} UTC"
    return f"now: {part.again}" if part.again else "now"


def _changed(account: Account) -> str:
    if not account.changed:
        return ""
    return f"; the content differs from what it moved: partition {', '.join(map(str, account.changed))}"


def _verdict(console: object, report: AuditReport) -> None:
    from rich.console import Console

    assert isinstance(console, Console)
    now = report.records - report.taken_over
    rate = now / report.seconds if report.seconds else 0
    judged = f"version {report.version}, {quantity(now, 'record')} checked in {report.seconds:.1f} s ({rate:,.0f}/s)"
    if report.taken_over:
        judged += f", {report.taken_over:,} signed off earlier"
    if report.unsigned:
        console.print(f"[yellow]not signed off[/]  {report.unsigned}")
    if report.ok:
        console.print(f"[bold green]OK[/]  {report.table}: every record is in exactly one tier; {judged}")
        return
    wrong = [f"{count:,} {kind}" for kind, count in report.counts.items() if count]
    wrong += [f"{quantity(len(report.accounts), 'move')} with other counts"] if report.accounts else []
    wrong += ["a foreign commit"] if report.foreign else []
    wrong += ["the batch view"] if report.batch and not report.batch.ok else []
    console.print(f"[bold red]NOT OK[/]  {report.table}: {', '.join(wrong)}; {judged}")
