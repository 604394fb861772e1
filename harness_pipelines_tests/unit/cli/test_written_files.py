"""Files that commands write: whole or not at all, with the right permissions, and never in the place of a device."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import click
import pytest

from harness_pipelines.show.output import emit, replacing


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def write(path: Path, content: bytes) -> None:
    with replacing(path) as sink:
        sink.write(content)


def test_a_file_changes_only_once_all_is_written(tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b"before")
    with pytest.raises(ValueError, match="half"), replacing(path) as sink:
        sink.write(b"after")
        raise ValueError("half of it")
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["rows.csv"]


def test_a_file_keeps_its_permissions_and_a_new_one_has_those_of_the_process(tmp_path: Path):
    kept, new = tmp_path / "kept", tmp_path / "new"
    kept.write_bytes(b"")
    kept.chmod(0o600)
    before = os.umask(0o027)
    try:
        write(kept, b"a")
        write(new, b"b")
    finally:
        os.umask(before)
    assert (mode(kept), mode(new)) == (0o600, 0o640)


def test_a_link_goes_on_leading_to_its_file(tmp_path: Path):
    (tmp_path / "far").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "far" / "rows")
    write(link, b"a")
    assert link.is_symlink()
    assert (tmp_path / "far" / "rows").read_bytes() == b"a"


def test_a_pipe_stays_one_and_gets_what_is_written(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write(pipe, b"rows")
    reader.join(60)
    assert read == [b"rows"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_one(tmp_path: Path):
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    write(link, b"rows")
    emit({"a": 1}, str(link))
    assert link.is_symlink()
    assert stat.S_ISCHR(link.stat().st_mode)


def test_json_with_a_secret_is_read_by_its_owner_alone(tmp_path: Path):
    path = tmp_path / "token.json"
    path.write_text("{}")
    path.chmod(0o644)
    emit({"secret": "x"}, str(path), is_private=True)
    assert mode(path) == 0o600
    emit({"a": 1}, str(tmp_path / "open.json"))
    assert mode(tmp_path / "open.json") & 0o400
    with pytest.raises(click.FileError):
        emit({"a": 1}, str(tmp_path))
