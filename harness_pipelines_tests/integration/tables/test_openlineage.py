"""Moves are told to a lineage server as OpenLineage's own client sends them; one that comes again is the same run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

from harness_pipelines.cli.main import cli
from harness_pipelines.stages.otree.recluster import ask, plan_recluster, run
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.lake_files import remove
from harness_pipelines_tests.producer import DEADLINE_S, wait_until
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


def tell(rig: TableRig, name: str, url: str | None, *more: str, **env: str) -> Result:
    env |= environment(rig.harness.settings) | ({"OPENLINEAGE_URL": url} if url else {})
    with patch.dict(os.environ):  # the client writes its settings there once more, under other names
        return CliRunner().invoke(cli, ["events", rig.name, "--subscriber", name, "--openlineage", *more], env=env)


def completed(server: Server) -> list[dict[str, Any]]:
    """The runs that have ended, each of which began just before under the same id."""
    starts, ends = server.events[::2], server.events[1::2]
    assert {one["eventType"] for one in starts} == {"START"}
    assert {one["eventType"] for one in ends} == {"COMPLETE"}
    assert [one["run"] for one in starts] == [one["run"] for one in ends]
    assert all(a["eventTime"] <= b["eventTime"] for a, b in zip(starts, ends, strict=True))
    return ends


def stages(events: list[dict[str, Any]]) -> list[str]:
    return [one["job"]["name"].rpartition(".")[2] for one in events]


def sources(run: dict[str, Any]) -> list[str]:
    """Names of the views that a run has read, without what makes each table's folder its own."""
    return [one["name"].rpartition("/")[2].rpartition("-")[0] for one in run["inputs"]]


def test_each_move_is_a_run_from_datasets_to_datasets(moved: TableRig, lineage: tuple[Server, str]):
    server, url = lineage
    name = f"sub-{uuid.uuid4().hex[:8]}"
    done = tell(moved, name, url)
    assert done.exit_code == 0, done.output
    tier, otree = completed(server)
    assert [one["job"]["name"] for one in (tier, otree)] == [f"{moved.name}.tier", f"{moved.name}.otree"]
    for uri in (tier["producer"], tier["run"]["facets"]["harness_move"]["_schemaURL"]):
        assert urlsplit(uri).scheme, "the specification wants an absolute one"

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
    ids = [one["run"]["runId"] for one in completed(server)]
    assert ids[2:] == ids[:2]
    assert len(set(ids)) == 2


def test_what_did_not_arrive_is_told_again_by_the_next_call(moved: TableRig, lineage: tuple[Server, str]):
    server, url = lineage
    name = f"sub-{uuid.uuid4().hex[:8]}"
    server.answers = [201, 201, 201, 404]
    refused = tell(moved, name, url)
    assert refused.exit_code == 75, refused.output
    assert "by OpenLineage's http transport" in refused.stderr
    assert tell(moved, name, url).exit_code == 0
    assert stages(server.events) == ["tier", "tier", "otree", "otree", "otree"]
    assert [one["eventType"] for one in server.events[2:]] == ["START", "START", "COMPLETE"]
    assert len({one["run"]["runId"] for one in server.events[2:]}) == 1, "told again it is the same run"


@pytest.mark.long
def test_a_server_that_is_away_for_a_while_gets_all_of_it_in_order(moved: TableRig, lineage: tuple[Server, str]):
    server, url = lineage
    server.answers = [503] * 12  # the client itself tries a request some times
    name = f"sub-{uuid.uuid4().hex[:8]}"
    words = ["harness", "events", moved.name, "--subscriber", name, "--openlineage", "--follow"]
    env = {**os.environ, **environment(moved.harness.settings), "OPENLINEAGE_URL": url}
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as follower:
        try:
            wait_until(lambda: len(server.events) == 4, "both moves were told")
            moved.produce(5)
            moved.ingest()
            moved.tier()
            wait_until(lambda: len(server.events) == 6, "the move that came meanwhile was told")
        finally:
            follower.send_signal(signal.SIGINT)
            follower.wait(DEADLINE_S)
    assert server.answers == []
    assert stages(completed(server)) == ["tier", "otree", "tier"]


@pytest.mark.long
def test_a_merge_of_keys_and_a_relayout_name_what_they_read(make_rig: MakeRig, lineage: tuple[Server, str]):
    server, url = lineage
    plain = make_rig(views="both", layout={"columns": ["n"], "staged_ratio": 10.0})
    for _ in range(2):
        plain.produce(500)
        plain.ingest()
        plain.tier()
        plain.worker(OTREE, until_idle=True).run()
    recluster(plain)
    assert tell(plain, f"sub-{uuid.uuid4().hex[:8]}", url).exit_code == 0
    of_otree = [one for one in completed(server) if one["job"]["name"].endswith(".otree")]
    stream, batch = f"{plain.table.spec.name}__stream", plain.table.spec.name
    assert [sources(one) for one in of_otree] == [[stream], [stream], [batch]]

    server.events.clear()
    keyed = make_rig(key=["id"], views="both")
    keyed.produce(10)
    keyed.ingest()
    keyed.tier()
    keyed.worker(OTREE, until_idle=True).run()
    assert tell(keyed, f"sub-{uuid.uuid4().hex[:8]}", url).exit_code == 0
    name = keyed.table.spec.name
    assert [sources(one) for one in completed(server)][1:] == [[f"{name}__stream", name]]


def recluster(rig: TableRig) -> None:
    plan = plan_recluster(rig.stores, rig.table.row, rebuild=True)
    for _ in run(rig.stores, rig.table.row, ask(rig.stores, rig.table.row, plan).request):
        pass


def test_of_a_move_whose_metadata_is_gone_the_ledger_tells(moved: TableRig, lineage: tuple[Server, str]):
    server, url = lineage
    head = moved.stores.tables.head(moved.table.row)
    for version in moved.table.versions():
        for view in version.views.values():
            if view not in head.views.values():
                remove(view.metadata)
    assert tell(moved, f"sub-{uuid.uuid4().hex[:8]}", url).exit_code == 0
    tier, otree = completed(server)
    for one, stage in ((tier, "tier"), (otree, "otree")):
        [output] = one["outputs"]
        assert output["outputFacets"]["outputStatistics"]["rowCount"] == 20, stage


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ({"OPENLINEAGE__TRANSPORT__TYPE": "console"}, 0, ""),
        ({"OPENLINEAGE__TRANSPORT__TYPE": "file", "OPENLINEAGE__TRANSPORT__LOG_FILE_PATH": "x"}, 2, "use http"),
        ({"OPENLINEAGE_DISABLED": "true"}, 2, "where is the lineage server"),
    ],
)
def test_a_transport_that_does_not_say_whether_an_event_arrived_is_refused(
    moved: TableRig, words: dict[str, str], code: int, says: str
):
    done = tell(moved, f"sub-{uuid.uuid4().hex[:8]}", None, **words)
    assert done.exit_code == code, done.output
    assert says in done.stderr


def test_a_file_may_say_which_transport(moved: TableRig, tmp_path: Path):
    config = tmp_path / "openlineage.yml"
    config.write_text("transport: {type: console}\n")
    assert tell(moved, f"sub-{uuid.uuid4().hex[:8]}", None, OPENLINEAGE_CONFIG=str(config)).exit_code == 0


def test_without_a_server_it_says_what_is_missing(moved: TableRig):
    refused = tell(moved, "sub", None)
    assert refused.exit_code == 2
    assert "OPENLINEAGE_URL" in refused.stderr
    both = tell(moved, "sub", None, "--topic", "t")
    assert "--webhook, --topic and --openlineage exclude each other" in both.stderr
