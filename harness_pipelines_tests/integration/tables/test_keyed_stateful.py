"""Random steps on a keyed table: whatever was done, every version reads as the replay of the producer's own log."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

import harness_pipelines as hp
from harness_pipelines.protocol.changes.reverts import RevertRefused
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.overlays import OverlayRequest
from harness_pipelines.protocol.versions import Version
from harness_pipelines.stages.otree.otree import otree_once
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines.stages.tier.tier import tier_once
from harness_pipelines_tests.keyed import KeyedRig, assert_sound, row
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import MoveOnce

#: HARNESS_TEST_LONGER=20 runs twenty times as many examples.
LONGER = int(os.environ.get("HARNESS_TEST_LONGER", "1"))
KEYS = 120
POINTS = ("after_plan", "during_files", "after_files", "before_lock", "in_transaction", "after_commit")
MOVERS: Mapping[Stage, MoveOnce] = {Stage.TIER: tier_once, Stage.OTREE: otree_once}


class KeyedMachine(RuleBasedStateMachine):
    """Puts, deletes, stages, recalls and releases in any order, with crashes and reverts between them."""

    def __init__(self, make: Callable[[], KeyedRig]) -> None:
        super().__init__()
        self.rig = make()
        self.made = 0

    # -- the producer ---------------------------------------------------------------------------------------

    @rule(low=st.integers(0, KEYS - 1), count=st.integers(1, KEYS), step=st.integers(1, 9))
    def put(self, low: int, count: int, step: int) -> None:
        """Few keys or many, spread over the files or beside each other; a key may come more than once."""
        self.made += 1
        self.rig.put(*(row((low + i * step) % KEYS, n=self.made * 1000 + i) for i in range(count)))

    @rule(low=st.integers(0, KEYS + 5), count=st.integers(1, 20), by_tombstone=st.booleans())
    def delete(self, low: int, count: int, by_tombstone: bool) -> None:
        """Also keys that never were."""
        keys = [(id_, "eu") for id_ in range(low, low + count)]
        if by_tombstone:
            for key in keys[:3]:
                self.rig.tombstone(key)
        else:
            self.rig.delete(*keys)

    # -- the stages -----------------------------------------------------------------------------------------

    @rule()
    def ingest(self) -> None:
        self.rig.ingest()
        self.check()

    @rule(crash=st.none() | st.sampled_from(POINTS))
    def tier(self, crash: str | None) -> None:
        self.rig.ingest()
        self.move(Stage.TIER, crash)

    @rule(crash=st.none() | st.sampled_from(POINTS))
    def merge(self, crash: str | None) -> None:
        self.move(Stage.OTREE, crash)

    @precondition(lambda self: self.rig.batch_rows().num_rows and not self.is_open)
    @rule()
    def relayout(self) -> None:
        self.rig.relayout()
        self.check()

    @precondition(lambda self: not self.is_open)
    @rule(low=st.integers(0, KEYS - 1), count=st.integers(1, KEYS), crash=st.none() | st.sampled_from(POINTS))
    def recall(self, low: int, count: int, crash: str | None) -> None:
        """Rows of the lake go to Postgres, or begin to: what crashed is gone on with by the next move."""
        where = f"id >= {low} and id < {low + count}"
        self.rig.stores.recalls.ask(self.rig.table.row, OverlayRequest.RECALL, where=where, by="test")
        self.move(Stage.OTREE, crash)

    @precondition(lambda self: not self.is_open)
    @rule(crash=st.none() | st.sampled_from(POINTS))
    def release(self, crash: str | None) -> None:
        self.rig.stores.recalls.ask(self.rig.table.row, OverlayRequest.RELEASE, where=None, by="test")
        self.move(Stage.OTREE, crash)

    @rule(back=st.integers(1, 6))
    def revert(self, back: int) -> None:
        versions = self.rig.table.versions()
        with suppress(RevertRefused):  # by name; nothing has changed
            revert_table(self.rig.stores, self.rig.table.row, to=versions[max(-1 - back, -len(versions))].version)
        self.check()

    def move(self, stage: Stage, crash: str | None) -> None:
        self.rig.move_once(stage, MOVERS[stage], crash=crash)
        self.check()

    @property
    def is_open(self) -> bool:
        return self.rig.stores.ledger.open_move(self.rig.table.row, Stage.OTREE, shard=0) is not None

    # -- the judge ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every version, and the newest rows, in Arrow."""
        for version in self.rig.table.versions():
            rows = self.rig.table.read(columns=self.columns, at=version.version)
            self.compare(rows, version, "Arrow")
        now = {p.partition: p.bounds.buffer_hi for p in self.rig.table.positions()}
        self.judge(self.rig.table.read(columns=self.columns), now, "newest rows in Arrow")

    def teardown(self) -> None:
        self.rig.ingest()
        spark = self.rig.stores.spark()
        for version in self.rig.table.versions():
            rows = self.rig.table.to_spark(spark, columns=self.columns, at=version.version).toArrow()
            self.compare(rows, version, "Spark")
        self.rig.merge_all()
        self.rig.assert_merged()
        self.rig.assert_exact()
        assert_sound(self.rig)

    @property
    def columns(self) -> list[str]:
        return [*(c.name for c in self.rig.table.spec.columns), "_kafka_partition", "_kafka_offset"]

    def compare(self, rows: pa.Table, version: Version, engine: str) -> None:
        self.judge(rows, self.bounds(version), f"version {version.version} in {engine}")

    def bounds(self, version: Version) -> Mapping[int, int]:
        """What a read of *version* has, the newest one too: no more than when it was published."""
        return version.buffer_hi

    def judge(self, rows: pa.Table, bounds: Mapping[int, int], what: str) -> None:
        found = sorted(zip(*(rows.column(name).to_pylist() for name in self.columns), strict=True), key=repr)
        expected = sorted(self.rig.state(bounds).values(), key=repr)
        assert found == expected, what


@pytest.mark.timeout(900 * LONGER)
def test_every_version_reads_as_the_replay_of_the_log(harness: hp.Harness, kafka: KafkaRig):
    def make() -> KeyedRig:
        layout: dict[str, Any] = {"columns": ["n", "id"], "regions": 3}
        return KeyedRig(harness, kafka, layout=layout)

    run_state_machine_as_test(
        seed(random.getrandbits(64))(lambda: KeyedMachine(make)),  # type: ignore[arg-type]  # what gives a machine will do
        settings=settings(
            max_examples=2 * LONGER,
            stateful_step_count=25,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
