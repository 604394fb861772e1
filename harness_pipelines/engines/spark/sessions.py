"""Spark sessions of one installation: opened on first use, discarded when lost.

Stages share a separate session, in which `spark_stage.settle` keeps the settings that they rely on. A caller of
`Stores.spark` gets another one and may change any setting of it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from harness_pipelines.engines.spark.executors_away import PATIENCE_S, NoExecutors, watched
from harness_pipelines.engines.spark.session import (
    Py4JError,
    SessionLost,
    close_spark,
    hang_up,
    interrupt_tag,
    is_lost_channel,
    is_remote,
    is_stopped,
    open_spark,
    tag,
    untag,
)
from harness_pipelines.engines.spark.stage_session import settle
from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.errors import SparkInterrupted
from harness_pipelines.protocol.claims import FencedOut
from harness_pipelines.secret import redact
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Opener = Callable[[Mapping[str, str]], Any]  #: makes a session from Spark's options
DESCRIPTION = "spark.job.description"  #: Spark's local property, of a thread
DEAF_S = 5.0  #: for Spark to answer that it was interrupted; then it is not waited for


@dataclass(slots=True, eq=False)
class _Work:
    """One piece of a stage's work, in the thread that waits for it."""

    session: SparkSession
    tag: str  #: of what it alone does on Spark
    owner: Hashable
    is_given_up: bool = False
    is_starved: bool = False  #: Spark has no executors for it
    asking: threading.Thread | None = None  #: Spark to interrupt it


