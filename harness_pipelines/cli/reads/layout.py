"""`harness layout`: the clustering of the batch view, as figures and as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harness_pipelines.cli.common import opened, split_names
from harness_pipelines.errors import UsageError
from harness_pipelines.layout.tree import LAYER
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    from harness_pipelines.read.report.layout import LayoutSeen

DUE_SHOWN_MAX = 5


@click.command()
@click.argument("table")
@click.option("--at", type=click.IntRange(min=1), metavar="VERSION", help="Show the layout of this version.")
@click.option("--plot", type=click.Path(dir_okay=False), metavar="FILE.png", help="Draw regions, files and scores.")
@click.option("--columns", callback=split_names, metavar="A,B", help="With --plot: one or two indexed columns as axes.")
@json_option
@click.pass_obj
def layout(
    settings: Settings,
    table: str,
    *,
    at: int | None,
    plot: str | None,
    columns: list[str] | None,
    json_target: str | None,
) -> None:
    """Show how the batch view of TABLE is clustered: regions, file sizes, staged bytes, and the files a query opens.

    The score comes from the files' bounds; no row is read. `point depth` is the number of files that cover a point of
    the data. `probe ratio` is the number of bytes that a query opens for each byte that it needs. 1 is ideal for both.

    \b
    Examples:
      harness layout shop.orders
      harness layout shop.orders --plot orders.png --columns ordered_at,amount
      harness layout shop.orders --at 41 --json | jq .score
    """
    from harness_pipelines.read.report.layout import look

    if columns and not plot:
        raise UsageError("--columns needs --plot: add --plot FILE.png")
    with opened(settings) as harness:
        one = harness.table(table)
        seen = look(harness.stores, one.row, at=at)
    if plot:
        from harness_pipelines.show.layout_plot import draw

        draw(seen, plot, columns=columns)
    emit({**seen.to_json(), "plot": plot}, json_target, lambda: _show(seen))
    if plot:
        note(f"drawn: {plot}")


def _show(seen: LayoutSeen) -> None:
    from harness_pipelines.show.bars import size

    score, sizes, regions = seen.score, seen.sizes, seen.contents.regions
    staged = sum(1 for r in regions if r.staged_bytes)
    columns = ", ".join(column.name for column in seen.tree.columns if column != LAYER)
    target = max(seen.target_bytes, 1)
    click.echo(f"{seen.table} at version {seen.version}: {quantity(len(regions), 'region')} over ({columns})")
    click.echo(f"  tree     {seen.tree.digest[:16]}")
    click.echo(
        f"  files    {len(seen.files):,}, {size(seen.bytes)}; p50 {size(sizes['p50'])}, p95 {size(sizes['p95'])}, "
        f"max {size(sizes['max'])} ({sizes['max'] / target:.2f} of the target {size(target)})"
    )
    click.echo(
        f"  staged   {seen.contents.staged_share:.1%} of the bytes: in {quantity(staged, 'region')}, "
        f"{sum(len(files) for files in seen.contents.astray.values()):,} files span several"
    )
    if seen.layer is not None:
        click.echo(f"  sample   {seen.layer['files']:,} files, {size(seen.layer['bytes'])} in the sample layer")
    click.echo(f"  score    point depth {score.point_depth:.2f}, probe ratio {score.probe_ratio:.2f}")
    if not seen.due:
        click.echo("  due      nothing")
        return
    click.echo(
        f"  due      {quantity(len(seen.due), 'part')}, {size(sum(part.bytes for part in seen.due))}: "
        f"a worker (`harness run {seen.table}`) rewrites them"
    )
    for part in seen.due[:DUE_SHOWN_MAX]:
        click.echo(f"             {part.path or 'root'}  {size(part.bytes)}, {size(part.staged_bytes)} of it staged")
    if len(seen.due) > DUE_SHOWN_MAX:
        click.echo(f"             and {len(seen.due) - DUE_SHOWN_MAX:,} more: --json prints all of them")
