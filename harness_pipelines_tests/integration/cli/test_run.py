"""`harness run`: to the end, until a signal, and by one worker at a time."""

from __future__ import annotations

import json
import signal
from unittest import mock

import pytest

from harness_pipelines.stages.ingest import on_engine
from harness_pipelines.stages.run import steps
from harness_pipelines_tests.integration.cli.conftest import GOOD
from harness_pipelines_tests.producer import DEADLINE_S, wait_until


def claims(harness, table: str) -> set[str]:
    found = json.loads(harness("status", table, "--json").stdout)["tables"][0]
    return {claim["stage"] for claim in found["claims"] if claim["alive"]}


def test_until_idle_ends_with_everything_in_the_lake(harness, table):
    summary = json.loads(harness("run", table, "--until-idle", "--json").stdout)["tables"][0]
    status = json.loads(harness("status", table, "--json").stdout)["tables"][0]

    assert (summary["table"], summary["moves"], summary["version"]) == (table, 2, 3)  # to either view
    assert status["lag"] == {"tail": 0, "buffer": 0, "stream": 0}
    assert status["lake_rows"] == GOOD


@pytest.mark.long
def test_spark_ingests_where_it_is_asked_to(harness, spec):
    name, file = spec
    harness("table", "apply", str(file))
    words = ("--stage", "ingest", "--ingest-on", "spark", "--until-idle", "--json")
    with mock.patch.object(steps, "on_engine", wraps=on_engine) as asked:
        summary = json.loads(harness("run", name, *words).stdout)["tables"][0]
    status = json.loads(harness("status", name, "--json").stdout)["tables"][0]

    assert asked.ingest_on_spark.called
    assert (summary["rows"], summary["trouble"]) == (GOOD, {})
    assert (status["lag"]["tail"], status["lag"]["buffer"], status["quarantined"]) == (0, GOOD + 1, 1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_worker_cleanly_and_gives_its_claims_back(harness, table, number, code):
    process = harness.start("run", table, "--stage", "ingest")
    try:
        wait_until(lambda: "ingest" in claims(harness, table), "the worker holds its claim")
        process.send_signal(number)
        _, told = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()

    assert process.returncode == code
    assert "stopping after the current transaction" in told
    assert "Traceback" not in told
    assert claims(harness, table) == set()


@pytest.mark.long
def test_a_table_that_is_worked_on_is_not_dropped(harness, table):
    process = harness.start("run", table, "--stage", "ingest")
    try:
        wait_until(lambda: "ingest" in claims(harness, table), "the worker holds its claim")
        refused = harness("table", "drop", table, "--yes", code=75)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()

    assert f"table {table} is being worked on (ingest by" in refused.stderr


def test_expire_shows_what_would_go_without_a_claim(harness, table):
    would = json.loads(harness("run", table, "--stage", "expire", "--dry-run", "--json").stdout)["tables"]

    assert [one["table"] for one in would] == [table]
    assert "expire" not in claims(harness, table)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--dry-run",), "--stage expire"),
        (("--stage", "expire", "--until-idle"), "expire runs with"),
        (("--lease", "1s"), "too short"),
        (("--for", "soon"), "is not a duration"),
        (("--stage", "teir"), "'teir' is not one of"),
        (("--metrics-host", "0.0.0.0"), "--metrics-host needs --metrics-port"),
        (("--stage", "expire", "--dry-run", "--metrics-port", "0"), "serves no metrics"),
        (("--metrics-port", "65536"), "0<=x<=65535"),
    ],
)
def test_options_that_make_no_sense_are_refused(harness, words, said):
    assert said in harness("run", *words, code=2).stderr
