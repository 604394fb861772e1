"""The crash matrix: at each named point of each stage a worker is killed, or stopped past its lease and woken.

Another worker takes over by itself; then the table must be exact, judged by the producer's log and by the audit.
What a person asks for sleeps too: past two graces, while expire runs and nothing else changes the table.
The short form is in the suite (`test_matrix.py`). The full one, with the times of recovery, runs by hand:

    python -m harness_pipelines_tests.faults.matrix --full --json matrix.json
"""

from __future__ import annotations

import re
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import click
import orjson

import harness_pipelines as hp
from harness_pipelines import faults
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.services import Services
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines_tests.faults.drills import DRILLS, Drill, work
from harness_pipelines_tests.keyed import KeyedRig, RecalledRig
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.rig import TableRig, WorkerProcess, settings_for, with_session

Act = Literal["kill", "stop", "sleep"]
Kind = Literal["append", "keyed", "recalled", "one view"]
Buffer = Literal["postgres", "none"]
Engine = Literal["spark", "arrow"]
ACTS: tuple[Act, ...] = ("kill", "stop", "sleep")
ENGINES: tuple[Engine, ...] = ("spark", "arrow")
MOVING = ("tier", "otree", "compact")  #: the stages whose rows an engine moves
LEASE_S = 2.0
RECOVERY_S_MAX = 5.0  #: the goal beyond the lease
#: What a stopped worker's open transaction may hold others up for, instead of the 30 s of real sessions.
TIMEOUTS = {"idle_in_transaction_session_timeout": "2s", "lock_timeout": "1s"}
DEADLINE_S = 180.0  #: for all tables of a batch together, on a busy machine
TOGETHER = 11  #: cells whose workers die at the same time
BY_THE_CLOCK_S = 20.0  #: on a busy machine, where all of a batch begin together
GRACE_S = 1.0  #: of the tables whose acts sleep
MORE_THAN_A_GRACE_S = 1.2 * GRACE_S
EXPIRES = 3  #: while an act sleeps


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A worker that dies at *point*, the *at*-th time that it gets there. It works on as many tables."""

    point: str
    act: Act
    at: int = 1
    buffer: Buffer = "postgres"
    kind: Kind = "append"  #: of table; an append table has the views that the drill of the stage wants
    engine: Engine = "spark"  #: that moves the rows of the table

    @property
    def stage(self) -> str:
        return faults.POINTS[self.point].stage

    @property
    def batch(self) -> tuple[str, str, str, str]:
        """Cells that have this in common can be drilled together: one worker moves tables of both engines."""
        return self.stage, self.act, self.buffer, self.kind

    @property
    def fault(self) -> str:
        """What HARNESS_FAULT says to its worker."""
        return f"{self.point}={'kill' if self.act == 'kill' else 'stop'}@{self.at}"

    def __str__(self) -> str:
        kind = "" if self.kind == "append" else f" {self.kind}"
        buffer = "" if self.buffer == "postgres" else " without a buffer"
        return f"{self.point}={self.act}@{self.at}{kind}{buffer} by {self.engine}"


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of one cell. Fine without *trouble*."""

    cell: Cell
    recovered_s: float | None = None  #: from the death to a table that moved again
    trouble: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Where drills take place: running services, an open harness and a producer."""

    harness: hp.Harness
    kafka: KafkaRig
    settings: Settings
    lease_s: float = LEASE_S
    by_the_clock_s: float = BY_THE_CLOCK_S  #: what a worker has to reach its point if it does not end by itself

    @property
    def impatient(self) -> Settings:
        """The services with timeouts that a drill can wait for."""
        assert self.settings.dsn is not None
        return replace(self.settings, dsn=with_session(self.settings.dsn, **TIMEOUTS))

    def worker(self, drill: Drill, rigs: Sequence[TableRig], *, fault: str = "") -> WorkerProcess:
        """A worker of the drill's stage; one without a *fault* that does not end by itself is ended by the caller."""
        return WorkerProcess(
            self.impatient,
            [rig.name for rig in rigs],
            stages=drill.stages,
            fault=fault,
            lease_s=self.lease_s,
            until_idle=drill.until_idle,
            for_s=self.by_the_clock_s if fault and not drill.until_idle else None,
            instead=drill.by_hand if fault else None,
        )


@dataclass(slots=True, kw_only=True)
class _Drilled:
    """A cell while it is drilled."""

    outcome: Outcome
    rigs: list[TableRig]
    victim: WorkerProcess
    down_at: float | None = None

    @property
    def cell(self) -> Cell:
        return self.outcome.cell

    @property
    def is_settled(self) -> bool:
        """The worker died, or is known not to have reached its point."""
        return self.down_at is not None or bool(self.outcome.trouble)


