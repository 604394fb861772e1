"""One table of a worker: its units, the claims that they work under, and how far it is."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

import structlog

from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.ledger import PartitionStatus, TableDamaged, TableRow
from harness_pipelines.ports.source import TopicIdentity, Watermark
from harness_pipelines.ports.upkeep import TablePulse
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.pressure import BufferFull
from harness_pipelines.protocol.schema.schemas import SchemaMoved
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages.ingest.pacing import Pace
from harness_pipelines.stages.run.claims import ClaimKeeper
from harness_pipelines.stages.run.due import Known, rest_s, stages_of
from harness_pipelines.stages.run.pool import Pool, Unit
from harness_pipelines.stages.run.ports import Ports
from harness_pipelines.stages.run.progress import TableProgress, WorkerOptions
from harness_pipelines.stages.run.reading import Reading
from harness_pipelines.stages.run.renewals import Renewals
from harness_pipelines.stages.run.schedule import Room, Turn
from harness_pipelines.stages.run.steps import Steps
from harness_pipelines.stages.run.trouble import Backoff, Restart
from harness_pipelines.stages.run.units import LOOK_S, ROOMS, StageUnit, objective_s

if TYPE_CHECKING:
    from harness_pipelines.ports.ledger import Ledger

log = structlog.get_logger(__name__)
TIDY_EVERY_S = 2.0  #: for how long otree and compact rest: they are not urgent
EXPIRE_EVERY_S = 60.0
ON_ENGINE = frozenset({Stage.TIER, Stage.OTREE, Stage.COMPACT})
EXPIRE_IDLE_S = 1800.0  #: for a table that nothing changes
_IN_POOL = (Stage.INGEST, Stage.TIER, Stage.OTREE, Stage.COMPACT, Stage.EXPIRE, Stage.MIRROR)

_Seen = tuple[int, tuple[PartitionStatus, ...], int]  # the version of a table, its positions, and the hash of its spec


class OfProcess(Protocol):
    """The worker of a table."""

    holder: str

    @property
    def stores(self) -> Ports: ...
    @property
    def options(self) -> WorkerOptions: ...
    @property
    def pace(self) -> Pace: ...
    @property
    def renewals(self) -> Renewals: ...
    @property
    def pool(self) -> Pool: ...


class TableUnits:
    """The units of one table."""

    def __init__(self, worker: OfProcess, table: TableRow) -> None:
        self.worker, self.table, self.stores, self.options = worker, table, worker.stores, worker.options
        self.progress = TableProgress(name=table.name)
        self.fatal: HarnessError | None = None
        self.full: BufferFull | None = None  #: why ingest pauses, where this worker's tier is what empties the buffer
        self.is_resting = False  #: another worker has it, or is to have it
        self.steps = Steps(self)
        self.stages = worker.options.stages & stages_of(table)
        self._keepers = {stage: self._keeper(stage) for stage in worker.options.stages}
        self.watching = Backoff(self, "watch")
        self._backoffs: list[Backoff] = [self.watching]
        self._restart = Restart(self, self._backoffs)
        self.pulse: TablePulse | None = None  #: None: the ledger has not answered
        self.pulsed_at = -math.inf  #: monotonic seconds, before the pulse was asked for
        self._asked_for: tuple[object, ...] | None = None  # what the units were asked for by, when that changed last
        self._unasked: set[StageUnit] = set()
        self._clock_s = 0.0  #: the database's time less the monotonic one
        # When a stage last moved, by the database's time, and since when that is known, in monotonic seconds.
        self._moved_at: dict[Stage, tuple[float | None, float]] = {}
        self._caught_up_at: float | None = None  #: monotonic seconds, since when all that is known is moved
        self._quiet: set[Stage] = set()  # had nothing to do when last asked, or another worker has them
        self._expired_at = -math.inf  # monotonic seconds
        self._expires_for: _Seen | None = None  # the table when expire began last
        self._expired_for: _Seen | None = None  # and when a run began that has ended
        self.reading = Reading(self) if table.intake.reader in self.stages else None
        self.units = [self._unit(stage) for stage in _IN_POOL if self._is_in_pool(stage)]
        self._ending: list[StageUnit] = []  # of stages that the table has no more
        self._followed = table  # the units go by the spec of this one
        self._damaged: int | None = None  # the hash of a spec that could not be read

    def _keeper(self, stage: Stage) -> ClaimKeeper:
        return ClaimKeeper(
            self.stores.ledger,
            self.table,
            stage,
            holder=self.worker.holder,
            lease=self.options.lease,
            check_spec=self._check_spec if stage in (Stage.INGEST, Stage.TIER) else None,  # they read the log
            give_up=partial(self._give_up, stage) if stage in ON_ENGINE else None,
            renewals=self.worker.renewals,
        )

    def _give_up(self, stage: Stage) -> None:
        self.stores.engine.give_up(self.table, stage)

    def _is_in_pool(self, stage: Stage) -> bool:
        if stage not in self.stages:
            return False
        if stage is Stage.INGEST:
            return self.options.ingest_on == "spark" and self.table.intake.buffered
        return stage is not Stage.EXPIRE or not self.options.until_idle

    def _unit(self, stage: Stage) -> StageUnit:
        tidies = stage in (Stage.OTREE, Stage.COMPACT) and not self.options.until_idle
        return StageUnit(
            self,
            Turn(self.table.name, stage, ROOMS.get(stage, Room.UPKEEP), objective_s(self.table.spec, stage)),
            self._keepers[stage],
            self.backoff(stage),
            step=self.steps.of(stage),
            pause_s=EXPIRE_EVERY_S if stage is Stage.EXPIRE else TIDY_EVERY_S if tidies else LOOK_S,
        )

    # -- life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Let every stage begin. A unit whose claim is held already waits for the ledger to say whether it has work."""
        self.is_resting, self._asked_for = False, None
        for unit in self._all:
            if not (unit in self.units and self._keepers[unit.stage].is_held):
                self.ask(unit)

    @property
    def keepers(self) -> list[ClaimKeeper]:
        """Of the stages that its units do."""
        return [self._keepers[stage] for stage in dict.fromkeys(unit.stage for unit in self._all)]

    def rest(self) -> None:
        """Begin nothing more; what runs ends as it would."""
        self.is_resting = True
        for unit in self._all:
            self.worker.pool.drop(unit)

    def ask(self, unit: Unit, *, in_s: float = 0.0) -> None:
        """*unit* is due *in_s* seconds from now on, unless the table rests."""
        if not self.is_resting:
            self.worker.pool.ask(unit, in_s=in_s)

    def backoff(self, stage: Stage) -> Backoff:
        """The errors of one more unit of *stage*."""
        made = Backoff(self, stage)
        self._backoffs.append(made)
        return made

    def keeper(self, stage: Stage) -> ClaimKeeper:
        return self._keepers[stage]

    def claim(self, stage: Stage) -> Claim:
        """Raises: FencedOut."""
        return self._keepers[stage].current()

    @property
    def ledger(self) -> Ledger:
        return self.stores.ledger

    def reload(self) -> None:
        """Take over the table's schema of now: what was begun with an older one is never committed."""
        with suppress(HarnessError):  # away for now: what was begun is met again
            self.table = self.stores.ledger.table(self.table.name)
        log.info("worker.schema_changed", table=self.table.name, schema=self.table.schema_version)

    def _follow_spec(self, stored: int) -> bool:
        """Take over the table's spec, which has the hash *stored* now; whether it could be read.

        Every step begins with the table as it is then, so a change holds for the next one of each stage.
        Raises: TableDamaged, once for each change; what the ledger raises.
        """
        if stored not in (self.table.spec_hash, self._damaged):
            try:
                self.table = self.stores.ledger.table(self.table.name)
            except TableDamaged:
                self._damaged = stored
                raise
        if stored == self.table.spec_hash:
            self._damaged = None
        if self.table is not self._followed:
            before, self._followed = self._followed.spec, self.table
            if changed := [word for word in type(before).model_fields if _differ(before, self.table.spec, word)]:
                log.info("worker.spec_changed", table=self.table.name, words=changed)
                self._go_by_spec()
        self._let_end()
        return stored == self.table.spec_hash

    def _go_by_spec(self) -> None:
        """What was judged by the spec of before is judged again; stages come and go."""
        self.steps.forget()
        self.stages = self.options.stages & stages_of(self.table)
        known = {unit.stage: unit for unit in (*self._ending, *self.units)}
        wanted = [stage for stage in _IN_POOL if self._is_in_pool(stage)]
        self.units = [known.pop(stage) if stage in known else self._unit(stage) for stage in wanted]
        self._ending = list(known.values())
        for unit in self.units:
            unit.turn.objective_s = objective_s(self.table.spec, unit.stage)
        if self.reading is not None:
            self.reading.go_by(self.table.spec)

    def _let_end(self) -> None:
        """Give back the claims of stages that the table has no more, once nothing of them runs."""
        for unit in list(self._ending):
            self.worker.pool.drop(unit)
            if self.worker.pool.is_running(unit):
                continue
            self._ending.remove(unit)
            self._backoffs.remove(unit.backoff)
            self.progress.trouble.pop(unit.stage, None)
            self._keepers[unit.stage].release()

    def _check_spec(self) -> None:
        """Raises: SchemaMoved, where the spec was changed since it was read; it is read then.

        While this worker waited for a claim, the decoding may have changed; while it holds the claim, nothing
        changes that.
        """
        now = self.stores.ledger.table(self.table.name)
        if now.spec != self.table.spec:
            self.table = now
            raise SchemaMoved(
                f"{now.name}: its spec was changed before this worker took over; it begins with the new one"
            )

    def doubt(self, stage: str) -> None:
        """Ask the ledger whether the claim of *stage* is still held."""
        self._keepers[Stage(stage)].doubt()

    @property
    def is_alive(self) -> bool:
        """Something of it runs."""
        return any(self.worker.pool.is_running(unit) for unit in (*self._all, *self._ending))

    @property
    def _all(self) -> list[Unit]:
        return [*self.units, *([] if self.reading is None else self.reading.units)]

    @property
    def holds_claims(self) -> bool:
        return any(keeper.is_held for keeper in self._keepers.values())

    def leave(self) -> list[tuple[int, Stage]]:
        """After what was done under its claims is over: forget them; those that the ledger may still have."""
        if self.reading is not None:
            self.reading.close()
            self.reading.count(self.progress)
        if self.pulse is None or self.pulse.stopped is not None or self.fatal is not None:
            with suppress(HarnessError):
                self._restart.look(self.stores.ledger.stopped(self.table), time.monotonic())
        return [(self.table.table_id, stage) for stage, keeper in self._keepers.items() if keeper.leave()]

    # -- what the ledger and the log say --------------------------------------------------------------------

    def note(self, found: TablePulse | HarnessError | None, *, asked_at: float, now: float) -> bool:
        """The ledger's answer to what was asked *asked_at*, at its own time *now*; None: it did not answer.

        Returns whether something of the table is not as it was before.
        """
        with self.watching.holding():
            if isinstance(found, TablePulse):
                self._take(found, asked_at, now)
                try:
                    if self._follow_spec(found.spec_hash):
                        self.watching.reset()
                except HarnessError as error:
                    self.watching.failed(error)
            else:
                self.pulse = None
                if found is not None:
                    self.watching.failed(found)
        changed = self._ask_if_changed()
        if self.reading is not None and self.pulse is not None and self._reads_soon(self.pulse):
            self.reading.poll()
        return changed

    def _ask_if_changed(self) -> bool:
        """Ask for the units, unless all that says when they are due is as it was: they know by themselves then.

        One that runs has perhaps not seen what is new; it is asked for after the next look.
        """
        before, self._asked_for = self._asked_for, (self.pulse, self.progress.ends, self.table)
        if changed := before != self._asked_for:
            self._unasked = set(self.units)
        for unit in [unit for unit in self._unasked if not self.worker.pool.is_running(unit)]:
            self._unasked.discard(unit)
            self.ask(unit, in_s=unit.due_in_s())
        return changed

    def _reads_soon(self, pulse: TablePulse) -> bool:
        """Nobody has the claim of ingest, or the table is stopped and ingest may be past that."""
        is_free = Stage.INGEST in self.stages and pulse.claims.get(Stage.INGEST) is None
        return is_free or pulse.stopped is not None

    def _take(self, found: TablePulse, asked_at: float, now: float) -> None:
        before, self.pulse = self.pulse, found
        self.pulsed_at, self._clock_s = asked_at, now - time.monotonic()
        for stage, at in ((Stage.TIER, found.tier_at), (Stage.OTREE, found.otree_at)):
            if stage not in self._moved_at or self._moved_at[stage][0] != at:
                self._moved_at[stage] = at, time.monotonic()
        if before is not found:
            self.progress.positions, self.progress.stream = list(found.positions), found.stream
        # A unit counts after its commit, so the ledger's answer may have been there before.
        if self.reading is not None and (before is not found or self.reading.commits != self.progress.commits):
            self.reading.count(self.progress)
        with suppress(HarnessError):
            self._restart.look(found.stopped, asked_at)

    def note_ends(self, marks: Mapping[int, Watermark], *, asked_at: float) -> None:
        """The log's answer to what was asked *asked_at*."""
        self.progress.starts = {p: m.low for p, m in marks.items()}
        self.progress.ends, self.progress.ends_at = {p: m.end for p, m in marks.items()}, asked_at
        if any(p.bounds.buffer_hi < self.progress.ends.get(p.partition, 0) for p in self.progress.positions):
            self.poll()  # its records have mostly woken it

    def note_topic(self, found: TopicIdentity | HarnessError) -> None:
        """What the log says of the table's topic."""
        if self.reading is not None and self.pulse is not None:
            known, expected = {p.partition for p in self.pulse.positions if p.partition >= 0}, self.table.identity
            self.reading.note_partitions(
                is_known=isinstance(found, TopicIdentity)
                and (found.cluster_id, found.topic_id) == (expected.cluster_id, expected.topic_id)
                and set(found.partitions) == known
            )

    def poll(self) -> None:
        """Let ingest look now."""
        if self.reading is not None:
            self.reading.poll()

    def is_log_silent(self, for_s: float) -> bool:
        """The ends of the log are not known, or have not been *for_s* seconds."""
        at = self.progress.ends_at
        return at is None or time.monotonic() - at > for_s

    # -- for its units --------------------------------------------------------------------------------------

    def admit(self, stage: Stage, *, resting: bool = False) -> None:
        """Before the first act of *stage*, see `Steps.admit`."""
        if stage is Stage.EXPIRE and self.pulse is not None:
            self._expires_for = self.pulse.version, self.pulse.positions, self.table.spec_hash
        self.steps.admit(stage, resting=resting)

    def is_admitted(self) -> bool:
        """`admit` lets ingest begin without asking the lake."""
        return self.steps.is_admitted()

    def is_quiet(self, stage: Stage) -> bool:
        return stage in self._quiet

    def note_quiet(self, stage: Stage, *, quiet: bool, held: bool) -> None:
        """*stage* was asked for; where the claim is not *held*, another worker may have it, and nothing was done."""
        if quiet:
            self._quiet.add(stage)
        else:
            self._quiet.discard(stage)
        if stage is Stage.EXPIRE and held:
            self._expired_at, self._expired_for = time.monotonic(), self._expires_for

    def rest_s(self, stage: Stage) -> float:
        """Seconds until *stage* may have work, as far as is known; 0 where it has to look for itself."""
        pulse = self.pulse
        if pulse is None or self.options.until_idle or (stage is Stage.INGEST and self._is_in_pool(stage)):
            return 0.0
        if stage is Stage.EXPIRE and pulse.claims.get(stage) == self.worker.holder:
            return self._expire_rest_s(pulse)
        known = Known(
            holder=self.worker.holder,
            ends=self.progress.ends,
            small=self.steps.nothing_small,
            judged=self.steps.nothing_due,
            mirrored=self.steps.mirrored,
            unmoved_s={moves: self.unmoved_s(moves) for moves in (Stage.TIER, Stage.OTREE)},
        )
        return rest_s(stage, self.table.spec, pulse, known, now=time.monotonic() + self._clock_s)

    def unmoved_s(self, stage: Stage) -> float:
        """For how long the worker has seen no move of *stage*: the database's clock may be set back meanwhile."""
        _, since = self._moved_at.get(stage, (None, time.monotonic()))
        return time.monotonic() - since

    def note_moved(self, stage: Stage) -> None:
        """A move of *stage* was published, of which the ledger's next answer has the time."""
        self._moved_at.pop(stage, None)

    def _expire_rest_s(self, pulse: TablePulse) -> float:
        """A table that nothing changed, and of which nothing is over, has nothing to expire."""
        rest_s, ripe_at = EXPIRE_IDLE_S, self.steps.ripe_at
        since_s = time.monotonic() - self._expired_at
        if self._expired_for != (pulse.version, pulse.positions, self.table.spec_hash):
            rest_s = EXPIRE_EVERY_S
        elif pulse.removes:  # not before its grace is over
            rest_s = EXPIRE_EVERY_S if ripe_at is None else max(EXPIRE_EVERY_S, ripe_at - self._expired_at)
        if pulse.superseded_at is not None:
            over_in_s = pulse.superseded_at + self.table.spec.retention.versions - (time.monotonic() + self._clock_s)
            rest_s = min(rest_s, max(EXPIRE_EVERY_S, since_s + over_in_s))
        return rest_s - since_s

    def slowness(self, late: Mapping[Unit, float], running: Mapping[Unit, float]) -> dict[Stage, tuple[float, float]]:
        """By stage, of all units of the process: the seconds that they are late, and that they have run for."""
        found = dict.fromkeys(self.stages, (0.0, 0.0))
        for unit in self._all:
            late_s, running_s = found.get(unit.stage, (0.0, 0.0))  # the spec may be changing
            found[unit.stage] = max(late_s, late.get(unit, 0.0)), max(running_s, running.get(unit, 0.0))
        return found

    # -- whether it is done ---------------------------------------------------------------------------------

    def finished(self) -> bool:
        """Nothing left to move, or nothing that waiting would help."""
        if self.fatal:
            return True
        if not self._is_caught_up():
            self._caught_up_at = None
            return False
        if self._caught_up_at is None:
            self._caught_up_at = time.monotonic()
        return self.reading is None or self.reading.knows_all_since(self._caught_up_at)

    def _is_caught_up(self) -> bool:
        """All that is known is moved; there may be partitions that are not known yet."""
        if self.reading is not None and self.reading.joined_at >= self.pulsed_at:
            return False
        if self.options.only_due:
            return self._quiet >= self.stages
        positions, ends, pulse = self.progress.positions, self.progress.ends, self.pulse
        if pulse is None or not positions or not set(ends) >= {p.partition for p in positions}:
            return False
        stages = self.stages
        all_read = all(p.bounds.buffer_hi >= ends[p.partition] for p in positions)
        read = all_read or stages.isdisjoint({Stage.INGEST, self.table.intake.reader}) or self.full is not None
        moved = Stage.TIER not in stages or all(p.bounds.stream_hi >= p.bounds.buffer_hi for p in positions)
        compacted = Stage.COMPACT not in stages or pulse.stream == self.steps.nothing_small
        mirrored = Stage.MIRROR not in stages or self.steps.mirroring.is_quiet(self.table)
        return read and moved and compacted and mirrored and (Stage.OTREE not in stages or self._is_merged(positions))

    def _is_merged(self, positions: Sequence[PartitionStatus]) -> bool:
        """The batch view has what the stream view has, and none of its regions is due."""
        batch = None if self.pulse is None else self.pulse.batch
        merged = all(p.bounds.batch_hi >= p.bounds.stream_hi for p in positions)
        return merged and batch is not None and batch == self.steps.nothing_due


def _differ(one: TableSpec, other: TableSpec, word: str) -> bool:
    return bool(getattr(one, word) != getattr(other, word))
