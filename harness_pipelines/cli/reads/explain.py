"""`harness explain`: what a read opens, and with --analyze what it cost."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from harness_pipelines.cli.common import at_option, opened, split_names
from harness_pipelines.show.output import emit, json_option
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.app.table import Table
    from harness_pipelines.protocol.reading.plan import ReadPlan
    from harness_pipelines.protocol.reading.selection import Selection


@click.command()
@click.argument("table")
@click.option("--columns", callback=split_names, metavar="A,B", help="As in `harness read`.")
@click.option("--where", metavar="SQL", help="As in `harness read`.")
@at_option("As in `harness read`.")
@click.option("--tail", is_flag=True, help="As in `harness read`.")
@click.option("--analyze", is_flag=True, help="Run the read and show files, rows, bytes and time of each tier.")
@json_option
@click.pass_obj
def explain(settings: Settings, /, table: str, *, analyze: bool, json_target: str | None, **options: Any) -> None:
    """Show the read plan: the version, the metadata files, the segments, and the offsets read from each.

    With --where it shows the files and offsets left in each tier. --json prints the plan, which other engines can run.

    \b
    Examples:
      harness explain shop.orders
      harness explain shop.orders --where "amount > 100" --columns order_id --analyze
      harness explain shop.orders --json
    """
    from harness_pipelines.protocol.reading.selection import Selection, work_of

    with opened(settings) as harness:
        found = harness.table(table)
        wanted = Selection(columns=options["columns"], where=options["where"])
        plan = found.plan(at=options["at"], tail=options["tail"])
        try:
            left = {tier: {"offsets": a, "after_where": b} for tier, (a, b) in work_of(plan, wanted).pruned.items()}
            taken = _analyze(found, plan, wanted) if analyze else None
        finally:
            found.release(plan)
    shown = {**plan.to_json(), "tiers": left, **({"analyze": taken} if taken else {})}
    emit(shown, json_target, lambda: _show(plan, left, taken))


def _analyze(table: Table, plan: ReadPlan, wanted: Selection) -> dict[str, Any]:
    from datetime import timedelta

    from harness_pipelines.read.tail import read_tail
    from harness_pipelines.read.union import read_arrow

    stores, lease = table.harness.stores, timedelta(seconds=table.spec.retention.lease)

    def check() -> None:
        stores.leases.renew(plan.lease_id, lease=lease)

    began = time.monotonic()
    result = read_arrow(
        plan,
        stores,
        columns=wanted.columns,
        where=wanted.where,
        check_lease=check,
        tail_rows=lambda part: read_tail(stores, table.row, part),
    )
    stats = result.stats
    return {
        "rows": stats.rows,
        "ms": round((time.monotonic() - began) * 1000, 1),
        "lake": asdict(stats.lake),
        "overlay": asdict(stats.overlay),
        "buffer": asdict(stats.buffer),
        "tail": {"rows": stats.tail_rows},
    }


def _show(plan: ReadPlan, left: dict[str, Any], taken: dict[str, Any] | None) -> None:
    click.echo(f"{plan.table} at version {plan.version}, schema {plan.schema_version}")
    for part in plan.lake:
        click.echo(f"  {part.view:<7} {_ranges(part.low, part.high)}{_after(left, part.view)}")
        click.echo(f"          {part.metadata}")
    if plan.overlay:
        click.echo(f"  recalled{_after(left, 'overlay')}")
        click.echo(f"          {', '.join(s.name for s in plan.overlay.segments)}")
    if plan.buffer:
        click.echo(f"  buffer  {_ranges(plan.buffer.low, plan.buffer.high)}{_after(left, 'buffer')}")
        click.echo(f"          {', '.join(s.name for s in plan.buffer.segments)}")
    if plan.tail:
        click.echo(f"  tail    {_ranges(plan.tail.low, plan.tail.high)}{_after(left, 'tail')}")
        click.echo(f"          topic {plan.tail.topic}")
    if not (plan.lake or plan.buffer or plan.tail):
        click.echo("  no rows yet")
    if any(part.view == "batch" for part in plan.lake):
        _show_bars(plan)
    if taken:
        _show_taken(taken)


def _show_bars(plan: ReadPlan) -> None:
    """Return the offsets that each tier answers for; the tail is included only on request."""
    from harness_pipelines.ports.ledger import PartitionStatus
    from harness_pipelines.show import bars

    positions = [
        PartitionStatus(partition=p, bounds=bounds, trim_floor=bounds.start)
        for p, bounds in sorted(plan.bounds.items())
    ]
    ends = plan.tail.high if plan.tail else {p: bounds.buffer_hi for p, bounds in plan.bounds.items()}
    spans = bars.spans_of(positions, ends, batch=True)
    out = bars.console()
    for line in (*bars.bars(spans), bars.legend(spans)):
        out.print(line)


def _show_taken(taken: dict[str, Any]) -> None:
    from harness_pipelines.show.bars import size

    lake, overlay, buffer = taken["lake"], taken["overlay"], taken["buffer"]
    recalled = f"recalled {overlay['rows_read']:,} rows; " if overlay["segments"] else ""
    skipped = ", ".join(f"{count} by {reason}" for reason, count in lake["skipped"].items() if count) or "none"
    click.echo(
        f"read {taken['rows']:,} rows in {taken['ms']:,.0f} ms: lake {lake['files_opened']} of {lake['files']} files "
        f"(skipped: {skipped}), {lake['rows_read']:,} rows, {size(lake['bytes_read'])}; "
        f"{recalled}buffer {buffer['segments']} "
        f"segments, {buffer['rows_read']:,} rows, {size(buffer['bytes_read'])}; tail {taken['tail']['rows']:,} rows"
    )


def _ranges(low: Any, high: Any) -> str:
    return ", ".join(f"{p}: [{low[p]:,}, {high[p]:,})" for p in sorted(low))


def _after(left: dict[str, Any], tier: str) -> str:
    found = left.get(tier)
    if not found or found["offsets"] == found["after_where"]:
        return ""
    return f"; `where` leaves {found['after_where']:,} of {found['offsets']:,} offsets"
