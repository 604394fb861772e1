"""A SIGTERM ends a worker within 15 s, whichever server is away or hangs (of Postgres: test_postgres)."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

import harness_pipelines as hp
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.integration.kafka.broker import PrivateBroker
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.proxy import TcpProxy
from harness_pipelines_tests.registry import serving
from harness_pipelines_tests.rig import Command, TableRig
from harness_pipelines_tests.wire import framed

pytestmark = pytest.mark.long
END_S = 15.0
TABLES = 7  #: what is waited for one table after the other shows


def assert_ends_in_time(command: Command) -> None:
    asked_at = time.monotonic()
    command.send(signal.SIGTERM)
    command.await_end(deadline_s=2 * END_S)
    assert time.monotonic() - asked_at < END_S


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


def test_a_worker_whose_spark_hangs_ends_in_time(make_rig, settings: Settings):
    rig = make_rig(partitions=1)
    rig.produce(20)
    rig.ingest()
    assert settings.spark is not None
    port = urlsplit(settings.spark).port or 0
    with closing(TcpProxy("127.0.0.1", port)) as proxy:
        proxy.freeze()
        hanging = replace(settings, spark=settings.spark.replace(f":{port}/", f":{proxy.port}/"))
        with Command(hanging, "run", rig.name, "--stage", "tier", "--until-idle") as command:
            wait_until(lambda: bool(proxy._open), "the worker asks Spark")
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
