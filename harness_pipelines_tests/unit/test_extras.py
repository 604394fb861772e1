"""The package alone reads; what needs more says which extra has it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from harness_pipelines.errors import UsageError
from harness_pipelines.extras import MODULES, ExtraMissing, needs, require
from harness_pipelines_tests.wheel import READER_MB_MAX, installed_mb

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
#: What a reader never waits for, neither on its disk nor in an import.
NOT_FOR_READERS = {"dagster", "duckdb", "grpcio", "matplotlib", "pandas", "pandera", "pyspark", "sqlalchemy", "sqlglot"}
#: What cannot be imported without its extra.
GUARDED = (
    "harness_pipelines.app.doctor.spark_trial",
    "harness_pipelines.defs",
    "harness_pipelines.engines.duckdb",
    "harness_pipelines.engines.spark",
    "harness_pipelines.formats.debezium.avro",
    "harness_pipelines.formats.json.json_schema",
    "harness_pipelines.formats.schema.avro",
    "harness_pipelines.formats.schema.codec",
    "harness_pipelines.formats.schema.proto_unknown",
    "harness_pipelines.formats.schema.protobuf",
    "harness_pipelines.lakes.iceberg.catalogs.glue",
    "harness_pipelines.read.report.openlineage",
    "harness_pipelines.serve.flight",
    "harness_pipelines.show.top_screen",
)


def without_extras(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness_pipelines_tests.without_extras", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_module_imports_without_extras_but_for_those_that_name_theirs():
    done = without_extras("modules")
    raised: dict[str, list[str]] = json.loads(done.stdout)
    assert sorted(raised) == list(GUARDED)
    assert {kind for kind, _ in raised.values()} == {"ExtraMissing"}
    assert [
        said for _, said in raised.values() if not re.search(r"`pip install 'harness-pipelines\[\w+\]'`", said)
    ] == []


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["sql", "SELECT * FROM shop.orders"], "sql"),
        (["sql", "--engine", "spark", "SELECT * FROM shop.orders"], "spark"),
        (["dev"], "dagster"),
        (["--home", "unused", "services", "up", "--only", "spark"], "local"),
        (["chaos", "--yes"], "local"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_command_that_needs_an_extra_is_wrong_usage_without_it(tmp_path: Path, command: list[str], extra: str):
    done = without_extras("harness", *[str(tmp_path / "home") if word == "unused" else word for word in command])
    assert done.returncode == UsageError.exit_code, done.stderr
    assert f"pip install 'harness-pipelines[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_needs_no_extra():
    done = without_extras("harness", "--help")
    assert (done.returncode, done.stderr) == (0, "")


def test_only_what_belongs_to_the_extra_is_told_as_missing():
    said = r"A picture needs .* matplotlib.*`pip install 'harness-pipelines\[plot\]'`"
    with pytest.raises(ExtraMissing, match=said), needs("plot", "A picture"):
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib.pyplot")
    with pytest.raises(ModuleNotFoundError, match="of_its_own"), needs("plot", "A picture"):
        raise ModuleNotFoundError("No module named 'of_its_own'", name="of_its_own")
    with pytest.raises(ExtraMissing, match="not_there"):
        require("plot", "A picture", "not_there")


def test_a_reader_gets_nothing_that_only_writers_need():
    assert {Requirement(one).name for one in PROJECT["dependencies"]} & NOT_FOR_READERS == set()


def test_every_extra_that_the_code_names_is_one():
    assert set(MODULES) <= set(EXTRAS)
    named = re.findall(
        r"(?:needs|require|ExtraMissing|pip_install)\(\s*['\"]([\w-]+)['\"]",
        "".join(path.read_text() for path in (ROOT / "harness_pipelines").rglob("*.py")),
    )
    assert len(named) > 12
    assert set(named) <= set(EXTRAS)


def test_the_package_leaves_users_their_versions():
    asked = [Requirement(one) for one in [*PROJECT["dependencies"], *(r for extra in EXTRAS.values() for r in extra)]]
    assert [str(one) for one in asked if any(part.operator in {"==", "==="} for part in one.specifier)] == []


def test_all_has_every_extra_that_goes_together():
    [everything] = [Requirement(one) for one in EXTRAS["all"]]
    assert everything.extras == set(EXTRAS) - {"all", "connect", "test"}


def test_every_package_of_an_extra_has_a_version_in_the_constraints():
    pinned = {line.partition("==")[0] for line in (ROOT / "deploy/constraints.txt").read_text().split()}
    asked = {Requirement(one).name for group in [PROJECT["dependencies"], *EXTRAS.values()] for one in group}
    assert asked - pinned - {"harness-pipelines"} == set()


def test_sizes_of_the_extras_are_those_of_all_that_they_need():
    sizes = installed_mb()
    alone = sizes.pop("")
    assert 200 < alone < READER_MB_MAX
    assert set(sizes) == set(EXTRAS) - {"connect", "test"}, "connect and spark are never installed together"
    assert all(size > alone for size in sizes.values())
    assert sizes["all"] > sizes["demo"] > sizes["local"] >= sizes["spark"] > alone + 300
