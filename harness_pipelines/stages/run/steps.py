"""What a worker does for one table, stage by stage: each step does one piece of work, if there is any."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.errors import LedgerOlderThanLake, WarehouseTaken
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.pressure import BufferFull
from harness_pipelines.protocol.versions import Version
from harness_pipelines.stages import compact
from harness_pipelines.stages.ingest import on_engine
from harness_pipelines.stages.mirror import Mirroring
from harness_pipelines.stages.otree import otree
from harness_pipelines.stages.run.ports import Ports
from harness_pipelines.stages.run.progress import TableProgress, WorkerOptions
from harness_pipelines.stages.table import expire
from harness_pipelines.stages.tier import tier
from harness_pipelines.stages.tier.sources import source_of

SEGMENT_BYTES_MAX = 32 * 2**20
SEGMENT_AGE_S_MAX = 600.0


class OfWorker(Protocol):
    """The table that steps are done for, as its worker knows it."""

    table: TableRow
    progress: TableProgress
    full: BufferFull | None

    @property
    def stores(self) -> Ports: ...
    @property
    def options(self) -> WorkerOptions: ...
    def claim(self, stage: Stage) -> Claim: ...
    def unmoved_s(self, stage: Stage) -> float: ...
    def note_moved(self, stage: Stage) -> None: ...


class Steps:
    """The steps of one table, and what earlier ones found nothing to do for."""

    def __init__(self, of: OfWorker) -> None:
        self._of = of
        self.nothing_due: str | None = None  #: in this metadata file of the batch view
        self.nothing_small: str | None = None  #: in this metadata file of the stream view
        self.mirroring = Mirroring(of.stores)
        self.mirrored: int | None = None  #: the version that all catalogs were seen to show
        self.ripe_at: float | None = None  #: monotonic seconds, when what expire left may be removed; None: not known
        self._files_looked_at = -math.inf  # monotonic seconds, when expire last listed the lake's files
        self._rest: dict[Stage, dict[int, int]] = {}  # what was there at first, and is not moved yet

    def forget(self) -> None:
        """What was found not to be due may be due by another spec."""
        self.nothing_due = self.nothing_small = self.mirrored = None

    def _doubt(self, by: TableRow) -> None:
        """Keep nothing that was judged by the spec of *by* where the table has another one by now.

        Another thread takes specs over, and has perhaps made this forget before it was noted.
        """
        if self._of.table is not by:
            self.forget()

    def of(self, stage: Stage) -> Callable[[], bool]:
        """The step of *stage*: whether it did something, and may find more at once."""
        steps: Mapping[Stage, Callable[[], bool]] = {
            Stage.INGEST: self._ingest_on_spark,
            Stage.TIER: self._tier,
            Stage.OTREE: self._otree,
            Stage.COMPACT: self._compact,
            Stage.EXPIRE: self._expire,
            Stage.MIRROR: self._mirror,
        }
        return steps[stage]

    def admit(self, stage: Stage, *, resting: bool = False) -> None:
        """Before the first act on a table: is its lake this ledger's, and does the ledger know all of it?

        *resting*: nothing is moved before it is asked again.
        Raises: WarehouseTaken, LedgerOlderThanLake. Ingest needs no lake, so a lake that is away does not hold it up.
        """
        stores = self._of.stores
        if stage is Stage.INGEST and stores.settings.warehouse is None:
            return
        try:
            stores.guard.check(self._of.table, stores.ledger, resting=resting)
        except HarnessError as error:
            if stage is not Stage.INGEST or isinstance(error, WarehouseTaken | LedgerOlderThanLake):
                raise

    def is_admitted(self) -> bool:
        """`admit` asks nothing but the ledger before ingest."""
        stores = self._of.stores
        return stores.settings.warehouse is None or stores.guard.is_fresh(self._of.table)

    def _ingest_on_spark(self) -> bool:
        of = self._of
        done = on_engine.ingest_on_spark(of.stores, of.table, of.claim(Stage.INGEST))
        of.progress.rows += done.rows
        return bool(done.reached)

    def _tier(self) -> bool:
        of = self._of
        idle = self._ingest_is_idle if self._moves_rest(Stage.TIER) else None
        trigger = tier.trigger(of.stores, of.table, idle=idle, seen_s=of.unmoved_s(Stage.TIER))
        if trigger is None:
            return False
        moved = self._move(Stage.TIER, tier.tier_once, trigger)
        if moved:
            self._rotate()
        return moved

    def _otree(self) -> bool:
        of, by = self._of, self._of.table
        looked_at = of.stores.ledger.head(by).batch
        idle = self._moves_rest(Stage.OTREE) and self._tier_is_idle()
        seen_s = of.unmoved_s(Stage.OTREE)
        trigger = otree.trigger(of.stores, by, idle=idle, judged=self.nothing_due, seen_s=seen_s)
        if trigger is None:
            self.nothing_due = None if looked_at is None else looked_at.metadata
            self._doubt(by)
            return False
        return self._move(Stage.OTREE, otree.otree_once, trigger)

    def _compact(self) -> bool:
        of, by = self._of, self._of.table
        looked_at = of.stores.ledger.head(by).stream.metadata
        trigger = compact.trigger(of.stores, by, judged=self.nothing_small)
        if trigger is None:
            self.nothing_small = looked_at
            self._doubt(by)
            return False
        return self._move(Stage.COMPACT, compact.compact_once, trigger)

    def _mirror(self) -> bool:
        of = self._of
        version = of.stores.ledger.head(of.table).version
        moved = self.mirroring.step(of.table, of.claim(Stage.MIRROR), of.progress)
        self.mirrored = None if moved or Stage.MIRROR in of.progress.trouble else version
        return moved

    def _move(self, stage: Stage, once: Callable[..., Version | None], trigger: str) -> bool:
        """Do what is due by *once*, if the lake may be written to; whether a version was published."""
        self.admit(stage)
        of = self._of
        claim, run_id, done = of.claim(stage), of.options.run_id, of.progress.tallies[stage]
        published = once(of.stores, of.table, claim, trigger=trigger, run_id=run_id, done=done)
        if published is None:
            return False
        of.note_moved(stage)
        of.progress.moves += 1
        of.progress.version = published.version
        return True

    def _moves_rest(self, stage: Stage) -> bool:
        """Where the stage before has nothing left, what the rules of the spec would let wait is moved too."""
        of, options = self._of, self._of.options
        if not options.only_due:
            return options.until_idle
        if not options.rest_first or self._rest.get(stage) == {}:
            return False
        bounds = source_of(of.table).takeable(of.stores, of.table)
        there = {p: b.buffer_hi if stage is Stage.TIER else b.stream_hi for p, b in bounds.items()}
        moved = {p: b.stream_hi if stage is Stage.TIER else b.batch_hi for p, b in bounds.items()}
        rest = self._rest.setdefault(stage, there)  # what comes later waits for the rules
        self._rest[stage] = {p: o for p, o in rest.items() if moved[p] < o}
        return bool(self._rest[stage])

    def _tier_is_idle(self) -> bool:
        of = self._of
        bounds = source_of(of.table).takeable(of.stores, of.table)
        moved = all(b.stream_hi >= b.buffer_hi for b in bounds.values())
        return Stage.TIER not in of.options.stages or (moved and self._ingest_is_idle(bounds))

    def _ingest_is_idle(self, bounds: Mapping[int, Bounds]) -> bool:
        of = self._of
        if Stage.INGEST not in of.options.stages or of.full is not None:  # it waits for what is moved now
            return True
        marks = of.stores.log.watermarks(of.table.spec.topic, bounds)
        return all(b.buffer_hi >= marks[p].end for p, b in bounds.items())

    def _rotate(self) -> None:
        """Give a segment that is large or old a successor after a move, so that it can retire."""
        of = self._of
        newest = of.stores.segments.sizes(of.table)[-1:]
        if any(s["bytes"] >= SEGMENT_BYTES_MAX or s["age_s"] >= SEGMENT_AGE_S_MAX for s in newest):
            of.stores.segments.rotate(of.table)

    def _expire(self) -> bool:
        of = self._of
        claim, self.ripe_at = of.claim(Stage.EXPIRE), None
        look = time.monotonic() - self._files_looked_at >= expire.look_every_s(of.table)
        done = expire.expire_once(of.stores, of.table, claim, remove_large=of.options.remove_large, look=look)
        self.ripe_at = None if done.ripe_in_s is None else time.monotonic() + done.ripe_in_s
        if done.looked:
            self._files_looked_at = time.monotonic()
        return False
