"""A backlog into the lake by a harness that has no Spark, beside Spark Structured Streaming in the same run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import harness_pipelines as hp
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.throughput import (
    QUICK_ROWS,
    ROWS,
    backlog,
    best_of_peer,
    published,
    warm_topic,
    warm_up,
    warm_up_ours,
)

BUFFERED_GOAL, DIRECT_GOAL = 1.2, 1.5


def measure(run: Run) -> Sequence[Figure]:
    """Rows per second through the buffer and by `buffer: none`, both by Arrow, to the best of the peer's triggers."""
    rows, topic = run.size(ROWS, QUICK_ROWS), backlog(run)
    with without_spark(run) as there:
        run.say("backlog: warming up Arrow")
        warm_up_ours(there, warm_topic(there))
        run.say(f"backlog: {rows:,} records through the buffer, by Arrow")
        through = published(there, rows, there.table(topic), "backlog.through_buffer")
        run.say(f"backlog: {rows:,} records straight to Iceberg, by Arrow")
        direct = published(there, rows, there.table(topic, buffer="none"), "backlog.buffer_none")
    warm_up(run)
    peer = best_of_peer(run, topic, rows, "backlog")
    run.note("backlog.through_buffer", through, "rows/s")
    run.note("backlog.buffer_none", direct, "rows/s")
    return [
        _figure("through_buffer_to_peer", through / peer, BUFFERED_GOAL),
        _figure("buffer_none_to_peer", direct / peer, DIRECT_GOAL),
    ]


@contextmanager
def without_spark(run: Run) -> Iterator[Run]:
    """The same run with the settings of a machine that has no Spark; its tables are dropped at the end."""
    with hp.connect(replace(run.harness.settings, spark=None, engine="arrow")) as harness:
        there = Run(harness=harness, quick=run.quick, say=run.say, notes=run.notes)
        try:
            yield there
        finally:
            there.close()


def _figure(name: str, value: float, goal: float) -> Figure:
    return Figure(figure=f"backlog.{name}", value=value, unit="x", goal=goal, sense=">=")
