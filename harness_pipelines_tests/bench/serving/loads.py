"""Seconds of a load of a table over HTTP: unchanged, with new rows, cold, and of keyed tables; and loads a second."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.serving.client import Client, repeated, server
from harness_pipelines_tests.bench.serving.table import Filled, Ids
from harness_pipelines_tests.integration.serve.server import Served

BUFFERED, QUICK_BUFFERED = 100_000, 5_000
MORE = 1_000  #: rows that are new in a load
COLD = 5  #: tables whose first cut is measured
CLIENTS = 8
RATE, COMMITS = 2_000, 20  #: records, and commits of them, a second
KEYS, QUICK_KEYS, FILES = 2_000_000, 40_000, 16  #: of a keyed table, and files of its batch view
HOT, QUICK_HOT = 1_000_000, 20_000


def measure(run: Run) -> Sequence[Figure]:
    """An append table with 100,000 buffered rows, and as many in the lake."""
    buffered = run.size(BUFFERED, QUICK_BUFFERED)
    run.say(f"loads: {COLD} tables with {buffered:,} buffered rows each")
    tables = [_append_table(run, buffered) for _ in range(COLD + 1)]
    with server(run) as served, Client(served) as client:
        client.load(tables[-1].name)  # imports, connections
        cold = [client.load_anew_s(one.name) for one in tables[:COLD]]
        table = tables[0]
        run.say("loads: nothing new, then 1,000 rows more each time")
        same = [client.load_anew_s(table.name) for _ in range(run.size(100, 20))]
        new = [_load_more(client, table) for _ in range(run.size(40, 10))]
        figures = _rates(run, served, table)
    return [
        _p50(run, "loads.unchanged", same, goal_ms=3),
        _p50(run, "loads.1000_new", new, goal_ms=15),
        _p50(run, "loads.100000_cold", cold, goal_ms=250),
        *figures,
    ]


def _append_table(run: Run, buffered: int) -> Filled:
    made = Filled(run)
    made.load(np.arange(buffered), files=2)
    made.tier(buffered // 10)
    made.ingest(buffered)
    made.index()
    return made


def _load_more(client: Client, table: Filled) -> float:
    table.ingest(MORE)
    return client.load_anew_s(table.name)


def _rates(run: Run, served: Served, table: Filled) -> list[Figure]:
    """Loads a second of eight clients, of a table that rests and of one that gets records."""
    seconds = run.size(8, 3)
    run.say(f"loads: {CLIENTS} clients for {seconds} s, twice")
    at_rest = _per_s(served, table, seconds)
    with repeated(lambda: table.ingest(RATE // COMMITS), every_s=1 / COMMITS) as commits:
        moving = _per_s(served, table, seconds)
    run.note("loads.commits_meanwhile", len(commits), "commits")
    return [
        Figure(figure="loads.per_s", value=at_rest, unit="loads/s", goal=300, sense=">="),
        Figure(figure="loads.per_s_moving", value=moving, unit="loads/s", goal=300, sense=">="),
    ]


def _per_s(served: Served, table: Filled, seconds: float) -> float:
    def loads(until: float) -> int:
        count = 0
        with Client(served) as client:
            while time.monotonic() < until:
                client.load(table.name)
                count += 1
        return count

    with ThreadPoolExecutor(CLIENTS) as threads:
        began = time.monotonic()
        running = [threads.submit(loads, began + seconds) for _ in range(CLIENTS)]
        counts = [one.result() for one in running]
    return sum(counts) / (time.monotonic() - began)


# -- keyed tables -----------------------------------------------------------------------------------------------


def measure_keyed(run: Run) -> Sequence[Figure]:
    """1,000 new versions in each load, of 10,000 keys that have one above the batch view already."""
    return [_keyed(run, "loads.keyed_10000_hot", hot=run.size(10_000, 2_000), loads=run.size(30, 8), goal_ms=30)]


def measure_hot(run: Run) -> Sequence[Figure]:
    """The same with a million hot keys."""
    return [_keyed(run, "loads.keyed_1000000_hot", hot=run.size(HOT, QUICK_HOT), loads=run.size(20, 5), goal_ms=500)]


def _keyed(run: Run, name: str, *, hot: int, loads: int, goal_ms: float) -> Figure:
    keys = run.size(KEYS, QUICK_KEYS)
    run.say(f"{name}: {keys:,} keys in {FILES} files, {hot:,} of them hot")
    table, rng = _keyed_table(run, keys, hot_max=2 * hot), random.Random(7)
    chosen = np.array(sorted(rng.sample(range(keys), hot)))
    table.put(chosen)
    table.index()
    with server(run) as served, Client(served) as client:
        run.note(f"{name}_cold", 1000 * client.load_anew_s(table.name), "ms")
        client.load_anew_s(table.name)
        took = [_load_newer(client, table, chosen, rng) for _ in range(loads)]
    return _p50(run, name, took, goal_ms=goal_ms)


def _keyed_table(run: Run, keys: int, *, hot_max: int) -> Filled:
    made = Filled(run, key=["id"], serve={"hot_rows": hot_max, "over": "refuse"})
    made.load(np.arange(keys), files=FILES)
    return made


def _load_newer(client: Client, table: Filled, hot: Ids, rng: random.Random) -> float:
    table.put(hot[np.array(rng.sample(range(len(hot)), min(MORE, len(hot))))])
    return client.load_anew_s(table.name)


def _p50(run: Run, name: str, took_s: Sequence[float], *, goal_ms: float) -> Figure:
    p50, p95 = np.percentile(np.array(took_s) * 1000, [50, 95])
    run.note(f"{name}.p95", float(p95), "ms")
    return Figure(figure=f"{name}.p50", value=float(p50), unit="ms", goal=goal_ms, sense="<=")
