"""What no cut is made of: files that are damaged or gone, and plans and views that it cannot show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness_pipelines.lakes.iceberg.checked_io import KEPT
from harness_pipelines.lakes.iceberg.cuts.folder import common_folder
from harness_pipelines.lakes.iceberg.read.scan import pinned
from harness_pipelines.ports.errors import LakeFileBroken, LakeFileMissing
from harness_pipelines.ports.serving.cuts import CutDamaged, CutImpossible
from harness_pipelines.protocol.reading.plan import LakePart
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests import lake_files
from harness_pipelines_tests.unit.lakes.cut_rig import NOW_MS, CutRig, full


@pytest.fixture
def rig(tmp_path: Path) -> CutRig:
    return full(tmp_path / "lake")


# -- damage -------------------------------------------------------------------------------------------------


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]


@pytest.mark.parametrize("damage", ["its end", "another file"])
def test_a_chunk_that_was_damaged_is_named(rig: CutRig, damage: str):
    chunk, other = rig.chunk({0: (30, 40)}), rig.chunk({0: (30, 35)})
    content = lake_files.content(chunk.path)
    broken = {
        "its end": content[:-30],
        "another file": lake_files.content(other.path),
    }[damage]
    lake_files.put(chunk.path, broken)
    KEPT.clear()  # another server reads it
    with pytest.raises(CutDamaged, match=Path(chunk.path).name):
        rig.cuts.read_chunk(rig.table, rig.plan(), chunk)


def test_a_chunk_with_a_damaged_byte_is_named_or_has_the_same_rows(rig: CutRig):
    """Statistics and gaps of a file are in no checksum. They change no value."""
    chunk = rig.chunk({0: (30, 40)})
    content = lake_files.content(chunk.path)
    rows = rig.cuts.read_chunk(rig.table, rig.plan(), chunk)
    named = 0
    for at in range(4, len(content), 11):
        lake_files.put(chunk.path, flipped(content, at))
        KEPT.clear()
        try:
            assert rig.cuts.read_chunk(rig.table, rig.plan(), chunk).equals(rows), at
        except CutDamaged as damage:
            assert Path(chunk.path).name in str(damage)
            named += 1
    assert named > len(content) / 11 / 2


def test_a_chunk_that_is_gone_is_named(rig: CutRig):
    chunk = rig.chunk({0: (30, 40)})
    lake_files.remove(chunk.path)
    KEPT.clear()
    with pytest.raises(CutDamaged, match=Path(chunk.path).name):
        rig.cuts.read_chunk(rig.table, rig.plan(), chunk)


def test_a_file_that_straddles_and_is_damaged_is_named_and_no_cut_is_made(rig: CutRig):
    straddling = next(f for f in pinned(rig.pointers.at["stream"]).files if f.partition == 0 and f.low == 10)
    content = lake_files.content(straddling.path)
    lake_files.put(straddling.path, content[:-30])
    with pytest.raises(LakeFileBroken, match=Path(straddling.path).name):
        rig.cut(chunks=[])
    lake_files.remove(straddling.path)
    with pytest.raises(LakeFileMissing, match=Path(straddling.path).name):
        rig.cut(chunks=[])


def test_a_manifest_of_the_stream_view_that_is_damaged_is_named(rig: CutRig):
    path = next(path for path in pinned(rig.pointers.at["stream"]).manifests if not Path(path).name.startswith("snap-"))
    lake_files.put(path, lake_files.content(path)[:-10])
    KEPT.clear()
    with pytest.raises(LakeFileBroken, match=Path(path).name):
        rig.cut(chunks=[])


# -- what is no cut -----------------------------------------------------------------------------------------


def test_a_plan_that_reads_a_later_views_rows_is_refused(rig: CutRig):
    plan = rig.plan()
    later = LakePart(metadata=rig.pointers.at["stream"], low={0: 30}, high={0: 40})
    old = replace(plan, lake=(*plan.lake, later), buffer=None)
    with pytest.raises(CutImpossible, match="in a later version's view by now"):
        rig.cuts.write_cut(rig.table, rig.version(), old, chunks=[], previous=None, bounds={}, makers=(), now_ms=NOW_MS)


def test_views_that_give_a_column_different_ids_are_refused(rig: CutRig):
    """Of a batch view that an earlier release began again after a change of columns."""
    rig.evolve(ColumnChanges(drop=("s",), add=(Column(name="t", type=parse_type("string")),)))
    views, _ = rig.lake.make_views(rig.table.spec, rig.table.fields)
    rig.pointers.at["batch"] = views["batch"].metadata
    with pytest.raises(CutImpossible, match="have other columns: of the id"):
        rig.cut(chunks=[])


def test_folders_without_a_common_one_are_refused():
    assert common_folder("file:///a/b/c", "file:///a/b/d", "file:///a/b/c/e") == "file:///a/b"
    assert common_folder("file:///a/b/c", "file:///a/bc/d") == "file:///a"
    assert common_folder("s3://lake/ns/a", "s3://lake/ns/b") == "s3://lake/ns"
    for several in (["file:///a/b", "file:///c/d"], ["s3://a/ns/v", "s3://b/ns/v"], ["s3://a/v", "file:///a/v"]):
        with pytest.raises(CutImpossible, match="no folder in common"):
            common_folder(*several)
