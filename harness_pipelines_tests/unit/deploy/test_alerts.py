"""Prometheus itself judges the alert rules: each fires on its cause and is silent on the opposite."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[3] / "deploy" / "prometheus"


def test_each_alert_fires_on_its_cause_and_is_silent_on_the_opposite():
    done = subprocess.run(
        ["promtool", "test", "rules", str(FOLDER / "alerts_test.yaml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_alert_is_without_its_cause_and_its_opposite():
    [group] = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    cases = yaml.safe_load((FOLDER / "alerts_test.yaml").read_text())["tests"]
    judged = {(one["alertname"], bool(one["exp_alerts"])) for case in cases for one in case["alert_rule_test"]}
    assert judged == {(rule["alert"], fires) for rule in group["rules"] for fires in (True, False)}
