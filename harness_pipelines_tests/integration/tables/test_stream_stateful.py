"""Random steps with five stream readers between them: each reader's sequence is the producer's log, per partition."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

import harness_pipelines as hp
from harness_pipelines.ports.ledger import LeaseEnded
from harness_pipelines.protocol.changes.reverts import RevertRefused
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.reading.streams import StreamToken
from harness_pipelines.read.stream import stream as live
from harness_pipelines.read.stream.stream import NotJudged, StreamBatch
from harness_pipelines.stages.compact import compact_once
from harness_pipelines.stages.otree.otree import otree_once
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines.stages.tier.tier import tier_once
from harness_pipelines_tests.keyed import EVERYTHING, KeyedRig
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import MoveOnce, TableRig

#: HARNESS_TEST_LONGER=20 runs twenty times as many examples.
LONGER = int(os.environ.get("HARNESS_TEST_LONGER", "1"))
READERS = 5
POINTS = ("after_plan", "during_files", "after_files", "before_lock", "in_transaction", "after_commit")
MOVERS: Mapping[Stage, MoveOnce] = {Stage.TIER: tier_once, Stage.OTREE: otree_once, Stage.COMPACT: compact_once}
QUICK = {"versions": "1s", "grace": "1s", "lease": "60s"}


class Reader:
    """One consumer: what it has so far, and the token that it kept with it."""

    def __init__(self, rig: TableRig) -> None:
        self.rig = rig
        self.token = "earliest"
        self.seen: dict[int, list[int]] = defaultdict(list)  #: offsets per partition, in the order that they came
        self._held: Iterator[StreamBatch] | None = None

    def step(self, batches: int) -> None:
        """Take some batches; it stays where it is, with its iterator open, until the next step."""
        if self._held is None:
            self._held = self._begin()
        for _ in range(batches):
            batch = next(self._held, None)
            if batch is None:
                self._held = None
                return
            self._take(batch)

    def end(self) -> None:
        """As a killed process: only what it kept is left."""
        self._held = None

    def finish(self) -> None:
        self.end()
        for batch in self._begin():
            self._take(batch)

    def _begin(self) -> Iterator[StreamBatch]:
        return iter(self.rig.table.stream(self.token, follow=False))

    def _take(self, batch: StreamBatch) -> None:
        assert batch.partition is not None
        offsets = batch.rows.column("_kafka_offset").to_pylist()
        assert set(batch.rows.column("_kafka_partition").to_pylist()) <= {batch.partition}
        high = StreamToken.parse(batch.token).offsets[batch.partition]
        assert all(offset < high for offset in offsets)
        self.seen[batch.partition] += offsets
        self.token = batch.token


class Copy(Reader):
    """A consumer that keeps a keyed table's state: at first as the table has it, then by every change."""

    def __init__(self, rig: TableRig) -> None:
        super().__init__(rig)
        self.rows: dict[Any, tuple[Any, ...]] = {}

    def step(self, batches: int) -> None:
        try:
            super().step(batches)
        except LeaseEnded:  # it was away for too long in the middle of the state, which is read again
            self.end()

    def _begin(self) -> Iterator[StreamBatch]:
        return iter(self.rig.table.stream(self.token, follow=False, state_first=True))

    def _take(self, batch: StreamBatch) -> None:
        if batch.begins_state:
            self.rows.clear()
        names = [*(c.name for c in self.rig.table.spec.columns), "_kafka_partition", "_kafka_offset"]
        for row in batch.rows.to_pylist():
            key = row["id"], row["region"]
            if row["_op"] == "put":
                self.rows[key] = tuple(row[name] for name in names)
            else:
                self.rows.pop(key, None)
        self.token = batch.token


