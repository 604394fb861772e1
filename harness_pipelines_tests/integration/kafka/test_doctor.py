"""`harness doctor` names a login that is refused, and a topic that the login may not read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]  # not in __all__

import harness_pipelines as hp
from harness_pipelines.app.doctor.check import DoctorReport, Verdict, examine
from harness_pipelines.app.doctor.kafka import kafka
from harness_pipelines.ledgers.postgres.migrations import migrate
from harness_pipelines.services import Endpoints
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.integration.kafka.broker import PrivateBroker
from harness_pipelines_tests.integration.kafka.test_logins import allow, login
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import TableRig, settings_for


@pytest.fixture
def settings(endpoints: Endpoints, tmp_path: Path) -> Settings:
    assert endpoints.postgres is not None
    migrate(endpoints.postgres)
    return settings_for(endpoints, tmp_path)


@pytest.fixture
def table(settings: Settings, private_broker: PrivateBroker, private_rig: KafkaRig) -> Iterator[TableRig]:
    """Of a topic that only a super user may see."""
    over = replace(settings, kafka=private_broker.bootstrap, kafka_properties={})
    with hp.connect(over) as harness:
        made = TableRig(harness, private_rig)
        yield made
        made.stores.ledger.drop_table(made.stores.ledger.droppable(made.name), purge=[])


def look(settings: Settings, broker: PrivateBroker, properties: dict[str, str]) -> DoctorReport:
    looked = Settings(home=settings.home, dsn=settings.dsn, kafka=broker.login, kafka_properties=properties)
    return examine(kafka(looked))


def failed(report: DoctorReport) -> dict[str, str]:
    return {one.name: one.found for one in report.findings if one.verdict is Verdict.FAIL}


def test_a_topic_that_the_login_may_not_describe_or_read_is_named(
    settings: Settings, table: TableRig, private_broker: PrivateBroker, private_rig: KafkaRig
):
    name = f"topic of {table.name}"
    assert "no right to read topic" in failed(look(settings, private_broker, login("nobody")))[name]
    allow(private_rig, "nobody", table.topic, AclOperation.DESCRIBE)
    assert "no right to read topic" in failed(look(settings, private_broker, login("nobody")))[name]
    allow(private_rig, "nobody", table.topic, AclOperation.READ)
    assert name not in failed(look(settings, private_broker, login("nobody")))


def test_a_login_that_is_refused_is_named_and_its_password_is_not(settings: Settings, private_broker: PrivateBroker):
    report = look(settings, private_broker, login("reader", "open-sesame-99"))
    assert "HARNESS_KAFKA_SASL" in failed(report)["cluster"]
    assert "open-sesame-99" not in json.dumps(report.to_json())
