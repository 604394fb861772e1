"""What a worker process takes, and when records become readable, seen from outside of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import psycopg
from numpy.typing import NDArray

from harness_pipelines_tests.bench.steady import Produced

POSITIONS = "SELECT table_id, buffer_hi FROM harness.ingest_positions WHERE table_id = ANY(%s)"
IN_LAKE = "SELECT sum(stream_hi) FROM harness.lake_positions WHERE table_id = ANY(%s)"
TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
EVERY_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a process had at one moment."""

    at: float  #: monotonic seconds
    cpu_s: float
    threads: int
    rss_bytes: int


def taken(pid: int) -> Taken:
    """Of the process *pid*, by Linux's /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, threads, pages = int(fields[11]), int(fields[12]), int(fields[17]), int(fields[21])
    return Taken(
        at=time.monotonic(),
        cpu_s=(user + system) / os.sysconf("SC_CLK_TCK"),
        threads=threads,
        rss_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
    )


@dataclass
class Positions:
    """Looks every 20 ms how far each table can be read, in a thread, while the block lasts.

    A record can be read as soon as the position of its partition is above its offset: each table has one.
    """

    dsn: str
    topics: Mapping[int, str]  #: by the ids of their tables
    seen: dict[str, list[tuple[float, int]]] = field(default_factory=dict)  #: when a position was seen, if it was new
    transactions: int = 0  #: of the watch itself
    _ended: threading.Event = field(default_factory=threading.Event)
    _failed: list[BaseException] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, name="positions", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if error is None and self._failed:
            raise self._failed[0]

    def reached(self, ends: Mapping[str, int]) -> bool:
        """Whether all offsets below *ends* can be read."""
        return all((self.seen.get(topic) or [(0.0, 0)])[-1][1] >= end for topic, end in ends.items())

    def in_lake(self) -> int:
        """How many offsets of all the tables are in the lake, if their logs start at 0."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            [[count]] = connection.execute(IN_LAKE, [list(self.topics)]).fetchall()
        return int(count)

    def _watch(self) -> None:
        try:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                while not self._ended.wait(EVERY_S):
                    found = connection.execute(POSITIONS, [list(self.topics)]).fetchall()
                    now = time.monotonic()
                    self.transactions += 1
                    for table_id, position in found:
                        known = self.seen.setdefault(self.topics[table_id], [])
                        if not known or known[-1][1] != position:
                            known.append((now, position))
        except BaseException as error:  # the bench raises it
            self._failed.append(error)

    def ages(self, log: Mapping[str, Produced], *, skip_s: float) -> NDArray[np.float64]:
        """Seconds from the acknowledgement of each record until it was seen, without those of the first *skip_s*."""
        began = min(float(one.acked_at.min()) for one in log.values() if len(one.acked_at))
        found = []
        for topic, one in log.items():
            moments, positions = zip(*self.seen.get(topic, [(float("nan"), 0)]), strict=True)
            at = np.searchsorted(np.array(positions), one.offsets, side="right")
            assert not len(at) or at.max() < len(moments), f"{topic}: not all records became readable"
            ages = np.array(moments)[at] - one.acked_at
            found.append(np.maximum(ages[one.acked_at >= began + skip_s], 0.0))
        return np.concatenate(found)


def transactions(dsn: str) -> int:
    """How many transactions the database has had. Its server counts those of a session a second later."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        [[count]] = connection.execute(TRANSACTIONS).fetchall()
    return int(count)
