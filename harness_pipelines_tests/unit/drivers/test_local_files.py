"""A listing of this machine: every file once, under the path that Iceberg gives it, and nothing that nobody asked."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from harness_pipelines.drivers import files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files, one of them through a link, an empty folder and a link that leads nowhere."""
    view = tmp_path / "a view"
    for name in ("data/one.parquet", "metadata/two.avro"):
        (view / name).parent.mkdir(parents=True, exist_ok=True)
        (view / name).write_bytes(b"12345")
    (view / "empty").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "three.parquet").write_bytes(b"1")
    (view / "linked").symlink_to(elsewhere)
    (view / "broken").symlink_to(tmp_path / "nowhere")
    return view


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose size and age were asked for."""
    found: list[str] = []
    stat = os.stat

    def noting(path: Any, *given: Any, **more: Any) -> os.stat_result:
        if str(path).endswith((".parquet", ".avro")):
            found.append(Path(path).name)
        return stat(path, *given, **more)

    monkeypatch.setattr(os, "stat", noting)
    return found


def names(folder: Path, **more: bool) -> set[str]:
    found = [file.path for file in files.listed(f"file://{folder}", **more)]
    assert len(found) == len(set(found))
    return {path.removeprefix(f"file://{folder}/") for path in found}


@pytest.mark.parametrize("sizes", [True, False])
def test_every_file_below_a_folder_is_listed_once_with_those_that_links_lead_to(folder: Path, sizes: bool):
    assert names(folder, sizes=sizes) == {"data/one.parquet", "metadata/two.avro", "linked/three.parquet"}


def test_without_sizes_a_file_is_asked_for_what_somebody_wants_to_know_and_once(folder: Path, asked: list[str]):
    found = {Path(file.path).name: file for file in files.listed(f"file://{folder}", sizes=False)}
    assert asked == []

    one = found["one.parquet"]
    os.utime(folder / "data/one.parquet", (1_000, 1_000))
    assert (one.bytes, one.modified) == (5, datetime.fromtimestamp(1_000, UTC))
    assert asked == ["one.parquet"]


def test_with_sizes_what_is_said_of_a_file_holds_though_it_goes_meanwhile(folder: Path):
    sizes = {}
    for file in files.listed(f"file://{folder}"):
        Path(file.path.removeprefix("file://")).unlink()
        sizes[Path(file.path).name] = file.bytes
    assert sizes == {"one.parquet": 5, "two.avro": 5, "three.parquet": 1}


def test_without_sizes_a_file_that_went_is_named_as_gone(folder: Path):
    [one] = [file for file in files.listed(f"file://{folder}", sizes=False) if file.path.endswith("one.parquet")]
    (folder / "data/one.parquet").unlink()
    with pytest.raises(FileNotFoundError):
        _ = one.bytes


def test_a_folder_that_is_not_there_has_no_files_or_is_an_error(tmp_path: Path):
    absent = (tmp_path / "absent").as_uri()
    assert list(files.listed(absent)) == []
    with pytest.raises(FileNotFoundError):
        list(files.listed(absent, allow_not_found=False))


def test_a_folder_that_cannot_be_read_is_an_error_and_not_empty(folder: Path, monkeypatch: pytest.MonkeyPatch):
    scandir = os.scandir

    def refusing(path: Any) -> Any:
        if str(path).endswith("data"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(PermissionError):
        list(files.listed(f"file://{folder}"))
