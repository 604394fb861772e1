"""A worker that is told to end does not wait for Spark, and what Spark did for it is begun again by the next one."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, LiteralString
from unittest import mock
from urllib.parse import urlsplit

import pytest
from pyspark.sql.connect.client import ChannelBuilder, SparkConnectClient

import harness_pipelines as hp
from harness_pipelines.chaos.proxy import TcpProxy
from harness_pipelines.engines.spark import session as spark
from harness_pipelines.engines.spark import write as spark_write
from harness_pipelines.engines.spark.session import SessionLost, SparkAway
from harness_pipelines.engines.spark.sessions import DEAF_S
from harness_pipelines.ports.errors import SparkInterrupted
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.promise import within
from harness_pipelines_tests.rig import TIER, TableRig, running

TASKS = 40_000  #: which take minutes
MOVE: Any = SimpleNamespace(move_id=7, attempt=2)
TABLE: Any = SimpleNamespace(name="shop.orders")
LEASE = timedelta(seconds=30)
EVER_S = 200.0
PROMPT_S = 10.0  #: far less than Spark would take for what it is asked
PINGS = "grpc.http2.max_pings_without_data"
NOTICED_S = 90.0  #: a ping without an answer, then some new connections without one


@pytest.fixture
def other(settings: Settings) -> Iterator[hp.Harness]:
    """A harness that may end: it is not asked for Spark any more then."""
    with hp.connect(settings) as opened:
        yield opened


def count_for_long(session: Any, begun: Path) -> None:
    """Many short tasks, between which Spark looks whether it was interrupted; *begun* is there when one has run."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        begun.touch()
        yield from batches

    session.range(0, TASKS, 1, TASKS).mapInArrow(task, "id long").selectExpr("sum(id)").collect()


@pytest.mark.usefixtures("by_spark")
def test_a_worker_that_is_interrupted_gives_up_what_spark_does_for_it(
    other: hp.Harness, harness: hp.Harness, kafka: KafkaRig, tmp_path: Path
):
    rig = TableRig(harness, kafka)
    rig.produce(20)
    rig.ingest()
    begun = tmp_path / "begun"

    def write(frame: Any, _target: object) -> None:
        count_for_long(frame.sparkSession, begun)

    worker = Worker(other.stores, [rig.table.row], WorkerOptions(stages=TIER, until_idle=True))
    running = threading.Thread(target=worker.run)
    with mock.patch.object(spark_write, "append_to_branch", write):
        running.start()
        wait_until(begun.exists, "Spark is at work")
        with within(PROMPT_S, "the end of the worker"):
            worker.interrupt()
            running.join(EVER_S)

    assert not running.is_alive()
    assert worker.progress[0].trouble == {}, "nobody has to look at it"
    move = harness.stores.ledger.open_move(rig.table.row, Stage.TIER, shard=0)
    assert move is not None, "it is open for the next attempt"
    assert harness.stores.ledger.note_failure(move, error="asked for their number", counts=False) == 0
    rig.tier()
    rig.assert_exact()


@pytest.mark.long
def test_a_worker_whose_claim_is_lost_gives_up_what_spark_does_under_it(
    other: hp.Harness, harness: hp.Harness, kafka: KafkaRig, tmp_path: Path
):
    """Nothing of it could be published, and on the same Spark the next holder's attempt would share its places."""
    rig = TableRig(harness, kafka)
    rig.produce(20)
    rig.ingest()
    begun = tmp_path / "begun"

    def write(frame: Any, _target: object) -> None:
        count_for_long(frame.sparkSession, begun)

    def claims(changes: LiteralString) -> None:
        with harness.stores.database.session() as connection:
            connection.execute(f"UPDATE harness.claims SET {changes} WHERE table_id = %s", [rig.table.row.table_id])

    worker = Worker(other.stores, [rig.table.row], WorkerOptions(stages=TIER, lease=LEASE))
    with mock.patch.object(spark_write, "append_to_branch", write), running(worker):
        wait_until(begun.exists, "Spark is at work")
        claims("holder = gen_random_uuid(), epoch = epoch + 1, lease_until = clock_timestamp() + interval '1 hour'")
        tally = worker.progress[0].tallies[Stage.TIER]
        with within(LEASE.total_seconds(), "the end of its attempt"):
            wait_until(lambda: tally.failed >= 1, "its attempt has ended", deadline_s=EVER_S)
    move = harness.stores.ledger.open_move(rig.table.row, Stage.TIER, shard=0)
    assert move is not None, "it is open for the next attempt"
    assert harness.stores.ledger.note_failure(move, error="asked for their number", counts=False) == 0
    claims("lease_until = clock_timestamp()")
    rig.tier()
    rig.assert_exact()


