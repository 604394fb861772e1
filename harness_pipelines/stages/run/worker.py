"""The worker: all stages of some tables in one process, without Dagster.

Every stage of every table has its own threads, so one sick table never stops another. A thread repeats: hold the
claim, do one unit, say what happened. Trouble is shown, waited out and tried again; it is never a reason to skip. A
defect holds the stage that met it, by name and with its traceback in the log; the others continue.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

import structlog

from harness_pipelines.errors import HarnessError
from harness_pipelines.formats.schema.policy import SchemaDue
from harness_pipelines.ports.access import (
    HasBufferRows,
    HasBufferWriter,
    HasClose,
    HasEvolutions,
    HasGuard,
    HasHistoryFold,
    HasLakeSchemas,
    HasLog,
    HasMirrors,
    HasOverlays,
    HasRawBytes,
    HasRecalls,
    HasReclusters,
    HasSchemas,
    HasSegments,
    HasSettings,
    HasSignOffs,
    HasUpkeep,
)
from harness_pipelines.ports.errors import LedgerOlderThanLake, WarehouseTaken
from harness_pipelines.ports.ledger import PartitionStatus, TableRow
from harness_pipelines.ports.source import POLL_S
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.pressure import BufferFull
from harness_pipelines.protocol.schema.schemas import SchemaMoved, SpecDisagrees
from harness_pipelines.protocol.versions import Version
from harness_pipelines.stages import compact
from harness_pipelines.stages.ingest import ingest, on_engine
from harness_pipelines.stages.ingest.new_partitions import Joiner
from harness_pipelines.stages.mirror import Mirroring
from harness_pipelines.stages.otree import otree
from harness_pipelines.stages.run.claims import ClaimKeeper
from harness_pipelines.stages.run.due import stages_of
from harness_pipelines.stages.run.looks import Looks
from harness_pipelines.stages.run.looks import Ports as LooksPorts
from harness_pipelines.stages.run.progress import CLAIM_LEASE, TableProgress, WorkerOptions
from harness_pipelines.stages.run.trouble import Backoff, Restart, StageBroken
from harness_pipelines.stages.table import evolve, expire
from harness_pipelines.stages.tier import tier
from harness_pipelines.stages.tier.sources import source_of

if TYPE_CHECKING:
    from harness_pipelines.ports.ledger import Ledger

__all__ = ["CLAIM_LEASE", "StageBroken", "TableProgress", "Worker", "WorkerOptions"]

log = structlog.get_logger(__name__)
INGEST_THREADS_MAX = 2
LOOK_S = 0.25  #: how often tier asks whether it is due
TIDY_EVERY_S = 2.0  #: how often otree and compact do: they are not urgent, and a ledger has many tables
EXPIRE_EVERY_S = 60.0
RESTART_EVERY_S = 1.0  #: how often the ledger is asked what the table is stopped by
JOIN_S = 0.5  #: how often a worker that is in a hurry interrupts what its threads have on Spark
HURRY_S_MAX = 8.0  #: how long a worker in a hurry waits for threads that hang in another server
SEGMENT_BYTES_MAX, SEGMENT_AGE_S_MAX = 32 * 2**20, 600.0
_ON_ENGINE = frozenset({Stage.TIER, Stage.OTREE, Stage.COMPACT})


class Ports(
    compact.Ports,
    LooksPorts,
    HasBufferRows,
    HasBufferWriter,
    HasClose,
    HasEvolutions,
    HasLog,
    HasMirrors,
    HasOverlays,
    HasRawBytes,
    HasRecalls,
    HasReclusters,
    HasLakeSchemas,
    HasSchemas,
    HasSegments,
    HasSettings,
    HasSignOffs,
    HasGuard,
    HasHistoryFold,
    HasUpkeep,
    Protocol,
):
    """The ports that it uses."""

    def opener(self, *, elsewhere: bool = False) -> Callable[[], Ports]:
        """Opens the same in another process; *elsewhere*: on another machine."""
        ...


class Worker:
    """Runs stages of tables until it is stopped."""

    def __init__(self, stores: Ports, tables: Sequence[TableRow], options: WorkerOptions) -> None:
        self.stores = stores
        self.options = options
        self.holder = str(uuid4())
        self.stop = threading.Event()
        self._hurried = False
        self._idle_since = math.inf  #: monotonic seconds
        self.defect: BaseException | None = None
        self._tables = [_TableWorker(self, table) for table in tables]
        self._looks = Looks(stores, self.holder, self.stop, lambda: [(w.table, w.progress) for w in self._tables])

    @property
    def progress(self) -> list[TableProgress]:
        return [worker.progress for worker in self._tables]

    def interrupt(self) -> None:
        """Stop without waiting for Spark: what it does for a stage is given up, as if the worker had died there."""
        self._hurried = True
        self.stop.set()

    def run(self, on_progress: Callable[[list[TableProgress]], None] | None = None, *, every_s: float = 1.0) -> None:
        """Work until stopped, idle or out of time; claims are given back before it returns.

        Raises: the first table's error, if it ends by itself with a table that could not continue, or with a full
        buffer; StageBroken, from what broke it, when it ends with such a stage.
        """
        moved = [worker.table for worker in self._tables] if self.options.stages & _ON_ENGINE else []
        self.stores.engine.check(moved, tasks=self.options.ingest_on == "spark")
        deadline = None if self.options.for_s is None else time.monotonic() + self.options.for_s
        for worker in self._tables:
            worker.start()
        self._looks.start()
        try:
            while not self.stop.wait(0.05 if self.options.until_idle else every_s):
                self._refresh(deadline)
                if on_progress:
                    on_progress(self.progress)
                if self.options.until_idle and self._is_idle():
                    break
                if deadline is not None and time.monotonic() >= deadline:
                    break
        except BaseException:  # Dagster or a second Ctrl-C ends this thread
            self._hurried = True
            raise
        finally:
            self._end()
        if self.defect is not None:
            raise self.defect
        for worker in self._tables:
            if (why := worker.fatal or worker.full) and (self.options.until_idle or isinstance(why, StageBroken)):
                raise why

    def _refresh(self, deadline: float | None) -> None:
        """Look at each table; one whose log does not answer takes seconds, and there may be many."""
        for worker in self._tables:
            if self.stop.is_set() or (deadline is not None and time.monotonic() >= deadline):
                return
            worker.refresh()

    def _is_idle(self) -> bool:
        """No table has anything left to do, or could do it, for as long as the worker was to wait for more."""
        if not all(worker.finished() for worker in self._tables):
            self._idle_since = math.inf
            return False
        now = time.monotonic()
        self._idle_since = min(self._idle_since, now)
        return now - self._idle_since >= self.options.linger_s or any(worker.fatal for worker in self._tables)

    def _end(self) -> None:
        """Wait for the threads, in a hurry not for those that hang, and give back what the others held."""
        self.stop.set()
        for worker in self._tables:
            worker.wake()
        hurried_at = math.inf
        while any(worker.is_alive for worker in self._tables) and time.monotonic() < hurried_at + HURRY_S_MAX:
            if self._hurried:
                hurried_at = min(hurried_at, time.monotonic())
                self.stores.engine.interrupt()
            alive = [worker for worker in self._tables if worker.is_alive]
            for worker in alive:
                worker.join(JOIN_S / len(alive))
        for worker in self._tables:
            if worker.is_alive:  # its claims end by themselves; whoever takes them is safe from it
                log.warning("worker.stages_left_running", table=worker.table.name, after_s=HURRY_S_MAX)
            else:
                worker.release()
        self._looks.end()


class _TableWorker:
    """The threads of one table."""

    def __init__(self, worker: Worker, table: TableRow) -> None:
        self.worker, self.table, self.stores = worker, table, worker.stores
        self.progress = TableProgress(name=table.name)
        self.fatal: HarnessError | None = None
        self._keepers = {
            stage: ClaimKeeper(
                self.stores.ledger,
                table,
                stage,
                holder=worker.holder,
                lease=worker.options.lease,
                check_spec=self._check_spec if stage in (Stage.INGEST, Stage.TIER) else None,  # they read the log
                give_up=partial(self._give_up, stage) if stage in _ON_ENGINE else None,
            )
            for stage in worker.options.stages
        }
        self._threads: list[threading.Thread] = []
        self._counts: dict[int, ingest.IngestProgress] = {}  # by thread; its loops come and go
        self._last_refresh, self._restart_at = 0.0, -math.inf
        self._looked_at = -math.inf  #: monotonic seconds, before the positions that are shown were read
        self._caught_up_at: float | None = None  #: monotonic seconds, since when all that is known is moved
        self._head: Version | None = None  # when last refreshed
        self._stages, self._mirroring = worker.options.stages & stages_of(table), Mirroring(worker.stores)
        self._nothing_due: str | None = None  # in this metadata file of the batch view
        self._nothing_small: str | None = None  # in this metadata file of the stream view
        self._files_looked_at = -math.inf  #: monotonic seconds, when expire last listed the lake's files
        self.full: BufferFull | None = None  # why ingest pauses, where this worker's tier is what empties the buffer
        self._quiet: set[Stage] = set()  # had nothing to do when last asked, or another worker has them
        self._rest: dict[Stage, dict[int, int]] = {}  # what was there at first, and is not moved yet
        self._watching = Backoff(self, "watch")
        self._backoffs: list[Backoff] = [self._watching]
        self._restart = Restart(self, self._backoffs)
        # The stage that takes records from the log is the one that lets partitions join.
        self._reads_log = table.intake.reader
        self._joiner = Joiner(self, self._claim_of_log) if self._reads_log in self._stages else None

    # -- life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        stages = self._stages
        with suppress(HarnessError):  # what stopped it before is over once the threads have worked
            self._restart.look()
        if Stage.INGEST in stages and self.table.intake.buffered:
            if self.worker.options.ingest_on == "spark":
                self._stage(Stage.INGEST, self._ingest_on_spark, LOOK_S)
            else:
                for number in range(INGEST_THREADS_MAX):
                    self._thread(f"ingest-{number}", Stage.INGEST, self._ingest_forever, number)
        if self._joiner is not None:
            self._thread("partitions", self._reads_log, self._joiner.forever)
        if Stage.TIER in stages:
            self._stage(Stage.TIER, self._tier, LOOK_S)
        tidy_every_s = LOOK_S if self.worker.options.until_idle else TIDY_EVERY_S
        if Stage.OTREE in stages:
            self._stage(Stage.OTREE, self._otree, tidy_every_s)
        if Stage.COMPACT in stages:
            self._stage(Stage.COMPACT, self._compact, tidy_every_s)
        if Stage.EXPIRE in stages and not self.worker.options.until_idle:
            self._stage(Stage.EXPIRE, self._expire, EXPIRE_EVERY_S)
        if Stage.MIRROR in stages:
            claim = self._keepers[Stage.MIRROR].current
            self._stage(Stage.MIRROR, lambda: self._mirroring.step(self.table, claim(), self.progress), LOOK_S)

    def reload(self) -> None:
        """Take over the table's schema of now: what was begun with an older one is never committed."""
        with suppress(HarnessError):  # away for now: what was begun is met again
            self.table = self.stores.ledger.table(self.table.name)
        log.info("worker.schema_changed", table=self.table.name, schema=self.table.schema_version)

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

    @property
    def stop(self) -> threading.Event:
        return self.worker.stop

    @property
    def ledger(self) -> Ledger:
        return self.stores.ledger

    def doubt(self, stage: str) -> None:
        """Ask the ledger whether the claim of *stage* is still held."""
        self._keepers[Stage(stage)].doubt()

    def _give_up(self, stage: Stage) -> None:
        self.stores.engine.give_up(self.table, stage)

    def _claim_of_log(self) -> Claim | None:
        keeper = self._keepers[self._reads_log]
        return keeper.current() if keeper.is_held else None

    def wake(self) -> None:
        """End the pauses that do not end with the worker."""
        if self._joiner is not None:
            self._joiner.wake()

    @property
    def is_alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def join(self, timeout_s: float) -> None:
        """Wait for each thread in turn, for *timeout_s* at most."""
        for thread in self._threads:
            thread.join(timeout_s)
            if thread.is_alive():
                return

    def release(self) -> None:
        """Give back the claims, after what they were held for is over."""
        with suppress(HarnessError):
            self._restart.look()
        for keeper in self._keepers.values():
            keeper.release()

    def _stage(self, stage: Stage, step: Callable[[], bool], pause_s: float) -> None:
        self._thread(stage, stage, self._forever, stage, step, pause_s)

    def _thread(self, name: str, stage: Stage, loop: Callable[..., None], *arguments: object) -> None:
        """Keep *loop* up until the worker ends: what it does not handle holds *stage*, then it begins again."""
        backoff = Backoff(self, stage)
        self._backoffs.append(backoff)

        def guarded() -> None:
            try:
                while not self.worker.stop.wait(backoff.held_until - time.monotonic()):
                    with backoff.holding():
                        loop(backoff, *arguments)
            except BaseException as error:
                # Of the worker itself: it ends with it instead of going on without a thread.
                self.worker.defect = error
                self.worker.stop.set()

        thread = threading.Thread(target=guarded, name=f"{self.table.name}/{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def refresh(self) -> None:
        """Read ledger and log for observers; the stages report errors there."""
        if time.monotonic() < max(self._last_refresh + LOOK_S, self._watching.held_until):
            return
        self._last_refresh = time.monotonic()
        with self._watching.holding():
            self._look()
            self._watching.reset()
            if time.monotonic() >= self._restart_at + RESTART_EVERY_S:
                self._restart_at = time.monotonic()
                with suppress(HarnessError):
                    self._restart.look()

    def _look(self) -> None:
        self.progress.add_up(list(self._counts.values()))
        with suppress(HarnessError):
            looked_at = time.monotonic()
            positions = self.stores.ledger.positions(self.table)
            asked_at = time.monotonic()
            marks = self.stores.log.watermarks(self.table.spec.topic, [p.partition for p in positions])
            # The head last: it has what the positions show as moved.
            self._head = self.stores.ledger.head(self.table)
            self.progress.starts = {p: m.low for p, m in marks.items()}
            self.progress.positions, self.progress.ends = positions, {p: m.end for p, m in marks.items()}
            self.progress.ends_at, self._looked_at = asked_at, looked_at

    def finished(self) -> bool:
        """Nothing left to move, or nothing that waiting would help."""
        if self.fatal:
            return True
        if not self._is_caught_up():
            self._caught_up_at = None
            return False
        if self._caught_up_at is None:
            self._caught_up_at = time.monotonic()
        return self._joiner is None or self._joiner.knows_all_since(self._caught_up_at)

    def _is_caught_up(self) -> bool:
        """All that is known is moved; there may be partitions that are not known yet."""
        if self._joiner is not None and self._joiner.joined_at >= self._looked_at:
            return False
        if self.worker.options.only_due:
            return self._quiet >= self._stages
        positions, ends = self.progress.positions, self.progress.ends
        if not positions or set(ends) != {p.partition for p in positions}:
            return False
        stages = self._stages
        all_read = all(p.bounds.buffer_hi >= ends[p.partition] for p in positions)
        read = all_read or stages.isdisjoint({Stage.INGEST, self._reads_log}) or self.full is not None
        moved = Stage.TIER not in stages or all(p.bounds.stream_hi >= p.bounds.buffer_hi for p in positions)
        compacted = Stage.COMPACT not in stages or self._is_compacted()
        mirrored = Stage.MIRROR not in stages or self._mirroring.is_quiet(self.table)
        return read and moved and compacted and mirrored and (Stage.OTREE not in stages or self._is_merged(positions))

    def _is_merged(self, positions: Sequence[PartitionStatus]) -> bool:
        """The batch view has what the stream view has, and none of its regions is due."""
        batch = None if self._head is None else self._head.batch
        merged = all(p.bounds.batch_hi >= p.bounds.stream_hi for p in positions)
        return merged and batch is not None and batch.metadata == self._nothing_due

    def _is_compacted(self) -> bool:
        """No files of the stream view are worth putting together."""
        return self._head is not None and self._head.stream.metadata == self._nothing_small

    # -- loops ----------------------------------------------------------------------------------------------

    def _forever(self, backoff: Backoff, stage: Stage, step: Callable[[], bool], pause_s: float) -> None:
        """Hold the claim, do *step*, pause while it has nothing to do."""
        while not self.worker.stop.is_set():
            held = False
            try:
                self._admit(stage, resting=stage in self._quiet)
                held = self._keepers[stage].acquire()
                busy = held and step()
                if held:
                    backoff.reset()
                else:
                    backoff.over(by_work=False)
            except HarnessError as error:
                backoff.wait(error, pause_s=pause_s if held else 0.0)
                continue
            if busy:
                self._quiet.discard(stage)
            else:  # a stand-by asks often, however rarely the stage itself has work
                self._quiet.add(stage)
                self.worker.stop.wait(pause_s if held else LOOK_S)

    def _admit(self, stage: Stage, *, resting: bool = False) -> None:
        """Before the first act on a table: is its lake this ledger's, and does the ledger know all of it?

        *resting*: nothing is moved before it is asked again.
        Raises: WarehouseTaken, LedgerOlderThanLake. Ingest needs no lake, so a lake that is away does not hold it up.
        """
        if stage is Stage.INGEST and self.stores.settings.warehouse is None:
            return
        try:
            self.stores.guard.check(self.table, self.stores.ledger, resting=resting)
        except HarnessError as error:
            if stage is not Stage.INGEST or isinstance(error, WarehouseTaken | LedgerOlderThanLake):
                raise

    def _ingest_forever(self, backoff: Backoff, number: int) -> None:
        loop = ingest.IngestLoop(
            self.table,
            self.stores.log,
            segments=self.stores.segments,
            writer=self.stores.buffer_writer(
                self.table, self._keepers[Stage.INGEST].current, run_id=self.worker.options.run_id
            ),
            schemas=self.stores.schemas,
            poll_s=ingest.LAST_POLL_S if self.worker.options.until_idle else POLL_S,
        )
        loop.progress = self._counts.setdefault(number, loop.progress)
        try:
            self._ingest(loop, backoff, number)
        finally:
            loop.close()

    def _ingest(self, loop: ingest.IngestLoop, backoff: Backoff, number: int) -> None:
        keeper = self._keepers[Stage.INGEST]
        started: int | None = None
        commits: int | None = None  # when the lake was asked for last
        while not self.worker.stop.is_set():
            try:
                self._admit(Stage.INGEST, resting=loop.progress.commits == commits)
                commits = loop.progress.commits
                if not keeper.acquire():
                    started = None
                    backoff.over(by_work=False)
                    self.worker.stop.wait(LOOK_S)
                elif loop.table is not self.table and loop.table.spec != self.table.spec:
                    return  # another thread has found that the spec was changed: the next loop decodes by that one
                elif started != self._generation:
                    generation = self._generation
                    mine = [p for p in self.stores.segments.positions(self.table) if p % INGEST_THREADS_MAX == number]
                    loop.start(mine)
                    started = generation
                else:
                    loop.step()
                    self.full = None
                    backoff.reset()
            except SchemaDue as due:
                self._follow(loop.table, due, backoff)
                return
            except HarnessError as error:
                started = None
                self.full = error if isinstance(error, BufferFull) and Stage.TIER in self._stages else None
                backoff.wait(error)
                if isinstance(error, SchemaMoved | SpecDisagrees):
                    return  # the next loop decodes with the schema of now

    @property
    def _generation(self) -> int:
        return 0 if self._joiner is None else self._joiner.generation

    def _follow(self, table: TableRow, due: SchemaDue, backoff: Backoff) -> None:
        """Change the columns of *table*, for which the record was decoded, as its schema asks."""
        try:
            evolve.follow(self.stores, table, due)
            self.reload()
        except HarnessError as error:
            backoff.wait(error)

    def _ingest_on_spark(self) -> bool:
        done = on_engine.ingest_on_spark(self.stores, self.table, self._keepers[Stage.INGEST].current())
        self.progress.rows += done.rows
        return bool(done.reached)

    def _tier(self) -> bool:
        idle = self._ingest_is_idle if self._moves_rest(Stage.TIER) else None
        trigger = tier.trigger(self.stores, self.table, idle=idle)
        if trigger is None:
            return False
        moved = self._move(Stage.TIER, tier.tier_once, trigger)
        if moved:
            self._rotate()
        return moved

    def _otree(self) -> bool:
        looked_at = self.stores.ledger.head(self.table).batch
        idle = self._moves_rest(Stage.OTREE) and self._tier_is_idle()
        trigger = otree.trigger(self.stores, self.table, idle=idle, judged=self._nothing_due)
        if trigger is None:
            self._nothing_due = None if looked_at is None else looked_at.metadata
            return False
        return self._move(Stage.OTREE, otree.otree_once, trigger)

    def _compact(self) -> bool:
        looked_at = self.stores.ledger.head(self.table).stream.metadata
        trigger = compact.trigger(self.stores, self.table, judged=self._nothing_small)
        if trigger is None:
            self._nothing_small = looked_at
            return False
        return self._move(Stage.COMPACT, compact.compact_once, trigger)

    def _move(self, stage: Stage, once: Callable[..., Version | None], trigger: str) -> bool:
        """Do what is due by *once*, if the lake may be written to; whether a version was published."""
        self._admit(stage)
        claim, run_id, done = self._keepers[stage].current(), self.worker.options.run_id, self.progress.tallies[stage]
        published = once(self.stores, self.table, claim, trigger=trigger, run_id=run_id, done=done)
        if published is None:
            return False
        self.progress.moves += 1
        self.progress.version = published.version
        return True

    def _moves_rest(self, stage: Stage) -> bool:
        """Where the stage before has nothing left, what the rules of the spec would let wait is moved too."""
        options = self.worker.options
        if not options.only_due:
            return options.until_idle
        if not options.rest_first or self._rest.get(stage) == {}:
            return False
        bounds = source_of(self.table).takeable(self.stores, self.table)
        there = {p: b.buffer_hi if stage is Stage.TIER else b.stream_hi for p, b in bounds.items()}
        moved = {p: b.stream_hi if stage is Stage.TIER else b.batch_hi for p, b in bounds.items()}
        rest = self._rest.setdefault(stage, there)  # what comes later waits for the rules
        self._rest[stage] = {p: o for p, o in rest.items() if moved[p] < o}
        return bool(self._rest[stage])

    def _tier_is_idle(self) -> bool:
        bounds = source_of(self.table).takeable(self.stores, self.table)
        moved = all(b.stream_hi >= b.buffer_hi for b in bounds.values())
        return Stage.TIER not in self.worker.options.stages or (moved and self._ingest_is_idle(bounds))

    def _ingest_is_idle(self, bounds: Mapping[int, Bounds]) -> bool:
        if Stage.INGEST not in self.worker.options.stages:
            return True
        marks = self.stores.log.watermarks(self.table.spec.topic, bounds)
        return all(b.buffer_hi >= marks[p].end for p, b in bounds.items())

    def _rotate(self) -> None:
        """Give a segment that is large or old a successor after a move, so that it can retire."""
        newest = self.stores.segments.sizes(self.table)[-1:]
        if any(s["bytes"] >= SEGMENT_BYTES_MAX or s["age_s"] >= SEGMENT_AGE_S_MAX for s in newest):
            self.stores.segments.rotate(self.table)

    def _expire(self) -> bool:
        claim = self._keepers[Stage.EXPIRE].current()
        look = time.monotonic() - self._files_looked_at >= expire.look_every_s(self.table)
        expire.expire_once(self.stores, self.table, claim, remove_large=self.worker.options.remove_large, look=look)
        if look:
            self._files_looked_at = time.monotonic()
        return False
