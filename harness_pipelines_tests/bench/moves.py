"""What a tier move costs by either engine: CPU of all processes but Kafka's. `engine: auto` goes by such figures."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import uuid4

import harness_pipelines as hp
from harness_pipelines.engines.chosen import cheaper
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages.tier.tier import tier_once
from harness_pipelines_tests.bench.base import Figure, Group, Run, cpu_seconds
from harness_pipelines_tests.bench.records import produce_backlog
from harness_pipelines_tests.rig import INGEST

SMALL, ROUNDS = 1_000, 5
SMALL_CPU_S = 0.1


def measure(run: Run) -> Sequence[Figure]:
    """Move the same records by both engines: 1,000 rows some times, of which the least counts, then bulk."""
    figures: list[Figure] = []
    for rows in (SMALL, 100_000, run.size(1_000_000, 200_000)):
        run.say(f"moves: {rows:,} rows by Spark and by Arrow")
        cost = _costs(run, rows, rounds=ROUNDS if rows == SMALL else 1)
        for engine, seconds in cost.items():
            run.note(f"moves.{rows}.{engine}", seconds, "CPU s")
        over = cost[cheaper(rows)] / min(cost.values())
        figures.append(Figure(figure=f"moves.{rows}.auto_to_cheaper", value=over, unit="x", goal=1.1, sense="<="))
        if rows == SMALL:
            small = Figure(figure="moves.small", value=cost["arrow"], unit="CPU s", goal=SMALL_CPU_S, sense="<=")
            figures.append(small)
    return figures


def _costs(run: Run, rows: int, *, rounds: int) -> Mapping[str, float]:
    """CPU seconds of one move of *rows*, by engine."""
    topic = run.topic()
    tables = {engine: run.table(topic, engine=engine, views="stream") for engine in ("spark", "arrow")}
    least = dict.fromkeys(tables, float("inf"))
    for number in range(rounds):
        produce_backlog(run.harness.settings, topic, count=rows, first=number * rows)
        for engine, table in tables.items():
            run.work(table, INGEST)
            least[engine] = min(least[engine], _moved(run, table))
    return least


def _moved(run: Run, table: hp.Table) -> float:
    stores = run.harness.stores
    claim = stores.ledger.claim(table.row, Stage.TIER, shard=0, holder=str(uuid4()), lease=timedelta(minutes=15))
    assert claim is not None
    before, began = cpu_seconds(run.harness), time.monotonic()
    try:
        tier_once(stores, table.row, claim, trigger="bench")
    finally:
        stores.ledger.release(claim)
    spent = {name: seconds - before.get(name, 0.0) for name, seconds in cpu_seconds(run.harness).items()}
    run.note(f"moves.{table.row.spec.engine}.wall", time.monotonic() - began, "s")
    return sum(seconds for name, seconds in spent.items() if name != "kafka")


FIGURES: Mapping[str, Group] = {"moves": measure}
