"""When a load looks for a newer state, and when it gives up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.ports.errors import LakeAway
from harness_pipelines.ports.serving.cuts import Cut, CutImpossible, CutOvertaken
from harness_pipelines.protocol.cuts import UNNAMED_MAX, Chunk
from harness_pipelines.read import cut as module
from harness_pipelines.read.cut import TRIES, Cutter, CutTooSlow

AT = datetime(2026, 1, 2, tzinfo=UTC)
TABLE: Any = SimpleNamespace(name="shop.orders", intake=SimpleNamespace(buffered=True), spec=SimpleNamespace(key=()))


def known(sequence: int, *, over: bool = False) -> Cut:
    return Cut(
        snapshot_id=0 if over else sequence, sequence=sequence, timestamp_ms=0, version=1, schema_version=1, bounds={},
        metadata="", chunks=(), table_id=1, served_at=AT, until=AT,
    )  # fmt: skip


class World:
    """A table whose state is always that of the newest cut; it counts how often it is looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.newest, self.looks, self.clock = 1000.0, known(7), 0, AT
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(module, "look_plan", self._look)
        monkeypatch.setattr(module, "as_served", lambda looked: looked)
        monkeypatch.setattr(module, "cut_bounds", lambda plan: {0: (0, 0, 0, 9)})
        monkeypatch.setattr(module, "shows", lambda cut, *_: not cut.is_over)
        monkeypatch.setattr(module, "maker_of", lambda looked: "schema 1")
        self.stores: Any = SimpleNamespace(
            cuts=SimpleNamespace(newest=lambda table: (self.newest, self.clock), serve=lambda cut, keep: None),
            leases=SimpleNamespace(end=lambda lease_id: None),
        )

    def _look(self, *_: object, **__: object) -> Any:
        self.looks += 1
        plan = SimpleNamespace(overlay=None, tail=None, lease_id="x", version=1)
        return SimpleNamespace(table=TABLE, plan=plan, state=SimpleNamespace(version=1))

    def cutter(self, *, keep_s: float, every_s: float) -> Cutter:
        return Cutter(self.stores, holder="h", keep=timedelta(seconds=keep_s), every=timedelta(seconds=every_s))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_loads_within_the_time_get_the_cut_that_was_just_seen_to_be_the_newest(world: World):
    cutter = world.cutter(keep_s=100.0, every_s=0.5)
    assert [cutter.load(TABLE).cut.sequence for _ in range(3)] == [7, 7, 7]
    assert world.looks == 1
    world.now_s += 0.6
    cutter.load(TABLE)
    assert world.looks == 2


def test_a_cut_of_another_server_is_newer_than_what_this_one_has_seen(world: World):
    cutter = world.cutter(keep_s=100.0, every_s=0.5)
    cutter.load(TABLE)
    world.newest = known(8)
    assert cutter.load(TABLE).cut.sequence == 8
    assert world.looks == 2


@pytest.mark.parametrize(("version", "high", "looks"), [(1, 9, 1), (2, 11, 1), (1, 8, TRIES), (0, 9, TRIES)])
def test_a_server_that_lost_gives_out_the_newer_cut_if_that_has_all_of_its_look(
    world: World, monkeypatch: pytest.MonkeyPatch, version: int, high: int, looks: int
):
    other = replace(known(8), version=version, bounds={0: (0, 0, 0, high)})

    def overtaken(*_: object, **__: object) -> Cut:
        world.newest = other
        raise CutOvertaken("another server was faster")

    monkeypatch.setattr(module, "shows", lambda *_: False)
    monkeypatch.setattr(Cutter, "_made", overtaken)
    cutter = world.cutter(keep_s=900.0, every_s=0.1)
    if looks == 1:
        assert cutter.load(TABLE).cut is other
    else:
        with pytest.raises(CutOvertaken, match="5 times"):
            cutter.load(TABLE)
    assert world.looks == looks


def test_a_long_keep_makes_fewer_cuts_so_that_the_ledger_takes_them(world: World):
    cutter = world.cutter(keep_s=7200.0, every_s=0.1)
    cutter.load(TABLE)
    world.now_s += 1.4
    cutter.load(TABLE)
    assert world.looks == 1
    world.now_s += 0.1
    cutter.load(TABLE)
    assert world.looks == 2


class Slow:
    """Makes a cut of *count* chunks, each of which takes some time; *begun* are the chunks that each cut began with."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, *, count: int) -> None:
        self.world, self.count, self.begun = world, count, list[list[str]]()
        self.written = self.rows = 0
        monkeypatch.setattr(module, "Chunks", self._of)
        world.newest = known(7, over=True)

    def _of(self, *given: Any, check: Any, wrote: Any, **_: Any) -> Slow:
        self.begun.append([chunk.path for chunk in given[3].chunks])
        self.check, self.wrote = check, wrote
        return self

    def chunks(self) -> Iterator[Chunk]:
        for number in range(len(self.begun[-1]), self.count):
            self.world.now_s += 50.0
            chunk = Chunk(path=str(number), ranges={0: (0, 1)}, rows=1, bytes=1, sequence=1, maker="schema 1", entry="")
            self.wrote(chunk)
            self.check()
            yield chunk


def test_a_cut_that_takes_too_long_is_given_up_and_the_next_one_goes_on_from_what_was_written(world, monkeypatch):
    slow, cutter = Slow(world, monkeypatch, count=7), world.cutter(keep_s=900.0, every_s=0.1)
    for _ in range(2):
        with pytest.raises(CutTooSlow, match="shop.orders: making a cut took longer than 120 s"):
            cutter.load(TABLE)
    assert (slow.begun, world.looks) == ([[], ["0", "1", "2"]], 2)


def test_what_is_too_old_by_the_clock_of_the_ledger_is_not_gone_on_from(world, monkeypatch):
    slow, cutter = Slow(world, monkeypatch, count=7), world.cutter(keep_s=900.0, every_s=0.1)
    for later in (timedelta(0), UNNAMED_MAX, timedelta(seconds=1)):
        world.clock += later
        with pytest.raises(CutTooSlow):
            cutter.load(TABLE)
    assert slow.begun == [[], ["0", "1", "2"], ["3", "4", "5"]]


@pytest.mark.parametrize(
    ("error", "kept"), [(CutOvertaken("faster"), True), (LakeAway("gone"), True), (CutImpossible("no"), False)]
)
def test_chunks_that_may_be_to_blame_are_not_gone_on_from(world, monkeypatch, error: Exception, kept: bool):
    slow, cutter = Slow(world, monkeypatch, count=2), world.cutter(keep_s=900.0, every_s=0.1)

    def fail(*_: object, **__: object) -> None:
        raise error

    world.stores.cut_files = SimpleNamespace(write_cut=fail)
    monkeypatch.setattr(module, "makers_of", lambda *_: ())
    monkeypatch.setattr(module, "TRIES", 1)
    for _ in range(2):
        with pytest.raises(type(error)):
            cutter.load(TABLE)
    assert slow.begun == [[], ["0", "1"] if kept else []]