def all_cells(
    *,
    acts: Iterable[Act] = ACTS,
    ats: Iterable[int] = (1,),
    buffers: Iterable[Buffer] = ("postgres",),
    kinds: Iterable[Kind] = ("append",),
) -> list[Cell]:
    """Every cell of the declared points, stage by stage; points that a table never reaches are left out.

    The engines alternate, from one point to the next and from one act to the next; `by_the_other` has the rest.
    """
    return [
        Cell(point=name, act=act, at=at, buffer=buffer, kind=kind, engine=_engine(name, act, kind))
        for kind in kinds
        for buffer in buffers
        for at in ats
        for name, point in faults.POINTS.items()
        if point.stage in DRILLS and not (point.buffered and buffer == "none")
        if kind == "append" or point.stage == "otree" or (point.stage == "tier" and kind != "recalled")
        for act in acts
        if act != "sleep" or DRILLS[point.stage].by_hand is not None
    ]


def _engine(name: str, act: Act, kind: Kind) -> Engine:
    point = faults.POINTS[name]
    if point.engine:
        return "arrow"
    shared = [other for other, one in faults.POINTS.items() if one.stage == point.stage and not one.engine]
    return ENGINES[(shared.index(name) + ACTS.index(act) + (kind != "append")) % 2]


def by_the_other(cells: Iterable[Cell]) -> list[Cell]:
    """Cells of points that both engines reach in a move, each with the other engine."""
    return [
        replace(cell, engine="spark" if cell.engine == "arrow" else "arrow")
        for cell in cells
        if cell.stage in MOVING and not faults.POINTS[cell.point].engine
    ]


def run(ground: Ground, wanted: Sequence[Cell], *, together: int = TOGETHER) -> Iterator[Outcome]:
    """Drill *wanted*, *together* at a time as far as they are of one batch."""
    for _, group in groupby(sorted(wanted, key=lambda cell: cell.batch), key=lambda cell: cell.batch):
        same = list(group)
        for first in range(0, len(same), together):
            yield from _drill(ground, DRILLS[same[0].stage], same[first : first + together])


def _drill(ground: Ground, drill: Drill, batch: Sequence[Cell]) -> list[Outcome]:
    """Let all workers of *batch* die, one worker follow them all, wake those that only slept, and judge."""
    tables = {cell: [_table(ground, drill, cell) for _ in range(cell.at)] for cell in batch}
    rigs = [rig for of_cell in tables.values() for rig in of_cell]
    drill.prepare(rigs)
    with ExitStack() as victims:
        drilled = [
            _Drilled(
                outcome=Outcome(cell=cell),
                rigs=tables[cell],
                victim=victims.enter_context(ground.worker(drill, tables[cell], fault=cell.fault)),
            )
            for cell in batch
        ]
        _await_deaths(drilled)
        _sleep(drill, [one for one in drilled if one.cell.act == "sleep" and one.down_at is not None])
        drill.more(rigs)
        with ground.worker(drill, rigs) as follower:
            _await_recovery(drill, drilled, follower)
            _judge(drilled)
        _wake(drill, [one for one in drilled if one.cell.act == "stop" and one.down_at is not None])
    _judge(drilled)
    for one in drilled:
        for rig in one.rigs:
            _or_trouble([one], lambda rig=rig: _audited(rig, damaged=drill.damages))  # type: ignore[misc]
    return [one.outcome for one in drilled]


def _table(ground: Ground, drill: Drill, cell: Cell) -> TableRig:
    words = {"buffer": cell.buffer, "engine": cell.engine, **drill.spec}
    if cell.act == "sleep":
        words["retention"] = {"grace": f"{GRACE_S:g}s"}
    match cell.kind:
        case "append":
            return TableRig(ground.harness, ground.kafka, **words)
        case "keyed":
            return KeyedRig(ground.harness, ground.kafka, **words)
        case "recalled":
            return RecalledRig(ground.harness, ground.kafka, **words)
        case "one view":
            return TableRig(ground.harness, ground.kafka, **{**words, "views": "batch"})


def _await_deaths(drilled: Sequence[_Drilled]) -> None:
    """Note when each worker died or stopped; one that ended by itself never reached its point."""

    def all_down() -> bool:
        for one in drilled:
            if one.is_settled:
                continue
            code = one.victim.exit_code
            if code == -signal.SIGKILL or (code is None and one.victim.is_stopped):
                one.down_at = time.monotonic()
            elif code is not None:
                one.outcome.trouble.append(f"the point was not reached: exit code {code}")
        return all(one.is_settled for one in drilled)

    _or_trouble(drilled, lambda: wait_until(all_down, "every point was reached", deadline_s=DEADLINE_S))


