"""When a load looks for a newer state, and when it gives up."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.ports.serving.cuts import Cut, CutOvertaken
from harness_pipelines.protocol.cuts import ChunkPlan, Writing
from harness_pipelines.read import cut as module
from harness_pipelines.read.cut import TRIES, Cutter, CutTooSlow, MergedBehind

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
        self.now_s, self.newest, self.looks = 1000.0, known(7), 0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(module, "look_plan", self._look)
        monkeypatch.setattr(module, "as_served", lambda looked: looked)
        monkeypatch.setattr(module, "cut_bounds", lambda plan: {0: (0, 0, 0, 9)})
        monkeypatch.setattr(module, "identity", lambda looked, bounds: self.newest.snapshot_id)
        monkeypatch.setattr(module, "maker_of", lambda looked: "schema 1")
        self.stores: Any = SimpleNamespace(
            cuts=SimpleNamespace(newest=lambda table: (self.newest, AT), serve=lambda cut, keep: None),
            leases=SimpleNamespace(end=lambda lease_id: None),
        )

    def _look(self, *_: object, **__: object) -> Any:
        self.looks += 1
        return SimpleNamespace(table=TABLE, plan=SimpleNamespace(overlay=None, lease_id="x", version=1))

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

    monkeypatch.setattr(module, "identity", lambda looked, bounds: 99)
    monkeypatch.setattr(Cutter, "_made", overtaken)
    cutter = world.cutter(keep_s=900.0, every_s=0.1)
    if looks == 1:
        assert cutter.load(TABLE).cut is other
    else:
        with pytest.raises(CutOvertaken, match="5 times"):
            cutter.load(TABLE)
    assert world.looks == looks


@pytest.mark.parametrize(
    ("merged", "last", "given"),
    [
        (9, 9, "made"),
        (9, None, "made"),
        (12, 9, "made"),
        (4, 9, "last"),
        (0, 9, "last"),
        (4, -9, "refused"),  # of a cut that is over the numbers alone are known
        (0, None, "refused"),
        (0, 0, "last"),
    ],
)
def test_a_merged_state_that_shows_less_or_nothing_is_not_served(
    world: World, monkeypatch: pytest.MonkeyPatch, merged: int, last: int | None, given: str
):
    """A revert, or a batch view that is begun again, lowers `batch_hi`. A negative *last* is over."""
    table: Any = SimpleNamespace(name="shop.customers", intake=TABLE.intake, spec=SimpleNamespace(key=("id",)))
    plan = SimpleNamespace(overlay=None, lease_id="x", version=2, bounds={0: SimpleNamespace(start=0, buffer_hi=20)})
    monkeypatch.setattr(module, "look_plan", lambda *_, **__: SimpleNamespace(table=table, plan=plan))
    monkeypatch.setattr(module, "cut_bounds", lambda plan: {0: (0, merged, merged, merged)})
    monkeypatch.setattr(module, "identity", lambda looked, bounds: 99)
    monkeypatch.setattr(Cutter, "_made", lambda *_, **__: known(8))
    before = (
        [] if last is None else [replace(known(7, over=last < 0), bounds={0: (0, abs(last), abs(last), abs(last))})]
    )
    world.stores.cuts.newest = lambda table: (before[0] if before else None, AT)
    cutter = world.cutter(keep_s=900.0, every_s=0.0)
    if given == "refused":
        with pytest.raises(MergedBehind, match=r"shop\.customers"):
            cutter.load(table)
    else:
        assert cutter.load(table).cut.sequence == (8 if given == "made" else 7)


def test_a_long_keep_makes_fewer_cuts_so_that_the_ledger_takes_them(world: World):
    cutter = world.cutter(keep_s=7200.0, every_s=0.1)
    cutter.load(TABLE)
    world.now_s += 1.4
    cutter.load(TABLE)
    assert world.looks == 1
    world.now_s += 0.1
    cutter.load(TABLE)
    assert world.looks == 2


def test_a_cut_that_takes_too_long_is_given_up_at_the_next_chunk_and_is_not_begun_again(world, monkeypatch):
    world.newest = known(7, over=True)
    written: list[object] = []
    wanted = Writing(ranges={0: (0, 9)}, sources=(), read={0: (0, 9)})
    monkeypatch.setattr(module, "chunk_plan", lambda *_, **__: ChunkPlan(kept=(), written=(wanted,) * 5))

    def write(_: object, one: object) -> object:
        written.append(one)
        world.now_s += 50.0
        return one

    monkeypatch.setattr(module._Chunks, "_rows", lambda _, one: one)
    monkeypatch.setattr(module._Chunks, "_write", lambda self, rows, ranges, maker: write(self, rows))
    with pytest.raises(CutTooSlow, match="shop.orders: making a cut took longer than 120 s"):
        world.cutter(keep_s=900.0, every_s=0.1).load(TABLE)
    assert (len(written), world.looks) == (3, 1)
