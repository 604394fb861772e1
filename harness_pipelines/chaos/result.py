"""The options of a chaos run, and its result."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness_pipelines.chaos.content import BOTH, Subject
from harness_pipelines.chaos.schedule import Fault, Kind, schedule

FINDINGS_SHOWN = 20
POSTGRES = frozenset(
    {
        Kind.CUT_POSTGRES,
        Kind.POSTGRES_AWAY,
        Kind.POSTGRES_RESTART,
        Kind.POSTGRES_IMMEDIATE,
        Kind.POSTGRES_KILL,
        Kind.POSTGRES_STOP,
        Kind.PROMOTE,
    }
)
KAFKA = frozenset({Kind.KAFKA_KILL, Kind.KAFKA_STOP})
SPARK = frozenset({Kind.CUT_SPARK, Kind.SPARK_KILL, Kind.SPARK_STOP})
STORE = frozenset({Kind.STORE_KILL, Kind.STORE_STOP})
SERVER = frozenset({Kind.SERVER_KILL, Kind.SERVER_STOP})
#: What only moves need: ingest and reads of the buffer continue without it.
HOLDS_UP_MOVES = SPARK | STORE
#: The faults by which a reader of each engine may fail, by name; no other may reach it at all.
MAY_FAIL_BY: Mapping[str, frozenset[Kind]] = {
    "arrow": POSTGRES | STORE,
    "spark": POSTGRES | SPARK | STORE,
    "served": POSTGRES | SERVER | STORE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked of a run."""

    seed: int
    seconds: float  #: of the storm; starting, settling and judging come on top
    table: str = "chaos.records"  #: the first one; the names of the others begin with it
    crowd: int = 0  #: small tables beside the four
    rate: float = 200.0  #: records per second over all partitions of all tables
    thaw_s: float = 60.0  #: after the last fault, for a new record of every partition to be readable and in the lake
    engine: str = BOTH  #: what moves the tables
    jars: Path | None = None
    s3: bool = False  #: the lake is on the embedded object store, not in a folder
    dagster: bool = False  #: Dagster's runs do the work of one table, not the workers
    keep: bool = False  #: keep the home, with the logs of all processes
    alerts: Path | None = None  #: a folder with Prometheus's files, whose alerts are judged too

    @property
    def switches(self) -> bool:
        """Whether tables change their engine. A drill that stops Spark must find tables that wait for it."""
        return self.engine == BOTH and self.alerts is None

    @property
    def has_spark(self) -> bool:
        """Whether Spark runs, as a mover and as a reader."""
        return self.engine != "arrow"

    @property
    def planned(self) -> tuple[Fault, ...]:
        return schedule(
            self.seed,
            self.seconds,
            s3=self.s3,
            dagster=self.dagster,
            switches=self.switches,
            spark=self.has_spark,
        )


Highs = Mapping[int, int]  #: per partition the offset after the last one


@dataclass(slots=True, kw_only=True)
class Outage:
    """A fault that happened, until it is healed and of every table a read shows a record from after it began.

    A fault of what only moves need is recovered from later: once a move of every table that began after the fault's
    end is committed, or nothing was left to move. Reads show that: the first one that begins after the end has all
    that a move of before may take, and a later one has more than that in the lake.
    """

    fault: Fault
    began: float
    marks: dict[str, Highs]  #: per table that was not read since: what was acknowledged before it
    unmoved: dict[str, Highs | None] = field(default_factory=dict)  #: per table that has to move: how far it was read
    healed: float | None = None  #: the table may move while a fault still continues: the next connection is cut later
    read_again: float | None = None
    recovered: float | None = None  #: read again, and moved again

    def __post_init__(self) -> None:
        if self.holds_up_moves:
            self.unmoved = dict.fromkeys(self.marks)

    @property
    def holds_up_moves(self) -> bool:
        return self.fault.kind in HOLDS_UP_MOVES

    def reaches(self, *, since: float, until: float) -> bool:
        """Return whether it, or its after-effect on reads, was active at any of these moments."""
        return self._is_active(since, until, over=self.read_again)

    def holds_up(self, *, since: float, until: float) -> bool:
        """Return whether it, or its after-effect on reads and moves, was active at any of these moments."""
        return self._is_active(since, until, over=self.recovered)

    def _is_active(self, since: float, until: float, *, over: float | None) -> bool:
        end = None if self.healed is None or over is None else max(self.healed, over)
        return self.began <= until and (end is None or end >= since)

    def excuses(self, engine: str, subject: Subject) -> bool:
        """Return whether it may make a read of *subject* by *engine* fail by name."""
        kind = self.fault.kind
        # The locks of what sleeps stay until the session's timeouts; those of what dies go with it.
        is_asleep = self.fault.point.endswith("in_transaction") and kind is not Kind.MOVE_KILL
        by_kafka = kind in KAFKA and not subject.buffered
        return kind in MAY_FAIL_BY[engine] or is_asleep or by_kafka or self.damages(subject)

    def damages(self, subject: Subject) -> bool:
        """Return whether it breaks files of *subject*: a retry does not help while it lasts."""
        return self.fault.kind is Kind.DAMAGE and self.fault.subject == subject.suffix

    @property
    def ends_history(self) -> bool:
        """Return whether the ledger lost its last commits: a running read is refused for good, the next one is not."""
        return self.fault.kind is Kind.PROMOTE

    def saw(self, table: str, *, read_began: float, highs: Highs, lake: Highs, at: float) -> bool:
        """Take note of a read of *table* that shows all below *highs*, from the lake what is below *lake*.

        True when it was the last one that was waited for.
        """
        if self.recovered is not None or read_began < self.began:
            return False
        marks = self.marks.get(table)
        if marks is not None and all(highs.get(p, 0) > mark for p, mark in marks.items()):
            del self.marks[table]
            self.read_again = None if self.marks else at
        self._note_moved(table, read_began=read_began, highs=highs, lake=lake)
        self.recovered = None if self.marks or self.unmoved else at
        return self.recovered is not None

    def _note_moved(self, table: str, *, read_began: float, highs: Highs, lake: Highs) -> None:
        if table not in self.unmoved or self.healed is None or read_began < self.healed:
            return
        there = self.unmoved[table]
        if there is None:
            self.unmoved[table] = there = dict(highs)
        # A partition that had nothing more to move is no proof, and needs none.
        if all(lake.get(p, 0) > high or lake.get(p, 0) >= highs.get(p, 0) for p, high in there.items()):
            del self.unmoved[table]


