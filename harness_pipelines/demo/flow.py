"""The demo from beginning to end: services, input, producer, worker, readers, audit, comparison."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness_pipelines.demo.background import Background
from harness_pipelines.demo.producer import SteadyProducer
from harness_pipelines.demo.readers import CutReader, NewestReader
from harness_pipelines.demo.scenario import PARTITIONS, Log, Scenario
from harness_pipelines.demo.show import Moment, Show
from harness_pipelines.demo.verify import Verdict
from harness_pipelines.demo.worker import WorkerProcess
from harness_pipelines.errors import HarnessError
from harness_pipelines.extras import ExtraMissing
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.moves import MoveState
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.app.client import Harness
    from harness_pipelines.app.table import Table
    from harness_pipelines.audit.proof.report import BatchAudit
    from harness_pipelines.spec.settings import EngineWord

STEP_S = 0.05
SETTLE_S = 300.0  #: for the rest to reach both views of the lake after the last record
LOOK_S = 1.0  #: how often the layout is looked at, once all is there
WORKER_START_S = 60.0
CLAIM_WAIT_S = 40.0  #: longer than the lease of a worker that was killed


class DemoStuck(HarnessError):
    """The records did not reach both views of the lake in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """How much, how fast, and whether the generated file stays."""

    rows: int
    rate: float
    keep: bool
    s3: bool = False  #: the lake is on the embedded object store
    no_spark: bool = False  #: Arrow moves the rows, as it does where there is no Java


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """The lake in its two orders, at the end."""

    stream_files: int
    batch_files: int
    batch_rows: int
    verdict: str  #: of the audit, which read both
    ok: bool
    picture: Path | None  #: of the batch view's regions; None where matplotlib is not installed


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """All that the demo found out."""

    log: Log
    produced: int
    verdict: Verdict
    quarantined: int
    tried: int
    wrong: int
    freshness_ms: tuple[float, float] | None  #: p50 and p99
    moves: int
    seconds: float
    audit_ok: bool
    views: Views
    faults: Sequence[str] = field(default_factory=tuple)  #: sentences about what is wrong
    kept: Path | None = None

    @property
    def ok(self) -> bool:
        return not self.faults

    def to_json(self) -> dict[str, Any]:
        """The fixed form of ``harness demo --json``; ``read_spark`` is NULL where Spark is not there."""
        p50, p99 = self.freshness_ms or (None, None)
        state = self.verdict.state
        return {
            "produced": self.produced,
            "read_arrow": self.verdict.read["Arrow"],
            "read_spark": self.verdict.read.get("Spark"),
            "missing": self.verdict.missing,
            "duplicated": self.verdict.duplicated,
            "quarantined": self.quarantined,
            "sums_equal": not self.verdict.unequal,
            **({} if state is None else {"state_equal": not state}),
            "consistent_reads": {"tried": self.tried, "wrong": self.wrong},
            "freshness_ms": {"p50": p50, "p99": p99},
            "moves": self.moves,
            "seconds": self.seconds,
            "views": {
                "agree": self.views.ok,
                "stream_files": self.views.stream_files,
                "batch_files": self.views.batch_files,
                "batch_rows": self.views.batch_rows,
                "plot": None if self.views.picture is None else str(self.views.picture),
            },
        }


def run_demo(
    settings: Settings,
    scenario: Scenario,
    options: DemoOptions,
    show: Show,
    *,
    if_late: Callable[[Callable[[], None]], None] = lambda _: None,
) -> DemoResult:
    """Run the demo; whatever happens, its worker and readers are ended before this returns.

    *if_late* receives a function that kills the worker at once, for a caller that cannot wait.
    """
    from harness_pipelines.app.client import connect

    began = time.monotonic()
    scenario.engine = _services_up(settings, options, show)
    with connect(settings) as harness, _folder(harness.settings, scenario, keep=options.keep) as folder:
        harness.init()
        show.step(f"making {options.rows:,} {scenario.source}")
        log = scenario.make(folder, options.rows)
        show.step(f"creating topic {scenario.spec.topic} with {PARTITIONS} partitions and table {scenario.table}")
        table = _fresh_table(harness, scenario, show)
        producer = SteadyProducer(harness.settings, scenario, log, rate=options.rate)
        cuts, newest = CutReader(table, scenario, producer.truth), NewestReader(table, scenario, producer.truth)
        at_most_s = options.rows / options.rate + 2 * SETTLE_S + 60
        show.step("starting the worker")
        worker_log = harness.settings.home / "demo" / "worker.log"
        worker = WorkerProcess(harness.settings, scenario.table, log=worker_log, at_most_s=at_most_s)
        if_late(worker.kill)
        with worker:
            _wait_for_claims(table, worker)
            show.step(f"producing {options.rate:,.0f} records/s while the worker moves them and two readers read")
            with show:
                _move_and_read(table, producer, (cuts, newest), worker, show)
            worker.end()
        cuts.finish()
        show.step(f"all records are in both views; auditing them, then comparing with {scenario.judge}")
        return _judge(table, (producer, cuts, newest), began=began, kept=log.file if options.keep else None)


