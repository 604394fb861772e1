"""Spark sessions that can read segments and write views: Connect, local and standalone masters alike.

DataFrame and SQL only, so that everything that is given a session runs on Spark Connect too.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from harness_pipelines.drivers.object_stores.clients import spark_options
from harness_pipelines.drivers.postgres import READER, SPARK, WORKER
from harness_pipelines.engines.spark.jdbc import JdbcOptions, jdbc_options
from harness_pipelines.engines.spark.stage_session import METHOD_BYTES
from harness_pipelines.errors import TryAgain, UsageError
from harness_pipelines.extras import ExtraMissing
from harness_pipelines.spec.settings import Settings, variable_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _jvm_errors() -> tuple[type[Exception], type[Exception]]:
    """py4j's errors; the client of Spark Connect alone (`pyspark-client`) comes without py4j, and raises none."""
    try:
        from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]  # py4j has no types
    except ModuleNotFoundError:
        never = type("Py4JError", (Exception,), {})
        return never, never
    return Py4JError, Py4JNetworkError


Py4JError, Py4JNetworkError = _jvm_errors()
CONNECT_PORT = 15002
CATALOG_IDLE_S = 60
IDLE_SESSION_TIMEOUT = "57P05"  #: SQLSTATE of a session that Postgres ended because nothing was asked of it
REACH_TIMEOUT_S = 5.0
#: For how long a call that finds no server is tried: some seconds, then the stage shows its trouble and tries again by
#: itself. PySpark alone would be silent for ten minutes, and wait up to one more after the server has come back.
RETRIES_MAX, RETRY_MS_MAX = 7, 1500
#: Of every channel to Spark Connect. A waiting client has nothing to send, so TCP does not detect that a server
#: hangs, lost its power, or is behind a firewall that forgot the connection; a ping without an answer does. Not more
#: often: Spark's server allows a ping in five minutes, ends a connection at the third above that, and counts again
#: whenever it sends something, which it does every two minutes to a call that it is at work for. Nor without a call.
KEEPALIVE: Mapping[str, int] = {
    "grpc.keepalive_time_ms": 60_000,
    "grpc.keepalive_timeout_ms": 20_000,
    "grpc.http2.ping_timeout_ms": 20_000,  # what newer clients go by
    "grpc.http2.max_pings_without_data": 0,  # any number; by default the third ping of a long wait is not sent
}
#: Of every session; those that stages work in have more (`spark_stage`).
SESSION_OPTIONS = {"spark.sql.session.timeZone": "UTC", **METHOD_BYTES}
#: Iceberg's registry of file formats. When it is first used it looks for optional classes: in a task of Spark Connect,
#: over the network. A job that is cancelled in that moment interrupts it, and a JVM that failed to initialize a class
#: never tries again, so that each later write fails until Spark is restarted.
FORMATS = "org.apache.iceberg.formats.FormatModelRegistry"
#: What an application on a cluster asks for, if nobody says otherwise: little, and more while there is work. A
#: standalone master gives an application all cores that are free, and an executor all cores of its machine.
CLUSTER_DEFAULTS: Mapping[str, str] = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",  # no shuffle service is needed
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "4",
    "spark.dynamicAllocation.executorIdleTimeout": "60s",
    "spark.executor.cores": "1",
}
#: By each of these a user says how large the application is: then none of the defaults is added.
SIZES = (
    "spark.cores.max",
    "spark.dynamicAllocation.enabled",
    "spark.executor.cores",
    "spark.executor.instances",
)
_BEFORE_SPARKS = "lz4-java-"  #: jars that stand for flawed ones which come with Spark


class SparkUnreachable(TryAgain):
    """No Spark answers at the configured address; nothing was written."""

    way_on = "nothing: workers continue by themselves; is HARNESS_SPARK right?"


class SparkAway(TryAgain):
    """Spark, its disk or one of its sources failed during work; wait and retry."""


class SparkBroken(SparkAway):
    """Spark's JVM failed to initialize a class that it needs, and does not try again."""

    way_on = "restart the Spark server; workers then continue by themselves"


class SessionLost(SparkAway):
    """The server of the session forgot it or no longer answers: only a new session helps."""


class SparkJarsMissing(UsageError):
    """The jars that a local Spark needs are not where the settings say."""


