"""Metrics of the server, for Prometheus. They name no table: `/metrics` has no login."""

from __future__ import annotations

from typing import Literal

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.responses import Response

from harness_pipelines.serve.values import CutAnswer

LOAD_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ServeMetrics:
    """Counts the requests of one server; other metrics of the process may be registered beside."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "harness_serve_requests_total",
            "Requests by route and HTTP status; route `page` is the status page, `other` a path that does not exist, "
            "or a refused request.",
            ("route", "status"),
            registry=self.registry,
        )
        self._loads = Histogram(
            "harness_serve_load_seconds",
            "Seconds from the request to the answer of loads of tables that were answered with a cut (200 or 304).",
            buckets=LOAD_S,
            registry=self.registry,
        )

        self._cuts = Counter(
            "harness_serve_cuts_total",
            "Loads of tables that were answered with a cut, by outcome: made by this load, or again, which was there.",
            ("outcome",),
            registry=self.registry,
        )
        self._making = Histogram(
            "harness_serve_making_seconds",
            "Seconds that loads took which made a cut.",
            buckets=LOAD_S,
            registry=self.registry,
        )
        self._bytes = Counter(
            "harness_serve_made_bytes_total",
            "Bytes of the files of rows that this server wrote for cuts; their metadata is not counted.",
            registry=self.registry,
        )
        self._refusals = Counter(
            "harness_serve_refusals_total",
            "Loads of tables that were not answered with a cut, by reason: a name of the page on errors, or `hidden` "
            "for a table that the token may not see.",
            ("reason",),
            registry=self.registry,
        )
        self._reports = Counter(
            "harness_serve_reports_total",
            "Reports of engines on what they read, by outcome: kept, the cut stays for `--keep` from then on; over, "
            "there is no such cut any more; other, it names none.",
            ("outcome",),
            registry=self.registry,
        )
        self._behind = Counter(
            "harness_serve_behind_total",
            "Loads of keyed tables that were answered with a cut which leaves out the newest versions, as they are "
            "over the limits (`serve.hot_rows`).",
            registry=self.registry,
        )
        self._named = Counter(
            "harness_serve_named_loads_total",
            "Loads of tables as a named snapshot has them (`at:NAME`), by result: made by this load, or again, which "
            "was there; else a name of the page on errors. They count above, too.",
            ("result",),
            registry=self.registry,
        )
        self._named_s = Histogram(
            "harness_serve_named_load_seconds",
            "Seconds that loads of tables as a named snapshot has them took.",
            buckets=LOAD_S,
            registry=self.registry,
        )
        self._plans = Counter(
            "harness_serve_plans_total",
            "Scans that the server was asked to plan (`--plan`), by result: planned, or a name of the page on errors.",
            ("result",),
            registry=self.registry,
        )
        self._plan_s = Histogram(
            "harness_serve_plan_seconds",
            "Seconds that planning a scan took.",
            buckets=LOAD_S,
            registry=self.registry,
        )
        for counter, values in (
            (self._named, ("made", "again")),
            (self._plans, ("planned",)),
            (self._cuts, ("made", "again")),
            (self._refusals, ("hidden", "TableUnknown")),
            (self._reports, ("kept", "over", "other")),
        ):
            for value in values:  # they are shown from the start
                counter.labels(value)
        self.running = Gauge(
            "harness_serve_requests_running",
            "Requests that are being answered.",
            registry=self.registry,
        )

    def answered(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        if route == "table" and status in (200, 304):
            self._loads.observe(seconds)

    def loaded(self, cut: CutAnswer, *, is_named: bool, seconds: float) -> None:
        outcome = "again" if cut.made_s is None else "made"
        self._cuts.labels(outcome).inc()
        if is_named:
            self._named.labels(outcome).inc()
            self._named_s.observe(seconds)
        self._bytes.inc(cut.made_bytes)
        self._behind.inc(cut.behind > 0)
        if cut.made_s is not None:
            self._making.observe(cut.made_s)

    def refused(self, reason: str, *, is_named: bool = False) -> None:
        """*reason* is one of few."""
        self._refusals.labels(reason).inc()
        if is_named:
            self._named.labels(reason).inc()

    def planned(self, seconds: float) -> None:
        self._plans.labels("planned").inc()
        self._plan_s.observe(seconds)

    def unplanned(self, reason: str) -> None:
        """*reason* is one of few."""
        self._plans.labels(reason).inc()

    def reported(self, outcome: Literal["kept", "over", "other"]) -> None:
        self._reports.labels(outcome).inc()

    def answer(self) -> Response:
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)
