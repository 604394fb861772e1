"""What a tier move costs by either engine: CPU of all processes but Kafka's. `engine: auto` goes by such figures."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import harness_pipelines as hp
from harness_pipelines.engines.chosen import cheaper
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages.tier.tier import tier_once
from harness_pipelines_tests.bench.base import Figure, Group, Run, cpu_seconds
from harness_pipelines_tests.bench.layout_publish import claimed
from harness_pipelines_tests.bench.records import produce_backlog, value
from harness_pipelines_tests.rig import INGEST

SMALL, ROUNDS = 1_000, 5
WIDE, QUICK_WIDE, NOTE_CHARS = 40_000, 8_000, 5_000
SMALL_CPU_S = 0.1


def measure(run: Run) -> Sequence[Figure]:
    """Move the same records by both engines: 1,000 rows some times, of which the least counts, then bulk, then wide."""
    figures: list[Figure] = []
    for rows in (SMALL, 100_000, run.size(1_000_000, 200_000)):
        cost = _costs(run, str(rows), rows=rows, rounds=ROUNDS if rows == SMALL else 1)
        figures.append(_choice(str(rows), cost, rows=rows))
        if rows == SMALL:
            small = Figure(figure="moves.small", value=cost["arrow"].cpu_s, unit="CPU s", goal=SMALL_CPU_S, sense="<=")
            figures.append(small)
    rows = run.size(WIDE, QUICK_WIDE)
    return [*figures, _choice("wide", _costs(run, "wide", rows=rows, rounds=1, make=wide), rows=rows)]


def wide(number: int) -> bytes:
    """The record with id *number* and 5,000 characters more, which take half as many bytes in a file."""
    return value(number).replace(b"order ", random.Random(number).randbytes(NOTE_CHARS // 2).hex().encode() + b" ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One move."""

    cpu_s: float  #: of all processes but Kafka
    wall_s: float
    bytes: int  #: that it wrote


def _choice(name: str, cost: Mapping[str, Moved], *, rows: int) -> Figure:
    """What `engine: auto` chooses, to the cheaper one."""
    chosen = cost[cheaper(rows, cost["arrow"].bytes)].cpu_s
    over = chosen / min(one.cpu_s for one in cost.values())
    return Figure(figure=f"moves.{name}.auto_to_cheaper", value=over, unit="x", goal=1.1, sense="<=")


def _costs(run: Run, name: str, *, rows: int, rounds: int, make: Callable[[int], bytes] = value) -> Mapping[str, Moved]:
    """The cheapest move of *rows*, by engine."""
    run.say(f"moves: {name}: {rows:,} rows by Spark and by Arrow")
    topic = run.topic()
    tables = {engine: run.table(topic, engine=engine, views="stream") for engine in ("spark", "arrow")}
    found: dict[str, list[Moved]] = {engine: [] for engine in tables}
    for number in range(rounds):
        produce_backlog(run.harness.settings, topic, count=rows, first=number * rows, make=make)
        for engine, table in tables.items():
            run.work(table, INGEST)
            found[engine].append(_moved(run, table))
    least = {engine: min(moves, key=lambda one: one.cpu_s) for engine, moves in found.items()}
    for engine, one in least.items():
        run.note(f"moves.{name}.{engine}", one.cpu_s, "CPU s")
        run.note(f"moves.{name}.{engine}.wall", one.wall_s, "s")
        run.note(f"moves.{name}.{engine}.bytes", one.bytes / 2**20, "MiB")
    return least


def _moved(run: Run, table: hp.Table) -> Moved:
    stores = run.harness.stores
    with claimed(table, Stage.TIER) as claim:
        before, began = cpu_seconds(run.harness), time.monotonic()
        tier_once(stores, table.row, claim, trigger="bench")
        wall_s = time.monotonic() - began
    spent = {name: seconds - before.get(name, 0.0) for name, seconds in cpu_seconds(run.harness).items()}
    [move] = stores.ledger.moves(table.row, stage=Stage.TIER, limit=1)
    cpu_s = sum(seconds for name, seconds in spent.items() if name != "kafka")
    return Moved(cpu_s=cpu_s, wall_s=wall_s, bytes=move["bytes"])


FIGURES: Mapping[str, Group] = {"moves": measure}
