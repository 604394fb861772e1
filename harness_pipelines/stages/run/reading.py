"""Reading the log of one table: units that ingest, and one that looks for partitions that were added."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

import structlog

from harness_pipelines.errors import HarnessError
from harness_pipelines.formats.schema.policy import SchemaDue
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import Feed
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.pressure import BufferFull
from harness_pipelines.protocol.schema.schemas import SchemaMoved, SpecDisagrees
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages.ingest import ingest, new_partitions
from harness_pipelines.stages.ingest.ingest import Steps
from harness_pipelines.stages.ingest.new_partitions import Joiner
from harness_pipelines.stages.ingest.together import RECORDS_MAX, together
from harness_pipelines.stages.run.progress import TableProgress
from harness_pipelines.stages.run.schedule import Room, Turn
from harness_pipelines.stages.run.trouble import Backoff
from harness_pipelines.stages.run.units import LOOK_S, objective_s
from harness_pipelines.stages.table import evolve

if TYPE_CHECKING:
    from harness_pipelines.stages.run.pool import Unit
    from harness_pipelines.stages.run.table_units import TableUnits

log = structlog.get_logger(__name__)
WITHOUT_REGISTRY = frozenset({"json", "raw", "debezium"})  #: formats that ask no other system how to decode
INGEST_UNITS_MAX = 2  #: of a table; each reads its share of the partitions
IDLE_S = 600.0  #: how often the reader of a quiet log is polled; records wake it, and so do ends of the log beyond it
SILENT_S = 0.5  #: how often it is polled while the log does not answer, so that an outage gets its name
FRESH_S = 10.0  #: a log whose ends are not known for so long does not answer


class Reading:
    """The units of one table that read its log."""

    def __init__(self, of: TableUnits) -> None:
        self._of = of
        self._stage = of.table.intake.reader  # the one that takes records from the log lets partitions join
        ingests = Stage.INGEST in of.stages and of.table.intake.buffered and of.options.ingest_on == "threads"
        self.joiner = Joiner(of, self._claim, self._look_for_partitions)
        self._partitions = PartitionsUnit(of, self, of.backoff(self._stage))
        self._ingest = [
            IngestUnit(of, self.joiner, of.backoff(Stage.INGEST), number)
            for number in range(INGEST_UNITS_MAX if ingests else 0)
        ]
        self.units: list[PartitionsUnit | IngestUnit] = [self._partitions, *self._ingest]

    @property
    def joined_at(self) -> float:
        return self.joiner.joined_at

    def knows_all_since(self, moment: float) -> bool:
        """Was there a look for partitions after *moment* that found none? If not, the next one comes at once."""
        return self.joiner.knows_all_since(moment)

    @property
    def commits(self) -> int:
        """How many commits the units made so far."""
        return sum(one.counts.commits for one in self._ingest)

    def count(self, progress: TableProgress) -> None:
        """Note what the units did so far."""
        progress.add_up([one.counts for one in self._ingest])

    def poll(self) -> None:
        """Let the units that ingest look now."""
        for unit in self._ingest:
            unit.wake()

    def note_partitions(self, *, is_known: bool) -> None:
        """The topic was described: *is_known*, it is the table's and has the partitions that the table has."""
        if not is_known:
            self._partitions.wake()

    def go_by(self, spec: TableSpec) -> None:
        """The table has another spec now: the next step of each unit decodes by it."""
        for unit in self._ingest:
            unit.turn.objective_s = objective_s(spec, Stage.INGEST)
            unit.wake()

    def close(self) -> None:
        """Let go of what the units read by, after they have ended."""
        for unit in self._ingest:
            unit.close()

    def _look_for_partitions(self) -> None:
        self._of.ask(self._partitions)

    def _claim(self) -> Claim | None:
        return self._of.keeper(self._stage).held


