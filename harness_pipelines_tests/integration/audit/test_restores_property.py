"""Random steps with backups that are restored, lakes that are taken over and reverts: no row is lost or comes twice.

The reference is the producer's log, and what each version showed when it was first read.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from harness_pipelines.audit.repair.rebuild import plan_rebuild, rebuild
from harness_pipelines.audit.repair.reconcile import look, settle
from harness_pipelines.protocol.changes.reverts import RevertRefused, RevertWaits
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.rig import Row, TableRig

from .scratch import Scratch, assert_sound, forget, work

STEPS = 24


class Run:
    """One table, driven at random."""

    def __init__(self, place: Scratch, rig: TableRig, rng: random.Random) -> None:
        self.place, self.rig, self.rng = place, rig, rng
        self.shown: dict[int, Counter[Row]] = {}  #: by version
        self.backup: tuple[Path, int] | None = None  #: and its newest version

    @property
    def head(self) -> int:
        return self.rig.stores.ledger.head(self.rig.table.row).version

    def produce(self) -> None:
        for partition in range(2):
            self.rig.kafka.produce(self.rig.topic, partition, self.rig.values(self.rng.randint(1, 4)))

    def ingest(self) -> None:
        self.produce()
        self.rig.ingest()

    def tier(self) -> None:
        self.ingest()
        self.rig.tier()

    def revert(self) -> None:
        versions = [version.version for version in self.rig.table.versions()]
        with suppress(RevertRefused, RevertWaits):  # by name; nothing has changed
            revert_table(self.rig.stores, self.rig.table.row, to=self.rng.choice(versions))

    def restore(self) -> None:
        """The database is set back; Kafka may have dropped what it would be asked for again."""
        if self.backup is None:
            self.backup = self.place.dump(), self.head
            return
        work(self.rig)
        if self.rng.random() < 0.5:
            forget(self.rig)
        backup, head = self.backup
        self.place.restore(backup, self.rig)
        report = look(self.rig.stores, self.rig.table.row)
        settle(self.rig.stores, self.rig.table.row, report)
        self.backup, self.shown = None, {v: rows for v, rows in self.shown.items() if v <= head}
        self.whole()

    def rebuild(self) -> None:
        """The database is lost, and the table is made again from the lake."""
        work(self.rig)
        self.place.lose()
        stores = self.place.harness.stores
        rebuild(stores, plan_rebuild(stores, self.rig.table.spec), take_over=True)
        self.place.resume(self.rig)
        self.backup, self.shown = None, {}
        self.whole()

    def whole(self) -> None:
        """Once a worker has caught up all that was acknowledged is there."""
        work(self.rig)
        self.rig.assert_exact()

    def check(self) -> None:
        """A read has all below the bounds, and every version shows what it did when it was read first."""
        high = {p: buffer_hi for p, (_, buffer_hi) in self.rig.status().items()}
        found, wanted = self.rig.read(), Counter(row for row in self.rig.truth if row[1] < high[row[0]])
        assert found == wanted, f"lost {sorted(wanted - found)[:5]}, too many {sorted(found - wanted)[:5]}"
        for version in self.rig.table.versions():
            rows = self.rig.read(at=version.version)
            assert rows == self.shown.setdefault(version.version, rows), f"version {version.version} shows other rows"


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_is_lost_or_doubled_whatever_is_restored_taken_over_and_reverted(place: Scratch, seed: int):
    rng = random.Random(seed)
    run = Run(place, place.rig(), rng)
    steps = [run.ingest, run.tier, run.tier, run.revert, run.revert, run.restore, run.restore, run.rebuild]
    run.tier()
    for number in range(STEPS):
        step = rng.choice(steps)
        print(number, step.__name__)
        step()
        run.check()
    run.whole()
    assert_sound(run.rig)
