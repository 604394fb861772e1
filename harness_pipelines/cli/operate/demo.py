"""`harness demo`: move real records through all tiers and prove the result."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from harness_pipelines.cli.ending import end_interrupts_in_time, if_late
from harness_pipelines.cli.operate.serve import PORT
from harness_pipelines.errors import HarnessError
from harness_pipelines.show.output import emit, json_option
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.demo.flow import DemoResult
    from harness_pipelines.demo.scenario import Scenario

ROWS, RATE = 200_000, 20_000


class DemoFailed(HarnessError):
    """A check of the demo failed."""


@click.command()
@click.option(
    "--rows", type=click.IntRange(min=1), default=ROWS, show_default=True, help="Number of records to produce."
)
@click.option("--rate", type=click.FloatRange(min=1), default=RATE, show_default=True, help="Records per second.")
@click.option(
    "--keyed", is_flag=True, help="Use a keyed table: TPC-H orders whose records replace and delete each other."
)
@click.option("--keep", is_flag=True, help="Keep the Parquet file of the produced records and print its path.")
@click.option("--s3", is_flag=True, help="Keep the lake on the embedded object store.")
@click.option("--no-spark", is_flag=True, help="Let Arrow move the rows; Spark is not started.")
@json_option
@click.pass_obj
def demo(settings: Settings, /, *, keyed: bool, json_target: str | None, **options: Any) -> None:
    """Move TPC-H lineitem through the harness and prove that no record is lost or doubled.

    Starts the embedded services if they do not run, then recreates the topic and the table demo.lineitem. Produces
    JSON records at a steady rate. A worker moves them through the buffer into the lake, in offset order and in value
    order. Two readers read meanwhile, and the demo checks every read against the producer's log. At the end it audits
    the table, compares it with the generated Parquet file and draws the regions of the batch view.

    With --keyed the table is demo.orders and the records are its changelog: inserts, updates and deletes. The last
    tenth of them arrives after the rows that they replace have reached the batch view. Every read must equal the
    producer's log replayed up to its offsets. The final state is compared with the replayed log column by column.

    With --no-spark, and on a machine without Java, Arrow does all that Spark does otherwise. The embedded Kafka runs on
    Java too: without it, HARNESS_KAFKA must name a Kafka.

    \b
    Examples:
      harness demo
      harness demo --rows 600000 --rate 20000 --json out.json
      harness demo --keyed --rows 60000 --rate 5000
      deploy/run demo --s3
      HARNESS_KAFKA=broker:9092 deploy/run demo --no-spark
    """
    from harness_pipelines.demo.flow import DemoOptions, run_demo
    from harness_pipelines.demo.lineitem import Lineitem
    from harness_pipelines.demo.orders import Orders
    from harness_pipelines.demo.show import Show
    from harness_pipelines.show.logs import configure_logging

    configure_logging()
    end_interrupts_in_time()
    scenario: Scenario = Orders() if keyed else Lineitem()
    result = run_demo(settings, scenario, DemoOptions(**options), Show(), if_late=if_late)
    emit(result.to_json(), json_target, lambda: _tell(scenario, result, s3=options["s3"]))
    if not result.ok:
        raise DemoFailed("the demo found faults:\n" + "\n".join(f"  {fault}" for fault in result.faults))


def _tell(scenario: Scenario, result: DemoResult, *, s3: bool) -> None:
    for head, text in _findings(scenario, result):
        click.echo(f"{head:<12} {text}")
    table, program = scenario.table, _program()
    click.echo("\ntry next")
    for command in (
        *scenario.try_next(result.log),
        f"layout {table} --plot layout.png  # how the batch view is clustered",
        f"table show {table}              # its spec; for your own: harness table apply FILE",
        "services down                    # stops the embedded services; the data stays",
    ):
        click.echo(f"  {program} {command}")
    if s3:  # engines need keys of the store: they are not printed
        return
    click.echo("\nread it by other engines: copy the first three lines and those of an engine into a shell\n")
    for line in attach_lines(table, program):
        click.echo(line)


def _program() -> str:
    """How the person runs `harness`: from a clone it is not in the path."""
    return "harness" if shutil.which("harness") else "deploy/run"


def attach_lines(table: str, program: str, *, port: int = PORT) -> Iterator[str]:
    """What makes a token, starts the catalog on *port*, waits for it, and reads *table* by DuckDB or Trino."""
    from harness_pipelines.serve.attach import VARIABLE, blocks

    namespace = table.partition(".")[0]
    yield f"export {VARIABLE}=$({program} serve token create demo-$$ --tables '{namespace}.*' --expires 30d)"
    yield f"{program} serve --port {port} --log-file serve.log > serve.txt &"
    yield "while kill -0 $! 2> /dev/null && ! grep -q 'serving at' serve.txt; do sleep 1; done"
    found = blocks(f"http://127.0.0.1:{port}", table=table, warehouse="")
    for engine in ("DuckDB", "Trino"):
        yield ""
        yield f"# {engine}"
        yield from found[engine].splitlines()


def _findings(scenario: Scenario, result: DemoResult) -> Iterator[tuple[str, str]]:
    """Return the results: a word and a sentence each."""
    verdict, views = result.verdict, result.views
    yield "produced", f"{result.produced:,} records; {result.moves} moves to the lake; {result.seconds:.0f} s in all"
    yield from scenario.story(result.log)
    yield "read", ", ".join(f"{reader} {count:,} rows" for reader, count in verdict.read.items())
    lost = f"{verdict.missing} missing, {verdict.duplicated} doubled"
    yield scenario.unit, f"{lost}, {result.quarantined} quarantined"
    sums = "differ" if verdict.unequal else "equal"
    columns = f"{len(scenario.numeric)} numeric columns, exact"
    readers = " and ".join(verdict.read)
    yield "sums", f"{sums} to {scenario.judge}'s, in {readers} ({columns})"
    if verdict.state is not None:
        state = "differs from" if verdict.state else "equal to"
        yield "state", f"{state} {scenario.judge}'s in every column of {verdict.expected:,} rows, in {readers}"
    yield "reads", f"{result.tried} while the data moved, {result.wrong} of them wrong"
    if result.freshness_ms:
        p50, p99 = result.freshness_ms
        yield "freshness", f"p50 {p50:.0f} ms, p99 {p99:.0f} ms from Kafka's acknowledgement to {scenario.freshness}"
    yield "audit", "every record is in exactly one tier" if result.audit_ok else "found faults"
    yield "views", f"{views.stream_files} files in offset order, {views.batch_files} in value order"
    yield "", views.verdict
    if views.picture:
        yield "picture", str(views.picture)
    if result.kept:
        yield "file", str(result.kept)
