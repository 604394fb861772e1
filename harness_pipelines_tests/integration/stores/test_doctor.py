"""`harness doctor` over real services: what is planted is named, and what is in order passes."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo

import harness_pipelines as hp
from harness_pipelines.app.doctor.all import warehouse_report
from harness_pipelines.app.doctor.check import Check, DoctorReport, Finding, Verdict, examine
from harness_pipelines.app.doctor.kafka import kafka as of_kafka
from harness_pipelines.app.doctor.postgres import postgres
from harness_pipelines.app.doctor.spark import spark
from harness_pipelines.cli.main import cli
from harness_pipelines.drivers.files import listed
from harness_pipelines.drivers.object_stores.bound import BOUND
from harness_pipelines.services import Endpoints, Services
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.faults.conftest import MakeRig, proxy
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.promise import within
from harness_pipelines_tests.rig import PostgresProxy, TableRig
from harness_pipelines_tests.store_proxy import Fault, StoreProxy

__all__ = ["proxy"]
PATIENCE_S = 300.0
OK, WARN, FAIL, SKIPPED = Verdict.OK, Verdict.WARN, Verdict.FAIL, Verdict.SKIPPED


def patient(checks: list[Check]) -> list[Check]:
    """*checks* with deadlines that a loaded machine meets."""
    return [replace(one, deadline_s=PATIENCE_S) for one in checks]


def named(report: DoctorReport, name: str) -> Finding:
    [finding] = [one for one in report.findings if one.name == name]
    return finding


def failures(report: DoctorReport) -> dict[str, str]:
    return {one.name: one.found for one in report.findings if one.verdict is FAIL}


@pytest.fixture
def login(settings: Settings) -> Iterator[str]:
    """The DSN of a login that has no role yet."""
    assert settings.dsn is not None
    name = f"doctor_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(settings.dsn, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'rosebud-4711'".encode())
        owner.execute(f"GRANT CONNECT ON DATABASE {owner.info.dbname} TO {name}".encode())
        try:
            yield make_conninfo(settings.dsn, user=name, password="rosebud-4711")
        finally:
            owner.execute(f"REVOKE ALL ON DATABASE {owner.info.dbname} FROM {name}".encode())
            owner.execute(f"DROP ROLE {name}".encode())


def grant(settings: Settings, role: str, dsn: str) -> None:
    assert settings.dsn is not None
    with psycopg.connect(settings.dsn, autocommit=True) as owner:
        owner.execute(f"GRANT {role} TO {psycopg.conninfo.conninfo_to_dict(dsn)['user']}".encode())


# -- Postgres ------------------------------------------------------------------------------------------------


def test_a_login_without_a_role_is_named_and_passes_with_it(settings: Settings, login: str):
    looked = replace(settings, dsn=login)
    failed = failures(examine(postgres(looked)))
    assert "harness_worker" in failed["login of the worker"]
    assert "harness_reader" in failed["login of the reader"]
    grant(settings, "harness_worker", login)
    report = examine(postgres(looked))
    assert failures(report) == {}
    assert named(report, "login of the worker").verdict is OK
    assert named(report, "ledger").verdict is OK


def test_the_owner_as_a_worker_is_a_warning_and_as_the_owner_is_none(settings: Settings, login: str):
    report = examine(postgres(replace(settings, owner_dsn=settings.dsn)))
    assert named(report, "login of the worker").verdict is WARN
    assert named(report, "login of the owner").verdict is OK
    assert named(examine(postgres(replace(settings, owner_dsn=login))), "login of the owner").verdict is FAIL


def test_a_session_that_keeps_a_lock_of_the_harness_is_named(settings: Settings, login: str):
    """Each login may take any advisory lock, and a reader's would stop stages and reads for as long as it likes."""
    grant(settings, "harness_reader", login)
    assert not [one for one in examine(postgres(settings)).findings if one.name == "locks"]
    with psycopg.connect(login, autocommit=True, application_name="idler") as idler:
        with idler.transaction():
            idler.execute("SELECT pg_advisory_xact_lock_shared(1752330865, 999999)")
            assert not [one for one in examine(postgres(settings)).findings if one.name == "locks"]
        idler.execute("SELECT pg_advisory_lock(1752330865, 999999)")
        found = named(examine(postgres(settings)), "locks")
        assert found.verdict is FAIL
        assert f"session {idler.info.backend_pid} of {idler.info.user} (idler)" in found.found


