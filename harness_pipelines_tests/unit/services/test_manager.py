"""The manager without any service running."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness_pipelines.services import Endpoints, Services, ServicesError, ServiceState
from harness_pipelines.services.process import ProcessId
from harness_pipelines.services.state import Record, StateFile
from harness_pipelines.spec.settings import Settings

DSN = "postgresql://me:hunter2@db.example/harness"


def test_a_service_of_the_users_own_is_never_started_and_keeps_its_address(tmp_path):
    settings = Settings(home=tmp_path, dsn=DSN, kafka="k:9092", spark="sc://s:15002", warehouse="s3://bucket/lake")

    endpoints = Services.from_settings(settings).up()

    assert endpoints.to_json() == {
        "postgres": DSN,
        "kafka": "k:9092",
        "spark": "sc://s:15002",
        "warehouse": "s3://bucket/lake",
        "home": str(tmp_path),
    }
    assert StateFile(tmp_path).read() == {}


def test_nothing_running_has_no_endpoints(tmp_path):
    services = Services(tmp_path / "home")

    assert services.endpoints() is None
    assert {one.state for one in services.status()} == {ServiceState.STOPPED}
    services.down()
    assert not (tmp_path / "home").exists()


def test_a_process_that_is_gone_shows_as_died_and_its_pid_is_trusted_no_more(tmp_path):
    reused = ProcessId(pid=os.getpid(), started="another boot/12345")
    StateFile(tmp_path).write("kafka", Record(ports=(20001, 20002), process=reused))
    services = Services(tmp_path)

    kafka = next(one for one in services.status() if one.name == "kafka")

    assert (kafka.state, kafka.pid, kafka.address) == (ServiceState.DIED, None, None)
    with pytest.raises(ServicesError, match="kafka does not run.*nothing was killed"):
        services.kill("kafka")


def test_passwords_are_in_no_repr_and_in_no_shown_address(tmp_path):
    services = Services(tmp_path, external={"postgres": DSN, "spark": "sc://localhost:1/;token=hunter2"})

    shown = f"{services.current()!r} {services.status()!r} {[one.shown_address for one in services.status()]}"

    assert "hunter2" not in shown
    assert "postgresql://me:***@db.example/harness" in shown


def test_endpoints_fill_only_what_the_settings_leave_open(tmp_path):
    settings = Settings(home=tmp_path, kafka="mine:9092")
    endpoints = Endpoints(postgres=DSN, kafka="k:1", spark=None, warehouse="file:///lake", home=str(tmp_path))

    filled = endpoints.fill(settings)

    assert (filled.dsn, filled.kafka, filled.spark, filled.warehouse) == (DSN, "mine:9092", None, "file:///lake")


def test_the_home_is_the_same_by_any_path_that_leads_to_it(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)

    assert Services(Path("link")).home == Services(tmp_path / "real").home


def test_the_embedded_logins_fill_only_settings_without_a_database(tmp_path):
    endpoints = Endpoints(
        postgres=DSN,
        kafka=None,
        spark=None,
        warehouse="w",
        home="h",
        owner="owner:hunter2",
        spark_login="spark:hunter2",
    )
    filled = endpoints.fill(Settings(home=tmp_path))
    assert (filled.dsn, filled.owner_dsn, filled.spark_dsn) == (DSN, "owner:hunter2", "spark:hunter2")
    assert filled.for_others().owner_dsn is None
    own = endpoints.fill(Settings(home=tmp_path, dsn="postgresql://mine"))
    assert (own.owner_dsn, own.spark_dsn) == (None, None)
    assert "hunter2" not in f"{endpoints!r} {filled!r}"
    assert set(endpoints.to_json()) == {"postgres", "kafka", "spark", "warehouse", "home"}
