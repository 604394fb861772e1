"""Ingest by Spark tasks on a local cluster with two executor processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import harness_pipelines as hp
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages.ingest.on_engine import ingest_on_spark
from harness_pipelines.stages.run.claims import ClaimKeeper
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.records import PARTITIONS, produce_backlog
from harness_pipelines_tests.rig import environment

MASTER = "local-cluster[2,1,1024]"
EXECUTOR = b"CoarseGrainedExecutorBackend"
ROWS, QUICK_ROWS = 1_000_000, 100_000
WARM_ROWS = 4_000
TIMEOUT_S = 240


def measure(run: Run) -> Sequence[Figure]:
    """Rows per second of warm executors; the issue sets no goal, ours says that it must not be a toy."""
    rows = run.size(ROWS, QUICK_ROWS)
    topic = run.topic()
    produce_backlog(run.harness.settings, topic, count=WARM_ROWS)
    table = run.table(topic)
    run.say(f"executors: ingest of {rows:,} records on {MASTER}")
    settings = run.harness.settings
    more = {"HARNESS_SPARK": MASTER, "PYTHONPATH": str(Path(__file__).parents[2])}
    more |= {"HARNESS_JARS": str(settings.jars)} if settings.jars else {}
    done = subprocess.run(
        [sys.executable, "-m", "harness_pipelines_tests.bench.executors", table.name, str(rows)],
        env=environment(settings, **more),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"ingest on {MASTER} failed:\n{done.stderr.decode(errors='replace')[-2000:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert sum(p.bounds.buffer_hi for p in table.positions()) == rows + WARM_ROWS
    run.note("executors.first_job", found["first_job_s"], "s")
    return [
        Figure(figure="executors.processes", value=found["executors"], unit="processes", goal=2, sense=">="),
        Figure(figure="executors.ingest", value=rows / found["seconds"], unit="rows/s", goal=40_000, sense=">="),
    ]


def _main(name: str, rows: int) -> None:
    with hp.connect() as harness:
        stores, table = harness.stores, harness.table(name)
        keeper = ClaimKeeper(stores.ledger, table.row, Stage.INGEST, holder=str(uuid4()), lease=timedelta(seconds=30))
        assert keeper.acquire()
        began = time.monotonic()
        first = ingest_on_spark(stores, table.row, keeper.current())
        first_job_s = time.monotonic() - began
        assert first.rows == WARM_ROWS
        produce_backlog(harness.settings, table.spec.topic, count=rows, first=WARM_ROWS)
        began, taken = time.monotonic(), 0
        while taken < rows:
            taken += ingest_on_spark(stores, table.row, keeper.current()).rows
        seconds = time.monotonic() - began
        executors = _executors()
        keeper.release()
        print(json.dumps({"seconds": seconds, "executors": executors, "first_job_s": first_job_s}))
        stores.spark().stop()


def _executors() -> int:
    """Executor JVMs among the descendants of this process."""
    found = 0
    for folder in Path("/proc").iterdir():
        try:
            is_executor = folder.name.isdigit() and EXECUTOR in (folder / "cmdline").read_bytes()
        except OSError:
            continue
        found += is_executor and os.getpid() in _ancestors(int(folder.name))
    return found


def _ancestors(pid: int) -> list[int]:
    line = []
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
        line.append(pid)
    return line


if __name__ == "__main__":
    assert PARTITIONS >= 2
    _main(sys.argv[1], int(sys.argv[2]))
