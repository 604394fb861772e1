"""What the tests of logins and certificates at Kafka share; each module has a broker with its own listeners."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from harness_pipelines_tests.integration.kafka.broker import PrivateBroker
from harness_pipelines_tests.producer import KafkaRig


@pytest.fixture
def topic(broker: PrivateBroker) -> Iterator[str]:
    """A topic of one partition with two records, made over the listener that asks for no login."""
    with closing(KafkaRig(broker.bootstrap)) as rig:
        name = rig.create(1)
        rig.produce(name, 0, [b"a", b"b"])
        yield name
