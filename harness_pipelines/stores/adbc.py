"""Sessions of the driver that moves Arrow into and out of Postgres."""

from __future__ import annotations

import threading
from contextlib import suppress

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc
import structlog

from harness_pipelines.secret import redact
from harness_pipelines.stores.postgres import session_dsn

log = structlog.get_logger(__name__)


class AdbcSessions:
    """Sessions of one role, opened as they are needed. Thread-safe.

    The driver learns every type of the database when it is opened, the row types of all tables among them: in a
    database of some thousand tables that is most of a second. It is opened once; its own session stays idle.
    It counts its sessions in a plain integer, and threads that open and close theirs at the same moment can make that
    wrong. It then refuses to be closed, after it has let go of the socket: nothing is lost by not asking again.
    """

    def __init__(self, dsn: str, *, role: str | None) -> None:
        self.dsn = session_dsn(dsn, role=role)
        self._driver: adbc.Connection | None = None
        self._lock = threading.Lock()

    def open(self, *, autocommit: bool) -> adbc.Connection:
        """A session for one thread at a time, which gives it to `end`. Raises: adbc_driver_manager.Error."""
        with self._lock:
            if self._driver is None:
                self._driver = adbc.connect(self.dsn, autocommit=True)
            driver = self._driver
        session = driver.adbc_clone()
        if autocommit:
            session.adbc_connection.set_autocommit(True)
        return session

    def end(self, session: adbc.Connection) -> None:
        """Close a session, whatever state it is in: Postgres may have hung up before."""
        try:
            session.close()
        except (adbc_driver_manager.Error, RuntimeError) as error:
            log.warning("adbc.close_failed", error=redact(str(error)))
            with suppress(adbc_driver_manager.Error, RuntimeError):
                session.close()  # a statement that was cut off was still open in the driver's books
            session._closed = True  # or the collector would try once more, and complain

    def close(self) -> None:
        """Close the driver. Sessions that are open go on."""
        with self._lock:
            driver, self._driver = self._driver, None
        if driver is not None:
            self.end(driver)