class PartitionsUnit:
    """A look for partitions that the table does not have yet."""

    def __init__(self, of: TableUnits, reading: Reading, backoff: Backoff) -> None:
        self.turn = Turn(of.table.name, "partitions", Room.LOG, new_partitions.PARTITIONS_EVERY_S)
        self._of, self._reading, self._backoff = of, reading, backoff

    @property
    def stage(self) -> Stage:
        return Stage(self._backoff.stage)

    def wake(self) -> None:
        """Look now, unless it waits after a failure."""
        if not self._backoff.is_in_trouble:
            self._of.ask(self)

    def run(self) -> float:
        """Look once; what it does not handle holds the stage that reads the log."""
        pause_s = 0.0
        with self._backoff.holding():
            pause_s = self._once()
        return max(pause_s, self._backoff.held_until - time.monotonic())

    def _once(self) -> float:
        joiner, began_at = self._reading.joiner, time.monotonic()
        generation = joiner.generation
        try:
            is_complete = joiner.look()
        except HarnessError as error:
            return self._backoff.failed(error)
        finally:
            if joiner.generation != generation:
                self._reading.poll()
        self._backoff.reset()
        if is_complete:  # the topics of all tables are described together
            return new_partitions.PARTITIONS_EVERY_S if self._of.options.until_idle else inf
        return 0.0 if joiner.joined_at >= began_at else new_partitions.STANDBY_S


