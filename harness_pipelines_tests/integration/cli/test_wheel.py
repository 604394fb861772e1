"""The wheel in an environment of its own, without extras: it reads what a checkout has written."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from harness_pipelines.errors import UsageError
from harness_pipelines_tests import wheel
from harness_pipelines_tests.integration.cli.conftest import GOOD, Cli

pytestmark = pytest.mark.long
Harness = Callable[..., subprocess.CompletedProcess[str]]
PYTHON = """
import os, sys, harness_pipelines as hp
with hp.connect() as harness:
    table = harness.table(os.environ["TABLE"])
    rows = table.read(columns=["id", "amount"], where="id < 10")
    assert sorted(rows["id"].to_pylist()) == list(range(10)), rows
    assert any(batch.rows.num_rows for batch in table.stream(follow=False))
    heavy = {"pyspark", "dagster", "matplotlib", "pandas", "pandera", "duckdb", "sqlalchemy"} & set(sys.modules)
    assert not heavy, heavy
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel.build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with the wheel alone."""
    return wheel.environment(tmp_path_factory.mktemp("reader") / "environment", built)


@pytest.fixture
def reader(harness: Cli, python: Path) -> Mapping[str, str]:
    """The environment of a reader of that home who has neither Java nor the jars."""
    return {"HARNESS_HOME": str(harness.home), "HOME": str(python.parents[1])}


def test_a_reader_s_environment_is_small(python: Path):
    assert wheel.size_mb(python.parents[1]) < wheel.READER_MB_MAX


def test_a_reader_reads_by_the_command_line_and_in_python(
    harness: Cli, table: str, python: Path, reader: Mapping[str, str]
):
    harness("run", table, "--until-idle")

    def ours(*words: str) -> str:
        done = wheel.run(python, "-m", "harness_pipelines.cli.main", *words, env=reader)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert len(json.loads(ours("read", table, "--json"))["rows"]) == GOOD
    assert json.loads(ours("fsck", table, "--json"))["ok"]
    assert table in ours("status", table)
    assert "batch" in ours("explain", table)
    assert table in ours("layout", table)
    assert len(ours("stream", table, "--limit", "5").splitlines()) == 5
    done = wheel.run(python, "-c", PYTHON, env={**reader, "TABLE": table})
    assert done.returncode == 0, done.stderr


def test_what_needs_more_names_its_extra(harness: Cli, table: str, python: Path, reader: Mapping[str, str]):
    harness("run", table, "--until-idle")
    for extra, words in {
        "sql": ["sql", f"SELECT * FROM {table}"],
        "spark": ["sql", "--engine", "spark", f"SELECT * FROM {table}"],
        "plot": ["layout", table, "--plot", "layout.png"],
        "dagster": ["dev"],
        "openlineage": ["events", table, "--subscriber", "lineage", "--openlineage"],
    }.items():
        done = wheel.run(python, "-m", "harness_pipelines.cli.main", *words, env=reader)
        assert done.returncode == UsageError.exit_code, done.stderr
        assert f"pip install 'harness-pipelines[{extra}]'" in done.stderr, extra


def test_it_installs_beside_a_dagster_of_the_user_s(built: Path, tmp_path: Path):
    """An older one of the range, and a pandas that we do not choose."""
    python = wheel.environment(tmp_path / "own", built, "dagster", beside=["dagster==1.13.5"], pinned=False)
    said = "import dagster, harness_pipelines.defs as defs; print(dagster.__version__, defs.Table.__name__)"
    done = wheel.run(python, "-c", said, env={"HOME": str(tmp_path)})
    assert done.stdout.split() == ["1.13.5", "Table"], done.stderr
