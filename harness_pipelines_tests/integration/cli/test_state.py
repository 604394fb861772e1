"""`harness state` and reads at a state."""

from __future__ import annotations

import json
import uuid

import harness_pipelines as hp
from harness_pipelines_tests.integration.cli.conftest import Cli


def test_states_are_listed_shown_read_and_forgotten(harness: Cli, table: str):
    name = f"report-{uuid.uuid4().hex[:8]}"
    with hp.connect(home=harness.home) as opened, opened.states.hold(name) as held:
        held.commit({table: {0: 3, 1: 2}}, checkpoint="c1", payload=[1], sink={"snapshot": 4})
        assert "is held until" in harness("state", "drop", name, "--yes", code=75).stderr

    [listed] = [s for s in json.loads(harness("state", "list", "--json").stdout)["states"] if s["name"] == name]
    assert listed["held_until"] is None
    [commit] = json.loads(harness("state", "show", name, "--json").stdout)["commits"]
    assert commit == listed["last"]
    assert commit["sources"] == {table: {"0": 3, "1": 2}}
    assert f"{table} below 0: 3, 1: 2" in harness("state", "list").stdout
    assert len(json.loads(harness("read", table, "--at", f"state:{name}", "--format", "json").stdout)) == 5
    assert f"state:{name}" not in harness("snapshot", "list").stdout

    assert "nothing was changed" in harness("state", "drop", name, code=2).stderr
    assert json.loads(harness("state", "drop", name, "--yes", "--json").stdout)["dropped"]
    assert "no commit of a state" in harness("state", "show", name, code=1).stderr
    assert "nor in the last commit" in harness("read", table, "--at", f"state:{name}", code=1).stderr


def test_events_are_printed_one_object_per_line(harness: Cli, table: str):
    lines = [json.loads(line) for line in harness("events", table).stdout.splitlines()]
    assert [(line["seq"], line["event"], line["version"]) for line in lines] == [(1, "created", 1)]
    assert harness("events", table, "--after", "1").stdout == ""
    assert "no.table" in harness("events", "no.table", code=1).stderr
