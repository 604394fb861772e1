"""Views of wide topics: few files, and each says exactly what it has of each partition."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.lakes.iceberg.catalog import is_wide
from harness_pipelines.lakes.iceberg.read.in_order import NotInOrder, scan_in_order
from harness_pipelines.lakes.iceberg.read.scan import pinned, scan, stored_in
from harness_pipelines.lakes.iceberg.write import checks, extents
from harness_pipelines.lakes.iceberg.write.corrections import written
from harness_pipelines.lakes.iceberg.write.foreign import foreign_files
from harness_pipelines.ports.errors import StagedWrong
from harness_pipelines.ports.lake import LakeFile
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.coordinates import OFFSET, PARTITION
from harness_pipelines.protocol.lake.wide import EXTENTS_ID, NARROW_MAX
from harness_pipelines.protocol.moves import Move, MoveState
from harness_pipelines.protocol.reading.queries import LakeColumn, LakeQuery, LakeStats
from harness_pipelines.protocol.topics import FOREIGN_PARTITION
from harness_pipelines_tests.unit.lakes.cut_rig import (
    COLUMNS,
    CutRig,
    Places,
    assert_same,
    in_order,
    rows,
    run,
    within,
)

WIDE = 40
PLACES = [LakeColumn(name=PARTITION, field_id=None), LakeColumn(name=OFFSET, field_id=None)]


def places(partitions: int, low: int, high: int) -> Places:
    return [place for p in range(partitions) for place in run(p, low, high)]


def wide(folder: Path, *, partitions: int = WIDE, moves: int = 3, **words: Any) -> CutRig:
    """A table of which each move has two rows of each partition."""
    rig = CutRig(folder, COLUMNS, partitions=partitions, **words)
    for move in range(moves):
        rig.append("stream", rows(places(partitions, 2 * move, 2 * move + 2)))
    for p in range(partitions):
        rig.at(p, 0, 0, 2 * moves, 2 * moves)
    return rig


def query(ranges: dict[int, tuple[int, int]]) -> LakeQuery:
    return LakeQuery(table="t", version=1, ranges=ranges, columns=PLACES)


def found(rig: CutRig, ranges: dict[int, tuple[int, int]]) -> tuple[list[tuple[int, int]], LakeStats]:
    stats = LakeStats()
    parts = list(scan(rig.pointers.at["stream"], query(ranges), stats))
    return [tuple(place.values()) for part in parts for place in part.to_pylist()], stats


def live(rig: CutRig) -> list[LakeFile]:
    return list(pinned(rig.pointers.at["stream"]).files)


def test_a_thousand_partitions_are_one_file_for_each_move(tmp_path: Path):
    rig = wide(tmp_path, partitions=1_000, moves=4, views="stream")

    files = live(rig)

    assert len(files) == 4
    assert all(len(f.runs or ()) == 1_000 for f in files)
    assert {(r.low, r.high, r.rows) for r in files[1].runs or ()} == {(files[1].low, files[1].high, 2)}
    assert rig.read().num_rows == 8_000


def test_up_to_a_number_of_partitions_each_has_a_file(tmp_path: Path):
    rig = wide(tmp_path, partitions=NARROW_MAX, moves=1, views="stream")

    assert len(live(rig)) == NARROW_MAX
    assert all(f.extents is None and f.partition is not None for f in live(rig))


def test_only_files_that_have_the_offsets_are_opened(tmp_path: Path):
    rig = wide(tmp_path, views="stream")

    one, stats = found(rig, {7: (2, 4)})
    assert (sorted(one), stats.files_opened, stats.files_straddling) == ([(7, 2), (7, 3)], 1, 1)
    none, stats = found(rig, {WIDE: (0, 100)})
    assert (none, stats.files_opened) == ([], 0)
    every = {p: (2, 4) for p in range(WIDE)}
    two, stats = found(rig, every)
    assert (sorted(two), stats.files_opened, stats.files_straddling) == (places(WIDE, 2, 4), 1, 0)


def test_a_file_that_reaches_over_some_ranges_gives_the_rows_of_these(tmp_path: Path):
    rig = wide(tmp_path, views="stream")
    ranges = {p: (p % 5, 3 + p % 4) for p in range(0, WIDE, 3)}

    wanted = [(p, o) for p, o in places(WIDE, 0, 6) if p in ranges and ranges[p][0] <= o < ranges[p][1]]

    assert sorted(found(rig, ranges)[0]) == wanted
    assert stored_in(rig.pointers.at["stream"], ranges).rows == len(wanted)


def in_offset_order(rig: CutRig, columns: list[LakeColumn]) -> list[tuple[int, int]]:
    asked = replace(query({p: (0, 100) for p in range(rig.partitions)}), columns=columns)
    got: list[tuple[int, int]] = []
    for part in scan_in_order(rig.pointers.at["stream"], asked, LakeStats()):
        got += [(part.partition, offset) for offset in part.rows.column(OFFSET).to_pylist()]
    return got


@pytest.mark.parametrize("columns", [PLACES, PLACES[1:]], ids=["partition", "offset"])
def test_rows_come_in_offset_order_of_each_partition(tmp_path: Path, columns: list[LakeColumn]):
    rig = wide(tmp_path, views="stream")
    rig.append("stream", rows([(3, 10), (8, 10)]))
    rig.append("stream", rows([(3, 7), (8, 12)]))
    rig.hide("stream", {5: (1, 3)})

    got = in_offset_order(rig, columns)

    wanted = [place for place in places(WIDE, 0, 6) if place not in {(5, 1), (5, 2)}]
    assert sorted(got) == sorted([*wanted, (3, 10), (8, 10), (3, 7), (8, 12)])
    for partition in range(WIDE):
        offsets = [o for p, o in got if p == partition]
        assert offsets == sorted(offsets)


def test_a_view_that_does_not_say_it_has_no_offset_order(tmp_path: Path):
    rig = CutRig(tmp_path, COLUMNS, partitions=WIDE)
    rig.append("batch", rows(places(WIDE, 0, 2)), reaches=dict.fromkeys(range(WIDE), 2))

    with pytest.raises(NotInOrder):
        list(scan_in_order(rig.pointers.at["batch"], query({0: (0, 9)}), LakeStats()))


# -- cuts, which other engines read --------------------------------------------------------------------------


@pytest.mark.parametrize("views", ["both", "stream"])
def test_a_cut_has_what_a_read_has(tmp_path: Path, views: str):
    rig = wide(tmp_path, views=views)
    for p in range(WIDE):
        rig.at(p, 0, 3 if views == "both" else 0, 5 + p % 2, 8)
    if views == "both":
        rig.append("batch", rows(places(WIDE, 0, 3)))
    rig.hide("stream", {4: (3, 4), 9: (4, 6)})
    rig.buffer = rows(places(WIDE, 4, 8))

    assert_same(rig, rig.cut())


# -- what a publish checks ----------------------------------------------------------------------------------


def staged(rig: CutRig, where: Places) -> list[DataFile]:
    current = rig.lake.load(rig.table, rig.pointers.at["stream"])
    return written(
        current, conformed(rows(where).select(current.schema().as_arrow().names), current.schema().as_arrow())
    )


def move_of(ranges: dict[int, tuple[int, int]]) -> Move:
    return Move(
        move_id=1,
        table_id=7,
        stage=Stage.TIER,
        shard=0,
        lo={p: low for p, (low, _) in ranges.items()},
        hi={p: high for p, (_, high) in ranges.items()},
        base_version=1,
        schema_version=1,
        attempt=1,
        state=MoveState.PLANNED,
        epoch=1,
    )


@pytest.mark.parametrize(
    ("where", "fits"),
    [
        ([(0, 5), (1, 9)], True),
        ([(0, 5), (1, 10)], False),
        ([(0, 4), (1, 9)], False),
        ([(0, 9), (1, 5)], False),  # the hull over all partitions would allow this one
        ([(0, 5), (2, 5)], False),
    ],
)
def test_a_staged_file_lies_inside_the_move_in_each_partition(tmp_path: Path, where: Places, fits: bool):
    rig = wide(tmp_path, moves=0, views="stream")
    view = rig.lake.load(rig.table, rig.pointers.at["stream"])
    files = [(file, checks.offset_bounds(file, view)) for file in staged(rig, where)]
    move = move_of({0: (5, 7), 1: (8, 10)})

    if fits:
        checks.check_inside(rig.table, move, files, rows=len(where))
        return
    with pytest.raises(StagedWrong, match="outside the move; nothing was published"):
        checks.check_inside(rig.table, move, files, rows=len(where))


def test_nothing_may_lie_above_the_bound_of_a_partition(tmp_path: Path):
    rig = wide(tmp_path, views="stream")
    rig.append("stream", rows([(3, 50)]))
    view = rig.lake.load(rig.table, rig.pointers.at["stream"])

    checks.check_no_overlap(rig.table, view, move_of({p: (6, 9) for p in range(WIDE) if p != 3}))
    with pytest.raises(checks.ForeignFiles, match="offset 50 of partition 3"):
        checks.check_no_overlap(rig.table, view, move_of({3: (6, 9)}))


def test_a_file_that_does_not_say_it_is_of_another_writer(tmp_path: Path):
    rig = wide(tmp_path, views="stream")
    view = rig.lake.load(rig.table, rig.pointers.at["stream"])
    schema = view.schema().as_arrow()
    view.append(conformed(rows([(0, 1)]).select(schema.names), schema))

    with pytest.raises(checks.ForeignFiles, match="does not say what it has of each partition"):
        checks.check_no_overlap(rig.table, view, move_of({0: (6, 9)}))


def test_rows_of_another_writer_that_are_accepted_say_what_they_are(tmp_path: Path):
    rig = wide(tmp_path, views="stream")
    published, view = (rig.lake.load(rig.table, rig.pointers.at["stream"]) for _ in range(2))
    schema = view.schema().as_arrow()
    view.append(conformed(rows([(0, 1), (5, 2)]).select(schema.names), schema))
    found = foreign_files(view, published)
    assert found is not None

    taken = found.replaced(move_id=1, nonce="n", first=0, schema_version=1)

    own = [f.runs or () for f in pinned(taken.metadata).files if f.run_of(FOREIGN_PARTITION) is not None]
    assert [[(r.partition, r.low, r.high, r.rows) for r in runs] for runs in own] == [[(FOREIGN_PARTITION, 0, 2, 2)]]
    now = rig.lake.load(rig.table, taken.metadata)
    checks.check_no_overlap(rig.table, now, move_of({p: (6, 9) for p in range(WIDE)}))


def test_rows_in_another_order_are_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rig = wide(tmp_path, moves=0, views="stream")
    monkeypatch.setattr(extents, "in_order", lambda view, found: found)

    with pytest.raises(StagedWrong, match="expected rows by partition and offset"):
        staged(rig, [(1, 5), (0, 5)])


def test_extents_outlive_changes_of_the_view(tmp_path: Path):
    rig = wide(tmp_path, moves=30, views="stream")  # manifests were merged on the way

    assert all(f.extents is not None for f in live(rig))
    assert is_wide(rig.lake.load(rig.table, rig.pointers.at["stream"]).metadata)
    assert all(column < EXTENTS_ID for column in rig.lake.load(rig.table, rig.pointers.at["stream"]).schema().field_ids)


def test_masks_are_those_of_the_rows(tmp_path: Path):
    rig = wide(tmp_path, views="stream")
    files = pinned(rig.pointers.at["stream"]).files
    told = in_order(rows(places(WIDE, 0, 6)))
    random = np.random.default_rng(3)
    for _ in range(50):
        chosen = random.choice(WIDE, random.integers(0, WIDE), replace=False).tolist()
        ranges = {p: tuple(sorted(random.integers(0, 8, 2).tolist())) for p in chosen}
        wanted: pa.Table = within(told, ranges)
        assert int(files.overlapping(ranges).sum()) == len(set((wanted[OFFSET].to_numpy() // 2).tolist()))
        inside = [
            all(p in ranges and ranges[p][0] <= r.low and r.high <= ranges[p][1] for p, r in _runs(f)) for f in files
        ]
        assert files.inside(ranges).tolist() == inside
    assert not files.mixed.any()


def _runs(file: LakeFile) -> list[tuple[int, Any]]:
    return [(r.partition, r) for r in file.runs or ()]
