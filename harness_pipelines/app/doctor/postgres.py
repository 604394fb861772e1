"""Postgres: the server, and the rights of each login that the settings name."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from harness_pipelines.app.doctor.check import Check, Finding, Notes
from harness_pipelines.drivers.postgres import READER, SPARK, WORKER, MissingRole, NotInitialised
from harness_pipelines.drivers.postgres_address import check_address
from harness_pipelines.ledgers.postgres.views.server import (
    ServerSeen,
    brief_session,
    has_ledger,
    idle_holders,
    lacking,
    ledger_fits,
    server_seen,
)
from harness_pipelines.spec.settings import Settings

OLDEST = 140000
CONNECTIONS_MIN = 25  #: a worker with its readers, Spark's catalogs and an observer
SKEW_S_WARN = 2.0
NOT_SET = "HARNESS_DSN is not set, and no embedded PostgreSQL runs"


def postgres(settings: Settings) -> list[Check]:
    """One check of the server with the logins of HARNESS_DSN, and one of each other login."""
    if settings.dsn is None:
        return [Check(system="postgres", name="server", look=_absent)]
    checks = [Check(system="postgres", name="server", look=partial(_server, dsn=settings.dsn), deadline_s=20.0)]
    if settings.spark_dsn:
        look = partial(_other_login, name="Spark", dsn=settings.spark_dsn, role=SPARK)
        checks.append(Check(system="postgres", name="login of Spark", look=look))
    if settings.owner_dsn:
        look = partial(_owner, dsn=settings.owner_dsn)
        checks.append(Check(system="postgres", name="login of the owner", look=look))
    return checks


def _absent(notes: Notes) -> Iterator[Finding]:
    yield notes.skipped("server", NOT_SET, "set HARNESS_DSN, or `harness services up`")


def _server(notes: Notes, *, dsn: str) -> Iterator[Finding]:
    """The server first: what a login may do is looked at where there is a ledger."""
    check_address("HARNESS_DSN", dsn)
    with brief_session(dsn, role=None) as connection:
        seen, is_made, holders = server_seen(connection), has_ledger(connection), idle_holders(connection)
    yield from about_server(notes, seen)
    if holders:
        yield notes.fail(
            "locks",
            f"{', '.join(holders)}: holds a lock of the harness and does nothing, so that stages and reads wait for it",
            "end it as the owner (SELECT pg_terminate_backend(NUMBER)); take the right to connect from logins that "
            "have no business there",
        )
    if not is_made:
        text = f"the database {seen.database} has none yet"
        yield notes.fail("ledger", text, "`harness init`, as the owner of the database")
        return
    for name, role in (("the worker", WORKER), ("the reader", READER)):
        try:
            yield from _login(notes, name=name, dsn=dsn, role=role)
        except NotInitialised as error:
            yield notes.raised("ledger", error)
            return
        except MissingRole as error:
            yield notes.raised(f"login of {name}", error)


def about_server(notes: Notes, seen: ServerSeen) -> Iterator[Finding]:
    """What *seen* means."""
    where = f"PostgreSQL {seen.version_text}, database {seen.database}"
    if seen.version < OLDEST:
        yield notes.fail("version", where, "upgrade it: the harness needs PostgreSQL 14 or newer")
    else:
        yield notes.ok("version", where)
    if seen.encoding != "UTF8":
        way_on = "make the database again WITH ENCODING 'UTF8' TEMPLATE template0"
        yield notes.fail("encoding", f"{seen.encoding}; the harness needs UTF8", way_on)
    if seen.is_stand_by or seen.is_read_only:
        what = "a stand-by" if seen.is_stand_by else "read-only"
        yield notes.fail("writes", f"the server is {what}", "let HARNESS_DSN lead to the primary")
    off = [
        f"{name} is {value}"
        for name, value in (
            ("fsync", seen.fsync),
            ("full_page_writes", seen.full_page_writes),
            ("synchronous_commit", seen.synchronous_commit),
        )
        if value == "off"
    ]
    if off:
        yield notes.warn(
            "durability",
            f"{', '.join(off)}: a crash of the server's machine loses or damages what was committed",
            "set them on, except for tests",
        )
    free = seen.connections_max - seen.connections_reserved - seen.connections
    text = f"{seen.connections} of {seen.connections_max} in use"
    if free < CONNECTIONS_MIN:
        way_on = f"raise max_connections: a worker with its readers needs some {CONNECTIONS_MIN}"
        yield notes.warn("connections", f"{text}, {max(free, 0)} are left for clients", way_on)
    else:
        yield notes.ok("connections", text)
    if abs(seen.ahead_s) > SKEW_S_WARN:
        way_on = "let both machines follow NTP: lags, ages and start times are differences of these clocks"
        yield notes.warn("clock", f"the server is {_ahead(seen.ahead_s)} this machine", way_on)
    else:
        yield notes.ok("clock", f"within {SKEW_S_WARN:.0f} s of this machine's")


def _ahead(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'}"


def _other_login(notes: Notes, *, name: str, dsn: str, role: str) -> Iterator[Finding]:
    check_address("HARNESS_SPARK_DSN", dsn)
    with brief_session(dsn, role=None) as connection:
        if not has_ledger(connection):
            yield notes.skipped(f"login of {name}", "there is no ledger yet, so nothing to have rights on")
            return
    yield from _login(notes, name=name, dsn=dsn, role=role)


def _login(notes: Notes, *, name: str, dsn: str, role: str) -> Iterator[Finding]:
    """The login may act as *role*, has its rights, and not those of the owner; its ledger is of this harness."""
    with brief_session(dsn, role=role) as connection:
        seen, title = server_seen(connection), f"login of {name}"
        if seen.is_superuser or seen.is_owner:
            what = "a superuser" if seen.is_superuser else "the owner of the database"
            yield notes.warn(
                title,
                f"{seen.login} acts as {role}, and is {what}: its password is enough to change the ledger",
                f"CREATE ROLE harness_app LOGIN PASSWORD '...' IN ROLE {role}, and use that login instead",
            )
        else:
            yield notes.ok(title, f"{seen.login} acts as {role}")
        if role == WORKER:
            yield notes.ok("ledger", f"is of this harness (migration {ledger_fits(connection)})")
        if missing := lacking(connection):
            way_on = "`harness init` as the owner grants them again"
            yield notes.fail(f"rights of {name}", f"{role} lacks {', '.join(missing)}", way_on)
        else:
            yield notes.ok(f"rights of {name}", f"{role} has what it needs")


def _owner(notes: Notes, *, dsn: str) -> Iterator[Finding]:
    """The login of HARNESS_OWNER_DSN may run migrations."""
    check_address("HARNESS_OWNER_DSN", dsn)
    with brief_session(dsn, role=None) as connection:
        seen = server_seen(connection)
    title = "login of the owner"
    if not (seen.is_superuser or seen.is_owner or seen.creates_schemas):
        text = f"{seen.login} neither owns the database {seen.database} nor may create schemas in it"
        yield notes.fail(
            title, text, f"GRANT CREATE ON DATABASE {seen.database} TO {seen.login}, or let it be the owner"
        )
    elif not (seen.is_superuser or seen.creates_roles):
        text = f"{seen.login} may run migrations, and may not create roles"
        way_on = "have the five roles created for it (own-services.md), or ALTER ROLE ... CREATEROLE"
        yield notes.warn(title, text, way_on)
    else:
        yield notes.ok(title, f"{seen.login} may run migrations")
