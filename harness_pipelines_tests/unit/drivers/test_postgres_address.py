"""An address of Postgres that cannot be read is refused, and nothing of it is shown."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness_pipelines.app.installation import Stores
from harness_pipelines.drivers.postgres_address import check_address
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
