"""Addresses of Postgres: those that cannot be read are rejected before a driver quotes them with the password."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from pathlib import Path

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harness_pipelines.errors import UsageError
from harness_pipelines.files import SECRET_BYTES_MAX, Unreadable, read_text

PORT_MAX = 65_535
_PORTS = re.compile(r"\d*(?:,\d*)*")
#: libpq sends these after the options of a session, so they would win over what the harness reads values by.
_SENT_LAST: Mapping[str, tuple[str, ...]] = {
    "PGTZ": ("default", "utc", "gmt", "etc/utc", "zulu"), "PGDATESTYLE": ("default", "iso"),
}  # fmt: skip


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


def check_environment() -> None:
    """Raises: UsageError for a variable of libpq's that would change how the values of every session are written."""
    for variable, harmless in _SENT_LAST.items():
        value = os.environ.get(variable, "")
        if value and value.split(",")[0].strip().lower() not in harmless:
            raise UsageError(
                f"{variable} is {value}, and libpq would have every session write its times so; the harness reads "
                f"them in UTC and in ISO form: unset {variable}. Nothing was connected to"
            )


def own_settings(dsn: str) -> dict[str, str]:
    """What *dsn* itself says, by libpq's names."""
    return {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}


def in_force(dsn: str) -> dict[str, str]:
    """What libpq takes for *dsn*, by its names: what *dsn* leaves out is of its service, of ``PG*``, or a default."""
    own = own_settings(dsn)
    named = own.get("service")
    return _defaults(without_service=bool(named)) | (_of_service(named) if named else {}) | own


def _defaults(*, without_service: bool) -> dict[str, str]:
    """What libpq takes for an empty address. *without_service*: the service of PGSERVICE counts for nothing."""
    defaults = pq.Conninfo.get_defaults()
    known = {d.keyword.decode(): d.val.decode() for d in defaults if d.val}
    variable = os.environ.get("PGSERVICE", "")
    if not without_service or not variable:
        return known
    try:
        hidden = _of_service(variable)
    except UsageError:
        return known  # libpq takes nothing of what is not there
    for default in defaults:
        if (name := default.keyword.decode()) in hidden:
            value = os.environ.get(default.envvar.decode()) if default.envvar else None
            value = value or (default.compiled.decode() if default.compiled else None)
            known[name] = value or (pwd.getpwuid(os.geteuid()).pw_name if name == "user" else "")
    return {name: value for name, value in known.items() if value}


def origin(name: str, dsn: str) -> str:
    """Where libpq has its setting *name* from, in words."""
    if own_settings(dsn).get(name):
        return f"{name} of the database's address"
    variable = next(
        (d.envvar.decode() for d in pq.Conninfo.get_defaults() if d.keyword.decode() == name and d.envvar), ""
    )
    return variable if os.environ.get(variable) else f"{name} of the service that the database's address names"


def _of_service(service: str) -> dict[str, str]:
    """The settings of *service* in the first of libpq's files that has it. Raises: UsageError when none has."""
    files = [os.environ.get("PGSERVICEFILE", str(Path.home() / ".pg_service.conf"))]
    files += [f"{folder}/pg_service.conf" for folder in (os.environ.get("PGSYSCONFDIR"),) if folder]
    for file in files:
        try:
            lines = [line.strip() for line in read_text(file, SECRET_BYTES_MAX).splitlines()]
        except Unreadable:
            continue
        heads = [i for i, line in enumerate(lines) if line.startswith("[")]
        begin = next((i for i in heads if lines[i].startswith(f"[{service}]")), None)
        if begin is not None:
            end = next((i for i in heads if i > begin), len(lines))
            said = [line.partition("=") for line in lines[begin + 1 : end] if line and not line.startswith("#")]
            return {name: value for name, _, value in reversed(said)}  # the first of several counts
    raise UsageError(
        f"the database's address names the service {service}, which {' and '.join(filter(None, files))} lack: correct "
        "`service`, or name the file in PGSERVICEFILE. Nothing was connected to"
    )


def place_of(dsn: str) -> tuple[str, int]:
    """Host and port that *dsn* names; where it names none, those of a server on this machine."""
    given = conninfo_to_dict(dsn)
    return str(given.get("host") or "127.0.0.1"), int(given.get("port") or 5432)


def at_port(dsn: str, port: int) -> str:
    """*dsn*, leading to *port* of this machine."""
    return make_conninfo(dsn, host="127.0.0.1", hostaddr=None, port=port)
