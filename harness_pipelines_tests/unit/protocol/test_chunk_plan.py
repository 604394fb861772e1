"""Which chunks a cut has: together they have the wanted offsets, each once, and few rows are written again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log2
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from harness_pipelines.protocol.chunk_plan import ChunkPlan, chunk_plan
from harness_pipelines.protocol.cuts import Chunk
from harness_pipelines.protocol.ranges import offset_count
from harness_pipelines.protocol.reading.narrowing import Ranges

MAKER = "schema 1"


def a_chunk(path: str, ranges: Ranges, *, rows: int | None = None, size: int = 0, maker: str = MAKER) -> Chunk:
    rows = offset_count(ranges) if rows is None else rows
    return Chunk(path=path, ranges=ranges, rows=rows, bytes=1, held=size, sequence=1, maker=maker, entry="")


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
