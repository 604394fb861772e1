"""Prometheus itself judges the alert rules: each fires on its cause and is silent on the opposite."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

from harness_pipelines_tests.pages import plain

FOLDER = Path(__file__).parents[3] / "deploy" / "prometheus"
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "operate.md"


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


def test_the_page_names_every_alert_as_its_rule_does():
    [group] = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    expected = [
        (one["alert"], one["labels"]["severity"], *(plain(one["annotations"][of]) for of in ("summary", "description")))
        for one in group["rules"]
    ]
    found = re.findall(r"^\| `(Harness\w+)` \| (\w+) \| (.*?) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert found == expected