def open_spark(
    settings: Settings, *, app_name: str = "harness", opener: Callable[[Mapping[str, str]], Any] | None = None
) -> SparkSession:
    """Open a new session on ``settings.spark`` and give it the Iceberg catalog of ``settings.catalog_name``.

    ``sc://host:port`` is Spark Connect; anything else is a master (``local[*]``, ``local-cluster[2,1,1024]``,
    ``spark://host:port``, …) to which the jars of the harness are given.

    A master's session is one beside that of the caller's process, if it has one, or that *opener* makes of
    Spark's options: nothing is changed in those.

    Raises: UsageError when no Spark is set, or for settings of Postgres that it cannot keep; SparkUnreachable,
    SparkJarsMissing.
    """
    if not settings.spark:
        raise UsageError("where is Spark? Set HARNESS_SPARK, or start the embedded services: `harness services up`")
    if settings.dsn:
        segments_address(settings)  # refused here, before Spark is started or asked
    if settings.spark.startswith("sc://"):
        prepare_connect()
        spark = _connect(settings.spark)
        configure(spark, settings)
    else:
        spark = _master(settings, settings.spark, app_name=app_name, opener=opener)
    if settings.dsn and settings.warehouse:
        configure_catalog(spark, settings)
    return spark


def import_pyspark() -> None:
    """Import PySpark before there are threads that use it.

    Its modules import each other in circles: of two threads that import two of them at the same moment, one can find
    the other's half-made and fail with an ImportError (seen with 4.1.3 on Python 3.11, in most tries).
    """
    import pyspark.sql.functions  # noqa: F401  # all that stages use begins here

    _reports()  # which replaces the class of all new loggers for a moment


def prepare_connect() -> None:
    """Make PySpark's client of Connect fit for processes that run for weeks: for all its sessions from now on.

    Every channel gets `KEEPALIVE`, by PySpark's defaults, since a session that dagster-pyspark makes is given an
    address alone; a user's own settings are kept.

    Of a session that the collector finds only the channel is closed. PySpark's own ``__del__`` waits for a lock, which
    the thread that the collector happens to run in may hold itself: it then hangs for good (seen with 4.1.3 within
    ``ExecutePlanResponseReattachableIterator._release_until``).
    """
    from pyspark.sql.connect.client import ChannelBuilder
    from pyspark.sql.connect.session import SparkSession

    ChannelBuilder.GRPC_DEFAULT_OPTIONS = list({**KEEPALIVE, **dict(ChannelBuilder.GRPC_DEFAULT_OPTIONS)}.items())
    collected: Any = SparkSession
    collected.__del__ = _drop


def _drop(session: Any) -> None:
    with suppress(Exception):  # half-made ones among them; what a collector raises is lost
        atexit.unregister(session.client._cleanup_ml_cache)  # which would ask the server, and wait for one that is gone
        session.client._channel.close()


def initialize_formats(spark: SparkSession) -> None:
    """Initialize `FORMATS` in the JVM of *spark*'s driver, while no job can be cancelled.

    The analysis of a query looks the class up, in a thread of the driver, and then refuses the method. In a cluster
    each executor has a separate JVM: there a task is the first to use it, and `SparkBroken` names what may happen.
    """
    from pyspark.errors import AnalysisException

    with unreported(), suppress(AnalysisException):
        spark.sql(f"SELECT java_method('{FORMATS}', '')")


@contextmanager
def unreported() -> Iterator[None]:
    """Keep PySpark from printing the whole plan and stack of an error to standard error, in this thread alone."""
    thread, reports = threading.get_ident(), _reports()

    def is_of_another(record: logging.LogRecord) -> bool:
        return record.thread != thread

    reports.addFilter(is_of_another)
    try:
        yield
    finally:
        reports.removeFilter(is_of_another)


@cache
def _reports() -> logging.Logger:
    """PySpark's logger of errors, made by PySpark: it logs with keywords that a logger of another class refuses."""
    from pyspark.logger import PySparkLogger

    return PySparkLogger.getLogger("SQLQueryContextLogger")


def is_stopped(spark: SparkSession) -> bool:
    """Return whether this process stopped the Connect session *spark*; a session that its server lost is not seen."""
    return bool(getattr(spark, "is_stopped", False))


def is_remote(spark: SparkSession) -> bool:
    """Return whether *spark* is a session of Spark Connect."""
    return not hasattr(spark, "_jsc")


def tag(spark: SparkSession, name: str) -> None:
    """Give what this thread does in *spark* from now on a tag, by which any thread can interrupt it.

    A tag of a master's *session* is known to the thread alone that gave it; the context's is known to all.
    """
    if is_remote(spark):
        spark.addTag(name)
    else:
        spark.sparkContext.addJobTag(name)


