"""The chaos run from beginning to end: storm, calm, verdict."""

from __future__ import annotations

import queue
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines_tests.chaos.processes import Child
from harness_pipelines_tests.chaos.reader import ENGINES, Cut
from harness_pipelines_tests.chaos.schedule import Fault, Kind, schedule
from harness_pipelines_tests.chaos.truth import Truth, Verdict
from harness_pipelines_tests.chaos.world import TOPIC, World

TICK_S = 0.05
FLOW_S = 300.0  #: for the first records to reach the lake, on a machine that has other work too
STILL_S = 150.0  #: nothing is broken any more and nothing moves: the table is stuck
PRODUCER_END_S = 60.0
FINDINGS_SHOWN = 20
_POSTGRES = frozenset(
    {
        Kind.CUT_POSTGRES,
        Kind.POSTGRES_AWAY,
        Kind.POSTGRES_RESTART,
        Kind.POSTGRES_IMMEDIATE,
        Kind.POSTGRES_KILL,
    }
)
#: The faults by which a reader of each engine may fail, by name; no other may reach it at all.
MAY_FAIL_BY: Mapping[str, frozenset[Kind]] = {
    "arrow": _POSTGRES,
    "spark": _POSTGRES | {Kind.CUT_SPARK, Kind.SPARK_KILL, Kind.SPARK_STOP},
}
READERS = ("arrow", "arrow", "spark")


class CannotGoOn(HarnessError):
    """A part of the run that is never broken on purpose does not work, so there is nothing to judge by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked of a run."""

    seed: int
    seconds: float  #: of the storm; starting, settling and judging come on top
    table: str = "chaos.records"
    rate: float = 200.0  #: records per second over all partitions
    jars: Path | None = None
    keep: bool = False  #: keep the home, with the logs of all processes


@dataclass(slots=True, kw_only=True)
class Outage:
    """A fault that happened, until it is healed and a read shows a record that was acknowledged after it began."""

    fault: Fault
    began: float
    marks: Mapping[int, int]  #: per partition the offset after the last record acknowledged before it
    healed: float | None = None  #: the table may move while a fault still goes on: the next connection is cut later
    recovered: float | None = None

    def reaches(self, *, since: float, until: float) -> bool:
        """Whether it, or what it left, went on at some moment of these."""
        over = None if self.healed is None or self.recovered is None else max(self.healed, self.recovered)
        return self.began <= until and (over is None or over >= since)

    def is_over(self, *, read_began: float, highs: Mapping[int, int]) -> bool:
        return read_began >= self.began and all(highs.get(p, 0) > mark for p, mark in self.marks.items())


@dataclass(slots=True, kw_only=True)
class Result:
    """What a run found. ``findings`` are sentences; empty means that everything held."""

    options: Options
    planned: tuple[Fault, ...]
    outages: list[Outage] = field(default_factory=list)
    reads: int = 0
    unavailable: int = 0
    wrong_reads: int = 0
    lost: int = 0
    doubled: int = 0
    produced: int = 0
    quarantined: int = 0
    moves: int = 0
    worker_starts: int = 0
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)
    home: Path | None = None  #: where the logs are, if they were kept

    @property
    def ok(self) -> bool:
        return not (self.findings or self.lost or self.doubled or self.wrong_reads)

    @property
    def recoveries_s(self) -> list[float]:
        return [o.recovered - o.began for o in self.outages if o.recovered is not None]

    def to_json(self) -> dict[str, Any]:
        """The fixed form of ``harness chaos --json``, and details."""
        recoveries = self.recoveries_s
        return {
            "seed": self.options.seed,
            "seconds": self.options.seconds,
            "faults": len(self.outages),
            "reads": self.reads,
            "lost": self.lost,
            "doubled": self.doubled,
            "wrong_reads": self.wrong_reads,
            "ok": self.ok,
            "produced": self.produced,
            "quarantined": self.quarantined,
            "unavailable_reads": self.unavailable,
            "faults_by_kind": dict(sorted(Counter(str(o.fault.kind) for o in self.outages).items())),
            "recovery_s": {
                "p50": round(statistics.median(recoveries), 2) if recoveries else None,
                "max": round(max(recoveries), 2) if recoveries else None,
            },
            "moves": self.moves,
            "worker_starts": self.worker_starts,
            "all_seconds": round(self.seconds, 1),
            "findings": self.findings[:FINDINGS_SHOWN],
            "schedule": [fault.to_json() for fault in self.planned],
            "logs": str(self.home) if self.home else None,
        }


