"""`harness run`: a worker that runs all stages of some tables in one process."""

from __future__ import annotations

import gc
import logging
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import click

from harness_pipelines.cli.common import chosen_tables, duration, opened
from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.protocol.claims import CONTINUOUS_STAGES, LEASE_MAX, Claim, Stage
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.app.client import Harness
    from harness_pipelines.app.metrics import MetricsRegistry
    from harness_pipelines.app.table import Table
    from harness_pipelines.stages.run.worker import Worker

LEASE_S_MIN = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of the worker."""

    stages: frozenset[Stage]
    until_idle: bool
    for_s: float | None
    lease_s: float
    ingest_on: Literal["threads", "spark"] = "threads"
    remove_large: bool = False
    shares: bool = False  #: no tables were named: it follows the ledger's


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option(
    "--stage",
    "stages",
    multiple=True,
    type=click.Choice([str(s) for s in Stage if s in CONTINUOUS_STAGES]),
    help="Run only this stage; may be repeated.",
)
@click.option(
    "--until-idle", is_flag=True,
    help="End when all records have reached all views; no producer and no other worker may be running.",
)  # fmt: skip
@click.option("--for", "for_s", callback=duration, metavar="TIME", help="End after 60s, 15m, ...")
@click.option(
    "--lease", "lease_s", callback=duration, default="30s", show_default=True, metavar="TIME",
    help="How long other workers wait for a worker that was killed.",
)  # fmt: skip
@click.option(
    "--retry-stuck",
    is_flag=True,
    help="First abandon moves that failed in every attempt, so that they are planned again.",
)
@click.option(
    "--ingest-on", type=click.Choice(["threads", "spark"]), default="threads", show_default=True,
    help="Ingest with threads of this process, or with Spark tasks on its executors.",
)  # fmt: skip
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), metavar="PORT",
    help="Serve Prometheus metrics over HTTP on this port until the worker ends (0: any free port).",
)  # fmt: skip
@click.option(
    "--metrics-host", metavar="ADDRESS",
    help="Serve the metrics on this address, such as 0.0.0.0 in a container.  [default: 127.0.0.1]",
)  # fmt: skip
@click.option(
    "--log-file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write the log to this file instead of standard error. It rotates at 32 MiB; four older files are kept.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="With --stage expire: list what would be removed; change nothing.")
@click.option(
    "--remove-large", is_flag=True,
    help="With --stage expire: allow removing more than half of a table's bytes, as after a rebuild of its batch view.",
)  # fmt: skip
@json_option
@click.pass_obj
def run(settings: Settings, /, tables: tuple[str, ...], **options: Any) -> None:
    """Run all stages of tables until stopped.

    Without names it runs the tables with `mode: external_worker`, those that are applied later too, and shares them
    with other workers that do; a named table runs whatever its mode. A changed spec holds from the next step of each
    stage. Ctrl-C or SIGTERM ends the worker after the
    current transaction and releases its claims. Several workers may run: one of them holds each stage of a table, and
    another takes over when its lease ends. A failing table is shown and retried, and
    does not delay the others; --json reports it as `trouble`.

    \b
    Examples:
      harness run
      harness run shop.orders --until-idle
      harness run shop.orders --stage ingest --for 10m
      harness run shop.orders --stage expire --dry-run
      harness run --metrics-port 9464
    """
    target: str | None = options["json_target"]
    stages = frozenset(Stage(s) for s in options["stages"]) or CONTINUOUS_STAGES
    wanted = RunOptions(
        stages=stages,
        until_idle=options["until_idle"],
        for_s=options["for_s"],
        lease_s=options["lease_s"],
        ingest_on=options["ingest_on"],
        remove_large=options["remove_large"],
        shares=not tables and not options["until_idle"],
    )
    _check(wanted, dry_run=options["dry_run"])
    serving = _serving(options["metrics_host"], options["metrics_port"], dry_run=options["dry_run"])
    live, log_file = _is_watched(), options["log_file"]
    level = logging.WARNING if live and log_file is None else logging.INFO
    with serving as metrics, opened(settings, log_level=level, log_file=log_file) as harness:
        chosen = _chosen(harness, tables, waits=wanted.shares and not options["dry_run"])
        if options["dry_run"]:
            _dry_run(harness, chosen, target)
            return
        if options["retry_stuck"]:
            _retry_stuck(harness, chosen, lease_s=wanted.lease_s)
        summary, interrupted = _work(harness, chosen, wanted, live=live, metrics=metrics)
    emit(summary, target, lambda: _told(summary))
    if interrupted:
        raise KeyboardInterrupt


def _chosen(harness: Harness, names: tuple[str, ...], *, waits: bool) -> list[Table]:
    """Return the named tables, or those with `mode: external_worker`.

    *waits*: tables may come later. Raises: TableUnknown; UsageError if there is none, and none is waited for.
    """
    try:
        found = chosen_tables(harness, names)
        chosen = found if names else [table for table in found if table.spec.mode == "external_worker"]
        if not chosen:
            raise UsageError(
                f"no table has `mode: external_worker`; name tables of other modes: `harness run {found[0].name}`"
            )
    except UsageError as none_yet:
        if not waits:
            raise
        note(f"harness: {none_yet.args[0]}")
        note("harness: waiting for tables with `mode: external_worker`")
        return []
    return chosen


def _check(wanted: RunOptions, *, dry_run: bool) -> None:
    if dry_run and wanted.stages != frozenset({Stage.EXPIRE}):
        raise UsageError("--dry-run needs `--stage expire`, the stage that removes files")
    if wanted.remove_large and wanted.stages != frozenset({Stage.EXPIRE}):
        raise UsageError("--remove-large needs `--stage expire`, the stage that removes files")
    if wanted.until_idle and wanted.stages == frozenset({Stage.EXPIRE}):
        raise UsageError("--until-idle waits for ingest and tier; expire runs with `--for 60s`")
    if wanted.lease_s > LEASE_MAX.total_seconds():
        raise UsageError(f"--lease {wanted.lease_s:g}s is too long; at most {LEASE_MAX.total_seconds():g}s")
    if wanted.lease_s < LEASE_S_MIN:
        raise UsageError(f"--lease {wanted.lease_s:g}s is too short to be renewed in time; at least {LEASE_S_MIN:g}s")


@contextmanager
def _serving(host: str | None, port: int | None, *, dry_run: bool) -> Iterator[MetricsRegistry | None]:
    """Return the metrics endpoint, opened before any other work so that a used port fails first."""
    if port is None:
        if host is not None:
            raise UsageError("--metrics-host needs --metrics-port")
        yield None
        return
    if dry_run:
        raise UsageError("--dry-run ends at once and serves no metrics; omit --metrics-port")
    from harness_pipelines.app.metrics import LOOPBACK, endpoint

    with endpoint(host or LOOPBACK, port) as (registry, url):
        note(f"harness: metrics at {url}")
        yield registry


def _is_watched() -> bool:
    import sys

    return sys.stderr.isatty()


def _work(
    harness: Harness, chosen: Sequence[Table], wanted: RunOptions, *, live: bool, metrics: MetricsRegistry | None
) -> tuple[dict[str, Any], bool]:
    """Run the worker to its end; return the summary and whether Ctrl-C ended it."""
    from harness_pipelines.show.progress import LineProgress, LiveProgress, Rates
    from harness_pipelines.stages.run.worker import Worker, WorkerOptions

    worker = Worker(
        harness.stores,
        [table.row for table in chosen],
        WorkerOptions(
            stages=wanted.stages,
            until_idle=wanted.until_idle,
            for_s=wanted.for_s,
            lease=timedelta(seconds=wanted.lease_s),
            ingest_on=wanted.ingest_on,
            remove_large=wanted.remove_large,
            shares=wanted.shares,
        ),
    )
    if metrics is not None:
        from harness_pipelines.app.metrics import WorkerCollector

        metrics.watch(WorkerCollector(worker, harness.stores))
    gc.freeze()  # what is imported stays: walking it again and again was a tenth of ingest's CPU time
    began, rates = time.monotonic(), Rates()
    with _stopped_by_signals(worker) as interrupted, LiveProgress(rates) if live else LineProgress(rates) as shown:
        worker.run(shown.update)
    seconds = time.monotonic() - began
    found = [
        {
            "table": p.name,
            "rows": p.rows,
            "refused": p.refused,
            "commits": p.commits,
            "moves": p.moves,
            "version": p.version or harness.stores.tables.head(row).version,
            "trouble": {str(stage): text for stage, text in p.trouble.items()},
            "held": _held(harness, p.name) if wanted.until_idle else [],
        }
        for p, row in zip(worker.progress, worker.tables, strict=True)
    ]
    return {"tables": found, "seconds": round(seconds, 3)}, interrupted.is_set()


def _held(harness: Harness, name: str) -> list[str]:
    """Describe the records that an idle worker cannot take because they are behind open transactions."""
    from harness_pipelines.protocol.topics import label

    table = harness.table(name)
    topic = table.spec.topic
    try:
        found = harness.stores.log.held(topic, [p.partition for p in table.positions() if p.partition >= 0])
    except HarnessError:  # what is wrong with Kafka is among the table's trouble
        return []
    return [f"partition {label(topic, p)}: {one}" for p, one in sorted(found.items())]


@contextmanager
def _stopped_by_signals(worker: Worker) -> Iterator[threading.Event]:
    """End the worker after its transaction on SIGTERM and the first Ctrl-C, without waiting for Spark.

    The second Ctrl-C ends it at once."""
    interrupted = threading.Event()

    def stop(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if interrupted.is_set():
                raise KeyboardInterrupt
            interrupted.set()
        worker.interrupt()
        note(
            "harness: stopping after the current transaction"
            + (" (Ctrl-C again ends at once)" if interrupted.is_set() else "")
        )

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _told(summary: dict[str, Any]) -> None:
    for one in summary["tables"]:
        refused = f", {one['refused']:,} quarantined" if one["refused"] else ""
        click.echo(
            f"{one['table']}: {one['rows']:,} rows in {one['commits']:,} commits{refused}, {one['moves']} moves, "
            f"version {one['version']}, {summary['seconds']:.1f} s"
        )
        for stage, text in one["trouble"].items():
            click.echo(f"  {stage}: {text}")
        for held in one["held"]:
            click.echo(f"  not idle: {held}")


def _retry_stuck(harness: Harness, chosen: Sequence[Table], *, lease_s: float) -> None:
    """Abandon moves that block their stage, so that the worker plans them again."""
    from harness_pipelines.ports.ledger import claimed_once
    from harness_pipelines.protocol.moves import MoveState

    ledger = harness.stores.ledger
    stages = [(one, stage) for one in chosen for stage in one.row.effects]
    for table, stage in stages:
        move = ledger.open_move(table.row, stage, shard=0)
        if move is None or move.state is not MoveState.QUARANTINED:
            continue
        with claimed_once(ledger, table.row, stage, lease=timedelta(seconds=lease_s)) as claim:
            if claim is None:
                raise UsageError(f"{table.name}: another worker holds {stage}; stop it first, then use --retry-stuck")
            ledger.close_move(claim, move, state=MoveState.ABANDONED, error="abandoned by --retry-stuck")
        note(f"{table.name}: {stage} move {move.move_id} is abandoned and will be planned again")


def _dry_run(harness: Harness, chosen: Sequence[Table], target: str | None) -> None:
    """Show what the next run of expire would do."""
    from harness_pipelines.show.bars import size
    from harness_pipelines.stages.table.expire import expire_once

    nobody = datetime.now(UTC)
    found = {}
    for table in chosen:
        claim = Claim(
            table_id=table.row.table_id, stage=Stage.EXPIRE, shard=0, holder="dry-run", epoch=0, lease_until=nobody
        )
        found[table.name] = expire_once(harness.stores, table.row, claim, dry_run=True).to_json()

    def human() -> None:
        for name, would in found.items():
            click.echo(
                f"{name}: would retire {len(would['retired'])} segments and condemn {len(would['condemned'])} files;"
            )
            click.echo(f"  {len(would['deleted'])} files have been condemned long enough and would be deleted")
            for path in would["deleted"]:
                click.echo(f"    {path}")
            if (aside := would["quarantined"])["records"]:
                click.echo(
                    f"  {aside['records']:,} quarantined records, {size(aside['bytes'])}, would move to the lake"
                )

    emit({"tables": [{"table": name, **would} for name, would in found.items()]}, target, human)