def test_another_process_s_work_in_the_same_spark_goes_on(other: hp.Harness, harness: hp.Harness, tmp_path: Path):
    begun, interrupted = tmp_path / "begun", threading.Event()

    def work() -> None:
        try:
            with other.stores.spark_sessions.working() as session, spark_write.explained(TABLE, MOVE):
                count_for_long(session, begun)
        except SparkInterrupted:
            interrupted.set()

    threading.Thread(target=work, daemon=True).start()
    wait_until(begun.exists, "Spark is at work")
    with harness.stores.spark_sessions.working() as session:
        other.stores.spark_sessions.interrupt()
        with within(PROMPT_S, "the end of their work"):
            assert interrupted.wait(EVER_S), "their work has ended"
        assert session.range(5).count() == 5

    with pytest.raises(SparkInterrupted), other.stores.spark_sessions.working():
        pass


def test_a_defect_in_interrupted_work_keeps_its_name(other: hp.Harness):
    with pytest.raises(AssertionError, match="a defect"), other.stores.spark_sessions.working():
        other.stores.spark_sessions.interrupt()
        raise AssertionError("a defect")


def test_a_session_whose_server_goes_away_while_it_is_opened_is_closed(tmp_path: Path):
    """One that is left open keeps the process from ending when gRPC still has a call on it."""

    def opened_clients() -> int:
        return sum(type(found) is SparkConnectClient and not found.is_closed for found in gc.get_objects())

    before = opened_clients()
    with socket.create_server(("127.0.0.1", 0)) as server, mock.patch.object(spark, "RETRIES_MAX", 1):

        def hang_up() -> None:
            with suppress(OSError):  # closed at the end of the test
                while True:
                    server.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        remote = f"sc://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(spark.SparkUnreachable, match="is not answering"):
            spark.open_spark(Settings(home=tmp_path, spark=remote))
        assert opened_clients() <= before
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def hanging(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[hp.Harness, TcpProxy]]:
    """A harness whose way to Spark can freeze, and who would notice within seconds."""
    assert settings.spark is not None
    defaults = [(name, value) for name, value in ChannelBuilder.GRPC_DEFAULT_OPTIONS if name not in spark.KEEPALIVE]
    monkeypatch.setattr(ChannelBuilder, "GRPC_DEFAULT_OPTIONS", defaults)
    times = dict.fromkeys(spark.KEEPALIVE, 2_000) | {"grpc.keepalive_time_ms": 5_000}
    monkeypatch.setattr(spark, "KEEPALIVE", {**times, PINGS: spark.KEEPALIVE[PINGS]})
    monkeypatch.setattr(spark, "RETRIES_MAX", 1)
    port = urlsplit(settings.spark).port or 0
    proxy = TcpProxy("127.0.0.1", port)
    with hp.connect(replace(settings, spark=settings.spark.replace(f":{port}/", f":{proxy.port}/"))) as opened:
        yield opened, proxy
        (tmp_path / "over").touch()  # Spark was never told to stop
        proxy.close()


def at_work(harness: hp.Harness, folder: Path) -> tuple[threading.Thread, list[BaseException]]:
    """A thread for which Spark does something until the test is over, and what ends it."""
    ended: list[BaseException] = []
    begun, over = folder / "begun", folder / "over"

    def task(batches: Iterable[Any]) -> Iterable[Any]:
        begun.touch()
        while not over.exists():
            threading.Event().wait(0.1)
        yield from batches

    def work() -> None:
        try:
            with harness.stores.spark_sessions.working() as session, spark_write.explained(TABLE, MOVE):
                session.range(0, 1, 1, 1).mapInArrow(task, "id long").collect()
        except (SparkAway, SparkInterrupted) as error:
            ended.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    wait_until(begun.exists, "Spark is at work")
    return thread, ended


@pytest.mark.long
def test_a_spark_that_hangs_is_noticed_and_named(hanging: tuple[hp.Harness, TcpProxy], tmp_path: Path):
    """Nothing would ever tell TCP: who waits for an answer has nothing to send."""
    harness, proxy = hanging
    thread, ended = at_work(harness, tmp_path)
    proxy.freeze()
    thread.join(NOTICED_S)
    [error] = ended
    assert type(error) in (SparkAway, SessionLost)
    assert "move 7, attempt 2" in str(error)


@pytest.mark.long
def test_who_ends_while_spark_hangs_does_not_wait_for_it(
    hanging: tuple[hp.Harness, TcpProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    harness, proxy = hanging
    monkeypatch.setattr(spark, "KEEPALIVE", dict.fromkeys(spark.KEEPALIVE, 3_600_000))
    thread, ended = at_work(harness, tmp_path)
    proxy.freeze()

    def is_over() -> bool:
        harness.stores.spark_sessions.interrupt()
        return not thread.is_alive()

    wait_until(is_over, "the work is given up", deadline_s=6 * DEAF_S)
    assert [type(error) for error in ended] == [SparkInterrupted]
