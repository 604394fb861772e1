"""What an application on a cluster asks for, and how long it waits for executors."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from harness_pipelines.engines.spark.executors_away import Patience
from harness_pipelines.engines.spark.session import CLUSTER_DEFAULTS as DEFAULTS
from harness_pipelines.engines.spark.session import SIZES, _is_not_of_py4j, _master_options, sizes
from harness_pipelines.spec.settings import Settings

MASTER = "spark://m:7077"


@pytest.fixture(autouse=True)
def no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.delenv("SPARK_HOME", raising=False)


def test_an_application_takes_few_cores_and_gives_them_back():
    assert sizes(MASTER, {}) == DEFAULTS
    assert DEFAULTS["spark.dynamicAllocation.minExecutors"] == "0"


@pytest.mark.parametrize("master", ["local[*]", "local-cluster[2,1,1024]", "local"])
def test_a_local_master_has_the_machine(master: str):
    assert sizes(master, {}) == {}


@pytest.mark.parametrize("name", SIZES)
def test_who_says_how_large_it_is_is_left_alone(name: str):
    assert sizes(MASTER, {name: "1"}) == {}


def test_a_limit_is_put_in_the_place_of_ours():
    given = {"spark.dynamicAllocation.maxExecutors": "40"}
    assert sizes(MASTER, given) == {name: value for name, value in DEFAULTS.items() if name not in given}


@pytest.mark.parametrize(
    "line", ["spark.executor.cores 4", "spark.executor.cores=4", "  spark.executor.cores\t4 # all"]
)
def test_files_of_spark_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str):
    (tmp_path / "spark-defaults.conf").write_text(f"# sizes\n\n{line}\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))

    assert sizes(MASTER, {}) == {}


def test_a_variable_wins_over_what_the_harness_says(tmp_path: Path):
    given = {"spark.executor.memory": "3g", "spark.ui.showConsoleProgress": "true"}
    options = _master_options(Settings(home=tmp_path, spark_conf=given), MASTER)

    assert given.items() <= options.items()
    assert DEFAULTS.items() <= options.items()


def test_patience_ends_when_no_executor_came_for_a_job():
    now = 100.0
    patience = Patience(patience_s=45, now=lambda: now)

    assert not patience.is_over(executors=0, jobs=1)
    now += 44
    assert not patience.is_over(executors=0, jobs=1)
    now += 1
    assert patience.is_over(executors=0, jobs=1)
    assert patience.is_over(executors=0, jobs=1)


@pytest.mark.parametrize(("executors", "jobs"), [(1, 1), (0, 0), (3, 0)])
def test_patience_begins_again(executors: int, jobs: int):
    now = 100.0
    patience = Patience(patience_s=45, now=lambda: now)
    patience.is_over(executors=0, jobs=1)
    now += 40

    assert not patience.is_over(executors=executors, jobs=jobs)
    now += 40
    assert not patience.is_over(executors=0, jobs=1)


def test_py4j_prints_no_traceback_of_a_jvm_that_is_gone():
    def record(path: str) -> logging.LogRecord:
        return logging.LogRecord("root", logging.ERROR, path, 1, "Exception while sending command.", (), sys.exc_info())

    assert not _is_not_of_py4j(record("/x/py4j/java_gateway.py"))
    assert _is_not_of_py4j(record("/x/harness/own.py"))
