"""The alerts of a chaos run are judged by what was broken; Prometheus itself says what fired."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from harness_pipelines.chaos.alerts import CAUSES, DRILLS, NEVER, STANDING, Alerts, Firing
from harness_pipelines.chaos.result import Outage
from harness_pipelines.chaos.schedule import Fault, Kind
from harness_pipelines.cli.main import cli
from harness_pipelines.ledgers.postgres.views.stalls import STALLED_S
from harness_pipelines_tests.producer import wait_until

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"


@pytest.fixture
def alerts(tmp_path: Path) -> Alerts:
    (tmp_path / "logs").mkdir()
    return Alerts(FOLDER, targets=[9464], home=tmp_path)


def outage(kind: Kind, began: float, healed: float) -> Outage:
    return Outage(fault=Fault(at_s=0, kind=kind), began=began, marks={}, healed=healed, recovered=healed)


def test_each_rule_has_its_causes_and_a_new_one_is_thought_about():
    [group] = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    rules = [rule["alert"] for rule in group["rules"]]
    assert sorted(rules) == sorted([*CAUSES, *STANDING, *NEVER])
    assert {name for drill in DRILLS for name in drill.alerts} <= CAUSES.keys()


def test_a_drill_breaks_what_its_alerts_name_and_for_long_enough(alerts: Alerts):
    for drill in DRILLS:
        for name in drill.alerts:
            assert all(fault.kind in CAUSES[name] for fault in drill.faults)
            assert all(fault.lasts_s > alerts.waits[name] for fault in drill.faults)


@pytest.mark.parametrize(
    ("alert", "broken", "right"),
    [
        ("HarnessLedgerAway", [(Kind.POSTGRES_STOP, 100.0, 300.0)], True),
        ("HarnessLedgerAway", [(Kind.KAFKA_STOP, 100.0, 300.0)], False),
        ("HarnessLedgerAway", [(Kind.POSTGRES_STOP, 0.0, 20.0)], False),  # long over when its condition began to hold
        ("HarnessLedgerAway", [(Kind.POSTGRES_STOP, 301.0, 400.0)], False),  # later
        ("HarnessLedgerAway", [], False),
        ("HarnessPinOld", [(Kind.POSTGRES_STOP, 100.0, 300.0)], False),  # nothing in a run may cause it
        ("HarnessIngestStands", [(Kind.SPARK_STOP, 100.0, 300.0)], True),  # of a table without a buffer
        ("HarnessIngestStands", [(Kind.DAMAGE, 100.0, 300.0)], False),
        ("HarnessRefuses", [], True),  # the producer's misfits do
        # Its stall may begin with the error of a call that hung, and fires when that is a minute old.
        ("HarnessStageStalled", [(Kind.SPARK_STOP, 100.0, 300.0 - 137)], True),
        ("HarnessStageStalled", [(Kind.SPARK_STOP, 50.0, 300.0 - 60 - 124)], False),
        ("HarnessServiceSilent", [(Kind.SPARK_STOP, 0.0, 10.0)], True),
        ("HarnessRecordsLate", [], False),
        ("HarnessRecordsLate", [(Kind.RUN_STOP, 0.0, 100.0)], True),
    ],
)
def test_an_alert_is_right_when_what_it_names_was_broken_before(
    alerts: Alerts, alert: str, broken: list[tuple[Kind, float, float]], right: bool
):
    firing = Firing(alert, "", began=300.0, ended=400.0)
    assert alerts.is_right(firing, [outage(*one) for one in broken]) is right


def test_an_alert_waits_for_its_rule_and_for_the_age_that_it_names(alerts: Alerts):
    assert alerts.waits["HarnessStageStalled"] == STALLED_S  # what `harness status` calls an alarm
    assert alerts.waits["HarnessKafkaSilent"] == 120 + 120
    assert alerts.waits["HarnessLedgerAway"] == 120
    assert alerts.waits["HarnessPinOld"] == 30 * 86400 + 3600
    assert alerts.waits["HarnessRecordsLate"] == 120 + 300, "and for the shorter of its windows"


def test_an_alert_of_a_table_that_was_read_again_and_has_not_moved_again_is_right(alerts: Alerts):
    firing = Firing("HarnessStageStalled", "shop.orders compact", began=600.0, ended=700.0)
    moves_late = outage(Kind.SPARK_KILL, 100.0, 110.0)
    moves_late.recovered = 500.0
    assert alerts.is_right(firing, [moves_late])


@pytest.mark.parametrize("missing", ["alerts.yaml", "scrape.yaml"])
def test_a_folder_without_the_files_is_refused_before_anything_is_started(tmp_path: Path, missing: str):
    for name in {"alerts.yaml", "scrape.yaml"} - {missing}:
        (tmp_path / name).write_text("{}")
    done = CliRunner().invoke(cli, ["chaos", "--yes", "--for=20s", f"--alerts={tmp_path}"])
    assert done.exit_code == 2
    assert f"there is no {missing} in it; nothing was started" in done.output


class _Answer(BaseHTTPRequestHandler):
    value = 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        with suppress(BrokenPipeError):  # Prometheus ends, or waited for too long
            self.wfile.write(f'planted{{table="shop.orders"}} {type(self).value}\n'.encode())

    def log_message(self, *_: object) -> None:
        """Not on the terminal."""


@pytest.fixture
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.long
def test_what_prometheus_lets_fire_has_a_beginning_and_an_end(tmp_path: Path, port: int):
    rule = {"alert": "HarnessPlanted", "expr": "planted == 1"}
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump({"groups": [{"name": "harness", "rules": [rule]}]}))
    scrape = {"scrape_configs": [{"job_name": "harness", "scrape_interval": "1s", "static_configs": []}]}
    (tmp_path / "scrape.yaml").write_text(yaml.safe_dump(scrape))
    (tmp_path / "logs").mkdir()
    with Alerts(tmp_path, targets=[port], home=tmp_path) as alerts:
        began = time.monotonic()
        assert alerts.fired() == []
        _Answer.value = 1
        wait_until(lambda: bool(alerts.firing()), "the alert fires", deadline_s=120)
        _Answer.value = 0
        wait_until(lambda: not alerts.firing(), "the alert ends", deadline_s=180)
        [fired] = alerts.fired()
        assert (fired.alert, fired.about) == ("HarnessPlanted", "shop.orders")
        assert began <= fired.began <= fired.ended <= time.monotonic()
        assert not alerts.is_right(fired, [outage(Kind.POSTGRES_STOP, began, began + 10)])
