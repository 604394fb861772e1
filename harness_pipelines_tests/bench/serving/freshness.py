"""From produced to visible in a SELECT of an engine, beside the table of a peer that commits each second.

An engine selects the rows above the last offsets that it has seen, and again as soon as it has the answer. The wait of
a SELECT is the time from the acknowledgement of the first record that its answer lacks to the moment when it was sent,
plus the time that it took: how old a record is at most when a SELECT that is sent at any moment returns it. So the wait
does not grow with the pause between two SELECTs, as the age of a record does that came while another one ran.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from harness_pipelines_tests.bench.base import Figure, Run, median_s
from harness_pipelines_tests.bench.freshness import RATE, SETTLE_S, Ages, Seen
from harness_pipelines_tests.bench.peer import Peer
from harness_pipelines_tests.bench.records import PARTITIONS
from harness_pipelines_tests.bench.serving.readers import Reader, reader_of
from harness_pipelines_tests.bench.steady import Produced, SteadyProducer
from harness_pipelines_tests.bench.throughput import warm_up
from harness_pipelines_tests.bench.workers import WorkerProcess

SECONDS, QUICK_SECONDS = 20, 10
TRIGGER_S = 1  #: of the peer
WARM_S = 5.0
GOAL_S = 0.25  #: beside the time of the SELECT
AT_REST = 5  #: SELECTs of which the median is taken
OURS, THEIRS = ("_kafka_partition", "_kafka_offset"), ("kafka_partition", "kafka_offset")  #: columns
Offsets = Mapping[int, int]
Newest = Callable[[Offsets], pa.Table]  #: rows (partition, offset, id) from these offsets on


@dataclass(frozen=True, slots=True)
class Select:
    """When one was sent and answered, and the first offsets that its answer lacks."""

    sent: float
    answered: float
    lacks: Offsets


@dataclass(slots=True)
class Watched:
    """The SELECTs of one engine while records came."""

    seen: Seen
    selects: list[Select] = field(default_factory=list)

    def waits(self, log: Mapping[int, Produced], *, skip_s: float) -> Ages:
        """Seconds that each SELECT took, and that its state was old when it was sent; without those at first."""
        acked = {p: part.acked_at[np.argsort(part.offsets)] for p, part in log.items()}
        first = {p: int(part.offsets.min()) for p, part in log.items()}
        began = min(float(at[0]) for at in acked.values()) + skip_s
        ended = max(float(at[-1]) for at in acked.values())
        waits = []
        for select in self.selects:
            if began <= select.sent < ended:
                lacking = (acked[p][at - first[p] :][:1] for p, at in select.lacks.items())
                old_s = max([0.0, *(select.sent - float(at[0]) for at in lacking if len(at))])
                waits.append(old_s + select.answered - select.sent)
        return np.array(waits)


def measure(run: Run, *, engine: str) -> Sequence[Figure]:
    """Ours, then the peer on the same topic, both read by *engine*."""
    reader = reader_of(run, engine)
    if reader is None:
        return []
    warm_up(run)
    topic, name = run.topic(), f"freshness.{engine}"
    ours, select_s, sent = _ours(run, reader, topic, name)
    theirs = _peer(run, reader, topic, name, sent)
    run.note(f"{name}.to_peer", ours / theirs, "x")
    return [Figure(figure=f"{name}.p50", value=ours, unit="s", goal=GOAL_S + select_s, sense="<=")]


def _ours(run: Run, reader: Reader, topic: str, name: str) -> tuple[float, float, int]:
    """p50 of the waits, seconds of a SELECT at rest, and how many records were produced."""
    seconds = run.size(SECONDS, QUICK_SECONDS)
    run.say(f"{name}: {RATE:,} records/s for {seconds} s, worker with all stages")
    table = run.table(topic, tier={"max_age": "5s"})
    newest = partial(_newest, reader, lambda: reader.fresh(table.name), OURS)
    start = dict.fromkeys(range(PARTITIONS), 0)
    with WorkerProcess(table, at_most_s=seconds + 180):
        newest(start)  # imports, connections
        with SteadyProducer(run.harness.settings, topic, rate=RATE, seconds=seconds + WARM_S) as producer:
            watched, log = _watch(newest, producer, start)
    select_s = _at_rest(newest, log)
    run.note(f"{name}.select_at_rest", select_s, "s")
    return _noted(run, name, watched, log), select_s, _count(log)


def _peer(run: Run, reader: Reader, topic: str, name: str, sent: int) -> float:
    """p50 of the waits for the table of Spark Structured Streaming, which has the records from now on."""
    seconds = run.size(SECONDS, QUICK_SECONDS)
    run.say(f"{name}: Spark Structured Streaming, trigger {TRIGGER_S} s, {seconds} s")
    ends = run.harness.stores.log.watermarks(topic, range(PARTITIONS))
    start = {p: mark.end for p, mark in ends.items()}
    with Peer(run.harness, topic, trigger_s=TRIGGER_S, start=start) as peer:
        peer.begin()
        peer.await_running()
        newest = partial(_newest, reader, lambda: reader.peer(peer), THEIRS)
        length_s = seconds + WARM_S
        with SteadyProducer(run.harness.settings, topic, rate=RATE, seconds=length_s, first=sent) as producer:
            peer.await_first_row()  # an engine may refuse a table without a snapshot
            watched, log = _watch(newest, producer, start)
    return _noted(run, f"{name}.peer", watched, log)


def _newest(reader: Reader, relation: Callable[[], str], columns: tuple[str, str], above: Offsets) -> pa.Table:
    """The rows above, whole numbers in each column: Trino's answers have no type where they have no row."""
    partition, offset = columns
    where = " OR ".join(f"({partition} = {p} AND {offset} >= {at})" for p, at in above.items())
    found = reader.query(f"SELECT {partition}, {offset}, id FROM {relation()} WHERE {where}")
    return found.cast(pa.schema([(name, pa.int64()) for name in found.column_names]))


