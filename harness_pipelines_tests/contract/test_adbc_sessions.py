"""Sessions of the driver that moves Arrow: what they share, and what they do not."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from unittest import mock

import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pytest
import structlog.testing

from harness_pipelines import faults
from harness_pipelines.buffers.postgres.reader import BufferReader
from harness_pipelines.buffers.postgres.writer import SegmentWriter
from harness_pipelines.chaos.proxy import PostgresProxy
from harness_pipelines.drivers.adbc import AdbcSessions
from harness_pipelines.drivers.postgres import READER, WORKER, PostgresUnreachable
from harness_pipelines.errors import OutcomeUnknown
from harness_pipelines.ledgers.postgres.notify import News
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.protocol.reading.queries import BufferQuery, BufferStats
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines_tests.contract.stores_rig import RealRig, agrees, decoded
from harness_pipelines_tests.promise import within

ORDINARY_S = 120.0  #: far more than what is given while Postgres hangs


@pytest.fixture
def fresh_dsn(make_database: Callable[[], str], ledger_dsn: str) -> str:
    """A database of its own, beside one that has the roles."""
    assert ledger_dsn
    return make_database()


def _one(session: adbc.Connection, statement: str) -> object:
    with session.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone()
    assert row is not None
    return row[0]


def test_each_session_is_its_own_with_the_role_and_the_timeouts(fresh_dsn: str):
    sessions = AdbcSessions(fresh_dsn, role=WORKER)
    first, second = sessions.open(autocommit=False), sessions.open(autocommit=True)
    assert _one(first, "SELECT pg_backend_pid()") != _one(second, "SELECT pg_backend_pid()")
    assert _one(first, "SELECT current_user::text") == WORKER
    assert _one(first, "SELECT current_setting('statement_timeout')") == "2min"
    assert _one(first, "SELECT txid_current()") == _one(first, "SELECT txid_current()")
    assert _one(second, "SELECT txid_current()") != _one(second, "SELECT txid_current()")
    first.close()
    sessions.close()
    assert _one(second, "SELECT 1") == 1  # sessions that are open go on
    second.close()


def test_the_driver_is_opened_once_and_survives_the_loss_of_all_its_sessions(
    fresh_dsn: str, monkeypatch: pytest.MonkeyPatch
):
    connect = mock.Mock(wraps=adbc.connect)
    monkeypatch.setattr(adbc, "connect", connect)
    sessions = AdbcSessions(fresh_dsn, role=READER)
    threads = [threading.Thread(target=lambda: sessions.end(sessions.open(autocommit=True))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with psycopg.connect(fresh_dsn, autocommit=True) as owner:
        owner.execute("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                      "AND datname = current_database()")  # fmt: skip
    again = sessions.open(autocommit=True)
    assert _one(again, "SELECT 1") == 1
    assert connect.call_count == 1
    again.close()
    sessions.close()


def test_a_database_that_is_away_is_the_driver_s_error_and_the_next_try_is_a_new_one(
    fresh_dsn: str, monkeypatch: pytest.MonkeyPatch
):
    sessions = AdbcSessions(fresh_dsn, role=READER)
    with monkeypatch.context() as patched:
        patched.setattr(sessions, "dsn", "host=127.0.0.1 port=1 connect_timeout=1")
        with pytest.raises(adbc.Error):
            sessions.open(autocommit=True)
    session = sessions.open(autocommit=True)
    assert _one(session, "SELECT 1") == 1
    session.close()
    sessions.close()


def test_a_session_that_cannot_be_closed_is_told_of_and_harms_nobody(fresh_dsn: str):
    sessions = AdbcSessions(fresh_dsn, role=READER)
    session = sessions.open(autocommit=True)
    refused = mock.patch.object(session._db, "close", side_effect=adbc.InternalError("underflowed", status_code=9))
    with refused as close, structlog.testing.capture_logs() as said:
        sessions.end(session)
        assert close.call_count == 2
        del session  # where the driver complains of a session that is open, which no test may
        gc.collect()
    assert [(one["event"], one["log_level"]) for one in said] == [("adbc.close_failed", "warning")]
    sessions.close()


@pytest.mark.parametrize("kept", [True, False])
def test_a_read_whose_postgres_hangs_is_given_up_and_the_next_one_goes_on(real: RealRig, kept: bool):
    """*kept*: the session was used before; else it is opened while the server hangs."""
    table = real.table()
    segment = real.ingest(table, {0: (0, 10)})
    query = BufferQuery(
        table=table.name,
        segments=(SegmentRef(name=segment.name, schema_version=1),),
        ranges={0: (0, 10)},
        schema=arrow_schema(table.spec.stored, coordinates=True),
    )
    with closing(PostgresProxy(real.dsn)) as proxy, closing(BufferReader(proxy.dsn)) as reader:
        reader._sessions.deadline_s = ORDINARY_S
        if kept:
            assert reader.read(query, BufferStats()).num_rows == 10
        proxy.freeze()
        reader._sessions.deadline_s = 0.5
        with pytest.raises(PostgresUnreachable, match=r"Postgres at 127.0.0.1:\d+ is not answering: no answer within"):
            reader.read(query, BufferStats())
        proxy.down()  # whoever still waits ends
        proxy.up()
        reader._sessions.deadline_s = ORDINARY_S
        assert reader.read(query, BufferStats()).num_rows == 10


@pytest.mark.parametrize("when", ["a new session", "the copy", "the bounds", "the commit", "the news"])
def test_an_ingest_whose_postgres_hangs_is_given_up_and_the_next_one_goes_on(real: RealRig, when: str):
    table = real.table()
    claim = real.claim(table, Stage.INGEST)
    segment = real.segments.open_segment(table)
    with closing(PostgresProxy(real.dsn)) as proxy:
        sessions = AdbcSessions(proxy.dsn, role=WORKER)
        sessions.deadline_s = ORDINARY_S
        with closing(SegmentWriter(sessions, table, lambda: claim, run_id=None)) as writer:
            if when != "a new session":
                writer.commit(segment, [decoded(table, 0, 0, 5)], confirm=agrees)
            low = 0 if when == "a new session" else 5

            def hang() -> None:
                sessions.deadline_s = 0.5
                proxy.freeze()

            def hang_at(step: str) -> Callable[[], None]:
                return hang if when == step else agrees

            hang_at("the copy")()
            hang_at("a new session")()
            faults.arm("ingest.in_transaction", hang_at("the commit"))
            faults.arm("ingest.after_commit", hang_at("the news"))
            with within(15, "a commit to a Postgres that hangs"), expected(when):
                writer.commit(segment, [decoded(table, 0, low, low + 5)], confirm=hang_at("the bounds"))
            faults.disarm()
            proxy.down()  # whoever still waits ends
            proxy.up()
            sessions.deadline_s = ORDINARY_S
            high = real.ask(
                "SELECT buffer_hi FROM harness.ingest_positions WHERE table_id = %s AND partition = 0", [table.table_id]
            )[0]["buffer_hi"]
            assert high == (low + 5 if when == "the news" else low), "nothing but what was committed is there"
            writer.commit(segment, [decoded(table, 0, high, high + 5)], confirm=agrees)
        sessions.close()


def expected(when: str) -> AbstractContextManager[object]:
    if when == "the news":
        return nullcontext()
    if when == "the commit":
        return pytest.raises(OutcomeUnknown, match="no answer within")
    return pytest.raises(PostgresUnreachable, match=r"is not answering: no answer within")


def test_news_of_a_postgres_that_hangs_end_when_they_are_closed(real: RealRig):
    with closing(PostgresProxy(real.dsn)) as proxy:
        proxy.freeze()
        news = News(proxy.dsn)
        news.wait(1, news.heard(1), 0.1)
        with within(8, "the end of the news"):
            news.close()