def untag(spark: SparkSession, name: str) -> None:
    """Take the tag away again."""
    if is_remote(spark):
        spark.removeTag(name)
    else:
        spark.sparkContext.removeJobTag(name)


def interrupt_tag(spark: SparkSession, name: str) -> None:
    """End what any thread does in *spark* with a tag."""
    if is_remote(spark):
        spark.interruptTag(name)
    else:
        spark.sparkContext.cancelJobsWithTag(name)


def is_lost_channel(error: ValueError) -> bool:
    """gRPC's ways to say that the server went away: another thread closed the session, or two statuses disagree.

    The second one comes from a server that ends within its answer: the error that it sent and the state of the
    connection are of different kinds.
    """
    text = str(error).lower()
    return ("closed" in text and "channel" in text) or "in status proto" in text


def hang_up(spark: SparkSession, settings: Settings) -> None:
    """End all calls of a Connect session at once, also those that its server will never answer."""
    if settings.spark and settings.spark.startswith("sc://"):
        connected: Any = spark  # whose type is that of a master's session, which has no `client`
        connected.release_session_on_close = False  # the error would be lost
        connected.client._channel.close()  # its own `close` waits for calls on it first


def close_spark(spark: SparkSession, settings: Settings) -> None:
    """End a session that `open_spark` opened; a master's session may be shared with the caller and continues."""
    import grpc
    from pyspark.errors import PySparkException

    if settings.spark and settings.spark.startswith("sc://"):
        with suppress(PySparkException, grpc.RpcError, OSError):  # the server may be gone, and the session with it
            spark.stop()


def configure(spark: SparkSession, settings: Settings) -> None:
    """Give a session of Spark Connect the properties of ``HARNESS_SPARK_CONF_*``.

    Raises: UsageError for one that only the server can have.
    """
    from pyspark.errors import PySparkException

    for name, value in settings.spark_conf.items():
        try:
            spark.conf.set(name, value)
        except PySparkException as error:
            if (condition := error.getCondition()) is None or "CANNOT_MODIFY" not in condition:
                raise
            close_spark(spark, settings)
            raise UsageError(
                f"{variable_of(name)} cannot be set by a client: a server of Spark Connect has this property from its "
                "start. Write it in the spark-defaults.conf of the server, and unset the variable"
            ) from error


def configure_catalog(spark: SparkSession, settings: Settings) -> None:
    """Configure the harness's Iceberg catalog in *spark*; repeating it is safe."""
    assert settings.dsn is not None
    prefix = f"spark.sql.catalog.{settings.catalog_name}"
    dsn, role = (settings.spark_dsn, SPARK) if settings.spark_dsn else (settings.dsn, WORKER)
    options = catalog_options(dsn, warehouse=settings.warehouse or "", role=role)
    for name, value in (options | spark_options(settings.warehouse or "", settings.s3)).items():
        spark.conf.set(f"{prefix}.{name}" if name else prefix, value)


def segments_address(settings: Settings) -> JdbcOptions:
    """Where Spark reads segments, by its own login if it has one."""
    if settings.spark_dsn:
        return jdbc_options(settings.spark_dsn, role=SPARK)
    assert settings.dsn is not None
    return jdbc_options(settings.dsn, role=READER)


def catalog_options(dsn: str, *, warehouse: str, idle_s: int = CATALOG_IDLE_S, role: str = WORKER) -> dict[str, str]:
    """Settings of Iceberg's JDBC catalog below ``spark.sql.catalog.<name>``; the empty key is the class.

    A Spark session's catalog keeps its connections until the JVM collects it, even when the worker that it was for was
    killed, so that Postgres would run out of them. It ends those that were idle for *idle_s*; Iceberg connects again.
    """
    jdbc = jdbc_options(dsn, role=role)
    properties = {**jdbc.properties, "options": f"{jdbc.properties['options']} -c idle_session_timeout={idle_s}s"}
    return {
        "": "org.apache.iceberg.spark.SparkCatalog",
        "type": "jdbc",
        "uri": jdbc.url,
        "warehouse": warehouse,
        # The harness moves the pointer itself: a cached table would be written to on a stale head.
        "cache-enabled": "false",
        "jdbc.schema-version": "V1",
        "retryable_status_codes": IDLE_SESSION_TIMEOUT,
        **{f"jdbc.{name}": value for name, value in properties.items() if name != "driver"},
    }