def _services_up(settings: Settings, options: DemoOptions, show: Show) -> EngineWord | None:
    """Start what is not there; returns the engine that the table must have. Raises: ServicesError."""
    from harness_pipelines.services import Services

    services, s3 = Services.from_settings(settings), options.s3
    no_spark = options.no_spark or not services.has_java_for("spark")
    if no_spark and not options.no_spark:
        show.step("there is no Java for Spark: Arrow moves the rows, and alone reads them at the end")
    services.check_java_for("kafka")
    found = services.current()
    if not (found.postgres and found.kafka and (found.spark or no_spark)) or (s3 and found.s3 is None):
        show.step("starting the embedded services; the first start takes about 15 s")
    # Those that run, too: a start that was cut off may have left a Kafka that knows no login.
    services.up(only=services.without_spark() if no_spark else None, s3=s3, progress=show.step)
    return "arrow" if no_spark else None


@contextmanager
def _folder(settings: Settings, scenario: Scenario, *, keep: bool) -> Iterator[Path]:
    """A folder of this run in the home, removed at the end unless it is kept."""
    parent = settings.home / "demo"
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{scenario.spec.name}-", dir=parent))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _fresh_table(harness: Harness, scenario: Scenario, show: Show) -> Table:
    """Drop what an earlier demo left, wait for a killed worker's lease if needed, and re-create topic and table."""
    from harness_pipelines.ledgers.postgres.acts.drop import purge
    from harness_pipelines.sources.kafka.producer import recreate_topic

    old = [table for table in harness.tables() if table.name == scenario.table]
    for table in old:
        gone = _drop(harness, table, show)
        for location in gone:
            purge(location)
    recreate_topic(harness.settings, scenario.spec.topic, partitions=PARTITIONS)
    return harness.apply(scenario.spec.model_copy(update={"engine": scenario.engine}))


def _drop(harness: Harness, table: Table, show: Show) -> list[str]:
    """Drop the table; returns where its files are. Raises: TableInUse when a worker keeps on running."""
    from harness_pipelines.ledgers.postgres.acts.drop import TableInUse

    identifier = (table.spec.namespace, table.row.tiered_view)
    metadata = harness.stores.ledger.drop_table(table.row, dry_run=True).metadata
    locations = [harness.stores.catalog.at(identifier, place).location() for place in metadata]
    deadline, told = time.monotonic() + CLAIM_WAIT_S, False
    while True:
        try:
            harness.stores.ledger.drop_table(table.row)
            return locations
        except TableInUse:
            if time.monotonic() > deadline:
                raise
            if not told:
                show.step("a worker of an earlier demo still holds the table; waiting for its lease to end")
            told = True
            time.sleep(1.0)


def _wait_for_claims(table: Table, worker: WorkerProcess) -> None:
    """Until the worker holds ingest and tier. Raises: WorkerFailed, DemoStuck."""
    from harness_pipelines.ledgers.postgres.views.status import Overview

    books, deadline = Overview(table.harness.stores.readers), time.monotonic() + WORKER_START_S
    while not {Stage.INGEST, Stage.TIER} <= {claim["stage"] for claim in books.claims(table.row) if claim["alive"]}:
        worker.check()
        if time.monotonic() > deadline:
            raise DemoStuck(f"the worker did not begin within {WORKER_START_S:g} s")
        time.sleep(STEP_S)


def _move_and_read(
    table: Table, producer: SteadyProducer, readers: tuple[CutReader, NewestReader], worker: WorkerProcess, show: Show
) -> None:
    """Until everything that was produced is in both views, and the regions that are due for it are rewritten.

    The readers end with it; the one of the newest rows as soon as it has seen them all.
    """
    began = time.monotonic()
    cuts, newest = readers
    parts: list[Background] = [cuts, newest, producer]

    def moment() -> Moment:
        return _moment(table, producer, cuts, seconds=time.monotonic() - began)

    def look() -> None:
        worker.check()
        for part in parts:
            part.check()
        if show.due():
            show.update(moment())

    for part in parts:
        part.start()
    try:
        _await_views(table, producer, newest, show, look)
        show.update(moment())
    except BaseException:
        worker.ask_to_end()  # it ends while the readers do
        raise
    finally:
        for part in parts:
            part.stopping.set()
        for part in reversed(parts):
            part.stop()
    for part in parts:
        part.check()


