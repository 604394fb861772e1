"""Freshness: from the broker's acknowledgement of a record to the read that returns it, while tier runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import harness_pipelines as hp
from harness_pipelines.protocol.claims import Stage
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.peer import Peer
from harness_pipelines_tests.bench.records import PARTITIONS
from harness_pipelines_tests.bench.steady import Produced, SteadyProducer
from harness_pipelines_tests.bench.throughput import warm_up
from harness_pipelines_tests.bench.workers import WorkerProcess

RATE = 2_000
REST_S = 0.005  #: between two reads of the newest rows
SETTLE_S = 30.0
COORDINATES = ("_kafka_partition", "_kafka_offset")

#: Given {partition: first offset not seen}, returns a table (partition, offset, id) of newer rows, or None.
Newest = Callable[[Mapping[int, int]], pa.Table | None]
Ages = NDArray[np.float64]


def measure(run: Run) -> Sequence[Figure]:
    """p50 and p99 of the harness, and its p50 beside the peer's with a trigger of 1 s, on the same topic."""
    warm_up(run)
    topic = run.topic()
    ours, sent = of_table(run, topic)
    p50, p99 = np.percentile(ours, [50, 99])
    peers = {}
    for trigger_s, seconds in ((1, run.size(30, 12)), (10, run.size(40, 0))):
        if seconds:
            ages, sent = _peers(run, topic, sent, trigger_s=trigger_s, seconds=seconds)
            peers[trigger_s] = float(np.percentile(ages, 50))
            run.note(f"freshness.peer_{trigger_s}s.p50", peers[trigger_s], "s")
            run.note(f"freshness.peer_{trigger_s}s.p99", float(np.percentile(ages, 99)), "s")
    return [
        Figure(figure="freshness.p50", value=float(p50), unit="s", goal=0.05, sense="<="),
        Figure(figure="freshness.p99", value=float(p99), unit="s", goal=0.25, sense="<="),
        Figure(figure="freshness.p50_to_peer", value=float(p50) / peers[1], unit="x", goal=1 / 15, sense="<="),
    ]


def of_table(run: Run, topic: str) -> tuple[Ages, int]:
    """Seconds until each record is read from a new table, and how many were produced.

    Milliseconds matter here, so producer and worker are processes of their own.
    """
    seconds, warm_s = run.size(60, 15), 5.0
    table = run.table(topic, tier={"max_age": "10s" if not run.quick else "4s"})
    run.say(f"freshness: {RATE:,} records/s for {seconds} s, worker with all stages")
    with (
        WorkerProcess(table, at_most_s=seconds + 120) as worker,
        SteadyProducer(run.harness.settings, topic, rate=RATE, seconds=seconds + warm_s) as producer,
    ):
        seen = watch(newest_of(table), producer, dict.fromkeys(range(PARTITIONS), 0))
        worker.check()
        log = producer.stop()
        moves = run.harness.stores.ledger.moves(table.row, stage=Stage.TIER, limit=1000)
        run.note("freshness.moves", sum(m["state"] == "COMMITTED" for m in moves), "moves")
        run.note("freshness.reads", seen.reads, "reads")
        run.note("freshness.read_p50", float(np.percentile(seen.took_s, 50)), "s")
    return seen.ages(log, skip_s=warm_s), sum(len(part.offsets) for part in log.values())


def newest_of(table: hp.Table) -> Newest:
    def newest(above: Mapping[int, int]) -> pa.Table:
        where = " OR ".join(f"(_kafka_partition = {p} AND _kafka_offset >= {o})" for p, o in above.items())
        return table.read(columns=[*COORDINATES, "id"], where=where)

    return newest


def _peers(run: Run, topic: str, sent: int, *, trigger_s: int, seconds: int) -> tuple[Ages, int]:
    run.say(f"freshness: the peer with a trigger of {trigger_s} s, {seconds} s")
    ends = run.harness.stores.log.watermarks(topic, range(PARTITIONS))
    start = {p: mark.end for p, mark in ends.items()}
    warm_s = max(5.0, 1.5 * trigger_s)
    with Peer(run.harness, topic, trigger_s=trigger_s, start=start) as peer:
        peer.begin()
        peer.await_running()
        last = peer.pointer()

        def newest(above: Mapping[int, int]) -> pa.Table | None:
            nonlocal last
            now = peer.pointer()
            if now == last:
                return None
            last = now
            return peer.newest(now, above)

        settings, length_s = run.harness.settings, seconds + warm_s
        with SteadyProducer(settings, topic, rate=RATE, seconds=length_s, first=sent) as producer:
            seen = watch(newest, producer, start)
            log = producer.stop()
    return seen.ages(log, skip_s=warm_s), sent + sum(len(part.offsets) for part in log.values())


class Seen:
    """When each row was first returned."""

    def __init__(self, start: Mapping[int, int]) -> None:
        self.next = dict(start)
        self.reads = 0
        self.took_s: list[float] = []
        self._found: list[tuple[int, int, int, float]] = []  # partition, first and last new offset, when

    def take(self, rows: pa.Table, at: float) -> None:
        partitions, offsets = rows.column(0).to_numpy(), rows.column(1).to_numpy()
        for partition, low in self.next.items():
            mine = offsets[partitions == partition]
            if len(mine):
                high = int(mine.max()) + 1
                assert len(mine) == high - low, f"partition {partition}: {len(mine)} rows of [{low}, {high})"
                self._found.append((partition, low, high, at))
                self.next[partition] = high

    def has_all(self, log: Mapping[int, Produced]) -> bool:
        return all(not len(part.offsets) or self.next[p] > part.offsets.max() for p, part in log.items())

    def ages(self, log: Mapping[int, Produced], *, skip_s: float) -> Ages:
        """Seconds from acknowledged to returned of each record, without those of the first *skip_s*.

        A record that a read returned before its acknowledgement was noticed has age 0.
        """
        began = min(float(part.acked_at.min()) for part in log.values() if len(part.acked_at))
        ages = []
        for partition, part in log.items():
            first = int(part.offsets.min())
            returned_at = np.full(len(part.offsets), np.inf)
            for found, low, high, at in self._found:
                if found == partition:
                    returned_at[max(low - first, 0) : high - first] = at
            assert np.array_equal(part.offsets, np.arange(first, first + len(part.offsets))), "the log has gaps"
            assert np.isfinite(returned_at).all(), f"partition {partition}: records were never returned"
            kept = part.acked_at >= began + skip_s
            ages.append(np.maximum(returned_at - part.acked_at, 0.0)[kept])
        return np.concatenate(ages)


def watch(newest: Newest, producer: SteadyProducer, start: Mapping[int, int]) -> Seen:
    """Read the newest rows again and again until all that was produced came back."""
    seen, ends = Seen(start), None
    deadline = float("inf")
    while ends is None or not seen.has_all(ends):
        began = time.monotonic()
        rows = newest(seen.next)
        now = time.monotonic()
        if rows is not None:
            seen.reads += 1
            seen.took_s.append(now - began)
            seen.take(rows, now)
        if ends is None and not producer.running:
            ends, deadline = producer.stop(), now + SETTLE_S
        assert now < deadline, f"not all records were returned {SETTLE_S:g} s after the last one"
        time.sleep(REST_S)
    return seen
