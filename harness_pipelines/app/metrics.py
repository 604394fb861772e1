"""Prometheus metrics of a worker: the state of tables from the ledger, and the work of this process."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from math import inf
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from harness_pipelines.app.health import Health
from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.ledgers.postgres.migrations import migrations
from harness_pipelines.ledgers.postgres.views.growth import BufferGrowth
from harness_pipelines.ledgers.postgres.views.mirrors import MirrorLag
from harness_pipelines.ledgers.postgres.views.stalls import Lag, Pin, Stall
from harness_pipelines.ledgers.postgres.views.work import TableState
from harness_pipelines.ports.ledger import SickTable
from harness_pipelines.ports.upkeep import SeenEnds
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.shape import intake_of
from harness_pipelines.spec.table import TableSpec

if TYPE_CHECKING:
    from harness_pipelines.app.installation import Stores
    from harness_pipelines.stages.run.worker import TableProgress, Worker

log = structlog.get_logger(__name__)
LOOK_S_MAX = 2.0  #: of a scrape, for the ledger; Prometheus waits for 10 s
CLIENT_S_MAX = 10.0
TABLES_S = 30.0  #: which tables there are is asked again after so long
OF_OTHERS = (Stage.INGEST, Stage.TIER)  #: what is missed of a table that another worker has
LOOPBACK = "127.0.0.1"
T = TypeVar("T")
Family = GaugeMetricFamily | CounterMetricFamily


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family; a counter has the suffix of counters."""

    name: str
    labels: tuple[str, ...]
    help: str

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"

    def family(self) -> Family:
        made = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        return made(self.name, self.help, labels=self.labels)


