"""How long after a version is published a foreign catalog shows it, while records come and all stages run."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from pyiceberg.exceptions import NoSuchTableError

import harness_pipelines as hp
from harness_pipelines.protocol.lake.mirrors import VERSION
from harness_pipelines.stages.mirror import drop_mirror
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.freshness import RATE
from harness_pipelines_tests.bench.steady import SteadyProducer
from harness_pipelines_tests.bench.throughput import warm_up
from harness_pipelines_tests.bench.workers import WorkerProcess
from harness_pipelines_tests.catalog_server import CatalogServer
from harness_pipelines_tests.producer import wait_until

REST_S = 0.01  #: between two looks at the catalog
SKIPPED = 2  #: first versions, in which the worker and its Spark begin
SETTLE_S = 60.0


def measure(run: Run) -> Sequence[Figure]:
    """p50 of the lag of all versions; one that was overtaken is shown when a newer one is."""
    warm_up(run)
    seconds = run.size(60, 20)
    with tempfile.TemporaryDirectory() as folder, CatalogServer(Path(folder)).running() as server:
        catalog = {"name": "lakehouse", "type": "rest", "uri": server.uri, "namespace": "scratch"}
        table = run.table(run.topic(), tier={"max_age": "2s"}, catalogs=[catalog])
        run.say(f"mirror: {RATE:,} records/s for {seconds} s, worker with all stages")
        try:
            with (
                _watched(server, table) as shown,
                WorkerProcess(table, at_most_s=seconds + 120) as worker,
                SteadyProducer(run.harness.settings, table.spec.topic, rate=RATE, seconds=seconds) as producer,
            ):
                wait_until(lambda: not producer.running, "the producer is done", deadline_s=seconds + SETTLE_S)
                worker.check()
                producer.stop()
                head = run.harness.stores.tables.head(table.row).version
                wait_until(lambda: max(shown, default=0) >= head, f"version {head} is shown", deadline_s=SETTLE_S)
        finally:
            drop_mirror(run.harness.stores, table.row, table.spec.catalogs[0], really=True)
        lags = _lags(table, shown)
    run.note("mirror.versions", len(lags), "versions")
    run.note("mirror.lag_p99", float(np.percentile(lags, 99)), "s")
    return [
        Figure(figure="stores.mirror_lag_p50", value=float(np.percentile(lags, 50)), unit="s", goal=1.0, sense="<=")
    ]


@contextmanager
def _watched(server: CatalogServer, table: hp.Table) -> Iterator[dict[int, datetime]]:
    """When each version was first seen in the catalog, as another client of it sees it."""
    shown: dict[int, datetime] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(REST_S):
            try:
                found = server.table(f"scratch.{table.row.views['stream']}").metadata.properties.get(VERSION)
            except NoSuchTableError:
                continue
            if found is not None:
                shown.setdefault(int(found), datetime.now(UTC))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield shown
    finally:
        done.set()
        watcher.join()


def _lags(table: hp.Table, shown: dict[int, datetime]) -> list[float]:
    """Seconds of each published version, without the first ones."""
    lags = []
    for version in table.harness.stores.tables.versions(table.row)[SKIPPED:]:
        seen = [at for number, at in shown.items() if number >= version.version]
        if seen:
            lags.append((min(seen) - version.committed_at).total_seconds())
    return lags
