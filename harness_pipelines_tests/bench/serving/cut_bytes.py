"""What cuts write while records come: ten loads a second, and none."""

from __future__ import annotations

from collections.abc import Sequence

from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.serving.client import Client, repeated, server
from harness_pipelines_tests.bench.serving.loads import COMMITS, RATE
from harness_pipelines_tests.bench.serving.table import Filled
from harness_pipelines_tests.producer import wait_until

LOADS = 10  #: a second
SETTLE_S = 120.0


def measure(run: Run) -> Sequence[Figure]:
    """Bytes of all files of cuts to bytes of the buffered rows in Postgres, from an empty table on."""
    seconds = run.size(30, 6)
    table = Filled(run)
    table.ingest(RATE)
    table.index()
    with server(run) as served, Client(served) as client:
        client.load_anew_s(table.name)
        run.say(f"bytes: {RATE:,} records/s for {seconds} s, {LOADS} loads a second")
        rows, cut, buffered = table.rows, table.cut_bytes(), table.buffered_bytes()
        with repeated(lambda: client.load(table.name), every_s=1 / LOADS) as loads:
            _ingest(table, seconds)
        rows, cut, buffered = table.rows - rows, table.cut_bytes() - cut, table.buffered_bytes() - buffered
        run.say(f"bytes: the same without a load for {seconds // 3} s")
        before = table.cut_bytes()
        _ingest(table, seconds // 3)
        idle = table.cut_bytes() - before
    run.note("bytes.loads_per_s", len(loads) / seconds, "loads/s")
    run.note("bytes.buffered", buffered / rows, "bytes/row")
    run.note("bytes.cuts", cut / rows, "bytes/row")
    return [
        Figure(figure="bytes.cuts_to_buffered", value=cut / buffered, unit="x", goal=5, sense="<="),
        Figure(figure="bytes.without_loads", value=idle, unit="bytes", goal=0, sense="<="),
    ]


def _ingest(table: Filled, seconds: float) -> None:
    """Records at the rate, as far as the machine keeps up."""
    with repeated(lambda: table.ingest(RATE // COMMITS), every_s=1 / COMMITS) as commits:
        wanted = round(seconds * COMMITS)
        wait_until(lambda: len(commits) >= wanted, "all is ingested", deadline_s=seconds + SETTLE_S)
