"""Metrics of the server, for Prometheus. They name no table: `/metrics` has no login."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.responses import Response

LOAD_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ServeMetrics:
    """Counts the requests of one server; other metrics of the process may be registered beside."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "harness_serve_requests_total",
            "Requests to the catalog by route and HTTP status; route `other` is a path that does not exist, or "
            "a refused request.",
            ("route", "status"),
            registry=self.registry,
        )
        self._loads = Histogram(
            "harness_serve_load_seconds",
            "Seconds from the request to the answer of loads of tables that were answered with a cut (200 or 304).",
            buckets=LOAD_S,
            registry=self.registry,
        )

        self.running = Gauge(
            "harness_serve_requests_running",
            "Requests that are being answered.",
            registry=self.registry,
        )

    def answered(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        if route == "table" and status in (200, 304):
            self._loads.observe(seconds)

    def answer(self) -> Response:
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)
