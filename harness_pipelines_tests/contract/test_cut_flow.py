"""Cuts are made of real states: a read of now, and any engine over the cut, give the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness_pipelines_tests.contract.cut_rig import CutWorld, seen
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
        assert seen(cut) == truth
        cuts.append((cut, truth))
    for cut, truth in cuts:  # and keeps them
        assert seen(cut) == truth
    assert [cut.sequence for cut, _ in cuts] == sorted({cut.sequence for cut, _ in cuts})
    assert len({cut.snapshot_id for cut, _ in cuts}) == len(cuts)


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


@pytest.mark.parametrize("engine", ["DuckDB", "chDB", "Polars", "Daft", "DataFusion"])
def test_every_engine_reads_the_same_rows(world, engine):
    world.ingest({0: 40, 1: 25})
    world.tier({0: 30, 1: 20}, files=2)
    world.merge({0: 10, 1: 12})
    world.ingest({0: 44})
    world.assert_exact(world.cut(), engine)
