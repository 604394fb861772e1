"""Sessions of the driver that moves Arrow into and out of Postgres."""

from __future__ import annotations

import threading
from contextlib import suppress

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc

from harness_pipelines.stores.postgres import session_dsn


class AdbcSessions:
    """Sessions of one role, opened as they are needed. Thread-safe.

    The driver learns every type of the database when it is opened, the row types of all tables among them: in a
    database of some thousand tables that is most of a second. It is opened once; its own session stays idle.
    """

    def __init__(self, dsn: str, *, role: str | None) -> None:
        self.dsn = session_dsn(dsn, role=role)
        self._driver: adbc.Connection | None = None
        self._lock = threading.Lock()

    def open(self, *, autocommit: bool) -> adbc.Connection:
        """A session for one thread at a time; the caller closes it. Raises: adbc_driver_manager.Error."""
        with self._lock:
            if self._driver is None:
                self._driver = adbc.connect(self.dsn, autocommit=True)
            driver = self._driver
        session = driver.adbc_clone()
        if autocommit:
            session.adbc_connection.set_autocommit(True)
        return session

    def close(self) -> None:
        """Close the driver. Sessions that are open go on."""
        with self._lock:
            driver, self._driver = self._driver, None
        if driver is not None:
            with suppress(adbc_driver_manager.Error):
                driver.close()
