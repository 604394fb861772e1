"""What a cut reads of the buffer: each row once, in bounded memory, however much there is and however wide it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.cuts import Chunk
from harness_pipelines.protocol.reading.plan import BufferPart, OverlayPart, ReadPlan, SegmentRef
from harness_pipelines.protocol.reading.queries import BufferQuery, BufferStats
from harness_pipelines.protocol.reading.selection import Selection, work_of
from harness_pipelines.read import cut_chunks
from harness_pipelines.read.cut_chunks import Chunks, Content, Filling, Run
from harness_pipelines.read.cut_tail import Known
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import iceberg_fields
from harness_pipelines_tests.unit.read.cut_servers import Files, offsets_of

SPEC = TableSpec.model_validate({"table": "shop.orders", "columns": {"id": "long", "s": "string"}})
MIB = 2**20


def a_plan(high: Mapping[int, int], *, recalled: bool = False) -> ReadPlan:
    bounds = {p: Bounds(start=0, batch_hi=0, stream_hi=0, buffer_hi=end) for p, end in high.items()}
    segments = (SegmentRef(name="s", schema_version=1),)
    low = dict.fromkeys(high, 0)
    return ReadPlan(
        table="shop.orders", table_id=1, version=1, schema_version=1, fields=tuple(iceberg_fields(SPEC.columns)),
        bounds=bounds, lake=(), tail=None, lease_id="x", lease_until=datetime(2026, 1, 1, tzinfo=UTC),
        buffer=None if recalled else BufferPart(segments=segments, low=low, high=dict(high)),
        overlay=OverlayPart(segments=segments, low=low, high=dict(high)) if recalled else None,
    )  # fmt: skip


SCHEMA = work_of(a_plan({0: 1}), Selection(coordinates=True, changelog=True)).schema


def rows(partition: int, offsets: Any, *, width: int = 1) -> pa.Table:
    count = len(offsets)
    found = {
        "id": pa.array(offsets, pa.int64()),
        "s": pa.array(["x" * width] * count, pa.string()),
        "_kafka_partition": pa.array([partition] * count, pa.int32()),
        "_kafka_offset": pa.array(offsets, pa.int64()),
        "_kafka_timestamp": pa.nulls(count, SCHEMA.field("_kafka_timestamp").type),
        "_op": pa.array(["put"] * count),
        "_schema_version": pa.array([1] * count, pa.int32()),
    }
    return pa.table([found[name] for name in SCHEMA.names], schema=SCHEMA)


@dataclass
class Buffer:
    """A row at each offset, made when it is asked for; in tables of some rows, the last ones first."""

    width: int = 1
    table_rows: int = 150
    asked: list[dict[int, tuple[int, int]]] = field(default_factory=list)
    given: Counter[tuple[int, int]] = field(default_factory=Counter)

    def batches(self, query: BufferQuery, stats: BufferStats) -> Iterator[pa.Table]:
        self.asked.append(dict(query.ranges))
        for p, (low, high) in query.ranges.items():
            for first in reversed(range(low, high, self.table_rows)):
                offsets = range(first, min(high, first + self.table_rows))
                self.given.update((p, o) for o in offsets)
                yield rows(p, offsets, width=self.width)


@dataclass
class World:
    """A buffer with all offsets below *high*, and a server that makes chunks of it."""

    high: dict[int, int]
    low: dict[int, int] = field(default_factory=dict)  #: where the lake ends
    buffer: Buffer = field(default_factory=Buffer)
    files: Files = field(default_factory=Files)
    recalled: bool = False
    kept: list[Chunk] = field(default_factory=list)
    held: int = 0  #: the most bytes that Arrow had at any time
    unnamed: list[Chunk] = field(default_factory=list)

    def made(self) -> list[Chunk]:
        plan = a_plan(self.high, recalled=self.recalled)
        stores: Any = SimpleNamespace(buffer_reader=self.buffer, cut_files=self.files, lake_reads=None)
        table = SimpleNamespace(name="shop.orders", intake=SimpleNamespace(buffered=True))
        looked: Any = SimpleNamespace(table=table, plan=plan, state=SimpleNamespace(version=1))
        high = {} if self.recalled else self.high
        bounds = {p: (0, 0, self.low.get(p, 0), end) for p, end in high.items()}
        chunks = Chunks(
            stores, looked, bounds, Known(chunks=tuple(self.kept)),
            maker="schema 1", sequence=1, check=self._look, wrote=self.unnamed.append,
        ).chunks()  # fmt: skip
        found = []
        for chunk in chunks:
            self._look()
            found.append(chunk)
        return found

    def _look(self) -> None:
        self.held = max(self.held, pa.total_allocated_bytes())


class Forgetful(Files):
    """It keeps the sizes of chunks, not their rows."""

    def write_chunk(self, *given: Any, **words: Any) -> Chunk:
        chunk = super().write_chunk(*given, **words)
        self.rows[chunk.path] = rows(0, [])
        return chunk


@pytest.mark.parametrize("high", [{0: 45_000}, {p: 700 for p in range(40)}, {0: 1, 7: 30_000, 9: 3}])
def test_each_row_of_the_buffer_is_read_once_and_through_the_index(high: dict[int, int]):
    world = World(high=high, files=Forgetful())
    chunks = world.made()
    assert {*world.buffer.given.values()} == {1}
    assert len(world.buffer.given) == sum(high.values())
    assert {*offsets_of(chunks).values()} == {1}
    assert len(offsets_of(chunks)) == sum(high.values())
    sizes = [sum(b - a for a, b in asked.values()) for asked in world.buffer.asked]
    assert max(sizes) <= cut_chunks.WINDOW_OFFSETS_MAX
    assert len(sizes) <= 2 + sum(high.values()) / cut_chunks.WINDOW_OFFSETS_MAX + 2


def test_a_partition_that_is_in_a_later_window_begins_where_the_lake_ends():
    low, high = {0: 1_000, 1: 900, 2: 800}, {0: 6_000, 1: 5_000, 2: 4_800}
    world = World(high=high, low=low)
    world.made()
    assert world.buffer.given == Counter((p, o) for p, at in low.items() for o in range(at, high[p]))


def test_wide_rows_are_held_in_memory_only_as_far_as_a_chunk_and_a_window_go(monkeypatch: pytest.MonkeyPatch):
    """Rows of 100 kB: what is above the lake is 25 times as much as what may be held of it."""
    monkeypatch.setattr(cut_chunks, "CHUNK_BYTES_MAX", 4 * MIB)
    monkeypatch.setattr(cut_chunks, "WINDOW_BYTES_MAX", 2 * MIB)
    world = World(high={0: 700, 1: 400}, buffer=Buffer(width=100_000, table_rows=5), files=Forgetful())
    before = pa.total_allocated_bytes()
    chunks = world.made()
    assert sum(chunk.rows for chunk in chunks) == 1_100
    assert {*offsets_of(chunks).values()} == {1}
    assert max(chunk.held for chunk in chunks) <= 4 * MIB
    assert min(chunk.held for chunk in chunks[:-1]) >= 3 * MIB, "they are nearly full"
    # A chunk, and once more while it is put in order; a window likewise.
    assert world.held - before <= 2 * (4 + 2) * MIB + MIB
    assert sum(world.buffer.given.values()) <= 1.3 * 1_100, "little is read twice"


def test_a_row_that_is_larger_than_a_chunk_may_be_is_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cut_chunks, "CHUNK_BYTES_MAX", MIB)
    monkeypatch.setattr(cut_chunks, "WINDOW_BYTES_MAX", MIB)
    world = World(high={0: 3}, buffer=Buffer(width=2 * MIB, table_rows=1))
    assert [chunk.ranges for chunk in world.made()] == [{0: (0, 1)}, {0: (1, 2)}, {0: (2, 3)}]


def test_recalled_rows_are_as_many_chunks_as_their_bytes_need_and_none_is_gone_on_from(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cut_chunks, "CHUNK_BYTES_MAX", MIB)
    world = World(high={0: 40}, buffer=Buffer(width=100_000, table_rows=5), recalled=True)
    chunks = world.made()
    assert len(chunks) >= 4
    assert sum(chunk.rows for chunk in chunks) == 40
    assert {str(chunk.ranges) for chunk in chunks} == {"{0: (0, 40)}"}
    assert max(world.files.rows[chunk.path].nbytes for chunk in chunks) <= MIB
    assert world.unnamed == [], "some of them without the others would be taken for all"
    world.kept = chunks
    assert world.made() == chunks


def test_after_a_revert_what_lies_below_a_chunk_is_read_before_it():
    world = World(high={0: 60})
    [chunk] = world.made()
    world.kept = [Chunk(**{**_words(chunk), "ranges": {0: (40, 50)}, "rows": 10})]
    world.files.rows[chunk.path] = rows(0, range(40, 50))
    made = world.made()
    assert {*offsets_of(made).values()} == {1}
    for one in made:
        [(low, high)] = one.ranges.values()
        if one.path in world.files.rows and one is not world.kept[0]:
            assert world.files.rows[one.path]["_kafka_offset"].to_pylist() == list(range(low, high))


def _words(chunk: Chunk) -> dict[str, Any]:
    return {word: getattr(chunk, word) for word in Chunk.__dataclass_fields__}


runs = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 3)), max_size=30)


@given(runs, st.integers(1, 12))
@settings(deadline=None)
def test_what_is_filled_has_each_run_once_in_order_and_is_bounded(story: list[tuple[int, int, int]], rows_max: int):
    at, wanted, found = dict.fromkeys(range(3), 0), Counter[tuple[int, int]](), list[Content]()
    filling = Filling(at, SCHEMA, rows_max=rows_max, bytes_max=MIB)
    for p, count, gap in story:
        offsets = range(at[p], at[p] + count)
        unsettled = tuple(range(at[p] + count, at[p] + count + gap))
        at[p] += count + gap
        wanted.update((p, o) for o in offsets)
        found += filling.add(Run(partition=p, rows=rows(p, offsets), high=at[p], unsettled=unsettled, epoch=at[p]))
    found += filling.rest()
    assert {p: sum(b - a for one in found for q, (a, b) in one.ranges.items() if q == p) for p in at} == at
    for one in found:
        assert one.rows.num_rows <= rows_max
        places = list(zip(one.rows["_kafka_partition"].to_pylist(), one.rows["_kafka_offset"].to_pylist(), strict=True))
        wanted.subtract(places)
        assert all(one.ranges[p][0] <= o < one.ranges[p][1] for p, o in places)
        assert all(one.ranges[p][0] <= o < one.ranges[p][1] for p, held in one.read_as.unsettled.items() for o in held)
    assert {*wanted.values()} <= {0}
