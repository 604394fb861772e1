"""The demo's readers: one checks whole cuts against the producer's log, one measures freshness."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from harness_pipelines.app.table import Table
from harness_pipelines.demo.background import Background
from harness_pipelines.demo.scenario import Scenario
from harness_pipelines.demo.truth import SeenPartition, Truth, split
from harness_pipelines.demo.verify import COORDINATES
from harness_pipelines.errors import TryAgain
from harness_pipelines.read.union import read_arrow

REST_MIN_S = 0.05
REST_SHARE = 2.0  #: a reader rests this many times longer than its read took: the machine has other work
NEWEST_EVERY_S = 0.01
FAULTS_KEPT = 20
AWAY_S = 1.0  #: until the next try when a store is away


class Reader(Background):
    """Repeats `once` until it is stopped."""

    def __init__(self, table: Table, scenario: Scenario, truth: Truth) -> None:
        super().__init__()
        self.table, self.scenario, self.truth = table, scenario, truth

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                rest_s = self.once()
            except TryAgain:
                rest_s = AWAY_S
            self.stopping.wait(rest_s)

    def once(self) -> float:
        """One read; returns the seconds to rest."""
        raise AssertionError(f"{type(self).__name__} has nothing to read")


@dataclass(frozen=True, slots=True)
class _Read:
    bounds: Mapping[int, int]
    seen: Mapping[int, SeenPartition]


class CutReader(Reader):
    """Reads the whole table again and again; every read must be exactly the cut that its plan names."""

    def __init__(self, table: Table, scenario: Scenario, truth: Truth) -> None:
        super().__init__(table, scenario, truth)
        self.tried = 0
        self.wrong = 0
        self.faults: list[str] = []
        self._waiting: list[_Read] = []

    def once(self) -> float:
        began = time.monotonic()
        stores, plan, checked = self.table.harness.stores, self.table.plan(), self.scenario.checked
        try:
            rows = read_arrow(
                plan, stores, columns=[*COORDINATES, *checked], check_lease=lambda: _renew(self.table, plan.lease_id)
            ).rows
        finally:
            self.table.release(plan)
        self._waiting.append(_Read({p: b.buffer_hi for p, b in plan.bounds.items()}, split(rows, checked)))
        self.judge()
        return max(REST_MIN_S, REST_SHARE * (time.monotonic() - began))

    def judge(self) -> None:
        """Check the reads whose records are all acknowledged; the others wait for their acknowledgements."""
        waiting = []
        for read in self._waiting:
            if not self.truth.covers(read.bounds):
                waiting.append(read)
                continue
            self._count(self.truth.faults(read.bounds, read.seen))
        self._waiting = waiting

    def finish(self) -> None:
        """After the last acknowledgement: what still waits has read what was never sent."""
        self.judge()
        for read in self._waiting:
            self._count([f"a read says that it goes up to {dict(read.bounds)}, so far nothing was sent"])
        self._waiting = []

    def _count(self, faults: list[str]) -> None:
        self.tried += 1
        self.wrong += bool(faults)
        self.faults += faults[: FAULTS_KEPT - len(self.faults)]


class NewestReader(Reader):
    """Polls the newest records by their offsets and notes when each was first returned."""

    def __init__(self, table: Table, scenario: Scenario, truth: Truth) -> None:
        super().__init__(table, scenario, truth)
        self._next = {p: 0 for p in truth.partitions}
        self._found: list[tuple[int, int, int, float]] = []  # partition, first and last new offset, when

    def once(self) -> float:
        where = " OR ".join(f"(_kafka_partition = {p} AND _kafka_offset >= {o})" for p, o in self._next.items())
        rows = self.scenario.arrived(self.table, where)
        now = time.monotonic()
        partition, offsets = (rows.column(name).to_numpy() for name in COORDINATES)
        for p, low in self._next.items():
            mine = offsets[partition == p]
            if len(mine):
                last = int(mine.max())
                self._found.append((p, low, last, now))
                self._next[p] = last + 1
        return NEWEST_EVERY_S

    @property
    def seen(self) -> int:
        """How many records were returned."""
        return sum(self.truth.partitions[p].below(last + 1) - self.truth.partitions[p].below(low)
                   for p, low, last, _ in list(self._found))  # fmt: skip

    def ages_ms(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Milliseconds from acknowledged to returned, of every record; call it after the last acknowledgement."""
        ages = [np.empty(0)]
        for p, low, last, at in list(self._found):
            truth = self.truth.partitions[p]
            run = slice(truth.below(low), truth.below(last + 1))
            ages.append(np.maximum(at - truth.acked_at[run], 0.0) * 1000)
        return np.concatenate(ages)


def _renew(table: Table, lease_id: str) -> None:
    table.harness.stores.leases.renew(lease_id, lease=timedelta(seconds=table.spec.retention.lease))
