"""The tables of the fault tests, run by Dagster."""

from collections.abc import Iterator

import pytest
from dagster import DagsterInstance

from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.faults.conftest import harness, kafka, make_rig, rig, settings

__all__ = ["harness", "kafka", "make_rig", "rig", "settings"]


@pytest.fixture
def environment(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The addresses as a code server gets them."""
    for name, value in {
        "HARNESS_HOME": str(settings.home),
        "HARNESS_DSN": settings.dsn,
        **settings.kafka_environment(),
        "HARNESS_SPARK": settings.spark,
        "HARNESS_WAREHOUSE": settings.warehouse,
    }.items():
        monkeypatch.setenv(name, value or "")


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as made:
        yield made
