"""The units of work of one table: each does one stage once, and says when it is due again."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Protocol

from harness_pipelines.errors import HarnessError
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages.run.claims import ClaimKeeper
from harness_pipelines.stages.run.schedule import Room, Turn
from harness_pipelines.stages.run.trouble import Backoff

LOOK_S = 0.25  #: how often a stage that found nothing asks again, where the ledger says that it has work
TIDY_S = 60.0  #: how late upkeep may be
#: Stages that ask for admission once more before they write anything.
ADMITS_MOVES = frozenset({Stage.TIER, Stage.OTREE, Stage.COMPACT, Stage.EXPIRE})
ROOMS = {Stage.INGEST: Room.LOG, Stage.TIER: Room.LAKE, Stage.MIRROR: Room.LAKE}


def objective_s(spec: TableSpec, stage: Stage) -> float:
    """How soon after it is due *stage* should begin, in seconds."""
    if stage is Stage.INGEST:
        return max(LOOK_S, spec.freshness.visible)
    return max(LOOK_S, min(TIDY_S, spec.freshness.lake))


class OfTable(Protocol):
    """The table of a unit."""

    def rest_s(self, stage: Stage) -> float: ...
    def admit(self, stage: Stage, *, resting: bool = False) -> None: ...
    def note_quiet(self, stage: Stage, *, quiet: bool, held: bool) -> None: ...
    def is_quiet(self, stage: Stage) -> bool: ...


class StageUnit:
    """One stage of one table: hold the claim, do *step*, rest while it has nothing to do."""

    def __init__(
        self,
        table: OfTable,
        turn: Turn,
        keeper: ClaimKeeper,
        backoff: Backoff,
        *,
        step: Callable[[], bool],
        pause_s: float,
    ) -> None:
        """*step* says whether it did something; *pause_s* is for how long one that did nothing rests at least."""
        self.turn, self.backoff = turn, backoff
        self._table, self._keeper, self._step, self.pause_s = table, keeper, step, pause_s
        self._not_before = 0.0  # monotonic seconds
        self._is_admitted = False  # since it began

    @property
    def stage(self) -> Stage:
        return Stage(self.backoff.stage)

    def run(self) -> float:
        """Do the stage once; what it does not handle holds it. The seconds until it is due again."""
        pause_s, failed = 0.0, True
        with self.backoff.holding():
            pause_s, failed = self._once()
        pause_s = max(pause_s, self.backoff.held_until - time.monotonic())
        self._not_before = time.monotonic() + pause_s
        return pause_s if failed else max(pause_s, self._table.rest_s(self.stage))

    def _admit(self) -> None:
        """Raises: as the table's `admit`. A claim under which nothing could begin yet is left to other workers then."""
        stage = self.stage
        try:
            self._table.admit(stage, resting=stage in ADMITS_MOVES or self._table.is_quiet(stage))
        except HarnessError:
            if not self._is_admitted:
                self._keeper.release()
            raise
        self._is_admitted = True

    def due_in_s(self) -> float:
        """The seconds until it should be asked for, by what the ledger and the log say now."""
        if self.backoff.is_in_trouble:
            return inf  # it knows by itself when it tries again
        return max(self._not_before - time.monotonic(), self._table.rest_s(self.stage))

    def _once(self) -> tuple[float, bool]:
        """For how long it rests now, and whether it failed."""
        held, stage = False, self.stage
        try:
            self._admit()
            held = self._keeper.acquire()
            busy = held and self._step()
        except HarnessError as error:
            return self.backoff.failed(error, pause_s=self.pause_s if held else 0.0), True
        if held:
            self.backoff.reset()
        else:
            self.backoff.over(by_work=False)
        self._table.note_quiet(stage, quiet=not busy, held=held)
        return (0.0 if busy else self.pause_s if held else LOOK_S), False