def _await_views(
    table: Table, producer: SteadyProducer, newest: NewestReader, show: Show, look: Callable[[], None]
) -> None:
    """Until both views have everything; *look* is called all the while. Raises: DemoStuck; what *look* raises."""
    deadline, look_at = float("inf"), 0.0
    while True:
        if _settled(table, producer) and time.monotonic() >= look_at:
            if _laid_out(table) or time.monotonic() > deadline:
                return
            look_at = time.monotonic() + LOOK_S
        look()
        if producer.at_late and producer.truth.is_merged(table):
            show.step(f"so far all is in the batch view; sending {len(producer.log) - producer.sent:,} late records")
            producer.go_on()
        moves = not (producer.done or producer.at_late)
        deadline = float("inf") if moves else min(deadline, time.monotonic() + SETTLE_S)
        if producer.done and newest.seen == producer.truth.acked:
            newest.stop()
        if time.monotonic() > deadline and not _settled(table, producer):
            raise DemoStuck(
                f"not all is in both views {SETTLE_S:g} s after the last record: `harness status {table.name}`"
            )
        time.sleep(STEP_S)


def _settled(table: Table, producer: SteadyProducer) -> bool:
    if not producer.done or producer.failed is not None:
        return False
    return producer.truth.is_merged(table)


def _laid_out(table: Table) -> bool:
    """Nothing of the batch view is due to be rewritten, nor is it being written."""
    from harness_pipelines.stages.otree import otree

    return otree.trigger(table.harness.stores, table.row) is None


def _moment(table: Table, producer: SteadyProducer, cuts: CutReader, *, seconds: float) -> Moment:
    from harness_pipelines.ledgers.postgres.views.status import Overview

    truth = producer.truth.partitions
    return Moment(
        seconds=seconds,
        sent=producer.truth.acked,
        records=len(producer.log),
        live=producer.truth.live if table.spec.key else None,
        version=table.harness.stores.tables.head(table.row).version,
        positions=table.positions(),
        apart=Overview(table.harness.stores.readers).apart(table.row),
        ends={p: int(t.offsets[t.acked - 1]) + 1 if t.acked else 0 for p, t in truth.items()},
        tried=cuts.tried,
        wrong=cuts.wrong,
    )


def _judge(
    table: Table,
    parts: tuple[SteadyProducer, CutReader, NewestReader],
    *,
    began: float,
    kept: Path | None,
) -> DemoResult:
    from harness_pipelines.ledgers.postgres.views.status import Overview

    producer, cuts, newest = parts
    scenario, log = producer.scenario, producer.log
    stores = table.harness.stores
    report = table.audit(full=True)
    audit, views = report.to_json(), _views(table, report.batch, scenario.picture)
    verdict = scenario.verify(table, log, producer.truth)
    ages = newest.ages_ms()
    quarantined = Overview(stores.readers).counts(table.row).quarantined
    moves = [
        m for m in stores.ledger.moves(table.row, stage=Stage.TIER, limit=10_000) if m["state"] == MoveState.COMMITTED
    ]
    produced = producer.truth.acked
    faults = [*(verdict.state or ()), *verdict.unequal, *cuts.faults, *[views.verdict] * (not views.ok)]
    faults += [f"the audit found {len(audit['missing'])} missing, {len(audit['duplicated'])} doubled"] * (
        not audit["ok"]
    )
    for what, count in (("missing", verdict.missing), ("doubled", verdict.duplicated), ("quarantined", quarantined)):
        unit = "records" if what == "quarantined" else scenario.unit
        faults += [f"{count:,} {unit} are {what}"] * bool(count)
    wanted = "were produced" if verdict.state is None else "must be there"
    for reader, count in verdict.read.items():
        faults += [f"{reader} read {count:,} rows, {verdict.expected:,} {wanted}"] * (count != verdict.expected)
    faults += [f"only {len(ages):,} records were seen by the reader of the newest rows"] * (len(ages) != produced)
    return DemoResult(
        log=log,
        produced=produced,
        verdict=verdict,
        quarantined=quarantined,
        tried=cuts.tried,
        wrong=cuts.wrong,
        freshness_ms=(round(float(np.percentile(ages, 50)), 1), round(float(np.percentile(ages, 99)), 1))
        if len(ages)
        else None,
        moves=len(moves),
        seconds=round(time.monotonic() - began, 2),
        audit_ok=bool(audit["ok"]),
        views=views,
        faults=tuple(faults),
        kept=kept,
    )


def _views(table: Table, judged: BatchAudit | None, name: str) -> Views:
    from harness_pipelines.read.report.layout import look
    from harness_pipelines.show.layout_plot import PlotFailed, draw
    from harness_pipelines.stages.compact import stream_files

    assert judged is not None, "the demo's table has two views"
    seen = look(table.harness.stores, table.row)
    picture: Path | None = table.harness.settings.home / "demo" / name
    try:
        draw(seen, str(picture))
    except (PlotFailed, ExtraMissing):  # a demo without matplotlib is one without a picture
        picture = None
    head = table.harness.stores.tables.head(table.row)
    return Views(
        stream_files=len(stream_files(table.harness.stores.lake_reads, table.row, head.stream.metadata)),
        batch_files=len(seen.files),
        batch_rows=judged.rows,
        verdict=judged.said,
        ok=judged.ok,
        picture=picture,
    )
