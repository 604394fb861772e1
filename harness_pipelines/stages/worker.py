"""The worker: all stages of some tables in one process, without Dagster.

Every stage of every table has its own threads, so one sick table never stops another. A thread repeats: hold the
claim, do one unit, say what happened. Trouble is shown, waited out and tried again; it is never a reason to skip. What
nobody foresaw holds the stage that met it, by name and with its traceback in the log; the others go on.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

import structlog

from harness_pipelines.codecs.policy import SchemaDue
from harness_pipelines.errors import HarnessError, Recovery, TryAgain
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.claims import CONTINUOUS_STAGES, FencedOut, Stage
from harness_pipelines.protocol.schemas import SchemaMoved
from harness_pipelines.protocol.versions import EFFECTS, Version
from harness_pipelines.stages import compact, evolve, expire, ingest, ingest_spark, otree, tier
from harness_pipelines.stages.claims import ClaimKeeper
from harness_pipelines.stages.moving import Tally
from harness_pipelines.stores.owner import WarehouseTaken
from harness_pipelines.stores.ports import PartitionStatus, TableRow
from harness_pipelines.stores.spark import SparkInterrupted, import_pyspark
from harness_pipelines.stores.standing import LedgerOlderThanLake

if TYPE_CHECKING:
    from harness_pipelines.stores.open import Stores

log = structlog.get_logger(__name__)
CLAIM_LEASE = timedelta(seconds=30)
INGEST_THREADS_MAX = 2
LOOK_S = 0.25  #: how often tier asks whether it is due
TIDY_EVERY_S = 2.0  #: how often otree and compact do: nobody waits for them, and a ledger has many tables
EXPIRE_EVERY_S = 60.0
JOIN_S = 0.5  #: how often a worker that is in a hurry interrupts what its threads have on Spark
PARTITIONS_EVERY_S = 5.0
_OF_EVERY_TABLE = frozenset({Stage.INGEST, Stage.EXPIRE})
BACKOFF_S_MAX = 5.0
COUNTED_S = 1.0  #: at least, after a failure that counts against a move: what heals in seconds shall not halve it
BROKEN_S_MIN, BROKEN_S_MAX = 10.0, 300.0  #: how long a stage is held that met what nobody foresaw
SEGMENT_BYTES_MAX = 32 * 2**20
_ON_SPARK = frozenset({Stage.TIER, Stage.OTREE, Stage.COMPACT})
SEGMENT_AGE_S_MAX = 600.0


class StageBroken(HarnessError):
    """A stage of one table met an error that has no name; it is held, and what else the worker does goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker runs. ``until_idle``: end when nothing is left to move; ``for_s``: end after so many seconds.

    ``linger_s``: an idle worker waits so long for more before it ends. ``only_due``: it ends as soon as the rules of
    the spec ask for nothing, instead of moving the rest early; with ``rest_first`` what is there is moved once all the
    same. Of the stages on Spark.
    """

    stages: frozenset[Stage] = CONTINUOUS_STAGES
    until_idle: bool = False
    for_s: float | None = None
    linger_s: float = 0.0
    only_due: bool = False
    rest_first: bool = False
    lease: timedelta = CLAIM_LEASE
    run_id: str | None = None
    ingest_on: Literal["threads", "spark"] = "threads"  #: this machine, or Spark's executors
    remove_large: bool = False  #: let expire remove more than half of a table's bytes in one run


@dataclass(slots=True)
class TableProgress:
    """What the worker did for one table, for those who watch."""

    name: str
    rows: int = 0
    refused: int = 0
    commits: int = 0
    moves: int = 0
    version: int = 0
    trouble: dict[str, str] = field(default_factory=dict)  #: stage -> what it waits for
    positions: list[PartitionStatus] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    ends_at: float | None = None  #: monotonic seconds, when `ends` were asked for
    tallies: dict[Stage, Tally] = field(default_factory=lambda: {stage: Tally() for stage in EFFECTS})
    errors: Counter[str] = field(default_factory=Counter)  #: stage -> how often one held it


class Worker:
    """Runs stages of tables until it is told to stop."""

    def __init__(self, stores: Stores, tables: Sequence[TableRow], options: WorkerOptions) -> None:
        self.stores = stores
        self.options = options
        self.holder = str(uuid4())
        self.stop = threading.Event()
        self._hurried = False
        self._idle_since = math.inf  #: monotonic seconds
        self.defect: BaseException | None = None
        self._tables = [_TableWorker(self, table) for table in tables]

    @property
    def progress(self) -> list[TableProgress]:
        return [worker.progress for worker in self._tables]

    def interrupt(self) -> None:
        """Stop without waiting for Spark: what it does for a stage is given up, as if the worker had died there."""
        self._hurried = True
        self.stop.set()

    def run(self, on_progress: Callable[[list[TableProgress]], None] | None = None, *, every_s: float = 1.0) -> None:
        """Work until stopped, idle or out of time; claims are given back before it returns.

        Raises: the first table's trouble, when it ends by itself with a table that could not go on; StageBroken, from
        what broke it, when it ends with such a stage.
        """
        if self.options.stages & _ON_SPARK or self.options.ingest_on == "spark":
            import_pyspark()
        deadline = None if self.options.for_s is None else time.monotonic() + self.options.for_s
        for worker in self._tables:
            worker.start()
        try:
            while not self.stop.wait(0.05 if self.options.until_idle else every_s):
                for worker in self._tables:
                    worker.refresh()
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
            if worker.fatal and (self.options.until_idle or isinstance(worker.fatal, StageBroken)):
                raise worker.fatal

    def _is_idle(self) -> bool:
        """No table has anything left to do, or could do it, for as long as the worker was to wait for more."""
        if not all(worker.finished() for worker in self._tables):
            self._idle_since = math.inf
            return False
        now = time.monotonic()
        self._idle_since = min(self._idle_since, now)
        return now - self._idle_since >= self.options.linger_s or any(worker.fatal for worker in self._tables)

    def _end(self) -> None:
        """Wait for the threads, and give back what they held."""
        self.stop.set()
        while any(worker.is_alive for worker in self._tables):
            if self._hurried:
                self.stores.spark_sessions.interrupt()
            for worker in self._tables:
                worker.join(JOIN_S)
        for worker in self._tables:
            worker.release()


class _TableWorker:
    """The threads of one table."""

    def __init__(self, worker: Worker, table: TableRow) -> None:
        self.worker, self.table, self.stores = worker, table, worker.stores
        self.progress = TableProgress(name=table.name)
        self.fatal: HarnessError | None = None
        self._keepers = {
            stage: ClaimKeeper(self.stores.ledger, table, stage, holder=worker.holder, lease=worker.options.lease)
            for stage in worker.options.stages
        }
        self._threads: list[threading.Thread] = []
        self._ingests: list[ingest.IngestLoop] = []
        self._generation = 0
        self._last_refresh = 0.0
        self._head: Version | None = None  # when last refreshed
        self._stages = worker.options.stages & (_OF_EVERY_TABLE | table.effects.keys())
        self._nothing_due: str | None = None  # in this metadata file of the batch view
        self._nothing_small: str | None = None  # in this metadata file of the stream view
        self._quiet: set[Stage] = set()  # had nothing to do when last asked, or somebody else has them
        self._rest: dict[Stage, dict[int, int]] = {}  # what was there at first, and is not moved yet
        self._watching = _Backoff(self, "watch")

    # -- life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        stages = self._stages
        if self.table.stopped:  # by an earlier worker; whatever stopped it is found again if it is still there
            with suppress(HarnessError):
                self.stores.ledger.stop_table(self.table, None)
        if Stage.INGEST in stages and self.table.spec.buffer != "none":
            if self.worker.options.ingest_on == "spark":
                self._stage(Stage.INGEST, self._ingest_on_spark, LOOK_S)
            else:
                for number in range(INGEST_THREADS_MAX):
                    self._thread(f"ingest-{number}", Stage.INGEST, self._ingest_forever, number)
        if Stage.INGEST in stages:
            self._thread("partitions", Stage.INGEST, self._join_forever)
        if Stage.TIER in stages:
            self._stage(Stage.TIER, self._tier, LOOK_S)
        tidy_every_s = LOOK_S if self.worker.options.until_idle else TIDY_EVERY_S
        if Stage.OTREE in stages:
            self._stage(Stage.OTREE, self._otree, tidy_every_s)
        if Stage.COMPACT in stages:
            self._stage(Stage.COMPACT, self._compact, tidy_every_s)
        if Stage.EXPIRE in stages and not self.worker.options.until_idle:
            self._stage(Stage.EXPIRE, self._expire, EXPIRE_EVERY_S)

    def reload(self) -> None:
        """Take over the table's schema of now: what was begun with an older one is never committed."""
        self.table = self.stores.ledger.table(self.table.name)
        log.info("worker.schema", table=self.table.name, schema=self.table.schema_version)

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
        """Give back the claims."""
        for keeper in self._keepers.values():
            keeper.release()

    def _stage(self, stage: Stage, step: Callable[[], bool], pause_s: float) -> None:
        self._thread(stage, stage, self._forever, stage, step, pause_s)

    def _thread(self, name: str, stage: Stage, loop: Callable[..., None], *arguments: object) -> None:
        """Keep *loop* up until the worker ends: what it does not handle holds *stage*, then it begins anew."""

        def guarded() -> None:
            backoff = _Backoff(self, stage)
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
        """Look at the ledger and the log for those who watch; trouble there is shown by the stages."""
        if time.monotonic() < max(self._last_refresh + LOOK_S, self._watching.held_until):
            return
        self._last_refresh = time.monotonic()
        with self._watching.holding():
            self._look()
            self._watching.over()

    def _look(self) -> None:
        if self._ingests:
            self.progress.rows = sum(loop.progress.rows for loop in self._ingests)
            self.progress.refused = sum(loop.progress.refused for loop in self._ingests)
            self.progress.commits = sum(loop.progress.commits for loop in self._ingests)
        with suppress(HarnessError):
            positions = self.stores.ledger.positions(self.table)
            asked_at = time.monotonic()
            marks = self.stores.log.watermarks(self.table.spec.topic, [p.partition for p in positions])
            # The head last: it has what the positions show as moved.
            self._head = self.stores.ledger.head(self.table)
            self.progress.positions, self.progress.ends = positions, {p: m.end for p, m in marks.items()}
            self.progress.ends_at = asked_at

    def finished(self) -> bool:
        """Nothing left to move, or nothing that waiting would help."""
        if self.fatal:
            return True
        if self.worker.options.only_due:
            return self._quiet >= self._stages
        positions, ends = self.progress.positions, self.progress.ends
        if not positions or set(ends) != {p.partition for p in positions}:
            return False
        stages = self._stages
        reads_log = Stage.INGEST in stages or (Stage.TIER in stages and self.table.spec.buffer == "none")
        read = not reads_log or all(p.bounds.buffer_hi >= ends[p.partition] for p in positions)
        moved = Stage.TIER not in stages or all(p.bounds.stream_hi >= p.bounds.buffer_hi for p in positions)
        compacted = Stage.COMPACT not in stages or self._is_compacted()
        return read and moved and compacted and (Stage.OTREE not in stages or self._is_merged(positions))

    def _is_merged(self, positions: Sequence[PartitionStatus]) -> bool:
        """The batch view has what the stream view has, and none of its regions is due."""
        batch = None if self._head is None else self._head.batch
        merged = all(p.bounds.batch_hi >= p.bounds.stream_hi for p in positions)
        return merged and batch is not None and batch.metadata == self._nothing_due

    def _is_compacted(self) -> bool:
        """No files of the stream view are worth putting together."""
        return self._head is not None and self._head.stream.metadata == self._nothing_small

    # -- loops ----------------------------------------------------------------------------------------------

    def _forever(self, backoff: _Backoff, stage: Stage, step: Callable[[], bool], pause_s: float) -> None:
        """Hold the claim, do *step*, pause while it has nothing to do."""
        while not self.worker.stop.is_set():
            held = False
            try:
                self._admit(stage)
                held = self._keepers[stage].acquire()
                busy = held and step()
                backoff.reset()
            except HarnessError as error:
                backoff.wait(error, pause_s=pause_s if held else 0.0)
                continue
            if busy:
                self._quiet.discard(stage)
            else:  # a stand-by asks often, however rarely the stage itself has work
                self._quiet.add(stage)
                self.worker.stop.wait(pause_s if held else LOOK_S)

    def _admit(self, stage: Stage) -> None:
        """Before the first act on a table: is its lake this ledger's, and does the ledger know all of it?

        Raises: WarehouseTaken, LedgerOlderThanLake. Ingest needs no lake, so a lake that is away does not hold it up.
        """
        if stage is Stage.INGEST and self.stores.settings.warehouse is None:
            return
        try:
            self.stores.standing.check(self.table, self.stores.ledger)
        except HarnessError as error:
            if stage is not Stage.INGEST or isinstance(error, WarehouseTaken | LedgerOlderThanLake):
                raise

    def _ingest_forever(self, backoff: _Backoff, number: int) -> None:
        loop = ingest.IngestLoop(
            self.table,
            self.stores.log,
            segments=self.stores.segments,
            claim=self._keepers[Stage.INGEST].current,
            sessions=self.stores.writer_sessions,
            schemas=self.stores.schemas,
            poll_s=ingest.LAST_POLL_S if self.worker.options.until_idle else ingest.POLL_S,
            run_id=self.worker.options.run_id,
        )
        self._ingests.append(loop)
        try:
            self._ingest(loop, backoff, number)
        finally:
            loop.close()

    def _ingest(self, loop: ingest.IngestLoop, backoff: _Backoff, number: int) -> None:
        keeper = self._keepers[Stage.INGEST]
        started: int | None = None
        while not self.worker.stop.is_set():
            try:
                self._admit(Stage.INGEST)
                if not keeper.acquire():
                    started = None
                    self.worker.stop.wait(LOOK_S)
                elif started != self._generation:
                    generation = self._generation
                    mine = [p for p in self.stores.segments.positions(self.table) if p % INGEST_THREADS_MAX == number]
                    loop.start(mine)
                    started = generation
                else:
                    loop.step()
                    backoff.reset()
            except SchemaDue as due:
                self._follow(loop.table, due, backoff)
                return
            except SchemaMoved:
                self.reload()
                return  # the next loop decodes with the schema of now
            except HarnessError as error:
                started = None
                backoff.wait(error)

    def _follow(self, table: TableRow, due: SchemaDue, backoff: _Backoff) -> None:
        """Change the columns of *table*, for which the record was decoded, as its schema asks."""
        try:
            evolve.follow(self.stores, table, due)
            self.reload()
        except HarnessError as error:
            backoff.wait(error)

    def _ingest_on_spark(self) -> bool:
        done = ingest_spark.ingest_on_spark(self.stores, self.table, self._keepers[Stage.INGEST].current())
        self.progress.rows += done.rows
        return bool(done.reached)

    def _join_forever(self, backoff: _Backoff) -> None:
        """Partitions that were added to the topic join by themselves; those of a keyed table stop its ingest."""
        while not self.worker.stop.wait(PARTITIONS_EVERY_S):
            with suppress(HarnessError):  # the ingest threads show what is wrong with the topic
                known = self.stores.segments.positions(self.table)
                if starts := ingest.join_partitions(self.table, self.stores.log, known=known):
                    if not self.table.spec.key:
                        self.stores.ledger.add_partitions(self.table, starts)
                        log.info("ingest.partitions_joined", table=self.table.name, partitions=sorted(starts))
                    self._generation += 1  # the ingest threads look anew
            backoff.over()

    def _tier(self) -> bool:
        idle = self._ingest_is_idle if self._moves_rest(Stage.TIER) else None
        trigger = tier.trigger(self.stores, self.table, idle=idle)
        if trigger is None:
            return False
        claim = self._keepers[Stage.TIER].current()
        run_id, done = self.worker.options.run_id, self.progress.tallies[Stage.TIER]
        published = tier.tier_once(self.stores, self.table, claim, trigger=trigger, run_id=run_id, done=done)
        if published is not None:
            self.progress.moves += 1
            self.progress.version = published.version
            self._rotate()
        return published is not None

    def _otree(self) -> bool:
        looked_at = self.stores.ledger.head(self.table).batch
        idle = self._moves_rest(Stage.OTREE) and self._tier_is_idle()
        trigger = otree.trigger(self.stores, self.table, idle=idle, judged=self._nothing_due)
        if trigger is None:
            self._nothing_due = None if looked_at is None else looked_at.metadata
            return False
        claim = self._keepers[Stage.OTREE].current()
        run_id, done = self.worker.options.run_id, self.progress.tallies[Stage.OTREE]
        published = otree.otree_once(self.stores, self.table, claim, trigger=trigger, run_id=run_id, done=done)
        if published is not None:
            self.progress.moves += 1
            self.progress.version = published.version
        return published is not None

    def _compact(self) -> bool:
        looked_at = self.stores.ledger.head(self.table).stream.metadata
        trigger = compact.trigger(self.stores, self.table, judged=self._nothing_small)
        if trigger is None:
            self._nothing_small = looked_at
            return False
        claim = self._keepers[Stage.COMPACT].current()
        run_id, done = self.worker.options.run_id, self.progress.tallies[Stage.COMPACT]
        published = compact.compact_once(self.stores, self.table, claim, trigger=trigger, run_id=run_id, done=done)
        if published is not None:
            self.progress.moves += 1
            self.progress.version = published.version
        return published is not None

    def _moves_rest(self, stage: Stage) -> bool:
        """Where the stage before has nothing left, what the rules of the spec would let wait is moved too."""
        options = self.worker.options
        if not options.only_due:
            return options.until_idle
        if not options.rest_first or self._rest.get(stage) == {}:
            return False
        bounds = tier.takeable(self.stores, self.table)
        there = {p: b.buffer_hi if stage is Stage.TIER else b.stream_hi for p, b in bounds.items()}
        moved = {p: b.stream_hi if stage is Stage.TIER else b.batch_hi for p, b in bounds.items()}
        rest = self._rest.setdefault(stage, there)  # what comes later waits for the rules
        self._rest[stage] = {p: o for p, o in rest.items() if moved[p] < o}
        return bool(self._rest[stage])

    def _tier_is_idle(self) -> bool:
        bounds = tier.takeable(self.stores, self.table)
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
        expire.expire_once(self.stores, self.table, claim, remove_large=self.worker.options.remove_large)
        return False


