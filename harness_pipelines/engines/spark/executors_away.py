"""Whether a master gives the application executors: without any, a job waits in silence, for ever.

Spark Connect does not tell its clients; there the server's own log does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from harness_pipelines.engines.spark.session import Py4JError, SparkAway

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_S = 45.0  #: for the first executor, or for another one after the last was lost
LOOK_S = 3.0


class NoExecutors(SparkAway):
    """Spark waits for executors and has none: the cluster is full, or none that fits is there."""

    way_on = (
        "look at the master's page: are there workers with as many free cores and as much memory as "
        "HARNESS_SPARK_CONF_spark_executor_cores and HARNESS_SPARK_CONF_spark_executor_memory ask for? Workers of the "
        "harness try again by themselves"
    )


class Patience:
    """How long jobs have waited without any executor."""

    def __init__(self, *, patience_s: float = PATIENCE_S, now: Callable[[], float] = time.monotonic) -> None:
        self._patience_s, self._now = patience_s, now
        self._since: float | None = None

    def is_over(self, *, executors: int, jobs: int) -> bool:
        """Whether jobs are there, and no executor has been for too long, as of what was seen just now."""
        if executors or not jobs:
            self._since = None
            return False
        if self._since is None:
            self._since = self._now()
        return self._now() - self._since >= self._patience_s


@contextmanager
def watched(session: SparkSession, master: str | None, *, starved: Callable[[], None]) -> Iterator[None]:
    """Call *starved* from another thread, while the block lasts, each time that no executor is there for too long."""
    if master is None or master.startswith(("sc://", "local")):
        yield
        return
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(session, over, starved), name="spark-executors", daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()


def _watch(session: SparkSession, over: threading.Event, starved: Callable[[], None]) -> None:
    context: Any = session.sparkContext
    patience = Patience()
    with suppress(Py4JError, OSError, AttributeError):  # the JVM is gone, or the context was stopped: others say so
        while not over.wait(LOOK_S):
            executors = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # the driver is one of them
            jobs = len(context.statusTracker().getActiveJobsIds())
            if patience.is_over(executors=executors, jobs=jobs):
                starved()