class IngestUnit:
    """Ingest of some partitions of one table: one poll and one commit at a time."""

    def __init__(self, of: TableUnits, joiner: Joiner, backoff: Backoff, number: int) -> None:
        self.turn = Turn(of.table.name, f"ingest-{number}", Room.LOG, objective_s(of.table.spec, Stage.INGEST))
        self._of, self._joiner, self._backoff, self._number = of, joiner, backoff, number
        self.counts = ingest.IngestProgress()  #: of all its loops
        self._loop: ingest.IngestLoop | None = None
        self._started: int | None = None  # the generation of partitions that the loop reads
        self._commits = 0  # when the lake was asked for last
        self._mine: list[int] = []  #: its partitions
        self._is_idle = False  # there are no partitions for it
        self._waits_until = 0.0  #: after a failure, on the monotonic clock
        self._moved_at = 0.0  #: when the loop began, or last committed, on the monotonic clock

    @property
    def stage(self) -> Stage:
        return Stage.INGEST

    def wake(self) -> None:
        """Poll as soon as it is worth its cost, and a pause after a failure is over. Called by other threads."""
        loop = self._loop
        not_before = max(self._waits_until, 0.0 if loop is None else loop.not_before)
        self._of.ask(self, in_s=max(0.0, not_before - time.monotonic()))

    def run(self) -> float:
        """One poll and what follows from it; what it does not handle holds ingest. Seconds until it is due again."""
        return ingest.alone(self._steps(joined=False))

    def run_with(self, others: Sequence[Unit]) -> list[float]:
        """The same for this one and *others*, units of ingest too, with one transaction for what is small."""
        units = [self, *(one for one in others if isinstance(one, IngestUnit))]
        began_s = time.thread_time()
        found = together([one._steps(joined=True) for one in units], self._of.stores.log)
        for one in units:
            one.counts.cpu_s += (time.thread_time() - began_s) / len(units)
        return found

    def _steps(self, *, joined: bool) -> Steps[float]:
        """What `run` does, up to each commit; *joined*: others wait for it."""
        if (rest_s := self._waits_until - time.monotonic()) > 0:  # it was woken while it failed
            return rest_s
        pause_s, is_over = 0.0, False
        with self._backoff.holding():
            pause_s = yield from self._once(joined=joined)
            is_over = True
        if not is_over:
            self.close()
            self._waits_until = self._backoff.held_until
        return max(pause_s, self._waits_until - time.monotonic())

    def close(self) -> None:
        """Begin with another loop the next time."""
        loop, self._loop, self._started = self._loop, None, None
        if loop is not None:
            loop.close()

    def _once(self, *, joined: bool) -> Steps[float]:
        of = self._of
        may_join, self.turn.joins = self._may_join(), False
        if joined and not may_join:  # at once, by itself
            return 0.0
        try:
            of.admit(Stage.INGEST, resting=self.counts.commits == self._commits)
            self._commits = self.counts.commits
            if not of.keeper(Stage.INGEST).acquire():
                self.close()
                self._backoff.over(by_work=False)
                return max(LOOK_S, of.rest_s(Stage.INGEST))
            taken = yield from self._step(joined=joined)
        except SchemaDue as due:
            return self._follow(due)
        except HarnessError as error:
            self._started = None
            of.full = error if isinstance(error, BufferFull) and Stage.TIER in of.stages else None
            if isinstance(error, SchemaMoved | SpecDisagrees):
                self.close()  # the next loop decodes with the schema of now
            return self._failed(error)
        of.full = None
        if self._has_worked():
            self._backoff.reset()
        self.turn.joins = self._may_join()
        return taken

    def _may_join(self) -> bool:
        """Nothing but the log and the ledger is asked by its next step, and it has little to take."""
        of, loop = self._of, self._loop
        return (
            loop is not None
            and loop.table is of.table
            and loop.took <= RECORDS_MAX
            and self._started == self._joiner.generation
            and not self._is_idle
            and not self._backoff.is_in_trouble
            and of.keeper(Stage.INGEST).is_held
            and of.table.spec.format in WITHOUT_REGISTRY
            and of.is_admitted()
        )

    def _failed(self, error: HarnessError) -> float:
        """Show *error*; seconds until the next try, before which nothing wakes it."""
        pause_s = self._backoff.failed(error)
        self._waits_until = time.monotonic() + pause_s
        return pause_s

    def _has_worked(self) -> bool:
        """Whether a step without an error shows that the unit works: it took something, or there is nothing to take.

        What the unit failed at may only not have been fetched yet.
        """
        if self.counts.commits != self._commits:
            return True
        progress = self._of.progress
        taken = {p.partition: p.bounds.buffer_hi for p in progress.positions}
        return all(p in progress.ends and taken.get(p, -1) >= progress.ends[p] for p in self._mine)

    def _step(self, *, joined: bool) -> Steps[float]:
        """Seconds until the next one."""
        loop = self._current()
        if (rest_s := loop.not_before - time.monotonic()) > 0:  # it was woken while it ran
            return rest_s
        generation = self._joiner.generation
        if self._started != generation:
            known = self._of.stores.segments.positions(self._of.table)
            self._mine = [p for p in known if p % INGEST_UNITS_MAX == self._number]
            loop.start(self._mine)
            self._started, self._is_idle, self._moved_at = generation, not self._mine, time.monotonic()
        if self._is_idle:
            return inf  # partitions that join wake it
        commits = self.counts.commits
        if joined:
            taken = yield from loop.steps(records_max=RECORDS_MAX)
        else:
            taken = loop.step()
        if commits != self.counts.commits:  # of offsets without a record, too
            self._moved_at = time.monotonic()
        if taken:
            return max(0.0, loop.not_before - time.monotonic())
        if self._is_ahead(loop):
            self._started = None  # it begins again where the ledger is
            return 0.0
        return SILENT_S if self._of.is_log_silent(FRESH_S) else IDLE_S

    def _is_ahead(self, loop: ingest.IngestLoop) -> bool:
        """The ledger has lost what *loop* took: a server that was promoted, or a backup, lacks its last commits.

        Without this it would wait for the next record, whose commit tells, behind records that nobody takes.
        """
        of = self._of
        if of.pulse is None or of.pulsed_at <= self._moved_at:
            return False
        there = {p.partition: p.bounds.buffer_hi for p in of.pulse.positions}
        return any(at > there.get(p, at) for p, at in loop.positions.items())

    def _current(self) -> ingest.IngestLoop:
        """The loop; a new one where the table's spec was changed: it decodes by that one."""
        of, loop = self._of, self._loop
        if loop is not None and loop.table is not of.table and loop.table.spec != of.table.spec:
            self.close()
            loop = None
        if loop is None:
            loop = self._loop = ingest.IngestLoop(
                of.table,
                of.stores.log,
                segments=of.stores.segments,
                writer=of.stores.buffer_writer(of.table, of.keeper(Stage.INGEST).current, run_id=of.options.run_id),
                schemas=of.stores.schemas,
                poll_s=0.0,
                pace=of.worker.pace,
                feed=Feed(f"{of.worker.holder}/{of.table.table_id}", self.wake),
            )
            loop.progress = self.counts
        return loop

    def _follow(self, due: SchemaDue) -> float:
        """Change the columns of the table, for which the record was decoded, as its schema asks."""
        table: TableRow = self._of.table if self._loop is None else self._loop.table
        self.close()
        try:
            evolve.follow(self._of.stores, table, due)
            self._of.reload()
        except HarnessError as error:
            return self._failed(error)
        return 0.0
