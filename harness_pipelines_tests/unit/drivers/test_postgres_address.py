"""An address of Postgres that cannot be read is refused, and nothing of it is shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from psycopg import pq

from harness_pipelines.app.installation import Stores
from harness_pipelines.drivers.postgres_address import check_address, in_force
from harness_pipelines.errors import UsageError
from harness_pipelines.spec.settings import Settings

CANARY = "c4nary"
UNREADABLE = [
    "postgresql://u:{}/x@h:5432/db",
    "postgresql://u:{} x@h/db",
    "postgresql://u:{}%zz@h/db",
    "password=my {} host=h",
    "password='{} host=h",
    "host=h port={}",
    "mysql://u:{}@h/db",
    "{}",
    "h:{}",
]


@pytest.mark.parametrize("dsn", UNREADABLE)
@pytest.mark.parametrize("variable", ["dsn", "owner_dsn", "spark_dsn"])
def test_it_is_refused_by_the_name_of_its_variable_and_not_shown(tmp_path, variable, dsn):
    with pytest.raises(UsageError, match=f"HARNESS_{variable.upper()} is no address") as caught:
        Stores(Settings(home=tmp_path, **{variable: dsn.format(CANARY)}))
    assert CANARY not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


@pytest.mark.parametrize(
    "dsn",
    [
        None,
        "",
        "postgresql://u:p%40s@h:5432,i:5433/db?sslmode=verify-full",
        "postgresql://[::1]:5432/db",
        "host=h user=u password='a b' dbname=db",
        "postgresql:///db?host=/run/postgresql",
        "service=lake",
    ],
)
def test_what_libpq_can_read_is_left_to_it(dsn):
    check_address("HARNESS_DSN", dsn)


@pytest.mark.parametrize("dsn", ["postgresql://u:{}@h:65536/db", "host=h,i port=5432,99999 password={}"])
def test_a_port_that_no_machine_has_is_refused_too(dsn: str):
    with pytest.raises(UsageError, match="HARNESS_DSN is no address") as caught:
        check_address("HARNESS_DSN", dsn.format(CANARY))
    assert CANARY not in str(caught.value)


def test_a_command_names_it_without_a_traceback(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "harness_pipelines.cli.main", f"--home={tmp_path}", "table", "list"],
        env={"HARNESS_DSN": UNREADABLE[0].format(CANARY), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "HARNESS_DSN is no address of Postgres" in done.stderr
    assert CANARY not in done.stdout + done.stderr and "Traceback" not in done.stderr


DEFECT = """
import sys
from harness_pipelines.cli import main
def cli(**_):
    raise ValueError('the driver was given "password=c4nary" and postgresql://u:c4nary@h/db')
main.cli = cli
main.main()
"""


def test_what_has_no_name_is_printed_without_secrets():
    done = subprocess.run([sys.executable, "-c", DEFECT], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "ValueError: the driver was given" in done.stderr
    assert CANARY not in done.stderr.split("ValueError: ")[1]


SERVICES = """# a comment
[a] of which more is said
host=127.0.0.1
port=1
port=2
user=of_a
options=-c geqo=off
sslmode=disable
application_name=from a
[b]
  host=127.0.0.1
port=3
dbname=db b
[a]
port=9
[host]
port=7
"""
DERIVED = {"passfile", "sslcertmode"}  #: that libpq finds for itself at the end


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"PGSERVICE": "a"},
        {"PGSERVICE": "a", "PGUSER": "x", "PGSSLMODE": "allow"},
        {"PGSERVICE": "b"},
        {"PGSERVICE": "none", "PGPORT": "5"},
    ],
)
@pytest.mark.parametrize("dsn", ["service=a", "service=b", "service=b user=me", "postgresql://127.0.0.1:5?service=a",
                                 "host=127.0.0.1 port=4 user=u dbname=d"])  # fmt: skip
def test_what_is_in_force_is_what_libpq_takes_of_services_and_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environment: dict[str, str], dsn: str
):
    services = tmp_path / "services"
    services.write_text(SERVICES)
    for name in ("PGSERVICE", "PGUSER", "PGPORT", "PGSSLMODE", "PGDATABASE", "PGHOST", "PGPASSFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**environment, "PGSERVICEFILE": str(services)}.items():
        monkeypatch.setenv(name, value)
    begun = pq.PGconn.connect_start(dsn.encode())  # nobody listens there, and no answer is waited for
    try:
        libpq = {one.keyword.decode(): one.val.decode() for one in begun.info if one.val}
    finally:
        begun.finish()
    if environment.get("PGSERVICE") == "none" and "service" not in dsn:
        return  # libpq refuses it
    found = {"dbname": libpq["user"]} | in_force(dsn)
    assert {k: v for k, v in found.items() if k not in DERIVED} == {k: v for k, v in libpq.items() if k not in DERIVED}


def test_an_empty_name_of_a_service_file_is_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / ".pg_service.conf").write_text(SERVICES)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PGSERVICEFILE", raising=False)
    assert in_force("service=b")["port"] == "3"
    monkeypatch.setenv("PGSERVICEFILE", "")
    with pytest.raises(UsageError, match="the service b"):  # as libpq refuses it
        in_force("service=b")
