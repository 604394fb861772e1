"""`harness fsck`: check tables against the invariants."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    from harness_pipelines.audit.fsck.run import FsckReport

SHOWN_MAX = 50  #: findings that people see; --json has all


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option("--no-data", is_flag=True, help="Do not open data files; compare only their lengths.")
@json_option
@click.pass_context
def fsck(ctx: click.Context, tables: tuple[str, ...], *, no_data: bool, json_target: str | None) -> None:
    """Check tables against every invariant that can be checked live; without names check all tables.

    fsck changes nothing and may run beside workers. It reads the ledger, the lake's metadata and one listing of its
    files, and asks Kafka for the start and end of each topic. It reads the bytes of data files and compares them with
    their checksums. It does not check the rows; `harness audit` does. Exit code 1 when an invariant is broken.

    \b
    Examples:
      harness fsck
      harness fsck shop.orders --json | jq -r '.broken[].detail'
    """
    from harness_pipelines.audit.fsck.run import fsck as check
    from harness_pipelines.cli.common import opened

    settings: Settings = ctx.obj
    began = time.monotonic()
    with opened(settings) as harness, _progress() as shown:
        report = check(harness.stores, tables, progress=shown, data=not no_data)
    emit(report.to_json(), json_target, lambda: _show(report, seconds=time.monotonic() - began))
    for why in dict.fromkeys(f"{c.table}: {c.why_not}" for c in report.unchecked):
        note(f"harness: some checks did not run: {why}")
    if not report.ok:
        ctx.exit(1)


class _Bar:
    """A progress bar on standard error, shown only on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._progress = Progress(console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("reading metadata", total=None)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, table: str, done: int, total: int) -> None:
        self._progress.update(self._task, description=table, completed=done, total=total)


def _progress() -> _Bar | nullcontext[None]:
    return _Bar() if sys.stderr.isatty() else nullcontext()


def _show(report: FsckReport, *, seconds: float) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    for colour, findings in (("red", report.broken), ("yellow", report.hints)):
        for finding in findings[:SHOWN_MAX]:
            console.print(f"[{colour}]{finding.invariant:>4}[/]  {finding.table}: ", end="")
            console.print(finding.detail, markup=False)
        if len(findings) > SHOWN_MAX:
            console.print(f"[{colour}]{len(findings) - SHOWN_MAX:,} more[/]; --json prints all")
    tables = dict.fromkeys(c.table for c in report.checked)
    rules = sum(c.why_not is None for c in report.checked)
    what = f"{quantity(len(tables), 'table')}, {quantity(rules, 'check')}, {seconds:.1f} s"
    if report.ok:
        console.print(f"[bold green]OK[/]  {what}")
        return
    sick = dict.fromkeys(f.table for f in report.broken)
    kinds = ", ".join(sorted({f.invariant for f in report.broken}, key=lambda name: (name[0], int(name[1:]))))
    console.print(f"[bold red]NOT OK[/]  {', '.join(sick)}: {kinds} broken; {what}")