def run_chaos(options: Options, say: Callable[[str], None]) -> Result:
    """Run the schedule of *options* and judge what came of it; everything that it started is ended.

    Raises: ServicesError when the services of its own do not start or do not come back, CannotGoOn.
    """
    result = Result(options=options, planned=schedule(options.seed, options.seconds))
    began = time.monotonic()
    with World(table=options.table, jars=options.jars, say=say) as world:
        storm = Storm(world, result, say)
        try:
            storm.blow()
            storm.settle()
            storm.judge()
        except BaseException as error:
            world.keep = options.keep or isinstance(error, Exception)  # the message may name a log
            raise
        world.keep = options.keep or not result.ok
        result.home = world.home if world.keep else None
        say("taking its services down")
    result.seconds = time.monotonic() - began
    return result


class Storm:
    """Faults by the schedule while producer, workers and readers go on; then the verdict."""

    def __init__(self, world: World, result: Result, say: Callable[[str], None]) -> None:
        self._world, self._result, self._say = world, result, say
        journal = world.home / "journal"
        journal.touch()
        self._truth = Truth(journal)
        self._began: queue.SimpleQueue[tuple[Fault, float]] = queue.SimpleQueue()
        self._running: list[tuple[Fault, Future[bool]]] = []
        self._rows_seen = 0
        self._producer = world.child("producer", "producer", world.kafka, TOPIC, str(journal), str(result.options.rate))
        self._readers: dict[str, tuple[str, Child]] = {}
        for number, engine in enumerate(READERS):
            child = world.child(f"reader-{number}-{engine}", "reader", engine, world.table.name, str(journal))
            self._readers[child.name] = (engine, child)
        self._right_at = dict.fromkeys(self._readers, time.monotonic())  # when the last right read of each was seen

    # -- storm ------------------------------------------------------------------------------------------------

    def blow(self) -> None:
        """Go through the schedule."""
        self._await_flow()
        options, due = self._result.options, deque(self._result.planned)
        self._say(f"{len(due)} faults in {options.seconds:g} s, seed {options.seed}")
        start = time.monotonic()
        while time.monotonic() - start < options.seconds:
            while due and time.monotonic() - start >= due[0].at_s:
                fault = due.popleft()
                began = partial(self._note_began, fault)
                self._running.append((fault, self._world.break_it(fault, began)))
            self._tick()
        while self._running:  # a service may still be starting
            self._tick()

    def settle(self) -> None:
        """Heal everything, end the producer, and wait until the lake holds all that was acknowledged."""
        self._say("the storm is over: nothing is broken any more; waiting until everything is in both views")
        self._world.heal()
        began = time.monotonic()
        self._producer.ask_to_end()
        while self._producer.exit_code is None and time.monotonic() - began < PRODUCER_END_S:
            self._tick()
        if code := self._producer.end():
            self._find(f"the producer ended with code {code}:\n{self._producer.last_words()}")
        self._truth.refresh()
        if self._await_lake():
            self._say(f"everything is in both views after {time.monotonic() - began:.1f} s")
        else:
            self._find(self._stuck())
        for _, child in self._readers.values():
            child.ask_to_end()
        for _, child in self._readers.values():
            child.end()
        self._drain()
        for worker in self._world.workers:
            worker.end()
            for defect in (*worker.defects, *worker.broken_stages):
                self._find(defect)
        self._result.worker_starts = sum(worker.starts for worker in self._world.workers)
        for outage in self._result.outages:
            if outage.recovered is None:
                self._find(f"no read showed a record from after the fault {outage.fault}")

    # -- verdict ----------------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Compare everything with the producer's log, by both engines, and audit."""
        self._say("comparing with the producer's log, by Arrow and by Spark; auditing")
        result, table, truth = self._result, self._world.table, self._truth
        for engine, read in ENGINES.items():
            plan = table.plan()
            try:
                verdict = truth.judge(read(table, plan), truth.highs)
            finally:
                table.release(plan)
            result.reads += 1
            self._take(engine, verdict)
            if Cut.of(plan).buffer != truth.highs:
                self._find(f"the table ends at {Cut.of(plan).buffer}, the producer's log at {truth.highs}")
        for gap in truth.gaps():
            self._find(f"the broker: {gap}")
        refused = self._refused()
        if refused != truth.misfits:
            odd = sorted(refused ^ truth.misfits)[:5]
            self._find(f"{len(refused)} records are in quarantine, {len(truth.misfits)} were misfits; such as {odd}")
        report = table.audit(full=True).to_json()
        if not report["ok"]:
            self._find(f"the audit found faults: {str(report)[:2000]}")
        result.produced, result.quarantined = truth.acked, len(refused)
        result.moves = table.harness.stores.tables.head(table.row).version - 1

    def _take(self, engine: str, verdict: Verdict) -> None:
        result = self._result
        result.lost, result.doubled = max(result.lost, verdict.lost), max(result.doubled, verdict.doubled)
        if not verdict.ok:
            result.wrong_reads += 1
            self._find(f"the last read, by {engine}: {verdict}")

    def _refused(self) -> set[tuple[int, int]]:
        with self._world.harness.stores.database.session() as connection:
            rows = connection.execute(
                'SELECT partition, "offset" FROM harness.quarantine WHERE table_id = %s',
                [self._world.table.row.table_id],
            ).fetchall()
        return {(row["partition"], row["offset"]) for row in rows}

    # -- the clockwork ----------------------------------------------------------------------------------------

    def _tick(self) -> None:
        time.sleep(TICK_S)  # the schedule's clock: nothing is waited for
        for worker in self._world.workers:
            worker.supervise()
        self._note_outages()
        self._drain()
        for one in list(self._running):
            fault, done = one
            if done.done():
                self._running.remove(one)
                self._note_healed(fault, happened=done.result())
        if self._producer.exit_code not in (None, 0):
            raise CannotGoOn(f"the producer ended by itself:\n{self._producer.last_words()}")

    def _note_began(self, fault: Fault) -> None:
        """Called by the thread that is about to break something."""
        self._began.put((fault, time.monotonic()))

    def _note_outages(self) -> None:
        while not self._began.empty():
            fault, at = self._began.get()
            self._truth.refresh()
            self._result.outages.append(Outage(fault=fault, began=at, marks=self._truth.highs))
            self._say(str(fault))

    def _note_healed(self, fault: Fault, *, happened: bool) -> None:
        outages = self._result.outages
        if not happened:
            self._say(f"{fault}: left out, its target was still away from the fault before")
            outages[:] = [o for o in outages if o.fault is not fault]
        for outage in outages:
            if outage.fault is fault:
                outage.healed = time.monotonic()

    def _drain(self) -> None:
        """Take what the readers told."""
        for name, (engine, child) in self._readers.items():
            for told in child.told():
                self._hear(name, engine, told)

    def _hear(self, name: str, engine: str, told: Mapping[str, Any]) -> None:
        result = self._result
        if "highs" in told:
            result.reads += 1
            if "wrong" in told:
                result.wrong_reads += 1
                self._find(f"{name}: " + "; ".join(told["wrong"]))
                return
            self._right_at[name] = told["ended"]
            self._rows_seen = max(self._rows_seen, told["rows"])
            highs = {int(p): high for p, high in told["highs"].items()}
            self._recover(told, highs)
            return
        result.unavailable += 1
        excused = self._may_fail(engine, since=self._right_at[name], until=told["ended"])
        if "defect" in told or ("unnamed" in told and engine == "arrow") or not excused:
            self._find(f"{name} failed{'' if excused else ' while nothing that it needs was broken'}: {told}")

    def _may_fail(self, engine: str, *, since: float, until: float) -> bool:
        """Whether a fault that reaches readers of *engine* went on between its last right read and *until*."""
        return any(
            o.fault.kind in MAY_FAIL_BY[engine] and o.reaches(since=since, until=until) for o in self._result.outages
        )

    def _recover(self, told: Mapping[str, Any], highs: Mapping[int, int]) -> None:
        for outage in self._result.outages:
            if outage.recovered is None and outage.is_over(read_began=told["began"], highs=highs):
                outage.recovered = told["seen_at"]
                self._say(f"{outage.fault}: the table moved again after {told['seen_at'] - outage.began:.1f} s")

    def _await_flow(self) -> None:
        """Wait until records went all the way once, so that every fault meets something that moves."""
        until = time.monotonic() + FLOW_S
        while not (self._rows_seen and any(p.bounds.stream_hi for p in self._world.table.positions())):
            self._tick()
            if time.monotonic() > until:
                raise CannotGoOn(f"no record reached lake and readers within {FLOW_S:g} s, with nothing broken yet")

    def _await_lake(self) -> bool:
        """Wait until the lake holds what was acknowledged and every fault was recovered from; False when it stands."""
        before, moved_at = self._stand(), time.monotonic()
        while time.monotonic() - moved_at < STILL_S:
            if before == (self._truth.highs, 0):
                return True
            self._tick()
            if (now := self._stand()) != before:
                before, moved_at = now, time.monotonic()
        return False

    def _stand(self) -> tuple[dict[int, int], int]:
        """How far the lake is in both of its orders, and how many faults wait for their recovery."""
        reached: dict[int, int] = {}
        with suppress(TryAgain):  # a session of before the last restart
            reached = {p.partition: p.bounds.batch_hi for p in self._world.table.positions()}
        return reached, sum(outage.recovered is None for outage in self._result.outages)

    def _stuck(self) -> str:
        bounds = {p.partition: p.bounds for p in self._world.table.positions()}
        reached = {p: (b.batch_hi, b.stream_hi, b.buffer_hi) for p, b in bounds.items()}
        waiting = [str(o.fault) for o in self._result.outages if o.recovered is None]
        return (
            f"nothing moved for {STILL_S:g} s although nothing is broken: the table stands at (batch, stream, buffer) "
            f"{reached}, the producer's log at {self._truth.highs}; not recovered: {waiting}"
        )

    def _find(self, what: str) -> None:
        self._result.findings.append(what)
        self._say(f"FOUND {what}")
