"""Each check of this machine meets its cause and its opposite; a look that hangs ends in time; no secret is shown."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness_pipelines.app.doctor import machine as machine_checks
from harness_pipelines.app.doctor.all import diagnose
from harness_pipelines.app.doctor.check import Check, DoctorReport, Finding, Notes, Verdict, examine
from harness_pipelines.app.doctor.dagster import dagster
from harness_pipelines.app.doctor.machine import machine
from harness_pipelines.app.doctor.postgres import about_server
from harness_pipelines.app.doctor.registry import registry
from harness_pipelines.app.doctor.warehouse import warehouse
from harness_pipelines.cli.main import cli
from harness_pipelines.errors import TryAgain
from harness_pipelines.ledgers.postgres.views.server import ServerSeen
from harness_pipelines.services import Services
from harness_pipelines.services.process import identify
from harness_pipelines.services.state import Record, StateFile
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.promise import within
from harness_pipelines_tests.registry import RegistryServer

OK, WARN, FAIL, SKIPPED = Verdict.OK, Verdict.WARN, Verdict.FAIL, Verdict.SKIPPED
SECRET = "hunter2"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HARNESS_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)


def found(report: DoctorReport, name: str) -> Finding:
    [finding] = [one for one in report.findings if one.name == name]
    return finding


def in_time(checks: Sequence[Check]) -> DoctorReport:
    """What is found without a deadline that a busy machine may miss."""
    return examine([replace(check, deadline_s=120.0) for check in checks], all_s_max=120.0)


def look(settings: Settings) -> DoctorReport:
    return examine(machine(settings, Services.from_settings(settings)))


# -- how checks are run --------------------------------------------------------------------------------------


def test_what_was_found_before_a_server_hung_is_kept_and_others_do_not_wait():
    over = threading.Event()

    def hangs(notes: Notes) -> Iterator[Finding]:
        yield notes.ok("login", "let in")
        over.wait(60)
        yield notes.ok("late", "never seen")

    def breaks(notes: Notes) -> Iterator[Finding]:
        yield notes.ok("first", "fine")
        raise TryAgain(f"postgresql://me:{SECRET}@db is away")

    def is_a_defect(notes: Notes) -> Iterator[Finding]:
        yield from ()
        raise KeyError("x")

    checks = [
        Check(system="a", name="server", look=hangs, deadline_s=2.0),
        Check(system="b", name="server", look=breaks),
        Check(system="c", name="server", look=is_a_defect),
    ]
    with within(30, "a look past a server that hangs"):
        report = examine(checks)
    over.set()
    assert [(one.system, one.name, one.verdict) for one in report.findings] == [
        ("a", "login", OK),
        ("a", "server", FAIL),
        ("b", "first", OK),
        ("b", "server", FAIL),
        ("c", "server", FAIL),
    ]
    texts = [one.found + one.way_on for one in report.findings]
    assert "no answer within 2 s after the look at login" in texts[1]
    assert "run the same command again" in texts[3]
    assert SECRET not in "".join(texts)
    assert not report.ok


@pytest.mark.parametrize(("verdict", "ok"), [(OK, True), (WARN, True), (SKIPPED, True), (FAIL, False)])
def test_only_a_failure_is_one(verdict: Verdict, ok: bool):
    finding = Finding(system="a", name="b", verdict=verdict, found="c")
    assert DoctorReport(findings=(finding,), took_s=0).ok is ok


# -- this machine --------------------------------------------------------------------------------------------


def test_a_machine_with_nothing_set_and_nothing_started_passes(home: Path):
    report = diagnose(Settings(home=home))
    assert [one for one in report.findings if one.verdict is FAIL] == []
    assert found(report, "services").verdict is SKIPPED
    assert {one.system for one in report.findings if one.verdict is SKIPPED} >= {"postgres", "kafka", "warehouse"}
    assert not home.exists(), "a look makes no home"


@pytest.mark.parametrize(
    ("there", "verdict", "said"),
    [
        ("0.12.0", OK, ""),
        ("0.13.0", FAIL, "pyiceberg 0.13.0 is installed, and pyiceberg<0.13,>=0.12 is needed"),
        ("0.9.1", FAIL, "pyiceberg 0.9.1 is installed"),
        (None, FAIL, "pyiceberg is missing"),
    ],
)
def test_a_package_of_another_version_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, there: str | None, verdict: Verdict, said: str
):
    known = machine_checks._version
    monkeypatch.setattr(machine_checks, "_version", lambda name: there if name == "pyiceberg" else known(name))
    seen = found(look(Settings(home=home)), "packages")
    assert (seen.verdict, said in seen.found) == (verdict, True)


def fake_java(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").touch()
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return folder


def test_an_old_java_of_java_home_is_named_and_a_fitting_one_passes(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    old = found(look(Settings(home=home)), "java")
    assert old.verdict in (WARN, FAIL)
    assert "Java 11" in old.found
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "new", "21.0.1")))
    assert found(look(Settings(home=home)), "java").verdict is OK


def test_a_machine_without_java_fails_only_where_something_needs_it(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/none")
    monkeypatch.setenv("JAVA_HOME", "/none")
    monkeypatch.setattr("pathlib.Path.glob", lambda *_: iter(()))
    assert found(look(Settings(home=home)), "java").verdict is WARN
    assert found(look(Settings(home=home, spark="local[2]")), "java").verdict is FAIL
    elsewhere = Settings(home=home, spark="sc://spark.example", kafka="kafka.example:9092")
    assert found(look(elsewhere), "java").verdict is SKIPPED


def test_jars_that_are_missing_or_not_whole_are_named(home: Path, tmp_path: Path):
    settings = Settings(home=home, spark="local[2]", kafka="k:1", jars=tmp_path / "jars", warehouse="s3://b/lake")
    assert found(look(settings), "jars of spark").verdict is FAIL
    for kind, begins in machine_checks.NEEDED_JARS.items():
        (tmp_path / "jars" / kind).mkdir(parents=True)
        for begin in begins:
            (tmp_path / "jars" / kind / f"{begin}1.jar").touch()
    report = look(settings)
    assert (found(report, "jars of spark").verdict, found(report, "jars of s3").verdict) == (OK, OK)
    (tmp_path / "jars" / "spark" / "postgresql-1.jar").unlink()
    lacks = found(look(settings), "jars of spark")
    assert (lacks.verdict, "lacks postgresql-*.jar" in lacks.found) == (FAIL, True)


def test_an_extra_that_the_settings_need_and_is_missing_fails(home: Path, monkeypatch: pytest.MonkeyPatch):
    settings = Settings(home=home, warehouse="s3://b/lake")
    assert "s3" in found(look(settings), "extras").found
    monkeypatch.setattr(machine_checks, "_is_there", lambda module: module != "obstore")
    missing = found(look(settings), "extra s3")
    assert (missing.verdict, "harness-pipelines[s3]" in missing.way_on) == (FAIL, True)
    assert "not installed: s3" in found(look(Settings(home=home)), "extras").found


def test_a_port_that_another_process_has_is_named(home: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        home.mkdir()
        StateFile(home).write("kafka", Record(ports=(port, port), process=None))
        seen = found(look(Settings(home=home)), "service kafka")
        assert (seen.verdict, str(port) in seen.found) == (WARN, True)
    assert found(look(Settings(home=home)), "service kafka").verdict is SKIPPED


def test_a_service_that_died_is_named_with_its_log(home: Path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    mine = identify(os.getpid())
    assert mine is not None
    home.mkdir()
    StateFile(home).write("s3", Record(ports=(1,), process=replace(mine, started="never")))
    StateFile(home).write("postgres", Record(ports=(1,), process=None))
    died = found(look(Settings(home=home)), "service s3")
    assert (died.verdict, "logs/s3.log" in died.found) == (FAIL, True)
    assert found(look(Settings(home=home)), "service postgres").verdict is SKIPPED


def test_a_home_of_a_newer_harness_is_named(home: Path):
    home.mkdir()
    (home / "services.json").write_text('{"format": 99, "services": {}}')
    report = diagnose(Settings(home=home))
    assert "newer harness" in found(report, "services").found
    assert found(report, "python").verdict is OK


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_disk_that_is_full_fails_and_one_with_room_passes(tmp_path: Path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=False)
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        full = found(look(Settings(home=small / "home")), "disk of the home")
        assert (full.verdict, "make room" in full.way_on) == (FAIL, True)
    finally:
        subprocess.run(["umount", str(small)], check=True)
    if shutil.disk_usage(tmp_path).free > machine_checks.FREE_BYTES_WARN:
        assert found(look(Settings(home=tmp_path / "home")), "disk of the home").verdict is OK


# -- servers, by what they say -------------------------------------------------------------------------------

FINE = ServerSeen(
    version=150004,
    version_text="15.4",
    encoding="UTF8",
    is_stand_by=False,
    is_read_only=False,
    connections_max=200,
    connections_reserved=3,
    connections=9,
    fsync="on",
    full_page_writes="on",
    synchronous_commit="on",
    ahead_s=0.1,
    login="app",
    database="lake",
    is_superuser=False,
    creates_roles=False,
    is_owner=False,
    creates_schemas=False,
)


def judged(seen: ServerSeen) -> dict[str, Verdict]:
    return {one.name: one.verdict for one in about_server(Notes("postgres"), seen) if one.verdict is not OK}


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (FINE, {}),
        (replace(FINE, version=130010), {"version": FAIL}),
        (replace(FINE, encoding="SQL_ASCII"), {"encoding": FAIL}),
        (replace(FINE, is_stand_by=True), {"writes": FAIL}),
        (replace(FINE, is_read_only=True), {"writes": FAIL}),
        (replace(FINE, fsync="off"), {"durability": WARN}),
        (replace(FINE, synchronous_commit="off"), {"durability": WARN}),
        (replace(FINE, connections=180), {"connections": WARN}),
        (replace(FINE, ahead_s=-7.0), {"clock": WARN}),
        (replace(FINE, ahead_s=7.0), {"clock": WARN}),
    ],
)
def test_a_server_is_judged_by_what_it_says(seen: ServerSeen, said: dict[str, Verdict]):
    assert judged(seen) == said


@pytest.mark.parametrize("how", ["hangs", "is away"])
def test_servers_that_do_not_answer_are_named_in_time_without_secrets(home: Path, how: str):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if how == "hangs":  # its kernel takes what it is sent
            listener.listen(64)
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        settings = Settings(
            home=home,
            dsn=f"postgresql://me:{SECRET}@{place}/d",
            spark_dsn=f"postgresql://me:{SECRET}@{place}/d",
            owner_dsn=f"postgresql://me:{SECRET}@{place}/d",
            kafka=place,
            spark=f"sc://{place}/;token={SECRET}",
            registry=f"http://me:{SECRET}@{place}",
            kafka_properties={"sasl.username": "me", "sasl.password": SECRET},
            warehouse=str(home / "lake"),
        )
        with within(30, "a look at servers that do not answer"):
            report = diagnose(settings)
    failed = {(one.system, one.name) for one in report.findings if one.verdict is FAIL}
    assert failed >= {
        ("postgres", "server"),
        ("postgres", "login of Spark"),
        ("postgres", "login of the owner"),
        ("kafka", "cluster"),
        ("registry", "schema registry"),
        ("spark", "session"),
    }
    assert [one for one in report.findings if one.verdict in (FAIL, WARN) and not one.way_on] == []
    assert SECRET not in json.dumps(report.to_json())


# -- the warehouse in a folder -------------------------------------------------------------------------------


def test_a_folder_that_takes_files_passes_and_is_left_as_it_was(home: Path, tmp_path: Path):
    lake = tmp_path / "lake"
    settings = Settings(home=home, warehouse=str(lake))
    assert found(in_time(warehouse(settings)), "store").verdict is SKIPPED
    assert not lake.exists(), "it would belong to whoever looked"
    lake.mkdir()
    report = in_time(warehouse(settings))
    assert {one.name: one.verdict for one in report.findings} == dict.fromkeys(
        ("write", "create once", "replace", "read", "list", "delete"), OK
    )
    assert list(lake.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_folder_that_takes_no_files_fails_by_name(home: Path, tmp_path: Path):
    lake = tmp_path / "lake"
    lake.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(lake)], check=False).returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        report = in_time(warehouse(Settings(home=home, warehouse=str(lake))))
    finally:
        subprocess.run(["umount", str(lake)], check=True)
    [write] = report.findings
    assert (write.name, write.verdict, "Read-only" in write.found) == ("write", FAIL, True)


# -- the registry and Dagster --------------------------------------------------------------------------------


def test_a_registry_is_asked_by_the_client_that_decodes(home: Path):
    server = RegistryServer(login=f"me:{SECRET}")
    try:
        settings = Settings(home=home, registry=server.url)
        refused = found(in_time(registry(settings)), "schema registry")
        assert (refused.verdict, "HARNESS_REGISTRY" in refused.way_on) == (FAIL, True)
        let_in = replace(settings, registry_properties={"basic.auth.user.info": f"me:{SECRET}"})
        fine = found(in_time(registry(let_in)), "schema registry")
        assert (fine.verdict, SECRET in fine.found) == (OK, False)
    finally:
        server.close()
    assert found(in_time(registry(settings)), "schema registry").verdict is FAIL
    assert found(in_time(registry(Settings(home=home))), "schema registry").verdict is SKIPPED


def test_a_home_of_dagster_is_looked_at_where_it_is_set(home: Path, tmp_path: Path):
    def of(place: str) -> Verdict:
        return found(in_time(dagster(Settings(home=home), {"DAGSTER_HOME": place})), "home").verdict

    assert of("") is SKIPPED
    assert of("relative/home") is FAIL
    assert of(str(tmp_path / "none")) is FAIL
    assert of(str(tmp_path)) is WARN
    (tmp_path / "dagster.yaml").touch()
    assert of(str(tmp_path)) is OK


# -- the command ---------------------------------------------------------------------------------------------


def test_the_command_ends_with_0_or_1_and_prints_one_object(home: Path):
    fine = CliRunner().invoke(cli, [f"--home={home}", "doctor", "--json"])
    assert (fine.exit_code, json.loads(fine.stdout)["ok"]) == (0, True)
    away = {"HARNESS_DSN": f"postgresql://me:{SECRET}@127.0.0.1:9/d"}
    failed = CliRunner().invoke(cli, [f"--home={home}", "doctor"], env=away)
    assert failed.exit_code == 1
    assert "NOT OK" in failed.stdout
    assert "-> nothing: workers continue by themselves; is HARNESS_DSN right?" in failed.stdout
    assert SECRET not in failed.output