@dataclass(slots=True, kw_only=True)
class Result:
    """The result of a run. ``findings`` are sentences; no finding means that every check passed."""

    options: Options
    planned: tuple[Fault, ...]
    outages: list[Outage] = field(default_factory=list)
    reads: int = 0
    unavailable: int = 0
    wrong_reads: int = 0
    lost: int = 0
    doubled: int = 0
    unrepeatable: int = 0  #: reads of an explicit version, or under one lease, that gave other rows than before
    frozen: int = 0  #: tables that did not move in time after the last fault
    produced: int = 0
    quarantined: int = 0
    repeated: int = 0  #: records that Kafka has twice, as a broker that was killed did not know what it had written
    moves: int = 0
    files: Counter[str] = field(default_factory=Counter)  #: of the newest versions, by the engine that wrote them
    history_lost: int = 0  #: events of tables whose last commits a promotion lost
    worker_starts: int = 0
    seconds: float = 0.0
    acts: Counter[str] = field(default_factory=Counter)  #: what became of them
    alerts: list[dict[str, Any]] = field(default_factory=list)  #: all that fired, in seconds since Prometheus began
    wrong_alerts: int = 0  #: that fired without a cause, did not end, or were missing in a drill
    findings: list[str] = field(default_factory=list)
    home: Path | None = None  #: where the logs are, if they were kept

    @property
    def ok(self) -> bool:
        counted = self.lost, self.doubled, self.wrong_reads, self.unrepeatable, self.frozen
        return not (self.findings or any(counted))

    @property
    def recoveries_s(self) -> list[float]:
        return [o.recovered - o.began for o in self.outages if o.recovered is not None]

    def to_json(self) -> dict[str, Any]:
        """The fixed form of ``harness chaos --json``, and details."""
        recoveries = self.recoveries_s
        return {
            "seed": self.options.seed,
            "seconds": self.options.seconds,
            "engine": self.options.engine,
            "faults": len(self.outages),
            "reads": self.reads,
            "lost": self.lost,
            "doubled": self.doubled,
            "wrong_reads": self.wrong_reads,
            "unrepeatable": self.unrepeatable,
            "frozen": self.frozen,
            "ok": self.ok,
            "produced": self.produced,
            "quarantined": self.quarantined,
            "repeated_by_kafka": self.repeated,
            "unavailable_reads": self.unavailable,
            "faults_by_kind": dict(sorted(Counter(str(o.fault.kind) for o in self.outages).items())),
            "acts": dict(sorted(self.acts.items())),
            "recovery_s": {
                "p50": round(statistics.median(recoveries), 2) if recoveries else None,
                "max": round(max(recoveries), 2) if recoveries else None,
            },
            **({"alerts": self.alerts, "wrong_alerts": self.wrong_alerts} if self.options.alerts else {}),
            "moves": self.moves,
            "files_by_engine": dict(sorted(self.files.items())),
            "history_lost": self.history_lost,
            "worker_starts": self.worker_starts,
            "all_seconds": round(self.seconds, 1),
            "findings": self.findings[:FINDINGS_SHOWN],
            "schedule": [fault.to_json() for fault in self.planned],
            "logs": str(self.home) if self.home else None,
        }