_TABLE, _STAGE = ("table",), ("table", "stage")
#: In the order in which they are shown; docs/reference/metrics.md has the same.
METRICS = (
    Metric("harness_worker_info", ("version", "ledger", "holder"),
           "Always 1. Labels of the worker: version of the harness, newest migration of the ledger that it knows, its "
           "name as holder of claims."),
    Metric("harness_worker_ready", (),
           "1 while the worker runs and has read the ledger and the log of each of its tables, else 0."),
    Metric("harness_scrape_ok", (),
           "1 if the ledger answered this scrape in time, else 0; without an answer the metrics from the ledger have "
           "no samples."),
    Metric("harness_service_answers", ("service",),
           "1 if the server (postgres, kafka, spark, registry) answered the worker within 4 s, else 0; no sample for "
           "servers that are not configured."),
    # From the ledger, whichever process did the work.
    Metric("harness_tail_offsets", _TABLE,
           "Offsets only in Kafka: from the buffer's bound to the end of the log when it was last read."),
    Metric("harness_log_seen_age_seconds", _TABLE,
           "Seconds since the end of the log was last read; the largest value of all partitions."),
    Metric("harness_held_offsets", _TABLE,
           "Offsets behind open transactions, which readers of committed records do not get."),
    Metric("harness_open_transaction_age_seconds", _TABLE,
           "Age of the oldest open transaction, by the timestamp of its first record; 0 without one."),
    Metric("harness_stage_stalled_seconds", _STAGE,
           "Seconds for which the stage has had work without progress, beyond the limits of the spec, or has only "
           "failed; 0 while it moves. `events` is the delivery to subscribers."),
    Metric("harness_subscriber_lag_events", (*_TABLE, "subscriber"),
           "Events of the table that the subscriber has not acknowledged."),
    Metric("harness_subscriber_age_seconds", (*_TABLE, "subscriber"),
           "Seconds since the subscriber last acknowledged an event. It also grows while there are no events."),
    Metric("harness_subscriber_failing", (*_TABLE, "subscriber"),
           "1 if the last delivery to the subscriber failed, else 0; `harness status` has the error."),
    Metric("harness_buffer_offsets", _TABLE,
           "Offsets in the buffer that are not in the lake yet."),
    Metric("harness_stream_offsets", _TABLE,
           "Offsets of the stream view that are not in the batch view yet; no sample without a batch view."),
    Metric("harness_mirror_lag_seconds", (*_TABLE, "catalog"),
           "Seconds since the oldest version that the foreign catalog was not seen to show yet was published; 0 if it "
           "shows the newest; no sample without `catalogs`."),
    Metric("harness_buffer_commit_age_seconds", _TABLE,
           "Seconds since the last commit of records (to the buffer, or with `buffer: none` to the lake), or since "
           "the table was created. It also grows while the topic is silent."),
    Metric("harness_tier_age_seconds", _TABLE,
           "Seconds since tier last committed a move, or since the table was created. It also grows while there is "
           "nothing to move."),
    Metric("harness_buffer_bytes", _TABLE,
           "Bytes of the buffer's segments in Postgres that are not retired, including indexes."),
    Metric("harness_buffer_growth_bytes_per_second", _TABLE,
           "Growth of the buffer in Postgres over the last minutes; negative if it shrinks."),
    Metric("harness_buffer_full_seconds", _TABLE,
           "Seconds until the buffer reaches `buffer.max_bytes`, or all buffers together HARNESS_BUFFER_GB, at their "
           "current growth; +Inf for a table whose buffer does not grow."),
    Metric("harness_buffer_limit_bytes", _TABLE,
           "`buffer.max_bytes` of the table's spec; no sample without one."),
    Metric("harness_buffer_retired_bytes", _TABLE,
           "Bytes of the buffer's segments in Postgres that wait to be dropped; they count against the limits."),
    Metric("harness_ingest_paused", (*_TABLE, "limit"),
           "1 while ingest pauses because the buffer is full, else 0, by limit: table (`buffer.max_bytes`) or server "
           "(HARNESS_BUFFER_GB)."),
    Metric("harness_version", _TABLE,
           "Number of the newest version of the table."),
    Metric("harness_table_stopped", _TABLE,
           "1 if an error that needs an operator stopped the table, else 0."),
    Metric("harness_table_unreadable", _TABLE,
           "1 if the ledger row of the table cannot be read, so that no worker runs it; otherwise no sample."),
    Metric("harness_quarantined_records", _TABLE,
           "Records in quarantine that are not replayed; the count stops at 100000."),
    Metric("harness_refused_share", _TABLE,
           "Share of the last 10000 offsets that are in quarantine and not replayed; the largest value of all "
           "partitions."),
    Metric("harness_filtered_records_total", _TABLE,
           "Records that the filter of the table's transform excluded."),
    Metric("harness_contract_violations_total", (*_TABLE, "check", "severity"),
           "Records that broke a check of the table's contract, by severity: quarantine (counted under the check that "
           "refused the record) or warn (accepted)."),
    Metric("harness_leases", _TABLE,
           "Live leases of readers."),
    Metric("harness_oldest_lease_age_seconds", _TABLE,
           "Age of the oldest live lease of a reader in seconds; 0 without one."),
    Metric("harness_pins", _TABLE,
           "Versions that named snapshots and the last commits of states keep readable."),
    Metric("harness_oldest_pin_age_seconds", _TABLE,
           "Age of the oldest pin in seconds; 0 without one."),
    Metric("harness_oldest_pin_behind_versions", _TABLE,
           "Versions between the oldest pinned version and the oldest version that would be retained without pins."),
    Metric("harness_claim_lease_seconds", _STAGE,
           "Seconds until the lease of the stage's claim ends, for any holder; 0 without a holder."),
    Metric("harness_claim_own", _STAGE,
           "1 if this worker holds the stage's claim, else 0."),
    Metric("harness_open_move_attempts", _STAGE,
           "Attempts of the stage's open move, including the current one; 0 without an open move."),
    Metric("harness_open_move_failures", _STAGE,
           "Failed attempts of the stage's open move; outages do not count."),
    Metric("harness_open_move_age_seconds", _STAGE,
           "Seconds since the stage's open move was planned; 0 without an open move."),
    Metric("harness_move_stuck", _STAGE,
           "1 if a move that failed in every attempt blocks the stage until an operator acts, else 0."),
    # From the specs.
    Metric("harness_freshness_lake_goal_seconds", _TABLE,
           "`freshness.lake` of the table's spec."),
    Metric("harness_tier_max_rows", _TABLE,
           "`tier.max_rows` of the table's spec."),
    # Of this process, from its start.
    Metric("harness_moves_total", (*_STAGE, "outcome"),
           "Moves of this worker by outcome: committed, failed (attempts that ended with an error or an outage), "
           "given_up (moves closed without effect). For ingest: its commits and errors."),
    Metric("harness_moved_records_total", _STAGE,
           "Records of this worker's committed moves; for ingest the rows that it committed to the buffer."),
    Metric("harness_moved_bytes_total", _STAGE,
           "Bytes of the files that this worker's committed moves wrote."),
    Metric("harness_taken_bytes_total", _TABLE,
           "Bytes of the values of records that this worker's ingest read."),
    Metric("harness_stage_cpu_seconds_total", _STAGE,
           "CPU seconds of this worker's threads in ingest, tier, otree and compact. What Spark and Postgres take is "
           "not in it."),
    Metric("harness_record_age_seconds", (*_TABLE, "to", "quantile"),
           "Age of records by their timestamps when they became readable, or came into the lake, over the last five "
           "minutes: quantiles 0.5 and 0.99, for what this worker ingests; no sample without records."),
    Metric("harness_aged_records_total", (*_TABLE, "to"),
           "Records that this worker took and that became readable, or came into the lake, if they have a timestamp."),
    Metric("harness_late_records_total", (*_TABLE, "to"),
           "Of these records those that were older than the objective: `freshness.visible`, or `freshness.lake`."),
    Metric("harness_refused_records_total", _TABLE,
           "Records that this worker's ingest sent to quarantine because they do not fit."),
    Metric("harness_stage_errors_total", _STAGE,
           "Errors of a stage in this worker, counted per attempt; `watch` is its check of the table itself."),
    Metric("harness_stage_trouble", _STAGE,
           "1 while an error blocks the stage in this worker, else 0."),
    Metric("harness_stage_late_seconds", _STAGE,
           "Seconds for which due work of the stage has waited for a thread of this worker, beyond twice its "
           "objective; 0 while it starts in time."),
    Metric("harness_stage_running_seconds", _STAGE,
           "Seconds for which this worker has been doing the stage's current work; 0 while it does none."),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedState:
    """The ledger's data of the exported tables."""

    specs: Mapping[str, TableSpec]  #: by name: they are shown
    sick: Sequence[SickTable]  #: and those that cannot be
    states: Sequence[TableState]
    stalls: Sequence[Stall]
    lags: Sequence[Lag]
    pins: Sequence[Pin]
    growth: Mapping[str, BufferGrowth]
    mirrors: Sequence[MirrorLag]


class WorkerCollector(Collector):
    """All metrics of one worker and its tables, computed on each scrape.

    Ledger metrics cover all tables with ``mode: external_worker``, so a table is exported while any worker lives.
    """

    def __init__(self, worker: Worker, stores: Stores) -> None:
        self._worker, self._stores = worker, stores
        self._stages = sorted(worker.options.stages)
        self._others: dict[str, TableSpec] = {}
        self._sick: list[SickTable] = []
        self._known_at = -inf
        self._look = Timely(self._ask, wait_s=LOOK_S_MAX)
        self.health = Health(stores.settings)

    @property
    def _own(self) -> dict[str, TableSpec]:
        return {row.name: row.spec for row in self._worker.tables}

    def describe(self) -> Iterable[Family]:
        """Return all families without samples."""
        return [metric.family() for metric in METRICS]

    def collect(self) -> Iterable[Family]:
        """Return all families; those of the ledger have no samples while it does not answer."""
        shown = {metric.name: metric.family() for metric in METRICS}
        self.health.begin()
        found = self._look()
        for service, why in self.health.look().items():
            shown["harness_service_answers"].add_metric([service], why is None)
        self._show_worker(shown)
        shown["harness_scrape_ok"].add_metric([], found is not None)
        if found is not None:
            self._show_ledger(shown, found)
        for name, spec in (self._own if found is None else found.specs).items():
            shown["harness_freshness_lake_goal_seconds"].add_metric([name], spec.freshness.lake)
            shown["harness_tier_max_rows"].add_metric([name], spec.tier.max_rows)
        for progress in self._worker.progress:
            self._show_progress(shown, progress)
        for name, stages in self._worker.slowness().items():
            for stage, (late_s, running_s) in stages.items():
                shown["harness_stage_late_seconds"].add_metric([name, stage], late_s)
                shown["harness_stage_running_seconds"].add_metric([name, stage], running_s)
        return shown.values()

    def _show_ledger(self, shown: dict[str, Family], found: ExportedState) -> None:
        for state in found.states:
            name, spec = state.name, found.specs[state.name]
            # A stage that a table does not have is never claimed, so a missing claim is no fault there.
            never = {Stage.INGEST} - {intake_of(spec).reader} | (set() if spec.catalogs else {Stage.MIRROR})
            asked = self._stages if name in self._own else OF_OTHERS
            _show_state(shown, state)
            for stage in sorted({*asked, *state.claims, *state.moves} - never):
                _show_stage(shown, state, stage)
            waiting = {one.stage: one.stalled_s for one in reversed(found.stalls) if one.table == name}
            for stage in sorted({*asked, *waiting} - never):
                shown["harness_stage_stalled_seconds"].add_metric([name, stage], waiting.get(stage, 0.0))
            _show_pins(shown, name, [pin for pin in found.pins if pin.table == name])
            if (grows := found.growth.get(name)) is not None:
                _show_buffer(shown, grows)
        for lag in found.lags:
            labels = [lag.table, lag.subscriber]
            shown["harness_subscriber_lag_events"].add_metric(labels, lag.events)
            shown["harness_subscriber_age_seconds"].add_metric(labels, lag.since_s)
            shown["harness_subscriber_failing"].add_metric(labels, lag.error is not None)
        for mirror in found.mirrors:
            shown["harness_mirror_lag_seconds"].add_metric([mirror.table, mirror.catalog], mirror.lag_s)
        for sick in found.sick:
            shown["harness_table_unreadable"].add_metric([sick.name], 1)

    def _ask(self) -> ExportedState:
        now = time.monotonic()
        seen = [
            SeenEnds(table=one.name, ends=dict(one.ends), age_s=now - one.ends_at)
            for one in self._worker.progress
            if one.ends_at is not None
        ]
        stores = self._stores
        if time.monotonic() - self._known_at > TABLES_S:
            rows, self._sick = stores.tables.survey()
            self._others = {row.name: row.spec for row in rows if row.spec.mode == "external_worker"}
            self._known_at = time.monotonic()
        specs = {**self._others, **self._own}
        names, stalls = list(specs), stores.stalls
        return ExportedState(
            specs=specs,
            sick=self._sick,
            states=stores.watch.states(
                names, seen=seen, holder=self._worker.holder, limit=timedelta(seconds=LOOK_S_MAX)
            ),
            stalls=stalls.now(names),
            lags=stalls.lags(names),
            pins=stalls.pins(names),
            growth=stalls.growth(),
            mirrors=stores.mirrors.lags(names),
        )

    def _show_worker(self, shown: dict[str, Family]) -> None:
        worker, newest = self._worker, max(number for number, _, _ in migrations())
        ready = not worker.stop.is_set() and all(one.positions for one in worker.progress)
        shown["harness_worker_info"].add_metric([version("harness-pipelines"), f"{newest:04}", worker.holder], 1)
        shown["harness_worker_ready"].add_metric([], ready)

    def _show_progress(self, shown: dict[str, Family], one: TableProgress) -> None:
        moves, errors = shown["harness_moves_total"], dict(one.errors)
        for stage, outcome, count in (
            (Stage.INGEST, "committed", one.commits),
            (Stage.INGEST, "failed", errors.get(Stage.INGEST, 0)),
            *((stage, "committed", tally.committed) for stage, tally in one.tallies.items()),
            *((stage, "failed", tally.failed) for stage, tally in one.tallies.items()),
            *((stage, "given_up", tally.given_up) for stage, tally in one.tallies.items()),
        ):
            if stage in self._stages:
                moves.add_metric([one.name, stage, outcome], count)
        if Stage.INGEST in self._stages:
            shown["harness_moved_records_total"].add_metric([one.name, Stage.INGEST], one.rows)
            shown["harness_refused_records_total"].add_metric([one.name], one.refused)
            shown["harness_taken_bytes_total"].add_metric([one.name], one.ingest_bytes)
            _show_ages(shown, one)
        for stage, (_, cpu_s) in one.spent().items():
            if stage in self._stages:
                shown["harness_stage_cpu_seconds_total"].add_metric([one.name, stage], cpu_s)
        for stage, tally in one.tallies.items():
            if stage in self._stages:
                shown["harness_moved_records_total"].add_metric([one.name, stage], tally.records)
                shown["harness_moved_bytes_total"].add_metric([one.name, stage], tally.bytes)
        for name in (*self._stages, "watch"):
            shown["harness_stage_errors_total"].add_metric([one.name, name], errors.get(name, 0))
            shown["harness_stage_trouble"].add_metric([one.name, name], name in one.trouble)


def _show_state(shown: dict[str, Family], state: TableState) -> None:
    values = {
        "harness_tail_offsets": state.tail,
        "harness_log_seen_age_seconds": state.log_seen_s,
        "harness_held_offsets": state.held,
        "harness_open_transaction_age_seconds": state.held_s or 0.0,
        "harness_buffer_offsets": state.buffer,
        "harness_stream_offsets": state.stream,
        "harness_buffer_commit_age_seconds": state.buffer_commit_s,
        "harness_tier_age_seconds": state.tier_s,
        "harness_buffer_bytes": state.buffer_bytes,
        "harness_version": state.version,
        "harness_table_stopped": state.stopped,
        "harness_quarantined_records": state.quarantined,
        "harness_refused_share": state.refused_share,
        "harness_filtered_records_total": state.filtered,
        "harness_leases": state.readers,
        "harness_oldest_lease_age_seconds": state.oldest_lease_s or 0.0,
    }
    for name, value in values.items():
        if value is not None:
            shown[name].add_metric([state.name], value)
    for one in state.violations:
        labels = [state.name, one.check, one.severity]
        shown["harness_contract_violations_total"].add_metric(labels, one.records)


def _show_ages(shown: dict[str, Family], one: TableProgress) -> None:
    for to, ages in one.ages(time.time()).items():
        shown["harness_aged_records_total"].add_metric([one.name, to], ages.total)
        shown["harness_late_records_total"].add_metric([one.name, to], ages.late)
        for share, age_s in ages.quantiles.items():
            if age_s is not None:
                shown["harness_record_age_seconds"].add_metric([one.name, to, f"{share:g}"], age_s)


def _show_buffer(shown: dict[str, Family], grows: BufferGrowth) -> None:
    shown["harness_buffer_growth_bytes_per_second"].add_metric([grows.table], grows.per_s)
    shown["harness_buffer_full_seconds"].add_metric([grows.table], grows.full_s)
    shown["harness_buffer_retired_bytes"].add_metric([grows.table], grows.retired)
    if grows.bytes_max is not None:
        shown["harness_buffer_limit_bytes"].add_metric([grows.table], grows.bytes_max)
    for limit in ("table", "server"):
        is_paused = grows.pause is not None and grows.pause.fill.limit == limit
        shown["harness_ingest_paused"].add_metric([grows.table, limit], is_paused)


def _show_pins(shown: dict[str, Family], table: str, pins: Sequence[Pin]) -> None:
    shown["harness_pins"].add_metric([table], len(pins))
    shown["harness_oldest_pin_age_seconds"].add_metric([table], max((pin.age_s for pin in pins), default=0))
    shown["harness_oldest_pin_behind_versions"].add_metric([table], max((pin.behind for pin in pins), default=0))


def _show_stage(shown: dict[str, Family], state: TableState, stage: str) -> None:
    claim, move = state.claims.get(stage), state.moves.get(stage)
    values = {
        "harness_claim_lease_seconds": claim.lease_s if claim else 0.0,
        "harness_claim_own": claim.own if claim else False,
        "harness_open_move_attempts": move.attempt if move else 0,
        "harness_open_move_failures": move.failures if move else 0,
        "harness_open_move_age_seconds": move.age_s if move else 0.0,
        "harness_move_stuck": move.stuck if move else False,
    }
    for name, value in values.items():
        shown[name].add_metric([state.name, stage], value)


class Timely(Generic[T]):
    """Runs a call that may hang and waits a limited time. Concurrent callers wait for the same answer."""

    def __init__(self, ask: Callable[[], T], *, wait_s: float) -> None:
        self._ask, self._wait_s = ask, wait_s
        self._lock = threading.Lock()
        self._pending: Future[T] | None = None

    def __call__(self) -> T | None:
        """Return the answer; ``None`` if it is late or an error."""
        with self._lock:
            pending = self._pending
            if pending is None or pending.done():
                pending = self._pending = Future()
                # Not of a pool: Python waits for the threads of pools before it ends.
                threading.Thread(target=self._answer, args=(pending,), name="metrics-look", daemon=True).start()
        try:
            return pending.result(self._wait_s)
        except (TimeoutError, HarnessError):  # the stages say what is wrong with Postgres
            return None
        except Exception:
            log.exception("metrics.broken")
            return None

    def _answer(self, pending: Future[T]) -> None:
        try:
            pending.set_result(self._ask())
        except BaseException as error:
            pending.set_exception(error)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_port = False  # a port that another worker serves is taken, also where Python would share it

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not log clients that hang up or are too slow: each would leave forty lines in the worker's log."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_S_MAX

    def log_message(self, *_: Any) -> None:
        """Do not log scrapes."""


class MetricsRegistry(CollectorRegistry):
    """The HTTP application: ``/metrics`` and ``/health``."""

    def watch(self, collector: WorkerCollector) -> None:
        """Serve the metrics of one worker."""
        self.register(collector)
        self.health = collector.health

    health: Health | None = None

    def application(self) -> Callable[..., Iterable[bytes]]:
        """Implement WSGI."""
        metrics = make_wsgi_app(self)

        def serve(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
            if environ.get("PATH_INFO") != "/health" or self.health is None:
                return metrics(environ, start)  # type: ignore[no-any-return]  # untyped
            found = self.health.to_json()
            start("200 OK" if found["ok"] else "503 Service Unavailable", [("Content-Type", "application/json")])
            return [json.dumps(found).encode()]

        return serve


@contextmanager
def endpoint(host: str, port: int) -> Iterator[tuple[MetricsRegistry, str]]:
    """Serve a registry over HTTP during the block; yield the URL. *port* 0 takes a free one. Raises: UsageError."""
    registry = MetricsRegistry()

    class Server(_Server):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    try:
        server = make_server(host, port, registry.application(), Server, _Handler)
    except OSError as error:
        raise UsageError(
            f"metrics cannot be served at {host}:{port}: {error.strerror or error}; nothing was done. Give "
            "--metrics-port a free port (0: any), and --metrics-host an address of this machine"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield registry, f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