def test_a_role_that_lost_its_rights_is_named_with_them(settings: Settings, login: str):
    """As after a restore without grants."""
    grant(settings, "harness_spark", login)
    looked = replace(settings, spark_dsn=login)
    assert named(examine(postgres(looked)), "rights of Spark").verdict is OK
    assert settings.dsn is not None
    with psycopg.connect(settings.dsn, autocommit=True) as owner:
        owner.execute("REVOKE SELECT ON harness_pins.iceberg_tables FROM harness_spark")
        try:
            lacks = named(examine(postgres(looked)), "rights of Spark")
        finally:
            owner.execute("GRANT SELECT ON harness_pins.iceberg_tables TO harness_spark")
    assert (lacks.verdict, "SELECT on harness_pins.iceberg_tables" in lacks.found) == (FAIL, True)


def test_a_wrong_password_and_a_database_without_a_ledger_are_named(settings: Settings, login: str):
    assert settings.dsn is not None
    wrong = examine(postgres(replace(settings, dsn=make_conninfo(login, password="open-sesame-99"))))
    assert "refused the login" in failures(wrong)["server"]
    assert "open-sesame" not in json.dumps(wrong.to_json())
    empty = examine(postgres(replace(settings, dsn=make_conninfo(settings.dsn, dbname="template1"))))
    assert "harness init" in named(empty, "ledger").way_on
    assert list(failures(empty)) == ["ledger"]


def test_a_server_that_hangs_is_named_and_holds_nothing_up(settings: Settings, proxy: PostgresProxy):
    looked = replace(settings, dsn=proxy.dsn)
    assert failures(examine(postgres(looked))) == {}
    proxy.freeze()
    with within(25, "a look at a server that hangs"):
        report = examine(postgres(looked))
    assert list(failures(report)) == ["server"]


# -- Kafka and its topics ------------------------------------------------------------------------------------


def test_topics_of_all_tables_are_looked_at_and_one_that_is_gone_is_named(settings: Settings, make_rig: MakeRig):
    kept, dropped = make_rig(), make_rig()
    dropped.kafka.admin.delete_topics([dropped.topic])[dropped.topic].result(PATIENCE_S)
    report = examine(of_kafka(settings))
    assert "does not exist" in failures(report)[f"topic of {dropped.name}"]
    assert f"topic of {kept.name}" not in failures(report)
    assert {named(report, name).verdict for name in ("version", "login", "brokers")} == {OK}
    dropped.stores.ledger.drop_table(dropped.stores.ledger.droppable(dropped.name), purge=[])


# -- the object store ----------------------------------------------------------------------------------------


@pytest.fixture
def store(endpoints: Endpoints) -> Iterator[StoreProxy]:
    assert endpoints.s3 is not None
    with StoreProxy(endpoints.s3) as made:
        yield made


def probe(settings: Settings, store: StoreProxy) -> DoctorReport:
    place = f"s3://harness/{uuid.uuid4().hex[:10]}"
    return warehouse_report(replace(settings, warehouse=place, s3=store.settings))


def test_a_store_that_does_all_that_is_asked_passes_and_keeps_nothing(settings: Settings, store: StoreProxy):
    report = probe(settings, store)
    assert failures(report) == {}
    assert [one.name for one in report.findings] == [
        *("write", "create once", "replace", "read", "list", "delete", "clock", "versioning", "cut-off uploads"),
    ]
    assert {one.verdict for one in report.findings} == {OK}
    assert store.counts()["BULK"] == 2, "what was written is deleted, and so is what the last questions wrote"


ACCEPTED = Fault(accepted=True)


@pytest.mark.parametrize(
    ("kind", "fault", "name", "said"),
    [
        ("PUT", Fault.named(403, "AccessDenied"), "write", "grant the rights"),
        ("PUT", Fault.named(404, "NoSuchBucket"), "write", "there is no such bucket"),
        ("REPLACE", ACCEPTED, "create once", "ignores If-Match"),
        ("GET", Fault.named(403, "AccessDenied"), "replace", "grant the rights"),
        ("LIST", Fault.named(403, "AccessDenied"), "list", "grant the rights"),
        ("BULK", Fault.named(403, "AccessDenied"), "delete", "grant the rights"),
    ],
)
def test_a_store_that_refuses_or_ignores_something_is_named_at_the_first_question(
    settings: Settings, store: StoreProxy, kind: str, fault: Fault, name: str, said: str
):
    store.fail(kind, fault)
    report = probe(settings, store)
    assert list(failures(report)) == [name]
    assert said in failures(report)[name]


