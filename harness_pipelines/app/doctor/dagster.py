"""Dagster: its home, its version, and its own database, where they are set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harness_pipelines.app.doctor.check import Check, Finding, Notes
from harness_pipelines.drivers.postgres_address import check_address, place_of
from harness_pipelines.ledgers.postgres.views.server import brief_session, server_seen
from harness_pipelines.spec.settings import Settings

HOME, DATABASE = "DAGSTER_HOME", "DAGSTER_PG_URL"


def dagster(settings: Settings, env: Mapping[str, str] | None = None) -> list[Check]:
    """One check of the home and one of the database; *env* is where Dagster itself looks for both."""
    values = os.environ if env is None else env
    checks = [Check(system="dagster", name="home", look=partial(_home, values=values), deadline_s=8.0)]
    if values.get(DATABASE):
        look = partial(_database, url=values[DATABASE], settings=settings)
        checks.append(Check(system="dagster", name="database", look=look))
    return checks


def _home(notes: Notes, *, values: Mapping[str, str]) -> Iterator[Finding]:
    if not values.get(HOME):
        yield notes.skipped("home", f"{HOME} is not set; `harness dev` has a home for its own Dagster")
        return
    home = Path(values[HOME])
    try:
        told = f"Dagster {version('dagster')}, home {home}"
    except PackageNotFoundError:  # the extra is named by the check of this machine
        told = f"home {home}"
    if not home.is_absolute():
        yield notes.fail("home", f"{HOME} is {home}; Dagster takes an absolute path only", "write it with its root")
    elif not home.is_dir():
        yield notes.fail("home", f"{home} is not there", "make it, and copy workspace.yaml and dagster.yaml to it")
    elif not os.access(home, os.W_OK):
        yield notes.fail("home", f"{home} cannot be written by user {os.geteuid()}", "give its user the right to write")
    elif not (home / "dagster.yaml").is_file():
        way_on = "copy dagster.yaml of the harness to it: without it Dagster keeps runs in SQLite, and for ever"
        yield notes.warn("home", f"{home} has no dagster.yaml", way_on)
    else:
        yield notes.ok("home", told)


def _database(notes: Notes, *, url: str, settings: Settings) -> Iterator[Finding]:
    """Dagster's database answers, takes writes, and is not the ledger's: its tables and sessions would be there too."""
    dsn = url.replace("postgresql+psycopg2://", "postgresql://", 1)
    check_address(DATABASE, dsn)
    with brief_session(dsn, role=None) as connection:
        seen = server_seen(connection)
    told = f"PostgreSQL {seen.version_text}, database {seen.database}, as {seen.login}"
    if seen.is_stand_by or seen.is_read_only:
        yield notes.fail("database", f"{told}: it takes no writes", f"let {DATABASE} lead to the primary")
    elif settings.dsn and place_of(dsn) == place_of(settings.dsn) and _is_ledger(settings, seen.database):
        way_on = "give Dagster its own database and role: the harness's backups and rights are for the ledger alone"
        yield notes.warn("database", f"{told}: it is the ledger's database", way_on)
    else:
        yield notes.ok("database", told)


def _is_ledger(settings: Settings, database: str) -> bool:
    assert settings.dsn is not None
    with brief_session(settings.dsn, role=None) as connection:
        return server_seen(connection).database == database
