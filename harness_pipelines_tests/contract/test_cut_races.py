"""Loads of a table that race with what moves it, with other servers and with deaths of servers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random

import pytest

from harness_pipelines import faults
from harness_pipelines.faults import FaultInjected
from harness_pipelines.ports.serving.cuts import Cut
from harness_pipelines.read import cut as cut_module
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.contract.cut_rig import CutWorld, Row
from harness_pipelines_tests.contract.keyed_cut_rig import KeyedWorld
from harness_pipelines_tests.contract.stores_rig import RealRig
from harness_pipelines_tests.contract.test_cut_crashes import POINTS
from harness_pipelines_tests.contract.test_cut_files import aged, over, path, ripe
from harness_pipelines_tests.contract.test_expire import expire

pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option.*not implemented:UserWarning")
STEPS, SEED = int(os.environ.get("HARNESS_TEST_STEPS", "25")), int(os.environ.get("HARNESS_TEST_SEED", "1"))


@pytest.fixture
def keyed(real: RealRig, tmp_path: Path) -> Iterator[KeyedWorld]:
    made = KeyedWorld(real, tmp_path)
    yield made
    faults.disarm()
    made.stores.close()


def fails(world: KeyedWorld, point: str) -> None:
    """A load of the server ends at *point*; the server goes on."""

    def fail() -> None:
        raise FaultInjected(point)

    world.pause()
    faults.arm(point, fail)
    with pytest.raises(FaultInjected, match=point):
        world.cutter.load(world.row)
    faults.disarm()


@pytest.mark.parametrize("point", ["serve.after_chunks", "serve.after_files"])
def test_a_merged_state_is_no_state_of_the_levels_that_a_load_before_it_did_not_publish(keyed: KeyedWorld, point: str):
    keyed.ingest({0: 40, 1: 25})
    keyed.tier({0: 30, 1: 20})
    keyed.merge({0: 10, 1: 12})
    fails(keyed, point)
    keyed.tier({0: 40, 1: 25})
    keyed.merge({0: 40, 1: 25})
    keyed.assert_exact(keyed.cut())
    keyed.ingest({0: 60, 1: 30})
    keyed.assert_exact(keyed.cut())


def test_a_server_names_no_lost_file_of_its_levels_again_after_a_cut_of_another_one(
    keyed: KeyedWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cut_module, "CHECKED_EVERY_S", 0.0)
    keyed.ingest({0: 40, 1: 25})
    mine = keyed.cut()
    other = keyed.server()
    keyed.ingest({0: 41})
    assert not {chunk.path for chunk in mine.chunks} & {chunk.path for chunk in other.load(keyed.row).cut.chunks}
    path(mine.chunks[0].path).unlink()
    keyed.ingest({0: 42})
    keyed.assert_exact(keyed.cut())


def test_the_ledger_knows_how_far_the_versions_in_between_were_merged(keyed: KeyedWorld):
    keyed.ingest({0: 40, 1: 25})
    keyed.tier({0: 30, 1: 25})
    first = keyed.head.version
    keyed.merge({0: 20, 1: 12}, files=2)
    keyed.revert(first)
    last = keyed.head.version
    assert keyed.head.bounds[0].batch_hi == 0

    def merged(above: int, below: int) -> Mapping[int, int]:
        return keyed.stores.cuts.merged(keyed.row, above=above, below=below)

    assert merged(first, last) == {0: 20, 1: 12}
    assert merged(first, last - 1) == {0: 10, 1: 6}
    assert merged(last - 1, last) == merged(last, last) == {}


class Story:
    """Two servers of one table, and what moves it, step by step as *seed* has it.

    Each load is compared with `Table.read` of before and after it. While it runs, something else happens at one of its
    points, or it dies there.
    """

    def __init__(self, world: CutWorld, seed: int) -> None:
        self.world, self.chance = world, Random(seed)
        self.high, self.steps = {0: 0, 1: 0}, list[str]()
        self.servers = [world.server(), world.server()]
        self.last: Cut | None = None
        self.lost = False  #: a file of a cut that is alive

    def step(self) -> None:
        what = self.chance.choice([*[self.load] * 6, self.move, self.move, self.revert, self.end, self.lose])
        self.steps.append(what.__name__)
        what()

    def load(self) -> None:
        """A load of one of the servers, alone or with a move, a load of the other one or a death in the middle."""
        at, other = self.servers if self.chance.random() < 0.5 else self.servers[::-1]
        point = self.chance.choice([None, *POINTS])

        def other_load() -> None:
            other.load(self.world.row)

        happens = self.chance.choice([self.move, self.revert, other_load, _die])
        before = self.truth()
        self.steps[-1] += f" of {self.servers.index(at)}, {happens.__name__} at {point}"
        if point is not None:
            faults.arm(point, happens)
        self.world.pause()
        try:
            served = at.load(self.world.table.row)
        except FaultInjected:
            if self.chance.random() < 0.5:  # the process is another one, or the same that goes on
                self.servers[self.servers.index(at)] = self.world.server()
            return
        finally:
            faults.disarm()
        found = self.world.seen(served.cut)
        assert found in (before, self.truth()), self.steps
        assert self.last is None or served.cut.sequence >= self.last.sequence, self.steps
        wrong = self.world.fsck()
        assert wrong.keys() <= ({"F3"} if self.lost else set()), (wrong, self.steps)
        self.last = served.cut

    def move(self) -> None:
        world, bounds = self.world, self.world.head.bounds
        partition, count = self.chance.randrange(2), self.chance.randrange(1, 9)
        has_batch = world.head.batch is not None and not world.head.overlays and world.head.tiered == "stream"
        match self.chance.choice(["ingest", "tier", *["merge"] * has_batch]):
            case "ingest":
                self.high[partition] += count
                world.ingest({partition: self.high[partition]})
            case "tier" if (at := bounds[partition].stream_hi if bounds else 0) < self.high[partition]:
                world.tier({partition: min(at + count, self.high[partition])})
            case "merge" if bounds and (at := bounds[partition].batch_hi) < bounds[partition].stream_hi:
                world.merge({partition: min(at + count, bounds[partition].stream_hi)})

    def revert(self) -> None:
        world = self.world
        if world.head.version > 2:
            revert_table(world.stores, world.row, to=self.chance.randrange(1, world.head.version))

    def end(self) -> None:
        """The time of all cuts ends, and expire takes their files."""
        over(self.world.rig, self.world.row)
        self.lost = False
        aged(self.world.files())
        for _ in range(2):
            expire(self.world.rig, self.world.row)
            ripe(self.world.rig, self.world.row)

    def lose(self) -> None:
        """A file of the newest cut is lost, a long time after the last one was."""
        world, key = self.world, [self.world.row.table_id]
        world.rig.ask("UPDATE harness.cuts SET retired_at = retired_at - interval '1 hour' WHERE table_id = %s", key)
        if self.last is not None and (files := [file for file in map(path, self.last.files) if file.exists()]):
            self.chance.choice(files).unlink()
            self.lost = True
            self.servers = [world.server(), world.server()]  # as they do after some seconds, they look for its files

    def truth(self) -> Counter[Row]:
        return self.world.truth()


def _die() -> None:
    raise FaultInjected("the server dies")


LONG: Mapping[str, object] = {"retention": {"versions": "1h"}}
KINDS: Mapping[str, Callable[[RealRig, Path], CutWorld]] = {
    "both": lambda rig, folder: CutWorld(rig, folder, views="both", layout={"columns": ["id"], "sample": 0}, **LONG),
    "stream": lambda rig, folder: CutWorld(rig, folder, views="stream", **LONG),
    "batch": lambda rig, folder: CutWorld(rig, folder, views="batch", layout={"columns": ["id"], "sample": 0}, **LONG),
    "keyed": lambda rig, folder: KeyedWorld(rig, folder, **LONG),
}


@pytest.mark.parametrize("kind", KINDS)
def test_loads_of_two_servers_are_reads_whatever_happens_meanwhile(real: RealRig, tmp_path: Path, kind: str):
    world = KINDS[kind](real, tmp_path)
    try:
        story = Story(world, seed=SEED)
        for _ in range(STEPS):
            story.step()
    finally:
        faults.disarm()
        world.stores.close()
