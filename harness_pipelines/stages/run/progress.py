"""Options of a worker, and its progress per table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

import numpy as np

from harness_pipelines.ports.ledger import PartitionStatus
from harness_pipelines.ports.source import OpenTransaction
from harness_pipelines.protocol.claims import CONTINUOUS_STAGES, Stage
from harness_pipelines.protocol.versions import EFFECTS
from harness_pipelines.stages.ingest.ages import BOUNDS, Ages, Reached, quantile
from harness_pipelines.stages.ingest.ingest import IngestProgress
from harness_pipelines.stages.run.moving import Tally

CLAIM_LEASE = timedelta(seconds=30)
QUANTILES = (0.5, 0.99)  #: of the ages of records that are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker runs. ``until_idle``: end when nothing is left to move; ``for_s``: end after this many seconds.

    ``linger_s``: an idle worker waits so long for more before it ends. ``only_due``: it ends as soon as the rules of
    the spec ask for nothing, instead of moving the rest early; with ``rest_first`` what is there is moved once all the
    same. Of the stages on Spark. ``shares``: it takes all tables of the ledger with ``mode: external_worker``, later
    ones too, and shares them with other workers that do the same stages so.
    """

    stages: frozenset[Stage] = CONTINUOUS_STAGES
    until_idle: bool = False
    for_s: float | None = None
    linger_s: float = 0.0
    only_due: bool = False
    rest_first: bool = False
    shares: bool = False
    lease: timedelta = CLAIM_LEASE
    run_id: str | None = None
    ingest_on: Literal["threads", "spark"] = "threads"  #: this machine, or Spark's executors
    remove_large: bool = False  #: let expire remove more than half of a table's bytes in one run


@dataclass(slots=True)
class TableProgress:
    """The worker's progress for one table, for observers."""

    name: str
    rows: int = 0
    refused: int = 0
    commits: int = 0
    moves: int = 0
    version: int = 0
    trouble: dict[str, str] = field(default_factory=dict)  #: stage -> what it waits for
    stream: str | None = None  #: metadata file of the stream view
    positions: list[PartitionStatus] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)  #: where the logs begin
    held: dict[int, OpenTransaction] = field(default_factory=dict)  #: behind which records lie, by partition
    ends_at: float | None = None  #: monotonic seconds, when `ends` were asked for
    tallies: dict[Stage, Tally] = field(default_factory=lambda: {stage: Tally() for stage in EFFECTS})
    ingest_bytes: int = 0  #: of the values of the records that ingest took
    ingest_cpu_s: float = 0.0
    noted: Mapping[Stage, tuple[int, float]] = field(default_factory=dict)  #: of `spent`, what the ledger has
    in_lake: Ages = field(default_factory=Ages)  #: of records that this worker took, once the lake had them
    _threads: Collection[IngestProgress] = ()
    errors: Counter[str] = field(default_factory=Counter)  #: stage -> how often one held it

    def add_up(self, threads: Collection[IngestProgress]) -> None:
        """Show what the threads of ingest have done; without any it is done elsewhere."""
        if threads:
            self.rows = sum(one.rows for one in threads)
            self.refused = sum(one.refused for one in threads)
            self.commits = sum(one.commits for one in threads)
            self._threads = threads
            self.ingest_bytes = sum(one.bytes for one in threads)
            self.ingest_cpu_s = sum(one.cpu_s for one in threads)

    def spent(self) -> dict[Stage, tuple[int, float]]:
        """Bytes that were read and CPU seconds, by stage, since the process began."""
        moved = {stage: (0, tally.cpu_s) for stage, tally in self.tallies.items()}
        return {Stage.INGEST: (self.ingest_bytes, self.ingest_cpu_s), **moved}

    def note_in_lake(self, *, goal_s: float, now_s: float) -> None:
        """Count how old the records are that the lake has by the positions that are shown; by one thread alone.

        All records of a mark count as old as its oldest one.
        """
        reached = {p.partition: p.bounds.stream_hi for p in self.positions}
        for thread in self._threads:
            for partition, waiting in list(thread.waiting.items()):
                for oldest_ms, records in waiting.below(reached.get(partition, 0)):
                    age_s = np.array([now_s - oldest_ms / 1000.0])
                    self.in_lake.add(age_s, goal_s=goal_s, now_s=now_s, weight=records)

    def ages(self, now_s: float) -> dict[Reached, RecordAges]:
        """The ages of the records that this worker took, by what they have reached."""
        readable = [thread.ages for thread in self._threads]
        return {"readable": _ages(readable, now_s), "lake": _ages([self.in_lake], now_s)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordAges:
    """How old records were when they became readable, or came into the lake."""

    total: int  #: since the process began
    late: int  #: of these, older than the objective
    quantiles: Mapping[float, float | None]  #: share -> seconds, over the last minutes; None: there were no records


def _ages(found: Collection[Ages], now_s: float) -> RecordAges:
    counts = sum((one.slots(now_s) for one in found), np.zeros(len(BOUNDS), dtype=np.int64))
    return RecordAges(
        total=sum(one.total for one in found),
        late=sum(one.late for one in found),
        quantiles={share: quantile(counts, share) for share in QUANTILES},
    )
