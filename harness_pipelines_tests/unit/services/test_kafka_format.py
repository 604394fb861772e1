"""The embedded Kafka formats an empty folder, never one with records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness_pipelines.services import kafka
from harness_pipelines.services.base import Place, ServicesError
from harness_pipelines.services.kafka import Kafka
from harness_pipelines.services.process import Launch

ZIPS = """
from harness_pipelines.engines.spark.executors.tasks import package_zip
print(package_zip(), package_zip(), sep="\\n")
"""


@pytest.mark.parametrize(
    ("kept", "content"),
    [
        ("orders-0/00000000000000000000.log", b"records"),
        ("orders-0/00000000000000000000.log", b""),  # a topic that nobody wrote to yet, or an emptied one
        ("orders-0/00000000000000000007.snapshot", b"x"),
        ("__cluster_metadata-0/00000000000000000000-0000000000.checkpoint", b"x"),
        ("recovery-point-offset-checkpoint", b"0\n"),
        ("letters.txt", b"of somebody else"),
    ],
)
def test_a_folder_with_anything_in_it_and_no_meta_properties_is_left_as_it_is(
    tmp_path: Path, kept: str, content: bytes
):
    data = tmp_path / "kafka" / "data"
    (data / kept).parent.mkdir(parents=True)
    (data / kept).write_bytes(content)

    with pytest.raises(
        ServicesError, match=f"no meta.properties.*{kept.split('/', maxsplit=1)[0]}.*nothing was started or removed"
    ):
        Kafka(Place(home=tmp_path, jars=None)).prepare((1, 2), lambda _: None)

    assert (data / kept).read_bytes() == content


def test_what_a_format_that_was_cut_off_leaves_is_formatted_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = tmp_path / "kafka" / "data"
    data.mkdir(parents=True)
    for name in ("bootstrap.checkpoint", "meta.properties.tmp", ".lock"):
        (data / name).write_bytes(b"half")
    formatted: list[Launch] = []

    def ended(what: Launch) -> subprocess.CompletedProcess[str]:
        formatted.append(what)
        return subprocess.CompletedProcess(what.command, 0, "", "")

    monkeypatch.setattr(kafka, "run", ended)
    monkeypatch.setattr(kafka, "jars", lambda place, kind: tmp_path)
    Kafka(Place(home=tmp_path, jars=None)).prepare((1, 2), lambda _: None)

    assert len(formatted) == 1
    assert not data.exists()


@pytest.mark.parametrize("name", ["plain", "with space", "Jürgen's", 'a "quoted" one', "back\\slash", "a,b"])
def test_no_path_of_a_home_is_in_the_settings_where_kafka_would_read_it_otherwise(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    home = tmp_path / name
    data = home / "kafka" / "data"
    data.mkdir(parents=True)
    (data / "meta.properties").touch()
    monkeypatch.setattr(kafka, "jars", lambda place, kind: home)
    Kafka(Place(home=home, jars=None)).prepare((1, 2), lambda _: None)
    settings = (home / "kafka" / "server.properties").read_text()
    assert str(tmp_path) not in settings
    assert "\nlog.dirs=data\n" in settings
    assert settings.isascii()


def test_the_package_is_zipped_once_per_process_and_gone_with_it():
    said = subprocess.run([sys.executable, "-c", ZIPS], capture_output=True, text=True, check=True).stdout.split()
    assert said[0] == said[1]
    assert not Path(said[0]).parent.exists()
