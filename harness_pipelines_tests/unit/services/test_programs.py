"""Finding Java, PostgreSQL and the jars; a program that is missing names itself and the way on."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness_pipelines.services import Services, ToolMissing
from harness_pipelines.services.base import Place
from harness_pipelines.services.java import jars, java_home, java_major
from harness_pipelines.services.postgres import find_binaries


def a_java(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").touch(mode=0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


def a_postgres(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True)
    for name in ("postgres", "initdb", "psql", "pg_isready"):
        (folder / name).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("25", 25), ("1.8.0_402", 1)])
def test_the_version_of_a_java_is_read_without_starting_it(tmp_path, version, major):
    assert java_major(a_java(tmp_path / "java", version)) == major


def test_a_java_too_new_for_spark_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "new", "25.0.1")))

    assert java_home() != tmp_path / "new"


def test_java_home_wins_where_its_version_fits(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "fits", "21.0.2")))

    assert java_home() == tmp_path / "fits"


def test_a_configured_folder_of_postgres_is_the_only_one_looked_into(tmp_path):
    with pytest.raises(ToolMissing, match=r"found in .*empty; nothing was started.*HARNESS_DSN"):
        find_binaries(tmp_path / "empty", None)


def test_the_programs_must_be_of_the_version_of_the_data(tmp_path):
    folder = a_postgres(tmp_path / "pg" / "bin", "15.3")

    assert find_binaries(folder, "15") == folder
    with pytest.raises(ToolMissing, match="of version 14 .the data in the home is of that version"):
        find_binaries(folder, "14")


def test_missing_jars_name_the_setting_and_the_script(tmp_path):
    with pytest.raises(ToolMissing, match=r"no jars for kafka in .*deploy/run.*HARNESS_JARS"):
        jars(Place(home=tmp_path, jars=tmp_path), "kafka")


@pytest.mark.parametrize(
    ("missing", "asked", "said"),
    [
        ("postgres", {"only": ["postgres"]}, "no PostgreSQL server programs"),
        ("jars", {"only": ["spark", "postgres"]}, "no jars for spark .*deploy/run"),
        (
            "s3",
            {"only": ["postgres"], "s3": True},
            "no versitygw .*nothing was started.* with Go; or put it into",
        ),
    ],
)
def test_a_missing_program_starts_nothing_of_what_is_asked_for(tmp_path, monkeypatch, missing, asked, said):
    found = a_postgres(tmp_path / "pg", "15.3")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "java", "21.0.2")))
    binaries = tmp_path if missing == "postgres" else found
    services = Services(tmp_path / "home", jars=tmp_path / "jars", postgres_binaries=binaries)

    with pytest.raises(ToolMissing, match=said):
        services.up(**asked)

    assert services.endpoints() is None
    assert [path.name for path in (tmp_path / "home").iterdir() if path.is_dir()] == []
