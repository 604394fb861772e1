"""Sessions of the driver that moves Arrow into and out of Postgres."""

from __future__ import annotations

import threading
from contextlib import suppress

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc
import structlog

from harness_pipelines.spec.settings import redact
from harness_pipelines.stores.postgres import session_dsn

log = structlog.get_logger(__name__)


class AdbcSessions:
    """Sessions of one role, opened as they are needed. Thread-safe.

    The driver learns every type of the database when it is opened, the row types of all tables among them: in a
    database of some thousand tables that is most of a second. It is opened once; its own session stays idle.
    It counts its sessions and refuses to close on a wrong count. Threads that close theirs at the same moment may be
    what makes it wrong (not proven), so they do it one after the other; they open them at once, for while Postgres is
    away that takes as long as a connection may.
    """

    def __init__(self, dsn: str, *, role: str | None) -> None:
        self.dsn = session_dsn(dsn, role=role)
        self._driver: adbc.Connection | None = None
        self._lock, self._closing = threading.Lock(), threading.Lock()

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
        """Close a session, whatever state it is in."""
        with self._closing:
            _close(session)

    def close(self) -> None:
        """Close the driver. Sessions that are open go on."""
        with self._lock:
            driver, self._driver = self._driver, None
        if driver is not None:
            self.end(driver)


def _close(connection: adbc.Connection) -> None:
    """Postgres may have hung up before; a statement that was cut off may still be open in the driver's books."""
    try:
        connection.close()
    except (adbc_driver_manager.Error, RuntimeError) as error:
        log.warning("adbc.close_failed", error=redact(str(error)))
        with suppress(adbc_driver_manager.Error, RuntimeError):
            connection.close()  # it has let go of the socket; now it says so, too
