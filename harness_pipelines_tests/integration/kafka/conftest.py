"""A private broker for the tests that hurt it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness_pipelines.services import Endpoints
from harness_pipelines_tests.integration.kafka.broker import PrivateBroker
from harness_pipelines_tests.producer import KafkaRig


@pytest.fixture(scope="session")
def private_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateBroker]:
    broker = PrivateBroker(tmp_path_factory.mktemp("private-broker"))
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


@pytest.fixture
def private_rig(private_broker: PrivateBroker) -> Iterator[KafkaRig]:
    rig = KafkaRig(private_broker.bootstrap)
    yield rig
    rig.close()


@pytest.fixture
def rig(endpoints: Endpoints) -> Iterator[KafkaRig]:
    assert endpoints.kafka is not None
    made = KafkaRig(endpoints.kafka, properties=endpoints.kafka_login)
    yield made
    made.close()
