"""`harness demo`: real records on their way through all tiers, with proof."""

from __future__ import annotations

import signal
from types import FrameType
from typing import TYPE_CHECKING

import click

from harness_pipelines.cli.output import emit, json_option
from harness_pipelines.errors import HarnessError
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.cli.demo.flow import DemoResult

ROWS, RATE = 200_000, 20_000


class DemoFailed(HarnessError):
    """Something that the demo proves did not hold."""


@click.command()
@click.option("--rows", type=click.IntRange(min=1), default=ROWS, show_default=True, help="Records to produce.")
@click.option("--rate", type=click.FloatRange(min=1), default=RATE, show_default=True, help="Records per second.")
@click.option("--keep", is_flag=True, help="Keep the generated Parquet file, and say where it is.")
@json_option
@click.pass_obj
def demo(settings: Settings, /, *, rows: int, rate: float, keep: bool, json_target: str | None) -> None:
    """Show the harness at work on TPC-H lineitem, and prove that nothing is lost or doubled.

    Starts the embedded services if there are none, then creates the topic and the table demo.lineitem anew. Produces
    JSON records at a steady rate while a worker moves them through buffer and lake, there in offset order and in value
    order, and two readers read; every read is checked against the producer's own log. Then audits, compares with the
    generated Parquet file, and draws the regions of the batch view.

    \b
    Examples:
      harness demo
      harness demo --rows 600000 --rate 20000 --json out.json
    """
    from harness_pipelines.cli.demo.flow import DemoOptions, run_demo
    from harness_pipelines.cli.demo.show import Show
    from harness_pipelines.cli.logs import configure_logging

    configure_logging()
    signal.signal(signal.SIGTERM, _terminated)
    result = run_demo(settings, DemoOptions(rows=rows, rate=rate, keep=keep), Show())
    emit(result.to_json(), json_target, lambda: _tell(result))
    if not result.ok:
        raise DemoFailed("the demo found faults:\n" + "\n".join(f"  {fault}" for fault in result.faults))


def _terminated(number: int, _frame: FrameType | None) -> None:
    """SIGTERM ends the demo as Ctrl-C does: with its worker, its readers and its folder."""
    raise SystemExit(128 + number)


def _tell(result: DemoResult) -> None:
    from harness_pipelines.cli.demo.source import NUMERIC, TABLE

    verdict = result.verdict
    click.echo(
        f"produced     {result.produced:,} records; {result.moves} moves to the lake; {result.seconds:.0f} s in all"
    )
    click.echo(f"read         Arrow {verdict.read_arrow:,} rows, Spark {verdict.read_spark:,} rows")
    click.echo(
        f"records      {verdict.missing} missing, {verdict.duplicated} doubled, {result.quarantined} quarantined"
    )
    sums = "differ" if verdict.unequal else "equal"
    click.echo(f"sums         {sums} to the Parquet file's, in Arrow and Spark ({len(NUMERIC)} numeric columns, exact)")
    click.echo(f"reads        {result.tried} while the data moved, {result.wrong} of them wrong")
    if result.freshness_ms:
        p50, p99 = result.freshness_ms
        click.echo(
            f"freshness    p50 {p50:.0f} ms, p99 {p99:.0f} ms from Kafka's acknowledgement to a read that returns it"
        )
    click.echo(f"audit        {'every record is in exactly one tier' if result.audit_ok else 'found faults'}")
    views = result.views
    click.echo(f"views        {views.stream_files} files in offset order, {views.batch_files} in value order")
    click.echo(f"             {views.verdict}")
    if views.picture:
        click.echo(f"picture      {views.picture}")
    if result.kept:
        click.echo(f"file         {result.kept}")
    click.echo(
        f"""
try next
  harness status {TABLE}
  harness read {TABLE} --columns l_orderkey,l_quantity,l_shipmode --where "l_quantity >= 49" --limit 5
  harness explain {TABLE} --where "l_shipdate < '1992-02-01'" --analyze
  harness sql "SELECT l_shipmode, count(*), sum(l_extendedprice) FROM {TABLE} GROUP BY l_shipmode"
  harness audit {TABLE}
  harness layout {TABLE} --plot layout.png  # how the batch view is clustered
  harness table show {TABLE}              # its spec; your own: harness table apply FILE
  harness services down                    # stops the embedded services; the data stays"""
    )
