"""Which fault happens when: a pure function of seed and duration, so that a run can be repeated."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

WORKERS = 2
QUIET_S = 5.0  #: nothing breaks in the first and the last seconds of a run
CUT_BYTES_MAX = 200_000


class Kind(StrEnum):
    """What is done; what ends it by itself after ``lasts_s`` is in brackets."""

    WORKER_KILL = "worker_kill"  #: SIGKILL (a new worker)
    WORKER_STOP = "worker_stop"  #: SIGSTOP (SIGCONT)
    CUT_POSTGRES = "cut_postgres"  #: connections to Postgres are cut at chosen bytes
    CUT_SPARK = "cut_spark"  #: the same of connections to Spark Connect
    ROTATE = "rotate"  #: the buffer gets a new segment and the one that is written to is closed
    POSTGRES_AWAY = "postgres_away"  #: connections are cut and new ones are refused (let through again)
    POSTGRES_RESTART = "postgres_restart"  #: a clean restart, which ends all sessions
    POSTGRES_IMMEDIATE = "postgres_immediate"  #: immediate shutdown, then a start with crash recovery
    POSTGRES_KILL = "postgres_kill"  #: SIGKILL of the postmaster, then a start
    KAFKA_KILL = "kafka_kill"  #: SIGKILL of the broker, then a start
    KAFKA_STOP = "kafka_stop"  #: SIGSTOP of the broker (SIGCONT)
    SPARK_KILL = "spark_kill"  #: SIGKILL of the Connect server, then a start
    SPARK_STOP = "spark_stop"  #: SIGSTOP of the Connect server (SIGCONT)


#: One round: every kind at least once. A run goes through round after round, each shuffled.
LIGHT = (
    *(Kind.WORKER_KILL,) * 3,
    *(Kind.WORKER_STOP,) * 2,
    *(Kind.CUT_POSTGRES,) * 3,
    *(Kind.CUT_SPARK,) * 1,
    *(Kind.ROTATE,) * 1,
    *(Kind.POSTGRES_AWAY,) * 1,
)
HEAVY = (
    Kind.POSTGRES_RESTART,
    Kind.POSTGRES_IMMEDIATE,
    Kind.POSTGRES_KILL,
    Kind.KAFKA_KILL,
    Kind.KAFKA_STOP,
    Kind.SPARK_KILL,
    Kind.SPARK_STOP,
)
_REST_S = {True: (4.0, 10.0), False: (0.5, 5.0)}  #: after a heavy fault, after a light one
_LASTS_S = {
    Kind.WORKER_KILL: (0.2, 5.0),
    Kind.WORKER_STOP: (0.5, 10.0),  # shorter and longer than the workers' lease
    Kind.POSTGRES_AWAY: (0.5, 5.0),
    Kind.KAFKA_STOP: (1.0, 8.0),
    Kind.SPARK_STOP: (1.0, 15.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. Its moment is relative to the start of the storm."""

    at_s: float
    kind: Kind
    lasts_s: float = 0.0  #: until it is healed; 0 for what heals as fast as it can
    worker: int | None = None
    cuts: tuple[int, ...] = ()  #: one connection after the other is cut when so many bytes went by

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in (None, ())}

    def __str__(self) -> str:
        extra = f" {self.worker}" if self.worker is not None else ""
        extra += f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        extra += f" at bytes {', '.join(map(str, self.cuts))}" if self.cuts else ""
        return f"{self.kind}{extra}"


def schedule(seed: int, seconds: float) -> tuple[Fault, ...]:
    """The faults of a run of *seconds*, in order. A longer run of the same seed begins with the shorter one."""
    dice = random.Random(seed)
    faults: list[Fault] = []
    round_: list[Kind] = []
    at_s = QUIET_S
    while True:
        if not round_:
            round_ = [*LIGHT, *HEAVY]
            dice.shuffle(round_)
        fault = _fault(dice, round(at_s, 2), round_.pop())
        if at_s + fault.lasts_s > seconds - QUIET_S:
            return tuple(faults)
        faults.append(fault)
        at_s += dice.uniform(*_REST_S[fault.kind in HEAVY])


def _fault(dice: random.Random, at_s: float, kind: Kind) -> Fault:
    lasts_s = round(dice.uniform(*_LASTS_S[kind]), 2) if kind in _LASTS_S else 0.0
    worker = dice.randrange(WORKERS) if kind in {Kind.WORKER_KILL, Kind.WORKER_STOP} else None
    cuts: tuple[int, ...] = ()
    if kind in {Kind.CUT_POSTGRES, Kind.CUT_SPARK}:
        cuts = tuple(round(math.exp(dice.uniform(0, math.log(CUT_BYTES_MAX)))) for _ in range(dice.randint(1, 6)))
    return Fault(at_s=at_s, kind=kind, lasts_s=lasts_s, worker=worker, cuts=cuts)
