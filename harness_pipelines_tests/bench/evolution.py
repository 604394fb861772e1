"""What a change of columns takes, one hundred times, while a table is written, moved and read."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

import harness_pipelines as hp
from harness_pipelines.errors import HarnessError
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import Primitive
from harness_pipelines_tests.bench.base import Figure, Run, timed
from harness_pipelines_tests.bench.steady import SteadyProducer
from harness_pipelines_tests.bench.workers import WorkerProcess
from harness_pipelines_tests.producer import wait_until

CHANGES, QUICK_CHANGES = 100, 20
RATE = 2_000.0  #: records/s
BETWEEN = 500  #: records that are ingested from one change to the next, at least
READ_COLUMN = "id"  #: that no change touches


class Reader(threading.Thread):
    """Counts rows again and again; a read that fails, or has fewer rows than one before, is kept."""

    def __init__(self, table: hp.Table) -> None:
        super().__init__(daemon=True)
        self._table, self._ended = table, threading.Event()
        self.reads = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        most = 0
        while not self._ended.is_set():
            try:
                found = self._table.read(columns=[READ_COLUMN]).num_rows
            except HarnessError as error:
                self.wrong.append(str(error))
                continue
            self.reads += 1
            if found < most:
                self.wrong.append(f"{found} rows after {most}")
            most = max(most, found)

    def end(self) -> None:
        self._ended.set()
        self.join()


def measure(run: Run) -> Sequence[Figure]:
    """Seconds of `Table.evolve`, in turn an added and a renamed column, and how many reads failed meanwhile."""
    changes = run.size(CHANGES, QUICK_CHANGES)
    topic = run.topic()
    table = run.table(topic)
    seconds = changes * 1.5 + 20  # until it is stopped
    run.say(f"evolution: {changes} changes beside {RATE:,.0f} records/s, moves and reads")
    reader = Reader(run.harness.table(table.name))
    with WorkerProcess(table, at_most_s=seconds + 120) as worker:
        with SteadyProducer(run.harness.settings, topic, rate=RATE, seconds=seconds) as producer:
            wait_until(lambda: table.read(columns=[READ_COLUMN]).num_rows > 0, "the first rows are read")
            reader.start()
            took_s = [_change(run.harness.table(table.name), number) for number in range(changes)]
            sent = sum(len(one.offsets) for one in producer.stop().values())
        worker.check()
        wait_until(lambda: table.read(columns=[READ_COLUMN]).num_rows >= sent, "all records are read", deadline_s=120)
        reader.end()
    assert (found := table.read(columns=[READ_COLUMN]).num_rows) == sent, f"{found:,} rows of {sent:,}"
    for why in reader.wrong[:3]:
        run.say(f"evolution: a read was wrong: {why}")
    run.note("evolution.p99", float(np.percentile(took_s, 99)), "s")
    run.note("evolution.reads", reader.reads, "reads")
    return [
        Figure(figure="evolution.p50", value=float(np.median(took_s)), unit="s", goal=0.1, sense="<="),
        Figure(figure="evolution.failed_reads", value=len(reader.wrong), unit="reads", goal=0, sense="<="),
    ]


def _change(table: hp.Table, number: int) -> float:
    """The *number*-th change; returns its seconds."""
    last = f"added_{number - 1}"
    changes = ColumnChanges(add=(Column(name=f"added_{number}", type=Primitive("long")),))
    if number % 2:
        changes = ColumnChanges(rename=((last, f"added_{number}"),))
    took_s = timed(lambda: table.evolve(changes))
    reached = _ingested(table)
    wait_until(lambda: _ingested(table) >= reached + BETWEEN, f"records come in after change {number}")
    return took_s


def _ingested(table: hp.Table) -> int:
    return sum(p.bounds.buffer_hi for p in table.positions())
