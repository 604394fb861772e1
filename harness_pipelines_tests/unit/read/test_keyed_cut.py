"""Cuts of keyed tables: each has the newest put of each key, whatever the table did since the cut before."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_pipelines.ports.serving.keys import CutOverLimits
from harness_pipelines.protocol.key_hashes import Places
from harness_pipelines.protocol.keyed_cuts import Level, cut_off, joined
from harness_pipelines.protocol.keys import KeyInTwoPartitions
from harness_pipelines.read import keyed_cut as module
from harness_pipelines_tests.unit.read.keyed import Record
from harness_pipelines_tests.unit.read.keyed_world import World, key_of

KEYS = st.integers(0, 11)
PARTITION, COUNT = st.integers(0, 1), st.integers(1, 6)
STEPS = st.one_of(
    st.tuples(st.just("produce"), KEYS, st.none() | st.integers(0, 9)),
    st.tuples(st.just("produce"), KEYS, st.integers(0, 9)),
    st.tuples(st.just("skip"), PARTITION),
    st.tuples(st.just("tier"), PARTITION, COUNT),
    st.tuples(st.just("merge"), PARTITION, COUNT),
    st.tuples(st.just("rewrite"), st.sets(st.integers(0, 3), min_size=1)),
    st.tuples(st.just("recall"), KEYS),
    st.tuples(st.just("revert"), st.integers(0, 50)),
    st.tuples(st.just("begin_again")),
    st.tuples(st.just("evolve")),
    st.tuples(st.just("server")),
    st.tuples(st.just("overtaken"), st.booleans()),
    st.tuples(st.just("cut")),
    st.tuples(st.just("cut")),
    st.tuples(st.just("lose a cut")),
)


@settings(max_examples=200)
@given(st.lists(STEPS, min_size=1, max_size=40))
def test_a_cut_shows_the_newest_put_of_each_key_whatever_happened_before(steps: list[tuple[object, ...]]):
    world = World()
    for what, *given_ in [*steps, ("cut",)]:
        if what == "lose a cut":
            world.assert_exact(world.make())
        elif what == "overtaken":
            world.overtaken(gone=bool(given_[0]))
        else:
            getattr(world, str(what))(*given_)


def busy(*, keys: int, records: int, seed: int = 1) -> World:
    world, chance = World(), random.Random(seed)
    for _ in range(records):
        world.produce(chance.randrange(keys), chance.choice([None, 1, 2, 3, 4]))
    return world


def test_a_new_cut_costs_what_is_new_and_not_what_is_hot():
    world = busy(keys=400, records=2_000)
    world.tier(0, 900)
    world.merge(0, 400)
    world.cut()
    costs = []
    for number in range(64):
        world.rows_written = world.searched = 0
        world.produce(number * 7 % 400, number)
        world.cut()
        costs.append((world.rows_written, world.searched))
    assert sum(rows for rows, _ in costs) < 64 * 16  # each is written about log2 times, with what it hides
    assert sum(searched for _, searched in costs) <= 64


def test_there_are_few_files_however_many_cuts_there_were():
    world = busy(keys=1_000, records=1)
    for number in range(200):
        world.produce(number * 17 % 1_000, number)
        world.cut()
    chunks = world.cut()
    assert len(chunks) <= 18  # a chunk and its deletes for about each power of two


def test_what_a_merge_took_leaves_the_levels_and_what_it_left_is_not_looked_for_in_files_that_stay():
    world = busy(keys=50, records=200)
    for partition in (0, 1):
        world.tier(partition, 1_000)
        world.merge(partition, 60)
    world.cut()
    world.searched = 0
    world.merge(0, 10)
    world.cut()
    assert 0 < world.searched <= 50  # in the one new file, once each
    for partition in (0, 1):
        world.merge(partition, 1_000)
    assert world.cut() == []


def test_the_other_server_needs_other_files_and_ours_are_named_again_while_their_cut_is_there():
    world = busy(keys=50, records=200)
    first = world.cut()
    world.overtaken(gone=False)
    world.produce(1, 1)
    assert {c.path for c in first} & {c.path for c in world.cut()}
    world.overtaken(gone=True)
    world.produce(1, 2)
    assert not {c.path for c in first} & {c.path for c in world.cut()}


def test_more_hot_keys_than_are_allowed_are_refused_and_not_read_again_at_once():
    world = busy(keys=50, records=400)
    world.hot_rows = 30
    with pytest.raises(CutOverLimits, match=r"t.keyed: 50 keys have a version above .* up to 30 \(`serve.hot_rows`\)"):
        world.make()
    read = world.written
    with pytest.raises(CutOverLimits):
        world.make()
    assert world.written == read
    world.tier(0, 400)
    world.merge(0, 300)  # fewer are hot then
    world.cut()


@pytest.mark.parametrize("where", ["above", "in another cut", "in the batch view"])
def test_a_key_in_two_partitions_is_named_and_the_next_cut_is_made_without_it(where: str):
    world = World()
    world.produce(2, 1)
    if where == "in the batch view":
        world.tier(0, 9)
        world.merge(0, 9)
    if where != "above":
        world.cut()
    a, b = key_of(2)
    good = list(world.log)
    world.log.append(Record(a, b, 7, 1, world.high[1]))
    world.high[1] += 1
    with pytest.raises(KeyInTwoPartitions, match="key a=2, b='2' is in partition"):
        world.make()
    world.log = good
    world.cut()


def test_what_a_replay_put_back_is_shown_though_no_bound_is_lower_than_it_was():
    """The batch view passed the record, it was put back, and the batch view was begun again: it is hot once more."""
    world = World()
    for _ in range(4):
        world.produce(2, 1)
    world.skip(0)
    world.produce(2, None)
    world.tier(0, 6)
    world.merge(0, 3)
    world.cut()
    world.merge(0, 3)
    a, b = key_of(4)
    world.log.append(Record(a, b, 7, 0, 4))
    world.begin_again()
    world.merge(0, 3)
    world.cut()


def taken(world: World, chance: random.Random) -> None:
    """Take a step of any kind."""
    kinds = ["produce"] * 6 + ["tier", "merge", "cut"] * 3 + ["rewrite", "recall", "revert", "overtaken", "lose"]
    match chance.choice(kinds):
        case "produce":
            world.produce(chance.randrange(8), chance.choice([None, 1, 2]))
        case ("tier" | "merge") as what:
            getattr(world, what)(chance.randrange(2), chance.randrange(1, 5))
        case "rewrite":
            world.rewrite({0, chance.randrange(3)})
        case "recall":
            world.recall(chance.randrange(8))
        case "revert":
            world.revert(chance.randrange(99))
        case "overtaken":
            world.overtaken(gone=chance.random() < 0.5)
        case "lose":
            world.assert_exact(world.make())
        case _:
            world.cut()


def all_hidden(level: Level, paths: Sequence[str]) -> dict[str, Places]:
    """Those too that the batch view hides itself."""
    return HIDDEN(replace(level, cold=replace(level.cold, live=np.ones(len(level.cold), np.bool_))), paths)


def still_whole(level: Level, low: Mapping[int, int]) -> Level | None:
    found = cut_off(level, low)
    return found and replace(found, is_whole=True)


HIDDEN = Level.hidden
#: Seeded faults: what is replaced, and by what.
FAULTS: Mapping[str, tuple[Any, str, Any]] = {
    "a file that is gone is taken for another one": (module, "renumbered", lambda cold, was, now: cold),
    "no hot key is looked for in files that are new": (module, "newest_of", lambda levels: iter(())),
    "a level keeps what was merged": (module, "cut_off", lambda level, low: level),
    "a chunk keeps what was merged": (module, "cut_off", still_whole),
    "an older version is not hidden": (module, "found_in", lambda levels, level, **_: ({}, np.arange(len(level)))),
    "what the batch view hides is hidden twice": (Level, "hidden", all_hidden),
    "a merge changes nothing of what is hidden": (module, "hiding", lambda levels, cold, **_: list(levels)),
    "of joined levels the older version stays": (module, "joined", lambda of, sizes: joined(of[::-1], sizes[::-1])),
    "files of a cut that is gone are named": (World, "serve", lambda self, cut, *, keep: None),
    "a bound that falls is not seen": (module, "_has_fallen", lambda known, bounds: False),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: str):
    monkeypatch.setattr(*FAULTS[fault])
    for seed in range(300):
        world, chance = World(), random.Random(seed)
        try:
            for _ in range(40):
                taken(world, chance)
        except (AssertionError, LookupError):
            return
    pytest.fail("no run has found it")
