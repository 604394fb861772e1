"""The chaos run from beginning to end: storm, calm, verdict."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from math import inf
from typing import Any

from harness_pipelines.chaos.alerts import DRILLS, END_S, GAP_S, Alerts, needed
from harness_pipelines.chaos.content import SUBJECTS, subjects_of
from harness_pipelines.chaos.processes import Child
from harness_pipelines.chaos.producer import journal_of
from harness_pipelines.chaos.result import Options, Outage, Result
from harness_pipelines.chaos.schedule import Fault
from harness_pipelines.chaos.truth import Truth
from harness_pipelines.chaos.verdict import judge
from harness_pipelines.chaos.world import World
from harness_pipelines.errors import HarnessError, TryAgain

TICK_S = 0.05
LOOK_S = 0.5  #: how often the ledger is asked how far the tables are
PROGRESS_S = 30.0
LATE_S = 60.0  #: a fault that takes so much longer than planned is named with the progress
FLOW_S = 600.0  #: for the first records to reach the lake, on a machine that has other work too
STILL_S = 150.0  #: no fault is active and nothing moves: the table is stuck
RUNS_S = 660.0  #: longer than Dagster's sensors let a stage wait whose runs failed again and again
PRODUCER_END_S = 60.0

Reached = dict[str, dict[int, int]]  #: per table and partition


class CannotGoOn(HarnessError):
    """A part of the run that is never broken on purpose does not work, so there is nothing to judge by."""


def run_chaos(
    options: Options,
    say: Callable[[str], None],
    *,
    if_late: Callable[[Callable[[], None]], None] = lambda _: None,
) -> Result:
    """Run the schedule of *options* and check the outcome; every process that it started is ended.

    *if_late* receives a function that kills all of them at once, for a caller that cannot wait.

    Raises: ServicesError when its services do not start or do not come back, CannotGoOn; with alerts UsageError,
    PrometheusFailed.
    """
    result = Result(options=options, planned=options.planned)
    began = time.monotonic()
    if options.alerts is not None:
        needed(options.alerts)
    with (
        World(options, say=say) as world,
        _watched(options, world) as alerts,
    ):
        if_late(world.kill)
        if alerts is not None:
            if_late(alerts.abandon)
        storm = Storm(world, result, say, alerts)
        try:
            storm.blow()
            storm.settle()
            say(f"comparing with the producer's log, by Arrow{' and by Spark' * options.has_spark}; auditing")
            judge(world, storm.truths, result, storm.find)
            storm.judge_alerts()
        except BaseException as error:
            world.keep = options.keep or isinstance(error, Exception)  # the message may name a log
            raise
        world.keep = options.keep or not result.ok
        result.home = world.home if world.keep else None
        say("taking its services down")
    result.seconds = time.monotonic() - began
    return result


def _watched(options: Options, world: World) -> AbstractContextManager[Alerts | None]:
    if options.alerts is None:
        return nullcontext()
    return Alerts(options.alerts, targets=world.metrics_ports, home=world.home)


class Storm:
    """Faults by the schedule while producer, workers and readers continue; then calm."""

    def __init__(self, world: World, result: Result, say: Callable[[str], None], alerts: Alerts | None) -> None:
        self._world, self._result, self._say, self._alerts = world, result, say, alerts
        self.truths: dict[str, Truth] = {}
        for subject in subjects_of(result.options.crowd):
            journal = journal_of(world.home, subject)
            journal.touch()
            self.truths[subject.name(result.options.table)] = Truth(journal, subject)
        self._began: queue.SimpleQueue[tuple[Fault, float]] = queue.SimpleQueue()
        self._running: list[tuple[Fault, Future[bool]]] = []
        self._seen: Reached = {name: {} for name in self.truths}  # the newest that reads showed
        self._last: dict[tuple[str, str], Mapping[str, int]] = {}  # where the last right read of each reader ended
        crowd = str(result.options.crowd)
        self._producer = world.child("producer", "producer", str(world.home), str(result.options.rate), crowd)
        self._readers: dict[str, tuple[str, Child]] = {}
        of = (result.options.table, str(world.home))
        readers = {
            "arrow": ("reader", "arrow", *of, crowd),
            "spark": ("reader", "spark", *of, "0"),  # one read of it takes seconds
            "served": ("served", world.url, world.token, *of, crowd),
        }
        for number, (engine, (module, *words)) in enumerate(readers.items()):
            name = f"reader-{number}-{engine}"
            if engine != "spark" or result.options.has_spark:
                self._readers[name] = (engine, world.child(name, module, *words))
        self._say_at = time.monotonic() + PROGRESS_S
        self._blows_from = inf
        # When the last right read of each was seen.
        self._right_at = {one: time.monotonic() for one in self._reads()}

    def _reads(self) -> Iterator[tuple[str, str]]:
        """Which reader reads which table: Spark, only those that faults aim at."""
        for name, (engine, _) in self._readers.items():
            for table, truth in self.truths.items():
                if engine != "spark" or truth.subject in SUBJECTS:
                    yield name, table

    def blow(self) -> None:
        """Go through the schedule."""
        self._await_flow()
        options, due = self._result.options, deque(self._result.planned)
        self._say(f"{len(due)} faults in {options.seconds:g} s, seed {options.seed}")
        start = self._blows_from = time.monotonic()
        while time.monotonic() - start < options.seconds:
            while due and time.monotonic() - start >= due[0].at_s:
                self._break(due.popleft())
            self._tick()
        self._await_faults()

    def settle(self) -> None:
        """Heal everything, see every table move, end the producer, and wait until the lake holds what it wrote."""
        self._world.heal()
        self._say("the storm is over: nothing is broken any more; waiting until every partition moves")
        self._await_thaw()
        if self._alerts is not None:
            self._drill(self._alerts)
        self._say("waiting until everything is in the lake")
        began = time.monotonic()
        self._producer.ask_to_end()
        while self._producer.exit_code is None and time.monotonic() - began < PRODUCER_END_S:
            self._tick()
        if code := self._producer.end():
            self.find(f"the producer ended with code {code}:\n{self._producer.last_words()}")
        self._refresh()
        if self._await_lake():
            self._say(f"everything is in the lake after {time.monotonic() - began:.1f} s")
            self._await_readers()
        else:
            self.find(self._stuck())
        for _, child in self._readers.values():
            child.ask_to_end()
        for _, child in self._readers.values():
            child.end()
        self._drain()
        self._end_workers()
        for outage in self._result.outages:
            if outage.marks:
                self.find(f"no read of {', '.join(outage.marks)} showed a record from after the fault {outage.fault}")
            if outage.unmoved:
                self.find(f"no move of {', '.join(outage.unmoved)} that began after the fault {outage.fault} was seen")

    def _end_workers(self) -> None:
        for one in (*self._world.movers, *self._world.servers):
            one.end()
        for worker in (*self._world.workers, *self._world.servers):
            for defect in (*worker.defects, *worker.broken_stages):
                self.find(defect)
        self._result.worker_starts = sum(worker.starts for worker in self._world.workers)

    def find(self, what: str) -> None:
        self._result.findings.append(what)
        self._say(f"FOUND {what}")

    def judge_alerts(self) -> None:
        """Each alert that fired must have had a cause."""
        if self._alerts is None:
            return
        for one in (fired := self._alerts.fired()):
            begun_cold = one.began < self._blows_from  # on a busy machine Spark's first moves take more than a minute
            if not (begun_cold or self._alerts.is_right(one, self._result.outages)):
                self._find_alert(f"{one} fired although nothing that it names was broken")
        self._result.alerts = [one.to_json(self._alerts.began) for one in fired]

    def _drill(self, alerts: Alerts) -> None:
        """Break one thing after the other for minutes: its alerts must fire, and end."""
        self._await_quiet(alerts, "the storm")
        for one in DRILLS:
            self._say(f"drill: {one}; {', '.join(sorted(one.alerts))} must fire")
            began = time.monotonic()
            for fault in one.faults:
                self._break(fault)
            self._await_faults()
            self._await(lambda: False, GAP_S)  # what fired in the last moments has a sample by then
            fired = {firing.alert for firing in alerts.fired() if firing.ended >= began}
            if missing := sorted(one.alerts - fired):
                self._find_alert(f"{', '.join(missing)} did not fire in the drill: {one}")
            self._await_quiet(alerts, f"the drill: {one}")

    def _await_quiet(self, alerts: Alerts, what: str) -> None:
        if not self._await(lambda: not alerts.firing(), END_S):
            still = ", ".join(map(str, alerts.firing()))
            self._find_alert(f"{END_S:g} s after {what} these still fire: {still}")

    def _find_alert(self, what: str) -> None:
        self._result.wrong_alerts += 1
        self.find(what)

    # -- the clockwork ----------------------------------------------------------------------------------------

    def _break(self, fault: Fault) -> None:
        self._running.append((fault, self._world.break_it(fault, partial(self._note_began, fault))))

    def _await_faults(self) -> None:
        while self._running:  # a service may still be starting, an act may still be asleep
            self._tick()

    def _tick(self) -> None:
        time.sleep(TICK_S)  # the schedule's clock: nothing is waited for
        self._world.supervise()
        self._note_outages()
        self._drain()
        if time.monotonic() >= self._say_at:
            self._say_at = time.monotonic() + PROGRESS_S
            self._say_progress()
        for one in list(self._running):
            fault, done = one
            if done.done():
                self._running.remove(one)
                self._note_healed(fault, happened=done.result())
        if self._producer.exit_code not in (None, 0):
            raise CannotGoOn(f"the producer ended by itself:\n{self._producer.last_words()}")

    def _say_progress(self) -> None:
        """Taken from the readers' output: the ledger may be stopped now, while the schedule continues."""
        counts = {name: sum(highs.values()) for name, highs in self._seen.items()}
        aims = {name: counts.pop(name) for name, truth in self.truths.items() if truth.subject in SUBJECTS}
        seen = ", ".join(f"{name}: {count}" for name, count in aims.items())
        seen += f", {len(counts)} more: {sum(counts.values())}" if counts else ""
        self._say(f"{self._result.reads} reads, {len(self._result.outages)} faults so far; records read of {seen}")
        late = [o for o in self._result.outages if self._is_late(o)]
        if late:
            self._say(f"not over yet: {', '.join(map(str, (outage.fault for outage in late)))}")

    def _is_late(self, outage: Outage) -> bool:
        """Whether a fault, or the way back from it, takes longer than it should: the storm waits for its end."""
        return outage.healed is None and time.monotonic() > outage.began + outage.fault.lasts_s + LATE_S

    def _refresh(self) -> None:
        for truth in self.truths.values():
            truth.refresh()

    def _note_began(self, fault: Fault) -> None:
        """Called by the thread that is about to break something."""
        self._began.put((fault, time.monotonic()))

    def _note_outages(self) -> None:
        while not self._began.empty():
            fault, at = self._began.get()
            self._refresh()
            # How long Dagster takes to start a run would excuse what workers do too late.
            marks = {name: truth.highs for name, truth in self.truths.items() if name not in self._world.of_dagster}
            self._result.outages.append(Outage(fault=fault, began=at, marks=dict(marks)))
            self._say(str(fault))

    def _note_healed(self, fault: Fault, *, happened: bool) -> None:
        outages = self._result.outages
        if not happened:
            self._say(f"{fault}: left out, what it needs was still away from the fault before")
            outages[:] = [o for o in outages if o.fault is not fault]
        for outage in outages:
            if outage.fault is fault:
                outage.healed = time.monotonic()

    def _drain(self) -> None:
        """Collect the reports of readers and acts."""
        for name, (engine, child) in self._readers.items():
            for told in child.told():
                self._hear(name, engine, told)
        while not self._world.told.empty():
            self._hear_of(*self._world.told.get())

    def _hear_of(self, fault: Fault, told: Mapping[str, Any]) -> None:
        """Of a fault that has something to tell."""
        for kind, what in told.items():
            self._result.acts[kind] += 1
            self._result.unrepeatable += kind == "unrepeatable"
            self._result.wrong_reads += kind == "wrong"
            if kind in {"done", "refused", "unharmed", "away"}:
                self._say(f"{fault}: {what}")
            else:
                self.find(f"{fault}: {kind}: {what}")

    def _hear(self, name: str, engine: str, told: Mapping[str, Any]) -> None:
        result, table = self._result, told["table"]
        if "unrepeatable" in told:
            result.unrepeatable += 1
            self.find(f"{name}, {table}: {told['unrepeatable']}")
        if "highs" in told:
            result.reads += 1
            if "wrong" in told:
                result.wrong_reads += 1
                self.find(f"{name}, {table}: " + "; ".join(told["wrong"]))
                return
            self._right_at[name, table] = told["ended"]
            self._last[name, table] = told["highs"]
            self._recover(told)
            return
        result.unavailable += 1
        subject, since = self.truths[table].subject, self._right_at[name, table]
        reaching = [o for o in self._result.outages if o.reaches(since=since, until=told["ended"])]
        excused = any(outage.excuses(engine, subject) for outage in reaching)
        is_defect = "defect" in told and not any(o.damages(subject) or o.ends_history for o in reaching)
        if is_defect or ("unnamed" in told and engine == "arrow") or not excused:
            self.find(f"{name} failed{'' if excused else ' while nothing that it needs was broken'}: {told}")

    def _recover(self, told: Mapping[str, Any]) -> None:
        highs, lake = ({int(p): high for p, high in told[of].items()} for of in ("highs", "lake"))
        seen = self._seen[told["table"]]
        seen.update({p: max(high, seen.get(p, 0)) for p, high in highs.items()})
        for outage in self._result.outages:
            if outage.saw(told["table"], read_began=told["began"], highs=highs, lake=lake, at=told["seen_at"]):
                took_s = told["seen_at"] - outage.began
                again = "moved again" if outage.holds_up_moves else "shows newer records"
                self._say(f"{outage.fault}: every table {again} after {took_s:.1f} s")

    # -- waiting ----------------------------------------------------------------------------------------------

    def _await_flow(self) -> None:
        """Wait until records went all the way once, so that every fault meets something that moves."""
        if not self._await(self._flows, FLOW_S):
            raise CannotGoOn(f"no record reached lake and readers within {FLOW_S:g} s, with nothing broken yet")

    def _flows(self) -> bool:
        """Return whether records of every table were read and moved to the lake."""
        there = [p.bounds.stream_hi for table in self._world.tables.values() for p in table.positions()[:1]]
        return all(self._seen.values()) and all(there)

    def _await_thaw(self) -> None:
        """A new record of each partition must be readable and in the lake in time."""
        self._refresh()
        marks = {name: truth.highs for name, truth in self.truths.items()}
        of_dagster = {name: marks.pop(name) for name in self._world.of_dagster}
        self._await_moved(marks, self._result.options.thaw_s)
        if of_dagster:
            self._await_moved(of_dagster, RUNS_S)

    def _await_moved(self, marks: Mapping[str, Mapping[int, int]], thaw_s: float) -> None:
        began = time.monotonic()
        if self._await(lambda: all(self._moved(marks).values()), thaw_s):
            self._say(f"every partition of {', '.join(marks)} moved within {time.monotonic() - began:.1f} s")
            return
        for name, moved in self._moved(marks).items():
            if not moved:
                self._result.frozen += 1
                here = f"reads show {self._seen[name]}, the lake has {self._in_lake(moved=True).get(name)}"
                self.find(f"{name} is frozen: {thaw_s:g} s after the last fault {here}, it was at {marks[name]}")

    def _moved(self, marks: Mapping[str, Mapping[int, int]]) -> dict[str, bool]:
        """Of which tables a record at or after *marks* was moved to the lake and read, in each partition."""
        lake = self._in_lake(moved=True)
        return {
            name: all(min(lake.get(name, {}).get(p, 0), self._seen[name].get(p, 0)) > mark for p, mark in of.items())
            for name, of in marks.items()
        }

    def _in_lake(self, *, moved: bool = False) -> Reached:
        """How far each table is in the last of its views, or how far tier *moved* it; nothing without the ledger."""
        reached: Reached = {}
        for name, truth in self.truths.items():
            with suppress(TryAgain):  # a session of before the last restart
                bounds = {p.partition: p.bounds for p in self._world.tables[name].positions()}
                last = "stream_hi" if moved or truth.subject.views == "stream" else "batch_hi"
                reached[name] = {p: getattr(b, last) for p, b in bounds.items()}
        return reached

    def _await(self, condition: Callable[[], bool], deadline_s: float) -> bool:
        until = time.monotonic() + deadline_s
        look_at = 0.0
        while time.monotonic() < until:
            self._tick()
            if time.monotonic() >= look_at:
                if condition():
                    return True
                look_at = time.monotonic() + LOOK_S
        return False

    def _await_lake(self) -> bool:
        """Wait until the lake holds what was acknowledged and every fault was recovered from; False when it stands."""
        ends = {name: truth.highs for name, truth in self.truths.items()}
        while True:
            before = lake, waiting = self._stand()
            whole = all(lake.get(name, {}).get(p, 0) >= high for name, of in ends.items() for p, high in of.items())
            if whole and not waiting:
                return True
            still_s = RUNS_S if self._world.of_dagster else STILL_S
            if not self._await(lambda before=before: self._stand() != before, still_s):  # type: ignore[misc]
                return False

    def _await_readers(self) -> None:
        """Each reader shows all that was acknowledged."""
        ends = {name: {str(p): high for p, high in truth.highs.items()} for name, truth in self.truths.items()}
        due = list(self._reads())
        if not self._await(lambda: all(self._last.get(one) == ends[one[1]] for one in due), STILL_S):
            late = {one: self._last.get(one) for one in due if self._last.get(one) != ends[one[1]]}
            self.find(f"{STILL_S:g} s after everything was in the lake, these show less than {ends}: {late}")

    def _stand(self) -> tuple[Reached, int]:
        """How far the lake is, and how many faults wait for their recovery."""
        return self._in_lake(), sum(outage.recovered is None for outage in self._result.outages)

    def _stuck(self) -> str:
        waiting = [str(o.fault) for o in self._result.outages if o.recovered is None]
        return (
            f"nothing moved for {STILL_S:g} s although nothing is broken: the lake has {self._in_lake()}, the "
            f"producer's log ends at { {name: truth.highs for name, truth in self.truths.items()} }; "
            f"not recovered: {waiting}"
        )
