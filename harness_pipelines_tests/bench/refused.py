"""What a look at the quarantine costs where many large records were refused: the command, as a person calls it."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import orjson

from harness_pipelines.chaos.processes import environment
from harness_pipelines.ledgers.postgres.views.status import Overview
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.records import produce_backlog
from harness_pipelines_tests.rig import INGEST

RECORDS, QUICK_RECORDS = 10_000, 500
RECORD_BYTES = 100_000
CALLS = 5
GOAL_S = 2.0


def unfit(number: int) -> bytes:
    """No JSON, and as long as a record may be without being cut off."""
    return b'{"id":%d,' % number + b"x" * RECORD_BYTES


def measure(run: Run) -> Sequence[Figure]:
    """Seconds of `harness quarantine list` from its start to its end, the median of some calls."""
    records = run.size(RECORDS, QUICK_RECORDS)
    run.say(f"refused: producing {records:,} records of {RECORD_BYTES // 1000} kB that do not fit")
    topic = run.topic()
    produce_backlog(run.harness.settings, topic, count=records, make=unfit)
    table = run.table(topic, stop_above={"refused": "100%"})
    run.work(table, INGEST)
    assert Overview(run.harness.stores.readers).counts(table.row).quarantined == records
    command = [sys.executable, "-m", "harness_pipelines.cli.main", "quarantine", "list", table.name]
    took: list[float] = []
    cpu: list[float] = []
    for _ in range(CALLS):
        began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [*command, "--json"], env=environment(run.harness.settings), check=True, capture_output=True
        )
        took.append(time.monotonic() - began)
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime)
        assert orjson.loads(done.stdout)["records"], done.stdout[:200]
    run.note("refused.list.cpu", statistics.median(cpu), "s")
    return [Figure(figure="refused.list", value=statistics.median(took), unit="s", goal=GOAL_S, sense="<=")]
