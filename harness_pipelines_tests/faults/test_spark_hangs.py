"""A Postgres that is there and does not answer: what Spark reads from it ends in time, by name."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import harness_pipelines as hp
from harness_pipelines.chaos.standby import Server
from harness_pipelines.engines.spark.jdbc import jdbc_options
from harness_pipelines.engines.spark.session import SparkAway
from harness_pipelines.ledgers.postgres.migrations import migrate
from harness_pipelines.services import Endpoints
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.promise import within
from harness_pipelines_tests.rig import TableRig, new_warehouse, settings_for, with_session

STATEMENT_S = 3
EVER_S = 400.0
END_S = 60.0  #: far less than for ever; a task's connection and each of its answers is waited for apart


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(tmp_path / "own")
    found.start(fresh=True)
    try:
        yield found
    finally:
        found.end(signal.SIGKILL)


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """The server's processes are stopped, with all that they serve."""
    pids = server.processes()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_the_limit_of_an_answer_is_a_little_above_that_of_a_statement():
    given = "host=a user=u dbname=d"
    assert "socketTimeout=125&" in jdbc_options(given, role=None).url
    assert "socketTimeout=8&" in jdbc_options(f"{given} options='-c statement_timeout=2500'", role=None).url
    assert "socketTimeout" not in jdbc_options(f"{given} options='-c statement_timeout=0'", role=None).url


@pytest.mark.long
def test_a_move_ends_by_name_when_postgres_hangs_under_it_and_goes_on_afterwards(
    endpoints: Endpoints, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
):
    dsn = with_session(server.dsn, statement_timeout=f"{STATEMENT_S}s")
    migrate(dsn)
    warehouse = new_warehouse(endpoints, tmp_path)
    settings = settings_for(endpoints, tmp_path, dsn=dsn, warehouse=warehouse, catalog_name="hangs")
    kafka = KafkaRig(endpoints.kafka or "", properties=endpoints.kafka_login)
    with closing(kafka), hp.connect(replace(settings)) as harness:
        rig = TableRig(harness, kafka, partitions=1)
        rig.produce(20)
        rig.ingest()
        frame = rig.table.to_spark(harness.stores.spark())
        with stopped(server):
            raised: list[BaseException] = []

            def count() -> None:
                from harness_pipelines.engines.spark.troubles import explained

                try:
                    with explained("the read", outcome="nothing is returned"):
                        frame.count()
                except BaseException as error:
                    raised.append(error)

            asking = threading.Thread(target=count, daemon=True)
            with within(END_S, "a read by Spark from a Postgres that hangs"):
                asking.start()
                asking.join(EVER_S)
            assert not asking.is_alive(), "Spark waits for ever"
        assert isinstance(raised[0], SparkAway), repr(raised[0])[:2000]
        rig.tier()
        rig.assert_exact()
