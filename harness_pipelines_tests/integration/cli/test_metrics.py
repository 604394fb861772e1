"""`harness run --metrics-port`: what a scrape of a running worker says is what `harness status` says."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from harness_pipelines.app.metrics import LOOPBACK
from harness_pipelines_tests.integration.cli.conftest import GOOD
from harness_pipelines_tests.producer import DEADLINE_S, wait_until
from harness_pipelines_tests.scrape import Scrape, scrape, scrape_ledger

REFUSED = 1
LAGS = {"tail": "harness_tail_offsets", "buffer": "harness_buffer_offsets", "stream": "harness_stream_offsets"}
Status = Callable[[], dict[str, Any]]


@pytest.fixture
def status(harness, spec) -> Status:
    return lambda: json.loads(harness("status", spec[0], "--json").stdout)["tables"][0]


@contextmanager
def serving(harness, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A worker process and the URL of its metrics; it gives its claims back at the end."""
    process = harness.start("run", *words, "--metrics-port", "0")
    try:
        assert process.stderr is not None
        told = re.search(r"metrics at (http://127\.0\.0\.1:\d+/metrics)", process.stderr.readline())
        assert told is not None
        yield process, told[1]
        if process.poll() is None:
            stop(process)
    finally:
        process.kill()
        process.wait()


def stop(process: subprocess.Popen[str]) -> str:
    """End the worker; returns what it said."""
    process.send_signal(signal.SIGTERM)
    return process.communicate(timeout=DEADLINE_S)[1]


def told(found: Scrape, table: str) -> dict[str, Any]:
    """What a scrape says of a table, as `harness status` has it."""

    def of_stages(name: str) -> dict[str, float]:
        """Of *table* alone: a worker shows tables of others too."""
        samples = [(dict(labels), value) for labels, value in found.samples(name).items()]
        return {labels["stage"]: value for labels, value in samples if labels["table"] == table}

    return {
        "lag": {lag: found.value(name, table=table) for lag, name in LAGS.items()},
        "quarantined": found.value("harness_quarantined_records", table=table),
        "readers": found.value("harness_leases", table=table),
        "stopped": found.value("harness_table_stopped", table=table),
        "version": found.value("harness_version", table=table),
        "claims": {stage for stage, left in of_stages("harness_claim_lease_seconds").items() if left > 0},
        "open_moves": sum(of_stages("harness_open_move_attempts").values()),
    }


def shown(found: dict[str, Any]) -> dict[str, Any]:
    """The same of `harness status`."""
    return {
        **{name: found[name] for name in ("lag", "quarantined", "readers", "version")},
        "stopped": found["stopped"] is not None,
        "claims": {claim["stage"] for claim in found["claims"] if claim["alive"]},
        "open_moves": sum(move["attempt"] for move in found["open_moves"]),
    }


@pytest.mark.long
def test_a_scrape_says_what_the_ledger_says_after_ingest_and_after_tier(harness, spec, status: Status):
    name, file = spec
    file.write_text(file.read_text() + "tier: {max_age: 1s}\nfreshness: {lake: 1s}\n")
    harness("table", "apply", str(file))
    began = time.monotonic()
    with serving(harness, name, "--stage", "ingest") as (process, url):
        counted = {"table": name, "stage": "ingest"}
        wait_until(lambda: scrape(url).value("harness_moved_records_total", **counted) == GOOD, "all is ingested")
        wait_until(lambda: told(scrape(url), name) == shown(status()), "both say the same")
        found = scrape_ledger(url)
    assert told(found, name)["lag"] == {"tail": 0, "buffer": GOOD + REFUSED, "stream": 0}
    assert (told(found, name)["quarantined"], told(found, name)["claims"]) == (REFUSED, {"ingest"})
    assert found.value("harness_refused_records_total", table=name) == REFUSED
    assert (found.value("harness_moves_total", table=name, stage="ingest", outcome="committed") or 0) >= 1
    assert found.samples("harness_moved_bytes_total") == {}, "it runs no stage that writes files"
    assert 0 < (found.value("harness_buffer_commit_age_seconds", table=name) or 0) < time.monotonic() - began
    assert process.returncode == 0

    began = time.monotonic()
    with serving(harness, name, "--stage", "tier", "--stage", "otree") as (_, url):
        merged = {"tail": 0, "buffer": 0, "stream": 0}
        wait_until(lambda: told(scrape(url), name)["lag"] == merged, "all is in both views")
        written = {frozenset({"table": name, "stage": stage}.items()) for stage in ("tier", "otree")}
        wait_until(  # the worker counts a move after the ledger has it
            lambda: {of for of, size in scrape(url).samples("harness_moved_bytes_total").items() if size} >= written,
            "it has counted the moves to both",
        )
        wait_until(lambda: told(scrape(url), name) == shown(status()), "both say the same")
        found = scrape_ledger(url)
    for stage in ("tier", "otree"):
        assert found.value("harness_moves_total", table=name, stage=stage, outcome="committed") == 1
        assert found.value("harness_moved_records_total", table=name, stage=stage) == GOOD
        assert found.value("harness_claim_own", table=name, stage=stage) == 1
        assert (found.value("harness_moved_bytes_total", table=name, stage=stage) or 0) > 0
    assert told(found, name)["version"] == 3
    assert (found.value("harness_buffer_bytes", table=name) or 0) > 0
    assert 0 < (found.value("harness_tier_age_seconds", table=name) or 0) < time.monotonic() - began
    assert found.value("harness_freshness_lake_goal_seconds", table=name) == 1
    assert found.value("harness_worker_ready") == 1


@pytest.mark.long
def test_a_worker_that_stands_by_says_that_the_claim_is_not_its_own(harness, table):
    with serving(harness, table, "--stage", "ingest") as (_, url):
        wait_until(lambda: scrape(url).value("harness_claim_own", table=table, stage="ingest") == 1, "one has it")
        with serving(harness, table, "--stage", "ingest") as (_, other):
            wait_until(lambda: scrape(other).value("harness_worker_ready") == 1, "the other one stands by")
            found = scrape_ledger(other)
    assert found.value("harness_claim_own", table=table, stage="ingest") == 0
    assert (found.value("harness_claim_lease_seconds", table=table, stage="ingest") or 0) > 0


@pytest.mark.long
def test_the_endpoint_ends_with_the_worker(harness, table):
    with serving(harness, table, "--stage", "ingest") as (process, url):
        wait_until(lambda: scrape(url).value("harness_worker_ready") == 1, "it works")
        said = stop(process)
        with pytest.raises(httpx.ConnectError):
            httpx.get(url, timeout=DEADLINE_S, trust_env=False)
    assert process.returncode == 0
    assert "Traceback" not in said


def test_a_port_that_is_taken_ends_the_command_before_it_does_anything(harness, table, status: Status):
    def claims() -> list[dict[str, Any]]:
        return [{word: value for word, value in claim.items() if word != "now"} for claim in status()["claims"]]

    before = claims()
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = harness("run", table, "--metrics-port", str(port), code=2).stderr
    assert f"metrics cannot be served at 127.0.0.1:{port}: Address already in use; nothing was done" in said
    assert claims() == before
