"""Throughput of a backlog: into the buffer, through it to published Iceberg, and without it, beside the peer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import harness_pipelines as hp
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.ingest_cpu import breakdown
from harness_pipelines_tests.bench.peer import Peer
from harness_pipelines_tests.bench.records import produce_backlog
from harness_pipelines_tests.rig import ALL, INGEST

ROWS, QUICK_ROWS = 2_000_000, 300_000
WARM_ROWS = 60_000
BACKLOG, LAKE_TABLE, WARM = "backlog", "lake_table", "warm"
INGEST_GOAL = 120_000


def measure(run: Run) -> Sequence[Figure]:
    """Rows per second of the harness on one topic, three ways, two of them beside the peer's on the same topic."""
    rows = run.size(ROWS, QUICK_ROWS)
    topic = backlog(run)
    warm_up(run)
    run.say(f"throughput: ingest of {rows:,} records")
    buffered = run.table(topic)
    with run.cpu("throughput.ingest", rows):
        ingest = rows / run.work(buffered, INGEST)
    peer = best_of_peer(run, topic, rows, "throughput")
    run.say(f"throughput: {rows:,} records through the buffer to Iceberg")
    through = published(run, rows, run.table(topic), "throughput.through_buffer")
    run.say(f"throughput: {rows:,} records straight to Iceberg (`buffer: none`)")
    direct = published(run, rows, run.table(topic, buffer="none"), "throughput.buffer_none")
    run.note("throughput.through_buffer", through, "rows/s")
    run.note("throughput.buffer_none", direct, "rows/s")
    if ingest < INGEST_GOAL:
        run.say("throughput: where ingest's time goes")
        for name, value in breakdown(run, topic, rows=min(rows, 1_000_000)).items():
            run.note(f"ingest.{name}", value, "s/M rows")
    return [
        Figure(figure="throughput.ingest", value=ingest, unit="rows/s", goal=INGEST_GOAL, sense=">="),
        Figure(figure="throughput.through_buffer_to_peer", value=through / peer, unit="x", goal=0.7, sense=">="),
        Figure(figure="throughput.buffer_none_to_peer", value=direct / peer, unit="x", goal=1.1, sense=">="),
    ]


def backlog(run: Run) -> str:
    """The topic with the backlog; made once per run."""
    if BACKLOG not in run.shared:
        rows = run.size(ROWS, QUICK_ROWS)
        run.say(f"producing a backlog of {rows:,} records")
        topic = run.topic()
        produce_backlog(run.harness.settings, topic, count=rows)
        run.shared[BACKLOG] = topic
    return str(run.shared[BACKLOG])


def lake_table(run: Run) -> hp.Table:
    """A table with the backlog in the lake; made once per run."""
    if LAKE_TABLE not in run.shared:
        table = run.table(backlog(run))
        run.say("moving the backlog to the lake")
        run.work(table, ALL)
        run.shared[LAKE_TABLE] = table
    found: hp.Table = run.shared[LAKE_TABLE]
    return found


def published(run: Run, rows: int, table: hp.Table, name: str) -> float:
    """Rows per second of *table* from the log to published versions; CPU time is noted under *name*."""
    with run.cpu(name, rows):
        rate = rows / run.work(table, ALL)
    assert sum(p.bounds.stream_hi for p in table.positions()) == rows
    if table.spec.buffer != "none":
        run.shared[LAKE_TABLE] = table
    return rate


def best_of_peer(run: Run, topic: str, rows: int, name: str) -> float:
    """Rows per second of Spark Structured Streaming by its quickest trigger; all of them are noted under *name*."""
    return max(_peers(run, topic, rows, name, trigger_s=t) for t in ((1,) if run.quick else (1, 10)))


def _peers(run: Run, topic: str, rows: int, name: str, *, trigger_s: int) -> float:
    run.say(f"{name}: the peer, trigger {trigger_s} s")
    with (
        Peer(run.harness, topic, trigger_s=trigger_s, start=None) as peer,
        run.cpu(f"{name}.peer_{trigger_s}s", rows),
    ):
        began = peer.begin()
        peer.await_rows(rows)
        rate = rows / (time.monotonic() - began)
    run.note(f"{name}.peer_{trigger_s}s", rate, "rows/s")
    return rate


def warm_up(run: Run) -> None:
    """Every path on a small topic, once per run: the JVMs are as warm as in production, and for both sides."""
    if WARM in run.shared:
        return
    run.shared[WARM] = True
    run.say("warming up both sides")
    topic = warm_topic(run)
    warm_up_ours(run, topic)
    with Peer(run.harness, topic, trigger_s=1, start=None) as peer:
        peer.begin()
        peer.await_rows(WARM_ROWS)


def warm_topic(run: Run) -> str:
    """A small topic."""
    topic = run.topic()
    produce_backlog(run.harness.settings, topic, count=WARM_ROWS)
    return topic


def warm_up_ours(run: Run, topic: str) -> None:
    """Every path of the harness on *topic*."""
    choices: tuple[dict[str, Any], ...] = ({}, {"buffer": "none"})
    for spec in choices:
        run.work(run.table(topic, **spec), ALL)
