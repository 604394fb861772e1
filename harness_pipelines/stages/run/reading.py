"""Reading the log of one table: threads that ingest, and looks for partitions that were added."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from harness_pipelines.errors import HarnessError
from harness_pipelines.formats.schema.policy import SchemaDue
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import POLL_S
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.schema.schemas import SchemaMoved, SpecDisagrees
from harness_pipelines.stages.ingest import ingest
from harness_pipelines.stages.ingest.new_partitions import Joiner
from harness_pipelines.stages.run.progress import TableProgress
from harness_pipelines.stages.run.trouble import Backoff
from harness_pipelines.stages.run.units import LOOK_S
from harness_pipelines.stages.table import evolve

if TYPE_CHECKING:
    from harness_pipelines.stages.run.table_units import TableUnits

log = structlog.get_logger(__name__)
INGEST_THREADS_MAX = 2


class Reading:
    """The threads of one table that read its log."""

    def __init__(self, of: TableUnits) -> None:
        self._of, self._stop = of, of.worker.stop
        self._stage = of.table.intake.reader  # the one that takes records from the log lets partitions join
        self._joiner = Joiner(of, self._claim)
        self._counts: dict[int, ingest.IngestProgress] = {}  # by thread; its loops come and go
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        of = self._of
        if Stage.INGEST in of.stages and of.table.intake.buffered and of.options.ingest_on == "threads":
            for number in range(INGEST_THREADS_MAX):
                self._thread(f"ingest-{number}", Stage.INGEST, self._ingest_forever, number)
        self._thread("partitions", self._stage, self._joiner.forever)

    @property
    def is_alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def wake(self) -> None:
        """End the pauses that do not end with the worker."""
        self._joiner.wake()

    def join(self, timeout_s: float) -> None:
        """Wait for each thread in turn, for *timeout_s* at most."""
        for thread in self._threads:
            thread.join(timeout_s)
            if thread.is_alive():
                return

    @property
    def joined_at(self) -> float:
        return self._joiner.joined_at

    def knows_all_since(self, moment: float) -> bool:
        """Was there a look for partitions after *moment* that found none? If not, the next one comes at once."""
        return self._joiner.knows_all_since(moment)

    def count(self, progress: TableProgress) -> None:
        """Note what the threads did so far."""
        if counts := list(self._counts.values()):
            progress.rows = sum(one.rows for one in counts)
            progress.refused = sum(one.refused for one in counts)
            progress.commits = sum(one.commits for one in counts)

    def _claim(self) -> Claim | None:
        return self._of.keeper(self._stage).held

    def _thread(self, name: str, stage: Stage, loop: Callable[..., None], *arguments: object) -> None:
        """Keep *loop* up until the worker ends: what it does not handle holds *stage*, then it begins again."""
        backoff = self._of.backoff(stage)

        def guarded() -> None:
            try:
                while not self._stop.wait(backoff.held_until - time.monotonic()):
                    with backoff.holding():
                        loop(backoff, *arguments)
            except BaseException as error:
                # Of the worker itself: it ends with it instead of going on without a thread.
                self._of.worker.broken(error)

        thread = threading.Thread(target=guarded, name=f"{self._of.table.name}/{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _ingest_forever(self, backoff: Backoff, number: int) -> None:
        of = self._of
        loop = ingest.IngestLoop(
            of.table,
            of.stores.log,
            segments=of.stores.segments,
            writer=of.stores.buffer_writer(of.table, of.keeper(Stage.INGEST).current, run_id=of.options.run_id),
            schemas=of.stores.schemas,
            poll_s=ingest.LAST_POLL_S if of.options.until_idle else POLL_S,
        )
        loop.progress = self._counts.setdefault(number, loop.progress)
        try:
            self._ingest(loop, backoff, number)
        finally:
            loop.close()

    def _ingest(self, loop: ingest.IngestLoop, backoff: Backoff, number: int) -> None:
        of, keeper = self._of, self._of.keeper(Stage.INGEST)
        started: int | None = None
        commits: int | None = None  # when the lake was asked for last
        while not self._stop.is_set():
            try:
                of.admit(Stage.INGEST, resting=loop.progress.commits == commits)
                commits = loop.progress.commits
                if not keeper.acquire():
                    started = None
                    backoff.over(by_work=False)
                    self._stop.wait(LOOK_S)
                elif loop.table is not of.table and loop.table.spec != of.table.spec:
                    return  # another thread has found that the spec was changed: the next loop decodes by that one
                elif started != self._joiner.generation:
                    generation = self._joiner.generation
                    mine = [p for p in of.stores.segments.positions(of.table) if p % INGEST_THREADS_MAX == number]
                    loop.start(mine)
                    started = generation
                else:
                    loop.step()
                    backoff.reset()
            except SchemaDue as due:
                self._follow(loop.table, due, backoff)
                return
            except HarnessError as error:
                started = None
                self._stop.wait(backoff.failed(error))
                if isinstance(error, SchemaMoved | SpecDisagrees):
                    return  # the next loop decodes with the schema of now

    def _follow(self, table: TableRow, due: SchemaDue, backoff: Backoff) -> None:
        """Change the columns of *table*, for which the record was decoded, as its schema asks."""
        try:
            evolve.follow(self._of.stores, table, due)
            self._of.reload()
        except HarnessError as error:
            self._stop.wait(backoff.failed(error))
