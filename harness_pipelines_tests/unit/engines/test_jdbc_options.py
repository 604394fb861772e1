"""Spark reaches Postgres as libpq would, by the DSN and by ``PG*``, or says what of it the JDBC driver cannot keep."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from harness_pipelines.drivers.postgres import Asked
from harness_pipelines.drivers.postgres_session import session_dsn
from harness_pipelines.engines.spark.jdbc import ASIDE, LACKING, SAME, TRANSLATED, jdbc_options
from harness_pipelines.engines.spark.session import open_spark
from harness_pipelines.errors import UsageError
from harness_pipelines.spec.settings import Settings

DSN = "postgresql://u:p@db.internal/lake"
#: A setting in libpq's words, its variable, and what the JDBC driver is given.
TAKEN = [
    ("sslmode", "verify-full", "PGSSLMODE", {"sslmode": "verify-full"}),
    ("sslrootcert", "/", "PGSSLROOTCERT", {"sslrootcert": "/"}),
    ("sslcert", "/etc/own.crt", "PGSSLCERT", {"sslcert": "/etc/own.crt"}),
    ("sslkey", "/etc/own.key", "PGSSLKEY", {"sslkey": "/etc/own.key"}),
    ("sslnegotiation", "direct", "PGSSLNEGOTIATION", {"sslNegotiation": "direct"}),
    ("channel_binding", "require", "PGCHANNELBINDING", {"channelBinding": "require"}),
    ("require_auth", "scram-sha-256", "PGREQUIREAUTH", {"requireAuth": "scram-sha-256"}),
    ("gssencmode", "require", "PGGSSENCMODE", {"gssEncMode": "require"}),
    ("target_session_attrs", "read-write", "PGTARGETSESSIONATTRS", {"targetServerType": "primary"}),
    ("target_session_attrs", "prefer-standby", "PGTARGETSESSIONATTRS", {"targetServerType": "preferSecondary"}),
    ("load_balance_hosts", "random", "PGLOADBALANCEHOSTS", {"loadBalanceHosts": "true"}),
    ("connect_timeout", "3", "PGCONNECT_TIMEOUT", {"connectTimeout": "3"}),
    ("application_name", "mine", "PGAPPNAME", {"ApplicationName": "mine"}),
]
REFUSED = [
    ("sslcrl", "/etc/revoked.pem", "PGSSLCRL"),
    ("sslcrldir", "/etc/revoked", "PGSSLCRLDIR"),
    ("sslcertmode", "require", "PGSSLCERTMODE"),
    ("sslrootcert", "system", "PGSSLROOTCERT"),
    ("ssl_min_protocol_version", "TLSv1.3", "PGSSLMINPROTOCOLVERSION"),
    ("ssl_max_protocol_version", "TLSv1.2", "PGSSLMAXPROTOCOLVERSION"),
]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def found(dsn: str) -> dict[str, Any]:
    options = jdbc_options(dsn, role=None)
    url = urlsplit(options.url.removeprefix("jdbc:"))
    return {"place": url.netloc, **dict(parse_qsl(url.query)), **options.properties}


def test_each_setting_of_libpq_is_one_that_spark_keeps_or_refuses():
    known = {setting.keyword.decode() for setting in pq.Conninfo.get_defaults()}
    where = {"service", "passfile", "dbname", "host", "hostaddr", "port"}
    assert known - where - {*SAME, *TRANSLATED, *LACKING, *ASIDE} == set()


@pytest.mark.parametrize(("name", "value", "variable", "given"), TAKEN)
def test_a_setting_of_the_dsn_or_of_its_variable_reaches_spark(monkeypatch, name, value, variable, given):
    assert not given.items() <= found(DSN).items()
    assert given.items() <= found(f"{DSN}?{name}={value}").items()
    monkeypatch.setenv(variable, value)
    assert given.items() <= found(DSN).items()


@pytest.mark.parametrize(("name", "value", "variable"), REFUSED)
def test_a_setting_that_spark_cannot_keep_is_refused_by_name(monkeypatch, name, value, variable):
    with pytest.raises(UsageError, match=f"^{name} of the database's address is {value}, .*JDBC driver.*The way on: "):
        found(f"{DSN}?{name}={value}")
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=f"^{variable} is {value}, .*JDBC driver.*The way on: "):
        found(DSN)


def test_it_is_refused_before_spark_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PGSSLCRL", "/etc/revoked.pem")
    for spark in ("sc://nowhere.invalid:1", "local[1]"):
        with pytest.raises(UsageError, match="PGSSLCRL"):
            open_spark(Settings(home=tmp_path, dsn=DSN, spark=spark))


def test_options_of_a_variable_are_those_of_every_session(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PGOPTIONS", "-c statement_timeout=7s -c TimeZone=America/New_York")
    for options in (conninfo_to_dict(session_dsn(DSN, role=None))["options"], found(DSN)["options"]):
        of = dict(part.split("=", 1) for part in str(options).split(" ") if "=" in part)  # of two, the later counts
        assert of["statement_timeout"] == "7s"
        assert of["TimeZone"] == "UTC"
    assert found(DSN)["socketTimeout"] == "12"


@pytest.mark.parametrize(
    ("variable", "value", "harmless"),
    [("PGTZ", "America/New_York", "UTC"), ("PGDATESTYLE", "German", "ISO, MDY")],
)
def test_a_variable_that_changes_how_times_are_written_is_refused(monkeypatch, variable, value, harmless):
    monkeypatch.setenv(variable, value)
    for connect in (lambda: session_dsn(DSN, role=None), lambda: found(DSN)):
        with pytest.raises(UsageError, match=f"{variable} is {value}, .*unset {variable}"):
            connect()
    monkeypatch.setenv(variable, harmless)
    session_dsn(DSN, role=None)


def test_spark_connects_to_the_address_that_libpq_connects_to(monkeypatch: pytest.MonkeyPatch):
    assert found(f"{DSN}?hostaddr=192.0.2.1")["place"] == "192.0.2.1:5432"
    monkeypatch.setenv("PGHOSTADDR", "192.0.2.2,2001:db8::1")
    assert found("host=a,b port=6,7 user=u")["place"] == "192.0.2.2:6,[2001:db8::1]:7"
    with pytest.raises(UsageError, match="PGHOSTADDR is 192.0.2.2.*sslmode=verify-ca"):
        found(f"{DSN}?sslmode=verify-full")


def test_several_servers_are_tried_in_their_order():
    assert found("postgresql://u@a,b/lake")["place"] == "a:5432,b:5432"
    assert found("host=a,,c port=1,,3 user=u")["place"] == "a:1,localhost:5432,c:3"
    with pytest.raises(UsageError, match="Unix socket /run/pg"):
        found("host=a,/run/pg user=u")


def test_the_dsn_wins_over_a_service_and_the_service_over_other_variables(monkeypatch, tmp_path: Path):
    services = tmp_path / "services"
    services.write_text(
        "# ours\n[other]\nhost=of.other\n[lake]\nhost=of.service\ndbname=of_service\n"
        "sslmode=verify-ca\noptions=-c statement_timeout=7s\n[last]\nport=1\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    monkeypatch.setenv("PGSSLMODE", "require")
    dsn = "service=lake dbname=of_dsn user=u"
    by_dsn = found(dsn)
    assert (by_dsn["place"], by_dsn["sslmode"], by_dsn["socketTimeout"]) == ("of.service:5432", "verify-ca", "12")
    assert "statement_timeout=7s" in str(conninfo_to_dict(session_dsn(dsn, role=None))["options"])
    monkeypatch.setenv("PGSERVICE", "lake")
    assert found("dbname=of_dsn user=u") == by_dsn
    assert jdbc_options("dbname=of_dsn user=u", role=None).url.startswith("jdbc:postgresql://of.service:5432/of_dsn?")
    assert Asked(dsn="dbname=of_dsn").place == "Postgres at of.service:5432"


def test_a_service_that_no_file_has_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="the service lake, which .*none lack.*PGSERVICEFILE"):
        session_dsn("service=lake", role=None)


def test_a_password_file_of_the_dsn_is_refused_where_it_is_needed():
    with pytest.raises(UsageError, match="^passfile of the database's address is /p, .*PGPASSFILE"):
        found("host=a user=u passfile=/p")
    found("host=a user=u password=x passfile=/p")


def test_a_password_file_of_a_service_is_refused_where_it_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "services").write_text("[lake]\nhost=a\npassfile=/p\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    with pytest.raises(UsageError, match="^passfile of the service that the database's address names is /p, "):
        found("service=lake user=u")
    monkeypatch.setenv("PGPASSFILE", "/p")
    found("host=a user=u")


def test_authorities_are_checked_by_spark_where_libpq_checks_them(tmp_path: Path):
    roots = tmp_path / "roots.crt"
    roots.touch()
    for asked, kept in {"require": "verify-ca", "prefer": "prefer", "verify-full": "verify-full"}.items():
        assert found(f"{DSN}?sslrootcert={roots}&sslmode={asked}")["sslmode"] == kept


def test_authorities_that_go_missing_later_are_still_asked_for_by_libpq(tmp_path: Path):
    """With sslmode=require and no file, libpq checks nothing, and a pool opens sessions for as long as it lives."""
    roots = tmp_path / "roots.crt"
    roots.touch()
    for asked, kept in {"require": "verify-ca", "prefer": "prefer", "verify-full": "verify-full"}.items():
        made = conninfo_to_dict(session_dsn(f"{DSN}?sslrootcert={roots}&sslmode={asked}", role=None))
        assert made["sslmode"] == kept


def test_files_in_the_home_of_the_user_are_shown_by_spark_too(tmp_path: Path):
    (tmp_path / ".postgresql").mkdir()
    for name in ("postgresql.crt", "postgresql.key", "root.crt"):
        (tmp_path / ".postgresql" / name).touch()
    by_home = found(f"{DSN}?sslmode=require")
    assert by_home["sslkey"] == f"{tmp_path}/.postgresql/postgresql.key"
    assert by_home["sslmode"] == "verify-ca"
    assert found(f"{DSN}?sslcert=/mine")["sslcert"] == "/mine"


@pytest.mark.parametrize("mode", ["require", "prefer"])
def test_authorities_that_are_missing_are_refused_where_libpq_would_check_nothing(monkeypatch, tmp_path, mode: str):
    monkeypatch.setenv("PGSSLMODE", mode)
    monkeypatch.setenv("PGSSLROOTCERT", str(tmp_path / "none.crt"))
    with pytest.raises(UsageError, match=r"PGSSLROOTCERT: the file .*none.crt is not there"):
        session_dsn(DSN, role=None)
    found(DSN)  # it may be on Spark's machines alone


def test_a_file_without_an_end_that_a_variable_names_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PGSSLROOTCERT", "/dev/zero")
    with pytest.raises(UsageError, match="PGSSLROOTCERT: the file /dev/zero"):
        session_dsn(DSN, role=None)
