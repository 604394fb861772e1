"""What a Postgres server says of itself and of a login, over one session with short limits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harness_pipelines.drivers.postgres import Connection, check_direct, explained, sql
from harness_pipelines.drivers.postgres_session import session_dsn
from harness_pipelines.ledgers.postgres.migrations import check_fits, migrations

CONNECT_S, STATEMENT_S = 5, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSeen:
    """A server, and the login that looked."""

    version: int  #: as ``server_version_num``: 150004
    version_text: str
    encoding: str
    is_stand_by: bool
    is_read_only: bool
    connections_max: int
    connections_reserved: int  #: for superusers
    connections: int  #: of all clients, this one too
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    ahead_s: float  #: how far its clock is ahead of this machine's
    login: str
    database: str
    is_superuser: bool
    creates_roles: bool
    is_owner: bool  #: of the database
    creates_schemas: bool


def brief(dsn: str) -> str:
    """*dsn* for sessions that wait for nothing longer than some seconds: a look must end while a server hangs."""
    given = conninfo_to_dict(dsn)
    options = f"{given.pop('options', '') or ''} -c statement_timeout={STATEMENT_S}s -c lock_timeout={STATEMENT_S}s"
    kept = {name: str(value) for name, value in given.items() if value is not None}
    return make_conninfo("", **{**kept, "connect_timeout": str(CONNECT_S), "options": options.strip()})


@contextmanager
def brief_session(dsn: str, *, role: str | None) -> Iterator[Connection]:
    """A session of *role* as `brief` makes it.

    Raises: PostgresUnreachable, PostgresLoginFailed, MissingRole, NotInitialised, SessionsPooled, CertificateRefused.
    """
    with explained(dsn), Connection.of(session_dsn(brief(dsn), role=role), autocommit=True) as connection:
        check_direct(connection, dsn=dsn, role=role)
        yield connection


def server_seen(connection: Connection) -> ServerSeen:
    """What the server of *connection* says. Half a round trip is the error of its clock."""
    before = time.time()
    row = connection.execute(sql("doctor/server")).fetchone()
    after = time.time()
    assert row is not None
    return ServerSeen(ahead_s=row.pop("now_s") - (before + after) / 2, **row)


def idle_holders(connection: Connection) -> list[str]:
    """Sessions that hold a lock of the harness while they do nothing, as ``session 4711 of mallory (psql)``."""
    return [
        f"session {row['pid']} of {row['login']}" + (f" ({row['application']})" if row["application"] else "")
        for row in connection.execute(sql("doctor/idle_holders"))
    ]


def has_ledger(connection: Connection) -> bool:
    """Return whether `harness init` was run in the database."""
    row = connection.execute(sql("doctor/has_ledger")).fetchone()
    return row is not None and row["has_ledger"]


Place = tuple[str, str, str]  #: catalog, namespace and table


def show_pointer(connection: Connection, place: Place, metadata: str) -> None:
    """Let the catalog have a table that no spec has, as one on trial."""
    connection.execute(sql("doctor/show_pointer"), {**_named(place), "metadata": metadata})


def pointer_of(connection: Connection, place: Place) -> str:
    """The metadata file that the catalog names for it now."""
    row = connection.execute(sql("doctor/pointer"), _named(place)).fetchone()
    assert row is not None
    return str(row["metadata_location"])


def forget_pointer(connection: Connection, place: Place) -> None:
    """Take it out of the catalog, if it is there."""
    connection.execute(sql("doctor/forget_pointer"), _named(place))


def _named(place: Place) -> dict[str, str]:
    return dict(zip(("catalog", "namespace", "name"), place, strict=True))


def lacking(connection: Connection) -> list[str]:
    """Rights that the role of *connection* needs in a ledger and has not, as ``INSERT on harness.versions``."""
    return [row["lacks"] for row in connection.execute(sql("doctor/lacks"))]


def ledger_fits(connection: Connection) -> int:
    """The number of the newest migration, where the ledger is of this harness. Raises: NotInitialised."""
    check_fits(connection)
    return max(number for number, _, _ in migrations())
