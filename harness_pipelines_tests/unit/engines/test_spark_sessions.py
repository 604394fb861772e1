"""Channels to Spark that notice when it hangs, and an interrupt that does not wait for one that does."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.connect.client import ChannelBuilder, DefaultChannelBuilder
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
from pyspark.sql.connect.session import SparkSession

from harness_pipelines.engines.spark import session
from harness_pipelines.engines.spark import sessions as spark_sessions
from harness_pipelines.engines.spark.session import SessionLost, SparkAway
from harness_pipelines.engines.spark.sessions import SparkSessions
from harness_pipelines.ports.errors import SparkInterrupted
from harness_pipelines.protocol.claims import FencedOut
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.producer import DEADLINE_S, wait_until

DEFAULTS = [("grpc.max_send_message_length", 1), ("grpc.max_receive_message_length", 2)]


@pytest.fixture(autouse=True)
def _defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark's own; what a test sets is taken back."""
    monkeypatch.setattr(ChannelBuilder, "GRPC_DEFAULT_OPTIONS", list(DEFAULTS))


def options() -> list[tuple[str, Any]]:
    return DefaultChannelBuilder("sc://127.0.0.1:1")._channel_options


def test_every_channel_to_spark_connect_asks_whether_its_server_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    opened: list[list[tuple[str, Any]]] = []

    def connect(remote: str) -> Any:
        opened.append(options())
        return SimpleNamespace()

    monkeypatch.setattr(session, "_connect", connect)
    session.open_spark(Settings(home=tmp_path, spark="sc://127.0.0.1:1"))

    assert dict(opened[0]) == {**session.KEEPALIVE, **dict(DEFAULTS)}


def test_a_second_session_changes_nothing_and_a_users_own_settings_stay():
    ChannelBuilder.GRPC_DEFAULT_OPTIONS.append(("grpc.keepalive_time_ms", 7))
    session.prepare_connect()
    session.prepare_connect()

    assert dict(options())["grpc.keepalive_time_ms"] == 7
    assert len(options()) == len(dict(options())) == len(DEFAULTS) + len(session.KEEPALIVE)


def test_a_session_that_the_collector_finds_waits_for_no_lock():
    """The collector runs in any thread, also in one that holds what PySpark's farewell would wait for."""
    session.prepare_connect()
    pool = ExecutePlanResponseReattachableIterator._get_or_create_release_thread_pool()
    sessions = [SparkSession("sc://127.0.0.1:1")]

    def drop() -> None:
        sessions.clear()
        gc.collect()

    collecting = threading.Thread(target=drop, daemon=True)
    gc.collect()  # what other tests have left may wait for the lock
    with pool._shutdown_lock:
        collecting.start()
        collecting.join(DEADLINE_S)
        assert not collecting.is_alive()


class Deaf:
    """A Connect session whose server does not answer, until its channel is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.asked = 0
        self.client = SimpleNamespace(_channel=SimpleNamespace(close=self.closed.set))

    def interruptTag(self, _tag: str) -> None:
        self.asked += 1
        self.closed.wait()


@pytest.fixture
def deaf() -> Iterator[Deaf]:
    made = Deaf()
    yield made
    made.closed.set()


def test_an_interrupt_returns_though_spark_does_not_answer_and_then_hangs_up(
    tmp_path: Path, deaf: Deaf, monkeypatch: pytest.MonkeyPatch
):
    sessions = SparkSessions(Settings(home=tmp_path, spark="sc://127.0.0.1:1"))
    held: Any = deaf
    sessions._staging = held
    sessions.interrupt()
    sessions.interrupt()
    wait_until(lambda: deaf.asked == 1, "Spark is asked once")
    assert not deaf.closed.is_set()

    monkeypatch.setattr(spark_sessions, "DEAF_S", 0.0)
    sessions.interrupt()
    assert deaf.closed.is_set()


def test_an_interrupt_does_not_wait_for_who_opens_a_session(tmp_path: Path):
    sessions = SparkSessions(Settings(home=tmp_path, spark="sc://127.0.0.1:1"))
    with sessions._lock:
        asking = threading.Thread(target=sessions.interrupt, daemon=True)
        asking.start()
        asking.join(DEADLINE_S)
        assert not asking.is_alive()


class Session:
    """What `SparkSessions` asks of a session."""

    is_stopped = False

    def addTag(self, _tag: str) -> None: ...

    def removeTag(self, _tag: str) -> None: ...


class Sessions:
    """Sessions that are opened and closed without a server."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.closed: list[Any] = []
        monkeypatch.setattr(spark_sessions, "open_spark", lambda _settings, opener: Session())
        monkeypatch.setattr(spark_sessions, "close_spark", lambda session, _settings: self.closed.append(session))
        monkeypatch.setattr(spark_sessions, "settle", lambda _session: None)
        self.own = SparkSessions(Settings(home=folder, spark="sc://127.0.0.1:1"))


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sessions:
    return Sessions(tmp_path, monkeypatch)


def test_a_session_that_one_stage_gave_up_is_closed_by_the_last_that_works_in_it(sessions: Sessions):
    with sessions.own.working() as first:
        with pytest.raises(SessionLost), sessions.own.working() as same:
            assert same is first
            raise SessionLost("the server forgot it")
        assert sessions.closed == [], "another stage is at work in it"
        with sessions.own.working() as other:
            assert other is not first
    assert sessions.closed == [first]
    with sessions.own.working() as again:
        assert again is other


def test_a_stage_that_waits_for_something_else_keeps_the_session(sessions: Sessions):
    with pytest.raises(SparkAway), sessions.own.working() as first:
        raise SparkAway("a task could not reach Postgres")
    assert sessions.closed == []
    with sessions.own.working() as again:
        assert again is first


def test_an_interrupt_reaches_work_in_a_session_that_was_given_up(sessions: Sessions):
    asked: list[Any] = []
    with suppress(SparkInterrupted), sessions.own.working() as first:
        first.interruptTag = lambda _tag: asked.append(first)  # type: ignore[method-assign,assignment,return-value]
        sessions.own.forget(first)
        sessions.own.interrupt()
        wait_until(lambda: asked == [first], "the work is interrupted")


def test_work_that_is_given_up_is_interrupted_alone_and_its_thread_learns_that_its_claim_is_lost(sessions: Sessions):
    asked: list[str] = []
    tags: list[str] = []
    with sessions.own.working(owner="theirs"), pytest.raises(FencedOut), sessions.own.working(owner="mine") as session:
        session.interruptTag = asked.append  # type: ignore[method-assign,assignment]
        tags += [work.tag for work in sessions.own._works if work.owner == "mine"]
        sessions.own.give_up("mine")
        wait_until(lambda: asked == tags, "Spark is asked to end it")
        sessions.own.give_up("nobody's")
        raise SparkAway("Spark: the operation was cancelled")
    assert len(asked) == 1
    with sessions.own.working(owner="mine"):
        pass
