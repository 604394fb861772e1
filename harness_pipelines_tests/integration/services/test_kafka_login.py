"""The embedded Kafka lets in who has its login, and an older home gets one without losing a record."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from harness_pipelines.cli.main import cli
from harness_pipelines.ledgers.postgres.migrations import migrate
from harness_pipelines.ports.errors import KafkaLoginFailed, TopicMissing
from harness_pipelines.services import Endpoints, Services
from harness_pipelines.services import kafka as embedded
from harness_pipelines.sources.kafka.client import KafkaTimeouts
from harness_pipelines.sources.kafka.log import KafkaLog
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.promise import within
from harness_pipelines_tests.rig import environment, settings_for

#: As harnesses before the login wrote them: the lines of it left out.
WITHOUT_LOGIN = "\n".join(
    line.replace("CLIENTS", "PLAINTEXT").replace("SASL_PLAINTEXT", "PLAINTEXT")
    for line in embedded.SETTINGS.splitlines()
    if "sasl" not in line
)

PATIENT = KafkaTimeouts(request_s=100.0)


def login_of(endpoints: Endpoints) -> tuple[str, Mapping[str, str]]:
    assert endpoints.kafka is not None
    return endpoints.kafka, endpoints.kafka_login


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"security.protocol": "PLAINTEXT"}, "it wants one by SCRAM-SHA-512 or PLAIN, and none is set"),
        ({"sasl.password": "open-sesame"}, "SASL authentication error"),
        ({"sasl.username": "nobody"}, "SASL authentication error"),
        ({"sasl.mechanism": "PLAIN"}, "SASL authentication error"),
        ({"sasl.username": "broker"}, "SASL authentication error"),
    ],
)
def test_who_has_no_login_is_refused_soon_and_hears_where_it_is(endpoints, changed, said):
    bootstrap, login = login_of(endpoints)
    with pytest.raises(TopicMissing):
        KafkaLog(bootstrap, login).describe("no-such-topic")
    log = KafkaLog(bootstrap, {**login, **changed}, timeouts=PATIENT)

    with (
        within(8, "a refusal"),
        pytest.raises(KafkaLoginFailed, match=f"{said}.*`harness services kafka` prints it") as caught,
    ):
        log.describe("orders")

    assert login["sasl.password"] not in str(caught.value)


def test_a_command_without_the_login_is_refused_and_hears_where_it_is(endpoints, tmp_path):
    assert endpoints.owner is not None
    migrate(endpoints.owner)
    spec = tmp_path / "table.yaml"
    spec.write_text("table: shop.orders\ntopic: orders\ncolumns: {id: long}\n")
    settings = settings_for(endpoints, tmp_path, kafka_properties={})

    done = CliRunner(env=environment(settings)).invoke(cli, ["table", "apply", str(spec)])

    assert done.exit_code == 1, done.output
    assert "the login at Kafka" in done.output and "`harness services kafka`" in done.output


def test_the_controller_lets_nobody_in_either(services):
    """It would make users, and change topics and settings."""
    ports = json.loads((services.home / "services.json").read_text())["services"]["kafka"]["ports"]
    with pytest.raises((ConnectionError, AssertionError)):
        _metadata_of(ports[1])
    with pytest.raises((ConnectionError, AssertionError)):
        _metadata_of(ports[0])


def _metadata_of(port: int) -> bytes:
    """What a client without a login is answered that asks for the cluster: an empty answer is a hang-up."""
    request = struct.pack(">hhih", 60, 0, 7, -1) + b"\0" + b"\0\0"  # DescribeCluster, version 0
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        found = connection.recv(4)
    assert found != b""
    return found


def test_the_secrets_are_their_users_alone_and_in_no_command_line(services):
    login = services.current().kafka_login
    passwords = [path.read_text() for path in (services.home / "secrets").glob("kafka-*")]
    assert login["sasl.password"] in passwords and len(passwords) == 2
    for path in (*(services.home / "secrets").iterdir(), services.home / "kafka" / "server.properties"):
        assert path.stat().st_mode & 0o077 == 0, path
    lines: dict[str, bytes] = {}
    for proc in Path("/proc").iterdir():
        with suppress(OSError):  # it is no process, or has ended
            lines[proc.name] = (proc / "cmdline").read_bytes()
    assert {str(one.pid) for one in services.status() if one.pid is not None} <= lines.keys()
    shown = b"".join(lines.values())
    assert not [one for one in passwords if one.encode() in shown]


@pytest.mark.parametrize("java", [False, True])
def test_clients_of_other_makes_get_properties_that_they_understand(services, java):
    words = ["services", "kafka", *(["--java"] if java else [])]
    cleared = {"HARNESS_KAFKA": "", "HARNESS_DSN": "", "HARNESS_SPARK": ""}
    run = CliRunner(env=cleared).invoke
    shown = run(cli, [f"--home={services.home}", *words])
    assert shown.exit_code == 0, shown.output
    found = dict(line.split("=", 1) for line in shown.stdout.splitlines())
    assert found == json.loads(run(cli, [f"--home={services.home}", *words, "--json"]).stdout)
    if java:
        assert found["sasl.jaas.config"].startswith("org.apache.kafka.common.security.scram.ScramLoginModule required")
    else:
        assert AdminClient({**found}).list_topics(timeout=60).cluster_id


def test_properties_of_the_user_are_added_to_the_login(endpoints):
    login = endpoints.kafka_login
    mine = Settings.from_env({"HARNESS_KAFKA_FETCH_WAIT_MAX_MS": "5", "HARNESS_HOME": "h"})
    assert endpoints.fill(mine).kafka_properties == {**login, "fetch.wait.max.ms": "5"}
    other = Settings.from_env({"HARNESS_KAFKA": "kafka-1:9092", "HARNESS_HOME": "h"})
    assert endpoints.fill(other).kafka_properties == {}
    filled = endpoints.fill(mine)
    assert Settings.from_env({**filled.kafka_environment(), "HARNESS_HOME": "h"}).kafka_properties == (
        filled.kafka_properties
    )


@pytest.fixture
def older_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home whose broker runs, and was started by a harness that knew no login."""
    home = tmp_path / "home"
    with monkeypatch.context() as older:
        older.setattr(embedded, "SETTINGS", WITHOUT_LOGIN)
        older.setattr(embedded.Kafka, "finish", lambda *_: None)
        Services(home).up(only=["kafka"])
    yield home
    Services(home).down()