def _await_recovery(drill: Drill, drilled: Sequence[_Drilled], follower: WorkerProcess) -> None:
    """Note how long each table took to move again under *follower*."""

    def all_recovered() -> bool:
        for one in drilled:
            if one.outcome.recovered_s is None and all(drill.caught_up(rig) for rig in one.rigs):
                one.outcome.recovered_s = time.monotonic() - (one.down_at or time.monotonic())
        return all(one.outcome.recovered_s is not None for one in drilled)

    try:
        wait_until(all_recovered, "every table moved again", deadline_s=DEADLINE_S)
    except AssertionError as error:
        ended = follower.exit_code
        if ended is None:
            follower.say_where()
        for one in drilled:
            if one.outcome.recovered_s is None:
                one.outcome.trouble.append(f"held up: {error}; exit code of the worker that followed: {ended}")


def _sleep(drill: Drill, asleep: Sequence[_Drilled]) -> None:
    """Expire works on while acts sleep, for longer than two graces; woken, each goes through or is refused by name.

    Nothing else moves the tables: what an act has built on is still what the catalog names.
    """
    if not asleep:
        return
    for one in asleep:
        for rig in one.rigs:
            _or_trouble(asleep, lambda rig=rig: _expire_past_graces(rig))  # type: ignore[misc]
    for one in asleep:
        one.victim.send(signal.SIGCONT)
    for one in asleep:
        _or_trouble([one], lambda one=one: _ended_well(one.victim))  # type: ignore[misc]
        for rig in [] if drill.damages else one.rigs:
            _or_trouble([one], lambda rig=rig: _readable(rig))  # type: ignore[misc]


def _readable(rig: TableRig) -> None:
    """Whatever the act came to, the table has all its files and shows nothing that nobody produced."""
    strange = rig.read() - rig.truth
    assert not strange, f"rows that nobody produced: {sorted(strange)[:5]}"


def _expire_past_graces(rig: TableRig) -> None:
    """Run expire again and again, more than a grace after the last time: one run condemns, and the next deletes."""
    claim = rig.claim(Stage.EXPIRE, lease_s=DEADLINE_S)
    runs, due = 0, time.monotonic() + MORE_THAN_A_GRACE_S

    def over() -> bool:
        nonlocal runs, due
        if time.monotonic() > due:
            with suppress(TryAgain):  # a transaction that sleeps holds the table until its timeout
                expire_once(rig.stores, rig.table.row, claim)
                runs, due = runs + 1, time.monotonic() + MORE_THAN_A_GRACE_S
        return runs == EXPIRES

    wait_until(over, f"expire has run past the graces of {rig.name}", deadline_s=DEADLINE_S)
    rig.stores.ledger.release(claim)


def _wake(drill: Drill, asleep: Sequence[_Drilled]) -> None:
    """Continue workers that were overtaken, with new work there for them; they must go on without harm."""
    if not asleep:
        return
    rigs = [rig for one in asleep for rig in one.rigs]
    drill.more(rigs)
    for one in asleep:
        one.victim.send(signal.SIGCONT)
    for one in asleep:
        _or_trouble([one], lambda one=one: _ended_well(one.victim))  # type: ignore[misc]
    if drill.until_idle:  # a worker that was about to end has left the new work to the next one
        _or_trouble(asleep, lambda: work(rigs, drill.stages))


def _ended_well(victim: WorkerProcess) -> None:
    code = victim.await_end()
    assert code == 0, f"the worker that slept ended with exit code {code}"


def _judge(drilled: Sequence[_Drilled]) -> None:
    """Compare every table with the producer's log."""
    for one in drilled:
        for rig in one.rigs:
            _or_trouble([one], rig.assert_exact)


def _audited(rig: TableRig, *, damaged: bool) -> None:
    """Audit and fsck agree, but for files that are damaged in versions of before a repair."""
    report = audit_table(rig.stores, rig.table.row, processes=1)
    assert report.ok, f"the audit says: {orjson.dumps(report.to_json()).decode()}"
    checked = fsck(rig.stores, [rig.name])
    newest = rig.stores.ledger.head(rig.table.row).version
    older = [one for one in checked.broken if damaged and one.invariant == "S10" and not _needed(one.detail, newest)]
    assert len(older) == len(checked.broken), f"fsck says: {orjson.dumps(checked.to_json()).decode()}"


def _needed(detail: str, version: int) -> bool:
    """Whether fsck says that *version* needs a file that is damaged."""
    return re.search(rf"version [\d, -]*\b{version}\b needs it", detail) is not None


def _or_trouble(drilled: Sequence[_Drilled], step: Callable[[], None]) -> None:
    try:
        step()
    except (AssertionError, HarnessError, OSError) as error:
        for one in drilled:
            one.outcome.trouble.append(f"{type(error).__name__}: {error}")


