"""Concurrent reads while data moves, each compared with the producer's own log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

import harness_pipelines as hp
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.read.union import read_arrow
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.steady import Produced, SteadyProducer
from harness_pipelines_tests.bench.workers import WorkerProcess

RATE = 1_000
ARROW_READERS = 4
READS, QUICK_READS = 500, 100
SECONDS_MAX = 150.0
COLUMNS = ("_kafka_partition", "_kafka_offset", "id", "amount")
SHOWN = 3

Sums = tuple[int, int, int, int, int]  #: rows, first and last offset, sums of offsets and of ids


@dataclass(frozen=True, slots=True)
class Read:
    """What one read said it covers, and what it returned, by partition."""

    bounds: Mapping[int, tuple[int, int]]
    sums: Mapping[int, Sums]


@dataclass(slots=True)
class Reader:
    """Repeats one kind of read in a thread of its own until told to stop."""

    once: Callable[[], Read]
    stop: threading.Event
    reads: list[Read] = field(default_factory=list)
    failed: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self.reads.append(self.once())
        except BaseException as error:
            self.failed = error
            self.stop.set()


def measure(run: Run) -> Sequence[Figure]:
    """At least 500 whole reads in Arrow and in Spark while a worker ingests, tiers and expires."""
    wanted = run.size(READS, QUICK_READS)
    run.say(f"reads: {wanted} reads while {RATE:,} records/s move")
    topic = run.topic()
    table = run.table(topic, tier={"max_age": "3s"})
    stop = threading.Event()
    readers = [Reader(lambda: _arrow(table), stop) for _ in range(ARROW_READERS)]
    readers.append(Reader(lambda: _spark(run, table), stop))
    with (
        WorkerProcess(table, at_most_s=SECONDS_MAX + 120) as worker,
        SteadyProducer(run.harness.settings, topic, rate=RATE, seconds=SECONDS_MAX) as producer,
    ):
        _read_until(readers, stop, lambda: sum(len(r.reads) for r in readers) >= wanted or not producer.running)
        worker.check()
        log = producer.stop()
    truth = {p: _Truth.of(part) for p, part in log.items()}
    reads = [read for reader in readers for read in reader.reads]
    wrong = [fault for read in reads if (fault := fault_of(read, truth))]
    run.note("reads.in_spark", len(readers[-1].reads), "reads")
    run.note("reads.moves_meanwhile", _moves(run, table), "moves")
    for fault in wrong[:SHOWN]:
        run.say(f"reads: WRONG: {fault}")
    # A cut of one reader never lies behind its previous one.
    backwards = sum(_goes_back(reader.reads) for reader in readers)
    return [
        Figure(figure="reads.wrong", value=len(wrong) + backwards, unit="reads", goal=0, sense="<="),
        Figure(figure="reads.tried", value=len(reads), unit="reads", goal=wanted, sense=">="),
    ]


def _read_until(readers: Sequence[Reader], stop: threading.Event, done: Callable[[], bool]) -> None:
    threads = [threading.Thread(target=reader.run, daemon=True) for reader in readers]
    for thread in threads:
        thread.start()
    while not done() and not stop.is_set():
        time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a reader did not end"
    for reader in readers:
        if reader.failed is not None:
            raise reader.failed


def _arrow(table: hp.Table) -> Read:
    stores, plan = table.harness.stores, table.plan()
    lease = timedelta(seconds=table.spec.retention.lease)

    def check() -> None:
        stores.leases.renew(plan.lease_id, lease=lease)

    try:
        rows = read_arrow(plan, stores, columns=COLUMNS, check_lease=check).rows
    finally:
        table.release(plan)
    partitions, offsets, ids = (rows.column(name).to_numpy() for name in COLUMNS[:3])
    return Read(
        _bounds(plan), {int(p): _sums(offsets[partitions == p], ids[partitions == p]) for p in set(partitions.tolist())}
    )


def _sums(offsets: NDArray[np.int64], ids: NDArray[np.int64]) -> Sums:
    return len(offsets), int(offsets.min()), int(offsets.max()), int(offsets.sum()), int(ids.sum())


def _spark(run: Run, table: hp.Table) -> Read:
    from pyspark.sql import functions as f

    plan = table.plan()
    try:
        frame = table.to_spark(run.harness.stores.spark(), columns=COLUMNS, plan=plan)
        offset = f.col("_kafka_offset")
        wanted = (f.count("*"), f.min(offset), f.max(offset), f.sum(offset), f.sum("id"))
        rows = frame.groupBy("_kafka_partition").agg(*wanted).collect()
    finally:
        table.release(plan)
    return Read(_bounds(plan), {row[0]: tuple(row)[1:] for row in rows})


def _bounds(plan: ReadPlan) -> dict[int, tuple[int, int]]:
    return {p: (b.start, b.buffer_hi) for p, b in plan.bounds.items()}


# -- the judge ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Truth:
    """The producer's log of one partition as prefix sums: entry n is the sum of the first n records."""

    offsets: NDArray[np.int64]
    offset_sums: NDArray[np.int64]
    id_sums: NDArray[np.int64]

    @classmethod
    def of(cls, log: Produced) -> _Truth:
        order = np.argsort(log.offsets)
        offsets, ids = log.offsets[order], log.ids[order]
        return cls(offsets, _prefix(offsets), _prefix(ids))


def _prefix(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(values)]).astype(np.int64)


def fault_of(read: Read, truth: Mapping[int, Any]) -> str | None:
    """What is wrong with a read, or None: it must hold exactly the acknowledged records below its bounds."""
    for partition, (low, high) in read.bounds.items():
        known = truth[partition]
        first, end = (int(i) for i in np.searchsorted(known.offsets, [low, high]))
        expected = None
        if end > first:
            ends = int(known.offsets[first]), int(known.offsets[end - 1])
            sums = (int(s[end] - s[first]) for s in (known.offset_sums, known.id_sums))
            expected = (end - first, *ends, *sums)
        if read.sums.get(partition) != expected:
            return f"partition {partition} [{low}, {high}): read {read.sums.get(partition)}, produced {expected}"
    if extra := set(read.sums) - set(read.bounds):
        return f"rows of partitions {sorted(extra)}, which the plan does not name"
    return None


def _goes_back(reads: Sequence[Read]) -> int:
    """How many reads of one reader end before an earlier one did."""
    back, highest = 0, dict[int, int]()
    for read in reads:
        back += any(high < highest.get(p, 0) for p, (_, high) in read.bounds.items())
        highest = {p: max(high, highest.get(p, 0)) for p, (_, high) in read.bounds.items()}
    return back


def _moves(run: Run, table: hp.Table) -> int:
    moves = run.harness.stores.ledger.moves(table.row, stage=Stage.TIER, limit=10_000)
    return sum(m["state"] == "COMMITTED" for m in moves)
