"""Which fault happens when: a pure function of seed and duration, so that a run can be repeated."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from harness_pipelines import faults
from harness_pipelines.chaos.content import GROWING, KEYED, MAIN, SUBJECTS, Subject

WORKERS = 2
QUIET_S = 5.0  #: nothing breaks in the first and the last seconds of a run
CUT_BYTES_MAX = 200_000


class Part(StrEnum):
    """Which files are damaged."""

    DATA = "data"
    MANIFEST = "manifest"
    METADATA = "metadata"  #: a manifest list, or the metadata file itself


class How(StrEnum):
    """What is done to the bytes."""

    FLIP = "flip"  #: one bit
    CUT = "cut"  #: all that follows is gone


class Kind(StrEnum):
    """What the fault does; in brackets, what ends it after ``lasts_s``."""

    WORKER_KILL = "worker_kill"  #: SIGKILL (a new worker)
    MOVE_KILL = "move_kill"  #: SIGKILL; the worker that follows dies at a crash point of a move (a new worker)
    WORKER_STOP = "worker_stop"  #: SIGSTOP (SIGCONT)
    SERVER_KILL = "server_kill"  #: SIGKILL of `harness serve` (a new server)
    SERVER_STOP = "server_stop"  #: SIGSTOP of it (SIGCONT)
    CUT_POSTGRES = "cut_postgres"  #: connections to Postgres are cut at chosen bytes
    CUT_SPARK = "cut_spark"  #: the same of connections to Spark Connect
    ROTATE = "rotate"  #: the buffer gets a new segment and the one that is written to is closed
    POSTGRES_AWAY = "postgres_away"  #: connections are cut and new ones are refused (let through again)
    POSTGRES_RESTART = "postgres_restart"  #: a clean restart, which ends all sessions
    POSTGRES_IMMEDIATE = "postgres_immediate"  #: immediate shutdown, then a start with crash recovery
    POSTGRES_KILL = "postgres_kill"  #: SIGKILL of the postmaster, then a start
    POSTGRES_STOP = "postgres_stop"  #: SIGSTOP of the postmaster and all backends (SIGCONT)
    KAFKA_KILL = "kafka_kill"  #: SIGKILL of the broker, then a start
    KAFKA_STOP = "kafka_stop"  #: SIGSTOP of the broker (SIGCONT)
    SPARK_KILL = "spark_kill"  #: SIGKILL of the Connect server, then a start
    SPARK_STOP = "spark_stop"  #: SIGSTOP of the Connect server (SIGCONT)
    STORE_KILL = "store_kill"  #: SIGKILL of the object store, then a start; only where the lake is on one
    STORE_STOP = "store_stop"  #: SIGSTOP of the object store (SIGCONT)
    DAEMON_KILL = "daemon_kill"  #: SIGKILL of Dagster's daemon (a new daemon); only where Dagster has a table
    CODE_KILL = "code_kill"  #: SIGKILL of Dagster's code servers, which evaluate its sensors and start its runs
    RUN_KILL = "run_kill"  #: SIGKILL of one of Dagster's runs
    RUN_STOP = "run_stop"  #: SIGSTOP of one of them (SIGCONT)
    LONG_LEASE = "long_lease"  #: every table is read under a lease of an hour (read again under it, and given back)
    REPLAY = "replay"  #: of the quarantine; an act is stopped at a crash point for longer than two graces (SIGCONT)
    REVERT = "revert"  #: to the version before the head
    EVOLVE = "evolve"  #: a column more
    RECALL = "recall"  #: rows of the keyed table come to Postgres, or go back
    SNAPSHOT = "snapshot"  #: one of all tables is made, or dropped
    APPLY = "apply"  #: the spec with another setting
    SWITCH = "switch"  #: the spec with another engine; only where both engines have tables
    JOIN = "join"  #: the topic gets a partition more
    CLAIM_AHEAD = "claim_ahead"  #: a dead holder's claim ends tomorrow: the clock was put right (`reconcile`)
    PROMOTE = "promote"  #: a stand-by that lagged takes the primary's place (`reconcile`, as the runbook has it)
    DAMAGE = "damage"  #: a bit of a lake file flips, or its end is cut off (put right after one read)


ACTS: Mapping[Kind, tuple[Subject, ...]] = {
    Kind.REPLAY: (GROWING,),
    Kind.REVERT: SUBJECTS,
    Kind.EVOLVE: (MAIN, GROWING),
    Kind.RECALL: (KEYED,),
    Kind.SNAPSHOT: (MAIN,),
    Kind.APPLY: SUBJECTS,
    Kind.SWITCH: SUBJECTS,
    Kind.CLAIM_AHEAD: SUBJECTS,
}
#: The crash points of an act's process; an act without one is stopped by the clock alone.
_STAGE_OF = {
    Kind.REPLAY: "replay",
    Kind.REVERT: "revert",
    Kind.EVOLVE: "evolve",
    Kind.RECALL: "otree",
    Kind.SNAPSHOT: "snapshot",
}
#: Between the plan of a move and its end.
_OF_MOVES = tuple(
    name
    for name, point in faults.POINTS.items()
    if point.stage in {"tier", "otree", "compact"} and not name.endswith(("_claim", "_release"))
)
_CLAIMED = ("ingest", "tier", "otree", "compact", "expire")
_STOPPED_SHARE = 0.6  #: of the acts that have crash points

#: One round: every kind at least once, but for promotions. A run goes through round after round, each shuffled, and
#: leaves a lull between two of them.
LIGHT = (
    *(Kind.WORKER_KILL,) * 3,
    *(Kind.MOVE_KILL,) * 2,
    *(Kind.WORKER_STOP,) * 2,
    *(Kind.SERVER_KILL,) * 2,
    *(Kind.SERVER_STOP,) * 1,
    *(Kind.CUT_POSTGRES,) * 3,
    *(Kind.CUT_SPARK,) * 1,
    *(Kind.ROTATE,) * 1,
    *(Kind.POSTGRES_AWAY,) * 1,
    *(Kind.LONG_LEASE,) * 1,
    *(Kind.REPLAY,) * 2,
    *(Kind.REVERT,) * 2,
    *(Kind.EVOLVE,) * 1,
    *(Kind.RECALL,) * 2,
    *(Kind.SNAPSHOT,) * 2,
    *(Kind.APPLY,) * 2,
    *(Kind.JOIN,) * 1,
    *(Kind.CLAIM_AHEAD,) * 1,
    *(Kind.DAMAGE,) * 2,
)
HEAVY = (
    Kind.POSTGRES_RESTART,
    Kind.POSTGRES_IMMEDIATE,
    Kind.POSTGRES_KILL,
    Kind.POSTGRES_STOP,
    Kind.KAFKA_KILL,
    Kind.KAFKA_STOP,
    Kind.SPARK_KILL,
    Kind.SPARK_STOP,
)
OF_A_STORE = (Kind.STORE_KILL, Kind.STORE_STOP)
OF_DAGSTER = (Kind.DAEMON_KILL, Kind.CODE_KILL, *(Kind.RUN_KILL,) * 2, *(Kind.RUN_STOP,) * 2)
OF_SPARK = (Kind.CUT_SPARK, Kind.SPARK_KILL, Kind.SPARK_STOP)  #: only where Spark runs
OF_BOTH_ENGINES = (*(Kind.SWITCH,) * 3,)
ROUNDS_WITH_PROMOTION = (1, 5)  #: counted from 0
_REST_S = {True: (4.0, 10.0), False: (0.5, 5.0)}  #: after a heavy fault, after a light one
LULL_S = 45.0  #: between two rounds: time to publish, merge and compact, so that later faults meet these too
_LASTS_S = {
    Kind.WORKER_KILL: (0.2, 5.0),
    Kind.MOVE_KILL: (0.2, 5.0),
    Kind.WORKER_STOP: (0.5, 10.0),  # shorter and longer than the workers' lease
    Kind.SERVER_KILL: (0.2, 5.0),
    Kind.SERVER_STOP: (0.5, 10.0),
    Kind.POSTGRES_AWAY: (0.5, 5.0),
    Kind.POSTGRES_STOP: (10.0, 60.0),
    Kind.KAFKA_STOP: (1.0, 8.0),
    Kind.SPARK_STOP: (1.0, 15.0),
    Kind.STORE_STOP: (1.0, 15.0),
    Kind.DAEMON_KILL: (0.5, 10.0),
    Kind.RUN_STOP: (5.0, 60.0),  # shorter and longer than the lease of a run
    Kind.CLAIM_AHEAD: (1.0, 8.0),
    Kind.PROMOTE: (3.0, 10.0),  # how far the stand-by is behind
    Kind.LONG_LEASE: (20.0, 60.0),  # longer than the tables keep old versions
}
_ACT_STOPPED_S = (12.0, 40.0)  #: longer than two graces of the tables; the longest outlive a session's timeouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. Its moment is relative to the start of the storm."""

    at_s: float
    kind: Kind
    lasts_s: float = 0.0  #: until it is healed; 0 for what heals as fast as it can
    worker: int | None = None
    cuts: tuple[int, ...] = ()  #: bytes after which each connection is cut
    subject: str | None = None  #: the suffix of the table that it is done to
    point: str = ""  #: the crash point at which an act is stopped, or a worker dies
    stage: str = ""  #: whose claim it is
    part: str = ""  #: which files are damaged
    how: str = ""
    places: tuple[float, ...] = ()  #: 0 to 1: among these files, and in the bytes of the chosen one; among the runs

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in (None, (), "")}

    def __str__(self) -> str:
        extra = f" {self.worker}" if self.worker is not None else ""
        extra += f" of {self.subject.strip('_') or 'the first table'}" if self.subject is not None else ""
        extra += f", {self.stage}" if self.stage else ""
        extra += f", {self.how} of {self.part}" if self.part else ""
        extra += f" {'dies' if self.kind is Kind.MOVE_KILL else 'stopped'} at {self.point}" if self.point else ""
        extra += f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        extra += f" at bytes {', '.join(map(str, self.cuts))}" if self.cuts else ""
        return f"{self.kind}{extra}"


