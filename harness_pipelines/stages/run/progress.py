"""Options of a worker, and its progress per table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from harness_pipelines.ports.ledger import PartitionStatus
from harness_pipelines.ports.source import OpenTransaction
from harness_pipelines.protocol.claims import CONTINUOUS_STAGES, Stage
from harness_pipelines.protocol.versions import EFFECTS
from harness_pipelines.stages.run.moving import Tally

CLAIM_LEASE = timedelta(seconds=30)


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
    errors: Counter[str] = field(default_factory=Counter)  #: stage -> how often one held it
