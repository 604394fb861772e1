"""Hundreds of tables in one worker: busy, beside one that is much busier, and idle."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import harness_pipelines as hp
from harness_pipelines_tests.bench.base import Figure, Run, cpu_seconds, timed
from harness_pipelines_tests.bench.scaling.costs import Cost, Spent
from harness_pipelines_tests.bench.scaling.producer import ManyProducer
from harness_pipelines_tests.bench.scaling.watching import Positions, Taken, taken, transactions
from harness_pipelines_tests.bench.steady import Produced
from harness_pipelines_tests.bench.workers import WorkerProcess
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import environment

RATE, HOT_RATE = 10, 50_000
WARM_S, SETTLE_S, LAKE_S = 15.0, 120.0, 300.0
MAKERS = 4  #: threads that make tables
AUDITED = 20  #: of the tables
SPEC: Mapping[str, object] = {
    "engine": "auto",
    "views": "both",
    "layout": {"columns": ["customer"], "regions": 4},
}


def measure_busy(run: Run) -> Sequence[Figure]:
    """All stages of many tables that get some records each second."""
    return _measured(run, "busy", hot=0)


def many(run: Run) -> tuple[int, float]:
    """How many tables are busy, and for how many seconds records are produced."""
    return run.size(200, 10), WARM_S + run.size(90, 20)


def busy_cost(run: Run) -> Cost:
    """What the busy tables cost until their records are in the lake; measured once per run."""
    if "busy" not in run.shared:
        measure_busy(run)
    found: Cost = run.shared["busy"]
    return found


def measure_hot(run: Run) -> Sequence[Figure]:
    """The same, while one of them gets a hundred times as many as all others together."""
    return _measured(run, "hot", hot=run.size(HOT_RATE, 2_000))


def measure_idle(run: Run) -> Sequence[Figure]:
    """Many tables that get nothing, and a lone record of one of them."""
    tables = _tables(run, "idle", run.size(1_000, 20))
    seconds = run.size(60, 10)
    dsn = _dsn(run)
    with WorkerProcess(*tables, at_most_s=seconds + 600) as worker:
        first = tables[0]
        with (
            Positions(dsn, {first.row.table_id: first.spec.topic}) as seen,
            ManyProducer(run.harness.settings, {first.spec.topic: 2.0}, seconds=WARM_S) as producer,
        ):
            log = producer.log()
            wait_until(lambda: seen.reached(_ends(log)), "lone records can be read", deadline_s=SETTLE_S)
        lone = seen.ages(log, skip_s=WARM_S / 3)
        before, counted = taken(worker.pid), transactions(dsn)
        wait_until(lambda: taken(worker.pid).at >= before.at + seconds, "time is over", deadline_s=2 * seconds)
        after, count = taken(worker.pid), transactions(dsn) - counted
        worker.check()
    status_s = timed(lambda: _status(run))
    run.note("idle.threads", after.threads, "threads")
    run.note("idle.rss", after.rss_bytes / 2**20, "MiB")
    return [
        Figure(figure="idle.cpu", value=_cores(before, after), unit="cores", goal=0.05, sense="<="),
        Figure(figure="idle.transactions", value=count / _between(before, after), unit="1/s", goal=10, sense="<="),
        Figure(figure="idle.lone_record_p50", value=float(np.median(lone)), unit="s", goal=0.1, sense="<="),
        Figure(figure="idle.status", value=status_s, unit="s", goal=1.0, sense="<="),
    ]


def _measured(run: Run, name: str, *, hot: int) -> Sequence[Figure]:
    count, seconds = many(run)
    tables = _tables(run, name, count)
    rates = dict.fromkeys((table.spec.topic for table in tables), float(RATE))
    if hot:
        rates[tables[0].spec.topic] = float(hot)
    dsn = _dsn(run)
    with (
        WorkerProcess(*tables, at_most_s=seconds + 900) as worker,
        Positions(dsn, {table.row.table_id: table.spec.topic for table in tables}) as seen,
        ManyProducer(run.harness.settings, rates, seconds=seconds) as producer,
    ):
        start, spent = taken(worker.pid), Spent(run, worker.pid)
        wait_until(lambda: taken(worker.pid).at >= start.at + WARM_S, "it is warm", deadline_s=2 * WARM_S)
        before, counted, watched = taken(worker.pid), transactions(dsn), seen.transactions
        services = cpu_seconds(run.harness)
        log = producer.log()
        after, count = taken(worker.pid), transactions(dsn) - counted - (seen.transactions - watched)
        _note_services(run, name, services, seconds=_between(before, after))
        worker.check()
        wait_until(lambda: seen.reached(_ends(log)), "all records can be read", deadline_s=SETTLE_S)
        if not hot:
            ends = sum(_ends(log).values())
            wait_until(lambda: seen.in_lake() >= ends, "all are in the lake", deadline_s=LAKE_S, every_s=0.5)
            run.shared[name] = spent.until_now(ends)
    ages = seen.ages(log, skip_s=WARM_S)
    run.note(f"{name}.freshness_p50", float(np.median(ages)), "s")
    broken = sum(not table.audit().ok for table in tables[:: max(1, len(tables) // AUDITED)])
    cores = len(os.sched_getaffinity(0))
    return [
        Figure(figure=f"{name}.threads", value=after.threads, unit="threads", goal=40 + 2 * cores, sense="<="),
        Figure(figure=f"{name}.rss", value=after.rss_bytes / 2**20, unit="MiB", goal=700, sense="<="),
        Figure(figure=f"{name}.cpu", value=_cores(before, after), unit="cores", goal=0.5, sense="<="),
        Figure(figure=f"{name}.transactions", value=count / _between(before, after), unit="1/s", goal=300, sense="<="),
        Figure(figure=f"{name}.freshness_p99", value=float(np.percentile(ages, 99)), unit="s", goal=0.5, sense="<="),
        Figure(figure=f"{name}.broken_audits", value=broken, unit="tables", goal=0, sense="<="),
    ]


def _tables(run: Run, name: str, count: int) -> Sequence[hp.Table]:
    """The first *count* tables of the run, each of a topic with one partition; what is missing is made."""
    found: list[hp.Table] = run.shared.setdefault("tables", [])
    if missing := range(len(found), count):
        run.say(f"{name}: making {len(missing)} tables, each of a topic with one partition")
        topics = [run.topic(1) for _ in missing]
        with ThreadPoolExecutor(MAKERS) as threads:
            found += threads.map(lambda topic: run.table(topic, **SPEC), topics)
    return found[:count]


def _dsn(run: Run) -> str:
    dsn = run.harness.settings.dsn
    assert dsn is not None
    return dsn


def _ends(log: Mapping[str, Produced]) -> Mapping[str, int]:
    return {topic: int(one.offsets.max()) + 1 for topic, one in log.items() if len(one.offsets)}


def _between(before: Taken, after: Taken) -> float:
    return after.at - before.at


def _cores(before: Taken, after: Taken) -> float:
    """How many cores it had on average."""
    return (after.cpu_s - before.cpu_s) / _between(before, after)


def _note_services(run: Run, name: str, before: Mapping[str, float], *, seconds: float) -> None:
    for service, cpu_s in cpu_seconds(run.harness).items():
        run.note(f"{name}.cpu.{service}", (cpu_s - before.get(service, 0.0)) / seconds, "cores")


def _status(run: Run) -> None:
    command = [sys.executable, "-m", "harness_pipelines.cli.main", "status", "--json"]
    subprocess.run(command, env=environment(run.harness.settings), check=True, stdout=subprocess.DEVNULL)
