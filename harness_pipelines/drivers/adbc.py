"""Sessions of the ADBC driver, which moves Arrow into and out of Postgres."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, contextmanager, suppress
from math import isinf
from queue import SimpleQueue
from typing import TypeVar

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc
import structlog

from harness_pipelines.drivers.postgres_session import deadline_s, session_dsn
from harness_pipelines.secret import redact

log = structlog.get_logger(__name__)
T = TypeVar("T")
Questions = SimpleQueue[Callable[[], None]]  #: of one thread
_idle: list[Questions] = []  # of threads that wait for the next question; as many as were in use at a time
os.register_at_fork(after_in_child=_idle.clear)  # the child has none of the threads


class AdbcTimeout(adbc_driver_manager.OperationalError):
    """Postgres runs but does not answer. The session still waits: it must not be used or closed."""

    def __init__(self, waited_s: float) -> None:
        super().__init__(
            f"no answer within {waited_s:.0f} s, the connection was given up",
            status_code=adbc_driver_manager.AdbcStatusCode.TIMEOUT,
        )


def within(limit_s: float, ask: Callable[[], T], *, late: Callable[[T | None], None]) -> T:
    """What *ask* returns. Raises: AdbcTimeout after *limit_s*, and what *ask* raises.

    The driver has no time limit, and a stopped server's kernel continues to acknowledge what it is sent. So *ask* runs
    in another thread, which is left to itself where it is late. What it used is free again when it has ended at last:
    *late* then puts that away, and gets what *ask* returned, or None. Threads are kept: to start one costs as much as
    a small statement.
    """
    answer: Future[T] = Future()

    def run() -> None:
        found: T | None = None
        try:
            try:
                found = ask()
            except BaseException as error:  # the caller gets it, whatever it is
                answer.set_exception(error)
            else:
                answer.set_result(found)
        except InvalidStateError:  # given up
            late(found)

    _idle_thread().put(run)
    try:
        return answer.result(timeout=None if isinf(limit_s) else limit_s)
    except TimeoutError:
        if answer.cancel():
            raise AdbcTimeout(limit_s) from None
        return answer.result()  # it came at the last moment, or *ask* raised this


def _idle_thread() -> Questions:
    try:
        return _idle.pop()
    except IndexError:
        questions: Questions = SimpleQueue()
        threading.Thread(target=_answer, args=(questions,), name="postgres-answer", daemon=True).start()
        return questions


def _answer(questions: Questions) -> None:
    """Do what is asked, one after the other; what takes for ever keeps this thread alone."""
    while True:
        questions.get()()
        _idle.append(questions)


@contextmanager
def cursor_of(session: adbc.Connection) -> Iterator[adbc.Cursor]:
    """A cursor, which is closed with the block unless it still waits for an answer."""
    cursor = session.cursor()
    with ExitStack() as closed:
        closed.enter_context(cursor)
        try:
            yield cursor
        except AdbcTimeout:
            closed.pop_all()
            raise


class AdbcSessions:
    """Sessions of one role, opened as they are needed. Thread-safe.

    The driver learns every type of the database when it is opened, the row types of all tables among them: in a
    database of some thousand tables that is most of a second. It is opened once; its own session stays idle.
    It counts its sessions in a plain integer, and threads that open and close theirs at the same moment can make that
    wrong. It then refuses to be closed, after it has let go of the socket: nothing is lost by not asking again.
    """

    def __init__(self, dsn: str, *, role: str | None) -> None:
        self.dsn = session_dsn(dsn, role=role)
        self.deadline_s = deadline_s(self.dsn)  #: how long an answer is waited for
        self._driver: adbc.Connection | None = None
        self._lock = threading.Lock()
        self._idle: list[adbc.Connection] = []

    def open(self, *, autocommit: bool) -> adbc.Connection:
        """A session for one thread, which gives it to `end`. Raises: AdbcTimeout; adbc_driver_manager.Error."""
        return within(self.deadline_s, lambda: self._open(autocommit=autocommit), late=self._end_late)

    def _open(self, *, autocommit: bool) -> adbc.Connection:
        with self._lock:
            if self._driver is None:
                self._driver = adbc.connect(self.dsn, autocommit=True)
            driver = self._driver
        session = driver.adbc_clone()
        if autocommit:
            session.adbc_connection.set_autocommit(True)
        return session

    def take(self) -> adbc.Connection:
        """A session with transactions: an idle one, or a new one. Raises: as `open`."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self.open(autocommit=False)

    def give_back(self, session: adbc.Connection) -> None:
        """Keep a session for the next call of `take`. As many are kept as were in use at a time."""
        with self._lock:
            self._idle.append(session)

    def end_idle(self) -> None:
        """Close those that nobody uses: where one was lost, the others may lead to the same server that is gone."""
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            self.end(session)

    def end(self, session: adbc.Connection) -> None:
        """Close a session, whatever state it is in: Postgres may have hung up before."""
        try:
            session.close()
        except (adbc_driver_manager.Error, RuntimeError) as error:
            log.warning("adbc.close_failed", error=redact(str(error)))
            with suppress(adbc_driver_manager.Error, RuntimeError):
                session.close()  # a statement that was cut off was still open in the driver's books
            session._closed = True  # or the collector would try once more, and complain

    def _end_late(self, session: adbc.Connection | None) -> None:
        if session is not None:
            self.end(session)

    def asked(self, session: adbc.Connection, cursor: adbc.Cursor | None, ask: Callable[[], T]) -> T:
        """What *ask* returns, which uses *cursor* of *session*. Raises: AdbcTimeout, and what *ask* raises.

        After AdbcTimeout both are in use, and closed when an answer has come after all.
        """

        def late(_: T | None) -> None:
            with suppress(adbc_driver_manager.Error, RuntimeError, OSError):
                if cursor is not None:
                    cursor.close()
            self.end(session)

        return within(self.deadline_s, ask, late=late)

    def close(self) -> None:
        """Close the driver and its idle sessions. Sessions that are open continue."""
        self.end_idle()
        with self._lock:
            driver, self._driver = self._driver, None
        if driver is not None:
            self.end(driver)
