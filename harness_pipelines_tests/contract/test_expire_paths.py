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
    view = real._lake.load(table, real.ledger.pointer(table, "stream"))
    old = view.metadata_location
    with view.transaction() as transaction:  # as ALTER TABLE ... SET LOCATION of another engine does
        transaction._apply((_located(tmp_path.as_uri()),), ())
    key = {"catalog": real.catalog.name, "namespace": table.spec.namespace, "view": table.tiered_view}
    assert real.database.run("ledger/move_pointer", {**key, "old": old, "new": view.metadata_location}) == 1
    before = old_files(tmp_path)

    with pytest.raises(FolderShared, match="has another table in it"):
        expired(real, table)

    assert before <= old_files(tmp_path)


def _located(location: str) -> Any:
    from pyiceberg.table.update import SetLocationUpdate

    return SetLocationUpdate(location=location)
