"""Subscribers are told of each event at least once and in order, whatever they or the network do."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.cli.main import cli
from harness_pipelines.cli.reads import events as events_cli
from harness_pipelines.errors import TryAgain, UsageError
from harness_pipelines.ledgers.postgres.states import StateHeld
from harness_pipelines.protocol.claims import FencedOut
from harness_pipelines_tests.producer import DEADLINE_S, KafkaRig, wait_until
from harness_pipelines_tests.rig import TableRig, environment


@pytest.fixture
def name() -> str:
    return f"sub-{uuid.uuid4().hex[:10]}"


def publish(rig: TableRig, times: int) -> None:
    for _ in range(times):
        rig.produce(2)
        rig.ingest()
        rig.tier()


def taken(rig: TableRig, name: str, **options: Any) -> list[int]:
    with rig.table.subscription(name, **options) as events:
        return [event.seq for event in events]


def test_a_subscriber_goes_on_behind_what_it_has_dealt_with(rig: TableRig, name: str):
    publish(rig, 2)
    assert taken(rig, name) == [1, 2, 3]
    assert taken(rig, name) == []
    publish(rig, 1)
    with suppress(ZeroDivisionError), rig.table.subscription(name) as events:
        for _event in events:
            raise ZeroDivisionError  # in the middle of it: so it comes again
    assert taken(rig, name) == [4]
    assert taken(rig, f"{name}-new", after=3) == [4]
    assert [s.last.checkpoint for s in rig.harness.states.all() if s.name == name and s.last] == ["4"]
    assert fsck(rig.stores, [rig.name]).ok
    rig.harness.states.drop(name)
    assert taken(rig, name) == [1, 2, 3, 4]


def test_what_is_published_later_is_told_as_it_happens(rig: TableRig, name: str):
    seen: list[int] = []

    def follow() -> None:
        with rig.table.subscription(name, follow=True) as events:
            for event in events:
                seen.append(event.seq)
                if event.seq == 3:
                    return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    publish(rig, 2)
    thread.join(DEADLINE_S)
    assert seen == [1, 2, 3]
    assert taken(rig, name) == [3]  # it was not said to be dealt with


def test_one_process_at_a_time_is_told(rig: TableRig, name: str):
    with rig.table.subscription(name), pytest.raises(StateHeld), rig.table.subscription(name):
        pass
    with pytest.raises(FencedOut), rig.table.subscription(name) as events:
        for _event in events:
            with rig.stores.database.session() as connection:  # its lease ended while it was busy, and another one came
                over = "SELECT harness.state_renew(name, holder, epoch, '0') FROM harness.states WHERE name = %s"
                connection.execute(over, [name])
                connection.execute("SELECT harness.state_hold(%s, gen_random_uuid(), '1 minute')", [name])


def test_a_name_of_something_else_is_refused(rig: TableRig, name: str):
    rig.produce(1)
    rig.ingest()
    with rig.harness.states.hold(name) as held:
        held.commit({rig.name: {0: 1, 1: 1}}, checkpoint="c")
    for _ in range(2):  # and is free again afterwards
        with pytest.raises(UsageError, match="is the state of a consumer of records"), rig.table.subscription(name):
            pass
    other = TableRig(rig.harness, rig.kafka)
    assert taken(other, f"{name}-2") == [1]
    with pytest.raises(UsageError, match=f"a subscriber to {other.name}"), rig.table.subscription(f"{name}-2"):
        pass


# -- deliveries ---------------------------------------------------------------------------------------------


class Hook:
    """A server that refuses some requests; `arrived` has the bodies of those that it took."""

    def __init__(self) -> None:
        self.answers: list[int] = []  #: to the next requests; then 200
        self.arrived: list[dict[str, Any]] = []
        self.keys: list[str | None] = []


@pytest.fixture
def hook() -> Iterator[tuple[Hook, str]]:
    state = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            code = state.answers.pop(0) if state.answers else 200
            if code == 200:
                state.arrived.append(body)
                state.keys.append(self.headers["Idempotency-Key"])
            if code:
                self.send_response(code)
                self.end_headers()
                self.wfile.write(b"not now" if code != 200 else b"")

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield state, f"http://127.0.0.1:{server.server_port}/tables"
        server.shutdown()
        thread.join()


def told(rig: TableRig, *words: str) -> Result:
    return CliRunner(env=environment(rig.stores.settings)).invoke(cli, ["events", rig.name, *words])


def test_a_webhook_is_asked_until_it_takes_the_event(
    rig: TableRig, name: str, hook: tuple[Hook, str], monkeypatch: pytest.MonkeyPatch
):
    state, url = hook
    publish(rig, 2)
    state.answers = [200, 500, 0]  # 0: no answer at all
    words = ("--subscriber", name, "--webhook", url)
    result = told(rig, *words)
    assert result.exit_code == TryAgain.exit_code
    assert "it answered 500 'not now'" in result.output
    assert f"event 2 of {rig.name}" in result.output
    monkeypatch.setattr(events_cli, "AGAIN_S", 0.01)
    assert told(rig, *words).exit_code == TryAgain.exit_code
    assert told(rig, *words).exit_code == 0
    assert told(rig, *words).exit_code == 0
    assert [(e["table"], e["seq"], e["event"]) for e in state.arrived] == [
        (rig.name, 1, "created"),
        (rig.name, 2, "published"),
        (rig.name, 3, "published"),
    ]
    assert state.keys == [f"{rig.name}:{rig.table.row.table_id}:{seq}" for seq in (1, 2, 3)]


def test_what_a_webhook_answered_last_is_kept_in_the_ledger_until_a_later_event_arrives(
    rig: TableRig, name: str, hook: tuple[Hook, str]
):
    state, url = hook
    words = ("--subscriber", name, "--webhook", f"{url}?token=s3cret")

    def seen() -> dict[str, Any]:
        shown = CliRunner(env=environment(rig.stores.settings)).invoke(cli, ["status", rig.name, "--json"])
        assert "s3cret" not in shown.output
        [one] = json.loads(shown.stdout)["tables"][0]["subscribers"]
        return dict(one)

    state.answers = [500]
    assert told(rig, *words).exit_code == TryAgain.exit_code
    found = seen()
    assert (found["subscriber"], found["events"]) == (name, 1)
    assert "it answered 500 'not now'" in found["error"]
    assert found["error_at"] is not None
    human = CliRunner(env=environment(rig.stores.settings)).invoke(cli, ["status", rig.name])
    assert "events are not delivered" in human.output
    assert "it answered 500" in human.output

    assert told(rig, *words).exit_code == 0
    assert (seen()["error"], seen()["events"]) == (None, 0)


def test_events_of_a_table_that_was_made_again_are_others_and_none_is_left_out(
    rig: TableRig, name: str, hook: tuple[Hook, str]
):
    state, url = hook
    words = ("--subscriber", name, "--webhook", url)
    publish(rig, 1)
    assert told(rig, *words).exit_code == 0
    dropped = CliRunner(env=environment(rig.stores.settings)).invoke(cli, ["table", "drop", rig.name, "--yes"])
    assert dropped.exit_code == 0, dropped.output
    rig.table = rig.harness.apply(rig.table.spec)

    assert told(rig, *words).exit_code == 0

    assert [event["event"] for event in state.arrived] == ["created", "published", "created"]
    assert len({*state.keys}) == 3


def test_a_webhook_that_is_away_is_waited_for_when_following(rig: TableRig, name: str, hook: tuple[Hook, str]):
    state, url = hook
    state.answers = [503, 503]
    command = ["events", rig.name, "--follow", "--subscriber", name, "--webhook", url]
    with following(rig, command):
        wait_until(lambda: len(state.arrived) == 1, "the first event arrived")
        publish(rig, 1)
        wait_until(lambda: len(state.arrived) == 2, "the second event arrived")
    assert [e["seq"] for e in state.arrived] == [1, 2]


@contextmanager
def following(rig: TableRig, command: list[str]) -> Iterator[None]:
    """`harness` with *command* in a process of its own, until the block ends."""
    fast = "import harness_pipelines.cli.reads.events as e; e.AGAIN_S = 0.05"
    code = f"{fast}; from harness_pipelines.cli.main import main; main()"
    with subprocess.Popen([sys.executable, "-c", code, *command], env=environment(rig.stores.settings)) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(DEADLINE_S)


def test_events_go_to_a_topic_in_order(rig: TableRig, name: str, kafka: KafkaRig):
    topic = kafka.create(3)
    publish(rig, 2)
    for _ in range(2):
        assert told(rig, "--subscriber", name, "--topic", topic).exit_code == 0
    found = [
        [json.loads(value or b"{}")["seq"] for batch in records(rig, topic, partition) for value in batch.values]
        for partition in range(3)
    ]
    assert sorted(found) == [[], [], [1, 2, 3]], "one key is in one partition"


def records(rig: TableRig, topic: str, partition: int) -> list[Any]:
    log = rig.stores.log
    end = log.watermarks(topic, [partition])[partition].end
    with log.reader(topic, {partition: 0}) as reader:
        found: list[Any] = []
        while end and sum(len(batch) for batch in found) < end:
            found += [batch for batch in reader.poll(100, 0.5) if len(batch)]
        return found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--webhook", "http://localhost:1"), "needs --subscriber NAME"),
        (("--subscriber", "a", "--webhook", "http://x", "--topic", "t"), "run one subscriber for each"),
        (("--subscriber", "a", "--webhook", "ftp://u:secret@x"), "is no address of a webhook"),
        (("--subscriber", "No Name", "--webhook", "http://x"), "names no state"),
        (("--subscriber", "a", "--topic", "no-such-topic"), "no-such-topic"),
    ],
)
def test_wrong_words_say_why(rig: TableRig, words: tuple[str, ...], message: str):
    result = told(rig, *words)
    assert result.exit_code in (1, 2)
    assert message in result.output
    assert "secret" not in result.output
