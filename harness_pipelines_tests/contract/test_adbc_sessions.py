"""Sessions of the driver that moves Arrow: what they share, and what they do not."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from unittest import mock

import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pytest
import structlog.testing

from harness_pipelines.stores.adbc import AdbcSessions
from harness_pipelines.stores.postgres import READER, WORKER


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
        owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
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
