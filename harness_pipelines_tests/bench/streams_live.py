"""What a live reader waits for: the records around the switch from history to Kafka, and the news of a commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import harness_pipelines as hp
from harness_pipelines.buffers.postgres.writer import SegmentWriter
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.records import PARTITIONS, produce_backlog
from harness_pipelines_tests.bench.steady import Produced, SteadyProducer
from harness_pipelines_tests.bench.throughput import warm_up
from harness_pipelines_tests.bench.workers import WorkerProcess
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import INGEST

RATE = 2_000
AROUND_S = 3.0  #: from the beginning of a stream on: its records lie around the switch
WAITERS = 100
HISTORY = 8 * RATE  #: records that are there before the first stream begins


def measure_switch(run: Run) -> Sequence[Figure]:
    """Streams that begin while records come and a worker moves them: how old is each record when it is handed out?

    Of the records that were acknowledged within three seconds after a stream began, which lie in the history that it
    reads, in the gap that a further leg fills, and in Kafka.
    """
    warm_up(run)
    topic, streams = run.topic(), run.size(20, 4)
    table = run.table(topic, tier={"max_age": "10s"})
    run.say(f"switch: {streams} streams at {RATE:,} records/s")
    seconds = (streams + 1) * (AROUND_S + 1.5) + 15
    found: list[tuple[float, list[tuple[int, int, int, float]]]] = []
    with (
        WorkerProcess(table, at_most_s=seconds + 120) as worker,
        SteadyProducer(run.harness.settings, topic, rate=RATE, seconds=seconds) as producer,
    ):
        wait_until(lambda: _readable(table) >= HISTORY, f"{HISTORY:,} records are readable")
        _streamed(table)  # imports, connections
        for _ in range(streams):
            found.append(_streamed(table))
            worker.check()
        log = producer.stop()
    ages = [age for began, taken in found for age in _ages(log, began, taken)]
    run.note("switch.p50", float(np.percentile(ages, 50)), "s")
    run.note("switch.max", max(ages), "s")
    return [Figure(figure="switch.p99", value=float(np.percentile(ages, 99)), unit="s", goal=1.0, sense="<=")]


def _readable(table: hp.Table) -> int:
    return sum(p.bounds.buffer_hi - p.bounds.start for p in table.positions())


def _streamed(table: hp.Table) -> tuple[float, list[tuple[int, int, int, float]]]:
    """When a stream began, and (partition, first, behind the last offset, when) of what it handed out."""
    began, at = time.monotonic(), dict.fromkeys(range(PARTITIONS), 0)
    taken = []
    for batch in table.stream(columns=["id"]):
        now = time.monotonic()
        partition = batch.partition
        assert partition is not None
        high = batch.at.offsets[partition]
        assert batch.rows.num_rows == high - at[partition], "the stream has a gap or repeats records"
        taken.append((partition, at[partition], high, now))
        at[partition] = high
        if now - began > AROUND_S + 1:
            break
    return began, taken


def _ages(log: dict[int, Produced], began: float, taken: Sequence[tuple[int, int, int, float]]) -> list[float]:
    ages: list[float] = []
    for partition, low, high, at in taken:
        acked = log[partition].acked_at[low:high]
        around = (acked >= began) & (acked < began + AROUND_S)
        ages += np.maximum(at - acked[around], 0.0).tolist()
    return ages


def measure_waiters(run: Run) -> Sequence[Figure]:
    """From the end of an ingest commit to the return of each of its hundred waiters."""
    topic, rounds = run.topic(), run.size(30, 5)
    table = run.table(topic)
    run.say(f"waiters: {WAITERS} of them, {rounds} commits")
    committed: list[float] = []
    tell = SegmentWriter._tell

    def told(writer: SegmentWriter, connection: Any, tables: Iterable[TableRow]) -> None:
        committed.append(time.monotonic())
        tell(writer, connection, tables)

    lags: list[float] = []
    SegmentWriter._tell = told  # type: ignore[assignment,method-assign]
    try:
        with ThreadPoolExecutor(WAITERS) as threads:
            for number in range(rounds):
                ready = threading.Barrier(WAITERS + 1)

                def wait(offset: int, ready: threading.Barrier = ready) -> float:
                    ready.wait()
                    table.wait_for(0, offset, timeout_s=60)
                    return time.monotonic()

                returned = [threads.submit(wait, number) for _ in range(WAITERS)]
                ready.wait()
                produce_backlog(run.harness.settings, topic, count=PARTITIONS, first=number * PARTITIONS)
                run.work(table, INGEST)
                lags += [one.result(60) - committed[-1] for one in returned]
    finally:
        SegmentWriter._tell = tell  # type: ignore[method-assign]
    run.note("waiters.p50", float(np.percentile(lags, 50)), "s")
    return [Figure(figure="waiters.p99", value=float(np.percentile(lags, 99)), unit="s", goal=0.05, sense="<=")]
