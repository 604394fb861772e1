"""Random steps on a keyed table some of whose records are refused at first, put back later, taken back by a revert or
given up: every version reads as the replay of the log with the refused records that it has, and without the others."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

import harness_pipelines as hp
from harness_pipelines import faults
from harness_pipelines.protocol.changes.corrections import Coordinate, Wanted
from harness_pipelines.protocol.changes.reverts import RevertRefused, RevertWaits
from harness_pipelines.protocol.versions import Version
from harness_pipelines.stages.replay.quarantine import drop
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.integration.tables.test_keyed_stateful import KEYS, LONGER, KeyedMachine
from harness_pipelines_tests.keyed import Key, KeyedRig, row
from harness_pipelines_tests.producer import KafkaRig

POINTS = ("before_lock", "in_transaction", "after_commit")


class RefusingRig(KeyedRig):
    """A keyed table that takes no unknown fields."""

    def __init__(self, harness: hp.Harness, kafka: KafkaRig, **spec: Any) -> None:
        super().__init__(harness, kafka, unknown_fields="quarantine", **spec)
        self.refused: list[tuple[int, int, Key, Mapping[str, Any] | None]] = []  #: as `records`
        self.back: Collection[Coordinate] = ()  #: those of them that `state` counts

    def put_refused(self, *rows: Mapping[str, Any]) -> None:
        for one in rows:
            key = tuple(one[c] for c in self.key)
            home = self.home_of(key)
            [offset] = self.kafka.produce(self.topic, home, [orjson.dumps({**one, "more": 1})])
            self.refused.append((home, offset, key, one))

    def state(self, below: Mapping[int, int]) -> dict[Key, tuple[Any, ...]]:
        records = self.records
        self.records = [*records, *(one for one in self.refused if one[:2] in self.back)]
        try:
            return super().state(below)
        finally:
            self.records = records


class ReplayMachine(KeyedMachine):
    """What `KeyedMachine` does, with records that are refused, replays with crashes, and drops.

    But for recalls: while rows are recalled no replay does anything.
    """

    rig: RefusingRig
    recall = release = None  # type: ignore[assignment]  # no rules of this machine

    def __init__(self, make: Callable[[], RefusingRig]) -> None:
        super().__init__(make)
        self.lenient = self.rig.table.spec.model_copy(update={"unknown_fields": "ignore"})
        self.has: dict[int, frozenset[Coordinate]] = {self.rig.head.version: frozenset()}  #: by version: who is back
        self.dropped: set[Coordinate] = set()

    @rule(low=st.integers(0, KEYS - 1), count=st.integers(1, 6), newer=st.sampled_from(["none", "put", "delete"]))
    def put_refused(self, low: int, count: int, newer: str) -> None:
        """Older versions are there or not, and half of the keys may have a newer one."""
        self.made += 1
        keys = [(low + i) % KEYS for i in range(count)]
        self.rig.put_refused(*(row(key, n=self.made * 1000 + i) for i, key in enumerate(keys)))
        if newer == "put":
            self.rig.put(*(row(key, n=self.made * 1000 + 500) for key in keys[::2]))
        elif newer == "delete":
            self.rig.delete(*((key, "eu") for key in keys[::2]))

    @precondition(lambda self: self.rig.refused)
    @rule(crash=st.none() | st.sampled_from(POINTS), settled=st.sampled_from([True, True, False]))
    def replay(self, crash: str | None, settled: bool) -> None:
        """*settled*: the lake has passed all that there is, so that nothing has to wait."""
        if settled:
            self.rig.merge_all()
            self.check()
        held = set(self.rig.quarantine())
        if crash is not None:
            faults.arm_from({"HARNESS_FAULT": f"replay.{crash}=raise"})
        try:
            with suppress(faults.FaultInjected):
                self.rig.table.replay(decoder=self.lenient)
        finally:
            faults.disarm()
        back = held - set(self.rig.quarantine())
        self.learn(lambda before: before | back)
        self.check()

    @precondition(lambda self: self.rig.quarantine())
    @rule(number=st.integers(0, 100))
    def drop(self, number: int) -> None:
        held = sorted(self.rig.quarantine())
        partition, offset = held[number % len(held)]
        assert drop(self.rig.stores, self.rig.table.row, Wanted(partition=partition, offset=offset)) == 1
        self.dropped.add((partition, offset))
        self.check()

    @rule(back=st.integers(1, 6))
    def revert(self, back: int) -> None:
        versions = self.rig.table.versions()
        to = versions[max(-1 - back, -len(versions))].version
        with suppress(RevertRefused):  # by name; nothing has changed
            try:
                revert_table(self.rig.stores, self.rig.table.row, to=to)
            except RevertWaits:  # the way on that it names
                self.check()
                self.rig.merge_all()
                self.learn()
                revert_table(self.rig.stores, self.rig.table.row, to=to)
            self.learn(lambda _: self.has[to])
        self.check()

    @precondition(lambda self: len(self.has) > 2)
    @rule(back=st.integers(1, 6), between=st.sampled_from(["nothing", "ingest", "replay"]))
    def revert_forth_and_back(self, back: int, between: str) -> None:
        """Two reverts: the second restores what the first took back, records that were put back among it."""
        head = self.rig.head.version
        self.revert(back)
        if between == "ingest":
            self.rig.ingest()
        elif between == "replay":
            self.replay(None, settled=True)
        versions = self.rig.table.versions()
        newer = versions[-1].version - head
        if newer:
            self.revert(newer)

    def learn(self, change: Callable[[frozenset[Coordinate]], frozenset[Coordinate]] | None = None) -> None:
        """Note which records the versions have that are new: *change* says what the first of them did."""
        for version in (v.version for v in self.rig.table.versions()):
            if version not in self.has:
                before = self.has[version - 1]
                self.has[version] = change(before) if change else before
                change = None

    # -- the judge ------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.learn()
        back = self.has[self.rig.head.version]
        taken = {p.partition: p.bounds.buffer_hi for p in self.rig.table.positions()}
        held = {one[:2] for one in self.rig.refused if one[1] < taken.get(one[0], 0)} - back - self.dropped
        assert set(self.rig.quarantine()) == held
        super().check()
        self.rig.back = back

    def compare(self, rows: pa.Table, version: Version, engine: str) -> None:
        self.rig.back = self.has[version.version]
        super().compare(rows, version, engine)

    def teardown(self) -> None:
        self.rig.ingest()
        self.check()
        self.rig._misfits = set(self.rig.quarantine())
        super().teardown()

    def bounds(self, version: Version) -> Mapping[int, int]:
        self.learn()  # of what teardown published
        return super().bounds(version)


@pytest.mark.long
@pytest.mark.timeout(900 * LONGER)
def test_every_version_has_what_was_put_back_by_then_and_nothing_else(harness: hp.Harness, kafka: KafkaRig):
    def make() -> RefusingRig:
        layout: dict[str, Any] = {"columns": ["n", "id"], "regions": 3}
        return RefusingRig(harness, kafka, layout=layout)

    run_state_machine_as_test(
        seed(random.getrandbits(64))(lambda: ReplayMachine(make)),  # type: ignore[arg-type]  # what gives a machine will do
        settings=settings(
            max_examples=6 * LONGER,
            stateful_step_count=30,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
