"""Embedded Spark Connect server: one warm JVM for all runs on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import ClassVar

from harness_pipelines.extras import ExtraMissing
from harness_pipelines.services.base import Place, Progress
from harness_pipelines.services.java import jars, java_home
from harness_pipelines.services.process import Launch, ProcessId, child_environment, has_marker, launch
from harness_pipelines.services.state import LOOPBACK, answers, replace_file, secret
from harness_pipelines.services.values import ServiceName

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
#: `spark.local.dir` is split at commas, so it is relative to the folder that the server works in. The executor is in
#: the server's own process: a driver that takes it for lost after a sleep of the machine ends the server minutes later.
SETTINGS = """\
spark.master                                  local[{slots}]
spark.scheduler.mode                          FAIR
spark.app.name                                harness
spark.driver.host                             127.0.0.1
spark.driver.bindAddress                      127.0.0.1
spark.driver.memory                           {memory}
spark.driver.extraClassPath                   {jars}
spark.driver.extraJavaOptions                 -Duser.timezone=UTC {temporary_option}
spark.connect.grpc.binding.address            127.0.0.1
spark.connect.grpc.binding.port               {port}
spark.connect.authenticate.token              {token}
spark.connect.execute.reattachable.senderMaxStreamDuration  {answers}s
spark.connect.execute.manager.detachedTimeout      {detached}s
spark.connect.execute.manager.maintenanceInterval  {looks}s
spark.storage.blockManagerHeartbeatTimeoutMs  30d
spark.local.dir                               tmp
spark.ui.enabled                              false
spark.ui.showConsoleProgress                  false
spark.sql.catalogImplementation               in-memory
spark.sql.warehouse.dir                       {folder}/warehouse
spark.sql.extensions                          org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions
spark.sql.session.timeZone                    UTC
spark.sql.shuffle.partitions                  {partitions}
spark.sql.execution.arrow.pyspark.enabled     true
spark.redaction.string.regex                  {hidden}
"""
#: A pool is FIFO by itself, and all jobs are in this one: the tasks of a long query would all come before those of a
#: stage that began later.
POOLS = """\
<allocations>
  <pool name="default"><schedulingMode>FAIR</schedulingMode><weight>1</weight><minShare>0</minShare></pool>
</allocations>
"""
#: What a client that is gone had begun keeps its places until these three are over. By Spark's own seven and a half
#: minutes what a killed worker had begun would slow down its successor, which begins when the lease of the claim is
#: over (30 s). The first: how long Spark answers over one call before the client has to call again, which is when Spark
#: finds out that it is gone. The second: how long it waits for such a call. The third: how often it looks.
ANSWERS_S, DETACHED_S, LOOKS_S = 10, 15, 2
SLOTS_MIN = 4  #: a task that waits for Kafka, Postgres or its Python process uses no core, and others can continue
#: Of the requests that Spark Connect shows in its UI and its event log, with the options of what is read in them.
HIDDEN = r'(?is)key: "[^"]*(?:password|passphrase|secret|token|jaas|ssl\.key)[^"]*"\s+value: "(?:\\.|[^"\\])*"'
LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %p %c{1}: %m%n%ex
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


def as_option(word: str) -> str:
    """*word* as one option of a line that Spark splits at spaces outside of quotes."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def in_properties(value: str) -> str:
    """*value* in a file of Java's properties, where a backslash begins an escape."""
    return value.replace("\\", "\\\\")


class Spark:
    """A Spark Connect server on all cores with the Iceberg, Kafka and Postgres jars; catalogs come per session."""

    name: ServiceName = "spark"
    port_count = 1
    ready_timeout_s = 300.0
    stop_timeout_s = 20.0
    polite: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, place: Place, memory: str = "3g") -> None:
        self._place = place
        self._memory = memory
        self._folder = place.home / "spark"
        self._temporary = self._folder / "tmp"

    def check_programs(self) -> None:
        """Java and the jars. Raises: ToolMissing."""
        java_home()
        self._jars()

    def prepare(self, ports: tuple[int, ...], progress: Progress) -> None:
        """Write the settings; a server starts with empty temporary files."""
        self.clean()
        self._temporary.mkdir(parents=True, exist_ok=True)
        conf = self._folder / "conf"
        conf.mkdir(exist_ok=True)
        settings = SETTINGS.format(
            memory=self._memory,
            jars=in_properties(":".join(f"{folder}/*" for folder in self._jars())),
            temporary_option=in_properties(as_option(f"-Djava.io.tmpdir={self._temporary}")),
            port=ports[0],
            token=self._token(),
            hidden=in_properties(HIDDEN),
            answers=ANSWERS_S,
            detached=DETACHED_S,
            looks=LOOKS_S,
            folder=in_properties(str(self._folder)),
            partitions=max(4, 2 * (os.cpu_count() or 1)),
            slots=max(SLOTS_MIN, os.cpu_count() or 1),
        )
        replace_file(conf / "fairscheduler.xml", POOLS)  # in the class path, where Spark looks for it
        replace_file(conf / "spark-defaults.conf", settings, 0o600)
        replace_file(conf / "log4j2.properties", LOGGING)

    def launch(self, ports: tuple[int, ...]) -> ProcessId:
        """Start the server through ``spark-submit``, whose scripts replace themselves by the JVM."""
        found = importlib.util.find_spec("pyspark")  # finds, does not import
        spark_home = Path(found.origin).parent if found is not None and found.origin is not None else Path()
        if not (spark_home / "bin" / "spark-submit").is_file():  # the client of Spark Connect has no server
            raise ExtraMissing("local", what="The embedded Spark", package="pyspark")
        return launch(
            Launch(
                command=[str(spark_home / "bin" / "spark-submit"), "--class", SERVER, "spark-internal"],
                cwd=self._folder,
                env=child_environment(
                    self._place.home,
                    self.name,
                    {
                        "JAVA_HOME": str(java_home()),
                        "SPARK_HOME": str(spark_home),
                        "SPARK_CONF_DIR": str(self._folder / "conf"),
                        "SPARK_LOCAL_IP": LOOPBACK,
                        "PYSPARK_PYTHON": sys.executable,
                        "PYSPARK_DRIVER_PYTHON": sys.executable,
                    },
                ),
            ),
            self._place.log(self.name),
        )

    def is_ready(self, ports: tuple[int, ...]) -> bool:
        """The server listens only after its session is there."""
        return answers(ports[0])

    def finish(self, ports: tuple[int, ...]) -> None:
        """Nothing: catalogs are set by each session."""

    def is_outdated(self) -> bool:
        """Never."""
        return False

    def address(self, ports: tuple[int, ...]) -> str:
        """Return the remote URL. Its client sends a token without TLS to the name ``localhost`` only."""
        return f"sc://localhost:{ports[0]}/;token={self._token()}"

    def owns(self, proc: Path) -> bool:
        """Known by the marker in the environment; Python workers inherit it."""
        return has_marker(proc, self._place.home, self.name)

    def clean(self) -> None:
        """Remove the shuffle files and session artifacts of the last server."""
        shutil.rmtree(self._temporary, ignore_errors=True)
        shutil.rmtree(self._folder / "artifacts", ignore_errors=True)

    def _jars(self) -> list[Path]:
        """The folders of jars; those for object stores where they were fetched."""
        spark = jars(self._place, "spark")
        stores = spark.parent / "s3"
        return [spark, stores] if any(stores.glob("*.jar")) else [spark]

    def _token(self) -> str:
        # A client of a Spark server runs code as its user, so other users of the machine must not reach it.
        return secret(self._place.home / "secrets" / "spark")
