"""Moves are told to a lineage server as OpenLineage's own client sends them; one that comes again is the same run."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness_pipelines.cli.main import cli
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.rig import OTREE, TableRig, environment


class Server:
    """Takes events; `answers` are those to the next requests, then it takes them."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.events: list[dict[str, Any]] = []


@pytest.fixture
def lineage() -> Iterator[tuple[Server, str]]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            code = state.answers.pop(0) if state.answers else 201
            if code == 201:
                state.events.append(json.loads(body))
            self.send_response(code)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield state, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def moved(make_rig: MakeRig) -> TableRig:
    """A table with two views, after a move of tier and one of otree."""
    rig = make_rig(views="both", layout={"columns": ["n"]})
    rig.produce(10)
    rig.ingest()
    rig.tier()
    rig.worker(OTREE, until_idle=True).run()
    return rig


def tell(rig: TableRig, name: str, url: str | None, *more: str) -> Result:
    env = environment(rig.harness.settings) | ({"OPENLINEAGE_URL": url} if url else {})
    return CliRunner().invoke(cli, ["events", rig.name, "--subscriber", name, "--openlineage", *more], env=env)


def test_each_move_is_a_run_from_datasets_to_datasets(moved: TableRig, lineage: tuple[Server, str]):
    server, url = lineage
    name = f"sub-{uuid.uuid4().hex[:8]}"
    done = tell(moved, name, url)
    assert done.exit_code == 0, done.output
    tier, otree = server.events
    assert [one["eventType"] for one in server.events] == ["COMPLETE", "COMPLETE"]
    assert [one["job"]["name"] for one in server.events] == [f"{moved.name}.tier", f"{moved.name}.otree"]

    [topic] = tier["inputs"]
    assert (topic["namespace"], topic["name"]) == (f"kafka://{moved.harness.settings.kafka}", moved.topic)
    [stream] = tier["outputs"]
    assert stream["outputFacets"]["outputStatistics"]["rowCount"] == 20
    assert [f["name"] for f in stream["facets"]["schema"]["fields"]] == ["id", "n", "s"]
    assert "columnLineage" not in stream["facets"]
    facet = tier["run"]["facets"]["harness_move"]
    assert (facet["offsets"], facet["version"], facet["stage"]) == ({"0": [0, 10], "1": [0, 10]}, 2, "tier")

    place = (stream["namespace"], stream["name"])
    assert [(one["namespace"], one["name"]) for one in otree["inputs"]] == [place], "what tier wrote"
    [batch] = otree["outputs"]
    [origin] = batch["facets"]["columnLineage"]["fields"]["id"]["inputFields"]
    assert (origin["namespace"], origin["name"], origin["field"]) == (*place, "id")
    assert batch["facets"]["symlinks"]["identifiers"][0]["name"] == moved.name

    again = tell(moved, f"{name}-2", url)
    assert again.exit_code == 0
    assert [e["run"]["runId"] for e in server.events[2:]] == [e["run"]["runId"] for e in server.events[:2]]
    assert len({e["run"]["runId"] for e in server.events}) == 2


def test_what_did_not_arrive_is_told_again_by_the_next_call(moved: TableRig, lineage: tuple[Server, str]):
    server, url = lineage
    name = f"sub-{uuid.uuid4().hex[:8]}"
    server.answers = [201, 404]
    refused = tell(moved, name, url)
    assert refused.exit_code == 75, refused.output
    assert "by OpenLineage's http transport" in refused.stderr
    assert tell(moved, name, url).exit_code == 0
    assert [one["job"]["name"].rpartition(".")[2] for one in server.events] == ["tier", "otree"]


def test_without_a_server_it_says_what_is_missing(moved: TableRig):
    refused = tell(moved, "sub", None)
    assert refused.exit_code == 2
    assert "OPENLINEAGE_URL" in refused.stderr
    both = tell(moved, "sub", None, "--topic", "t")
    assert "one of --webhook, --topic and --openlineage" in both.stderr