def _watch(newest: Newest, producer: SteadyProducer, start: Offsets) -> tuple[Watched, Mapping[int, Produced]]:
    """SELECT the newest rows one after the other until all that was produced came back; and the producer's log."""
    watched, log = Watched(Seen(start)), None
    deadline = float("inf")
    while log is None or not watched.seen.has_all(log):
        sent = time.monotonic()
        rows = newest(watched.seen.next)
        answered = time.monotonic()
        watched.seen.take(rows, answered)
        watched.selects.append(Select(sent, answered, dict(watched.seen.next)))
        if log is None and not producer.running:
            log, deadline = producer.stop(), answered + SETTLE_S
        assert answered < deadline, f"not all records were returned {SETTLE_S:g} s after the last one"
    return watched, log


def _at_rest(newest: Newest, log: Mapping[int, Produced]) -> float:
    """Seconds of a SELECT of a second's records, when none come."""
    above = {p: int(part.offsets.max()) + 1 - RATE // PARTITIONS for p, part in log.items()}
    return median_s(lambda: newest(above), times=AT_REST)


def _noted(run: Run, name: str, watched: Watched, log: Mapping[int, Produced]) -> float:
    waits, ages = watched.waits(log, skip_s=WARM_S), watched.seen.ages(log, skip_s=WARM_S)
    p50 = float(np.percentile(waits, 50))
    for word, value in (
        ("wait_p50", p50),
        ("wait_p99", float(np.percentile(waits, 99))),
        ("select_p50", float(np.percentile([one.answered - one.sent for one in watched.selects], 50))),
        ("one_after_the_other_p50", float(np.percentile(ages, 50))),
    ):
        run.note(f"{name}.{word}", value, "s")
    run.note(f"{name}.selects", len(waits), "SELECTs")
    return p50


def _count(log: Mapping[int, Produced]) -> int:
    return sum(len(part.offsets) for part in log.values())
