"""What tier's publish costs while the whole batch view is rewritten, beside what it costs without."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import uuid4

import numpy as np

import harness_pipelines as hp
from harness_pipelines.ports.lake import Staged
from harness_pipelines.ports.ledger import MoveDraft
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.versions import Version
from harness_pipelines.stages.otree.otree import otree_once
from harness_pipelines.stages.otree.recluster import ask, plan_recluster
from harness_pipelines.stages.tier.sources import Attempt
from harness_pipelines.stages.tier.tier import publish
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.layout_scans import both_views
from harness_pipelines_tests.bench.publish import Files
from harness_pipelines_tests.producer import wait_until

ROWS = 100  #: of each partition in each move
WARM_MOVES = 20
BEGIN_S, LEASE = 60.0, timedelta(minutes=30)
GOAL = 2.0


def measure(run: Run) -> Sequence[Figure]:
    """Publishes of described files as fast as they go, in a thread beside the relayout, as a worker has both.

    The relayout comes first: it has to be planned before tier publishes more, or otree would merge that instead.
    """
    table = both_views(run)
    with claimed(table, Stage.TIER) as tier, claimed(table, Stage.OTREE) as otree:
        publishes = Publishes(table, tier)
        run.say("publish: while the whole batch view is written anew")
        with Relayout(table, otree) as relayout:
            publishes.warm_up()
            during = publishes.until(lambda: not relayout.running)
        assert during, "the relayout ended before tier published once"
        run.say(f"publish: {len(during)} times without a relayout")
        without = publishes.times(len(during))  # as many: a p99 of more of them would be another quantile
    for name, took in (("during", during), ("without", without)):
        run.note(f"publish.{name}.p50", float(np.median(took)), "s")
        run.note(f"publish.{name}.p99", float(np.percentile(took, 99)), "s")
        run.note(f"publish.{name}.count", len(took), "publishes")
    run.note("publish.relayout", relayout.seconds, "s")
    ratio = float(np.percentile(during, 99) / np.percentile(without, 99))
    return [Figure(figure="publish.p99_during_relayout", value=ratio, unit="x", goal=GOAL, sense="<=")]


class Relayout:
    """One move that writes the whole batch view of *table* again, in a thread, from its plan to its commit."""

    def __init__(self, table: hp.Table, claim: Claim) -> None:
        self._table, self._claim = table, claim
        self._thread = threading.Thread(target=self._run, name="relayout", daemon=True)
        self._published: Version | None = None
        self._failed: BaseException | None = None
        self.seconds = 0.0

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def __enter__(self) -> Relayout:
        stores, row = self._table.harness.stores, self._table.row
        ask(stores, row, plan_recluster(stores, row, rebuild=True))
        self._thread.start()
        wait_until(self._is_planned, "the relayout is planned", deadline_s=BEGIN_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        assert kind is not None or (self._published and self._published.batch), "the relayout published nothing"

    def _is_planned(self) -> bool:
        planned = self._table.harness.stores.ledger.open_move(self._table.row, Stage.OTREE, shard=0)
        return planned is not None or not self.running

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self._published = otree_once(self._table.harness.stores, self._table.row, self._claim, trigger="request")
        except BaseException as error:
            self._failed = error
        self.seconds = time.monotonic() - began


@dataclass(slots=True)
class Publishes:
    """Moves of tier, one after the other, with files that are described as real ones were."""

    table: hp.Table
    claim: Claim
    _files: Files = field(init=False)

    def __post_init__(self) -> None:
        self._files = Files.of(self.table, self._head_now(), rows=ROWS)

    def warm_up(self) -> None:
        self.times(WARM_MOVES)

    def times(self, count: int) -> list[float]:
        """Seconds of *count* publishes."""
        return [self._once() for _ in range(count)]

    def of_files(self, each: int) -> Staged:
        """Publish one move with *each* files of each partition; what it published."""
        stores, row, head = self.table.harness.stores, self.table.row, self._head_now()
        move = stores.ledger.plan_move(self.claim, self._draft(head, rows=ROWS * each))
        stores.lake.make_branch(row, move, head.stream)
        staged = self._files.of_move(move, each=each)
        publish(stores, row, self.claim, move, Attempt(staged=staged))
        return staged

    def until(self, done: Callable[[], bool]) -> list[float]:
        """Seconds of as many publishes as there are until *done*, those that ended before it."""
        took: list[float] = []
        while not done():
            took.append(self._once())
        return took[:-1]

    def _once(self) -> float:
        """Plan a move and make its branch; what is timed is the publish of one file per partition."""
        stores, row = self.table.harness.stores, self.table.row
        head = self._head_now()
        move = stores.ledger.plan_move(self.claim, self._draft(head, rows=ROWS))
        stores.lake.make_branch(row, move, head.stream)
        attempt = Attempt(staged=self._files.of_move(move))
        began = time.monotonic()
        publish(stores, row, self.claim, move, attempt)
        return time.monotonic() - began

    def _head_now(self) -> Version:
        return self.table.harness.stores.ledger.head(self.table.row)  # otree publishes too

    def _draft(self, head: Version, *, rows: int) -> MoveDraft:
        lo = {partition: bounds.stream_hi for partition, bounds in head.bounds.items()}
        return MoveDraft(
            stage=Stage.TIER,
            shard=0,
            lo=lo,
            hi={partition: low + rows for partition, low in lo.items()},
            base_version=head.version,
            schema_version=self.table.row.schema_version,
            trigger="rows",
        )


@contextmanager
def claimed(table: hp.Table, stage: Stage) -> Iterator[Claim]:
    """What a worker has while it does *stage* of *table*."""
    ledger = table.harness.stores.ledger
    claim = ledger.claim(table.row, stage, shard=0, holder=str(uuid4()), lease=LEASE)
    assert claim is not None, f"{stage} of {table.name} is held by another"
    try:
        yield claim
    finally:
        ledger.release(claim)
