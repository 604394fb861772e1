"""A broker of the test's own, to be stopped, killed, damaged, and asked for a login."""

from __future__ import annotations

import signal
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from harness_pipelines.errors import TryAgain
from harness_pipelines.ports.errors import TopicMissing
from harness_pipelines.services.base import Place
from harness_pipelines.services.java import jars, java_home
from harness_pipelines.services.state import LOOPBACK, free_ports
from harness_pipelines.sources.kafka.client import KafkaTimeouts
from harness_pipelines.sources.kafka.log import KafkaLog
from harness_pipelines_tests.producer import DEADLINE_S, wait_until

READER_PASSWORD = "rosebud-4711"
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{plain},LOGIN://127.0.0.1:{login},CONTROLLER://127.0.0.1:{controller}{more}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},LOGIN://127.0.0.1:{login}{more}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_reader="{password}" user_nobody="{password}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
message.max.bytes=16777216
num.network.threads=2
num.io.threads=2
log.cleaner.dedupe.buffer.size=33554432
"""


class PrivateBroker:
    """One node with a listener for everybody (`bootstrap`, a super user) and one with a login (`login`).

    *settings* are lines of its own for `server.properties`, *listeners* are more names with their protocols: their
    addresses are in `more`.
    """

    def __init__(
        self, folder: Path, *, settings: str = "", listeners: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._folder = folder
        self.data = folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        plain, login, controller, *others = free_ports(
            3 + len(listeners), home=folder, name="private-broker", taken=frozenset()
        )
        self.more = {name: f"localhost:{port}" for name, port in zip(listeners, others, strict=True)}
        self.bootstrap, self.login = f"{LOOPBACK}:{plain}", f"{LOOPBACK}:{login}"
        common = SETTINGS.format(
            plain=plain,
            login=login,
            controller=controller,
            password=READER_PASSWORD,
            data=self.data,
            more="".join(f",{name}://{address}" for name, address in self.more.items()),
            protocols="".join(f",{name}:{protocol}" for name, protocol in listeners.items()),
        )
        (folder / "server.properties").write_text(common + settings)
        self._run_format()

    def start(self) -> None:
        """Start the broker and wait until it answers."""
        command = [*self._java("-Xmx512m"), "kafka.Kafka", str(self._folder / "server.properties")]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        log = KafkaLog(self.bootstrap, timeouts=KafkaTimeouts(request_s=1.0))
        wait_until(lambda: answers(log), f"the broker of {self._log} answers", deadline_s=180.0)

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(DEADLINE_S)

    def cut(self, topic: str, partition: int, offset: int) -> None:
        """Take the record batches from *offset* on out of the log of a broker that was killed.

        So an unclean leader election cuts what its new leader lacks. The broker makes indexes and snapshots again.
        """
        folder = self.data / f"{topic}-{partition}"
        [segment] = folder.glob("*.log")
        content, at = segment.read_bytes(), 0
        while at < len(content):
            base, length = struct.unpack_from(">qi", content, at)
            if base >= offset:
                break
            at += 12 + length
        segment.write_bytes(content[:at])
        for made in (*folder.glob("*.index"), *folder.glob("*.timeindex"), *folder.glob("*.snapshot")):
            made.unlink()

    def send(self, number: signal.Signals) -> None:
        """SIGSTOP makes it hang, SIGCONT lets it go on."""
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def _log(self) -> Path:
        return self._folder / "broker.log"

    def _java(self, *options: str) -> list[str]:
        classpath = f"{jars(Place(home=self._folder, jars=None), 'kafka')}/*"
        return [str(java_home() / "bin" / "java"), *options, "-XX:+UseSerialGC", "-cp", classpath]

    def _run_format(self) -> None:
        made = subprocess.run(
            [
                *self._java("-Xmx128m", "-XX:TieredStopAtLevel=1"),
                *("kafka.tools.StorageTool", "format", "--cluster-id", "cHJpdmF0ZS1icm9rZXItMQ"),
                *("--config", str(self._folder / "server.properties")),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stdout + made.stderr


def answers(log: KafkaLog) -> bool:
    """Tell whether the broker gives a definite answer."""
    try:
        log.describe("no-such-topic")
    except TryAgain:
        return False
    except TopicMissing:
        return True
    raise AssertionError("a topic that nobody created")
