"""Tables over the shared services, and the parts that a test may break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import harness_pipelines as hp
from harness_pipelines import faults
from harness_pipelines.ledgers.postgres.migrations import migrate
from harness_pipelines.services import Endpoints
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.integration.kafka.broker import PrivateBroker
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import PostgresProxy, TableRig, settings_for

MakeRig = Callable[..., TableRig]


@pytest.fixture(scope="session")
def settings(endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Of the shared services, the ledger made: a test may open a harness of its own before any other did."""
    made = settings_for(endpoints, tmp_path_factory.mktemp("home"))
    assert made.dsn is not None
    migrate(made.dsn)
    return made


@pytest.fixture(scope="session")
def harness(settings: Settings) -> Iterator[hp.Harness]:
    """One harness for all tests, so that there is one Spark session."""
    with hp.connect(settings) as opened:
        yield opened


@pytest.fixture
def kafka(endpoints: Endpoints) -> Iterator[KafkaRig]:
    assert endpoints.kafka is not None
    rig = KafkaRig(endpoints.kafka, properties=endpoints.kafka_login)
    yield rig
    rig.close()


@pytest.fixture
def make_rig(harness: hp.Harness, kafka: KafkaRig) -> MakeRig:
    """Makes tables with a topic each."""

    def make(over: hp.Harness | None = None, **spec: Any) -> TableRig:
        return TableRig(over or harness, kafka, **spec)

    return make


@pytest.fixture
def rig(make_rig: MakeRig) -> TableRig:
    """A table of two partitions."""
    return make_rig()


@pytest.fixture
def proxy(settings: Settings) -> Iterator[PostgresProxy]:
    """A proxy in front of Postgres."""
    assert settings.dsn is not None
    made = PostgresProxy(settings.dsn)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    faults.disarm()


@pytest.fixture(scope="session")
def private_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateBroker]:
    """A broker that a test may kill."""
    broker = PrivateBroker(tmp_path_factory.mktemp("private-broker"))
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
