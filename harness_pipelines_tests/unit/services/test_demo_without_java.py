"""The demo without Java: Arrow does all of it with a Kafka that runs elsewhere; else it names the ways on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from harness_pipelines.demo.flow import DemoOptions, run_demo
from harness_pipelines.demo.orders import Orders
from harness_pipelines.demo.show import Show
from harness_pipelines.services import Endpoints, ServiceName, Services, ToolMissing, manager
from harness_pipelines.spec.settings import Settings


class Asked(Exception):
    """Which services were to start."""


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def up(_: Services, *, only: Iterable[ServiceName] | None = None, **__: object) -> Endpoints:
        raise Asked(None if only is None else sorted(only))

    monkeypatch.setattr(Services, "up", up)


@pytest.fixture
def _without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise ToolMissing("no Java was found")

    monkeypatch.setattr(manager, "java_home", none)


def begin(home: Path, *, no_spark: bool = False, kafka: str | None = None, spark: str | None = None) -> object:
    """Begin the demo; returns the services that it would start: None stands for all."""
    options = DemoOptions(rows=1, rate=1.0, keep=False, no_spark=no_spark)
    with pytest.raises(Asked) as asked:
        run_demo(Settings(home=home, kafka=kafka, spark=spark), Orders(), options, Show())
    return asked.value.args[0]


@pytest.mark.usefixtures("_without_java")
def test_with_a_kafka_elsewhere_only_postgres_is_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert begin(tmp_path, kafka="there:9092") == ["kafka", "postgres"]  # what runs elsewhere is never started
    assert "there is no Java for Spark: Arrow moves the rows" in capsys.readouterr().err
    assert begin(tmp_path, kafka="there:9092", spark="sc://there:15002") is None


@pytest.mark.usefixtures("_without_java")
@pytest.mark.parametrize("no_spark", [True, False])
def test_without_a_kafka_nothing_is_started_and_the_ways_on_are_named(tmp_path: Path, no_spark: bool):
    options = DemoOptions(rows=1, rate=1.0, keep=False, no_spark=no_spark)
    with pytest.raises(ToolMissing, match=r"embedded Kafka runs on Java.*let HARNESS_KAFKA name a Kafka that runs"):
        run_demo(Settings(home=tmp_path), Orders(), options, Show())


def test_spark_is_left_out_where_that_is_asked_for(tmp_path: Path):
    assert begin(tmp_path, no_spark=True) == ["kafka", "postgres"]
