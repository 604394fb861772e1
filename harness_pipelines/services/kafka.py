"""Embedded Kafka: one KRaft node that is broker and controller."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import struct
from pathlib import Path
from typing import ClassVar

from harness_pipelines.errors import HarnessError
from harness_pipelines.services.base import Place, Progress, ServicesError
from harness_pipelines.services.java import jars, java_home
from harness_pipelines.services.process import Launch, ProcessId, child_environment, has_marker, launch, run
from harness_pipelines.services.state import LOOPBACK, replace_file, secret
from harness_pipelines.services.values import ServiceName

LARGEST_MESSAGE_BYTES = 16 * 1024 * 1024
#: Paths are relative to the folder that the broker works in: ``log.dirs`` is split at commas, and read as Latin-1.
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=CLIENTS://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=CLIENTS://127.0.0.1:{broker}
listener.security.protocol.map=CLIENTS:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT
inter.broker.listener.name=CLIENTS
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.mechanism.controller.protocol=PLAIN
listener.name.clients.sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN
listener.name.clients.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.clients.plain.sasl.jaas.config={itself}
listener.name.controller.sasl.enabled.mechanisms=PLAIN
listener.name.controller.plain.sasl.jaas.config={itself}
log.dirs=data
auto.create.topics.enable=false
num.partitions=4
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=2
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
message.max.bytes={largest}
replica.fetch.max.bytes={largest}
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=33554432
"""
#: How the broker, its controller and who makes the users log in; no user of theirs is kept by the controller.
ITSELF = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="{user}" password="{password}" user_{user}="{password}";'
)
USER, BROKER_USER = "harness", "broker"
LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = info
"""
LEFT_BY_A_FORMAT = ("meta.properties", "bootstrap.checkpoint", ".lock")  #: and drafts of them, which end in .tmp
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)  # length, api 18 version 0, correlation 1, no client id


class Kafka:
    """A broker for one machine, with a password. Ports: (broker, controller)."""

    name: ServiceName = "kafka"
    port_count = 2
    ready_timeout_s = 180.0
    stop_timeout_s = 30.0
    polite: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, place: Place, heap: str = "768m") -> None:
        self._place = place
        self._heap = heap
        self._folder = place.home / "kafka"
        self._data = self._folder / "data"

    def check_programs(self) -> None:
        """Java and the jars. Raises: ToolMissing."""
        java_home()
        jars(self._place, "kafka")

    def prepare(self, ports: tuple[int, ...], progress: Progress) -> None:
        """Write the settings and, once, format the log folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._password(USER)  # made under the lock of the home: a process that asks later finds this one
        settings = SETTINGS.format(
            broker=ports[0],
            controller=ports[1],
            largest=LARGEST_MESSAGE_BYTES,
            itself=ITSELF.format(user=BROKER_USER, password=self._password(BROKER_USER)),
        )
        replace_file(self._folder / "server.properties", settings, 0o600)
        replace_file(self._folder / "log4j2.properties", LOGGING)
        if not (self._data / "meta.properties").exists():
            progress("kafka: formatting the log folder")
            self._format()

    def launch(self, ports: tuple[int, ...]) -> ProcessId:
        """Start the broker."""
        return launch(
            Launch(
                command=[*self._java(f"-Xmx{self._heap}", "-Xms256m"), "kafka.Kafka", self._settings()],
                cwd=self._folder,
                env=self._environment(),
            ),
            self._place.log(self.name),
        )

    def is_ready(self, ports: tuple[int, ...]) -> bool:
        """Ask for the broker's API versions; it answers once it has joined its own cluster."""
        try:
            with socket.create_connection((LOOPBACK, ports[0]), timeout=2) as connection:
                connection.sendall(_API_VERSIONS)
                return len(connection.recv(8)) > 0
        except OSError:
            return False

    def finish(self, ports: tuple[int, ...]) -> None:
        """Have the login of the clients; topics are the user's."""
        from harness_pipelines.sources.kafka.users import give_scram_login

        try:
            give_scram_login(self.address(ports), self.login(), by=self._login(BROKER_USER, "PLAIN"))
        except HarnessError as error:
            raise ServicesError(
                f"the embedded Kafka did not take its login: {error}\n"
                f"see {self._place.log(self.name)}; `harness services down`, then `up`, starts it again with its data"
            ) from error

    def is_outdated(self) -> bool:
        """An older harness started a broker that takes clients without a login."""
        return not self._wants_login()

    def login(self) -> dict[str, str]:
        """Properties of a client that the broker lets in; none for a broker that an older harness started."""
        return self._login(USER, "SCRAM-SHA-512") if self._wants_login() else {}

    def address(self, ports: tuple[int, ...]) -> str:
        """Return the bootstrap server."""
        return f"{LOOPBACK}:{ports[0]}"

    def owns(self, proc: Path) -> bool:
        """Known by the marker in the environment."""
        return has_marker(proc, self._place.home, self.name)

    def clean(self) -> None:
        """Remove the lock file that the broker leaves."""
        (self._data / ".lock").unlink(missing_ok=True)

    def _wants_login(self) -> bool:
        try:
            return "CLIENTS:SASL_PLAINTEXT" in Path(self._settings()).read_text()
        except FileNotFoundError:
            return False

    def _login(self, user: str, mechanism: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": self._password(user),
        }

    def _password(self, user: str) -> str:
        return secret(self._place.home / "secrets" / f"kafka-{user}")

    def _settings(self) -> str:
        return str(self._folder / "server.properties")

    def _java(self, *options: str) -> list[str]:
        return [
            str(java_home() / "bin" / "java"),
            *options,
            "-XX:+UseG1GC",
            "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true",
            f"-Djava.io.tmpdir={self._temporary()}",
            "-Dlog4j2.configurationFile=log4j2.properties",
            "-cp",
            f"{jars(self._place, 'kafka')}/*",
        ]

    def _temporary(self) -> Path:
        folder = self._folder / "tmp"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _environment(self) -> dict[str, str]:
        return child_environment(self._place.home, self.name, {})

    def _format(self) -> None:
        if kept := _kept(self._data):
            raise ServicesError(
                f"{self._data} has no meta.properties, and yet holds {', '.join(kept[:3])}"
                f"{f' and {len(kept) - 3} more' if len(kept) > 3 else ''}; "
                "formatting would remove them, so nothing was started or removed. Put the file back from a backup, or "
                "move the folder away if what it holds is not needed"
            )
        shutil.rmtree(self._data, ignore_errors=True)  # left by a format that was cut off
        java = self._java("-Xmx256m", "-XX:TieredStopAtLevel=1")
        # One argument: an id may begin with a dash, which the tool would take for an option.
        arguments = ["format", f"--cluster-id={self._cluster_id()}", "--config", self._settings()]
        made = run(
            Launch(
                command=[*java, "kafka.tools.StorageTool", *arguments],
                cwd=self._folder,
                env=self._environment(),
            )
        )
        if made.returncode:
            with contextlib.suppress(OSError):
                (self._data / "meta.properties").unlink()
            raise ServicesError(
                f"Kafka could not format {self._data}: {(made.stderr or made.stdout).strip()[-2000:]}\n"
                "nothing was started; mend what it names and call `harness services up` again"
            )

    def _cluster_id(self) -> str:
        return secret(self._folder / "cluster-id")[:22]


def _kept(data: Path) -> list[str]:
    """Return what *data* holds beyond an interrupted format's traces: records, empty topics, or foreign files."""
    if not data.exists():
        return []
    return sorted(found.name for found in data.iterdir() if not found.name.startswith(LEFT_BY_A_FORMAT))
