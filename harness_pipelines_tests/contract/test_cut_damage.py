"""A table whose newest cut lost a file is served again by the next load, and by each other server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from harness_pipelines.lakes.iceberg.checked_io import KEPT
from harness_pipelines.ports.serving.cuts import Cut
from harness_pipelines_tests.contract.cut_rig import CutWorld
from harness_pipelines_tests.contract.stores_rig import RealRig

pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option.*not implemented:UserWarning")
KINDS: dict[str, Callable[[str], bool]] = {
    "metadata": lambda name: name.endswith(".metadata.json"),
    "manifest list": lambda name: name.startswith("snap-"),
    "manifest": lambda name: name.endswith("-m0.avro"),
    "chunk": lambda name: name.endswith("-chunk.parquet"),
    "deletes": lambda name: name.endswith("-deletes.parquet"),
}


@pytest.fixture
def world(real: RealRig, tmp_path: Path) -> Iterator[CutWorld]:
    """Rows in both views, in the buffer, and hidden ones."""
    made = CutWorld(real, tmp_path, views="both", layout={"columns": ["id"], "sample": 0})
    made.ingest({0: 40, 1: 25})
    made.tier({0: 30, 1: 20})
    made.merge({0: 10, 1: 12})
    yield made
    made.stores.close()


def path(location: str) -> Path:
    return Path(urlsplit(location).path)


def file_of(cut: Cut, kind: str) -> Path:
    return next(path(one) for one in cut.files if KINDS[kind](path(one).name))


def lose(file: Path) -> None:
    file.unlink()


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("kind", "damage"),
    [*((kind, lose) for kind in KINDS), *((kind, cut_off) for kind in KINDS if kind != "deletes")],
)
def test_a_resting_table_is_served_by_another_cut_once_a_file_of_the_newest_is_damaged(
    world: CutWorld, kind: str, damage: Callable[[Path], None]
):
    cut = world.cut()
    world.assert_exact(cut)
    damage(file_of(cut, kind))
    other = world.server()  # as the first one does after some seconds

    again = other.load(world.table.row)

    assert again.made and again.cut.sequence > cut.sequence and again.cut.timestamp_ms > cut.timestamp_ms
    assert not {*cut.files} & {*again.cut.files}, "it goes on from none of its files"
    world.assert_exact(again.cut)
    assert world.server().load(world.table.row).cut.sequence == again.cut.sequence


@pytest.mark.parametrize("kind", ["chunk", "deletes", "manifest"])
def test_no_cut_of_a_table_that_moves_names_a_lost_file_again(world: CutWorld, kind: str):
    cut = world.cut()
    lose(file_of(cut, kind))
    world.ingest({0: 41})

    again = world.server().load(world.table.row)

    assert again.made and not {*cut.files} & {*again.cut.files}
    world.assert_exact(again.cut)


@pytest.mark.parametrize("kind", KINDS)
def test_fsck_reads_the_newest_cut_and_names_what_is_lost_of_it(world: CutWorld, kind: str):
    cut = world.cut()
    assert world.fsck() == {}
    listed = world.stores.cut_files.listed(cut.metadata)
    assert (listed.snapshot_id, listed.version, listed.bounds) == (cut.snapshot_id, cut.version, cut.bounds)
    hidden = [sum(one.hidden.values()) for one in listed.deletes]
    assert sum(hidden) == 22, "the merged rows in the stream view"
    assert {one.path for one in listed.data} == {path for one in listed.deletes for path in one.hidden}
    lost = file_of(cut, kind)
    lost.unlink()
    assert [*world.fsck()] == ["F3"]
    assert lost.name in "".join(world.fsck()["F3"])


def test_fsck_finds_metadata_that_was_changed(world: CutWorld):
    """As its file is now, whatever this process has read of it before."""
    cut = world.cut()
    assert world.fsck() == {}
    told = json.loads(path(cut.metadata).read_bytes())
    summary = told["snapshots"][0]["summary"]
    for word, value, invariant in (
        ("harness.freshness", "", "F9"),
        ("harness.version", "1", "F2"),
        ("harness.bounds", '{"0":[0,10,30,39],"1":[0,12,20,25]}', "F2"),
    ):
        changed = {**told, "snapshots": [{**told["snapshots"][0], "summary": {**summary, word: value}}]}
        path(cut.metadata).write_text(json.dumps(changed))
        assert invariant in world.fsck(), word


def test_a_chunk_whose_content_changed_is_found_when_its_rows_are_written_again(world: CutWorld):
    """Its size is the same, so that nothing shows before."""
    cut = world.cut()
    KEPT.clear()  # the server that wrote it has its rows in memory
    chunk = file_of(cut, "chunk")
    chunk.write_bytes(bytes(len(chunk.read_bytes())))
    world.ingest({0: 80})
    again = world.server().load(world.table.row)
    assert again.made and chunk not in {path(one) for one in again.cut.files}
    world.assert_exact(again.cut)


def test_what_the_ledger_has_of_a_cut_and_is_not_understood_keeps_no_server_from_the_next_one(world: CutWorld):
    """As a reader's login may write it: the texts of the lake are not looked into by the ledger."""
    for change in (
        "chunks = jsonb_set(chunks, '{0,entry}', '\"no json\"')",
        "chunks = jsonb_set(chunks, '{0,entry}', '\"{}\"')",
        'chunks = jsonb_set(chunks, \'{0,entry}\', \'"{\\"path\\": \\"file:///etc/passwd\\"}"\')',
        "parts = jsonb_set(parts, '{other,manifests}', '\"[]\"')",
    ):
        world.cut()
        high = max(b.buffer_hi for b in world.stores.segments.positions(world.row).values())
        world.rig.ask("UPDATE harness.cuts SET retired_at = '2001-01-01' WHERE retired_at IS NOT NULL")
        world.rig.ask(f"UPDATE harness.cuts SET {change} WHERE chunks <> '[]' AND table_id = {world.row.table_id}")
        world.ingest({0: high + 1})
        again = world.server().load(world.table.row)
        assert again.made
        world.assert_exact(again.cut)
