"""Cuts of keyed tables are made of real states: a read of now, and any engine over the cut, give the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from harness_pipelines.ports.serving.keys import CutOverLimits
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests.contract.keyed_cut_rig import KeyedWorld
from harness_pipelines_tests.contract.stores_rig import RealRig

#: A batch view names the size of row groups for Spark, which writes its files; here PyIceberg does.
pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option.*not implemented:UserWarning")


@pytest.fixture
def world(real: RealRig, tmp_path: Path) -> Iterator[KeyedWorld]:
    made = KeyedWorld(real, tmp_path)
    yield made
    made.stores.close()


STEPS = (
    ("nothing at all", lambda w: None),
    ("buffered", lambda w: w.ingest({0: 40, 1: 25})),
    ("more of it", lambda w: w.ingest({0: 50})),
    ("tiered in part", lambda w: w.tier({0: 45, 1: 20}, files=3)),
    ("buffered above", lambda w: w.ingest({0: 60, 1: 30})),
    ("merged in part, across a file", lambda w: w.merge({0: 20, 1: 10}, files=2)),
    ("merged more, over rows that were merged", lambda w: w.merge({0: 33, 1: 16})),
    ("merged to the end of the stream view", lambda w: w.merge({0: 45, 1: 20}, files=2)),
    ("recalled", lambda w: w.recall("id < 8")),
    ("buffered over recalled rows", lambda w: w.ingest({0: 64, 1: 33})),
    ("all is tiered", lambda w: w.tier({0: 64, 1: 33})),
    ("buffered once more", lambda w: w.ingest({0: 65, 1: 90})),
)


def test_each_cut_has_the_rows_of_a_read_of_that_moment(world: KeyedWorld):
    cuts = []
    for _, step in STEPS:
        step(world)
        cut, truth = world.cut(), world.truth()
        assert world.seen(cut) == truth
        assert world.fsck() == {}
        cuts.append((cut, truth))
    for cut, truth in cuts:  # and keeps them
        assert world.seen(cut) == truth
    assert [cut.sequence for cut, _ in cuts] == sorted({cut.sequence for cut, _ in cuts})
    world.assert_exact(world.server().load(world.table.row).cut)
    world.ingest({0: 66})
    world.assert_exact(world.server().load(world.table.row).cut)  # that begins with nothing
    world.assert_exact(world.cut())


def test_fsck_reads_which_rows_are_hidden_and_names_a_file_of_them_that_is_damaged(world: KeyedWorld):
    world.ingest({0: 60, 1: 45})
    world.tier({0: 50, 1: 40}, files=2)
    world.merge({0: 20, 1: 12}, files=2)
    world.merge({0: 40, 1: 30}, files=2)
    cut = world.cut()
    listed = world.stores.cut_files.listed(cut.metadata)
    [hidden] = [one.hidden for one in listed.deletes if len(one.hidden) > 1]
    assert {*hidden} <= {one.path for one in listed.data}
    [path] = [Path(one.path.removeprefix("file://")) for one in listed.deletes if len(one.hidden) > 1]
    path.write_bytes(bytes(path.stat().st_size))
    assert [*world.fsck()] == ["F3"]
    assert path.name in str(world.fsck())


@pytest.mark.parametrize("engine", ["DuckDB", "chDB", "Polars", "Daft", "DataFusion"])
def test_every_engine_reads_the_same_rows(world: KeyedWorld, engine: str):
    world.ingest({0: 60, 1: 45})
    world.tier({0: 50, 1: 40}, files=2)
    world.merge({0: 20, 1: 12}, files=2)
    world.cut()
    world.ingest({0: 64})
    world.assert_exact(world.cut(), engine)


def test_another_schema_begins_new_chunks_over_files_of_the_old_one(world: KeyedWorld):
    world.ingest({0: 40, 1: 25})
    world.tier({0: 30, 1: 20})
    world.merge({0: 20, 1: 10})
    world.cut()
    extra = Column(name="extra", type=parse_type("string"))
    world.evolve(ColumnChanges(add=(extra,), order=("extra",)))
    world.assert_exact(world.cut())
    world.ingest({0: 50, 1: 33})
    cut = world.cut()
    world.assert_exact(cut)
    world.assert_exact(cut, "DuckDB")


def test_a_revert_shows_what_the_older_version_shows(world: KeyedWorld):
    world.ingest({0: 40, 1: 25})
    world.tier({0: 30, 1: 20})
    world.merge({0: 20, 1: 10})
    version = world.head.version
    world.cut()
    world.merge({0: 30, 1: 20})
    world.cut()
    world.revert(version)
    world.assert_exact(world.cut())
    world.ingest({0: 44})
    world.merge({0: 25})
    world.assert_exact(world.cut())


def summary(cut: object) -> dict[str, str]:
    head = StaticTable.from_metadata(cut.metadata).current_snapshot()  # type: ignore[attr-defined]
    assert head is not None and head.summary is not None
    return {name: value for name, value in head.summary.additional_properties.items() if name.startswith("harness.")}


@pytest.fixture
def small(real: RealRig, tmp_path: Path) -> Iterator[KeyedWorld]:
    made = KeyedWorld(real, tmp_path, serve={"hot_rows": 15})
    yield made
    made.stores.close()


def test_over_the_limit_the_last_merge_is_shown_once_it_shows_as_much_as_the_last_cut(small: KeyedWorld):
    small.ingest({0: 12})
    fresh = small.cut()
    assert summary(fresh)["harness.freshness"] == "fresh"
    small.ingest({0: 20, 1: 20})
    small.pause()
    served = small.cutter.load(small.table.row)
    assert (served.cut.snapshot_id, served.made, served.behind) == (fresh.snapshot_id, False, 28)
    small.tier({0: 20, 1: 20})
    small.merge({0: 11})
    assert small.cut().snapshot_id == fresh.snapshot_id
    small.ingest({0: 32})
    small.tier({0: 32})
    small.merge({0: 12})  # as far as the last cut
    small.pause()
    merged = small.cutter.load(small.table.row)
    assert summary(merged.cut)["harness.freshness"] == "merged"
    assert summary(merged.cut)["harness.behind"] == "40"
    assert merged.behind == 40
    assert sum(small.seen(merged.cut).values()) == sum(o % 5 != 4 for o in _newest(12))
    small.merge({0: 32})
    cut = small.cut()
    assert summary(cut)["harness.freshness"] == "fresh"
    small.assert_exact(cut)


def _newest(high: int) -> set[int]:
    return set({offset * 7 % 11: offset for offset in range(high)}.values())


def test_a_table_may_want_to_be_refused_instead(real: RealRig, tmp_path: Path):
    world = KeyedWorld(real, tmp_path, serve={"hot_rows": 5, "over": "refuse"})
    world.ingest({0: 5})
    world.cut()
    world.ingest({0: 20})
    with pytest.raises(
        CutOverLimits, match=r"11 keys have a version above the batch view, .* up to 5 \(`serve.hot_rows`\)"
    ):
        world.cut()
    world.stores.close()
