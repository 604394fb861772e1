"""What Prometheus would see: one scrape, parsed by its own parser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from harness_pipelines.app.metrics import LOOPBACK, WorkerCollector, endpoint
from harness_pipelines.app.table import Table
from harness_pipelines.stages.run.worker import Worker
from harness_pipelines_tests.producer import wait_until

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Scrape:
    """Samples by name and labels."""

    families: tuple[Metric, ...]

    def value(self, name: str, **labels: str) -> float | None:
        """Of the one sample that has just these labels; ``None`` without one."""
        return self.samples(name).get(frozenset(labels.items()))

    def samples(self, name: str) -> dict[Labels, float]:
        """All samples called *name*, by their labels; no two have the same."""
        found = [s for family in self.families for s in family.samples if s.name == name]
        by_labels = {frozenset(s.labels.items()): s.value for s in found}
        assert len(by_labels) == len(found), f"{name} has the same sample twice"
        return by_labels


def scrape(url: str) -> Scrape:
    """Ask once; a scrape that fails, or that Prometheus would give up, fails the test."""
    answer = httpx.get(url, timeout=60.0, trust_env=False)  # a busy machine takes its time
    assert answer.status_code == 200, answer.text
    return Scrape(tuple(text_string_to_metric_families(answer.text)))


def scrape_ledger(url: str) -> Scrape:
    """Ask until the ledger answers a scrape in its time, as it does at once on a machine that has time for it."""
    found = scrape(url)

    def answered() -> bool:
        nonlocal found
        found = found if found.value("harness_scrape_ok") else scrape(url)
        return found.value("harness_scrape_ok") == 1

    wait_until(answered, "the ledger answers a scrape")
    return found


@contextmanager
def served(worker: Worker, table: Table) -> Iterator[str]:
    """The URL of the metrics of *worker*, which runs in this process."""
    with endpoint(LOOPBACK, 0) as (registry, url):
        registry.watch(WorkerCollector(worker, table.harness.stores))
        yield url
