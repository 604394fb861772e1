"""What Spark Connect raises when its session is closed by another thread, by the names of the harness."""

from __future__ import annotations

import logging
import re
import threading
import traceback
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from harness_pipelines.engines.spark.session import SessionLost, SparkAway, SparkBroken, is_lost_channel, unreported
from harness_pipelines.engines.spark.troubles import SparkLoginFailed
from harness_pipelines.engines.spark.write import SparkFailed, explained
from harness_pipelines.sources.registry import RegistryAway, RegistryLoginFailed

MOVE: Any = SimpleNamespace(move_id=7, attempt=2)
TABLE: Any = SimpleNamespace(name="shop.orders")


@pytest.fixture
def closed() -> ValueError:
    """What gRPC itself raises for a call on a channel that was closed."""
    channel = grpc.insecure_channel("127.0.0.1:1")
    call = channel.unary_unary("/spark.connect.SparkConnectService/Config")
    channel.close()
    with pytest.raises(ValueError, match="closed") as raised:
        call(b"")
    return raised.value


def of_a_task(error: type[Exception], *arguments: Any, **named: Any) -> PySparkException:
    """What Spark makes of an error in a task of Python: its traceback, with the line of code that raised it."""
    try:
        try:
            raise ValueError("an answer that is none")
        except ValueError as cause:
            raise error(*arguments, **named) from cause
    except error as raised:
        return PySparkException("Job aborted\n" + "".join(traceback.format_exception(raised)))


def test_of_a_registry_that_a_task_asked_the_words_are_shown_and_not_the_code():
    away = of_a_task(RegistryAway, "http://r", doing="asking", detail="HTTP 503")
    with pytest.raises(SparkAway, match=r"RegistryAway: the schema registry at http://r gave"), explained(TABLE, MOVE):
        raise away
    wanted = r"HARNESS_REGISTRY_BASIC.*RegistryLoginFailed: the login at the schema registry"
    with pytest.raises(SparkLoginFailed, match=wanted), explained(TABLE, MOVE):
        raise of_a_task(RegistryLoginFailed, "http://r", detail="HTTP 401")


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (
            "java.lang.NoClassDefFoundError: Could not initialize class org.apache.iceberg.x.Formats$1",
            "the class org.*1",
        ),
        ("Caused by: java.lang.ExceptionInInitializerError: java.io.IOException", "a class"),
    ],
)
def test_a_class_that_the_jvm_could_not_initialize_is_no_fault_of_the_move_and_asks_for_a_restart(said, what):
    wanted = f"shop.orders: .*move 7.* failed to initialize {what}, and .*: restart the Spark server"
    with pytest.raises(SparkBroken, match=wanted) as raised, explained(TABLE, MOVE):
        raise PySparkException(f"Job aborted due to stage failure: Task 0 failed: {said}\n\tat org.apache")
    assert isinstance(raised.value, SparkAway), "it is tried again and not counted as a failed attempt"


def test_a_mechanism_of_login_that_kafka_does_not_have_is_a_refused_login():
    said = "org.apache.kafka.common.errors.UnsupportedSaslMechanismException: Client SASL mechanism 'PLAIN' not enabled"
    with pytest.raises(SparkLoginFailed, match="HARNESS_KAFKA_SASL_.*'PLAIN' not enabled"), explained(TABLE, MOVE):
        raise PySparkException(said)


def test_a_session_that_another_stage_closed_is_waited_for(closed: ValueError):
    assert is_lost_channel(closed)
    wanted = "shop.orders: Spark could not stage move 7, attempt 2: the Spark server or the session went away"
    with pytest.raises(SparkAway, match=wanted), explained(TABLE, MOVE):
        raise closed


def test_a_server_that_ends_within_its_answer_is_waited_for():
    """What `grpc_status` raises when a server has sent an error, and the connection broke before its answer ended."""
    said = "Code in Status proto (StatusCode.INTERNAL) doesn't match status code (StatusCode.UNAVAILABLE)"
    sent = Status(code=grpc.StatusCode.INTERNAL.value[0], message="the context is gone").SerializeToString()
    call: Any = SimpleNamespace(
        trailing_metadata=lambda: (("grpc-status-details-bin", sent),),
        code=lambda: grpc.StatusCode.UNAVAILABLE,
        details=lambda: "Connection reset by peer",
    )
    with pytest.raises(SessionLost, match=re.escape(said)), explained(TABLE, MOVE):
        rpc_status.from_call(call)