class _Backoff:
    """Waits longer after each failure, shows the trouble, and forgets it after the next success of the same thread."""

    def __init__(self, owner: _TableWorker, stage: str) -> None:
        self._owner, self._stage = owner, stage
        self._wait_s, self._broken_s = 0.1, BROKEN_S_MIN
        self.held_until = 0.0  #: on the monotonic clock
        self._trouble: HarnessError | None = None
        self._stopped_before = owner.table.stopped is not None

    def reset(self) -> None:
        """The thread did its work: its trouble is over. That of another thread of the stage is not."""
        owner = self._owner
        if self._stopped_before:  # what stopped the worker before this one is repaired
            self._stopped_before = False
            with suppress(HarnessError):
                owner.stores.ledger.stop_table(owner.table, None)
        self.over()

    def over(self) -> None:
        """What the thread itself has shown is over."""
        owner = self._owner
        self._wait_s, self._broken_s = 0.1, BROKEN_S_MIN
        over, self._trouble = self._trouble, None
        if over is None:
            return
        if owner.progress.trouble.get(self._stage) == str(over):
            del owner.progress.trouble[self._stage]
        if owner.fatal is over:
            owner.fatal = None
            with suppress(HarnessError):
                owner.stores.ledger.stop_table(owner.table, None)

    def wait(self, error: HarnessError, *, pause_s: float = 0.0) -> None:
        """Show *error* and wait; where a person is needed *pause_s* at least, as long as the stage itself rests."""
        if isinstance(error, FencedOut):
            self._owner._keepers[Stage(self._stage)].doubt()
            return
        if isinstance(error, SparkInterrupted):
            return
        if isinstance(error, SchemaMoved):
            self._owner.reload()
            return
        self._show(error)
        if self._stage != Stage.INGEST and not isinstance(error, TryAgain):
            self._wait_s = max(self._wait_s, COUNTED_S)
        self._owner.worker.stop.wait(max(self._wait_s, pause_s if error.recovery is Recovery.NEVER else 0.0))
        self._wait_s = min(self._wait_s * 2, BACKOFF_S_MAX)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """What nobody foresaw holds the stage for a while, by name; the traceback is in the log."""
        try:
            yield
        except Exception as error:  # the outer edge of a stage
            name, hold_s = self._owner.table.name, self._broken_s
            broken = StageBroken(
                f"{name}: {self._stage} met an error that has no name, {type(error).__name__}: {error}; the worker's "
                f"log has the traceback. It is tried again in {hold_s:.0f} s, all else goes on"
            )
            broken.__cause__ = error
            self._show(broken)
            log.exception("stage.broken", table=name, stage=self._stage, error=str(error))
            self.held_until, self._broken_s = time.monotonic() + hold_s, min(hold_s * 2, BROKEN_S_MAX)

    def _show(self, error: HarnessError) -> None:
        owner, self._trouble = self._owner, error
        owner.progress.errors[self._stage] += 1
        shown = owner.progress.trouble
        if shown.get(self._stage) != str(error):
            log.warning("stage.trouble", table=owner.table.name, stage=self._stage, error=str(error))
        shown[self._stage] = str(error)
        if error.recovery is Recovery.NEVER:
            owner.fatal = error
            with suppress(HarnessError):
                owner.stores.ledger.stop_table(owner.table, str(error))