def schedule(
    seed: int,
    seconds: float,
    *,
    s3: bool = False,
    dagster: bool = False,
    switches: bool = False,
    spark: bool = True,
) -> tuple[Fault, ...]:
    """The faults of a run of *seconds*, in order.

    With *s3* the lake is on an object store, which breaks too. With *dagster* a table is Dagster's, which breaks too.
    With *switches* tables change their engine. Without *spark* none runs.

    A longer run of the same seed has all faults of the shorter one, and between them those that last too long for it.
    """
    dice = random.Random(seed)
    found: list[Fault] = []
    round_: list[Kind] = []
    rounds = 0
    at_s = QUIET_S
    while at_s <= seconds - QUIET_S:
        if not round_:
            store = OF_A_STORE if s3 else ()
            more = (*store, *(OF_DAGSTER if dagster else ()), *(OF_BOTH_ENGINES if switches else ()))
            round_ = [*LIGHT, *HEAVY, *more, *[Kind.PROMOTE] * (rounds in ROUNDS_WITH_PROMOTION)]
            at_s += LULL_S if rounds else 0.0
            rounds += 1
            round_ = [kind for kind in round_ if spark or kind not in OF_SPARK]
            dice.shuffle(round_)
        fault = _fault(dice, round(at_s, 2), round_.pop())
        if at_s + fault.lasts_s <= seconds - QUIET_S:
            found.append(fault)
        at_s += dice.uniform(*_REST_S[fault.kind in (*HEAVY, *OF_A_STORE, Kind.PROMOTE)])
    return tuple(found)


