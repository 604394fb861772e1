"""The bench of Dagster's control room: ticks, loads, runs, and freshness while runs hand over to each other."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import psycopg
import yaml
from dagster import DagsterInstance, Definitions, build_sensor_context

import harness_pipelines as hp
from harness_pipelines.defs.build import build
from harness_pipelines.defs.resources import HarnessResource
from harness_pipelines.defs.tables import job_name, stage_assets, stage_checks
from harness_pipelines.defs.work import HANDOVER_S, RUN_S, STAGE_TAG
from harness_pipelines.protocol.claims import Stage
from harness_pipelines_tests.bench.base import Figure, Group, Run, timed
from harness_pipelines_tests.bench.freshness import newest_of, watch
from harness_pipelines_tests.bench.records import COLUMNS, PARTITIONS, produce_backlog
from harness_pipelines_tests.bench.steady import SteadyProducer
from harness_pipelines_tests.faults.dagster_rig import DagsterRig, dagster_over
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import INGEST, environment

RATE = 500
DAY_S = 86_400
LOADED = """
import os, time
folder = os.environ.pop("HARNESS_TABLES")
os.environ["HARNESS_TABLES"] = "/nonexistent"  # loaded once by the import
from harness_pipelines.defs import definitions
os.environ["HARNESS_TABLES"] = folder
began = time.perf_counter()
definitions.load().get_repository_def().load_all_definitions()
print(time.perf_counter() - began)
"""
LAUNCH = """
mutation($job: String!, $assets: [AssetKeyInput!]!, $checks: [AssetCheckHandleInput!]!) {
  launchRun(executionParams: {
    selector: {
      repositoryLocationName: "harness", repositoryName: "__repository__", jobName: $job,
      assetSelection: $assets, assetCheckSelection: $checks
    }, mode: "default"
  }) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } }
}
"""
FINISHED = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"


def measure_loads(run: Run) -> Sequence[Figure]:
    """Seconds until all definitions of a code location are there, in a new process, without its imports."""
    found = {}
    for count in (10, 50, 200):
        run.say(f"load: {count} tables")
        with TemporaryDirectory() as folder:
            for number in range(count):
                spec = {"table": f"bench.t{number:03}", "topic": f"topic_{number:03}", "columns": dict(COLUMNS)}
                (Path(folder) / f"{number:03}.yaml").write_text(yaml.safe_dump(spec))
            more = environment(run.harness.settings, HARNESS_TABLES=folder)
            done = [
                float(subprocess.run([sys.executable, "-c", LOADED], env=more, check=True, capture_output=True).stdout)
                for _ in range(run.size(3, 1))
            ]
        found[count] = statistics.median(done)
        run.note(f"load.{count}_tables", found[count], "s")
    return [Figure(figure="load.50_tables", value=found[50], unit="s", goal=2.0, sense="<=")]


def measure_ticks(run: Run) -> Sequence[Figure]:
    """p50 of a tick of each sensor, with many tables that have something to show."""
    count = run.size(200, 20)
    run.say(f"ticks: making {count} tables")
    specs = []
    for _ in range(count):
        topic = run.topic()
        produce_backlog(run.harness.settings, topic, count=100)
        specs.append(run.table(topic, views="stream").spec)
    run.say("ticks: measuring")
    definitions = build(specs)
    with _environment(run), DagsterInstance.ephemeral() as instance:
        p50 = {name: _tick_s(definitions, instance, name) for name in ("lag", "wake", "maintenance", "reconcile")}
    return [
        Figure(figure=f"tick.{name}.p50", value=seconds, unit="s", goal=0.3, sense="<=")
        for name, seconds in p50.items()
    ]


@contextmanager
def _environment(run: Run) -> Iterator[None]:
    """This process has the addresses that a code server gets."""
    import os

    before = dict(os.environ)
    os.environ.update(environment(run.harness.settings))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _tick_s(definitions: Definitions, instance: DagsterInstance, name: str, *, times: int = 15) -> float:
    sensor = definitions.resolve_sensor_def(f"harness_{name}")
    resources: dict[str, Any] = {"harness": HarnessResource()}
    cursor: str | None = None
    took = []
    for _ in range(times + 1):
        with build_sensor_context(
            instance=instance, cursor=cursor, resources=resources, definitions=definitions
        ) as context:
            began = time.monotonic()
            cursor = sensor.evaluate_tick(context).cursor
            took.append(time.monotonic() - began)
    return statistics.median(took[1:])  # the first one imports


def measure_runs(run: Run) -> Sequence[Figure]:
    """From the launch of a run to its end: one that finds nothing, and one that moves 100,000 rows."""
    rows = run.size(100_000, 10_000)
    topic = run.topic()
    produce_backlog(run.harness.settings, topic, count=2 * rows)
    table = run.table(topic, mode="manual")
    with _control_room(run, table) as dagster:
        run.say("runs: the first run of tier, which starts Spark's session")
        run.work(table, INGEST)
        warm = _run_s(dagster, table, Stage.TIER)
        run.note("run.tier_first", warm, "s")
        run.say("runs: one that finds nothing")
        idle = statistics.median(_run_s(dagster, table, Stage.TIER) for _ in range(run.size(5, 1)))
        produce_backlog(run.harness.settings, topic, count=rows, first=2 * rows)
        run.work(table, INGEST)
        run.say(f"runs: tier of {rows:,} rows")
        moved = _run_s(dagster, table, Stage.TIER)
    return [
        Figure(figure="run.nothing_to_do", value=idle, unit="s", goal=4.0, sense="<="),
        Figure(figure="run.tier_100k_rows", value=moved, unit="s", goal=6.0, sense="<="),
    ]


def measure_handover(run: Run) -> Sequence[Figure]:
    """Freshness at a steady rate while sensors start runs and one run of ingest takes over from another."""
    seconds, warm_s = run.size(int(RUN_S + HANDOVER_S), 30), 60.0
    topic = run.topic()
    table = run.table(topic, mode="runs")
    with _control_room(run, table) as dagster:
        run.say(f"hand-over: {RATE} records/s for {seconds} s; runs of ingest stay {RUN_S:g} s")
        before = _written(dagster)
        began = time.monotonic()
        with SteadyProducer(run.harness.settings, topic, rate=RATE, seconds=seconds + warm_s) as producer:
            seen = watch(newest_of(table), producer, dict.fromkeys(range(PARTITIONS), 0))
            log = producer.stop()
        days = (time.monotonic() - began) / DAY_S
        written = {part: (size - before[part]) / days / 2**20 for part, size in _written(dagster).items()}
        for stage, runs in Counter(r.tags[STAGE_TAG] for r in dagster.instance.get_runs()).items():
            run.note(f"handover.runs_of_{stage}", runs, "")
    ages = seen.ages(log, skip_s=warm_s)
    run.note("handover.freshness.p50", float(np.percentile(ages, 50)), "s")
    run.note("handover.freshness.max", float(ages.max()), "s")
    run.note("ticks_of_all_tables_per_day", written["ticks"], "MB")  # those that were skipped stay for a day
    return [
        Figure(figure="handover.freshness.p99", value=float(np.percentile(ages, 99)), unit="s", goal=1.5, sense="<="),
        Figure(figure="events_per_table_and_day", value=written["events"], unit="MB", goal=10.0, sense="<="),
    ]


@contextmanager
def _control_room(run: Run, table: hp.Table) -> Iterator[DagsterRig]:
    """Web server, code server and daemon over one table."""
    with (
        TemporaryDirectory() as folder,
        dagster_over(replace(run.harness.settings, home=Path(folder)), Path(folder), [table.spec]) as dagster,
    ):
        dagster.room.up()
        yield dagster


def _run_s(dagster: DagsterRig, table: hp.Table, stage: Stage) -> float:
    """Seconds from the launch of a run to its good end."""

    def work() -> None:
        assets = [{"path": list(key.path)} for key in stage_assets(table.name, stage)]
        checks = [
            {"assetKey": {"path": list(key.asset_key.path)}, "name": key.name}
            for key in stage_checks(table.name, stage)
        ]
        asked = {"job": job_name(stage), "assets": assets, "checks": checks}
        made = _asked(dagster, LAUNCH, asked)["launchRun"]
        assert made["__typename"] == "LaunchRunSuccess", made
        run_id = made["run"]["runId"]

        def ended() -> bool:
            status = _asked(dagster, FINISHED, {"id": run_id})["runOrError"]["status"]
            assert status not in {"FAILURE", "CANCELED"}, dagster.log("daemon")
            return bool(status == "SUCCESS")

        wait_until(ended, f"the run of {stage} has ended", deadline_s=300)

    return timed(work)


def _asked(dagster: DagsterRig, query: str, variables: Mapping[str, Any]) -> Any:
    answer = httpx.post(f"{dagster.room.url}/graphql", json={"query": query, "variables": variables}, timeout=60)
    return answer.json()["data"]


def _written(dagster: DagsterRig) -> dict[str, int]:
    """Bytes that Dagster keeps of runs and assets, and of ticks of sensors."""
    with psycopg.connect(dagster.room.environment["DAGSTER_PG_URL"]) as connection:
        found = connection.execute(
            "SELECT coalesce((SELECT sum(pg_column_size(e.*)) FROM event_logs e), 0)"
            " + coalesce((SELECT sum(pg_column_size(r.*)) FROM runs r), 0),"
            " coalesce((SELECT sum(pg_column_size(t.*)) FROM job_ticks t), 0)"
        ).fetchone()
    assert found is not None
    return {"events": int(found[0]), "ticks": int(found[1])}


#: Groups of figures in the order in which they are measured; what --only names.
FIGURES: Mapping[str, Group] = {
    "load": measure_loads,
    "ticks": measure_ticks,
    "runs": measure_runs,
    "handover": measure_handover,
}
