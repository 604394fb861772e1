"""Addresses of Postgres: those that cannot be read are rejected before a driver quotes them with the password."""

from __future__ import annotations

import re

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harness_pipelines.errors import UsageError

PORT_MAX = 65_535
_PORTS = re.compile(r"\d*(?:,\d*)*")


def check_address(variable: str, dsn: str | None) -> None:
    """Raises: UsageError for a *dsn* that libpq does not take apart, or not as it was meant; quotes nothing of it.

    A password with a ``/`` ends the host of a URL too early, so that the password counts as its port.
    """
    if dsn is None:
        return
    try:
        given = conninfo_to_dict(dsn)
    except (psycopg.Error, UnicodeError, ValueError):
        given = {"port": "unknown"}
    ports = str(given.get("port") or "")
    if not _PORTS.fullmatch(ports) or any(int(port or 0) > PORT_MAX for port in ports.split(",")):
        raise UsageError(
            f"{variable} is no address of Postgres that can be read (it is not shown, since it may hold a password): "
            "expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE, in which a space and each of / @ : # ? % in the "
            "password is written as %20, %2F, %40, %3A, %23, %3F, %25; or host=... port=... user=... password='...', "
            "in which \\ stands before ' and \\. Nothing was connected to"
        )


def place_of(dsn: str) -> tuple[str, int]:
    """Host and port that *dsn* names; where it names none, those of a server on this machine."""
    given = conninfo_to_dict(dsn)
    return str(given.get("host") or "127.0.0.1"), int(given.get("port") or 5432)


def at_port(dsn: str, port: int) -> str:
    """*dsn*, leading to *port* of this machine."""
    return make_conninfo(dsn, host="127.0.0.1", hostaddr=None, port=port)