def _fault(dice: random.Random, at_s: float, kind: Kind) -> Fault:
    lasts_s = round(dice.uniform(*_LASTS_S[kind]), 2) if kind in _LASTS_S else 0.0
    worker = dice.randrange(WORKERS) if kind in {Kind.WORKER_KILL, Kind.MOVE_KILL, Kind.WORKER_STOP} else None
    cuts: tuple[int, ...] = ()
    if kind in {Kind.CUT_POSTGRES, Kind.CUT_SPARK}:
        cuts = tuple(round(math.exp(dice.uniform(0, math.log(CUT_BYTES_MAX)))) for _ in range(dice.randint(1, 6)))
    subject = dice.choice(ACTS[kind]).suffix if kind in ACTS else None
    point = ""
    if kind in _STAGE_OF and dice.random() < _STOPPED_SHARE:
        point = dice.choice([name for name, one in faults.POINTS.items() if one.stage == _STAGE_OF[kind]])
        lasts_s = round(dice.uniform(*_ACT_STOPPED_S), 2)
    if kind is Kind.MOVE_KILL:
        point = dice.choice(_OF_MOVES)
    stage = dice.choice(_CLAIMED) if kind is Kind.CLAIM_AHEAD else ""
    part = how = ""
    places: tuple[float, ...] = ()
    if kind is Kind.DAMAGE:
        subject = dice.choice(SUBJECTS).suffix
        part, how = dice.choice(list(Part)), dice.choice(list(How))
        places = (round(dice.random(), 6), round(dice.random(), 6))
    if kind in {Kind.RUN_KILL, Kind.RUN_STOP}:
        places = (round(dice.random(), 6),)
    return Fault(
        at_s=at_s,
        kind=kind,
        lasts_s=lasts_s,
        worker=worker,
        cuts=cuts,
        subject=subject,
        point=point,
        stage=stage,
        part=part,
        how=how,
        places=places,
    )
