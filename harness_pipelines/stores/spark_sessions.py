"""The Spark session of one installation: opened by the first who needs it, shared by all stages, given up when lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from harness_pipelines.errors import HarnessError
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stores.spark import SparkAway, SparkInterrupted, close_spark, is_stopped, open_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Opener = Callable[[Mapping[str, str]], Any]  #: makes a session from Spark's options


class SparkSessions:
    """One session at a time, for any number of threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._opener: Opener | None = None
        self._tag = f"harness-{uuid4()}"  # what stages of this process do, in a session that others may use too
        self._interrupted = threading.Event()

    def current(self) -> SparkSession:
        """The session, opened by the first caller and again once stopped. Raises: SparkUnreachable."""
        with self._lock:
            if self._session is None or is_stopped(self._session):
                self._session = open_spark(self._settings, opener=self._opener)
            return self._session

    def use(self, opener: Opener) -> None:
        """Let *opener* make the session when one is needed; it may be shared, and stays open."""
        self._opener = opener

    def forget(self, session: SparkSession) -> None:
        """Open another session next time: the server of *session* is gone. One that was opened since then stays."""
        with self._lock:
            if self._session is session:
                self._session = None
        close_spark(session, self._settings)  # or PySpark would hand it out again to those who ask for the active one

    @contextmanager
    def working(self) -> Iterator[SparkSession]:
        """The session for one piece of a stage's work, which `interrupt` ends from another thread.

        Spark's errors are to be named inside of the block (`spark_write.explained`). What has no name is a defect, and
        is raised as it is, interrupted or not. Raises: SparkInterrupted, in place of a named error; SparkUnreachable.
        """
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no types

        if self._interrupted.is_set():
            raise SparkInterrupted("Spark is not asked for anything more: this process is ending")
        session = self.current()
        session.addTag(self._tag)
        try:
            yield session
        except HarnessError as error:
            if isinstance(error, SparkAway):
                self.forget(session)
            if self._interrupted.is_set():
                raise SparkInterrupted("what Spark did was given up: this process is ending") from error
            raise
        finally:
            with suppress(Py4JError):  # a master's JVM may be gone
                session.removeTag(self._tag)

    def interrupt(self) -> None:
        """End what stages of this process do on Spark, for good: for those who stop and do not want to wait.

        Work that was about to begin may not have been met: call it until the threads have ended.
        """
        self._interrupted.set()
        with self._lock:
            session = self._session
        if session is not None:
            import grpc
            from pyspark.errors import PySparkException

            with suppress(PySparkException, grpc.RpcError, OSError, ValueError):  # gone already, by itself
                session.interruptTag(self._tag)

    def close(self) -> None:
        """End the session, unless it is somebody else's."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None and self._opener is None:
            close_spark(session, self._settings)
