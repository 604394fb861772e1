"""`harness doctor`: what keeps this installation from working, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harness_pipelines.show.output import emit, json_option
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness_pipelines.app.doctor.check import DoctorReport, Finding

COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red", "skipped": "dim"}


@click.command()
@json_option
@click.pass_context
def doctor(ctx: click.Context, json_target: str | None) -> None:
    """Check all that this installation needs, and show what to do where something is wrong.

    It looks at this machine (Python, Java, jars, ports, disks), at PostgreSQL and the rights of each login, at Kafka
    and the rights on each table's topics, at the schema registry, the warehouse, Spark and Dagster. It needs none of
    them to run, and ends within 30 s even if servers hang. For a moment the warehouse has its files, and the catalog a
    trial table that Spark and Python exchange; it changes nothing else. Exit code 1 when a check fails; warnings do not
    count.

    \b
    Examples:
      harness doctor
      harness doctor --json | jq -r '.findings[] | select(.verdict == "fail") | .way_on'
    """
    from harness_pipelines.app.doctor.all import diagnose
    from harness_pipelines.show.logs import configure_logging

    settings: Settings = ctx.obj
    configure_logging()
    report = diagnose(settings)
    emit(report.to_json(), json_target, lambda: _show(report))
    if not report.ok:
        ctx.exit(1)


def _show(report: DoctorReport) -> None:
    from rich.console import Console

    show_findings(report.findings)
    counts = {verdict: sum(one.verdict == verdict for one in report.findings) for verdict in COLOURS}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    word = "[bold green]OK[/]" if report.ok else "[bold red]NOT OK[/]"
    Console(soft_wrap=True, highlight=False).print(f"{word}  {told}; {report.took_s:.1f} s")


def show_findings(findings: Sequence[Finding]) -> None:
    """By system, two lines each at most: what was found, and the way on."""
    from rich.console import Console

    console, system = Console(soft_wrap=True, highlight=False), ""
    for finding in findings:
        if finding.system != system:
            system = finding.system
            console.print(f"[bold]{system}[/]")
        console.print(f"  [{COLOURS[finding.verdict]}]{finding.verdict:<7}[/] {finding.name}: ", end="")
        console.print(finding.found, markup=False)
        if finding.way_on and finding.verdict != "ok":
            console.print(f"          -> {finding.way_on}", markup=False, style="cyan")
