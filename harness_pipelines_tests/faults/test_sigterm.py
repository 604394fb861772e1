"""A SIGTERM ends a command within 15 s, whichever server is away or hangs (a worker, of Postgres: test_postgres).

So does Ctrl-C end a demo, which has a worker.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import harness_pipelines as hp
from harness_pipelines.chaos.proxy import PostgresProxy, TcpProxy
from harness_pipelines.ledgers.postgres.states import StateStatus
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.integration.kafka.broker import PrivateBroker
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.promise import within
from harness_pipelines_tests.registry import serving
from harness_pipelines_tests.rig import ENDLESS_S, Command, TableRig
from harness_pipelines_tests.wire import framed

pytestmark = pytest.mark.long
END_S = 15.0
TABLES = 7  #: what is waited for one table after the other shows


def assert_ends_in_time(command: Command) -> None:
    with within(END_S, "the end of the command"):
        command.send(signal.SIGTERM)
        command.await_end(deadline_s=ENDLESS_S)


@pytest.fixture
def over_own_kafka(settings: Settings, private_broker: PrivateBroker) -> Iterator[tuple[Settings, list[TableRig]]]:
    """Tables on a broker that a test may stop."""
    own = replace(settings, kafka=private_broker.bootstrap, kafka_properties={})
    with hp.connect(own) as harness, closing(KafkaRig(private_broker.bootstrap)) as kafka:
        rigs = [TableRig(harness, kafka, partitions=1) for _ in range(TABLES)]
        for rig in rigs:
            rig.produce(5)
        yield own, rigs


@pytest.mark.parametrize("how", ["hangs", "refuses"])
def test_a_worker_whose_kafka_is_gone_ends_in_time(over_own_kafka, private_broker: PrivateBroker, how: str):
    own, rigs = over_own_kafka
    with Command(own, "run", *(rig.name for rig in rigs), "--stage", "ingest") as command:
        for rig in rigs:
            rig.await_rows(5)
        try:
            if how == "hangs":
                private_broker.send(signal.SIGSTOP)
            else:
                private_broker.kill()
            assert_ends_in_time(command)
        finally:
            if how == "hangs":
                private_broker.send(signal.SIGCONT)
            else:
                private_broker.start()


def test_a_worker_that_never_met_its_kafka_ends_in_time(make_rig, settings: Settings):
    names = [make_rig(partitions=1).name for _ in range(TABLES)]
    with closing(TcpProxy("127.0.0.1", urlsplit(f"//{settings.kafka}").port or 0)) as proxy:
        proxy.freeze()
        with Command(replace(settings, kafka=f"127.0.0.1:{proxy.port}"), "run", *names) as command:
            wait_until(lambda: bool(proxy._open), "the worker asks Kafka")
            assert_ends_in_time(command)


#: What asks Spark; the table's rows are in the batch view.
ASKS_SPARK = (
    "run TABLE --stage tier --until-idle",
    "sql 'SELECT count(*) FROM TABLE'",
    "recluster TABLE --rebuild --yes",
)


@pytest.mark.parametrize("line", ASKS_SPARK)
def test_what_asks_a_spark_that_hangs_ends_in_time(make_rig, settings: Settings, line: str):
    rig = make_rig(partitions=1, key=["id"], views="both")
    rig.produce(20)
    rig.ingest()
    rig.worker(until_idle=True).run()
    rig.produce(20)
    rig.ingest()
    assert settings.spark is not None
    port = urlsplit(settings.spark).port or 0
    with closing(TcpProxy("127.0.0.1", port)) as proxy:
        proxy.freeze()
        hanging = replace(settings, spark=settings.spark.replace(f":{port}/", f":{proxy.port}/"))
        with Command(hanging, *shlex.split(line.replace("TABLE", rig.name))) as command:
            wait_until(lambda: bool(proxy._open), "it asks Spark")
            assert_ends_in_time(command)


def test_a_recall_that_waits_for_a_worker_ends_in_time(make_rig, settings: Settings):
    rig = make_rig(partitions=1, key=["id"], views="both")
    with Command(settings, "recall", rig.name, "--where", "id >= 0") as command:
        command.await_line("request")
        assert_ends_in_time(command)


def test_a_worker_whose_registry_hangs_ends_in_time(kafka, settings: Settings, monkeypatch: pytest.MonkeyPatch):
    with serving() as server, hp.connect(replace(settings, registry=server.url)) as harness:
        number = server.register("orders-value", '{"type": "long"}')
        monkeypatch.setenv("HARNESS_REGISTRY", server.url)
        monkeypatch.setenv("HARNESS_REGISTRY_TIMEOUT", "60")
        rig = TableRig(harness, kafka, partitions=1, format="avro", columns={"id": {"type": "long", "required": True}})
        kafka.produce(rig.topic, 0, [framed(b"\x02", number)])
        server.delay_s = 2 * END_S
        with Command(settings, "run", rig.name, "--stage", "ingest") as command:
            wait_until(lambda: bool(server.requests), "the worker asks the registry")
            assert_ends_in_time(command)


# -- other commands -----------------------------------------------------------------------------------------

#: What asks Kafka, Postgres or both, and would wait; TABLE is the table's name.
ASKS_POSTGRES = {
    "events": "events TABLE --follow",
    "a subscriber": "events TABLE --follow --subscriber NAME",
    "read": "read TABLE",
    "stream": "stream TABLE",
    "changes": "changes TABLE --from 1",
    "audit": "audit TABLE",
    "fsck": "fsck TABLE",
    "status": "status TABLE",
    "the server": "serve --port 0",
}
ASKS_KAFKA = {
    "stream": "stream TABLE",
    "audit": "audit TABLE --full",
    "fsck": "fsck TABLE",
    "status": "status TABLE",
    "the tail": "read TABLE --tail",
    "events to a topic": "events TABLE --follow --subscriber NAME --topic somewhere",
}


def words(line: str, rig: TableRig) -> list[str]:
    name = f"s-{rig.topic.replace('_', '-')}"
    return [{"TABLE": rig.name, "NAME": name}.get(word, word) for word in line.split()]


@pytest.mark.parametrize("command", ASKS_POSTGRES)
def test_a_command_whose_postgres_hangs_ends_in_time(make_rig, settings: Settings, command: str):
    rig = make_rig(partitions=1)
    with closing(PostgresProxy(settings.dsn or "")) as proxy:
        proxy.freeze()
        hanging = replace(settings, dsn=proxy.dsn)
        with Command(hanging, *words(ASKS_POSTGRES[command], rig)) as process:
            wait_until(lambda: bool(proxy._open), "it asks Postgres")
            assert_ends_in_time(process)


@pytest.mark.parametrize("command", ASKS_KAFKA)
def test_a_command_whose_kafka_is_a_black_hole_ends_in_time(make_rig, settings: Settings, command: str):
    rig = make_rig(partitions=1)
    rig.produce(3)
    rig.ingest()
    rig.produce(3)
    with closing(TcpProxy("127.0.0.1", urlsplit(f"//{settings.kafka}").port or 0)) as proxy:
        proxy.freeze()
        hanging = replace(settings, kafka=f"127.0.0.1:{proxy.port}")
        with Command(hanging, *words(ASKS_KAFKA[command], rig)) as process:
            wait_until(lambda: bool(proxy._open), "it asks Kafka")
            assert_ends_in_time(process)


@pytest.mark.parametrize("command", ["stream", "a subscriber", "the server"])
def test_what_follows_ends_in_time_when_its_postgres_stops_under_it(make_rig, settings: Settings, command: str):
    rig = make_rig(partitions=1)
    rig.produce(3)
    rig.ingest()
    with closing(PostgresProxy(settings.dsn or "")) as proxy:
        hanging = replace(settings, dsn=proxy.dsn)
        with Command(hanging, *words(ASKS_POSTGRES[command], rig)) as process:
            process.await_line({"stream": '"id"', "the server": "serving at"}.get(command, '"created"'))
            proxy.freeze()
            assert_ends_in_time(process)


def test_a_subscriber_that_is_ended_lets_the_next_one_begin_at_once(make_rig, settings: Settings):
    rig = make_rig(partitions=1)

    def held() -> list[StateStatus]:
        mine = (s for s in rig.harness.states.all() if s.name.endswith(rig.topic.replace("_", "-")))
        return [s for s in mine if s.held_until]

    for _ in range(2):
        with Command(settings, *words(ASKS_POSTGRES["a subscriber"], rig)) as process:
            wait_until(lambda: any(s.last for s in held()), "it subscribes")
            assert_ends_in_time(process)
        assert held() == []


def test_an_apply_whose_registry_hangs_ends_in_time(
    kafka, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path
):
    topic = kafka.create(1)
    kafka.produce(topic, 0, [framed(b"\x02", 1)])
    spec = tmp_path / "odd.yaml"
    spec.write_text(f"table: faults.{topic}\ntopic: {topic}\nformat: avro\ncolumns: {{id: long}}\n")
    with serving() as server:
        monkeypatch.setenv("HARNESS_REGISTRY", server.url)
        monkeypatch.setenv("HARNESS_REGISTRY_TIMEOUT", "60")
        server.delay_s = 2 * END_S
        with Command(settings, "table", "apply", str(spec)) as command:
            wait_until(lambda: bool(server.requests), "it asks the registry")
            assert_ends_in_time(command)


def test_dev_ends_in_time_and_takes_dagster_with_it(settings: Settings, proxy: PostgresProxy):
    with Command(replace(settings, dsn=proxy.dsn), "dev", "--demo-rows", "0") as command:
        command.await_line("Dagster UI:", deadline_s=ENDLESS_S)
        children = below(command.pid)
        assert children
        proxy.freeze()
        assert_ends_in_time(command)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "no process of Dagster is left")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_demo_ends_in_time_and_takes_its_worker_with_it(
    settings: Settings, proxy: PostgresProxy, number: signal.Signals
):
    words = ("demo", "--no-spark", "--rows", "200000", "--rate", "5000")
    with Command(replace(settings, dsn=proxy.dsn), *words) as command:
        command.await_line("records/s while the worker", deadline_s=ENDLESS_S)
        children = below(command.pid)
        assert children
        proxy.freeze()
        with within(END_S, "the end of the demo"):
            command.send(number)
            code, _ = command.await_end(deadline_s=ENDLESS_S)
    assert code == 128 + number
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "no process of the demo is left")


def below(pid: int) -> list[int]:
    """The processes that *pid* has started, and those that they have."""
    found: list[int] = []
    with suppress(OSError):  # the process has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # the thread has
                found += map(int, (task / "children").read_text().split())
    return [*found, *(one for child in found for one in below(child))]
