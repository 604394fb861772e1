"""Cuts: which chunks each has, what their order and their names depend on, and when what may go."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import log2
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_pipelines.errors import Recovery
from harness_pipelines.protocol.cuts import (
    BEHIND_MS,
    MAKING_MAX,
    UNNAMED_MAX,
    Chunk,
    ChunkPlan,
    CutBounds,
    OlderCut,
    bounds_json,
    bounds_of_json,
    check_newest,
    chunk_json,
    chunk_of_json,
    chunk_plan,
    etag,
    follows,
    is_young,
    may_begin_with,
    may_condemn,
    may_forget,
    next_sequence,
    next_timestamp,
    part_key,
    snapshot_id,
    table_uuid,
)
from harness_pipelines.protocol.reading.narrowing import Ranges

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
MAKER = "schema 1"
SNAPSHOT_ID = 5838905793980862305  #: of one cut, for ever


def a_chunk(path: str, ranges: Ranges, *, rows: int | None = None, size: int = 0, maker: str = MAKER) -> Chunk:
    rows = span(ranges) if rows is None else rows
    return Chunk(path=path, ranges=ranges, rows=rows, bytes=1, held=size, sequence=1, maker=maker, entry="")


def span(ranges: Ranges) -> int:
    return sum(high - low for low, high in ranges.values())


def paths(chunks: Sequence[Chunk]) -> list[str]:
    return sorted(chunk.path for chunk in chunks)


def offsets(ranges: Ranges) -> list[tuple[int, int]]:
    return [(p, o) for p, (low, high) in ranges.items() for o in range(low, high)]


@dataclass
class Server:
    """Makes one cut after the other; there is a row at each offset but multiples of `gap`."""

    gap: int = 0
    low: dict[int, int] = field(default_factory=dict)
    high: dict[int, int] = field(default_factory=dict)
    chunks: list[Chunk] = field(default_factory=list)
    written: int = 0  #: rows
    read: Counter[tuple[int, int]] = field(default_factory=Counter)  #: from the buffer, by offset
    cuts: int = 0

    def cut(self, maker: str = MAKER) -> ChunkPlan:
        plan = chunk_plan(self.chunks, self.low, self.high, maker=maker)
        self.cuts += 1
        made = [
            a_chunk(
                f"{self.cuts}.{at}",
                one.ranges,
                rows=self.rows(one.ranges),
                size=10 * self.rows(one.ranges),
                maker=maker,
            )
            for at, one in enumerate(plan.written)
        ]
        self.written += sum(chunk.rows for chunk in made)
        for one in plan.written:
            self.read.update(offsets(one.read))
        self.chunks = [*plan.kept, *made]
        return plan

    def rows(self, ranges: Ranges) -> int:
        return sum(1 for _, o in offsets(ranges) if not self.gap or o % self.gap)

    @property
    def wanted(self) -> list[tuple[int, int]]:
        return sorted((p, o) for p, high in self.high.items() for o in range(self.low[p], high))


# -- chunks ---------------------------------------------------------------------------------------------------


class Move(NamedTuple):
    what: str
    partition: int
    offsets: int


moves = st.lists(
    st.builds(
        Move,
        st.sampled_from(["ingest", "ingest", "ingest", "tier", "revert", "join", "evolve", "cut", "cut", "cut"]),
        st.integers(0, 2),
        st.integers(1, 12),
    ),
    max_size=40,
)


@given(moves, st.sampled_from([0, 2, 3]))
@settings(deadline=None)
def test_the_chunks_of_a_cut_have_exactly_the_wanted_offsets_each_once(story: Sequence[Move], gap: int):
    server, maker = Server(gap=gap), 1
    for what, p, count in story:
        known = p in server.high
        if what == "join":
            server.low.setdefault(p, 5)
            server.high.setdefault(p, 5)
        elif what == "ingest" and known:
            server.high[p] += count
        elif what == "tier" and known:
            server.low[p] = min(server.high[p], server.low[p] + count)
        elif what == "revert" and known:
            server.low[p] = max(5, server.low[p] - count)
        elif what == "evolve":
            maker += 1
        elif what == "cut":
            before = list(server.chunks)
            plan = server.cut(f"schema {maker}")
            assert sorted(o for chunk in server.chunks for o in offsets(chunk.ranges)) == server.wanted
            assert paths([*plan.kept, *plan.gone]) == paths(before)
            for one in plan.written:
                assert_made_of_what_there_is(one.ranges, one.sources, one.read, before)


def assert_made_of_what_there_is(ranges: Ranges, sources: Sequence[Chunk], read: Ranges, before: Sequence[Chunk]):
    """Each offset of a new chunk comes from one place, and the rest of its sources is no part of another one."""
    assert {*paths(sources)} <= {*paths(before)}
    taken = [o for chunk in sources for o in offsets(chunk.ranges) if o in {*offsets(ranges)}]
    assert sorted([*taken, *offsets(read)]) == sorted(offsets(ranges))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=60))
@settings(deadline=None)
def test_each_offset_is_read_from_the_buffer_once_while_the_buffer_only_grows(story: list[tuple[int, int]]):
    server = Server(low={0: 0, 1: 3, 2: 0}, high={0: 0, 1: 3, 2: 0})
    for p, count in story:
        server.high[p] += count
        server.low[0] = min(server.high[0], server.low[0] + 1)  # what tier takes is not read again either
        server.cut()
    assert {*server.read.values()} <= {1}


@given(st.lists(st.integers(1, 40), min_size=1, max_size=300), st.sampled_from([0, 2, 7]))
@settings(deadline=None, max_examples=50)
def test_a_cut_has_few_chunks_and_each_row_is_written_about_log2_times(counts: list[int], gap: int):
    server = Server(gap=gap, low={0: 0}, high={0: 0})
    for count in counts:
        server.high[0] += count
        server.cut()
        rows = max(2, sum(chunk.rows for chunk in server.chunks))
        assert len(server.chunks) <= log2(rows) + 2
    # A row that is written again is in a chunk at least 1.5 times as large: log1.5 is 1.71 log2.
    assert server.written <= server.rows({0: (0, server.high[0])}) * (1.71 * log2(max(2, server.high[0])) + 1)


def test_without_anything_new_nothing_is_written():
    server = Server(low={0: 0}, high={0: 100})
    server.cut()
    for count in (7, 1, 1, 30):
        server.high[0] += count
        server.cut()

    assert server.cut().written == ()


def test_a_chunk_below_the_lake_goes_and_one_that_reaches_below_it_is_written_from_its_own_file():
    old, straddling, new = (a_chunk(str(low), {0: (low, low + size)}) for low, size in ((0, 16), (16, 8), (24, 2)))

    plan = chunk_plan([old, straddling, new], {0: 19}, {0: 26}, maker=MAKER)

    [written] = plan.written
    assert (written.ranges, written.sources, written.read) == ({0: (19, 24)}, (straddling,), {})
    assert plan.kept == (new,)
    assert plan.gone == (old, straddling)


def test_a_chunk_of_another_maker_goes_and_is_no_source():
    old = a_chunk("old", {0: (0, 9)}, maker="schema 1")

    plan = chunk_plan([old], {0: 0}, {0: 9}, maker="schema 2")

    [written] = plan.written
    assert (written.sources, written.read, plan.gone) == ((), {0: (0, 9)}, (old,))


def test_a_chunk_that_reaches_above_what_is_wanted_is_not_trusted():
    plan = chunk_plan([a_chunk("odd", {0: (0, 9)})], {0: 0}, {0: 8}, maker=MAKER)

    assert plan.kept == ()
    assert [one.read for one in plan.written] == [{0: (0, 8)}]


def test_of_two_chunks_with_one_offset_the_later_one_is_not_trusted():
    one, other = a_chunk("1", {0: (0, 9)}), a_chunk("2", {0: (8, 12)})

    plan = chunk_plan([one, other], {0: 0}, {0: 12}, maker=MAKER)

    assert other in plan.gone
    assert [written.read for written in plan.written] == [{0: (9, 12)}]


def test_after_a_revert_both_ends_are_read_and_no_chunk_reads_two_runs():
    kept = a_chunk("kept", {0: (50, 60)})

    plan = chunk_plan([kept], {0: 40}, {0: 70}, maker=MAKER)

    assert sorted(run for one in plan.written for run in one.read.values()) == [(40, 50), (60, 70)]


def test_a_new_partition_is_read_from_its_start():
    plan = chunk_plan([a_chunk("1", {0: (0, 90)})], {0: 0, 7: 3}, {0: 90, 7: 5}, maker=MAKER)

    assert [one.read for one in plan.written] == [{7: (3, 5)}]


def test_offsets_without_rows_are_known_to_have_none():
    empty = a_chunk("empty", {0: (0, 50)}, rows=0)

    assert chunk_plan([empty], {0: 0}, {0: 50}, maker=MAKER).kept == (empty,)


def test_a_large_chunk_is_not_written_again_for_a_few_rows():
    large = a_chunk("large", {0: (0, 1000)})

    plan = chunk_plan([large], {0: 0}, {0: 1900}, maker=MAKER, rows_max=1000)

    assert plan.kept == (large,)
    assert [one.read for one in plan.written] == [{0: (1000, 1900)}]


def test_however_much_is_new_is_read_in_one_pass():
    plan = chunk_plan([], {0: 0, 1: 0}, {0: 250, 1: 30}, maker=MAKER, rows_max=100)

    assert [one.read for one in plan.written] == [{0: (0, 250), 1: (0, 30)}]


def test_chunks_whose_rows_would_not_fit_in_memory_together_are_not_put_together():
    wide, next_one = a_chunk("wide", {0: (0, 10)}, size=6_000), a_chunk("next", {0: (10, 20)}, size=6_000)

    assert len(chunk_plan([wide, next_one], {0: 0}, {0: 20}, maker=MAKER, bytes_max=12_000).written) == 1
    assert chunk_plan([wide, next_one], {0: 0}, {0: 20}, maker=MAKER, bytes_max=11_000).kept == (wide, next_one)


def test_the_size_of_rows_that_were_not_read_yet_is_learned_from_chunks():
    wide = a_chunk("wide", {0: (0, 10)}, size=6_000)

    plan = chunk_plan([wide], {0: 0}, {0: 20}, maker=MAKER, bytes_max=11_000)

    assert (plan.kept, [one.read for one in plan.written]) == ((wide,), [{0: (10, 20)}])


# -- identity ---------------------------------------------------------------------------------------------------

BOUNDS: CutBounds = {0: (0, 1, 2, 3), 1: (0, 0, 0, 9)}
few = st.integers(0, 2)
bounds = st.dictionaries(few, st.tuples(few, few, few, few), max_size=2)
makers = st.frozensets(st.sampled_from(["schema 1", "schema 2"]))
states = st.tuples(few, few, bounds, makers, few)


@given(states, states)
def test_cuts_have_one_id_if_and_only_if_they_have_one_content(one, other):
    first, second = (snapshot_id(t, v, b, makers=m, sequence=n) for t, v, b, m, n in (one, other))

    assert 0 < first < 2**63
    assert (first == second) == (one == other)


def test_an_id_does_not_change_with_the_harness():
    """Servers of two releases share the cuts of a table."""
    assert snapshot_id(1, 5, BOUNDS, makers=("b", "a"), sequence=7) == snapshot_id(
        1, 5, dict(reversed(list(BOUNDS.items()))), makers=("a", "b"), sequence=7
    )
    assert snapshot_id(1, 5, BOUNDS, makers=("a",), sequence=7) == SNAPSHOT_ID


def test_the_uuid_is_that_of_the_table_in_its_warehouse():
    assert table_uuid("s3://lake", 1) == table_uuid("s3://lake/", 1)
    assert len({table_uuid(w, t) for w in ("s3://lake", "s3://other") for t in (1, 2)}) == 4


def test_the_tag_of_an_answer_is_that_of_its_files_and_not_of_its_state():
    assert etag("a/1.json") == etag("a/1.json") != etag("a/2.json")
    assert etag("a/1.json").startswith('"')


def test_a_part_is_made_again_when_its_metadata_or_what_it_leaves_out_changes():
    assert part_key("a", {0: 1, 1: 2}) == part_key("a", {1: 2, 0: 1})
    assert len({part_key("a", {0: 1}), part_key("b", {0: 1}), part_key("a", {0: 2}), part_key("a", {})}) == 4
    assert len({part_key("a", {0: (1, 2)}, 7), part_key("a", {0: (1, 3)}, 7), part_key("a", {0: (1, 2)}, 8)}) == 3


def test_bounds_and_chunks_come_back_from_their_json():
    bounds = {0: (0, 1, 2, 3), 11: (4, 5, 6, 7)}
    one = Chunk(path="a", ranges={3: (1, 2)}, rows=1, bytes=9, sequence=4, maker="m", entry="{}", held=5, read_as="r")
    assert bounds_of_json(json.loads(json.dumps(bounds_json(bounds)))) == bounds
    assert chunk_of_json(json.loads(json.dumps(chunk_json(one)))) == one


# -- order ------------------------------------------------------------------------------------------------------


class Order(NamedTuple):
    sequence: int
    version: int
    bounds: CutBounds


BEFORE = Order(7, 5, {0: (0, 2, 4, 6)})


def test_a_cut_follows_one_that_shows_no_more():
    follows("a.b", BEFORE, Order(8, 5, {0: (0, 2, 4, 6)}))
    follows("a.b", BEFORE, Order(8, 6, {0: (0, 0, 1, 6), 1: (0, 0, 0, 0)}))  # a revert, and a partition that joins


@pytest.mark.parametrize(
    ("following", "why"),
    [
        (Order(7, 5, BEFORE.bounds), "sequence 7 cannot follow 7"),
        (Order(8, 4, BEFORE.bounds), "version 4 cannot follow one of version 5"),
        (Order(8, 6, {0: (0, 2, 4, 5)}), "partition 0 of a cut ends at offset 5, that of the cut before at 6"),
        (Order(8, 6, {1: (0, 2, 4, 6)}), "without partition 0 cannot follow one with it, below 6"),
    ],
)
def test_an_older_cut_is_refused_by_name(following: Order, why: str):
    with pytest.raises(OlderCut, match=f"^a.b: .*{why}") as refused:
        follows("a.b", BEFORE, following)
    assert refused.value.recovery is Recovery.REFRESH


def test_only_a_revert_lowers_the_merged_state_of_a_keyed_table():
    merged = Order(7, 5, {0: (0, 6, 6, 6)})

    follows("a.b", merged, Order(8, 6, {0: (0, 4, 4, 4)}))
    for following in (Order(8, 5, {0: (0, 4, 4, 4)}), Order(8, 6, {0: (0, 3, 4, 5)})):
        with pytest.raises(OlderCut):
            follows("a.b", merged, following)


def test_a_cut_that_was_made_after_another_one_is_refused():
    check_newest("a.b", newest=None, previous=None)
    check_newest("a.b", newest=3, previous=3)
    for newest, previous in ((4, 3), (None, 3), (3, None)):
        with pytest.raises(OlderCut, match="was not published"):
            check_newest("a.b", newest=newest, previous=previous)


def test_a_sequence_number_is_above_those_of_the_views_and_of_the_last_cut():
    assert next_sequence(None, (4, 9)) == 10
    assert next_sequence(12, (4, 9)) == 13
    assert next_sequence(None, ()) == 1


def test_a_cut_has_a_time_before_that_of_the_transactions_that_read_it():
    assert next_timestamp(None, 50_000) == 50_000 - BEHIND_MS
    assert next_timestamp(1_000, 50_000) == 50_000 - BEHIND_MS
    assert next_timestamp(40_000, 50_000) == 40_001


# -- times ------------------------------------------------------------------------------------------------------


def young_for(*, every: timedelta, keep: timedelta, until: timedelta) -> timedelta:
    """For how long after its look a cut is given out without a look, to a tenth of a second."""
    tenth = timedelta(milliseconds=100)
    ages = [n * tenth for n in range(1, 400)]
    return next(a for a in ages if not is_young(NOW, NOW + until, now=NOW + a, every=every, keep=keep)) - tenth


def test_a_cut_is_given_out_without_a_look_for_a_short_time_and_longer_the_longer_files_are_kept():
    short, day = timedelta(milliseconds=100), timedelta(days=1)
    assert young_for(every=short, keep=MINUTE, until=MINUTE) == timedelta(0)
    assert young_for(every=10 * short, keep=MINUTE, until=MINUTE) == 9 * short
    assert young_for(every=short, keep=day, until=MINUTE) == timedelta(seconds=17.2)
    assert young_for(every=short, keep=MINUTE, until=day) == timedelta(seconds=17.2), "another server promised a day"
    hours = timedelta(hours=5)  # a table that rests: its cut is old, and was prolonged all the time
    assert not is_young(NOW, NOW + hours + MINUTE, now=NOW + hours, every=short, keep=MINUTE)
    assert not is_young(NOW, NOW + MINUTE, now=NOW - short, every=short, keep=MINUTE), "the ledger's clock was set back"


def test_a_row_goes_when_the_grace_after_its_promise_has_passed():
    assert not may_forget(NOW, now=NOW + MINUTE, grace=2 * MINUTE)
    assert may_forget(NOW, now=NOW + 2 * MINUTE, grace=2 * MINUTE)


@pytest.mark.parametrize("grace", [timedelta(0), 60 * MINUTE])
def test_a_file_of_a_cut_that_is_being_made_is_no_orphan(grace: timedelta):
    assert not may_condemn(NOW, now=NOW + UNNAMED_MAX + MAKING_MAX, grace=grace)
    assert may_condemn(NOW, now=NOW + max(grace, UNNAMED_MAX + 2 * MAKING_MAX), grace=grace)


def test_a_chunk_that_no_cut_names_is_used_only_while_it_is_too_young_to_be_an_orphan_at_the_publication():
    latest = NOW + UNNAMED_MAX

    assert may_begin_with(NOW, now=latest)
    assert not may_begin_with(NOW, now=latest + timedelta(milliseconds=1))
    assert not may_condemn(NOW, now=latest + MAKING_MAX, grace=timedelta(0))