def test_a_value_error_of_another_kind_is_no_lost_session():
    with pytest.raises(ValueError, match="^of the code$"), explained(TABLE, MOVE):
        raise ValueError("of the code")


@pytest.mark.parametrize(
    "said",
    [
        "FATAL: sorry, too many clients already",
        'FATAL: too many connections for role "harness_worker"',
        "FATAL: remaining connection slots are reserved for roles with the SUPERUSER attribute",
        "FATAL: the database system is starting up",
        "FATAL: terminating connection due to administrator command",
    ],
)
def test_a_postgres_that_takes_no_more_sessions_is_waited_for_and_does_not_count_against_the_move(said: str):
    error = PySparkException(
        f"Job aborted due to stage failure: Lost task 0.0: org.postgresql.util.PSQLException: {said}"
    )
    with pytest.raises(SparkAway, match="move 7, attempt 2"), explained(TABLE, MOVE):
        raise error


@pytest.mark.parametrize(
    "said",
    [
        "(org.postgresql.util.PSQLException) The connection attempt failed.",
        "(org.postgresql.util.PSQLException) An I/O error occurred while sending to the backend.",
        "(org.postgresql.util.PSQLException) This connection has been closed.",
        "(org.apache.iceberg.jdbc.UncheckedSQLException) Failed to connect: jdbc:postgresql://127.0.0.1:5432/harness",
        "(org.apache.iceberg.jdbc.UncheckedSQLException) Failed to get table shop.orders from catalog harness",
        "(org.apache.iceberg.jdbc.UncheckedSQLException) Unknown failure",
    ],
)
def test_a_postgres_that_goes_away_under_spark_does_not_count_against_the_move(said: str):
    """Or three restarts would halve a move, and some more hold its stage by name."""
    with pytest.raises(SparkAway, match="move 7, attempt 2"), explained(TABLE, MOVE):
        raise PySparkException(said)


@pytest.mark.parametrize(
    "said",
    [
        'StatusCode.UNAVAILABLE details = "keepalive watchdog timeout"',
        'StatusCode.RESOURCE_EXHAUSTED details = "GOAWAY received; Error code: 11; Debug Text: too_many_pings"',
    ],
)
def test_a_connection_that_pings_ended_does_not_count_against_the_move(said: str):
    with pytest.raises(SparkAway, match="move 7, attempt 2"), explained(TABLE, MOVE):
        raise PySparkException(f"<_MultiThreadedRendezvous of RPC that terminated with: status = {said}>")


def test_what_spark_cannot_do_counts_against_the_move():
    with pytest.raises(SparkFailed, match="move 7, attempt 2"), explained(TABLE, MOVE):
        raise PySparkException("Job aborted due to stage failure: java.lang.OutOfMemoryError: Java heap space")


def test_any_other_wrong_value_is_a_defect():
    with pytest.raises(ValueError, match="no such thing"), explained(TABLE, MOVE):
        raise ValueError("no such thing")


@pytest.mark.parametrize(
    "said",
    [
        "org.postgresql.util.PSQLException: FATAL: the database system is starting up",
        "java.net.ConnectException: Connection refused",
        "No space left on device",
    ],
)
def test_what_a_task_could_not_reach_says_nothing_of_the_session(said: str):
    with pytest.raises(SparkAway) as raised, explained(TABLE, MOVE):
        raise PySparkException(f"Job aborted due to stage failure: Lost task 0.0: {said}")
    assert not isinstance(raised.value, SessionLost)


@pytest.mark.parametrize("said", ["[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid", "StatusCode.UNAVAILABLE"])
def test_a_session_that_its_server_forgot_is_of_no_use_any_more(said: str):
    with pytest.raises(SessionLost), explained(TABLE, MOVE):
        raise PySparkException(said)


def test_pyspark_reports_errors_as_before_after_they_were_silenced_and_those_of_other_threads_all_along():
    """It makes a logger of its class, and logs with keywords that none of another class takes."""
    with unreported():
        pass
    shown: list[str] = []
    reports = PySparkLogger.getLogger("SQLQueryContextLogger")
    handler = logging.Handler()
    handler.emit = lambda record: shown.append(record.getMessage())  # type: ignore[method-assign]
    reports.addHandler(handler)

    def report(text: str) -> None:
        reports.error(text, errorClass="WRONG")

    try:
        with unreported():
            report("silenced")
            with unreported():
                report("silenced too")
            other = threading.Thread(target=report, args=["of another thread"])
            other.start()
            other.join(60.0)
        report("afterwards")
    finally:
        reports.removeHandler(handler)
    assert shown == ["of another thread", "afterwards"]