@pytest.mark.long
def test_an_older_home_keeps_its_records_and_gets_a_login(older_home):
    services, said = Services(older_home), list[str]()
    before = services.current()
    assert before.kafka is not None and before.kafka_login == {}
    with closing(KafkaRig(before.kafka)) as rig:  # until it is started again its clients go on
        topic = rig.create(2)
        rig.produce(topic, 1, [b"%d" % number for number in range(500)])
        identity = rig.log.describe(topic)
        shown = CliRunner(env={"HARNESS_KAFKA": ""}).invoke(cli, [f"--home={older_home}", "services", "status"])
        assert "`harness services up` adds one" in shown.output

        after = services.up(only=["kafka"], progress=said.append)

        assert any("let in who has no login; it starts again with its data" in one for one in said)
        assert after.kafka == before.kafka
        with pytest.raises(KafkaLoginFailed):
            KafkaLog(*login_of(before)).describe(topic)
        log = KafkaLog(*login_of(after))
        assert log.describe(topic) == identity
        assert log.watermarks(topic, [0, 1])[1].end == 500
        with closing(KafkaRig(after.kafka, properties=after.kafka_login)) as with_login:
            transaction = with_login.begin()  # the broker itself logs in to write the end of one
            with_login.ledger.start(topic, [0, 1])
            transaction.produce(topic, 0, [b"x"])
            transaction.commit()
        said.clear()
        services.up(only=["kafka"], progress=said.append)
        assert said == []  # it is not started again each time