def test_what_a_bucket_keeps_and_what_time_it_has_is_named(settings: Settings, store: StoreProxy):
    """Answers as AWS words them."""
    of_aws = "http://s3.amazonaws.com/doc/2006-03-01/"
    on = f'<VersioningConfiguration xmlns="{of_aws}"><Status>Enabled</Status></VersioningConfiguration>'
    upload = "<Upload><Key>k</Key><UploadId>1</UploadId><Initiated>2020-01-02T03:04:05.000Z</Initiated></Upload>"
    cut = f'<ListMultipartUploadsResult xmlns="{of_aws}">{upload}</ListMultipartUploadsResult>'
    store.fail("VERSIONING", Fault(status=200, body=on))
    store.fail("UPLOADS", Fault(status=200, body=cut))
    store.ahead = timedelta(minutes=10)
    began = time.monotonic()
    report = probe(settings, store)
    took_s = time.monotonic() - began
    told = {one.name: (one.verdict, one.found) for one in report.findings if one.verdict is not OK}
    assert {name: verdict for name, (verdict, _) in told.items()} == dict.fromkeys(
        ("clock", "versioning", "cut-off uploads"), WARN
    )
    [ahead_s] = re.findall(r"is (\d+) s ahead of", told["clock"][1])
    assert abs(int(ahead_s) - 600) <= 1 + took_s  # it has whole seconds, of a moment within the look
    store.heal()
    for kind in ("VERSIONING", "UPLOADS"):
        store.fail(kind, Fault.named(403, "AccessDenied"))
    report = probe(settings, store)
    assert failures(report) == {}
    assert {named(report, name).verdict for name in ("versioning", "cut-off uploads")} == {SKIPPED}


def test_a_store_that_creates_twice_is_unfit(settings: Settings, store: StoreProxy):
    store.fail("CREATE", ACCEPTED)
    report = probe(settings, store)
    assert "ignores If-None-Match" in failures(report)["create once"]


# -- Spark ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", ["store", "folder"])
def test_spark_and_python_read_what_the_other_wrote_and_nothing_is_left(settings: Settings, tmp_path: Path, on: str):
    place = f"s3://harness/{uuid.uuid4().hex[:10]}" if on == "store" else f"file://{tmp_path}"
    looked = replace(settings, warehouse=place)
    BOUND.bind(place, looked.s3)
    report = examine(patient(spark(looked)), all_s_max=PATIENCE_S)
    assert {one.name: one.verdict for one in report.findings} == dict.fromkeys(
        ("version", "executors", "spark reads python", "python reads spark"), OK
    ), report.findings
    assert list(listed(place)) == []
    assert settings.dsn is not None
    with psycopg.connect(settings.dsn) as owner:
        assert (
            owner.execute("SELECT FROM public.iceberg_tables WHERE table_namespace = 'harness_doctor'").fetchall() == []
        )


def test_a_login_of_spark_that_may_not_ask_the_catalog_is_named_by_spark_too(settings: Settings, login: str):
    report = examine(patient(spark(replace(settings, spark_dsn=login))), all_s_max=PATIENCE_S)
    assert list(failures(report)) == ["session"]
    assert named(report, "executors").verdict is OK


def test_a_spark_that_hangs_is_named_in_time(settings: Settings, services: Services):
    services.send("spark", signal.SIGSTOP)
    try:
        with within(25, "a look at a Spark that hangs"):
            report = examine(spark(settings))
    finally:
        services.send("spark", signal.SIGCONT)
    assert "does not answer" in failures(report)["session"]


# -- the whole -----------------------------------------------------------------------------------------------


@pytest.fixture
def own(services: Services, tmp_path: Path) -> Iterator[Settings]:
    """A separate home, database and warehouse: the doctor checks all tables, and other tests leave some behind."""
    jars = os.environ.get("HARNESS_JARS")
    home = Services(tmp_path / "home", jars=Path(jars) if jars else None)
    shared = services.current()
    try:
        home.up(only=["postgres"])
        yield Settings(
            home=home.home, kafka=shared.kafka, kafka_properties=shared.kafka_login or {}, spark=shared.spark
        )
    finally:
        home.down()


def test_the_command_passes_over_running_services_and_init_tries_the_warehouse(
    own: Settings, services: Services, kafka: KafkaRig
):
    environment = {**own.kafka_environment(), "HARNESS_SPARK": own.spark or ""}
    run = partial(CliRunner(env=environment).invoke, cli)
    shown = run([f"--home={own.home}", "init", "--json"])
    assert (shown.exit_code, json.loads(shown.stdout)["warehouse"]["ok"]) == (0, True)
    with hp.connect(own) as opened:
        TableRig(opened, kafka)
    looked = run([f"--home={own.home}", "doctor", "--json"])
    told = json.loads(looked.stdout)
    assert [one for one in told["findings"] if one["verdict"] == "fail"] == []
    assert looked.exit_code == 0
    assert {one["system"] for one in told["findings"]} >= {"machine", "postgres", "kafka", "warehouse", "spark"}
    assert "those of 1 table are there and may be read" in [one["found"] for one in told["findings"]]
    secrets = [file.read_text().strip() for at in (own.home, services.home) for file in (at / "secrets").iterdir()]
    assert [secret for secret in secrets if secret in json.dumps(told)] == []
