"""Expire where files have several spellings: what is needed stays, whatever it is called."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.manifest import DataFile

from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.lake.files import FolderShared, LiveFilesUnlisted
from harness_pipelines.protocol.versions import Version
from harness_pipelines.spec.locations import local_path
from harness_pipelines_tests.contract import test_lake
from harness_pipelines_tests.contract.stores_rig import RealRig

RETENTION = {"versions": "1h"}
DAY_S = 86_400


def spelled_so(monkeypatch: pytest.MonkeyPatch, spell: Any) -> None:
    """Manifests name data files as *spell* says, as those of another writer may."""
    given = DataFile.from_args

    def args(*positional: Any, **named: Any) -> DataFile:
        return given(*positional, **{**named, "file_path": spell(named["file_path"])})

    monkeypatch.setattr(DataFile, "from_args", args)


def made_at(real: RealRig, monkeypatch: pytest.MonkeyPatch, warehouse: str, **spec: Any) -> TableRow:
    """A table whose views were made when the warehouse was spelled so."""
    monkeypatch.setattr(real.lake, "warehouse", warehouse)
    return real.table(partitions=1, files=True, retention=RETENTION, **spec)


def moved(real: RealRig, table: TableRow, low: int, high: int) -> Version:
    real.ingest(table, {0: (low, high)})
    claim = real.claim(table)
    published = test_lake.moved(real, table, claim, low, high)
    real.ledger.release(claim)
    return published


def old_files(folder: Path) -> set[Path]:
    """All files below *folder*, which were written long ago."""
    files = {path for path in folder.rglob("*") if path.is_file()}
    for path in files:
        os.utime(path, (path.stat().st_atime - DAY_S, path.stat().st_mtime - DAY_S))
    return files


def expired(real: RealRig, table: TableRow) -> list[str]:
    """What two runs of expire delete, a long time apart."""
    claim = real.claim(table, Stage.EXPIRE)
    try:
        return _two_runs(real, table, claim)
    finally:
        real.ledger.release(claim)


def _two_runs(real: RealRig, table: TableRow, claim: Claim) -> list[str]:
    upkeep: Any = real.upkeep
    upkeep.condemn(real.again(table))
    real.ask("UPDATE harness.condemned_files SET since = since - interval '1 day'")
    older = "UPDATE harness.moves SET planned_at = planned_at - interval '2 days' WHERE table_id = %s"
    real.ask(older, [table.table_id])
    deleted: list[str] = upkeep.delete_ripe(real.again(table), claim)
    return deleted


def needed(real: RealRig, table: TableRow, version: Version) -> list[Path]:
    view = real._lake.load(table, version.stream.metadata)
    head = view.metadata.current_snapshot()
    assert head is not None
    manifests = head.manifests(view.io)
    files = [e.data_file.file_path for m in manifests for e in m.fetch_manifest_entry(view.io)]
    found = [version.stream.metadata, head.manifest_list, *(m.manifest_path for m in manifests), *files]
    return [Path(local_path(path) or path) for path in found]


SPELLINGS = {
    "as Java writes it": lambda path: path.replace("file:///", "file:/"),
    "with slashes more": lambda path: path.replace("/data/", "//data/"),
    "with a dot": lambda path: path.replace("/data/", "/./data/"),
    "by a way round": lambda path: path.replace("/data/", "/data/../data/"),
    "without a scheme": lambda path: path.removeprefix("file://"),
    "with a host": lambda path: path.replace("file:///", "file://localhost/"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_live_file_that_its_manifest_spells_otherwise_is_not_deleted(
    real: RealRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spelling: str
):
    table = made_at(real, monkeypatch, tmp_path.as_uri())
    spelled_so(monkeypatch, SPELLINGS[spelling])
    version = moved(real, table, 0, 10)
    orphan = next(tmp_path.rglob("data")) / "orphan.parquet"
    orphan.touch()
    before = old_files(tmp_path)

    assert [Path(urlsplit(path).path) for path in expired(real, table) if path.endswith(".parquet")] == [orphan]

    assert before - old_files(tmp_path) >= {orphan}
    assert all(path.exists() for path in needed(real, table, version))


WAREHOUSES = {
    "twice slashed": "file://{}//lake",
    "dotted": "file://{}/./lake",
    "at its end": "file://{}/lake//",
    "round about": "file://{}/lake/../lake",
    "one slash": "file:{}/lake",
    "bare": "{}/lake",
    "space": "file://{}/my lake",
    "umlaut": "file://{}/Müller's lake",
    "per cent": "file://{}/my%20lake",
    "like the folder of metadata": "file://{}/metadata/lake",
    "through a link": "file://{}/link/lake",
}


@pytest.mark.parametrize("name", WAREHOUSES)
def test_a_table_that_was_made_when_the_warehouse_was_spelled_otherwise_keeps_its_files(
    real: RealRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    table = made_at(real, monkeypatch, WAREHOUSES[name].format(tmp_path))
    spelled_so(monkeypatch, lambda path: "file:" + os.path.normpath(local_path(path) or path))  # as Spark names them
    first, head = moved(real, table, 0, 10), moved(real, table, 10, 20)
    orphan = needed(real, table, head)[-1].with_name("orphan.parquet")
    orphan.touch()
    old_files(tmp_path)

    expired(real, table)

    assert all(path.exists() for version in (first, head) for path in needed(real, table, version))
    assert not orphan.exists()


def test_a_file_that_a_link_leads_to_is_not_deleted(real: RealRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    table = made_at(real, monkeypatch, f"file://{tmp_path}/link/lake")
    spelled_so(monkeypatch, lambda path: path.replace("/link/", "/disk/"))
    version = moved(real, table, 0, 10)
    old_files(tmp_path)

    expired(real, table)

    assert all(path.exists() for path in needed(real, table, version))


def test_a_live_file_with_a_spelling_that_nobody_knows_stops_expire(
    real: RealRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    table = made_at(real, monkeypatch, tmp_path.as_uri())
    spelled_so(monkeypatch, lambda path: path.replace("file://", "gopher://machine"))
    version = moved(real, table, 0, 10)
    before = old_files(tmp_path)

    with pytest.raises(LiveFilesUnlisted, match=r"parquet is listed.* under another path.*Nothing was removed"):
        expired(real, table)

    assert before == old_files(tmp_path)
    assert version.stream.metadata in {path.as_uri() for path in before}


def test_while_a_live_file_is_lost_nothing_is_removed(real: RealRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    table = made_at(real, monkeypatch, tmp_path.as_uri())
    moved(real, table, 0, 10)
    next(tmp_path.rglob("*.parquet")).unlink()
    (next(tmp_path.rglob("metadata")) / "orphan.avro").touch()
    before = old_files(tmp_path)

    with pytest.raises(LiveFilesUnlisted, match=r"expected to find .*parquet.*harness fsck"):
        expired(real, table)

    assert before == old_files(tmp_path)


def test_the_files_of_other_tables_are_not_those_of_a_table_in_a_namespace_that_is_called_metadata(
    real: RealRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    other = made_at(real, monkeypatch, tmp_path.as_uri())
    theirs = moved(real, other, 0, 10)
    table = made_at(
        real, monkeypatch, tmp_path.as_uri(), table="metadata.orders", views="both", layout={"columns": ["id"]}
    )
    moved(real, table, 0, 10)
    old_files(tmp_path)

    deleted = expired(real, table)

    assert all("/metadata/orders" in path for path in deleted)
    assert all(path.exists() for path in needed(real, other, theirs))


def test_a_file_that_was_condemned_outside_of_the_folders_of_the_table_is_not_deleted(
    real: RealRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    other, table = (made_at(real, monkeypatch, tmp_path.as_uri()) for _ in range(2))
    theirs = moved(real, other, 0, 10)
    for path in needed(real, other, theirs):
        key = [table.table_id, path.as_uri()]
        real.ask("INSERT INTO harness.condemned_files (table_id, path, bytes) VALUES (%s, %s, 1)", key)
    real.pass_time(timedelta(days=2))
    real.ask("UPDATE harness.condemned_files SET since = since - interval '1 day'")
    claim = real.claim(table, Stage.EXPIRE)

    assert real.upkeep.delete_ripe(real.again(table), claim) == []  # type: ignore[attr-defined]

    assert all(path.exists() for path in needed(real, other, theirs))
    assert real.ask("SELECT * FROM harness.condemned_files WHERE table_id = %s", [table.table_id]) == []


def test_a_folder_that_another_table_lies_in_is_not_looked_through(
    real: RealRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    other, table = (made_at(real, monkeypatch, tmp_path.as_uri()) for _ in range(2))
    moved(real, other, 0, 10)
    set_location(real, table, tmp_path.as_uri())
    before = old_files(tmp_path)

    with pytest.raises(FolderShared, match="has another table in it"):
        expired(real, table)

    assert before <= old_files(tmp_path)


def set_location(real: RealRig, table: TableRow, location: str) -> None:
    """As ALTER TABLE ... SET LOCATION of another engine does."""
    view = real._lake.load(table, real.ledger.pointer(table, "stream"))
    old = view.metadata_location
    with view.transaction() as transaction:
        transaction._apply((_located(location),), ())
    key = {"catalog": real.catalog.name, "namespace": table.spec.namespace, "view": table.tiered_view}
    assert real.database.run("ledger/move_pointer", {**key, "old": old, "new": view.metadata_location}) == 1


SHARED = {
    "the same folder": lambda theirs, _: theirs.as_uri(),
    "a folder in it": lambda theirs, _: (theirs / "data").as_uri(),
    "the same through a link": lambda theirs, link: link.as_uri(),
    "a folder in it through a link": lambda theirs, link: (link / "data").as_uri(),
    "one above through a link": lambda theirs, link: (link.parent / "above").as_uri(),
}


@pytest.mark.parametrize("which", SHARED)
def test_a_folder_of_another_table_is_never_looked_through_as_ones_own(
    real: RealRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, which: str
):
    lake = tmp_path / "lake"
    other, table = (made_at(real, monkeypatch, lake.as_uri()) for _ in range(2))
    theirs = moved(real, other, 0, 10)
    folder = Path(urlsplit(real._lake.load(other, theirs.stream.metadata).location()).path)
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "above").symlink_to(folder.parent)
    set_location(real, table, SHARED[which](folder, tmp_path / "link"))
    old_files(tmp_path)

    with pytest.raises(FolderShared, match="has another table in it|lies in the folder of another table"):
        expired(real, table)

    assert all(path.exists() for path in needed(real, other, theirs))


def test_files_that_no_table_wrote_are_left_alone(real: RealRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """What lies beside the folders of data and metadata is nobody's orphan, wherever a view was moved to."""
    table = made_at(real, monkeypatch, (tmp_path / "lake").as_uri())
    moved(real, table, 0, 10)
    home = tmp_path / "home"
    for kept in ("letter.txt", "orders-0a1b2c3d/data/dropped.parquet"):
        (home / kept).parent.mkdir(parents=True, exist_ok=True)
        (home / kept).write_text("mine")
    set_location(real, table, home.as_uri())
    old_files(tmp_path)

    expired(real, table)

    assert (home / "letter.txt").exists()
    assert (home / "orders-0a1b2c3d/data/dropped.parquet").exists()


def test_the_folder_that_a_view_was_moved_from_is_tidied_and_what_is_read_from_it_stays(
    real: RealRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    table = made_at(real, monkeypatch, (tmp_path / "lake").as_uri(), views="stream")
    moved(real, table, 0, 10)
    orphans = [next((tmp_path / "lake").rglob("data")) / "orphan.parquet"]
    set_location(real, table, (tmp_path / "elsewhere").as_uri())
    version = moved(real, table, 10, 20)
    orphans.append(next((tmp_path / "elsewhere").rglob("data")) / "orphan.parquet")
    for orphan in orphans:
        orphan.touch()
    old_files(tmp_path)

    expired(real, table)

    assert not any(orphan.exists() for orphan in orphans)
    files = needed(real, table, version)
    assert all(path.exists() for path in files)
    assert {path.relative_to(tmp_path).parts[0] for path in files} == {"lake", "elsewhere"}


def _located(location: str) -> Any:
    from pyiceberg.table.update import SetLocationUpdate

    return SetLocationUpdate(location=location)