def _connect(remote: str) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    # The error itself is raised and shown.
    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]", category=UserWarning)
    place = urlsplit(remote)
    session: Any = None  # of Connect, which is typed apart
    try:
        address = (place.hostname or "localhost", place.port or CONNECT_PORT)
        socket.create_connection(address, timeout=REACH_TIMEOUT_S).close()
        session = SparkSession.builder.remote(remote).create()
        session.client.set_retry_policies([DefaultPolicy(max_retries=RETRIES_MAX, max_backoff=RETRY_MS_MAX)])
        for name, value in SESSION_OPTIONS.items():
            session.conf.set(name, value)
        initialize_formats(session)
    except (OSError, PySparkException) as error:
        if session is not None:
            session.client.close()  # a channel that only the interpreter's end would close can hang it
        raise SparkUnreachable(
            f"Spark Connect at {place.hostname}:{place.port or CONNECT_PORT} is not answering: {error}; "
            "nothing was written, check HARNESS_SPARK or `harness services status`"
        ) from error
    return cast("SparkSession", session)


def _master(
    settings: Settings, master: str, *, app_name: str, opener: Callable[[Mapping[str, str]], Any] | None
) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.util import is_remote_only

    if is_remote_only():
        raise ExtraMissing("spark", what=f"The Spark master {master} of HARNESS_SPARK", package="pyspark")
    from pyspark import SparkContext

    # py4j prints the traceback of each call that a JVM did not answer. What it means is in the error that it raises.
    logging.getLogger().addFilter(_is_not_of_py4j)
    # PySpark takes the executors' interpreter from here, not from its own setting, when it starts the JVM itself.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    options = {"spark.master": master, "spark.app.name": app_name, **_master_options(settings, master)}
    builder = SparkSession.builder
    if SparkContext._active_spark_context is None:  # else the session that runs would be given the options
        builder = builder.config(map=dict[str, "bool | float | int | str | None"](options))
    try:
        parent: SparkSession = builder.getOrCreate() if opener is None else opener(options)
        session = parent.newSession()
        for name, value in SESSION_OPTIONS.items():
            session.conf.set(name, value)
        initialize_formats(session)
    except (OSError, PySparkException) as error:
        raise SparkUnreachable(
            f"Spark at {master} did not start: {error}; nothing was written, check HARNESS_SPARK"
        ) from error
    return session


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def _master_options(settings: Settings, master: str) -> dict[str, str]:
    options = {
        "spark.jars": ",".join(_jars(settings)),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        **SESSION_OPTIONS,
        "spark.sql.warehouse.dir": str(settings.home / "spark" / "warehouse"),
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "FATAL",
        **sizes(master, settings.spark_conf),
    }
    if master.startswith("local"):
        options |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "2g",
            "spark.driver.extraClassPath": ":".join(
                jar for jar in _jars(settings) if Path(jar).name.startswith(_BEFORE_SPARKS)
            ),
            "spark.ui.enabled": "false",
            "spark.local.dir": str(settings.home / "spark" / "tmp"),
            "spark.sql.shuffle.partitions": "4",
        }
    return {**options, **settings.spark_conf}


def sizes(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """The defaults for *master* that neither *given* nor Spark's own files of settings stand in the way of."""
    if master.startswith("local"):
        return {}
    known = {**_of_files(), **given}
    if any(name in known for name in SIZES):
        return {}
    return {name: value for name, value in CLUSTER_DEFAULTS.items() if name not in known}


def _of_files() -> dict[str, str]:
    """What ``spark-defaults.conf`` says, where Spark looks for it."""
    folder = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if (home := os.environ.get("SPARK_HOME")) else None)
    if folder is None:
        return {}
    try:
        text = (Path(folder) / "spark-defaults.conf").read_text(errors="replace")
    except OSError:
        return {}
    words = (line.split("#", 1)[0].replace("=", " ", 1).split(None, 1) for line in text.splitlines())
    return {found[0]: found[1].strip() if len(found) > 1 else "" for found in words if found}


def _jars(settings: Settings) -> list[str]:
    """The jars for Spark; a master that was set up with jars of its own may do without (`HARNESS_JARS` unset)."""
    if settings.jars is None:
        return []
    found = sorted(str(path) for path in (settings.jars / "spark").glob("*.jar"))
    found += sorted(str(path) for path in (settings.jars / "s3").glob("*.jar"))  # for a warehouse on an object store
    if not found:
        raise SparkJarsMissing(f"no jars in {settings.jars / 'spark'}: run `deploy/run`, or set HARNESS_JARS")
    return found
