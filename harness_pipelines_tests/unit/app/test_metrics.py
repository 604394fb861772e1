"""The endpoint itself: what it names, how it ends, and that nothing it asks can hang it."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from harness_pipelines.app.health import Health
from harness_pipelines.app.metrics import LOOPBACK, METRICS, Timely, WorkerCollector, endpoint
from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.ledgers.postgres.views.growth import BufferGrowth, Pause
from harness_pipelines.ledgers.postgres.views.mirrors import MirrorLag
from harness_pipelines.ledgers.postgres.views.stalls import Lag, Pin, Stall
from harness_pipelines.ledgers.postgres.views.work import TableState
from harness_pipelines.ports.ledger import SickTable, TableRow
from harness_pipelines.ports.upkeep import Broken, ClaimState, OpenMove
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.pressure import Fill
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.run.worker import TableProgress, WorkerOptions
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.scrape import Scrape, scrape

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/reference/metrics.md"
ALERTS = ROOT / "deploy/prometheus/alerts.yaml"
SCRAPE = ROOT / "deploy/prometheus/scrape.yaml"
ROW = re.compile(r"^\| `(harness_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", re.MULTILINE)


def state(**changes: Any) -> TableState:
    """A table of which everything is known."""
    known = {
        "name": "a.b", "stopped": False, "version": 7, "tail": 3, "log_seen_s": 0.5, "buffer": 11, "stream": 13,
        "buffer_commit_s": 1.5, "tier_s": 17.0, "buffer_bytes": 8192, "quarantined": 2, "refused_share": 0.02,
        "filtered": 5, "readers": 1,
        "oldest_lease_s": 19.0, "claims": {"tier": ClaimState(lease_s=23.0, own=True)},
        "moves": {"otree": OpenMove(attempt=4, failures=3, stuck=True, age_s=29.0)},
        "violations": (Broken(check="amount.ge", severity="warn", records=31),),
    }  # fmt: skip
    return TableState(**{**known, **changes})


MIRRORED = MirrorLag(
    table="a.b",
    catalog="lakehouse",
    kind="rest",
    uri="https://catalog.example",
    version=7,
    head=9,
    lag_s=12.5,
    trouble=None,
    trouble_since=None,
    mirrored_at=None,
)
MIRRORS = SimpleNamespace(lags=lambda _: [MIRRORED])


class Ledger:
    """What the look at the ledger finds, or raises."""

    def __init__(self) -> None:
        self.found: list[TableState] | Exception = [state()]
        self.given: dict[str, Any] = {}

    def now(self, _tables: list[str]) -> list[Stall]:
        at = datetime(2026, 1, 2, tzinfo=UTC)
        return [
            Stall(table="a.b", stage="compact", what="an open move", since=at, stalled_s=71.0, error=None),
            Stall(table="a.b", stage="compact", what="an error", since=at, stalled_s=5.0, error="it is away"),
        ]

    def lags(self, _tables: list[str]) -> list[Lag]:
        return [Lag(table="a.b", subscriber="billing", events=3, since_s=7.0)]

    def growth(self) -> dict[str, BufferGrowth]:
        paused = Pause(fill=Fill(limit="table", bytes=9000, bytes_max=8000), since=datetime(2026, 1, 2, tzinfo=UTC))
        grows = BufferGrowth(
            table="a.b", bytes=8192, per_s=4.0, full_s=99.0, retired=4096, bytes_max=8000, pause=paused
        )
        return {"a.b": grows}

    def survey(self) -> tuple[list[TableRow], list[SickTable]]:
        return [], [SickTable(name="a.sick", why="no spec")]

    def pins(self, _tables: list[str]) -> list[Pin]:
        at = datetime(2026, 1, 2, tzinfo=UTC)
        return [Pin(table="a.b", name="q1", version=3, since=at, age_s=9.0, behind=4)]

    def states(self, _tables: list[str], **given: Any) -> list[TableState]:
        self.given = given
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def progress() -> TableProgress:
    found = TableProgress(name="a.b")
    found.in_lake.add(np.array([3.0, 7.0]), goal_s=5.0, now_s=time.time())
    return found


@pytest.fixture
def url(ledger: Ledger, progress: TableProgress) -> Iterator[str]:
    """The metrics of a worker of one table."""
    settings = Settings(home=Path("/none"))
    worker: Any = SimpleNamespace(
        stores=SimpleNamespace(watch=ledger, stalls=ledger, tables=ledger, mirrors=MIRRORS, settings=settings),
        options=WorkerOptions(),
        holder="me",
        stop=threading.Event(),
        progress=[progress],
        slowness=lambda: {"a.b": {"tier": (0.0, 2.5)}},
    )
    goals = {"freshness": SimpleNamespace(lake=900.0), "tier": SimpleNamespace(max_rows=500_000), "catalogs": ()}
    spec = SimpleNamespace(buffer_kind="postgres", **goals)
    bare = SimpleNamespace(buffer_kind="none", **goals)
    tables: Any = [SimpleNamespace(name="a.b", spec=spec), SimpleNamespace(name="a.bare", spec=bare)]
    worker.tables = tables
    collector = WorkerCollector(worker, worker.stores)
    over = threading.Event()

    def hangs() -> None:
        over.wait(60)

    collector.health = Health(settings, wait_s=0.5, asks={"kafka": lambda: None, "spark": hangs, "registry": refuses})
    try:
        with endpoint(LOOPBACK, 0) as (registry, at):
            registry.watch(collector)
            yield at
    finally:
        over.set()


def refuses() -> None:
    raise HarnessError("the registry says no to postgresql://me:hunter2@h/d")


def served_names(found: Scrape) -> set[str]:
    return {s.name for family in found.families for s in family.samples}


# -- names --------------------------------------------------------------------------------------------------


def test_the_page_names_what_is_served_in_its_order_with_type_labels_and_help(url: str):
    rows = [row for row in ROW.findall(PAGE.read_text()) if not row[0].startswith("harness_serve_")]
    documented = [(n, k, tuple(re.findall(r"`(\w+)`", labels)), h) for n, k, labels, h in rows]
    exposed = httpx.get(url, timeout=60.0, trust_env=False).text
    helps = re.findall(r"^# HELP (\S+) (.*)$", exposed, re.MULTILINE)
    types = re.findall(r"^# TYPE (\S+) (.*)$", exposed, re.MULTILINE)

    assert documented == [(m.name, m.kind, m.labels, m.help) for m in METRICS]
    assert [(name, text) for name, _, _, text in documented] == helps
    assert [(name, kind) for name, kind, _, _ in documented] == types


def test_every_metric_has_samples_with_the_labels_that_it_names(url: str):
    found = scrape(url)
    for metric in METRICS:
        labels = {frozenset(name for name, _ in sample) for sample in found.samples(metric.name)}
        assert labels == {frozenset(metric.labels)}, metric.name


def test_a_catalog_that_is_behind_is_shown_with_its_lag(url: str):
    assert scrape(url).samples("harness_mirror_lag_seconds") == {
        frozenset({("table", "a.b"), ("catalog", "lakehouse")}): 12.5
    }


def test_the_alerts_ask_for_nothing_that_is_not_served(url: str):
    names, labels = served_names(scrape(url)), {label for metric in METRICS for label in metric.labels}
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    for rule in group["rules"]:
        assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}, rule["alert"]
        assert re.fullmatch(r"Harness[A-Za-z]+", rule["alert"])
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s")), rule["alert"]
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"].keys() == {"summary", "description"}
        asked = set(re.findall(r"harness_\w+", rule["expr"]))
        assert asked <= names, f"{rule['alert']}: {asked - names} is not served"
        assert asked or 'up{job="harness"}' in rule["expr"]
        told = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        kept = set(re.findall(r"by \(([\w, ]+)\)", rule["expr"])[0].split(", ")) if " by (" in rule["expr"] else None
        assert told <= (labels | {"instance"} if kept is None else kept), f"{rule['alert']} tells of {told}"
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"])


def test_the_scrape_job_is_the_one_that_the_alerts_name():
    example = yaml.safe_load(SCRAPE.read_text())
    [job] = example["scrape_configs"]
    assert example["rule_files"] == [ALERTS.name]
    assert f'job="{job["job_name"]}"' in ALERTS.read_text()


# -- values -------------------------------------------------------------------------------------------------


def test_what_the_ledger_says_is_shown_as_it_is(url: str):
    found = scrape(url)
    table = {
        name: found.value(f"harness_{name}", table="a.b")
        for name in ("tail_offsets", "buffer_offsets", "stream_offsets", "version", "table_stopped", "leases")
    }
    assert table == {
        "tail_offsets": 3, "buffer_offsets": 11, "stream_offsets": 13, "version": 7, "table_stopped": 0, "leases": 1
    }  # fmt: skip
    assert found.value("harness_claim_lease_seconds", table="a.b", stage="tier") == 23
    assert found.value("harness_claim_own", table="a.b", stage="tier") == 1
    assert found.value("harness_claim_lease_seconds", table="a.b", stage="ingest") == 0, "nobody holds it"
    assert found.value("harness_move_stuck", table="a.b", stage="otree") == 1
    assert found.value("harness_open_move_attempts", table="a.b", stage="tier") == 0
    assert found.value("harness_scrape_ok") == 1


def test_a_table_without_a_buffer_has_no_ingest_that_somebody_could_miss(url: str, ledger: Ledger):
    ledger.found = [state(name="a.bare", claims={})]
    shown = scrape(url).samples("harness_claim_lease_seconds")
    assert {dict(labels)["stage"] for labels in shown} >= {"tier"}
    assert "ingest" not in {dict(labels)["stage"] for labels in shown}


def test_what_is_not_known_has_no_sample(url: str, ledger: Ledger):
    ledger.found = [state(tail=None, log_seen_s=None, stream=None)]
    found = scrape(url)
    for name in ("tail_offsets", "log_seen_age_seconds", "stream_offsets"):
        assert found.samples(f"harness_{name}") == {}
    assert found.value("harness_buffer_offsets", table="a.b") == 11


def test_without_the_ledger_a_scrape_has_what_the_worker_knows(url: str, ledger: Ledger, progress: TableProgress):
    ledger.found = HarnessError("away")
    progress.tallies[Stage.TIER].committed = 5
    found = scrape(url)
    assert found.value("harness_scrape_ok") == 0
    assert found.samples("harness_buffer_offsets") == {}
    assert found.samples("harness_claim_lease_seconds") == {}
    assert found.value("harness_moves_total", table="a.b", stage="tier", outcome="committed") == 5


def test_the_counters_are_the_workers_own(url: str, progress: TableProgress):
    progress.rows, progress.refused, progress.commits = 100, 2, 7
    progress.errors.update({"ingest": 3, "watch": 1})
    progress.trouble["watch"] = "it was dropped"
    tally = progress.tallies[Stage.OTREE]
    tally.committed, tally.failed, tally.given_up, tally.records, tally.bytes = 1, 2, 3, 40, 50
    found = scrape(url)

    def moves(stage: str) -> list[float | None]:
        outcomes = ("committed", "failed", "given_up")
        return [found.value("harness_moves_total", table="a.b", stage=stage, outcome=one) for one in outcomes]

    assert moves("ingest") == [7, 3, None]
    assert moves("otree") == [1, 2, 3]
    assert found.value("harness_moved_records_total", table="a.b", stage="ingest") == 100
    assert found.value("harness_moved_records_total", table="a.b", stage="otree") == 40
    assert found.value("harness_moved_bytes_total", table="a.b", stage="otree") == 50
    assert found.value("harness_refused_records_total", table="a.b") == 2
    assert found.value("harness_stage_errors_total", table="a.b", stage="ingest") == 3
    assert found.value("harness_stage_trouble", table="a.b", stage="ingest") == 0
    assert found.value("harness_stage_trouble", table="a.b", stage="watch") == 1


def test_a_worker_that_has_not_seen_all_of_its_tables_is_not_ready(url: str, progress: TableProgress, ledger: Ledger):
    before = scrape(url).value("harness_worker_ready")
    assert ledger.given["seen"] == []
    some: Any = ["a partition"]
    progress.positions, progress.ends, progress.ends_at = some, {0: 41}, 0.0
    assert (before, scrape(url).value("harness_worker_ready")) == (0, 1)
    [seen] = ledger.given["seen"]
    assert (seen.table, seen.ends) == ("a.b", {0: 41})
    assert seen.age_s > 0


def test_a_server_that_hangs_is_named_and_a_probe_says_no_in_time(url: str):
    def answers() -> dict[str, float | None]:
        found = scrape(url)
        services = ("kafka", "spark", "registry")
        return {service: found.value("harness_service_answers", service=service) for service in services}

    def health() -> httpx.Response:
        return httpx.get(url.replace("/metrics", "/health"), timeout=60.0, trust_env=False)

    # On a busy machine half a second may be too short for those that answer too.
    wait_until(lambda: answers() == {"kafka": 1, "spark": 0, "registry": 0}, "all but Spark are known")
    wait_until(lambda: str(health().json()).count("no answer within") == 1, "all but Spark are known")
    answer = health()
    assert "ask-spark" in {thread.name for thread in threading.enumerate()}, "nobody waited for its end"
    assert answer.status_code == 503
    told = answer.json()
    assert told["ok"] is False
    assert told["services"]["kafka"] == {"answers": True, "why": None}
    assert told["services"]["spark"]["why"].startswith("no answer within")
    assert told["services"]["registry"]["why"] == "the registry says no to postgresql://me:***@h/d"


# -- life ---------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_said_by_name_also_to_a_second_endpoint():
    with (
        endpoint(LOOPBACK, 0) as (_, at),
        pytest.raises(UsageError, match="Address already in use.*--metrics-port"),
        endpoint(LOOPBACK, httpx.URL(at).port or 0),
    ):
        pytest.fail("two served one port")


def test_an_address_that_is_not_of_this_machine_is_said_by_name():
    with pytest.raises(UsageError, match=r"metrics cannot be served at 192\.0\.2\.1:0"), endpoint("192.0.2.1", 0):
        pytest.fail("it is for documentation only")


def test_clients_that_are_slow_or_hang_up_leave_nothing_in_the_log(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    with endpoint(LOOPBACK, 0) as (_, at):
        port = httpx.URL(at).port or 0
        with monkeypatch.context() as soon:
            soon.setattr("harness_pipelines.app.metrics._Handler.timeout", 0.1)
            for _ in range(3):
                with socket.create_connection((LOOPBACK, port)) as slow:
                    slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
                    slow.settimeout(60)
                    assert slow.recv(1) == b"", "the server hangs up"
        with socket.create_connection((LOOPBACK, port)) as rude:
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            rude.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert httpx.get(at, timeout=60.0, trust_env=False).status_code == 200
    assert capfd.readouterr().err == ""


def test_the_endpoint_ends_with_its_block():
    with endpoint(LOOPBACK, 0) as (registry, at):
        assert isinstance(registry, CollectorRegistry)
        assert httpx.get(at, timeout=60.0, trust_env=False).text == ""
    with pytest.raises(httpx.ConnectError):
        httpx.get(at, timeout=60.0, trust_env=False)
    with socket.socket() as free:  # and its port is free at once
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind((LOOPBACK, httpx.URL(at).port or 0))


def test_a_question_that_hangs_is_given_up_and_not_asked_twice():
    asked, over = [], threading.Event()

    def ask() -> str:
        asked.append(1)
        over.wait(30)
        return "late"

    timely = Timely(ask, wait_s=0.02)
    assert timely() is None
    wait_until(lambda: bool(asked), "its thread asks")
    assert timely() is None
    assert len(asked) == 1
    over.set()
    wait_until(lambda: timely() == "late", "it answers again")


def test_a_defect_of_a_look_is_told_and_fails_no_scrape():
    def ask() -> str:
        raise IndexError("list index out of range")

    with capture_logs() as told:
        assert Timely(ask, wait_s=30)() is None
    assert [(line["event"], line["log_level"]) for line in told] == [("metrics.broken", "error")]
