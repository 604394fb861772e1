"""Cuts are made of real states: a read of now, and any engine over the cut, give the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from harness_pipelines.protocol.cuts import Chunk
from harness_pipelines.read import cut as module
from harness_pipelines.read import cut_chunks
from harness_pipelines_tests.contract.cut_rig import CutWorld
from harness_pipelines_tests.contract.stores_rig import RealRig

#: A batch view names the size of row groups for Spark, which writes its files; here PyIceberg does.
pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option.*not implemented:UserWarning")
STEPS = (
    ("nothing at all", lambda w: None),
    ("buffered", lambda w: w.ingest({0: 40, 1: 25})),
    ("more of it", lambda w: w.ingest({0: 50})),
    ("tiered in part", lambda w: w.tier({0: 45, 1: 20}, files=3)),
    ("buffered above", lambda w: w.ingest({0: 60, 1: 30})),
    ("merged in part, across a file", lambda w: w.merge({0: 20, 1: 10}, files=2)),
    ("merged to the end of the stream view", lambda w: w.merge({0: 45, 1: 20})),
    ("all is tiered", lambda w: w.tier({0: 60, 1: 30})),
    ("buffered once more", lambda w: w.ingest({0: 61, 1: 90})),
)


@pytest.fixture
def world(real: RealRig, tmp_path: Path) -> Iterator[CutWorld]:
    made = CutWorld(real, tmp_path, views="both", layout={"columns": ["id"], "sample": 0})
    yield made
    made.stores.close()


def test_each_cut_has_the_rows_of_a_read_of_that_moment(world):
    cuts = []
    for _, step in STEPS:
        step(world)
        cut, truth = world.cut(), world.truth()
        assert world.seen(cut) == truth
        cuts.append((cut, truth))
    for cut, truth in cuts:  # and keeps them
        assert world.seen(cut) == truth
    assert [cut.sequence for cut, _ in cuts] == sorted({cut.sequence for cut, _ in cuts})
    assert len({cut.snapshot_id for cut, _ in cuts}) == len(cuts)


def test_engines_find_one_table_whichever_view_is_below(world):
    """Flink loads it several times for one query, and may find a newer cut each time."""
    shapes = set()
    for _, step in STEPS:
        step(world)
        metadata = StaticTable.from_metadata(world.cut().metadata).metadata
        shapes.add((metadata.table_uuid, metadata.location, metadata.current_schema_id, metadata.spec().fields))
    [(_, _, _, partitioned_by)] = shapes
    assert partitioned_by == ()


def test_a_load_that_finds_nothing_new_gives_the_same_cut_and_writes_nothing(world):
    world.ingest({0: 10})
    first = world.cut()
    world.pause()
    again = world.cutter.load(world.table.row)
    assert again.cut.snapshot_id == first.snapshot_id
    assert not again.made
    assert again.cut.metadata == first.metadata


def test_a_server_that_begins_takes_over_the_chunks_of_another(world):
    world.ingest({0: 40, 1: 40})
    first = world.cut()
    world.ingest({0: 41})
    second = world.server().load(world.table.row).cut
    assert {c.path for c in first.chunks} <= {c.path for c in second.chunks}
    assert sum(c.rows for c in second.chunks if c not in first.chunks) == 1
    world.assert_exact(second)


class Slow:
    """The clock of a server for which each chunk takes fifty seconds; *rows* are those of the chunks."""

    def __init__(self, world: CutWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.step_s, self.rows = 0.0, 50.0, list[int]()
        write = world.stores.cut_files.write_chunk
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))

        def slow(*given: Any, **words: Any) -> Chunk:
            self.now_s += self.step_s
            made = write(*given, **words)
            self.rows.append(made.rows)
            return made

        monkeypatch.setattr(world.stores.cut_files, "write_chunk", slow)


def test_a_buffer_that_takes_longer_than_a_cut_may_is_served_by_a_later_load_and_no_row_is_written_twice(
    world, monkeypatch
):
    monkeypatch.setattr(cut_chunks, "CHUNK_ROWS_MAX", 100)
    world.ingest({0: 450, 1: 300})
    slow = Slow(world, monkeypatch)
    for _ in range(2):
        with pytest.raises(module.CutTooSlow, match="goes on from what was written"):
            world.cut()
    slow.step_s = 0.0
    found = world.cut()
    world.assert_exact(found)
    assert sum(slow.rows) == 750
    assert {chunk.path for chunk in found.chunks} <= {*found.files}


def test_what_a_server_wrote_and_another_one_was_faster_with_is_in_its_next_cut(world, monkeypatch):
    monkeypatch.setattr(cut_chunks, "CHUNK_ROWS_MAX", 100)
    world.ingest({0: 450})
    slow, first, other = Slow(world, monkeypatch), world.cutter, world.server()
    with pytest.raises(module.CutTooSlow):
        first.load(world.table.row)
    before = sum(slow.rows)
    with pytest.raises(module.CutTooSlow):
        other.load(world.table.row)  # it knows nothing of the first one's
    twice, slow.step_s = sum(slow.rows) - before, 0.0
    found = first.load(world.table.row).cut
    world.assert_exact(found)
    assert 0 < twice <= 300
    assert sum(slow.rows) == 450 + twice, "each of them wrote what it has once"


@pytest.mark.parametrize("engine", ["DuckDB", "chDB", "Polars", "Daft", "DataFusion"])
def test_every_engine_reads_the_same_rows(world, engine):
    world.ingest({0: 40, 1: 25})
    world.tier({0: 30, 1: 20}, files=2)
    world.merge({0: 10, 1: 12})
    world.ingest({0: 44})
    world.assert_exact(world.cut(), engine)
