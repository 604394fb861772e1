"""Dagster's own database: beside the ledger's on the same server, with a role that cannot see the ledger."""

from __future__ import annotations

from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from harness_pipelines.drivers.postgres import explained


def ensure_database(dsn: str, name: str, *, password: str) -> str:
    """Make database and role *name*, with this *password*, if they are missing; returns the URL that Dagster takes.

    *dsn* is that of a login that may make them. No other role can connect to the database.
    """
    place = conninfo_to_dict(dsn)
    role, database = sql.Identifier(name), sql.Identifier(name)
    with explained(dsn), psycopg.connect(dsn, autocommit=True) as connection:
        verb = "ALTER" if _exists(connection, "SELECT FROM pg_roles WHERE rolname = %s", name) else "CREATE"
        connection.execute(sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(sql.SQL(verb), role, sql.Literal(password)))
        if not _exists(connection, "SELECT FROM pg_database WHERE datname = %s", name):
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(database, role))
        connection.execute(sql.SQL("REVOKE CONNECT ON DATABASE {} FROM PUBLIC").format(database))
    host, port = place.get("host") or "127.0.0.1", place.get("port") or 5432
    return f"postgresql://{name}:{password}@{quote(str(host))}:{port}/{name}"


def _exists(connection: psycopg.Connection, question: str, name: str) -> bool:
    return connection.execute(question, [name]).fetchone() is not None