# -- recovery times -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Seconds from kill -9 at one point to a table that moved again, over *times* kills."""

    p50_s: float
    max_s: float
    times: int


def recovery_times(
    ground: Ground, *, points: Iterable[str] = tuple(faults.POINTS), times: int = 3
) -> Mapping[str, Recovery]:
    """Kill a worker *times* times at each of *points*, one after the other; the next worker starts at the death.

    The goal is `Ground.lease_s` + `RECOVERY_S_MAX`. Raises: AssertionError when a table was not exact afterwards.
    """
    found = {}
    for point in points:
        seconds = []
        for outcome in run(ground, [Cell(point=point, act="kill")] * times, together=1):
            assert not outcome.trouble, f"{outcome.cell}: {outcome.trouble}"
            assert outcome.recovered_s is not None
            seconds.append(outcome.recovered_s)
        found[point] = Recovery(p50_s=statistics.median(seconds), max_s=max(seconds), times=times)
    return found


# -- by hand ------------------------------------------------------------------------------------------------


@contextmanager
def ground_of(home: Path | None) -> Iterator[Ground]:
    """The services of *home*, or new ones in a folder that goes at the end."""
    with ExitStack() as stack:
        folder = home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="harness-matrix-")))
        services = Services(folder)
        if home is None:
            stack.callback(services.down)
        found = services.up()
        settings = settings_for(found, folder, owner_dsn=found.owner)
        harness = stack.enter_context(hp.connect(settings))
        harness.init()
        assert settings.kafka is not None
        kafka = KafkaRig(settings.kafka, properties=settings.kafka_properties)
        stack.callback(kafka.close)
        yield Ground(harness=harness, kafka=kafka, settings=settings)


@click.command()
@click.option(
    "--full", is_flag=True, help="First and third time, with and without a buffer, every kind; else append tables once."
)
@click.option("--stage", "stages", multiple=True, type=click.Choice(list(DRILLS)), help="Only these; repeatable.")
@click.option("--times", default=3, show_default=True, help="Kills per point when recovery is timed; 0 does not time.")
@click.option("--home", type=click.Path(path_type=Path), help="Services to use; otherwise new ones, taken down after.")
@click.option("--json", "target", type=click.Path(path_type=Path), help="Write the result here.")
def main(*, full: bool, stages: tuple[str, ...], times: int, home: Path | None, target: Path | None) -> None:
    """Kill and stop workers at every crash point; exit 1 if a table was not exact or was held up."""
    wanted = all_cells()
    if full:
        wanted = all_cells(ats=(1, 3), buffers=("postgres", "none")) + all_cells(
            kinds=("keyed", "recalled", "one view")
        )
        wanted += by_the_other(wanted)
    wanted = [cell for cell in wanted if not stages or cell.stage in stages]
    points = [name for name, point in faults.POINTS.items() if point.stage in (stages or DRILLS)]
    outcomes = []
    with ground_of(home) as ground:
        for outcome in run(ground, wanted, together=TOGETHER // (3 if full else 1)):
            outcomes.append(outcome)
            click.echo(f"{outcome.cell}: {'; '.join(outcome.trouble) or 'exact'}", err=True)
        recoveries = recovery_times(ground, points=points, times=times) if times else {}
        goal_s = ground.lease_s + RECOVERY_S_MAX
    for name, recovery in recoveries.items():
        click.echo(f"{name}: moves again after {recovery.p50_s:.2f} s (p50), {recovery.max_s:.2f} s (max)", err=True)
    ok = all(not o.trouble for o in outcomes) and all(r.max_s <= goal_s for r in recoveries.values())
    if target:
        result = _to_json(outcomes, recoveries, ok=ok, goal_s=goal_s)
        target.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))
    click.echo(f"{len(outcomes)} cells, {sum(bool(o.trouble) for o in outcomes)} with trouble", err=True)
    raise SystemExit(0 if ok else 1)


def _to_json(
    outcomes: Sequence[Outcome], recoveries: Mapping[str, Recovery], *, ok: bool, goal_s: float
) -> dict[str, Any]:
    return {
        "ok": ok,
        "goal_s": goal_s,
        "cells": [
            {
                "point": o.cell.point,
                "act": o.cell.act,
                "at": o.cell.at,
                "buffer": o.cell.buffer,
                "kind": o.cell.kind,
                "engine": o.cell.engine,
                "trouble": o.trouble,
            }
            for o in outcomes
        ],
        "recovery": {
            name: {"p50_s": round(r.p50_s, 3), "max_s": round(r.max_s, 3), "times": r.times}
            for name, r in recoveries.items()
        },
    }


if __name__ == "__main__":
    main()
