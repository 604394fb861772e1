"""`harness chaos`: inject faults and check every read."""

from __future__ import annotations

import secrets
import signal
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import click

from harness_pipelines.cli.common import check_wish, duration, not_asked, wish_options
from harness_pipelines.cli.ending import if_late
from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.extras import require
from harness_pipelines.secret import redact
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import ENGINES, Settings

SECONDS_MIN = 20.0


class ChaosFailed(HarnessError):
    """The run found lost, doubled, wrongly read or stuck records."""


@click.command()
@click.argument("table", default="chaos.records")
@click.option(
    "--for",
    "for_s",
    callback=duration,
    default="5m",
    show_default=True,
    metavar="TIME",
    help="How long faults are injected.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), help="Repeat the fault schedule of an earlier run.  [default: a new seed]"
)
@click.option(
    "--more-tables",
    "crowd",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="COUNT",
    help="Small append tables beside the four. Give --thaw more time: each read of one takes its turn.",
)
@click.option(
    "--engine",
    type=click.Choice(("both", *ENGINES)),
    default="both",
    show_default=True,
    help="What moves the tables. Of both, each has half of the tables, and tables change from one to the other; with "
    "--alerts they stay. With arrow no Spark runs.",
)
@click.option(
    "--rate", type=click.FloatRange(min=1), default=200.0, show_default=True, help="Records produced per second."
)
@click.option(
    "--thaw",
    "thaw_s",
    callback=duration,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Seconds within which every partition must move after the last fault; more for a busy machine.",
)
@click.option(
    "--keep", is_flag=True, help="Keep the temporary home with all logs; it is always kept when a fault was found."
)
@click.option("--s3", is_flag=True, help="Keep the lake on an embedded object store, which is killed and stopped too.")
@click.option(
    "--dagster",
    is_flag=True,
    help="Let Dagster's runs do the work of TABLE_growing. Its daemon, code servers and runs are broken too.",
)
@click.option(
    "--alerts",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Run Prometheus with the rules of FOLDER (deploy/prometheus), judge each alert, and end with drills that last "
    "for half an hour.",
)
@wish_options("Print the schedule and end.")
@json_option
@click.pass_obj
def chaos(settings: Settings, /, table: str, **options: Any) -> None:
    """Inject faults while tables move, and check every read.

    Starts separate services in a temporary home and stops them at the end. There are four tables: TABLE, an append
    table; TABLE_keyed; TABLE_direct, without a buffer; and TABLE_growing, whose topic gets partitions. A producer with
    its own log, two workers and two readers run throughout.

    Workers, Spark, Postgres and Kafka are killed, stopped and restarted; workers also at the crash points of moves,
    whichever engine moves. Connections are cut. Files of the lake are damaged for the duration of a read. Claims get a
    lease that ends tomorrow. Operators replay, revert, evolve, recall, apply, change engines and create snapshots, and
    some of them sleep for longer than two grace periods. --seed, --for, --s3, --dagster, --engine and --alerts
    determine the schedule.

    Every read must return exactly the acknowledged records below its bounds. A version that is read twice must return
    the same rows. Within a minute after the last fault a new record of every partition must be readable and in the
    lake; within eleven where Dagster's runs move it, which wait longer after each failure. Exit code 1 if a record was
    lost, doubled, wrong, unrepeatable, frozen or stuck.

    With --alerts a Prometheus server watches the workers. An alert that fires must name something that was broken, and
    must end afterwards. Four drills follow the faults: workers, Postgres, Kafka and Spark stop for minutes, and their
    alerts must fire. Exit code 1 if an alert was wrong or missing.

    \b
    Examples:
      harness chaos --yes
      harness chaos --for 30m --seed 7 --yes --json chaos.json
      harness chaos --for 60s --seed 7 --dry-run
      harness chaos --for 10m --s3 --yes
      harness chaos --for 10m --engine arrow --yes
      harness chaos --for 30m --alerts deploy/prometheus --yes
      harness chaos --for 20m --more-tables 46 --thaw 5m --yes
      harness chaos --for 1h --dagster --alerts deploy/prometheus --yes
    """
    target: str | None = options["json_target"]
    _check(settings, for_s=options["for_s"], dry_run=options["dry_run"], yes=options["yes"])
    if options["alerts"] and options["engine"] not in {"both", "spark"}:
        raise UsageError("--alerts wants tables that Spark moves, whose alerts must fire: use --engine spark or both")
    require("local", "`harness chaos`", "pyspark")
    if options["dagster"]:
        require("dagster", "`harness chaos --dagster`", "dagster")
    from harness_pipelines.chaos.result import Options
    from harness_pipelines.chaos.run import run_chaos
    from harness_pipelines.show.logs import configure_logging

    configure_logging()
    seed = options["seed"] if options["seed"] is not None else secrets.randbelow(1_000_000)
    wanted = Options(
        seed=seed,
        seconds=options["for_s"],
        table=table,
        rate=options["rate"],
        crowd=options["crowd"],
        thaw_s=options["thaw_s"],
        engine=options["engine"],
        jars=settings.jars,
        s3=options["s3"],
        dagster=options["dagster"],
        keep=options["keep"],
        alerts=options["alerts"],
    )
    if not options["yes"]:
        planned = wanted.planned
        found = {"seed": seed, "seconds": wanted.seconds, "engine": wanted.engine}
        emit({**found, "schedule": [fault.to_json() for fault in planned]}, target, lambda: _show_schedule(planned))
        if not options["dry_run"]:
            raise not_asked("start services and break them for minutes")
        return
    signal.signal(signal.SIGTERM, _terminated)
    result = run_chaos(wanted, _Said(), if_late=if_late).to_json()
    emit(result, target, lambda: _show(result))
    if not result["ok"]:
        raise ChaosFailed(
            f"the run with seed {seed} found faults; the logs are in {result['logs']}:\n"
            + "\n".join(f"  {redact(one)}" for one in result["findings"])
        )