class SparkSessions:
    """One session for stages and one for users at a time, for any number of threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._session: SparkSession | None = None  # of users
        self._staging: SparkSession | None = None
        self._working: Counter[SparkSession] = Counter()  # how many threads work in each session of stages
        self._works: set[_Work] = set()
        self._opener: Opener | None = None
        self._tag = f"harness-{uuid4()}"  # what stages of this process do, in a session that others may use too
        self._interrupted = threading.Event()
        self._asking: threading.Thread | None = None  # Spark to interrupt
        self._asked_at = 0.0  # the monotonic clock

    def current(self) -> SparkSession:
        """The users' session, opened by the first caller and again once stopped. Raises: SparkUnreachable."""
        with self._lock:
            if self._session is None or is_stopped(self._session):
                self._session = open_spark(self._settings, opener=self._opener)
            return self._session

    def _begin(self) -> SparkSession:
        """The stages' session, for one more thread. Raises: SparkUnreachable."""
        with self._lock:
            if self._staging is None or is_stopped(self._staging):
                self._staging = open_spark(self._settings, opener=self._opener)
            self._working[self._staging] += 1
            return self._staging

    def _end(self, session: SparkSession) -> None:
        """One thread less; the last one closes a session that was forgotten meanwhile."""
        with self._lock:
            self._working[session] -= 1
            if self._working[session]:
                return
            del self._working[session]
            forgotten = self._staging is not session
        if forgotten:
            close_spark(session, self._settings)

    def use(self, opener: Opener) -> None:
        """Let *opener* make the session of a master, beside which theirs are; it may be shared, and stays open."""
        self._opener = opener

    def forget(self, session: SparkSession) -> None:
        """Open another session next time: the server of *session* is gone. One that was opened since then stays.

        What other threads still do in *session* continues: where the server is gone they find out by themselves, and
        where it was a connection that was cut, or one thread's own trouble, their work is not lost.
        """
        with self._lock:
            if self._session is session:
                self._session = None
            if self._staging is session:
                self._staging = None
            if self._working[session]:
                return
        close_spark(session, self._settings)  # or PySpark would return it again as the active session

    @contextmanager
    def working(self, owner: Hashable = None, *, shown: str | None = None) -> Iterator[SparkSession]:
        """The stages' session for one piece of work, which `interrupt` and `give_up` end from another thread.

        Spark's errors are to be named inside of the block (`spark_write.explained`). What has no name is a defect, and
        is raised as it is, interrupted or not. Raises: in place of a named error SparkInterrupted, or FencedOut where
        the work of *owner* was given up, or NoExecutors; SparkUnreachable, SparkAway, SessionLost, SessionUnfit.

        *shown* is what Spark's pages say of its jobs: as their description, and as a tag, which Spark Connect has too.
        """
        if self._interrupted.is_set():
            raise SparkInterrupted("Spark is not asked for anything more: this process is ending")
        session = self._begin()
        work = _Work(session, f"{self._tag}-{uuid4()}", owner)
        with self._lock:
            self._works.add(work)
        tags = [self._tag, work.tag, *([] if shown is None else [_as_tag(shown)])]
        try:
            _described(session, tags, shown)
            _settled(session)
            with watched(session, self._settings.spark, starved=lambda: self._starve(work)):
                yield session
        except HarnessError as error:
            if isinstance(error, SessionLost):
                self.forget(session)
            if self._interrupted.is_set():
                raise SparkInterrupted("what Spark did was given up: this process is ending") from error
            if work.is_starved and not work.is_given_up:
                raise NoExecutors(
                    f"Spark has no executors: none has come within {PATIENCE_S:.0f} s; nothing was published, it is "
                    "tried again"
                ) from error
            if work.is_given_up:
                raise FencedOut(
                    "what Spark did was given up: the claim that it was done under is lost, so nothing of it could "
                    "be published"
                ) from error
            raise
        finally:
            with self._lock:
                self._works.discard(work)
            with suppress(Py4JError, OSError):  # a master's JVM may be gone
                for name in tags:
                    untag(session, name)
                if shown is not None and not is_remote(session):
                    session.sparkContext.setLocalProperty(DESCRIPTION, None)  # type: ignore[arg-type]  # None clears it
            self._end(session)

    def _starve(self, work: _Work) -> None:
        """End *work*, which waits for executors that do not come."""
        work.is_starved = True
        self._ask([work.session], work.tag)

    def give_up(self, owner: Hashable) -> None:
        """End the work that *owner* has begun, and never wait for Spark.

        Work that asks for more after it was interrupted is only met by the next call: call it while it is of no use.
        """
        with self._lock:
            works = [work for work in self._works if work.owner == owner]
        for work in works:
            work.is_given_up = True
            if work.asking is None or not work.asking.is_alive():
                work.asking = threading.Thread(
                    target=self._ask, args=([work.session], work.tag), name="give-up-spark", daemon=True
                )
                work.asking.start()

    def interrupt(self) -> None:
        """End the work of this process's stages on Spark for good, for a worker that stops and does not wait.

        Work that was about to begin may not have been met: call it until the threads have ended. It never waits for
        Spark: one that does not answer within `DEAF_S` is hung up on, which ends the calls that wait for it.
        """
        self._interrupted.set()
        # Not under the lock: the thread that opens a session may wait for a server that hangs.
        sessions = {*list(self._working), *([] if self._staging is None else [self._staging])}
        if not sessions:
            return
        if self._asking is None or not self._asking.is_alive():
            self._asked_at = time.monotonic()
            self._asking = threading.Thread(
                target=self._ask, args=(sessions, self._tag), name="interrupt-spark", daemon=True
            )
            self._asking.start()
        elif time.monotonic() - self._asked_at >= DEAF_S:
            for session in sessions:
                hang_up(session, self._settings)

    @staticmethod
    def _ask(sessions: Collection[SparkSession], tag: str) -> None:
        import grpc
        from pyspark.errors import PySparkException

        for session in sessions:
            with suppress(PySparkException, Py4JError, grpc.RpcError, OSError, ValueError):  # gone already, by itself
                interrupt_tag(session, tag)

    def close(self) -> None:
        """End these sessions; other sessions of the process continue."""
        with self._lock:
            (session, self._session), (staging, self._staging) = (self._session, None), (self._staging, None)
        if session is not None:
            close_spark(session, self._settings)
        if staging is None:
            return
        if self._asking is not None:
            self._asking.join(DEAF_S)
            if self._asking.is_alive():  # it would not answer a farewell either
                hang_up(staging, self._settings)
        close_spark(staging, self._settings)


def _as_tag(shown: str) -> str:
    return shown.replace(",", ";")  # which Spark separates tags by


def _described(session: SparkSession, tags: Iterable[str], shown: str | None) -> None:
    """Let Spark's pages say what the jobs of this thread are for. Raises: SessionLost."""
    try:
        for name in tags:
            tag(session, name)
        if shown is not None and not is_remote(session):
            session.sparkContext.setLocalProperty(DESCRIPTION, shown)
    except (Py4JError, OSError) as error:
        raise SessionLost(f"Spark's JVM no longer answers: {redact(str(error)).strip()[:500]}") from error


def _settled(session: SparkSession) -> None:
    """`settle` *session*. Raises: SessionLost if its server no longer answers."""
    import grpc
    from pyspark.errors import PySparkException

    try:
        settle(session)
    except (PySparkException, Py4JError, grpc.RpcError, OSError) as error:
        raise SessionLost(f"Spark does not take the settings of a stage: {redact(str(error)).strip()[:500]}") from error
    except ValueError as error:
        if not is_lost_channel(error):
            raise
        raise SessionLost("the Spark server went away, or another stage closed the session") from error