class Moved(RuleBasedStateMachine):
    """Records, stages, crashes and reverts in any order, and readers that come and go."""

    def __init__(self, rig: TableRig, readers: Sequence[Reader]) -> None:
        super().__init__()
        self.rig, self.readers = rig, readers

    # -- the producer ---------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 60))
    def produce(self, count: int) -> None:
        self.rig.produce(count)

    @rule()
    def produce_misfit(self) -> None:
        self.rig.produce_misfit(b"no json")

    # -- the stages -----------------------------------------------------------------------------------------

    @rule()
    def ingest(self) -> None:
        self.rig.ingest()

    @rule(stage=st.sampled_from(list(MOVERS)), crash=st.none() | st.sampled_from(POINTS))
    def move(self, stage: Stage, crash: str | None) -> None:
        if stage is Stage.TIER:
            self.rig.ingest()
        self.rig.move_once(stage, MOVERS[stage], crash=crash)

    @rule()
    def expire(self) -> None:
        claim = self.rig.claim(Stage.EXPIRE)
        expire_once(self.rig.stores, self.rig.table.row, claim, remove_large=True)
        self.rig.stores.ledger.release(claim)

    @rule(back=st.integers(1, 6))
    def revert(self, back: int) -> None:
        versions = self.rig.harness.table(self.rig.name).versions()
        with suppress(RevertRefused):  # by name; nothing has changed
            revert_table(self.rig.stores, self.rig.table.row, to=versions[max(-1 - back, -len(versions))].version)

    # -- the readers ----------------------------------------------------------------------------------------

    @rule(which=st.integers(0, READERS - 1), batches=st.integers(1, 4))
    def read(self, which: int, batches: int) -> None:
        try:
            self.readers[which].step(batches)
        except NotJudged:  # ingest has not come to a misfit, and no worker runs
            self.readers[which].end()

    @rule(which=st.integers(0, READERS - 1))
    def kill(self, which: int) -> None:
        self.readers[which].end()

    @rule()
    def leases_end(self) -> None:
        """Every reader was away for too long."""
        with psycopg.connect(self.rig.stores.dsn) as owner:  # a lease belongs to the login that took it
            owner.execute(
                "UPDATE harness.leases SET until = clock_timestamp() - %s WHERE table_id = %s",
                [timedelta(seconds=1), self.rig.table.row.table_id],
            )


class LogMachine(Moved):
    """Of an append table each reader's sequence is the log."""

    def __init__(self, rig: TableRig) -> None:
        super().__init__(rig, [Reader(rig) for _ in range(READERS)])

    @rule(count=st.integers(1, 20), commits=st.booleans())
    def produce_in_a_transaction(self, count: int, commits: bool) -> None:
        """Control records and aborted ones leave gaps in the offsets."""
        transaction = self.rig.kafka.begin()
        transaction.produce(self.rig.topic, 0, self.rig.values(count))
        if commits:
            transaction.commit()
        else:
            transaction.abort()

    def teardown(self) -> None:
        self.rig.ingest()  # what the readers wait for
        log: dict[int, list[int]] = {}
        for partition, offset, _ in sorted(self.rig.truth):
            log.setdefault(partition, []).append(offset)
        for reader in self.readers:
            reader.finish()
            assert {p: offsets for p, offsets in reader.seen.items() if offsets} == log


class CopyMachine(Moved):
    """Of a keyed table what each reader keeps is what the log folds to."""

    def __init__(self, rig: KeyedRig) -> None:
        super().__init__(rig, [Copy(rig) for _ in range(READERS)])
        self.keyed = rig

    def teardown(self) -> None:
        self.rig.ingest()
        expected = sorted(map(repr, self.keyed.state(EVERYTHING).values()))
        for reader in self.readers:
            reader.finish()
            assert isinstance(reader, Copy)
            assert sorted(map(repr, reader.rows.values())) == expected


@pytest.fixture(autouse=True)
def _readers_wait_a_moment_for_ingest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "HELD_S_MAX", 0.2)


def run(make: Callable[[], Moved]) -> None:
    run_state_machine_as_test(
        seed(random.getrandbits(64))(make),  # type: ignore[arg-type]  # what gives a machine will do
        settings=settings(
            max_examples=2 * LONGER,
            stateful_step_count=30,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(900 * LONGER)
def test_every_reader_gets_the_log_in_order_whatever_moves_it(harness: hp.Harness, kafka: KafkaRig):
    run(lambda: LogMachine(TableRig(harness, kafka, views="both", retention=QUICK)))


@pytest.mark.long
@pytest.mark.timeout(900 * LONGER)
def test_every_copy_of_a_keyed_table_is_the_table_whatever_moves_it(harness: hp.Harness, kafka: KafkaRig):
    run(lambda: CopyMachine(KeyedRig(harness, kafka, retention=QUICK)))