def _check(settings: Settings, *, for_s: float, dry_run: bool, yes: bool) -> None:
    check_wish(dry_run=dry_run, yes=yes)
    if for_s < SECONDS_MIN:
        raise UsageError(f"--for {for_s:g}s is too short for anything to break and recover; at least {SECONDS_MIN:g}s")
    named = {"HARNESS_DSN": settings.dsn, "HARNESS_KAFKA": settings.kafka, "HARNESS_SPARK": settings.spark}
    if found := [name for name, value in named.items() if value]:
        raise UsageError(
            f"chaos breaks services, so it runs only on services that it starts, but {', '.join(found)} is set: "
            "nothing was started; unset it"
        )


class _Said:
    """Prints each fault and the time since the start on standard error."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, what: str) -> None:
        note(f"{time.monotonic() - self._began:6.1f} s  {redact(what)}")


def _terminated(number: int, _frame: FrameType | None) -> None:
    """End the run on SIGTERM as on Ctrl-C: with all its processes."""
    raise SystemExit(128 + number)


def _show_schedule(planned: Any) -> None:
    for fault in planned:
        click.echo(f"{fault.at_s:7.2f} s  {fault}")


def _show(result: Mapping[str, Any]) -> None:
    recovery = result["recovery_s"]
    kinds = ", ".join(f"{count} {kind}" for kind, count in result["faults_by_kind"].items())
    click.echo(
        f"seed         {result['seed']}; {result['seconds']:g} s of faults, {result['all_seconds']:.0f} s in all"
    )
    click.echo(f"produced     {result['produced']:,} records, {result['quarantined']:,} of them to be quarantined")
    if result["repeated_by_kafka"]:
        click.echo(
            f"repeated     {result['repeated_by_kafka']} records that Kafka has twice: a killed broker forgot them"
        )
    click.echo(f"faults       {result['faults']}: {kinds}")
    files = ", ".join(f"{count} of {engine}" for engine, count in result["files_by_engine"].items())
    click.echo(f"moved by     {result['engine']}; files at the end: {files}")
    click.echo(
        f"recovery     p50 {recovery['p50']} s, max {recovery['max']} s from the fault to a read of newer records"
    )
    click.echo(f"reads        {result['reads']:,} right or wrong, {result['unavailable_reads']:,} refused by name")
    click.echo(f"records      {result['lost']} lost, {result['doubled']} doubled; {result['wrong_reads']} wrong reads")
    click.echo(f"verdicts     {result['unrepeatable']} unrepeatable reads, {result['frozen']} frozen tables")
    if "alerts" in result:
        names = Counter(one["alert"] for one in result["alerts"])
        fired = ", ".join(f"{count} {name}" for name, count in sorted(names.items()))
        click.echo(f"alerts       {result['wrong_alerts']} wrong or missing; fired: {fired or 'none'}")
