"""What every session of Postgres is opened with, and how long it waits for an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from pathlib import Path

from psycopg.conninfo import make_conninfo

from harness_pipelines.drivers.postgres_address import check_environment, in_force, origin, own_settings
from harness_pipelines.errors import UsageError
from harness_pipelines.files import endless

SESSION_OPTIONS: Mapping[str, str] = {
    "lock_timeout": "10s",
    "statement_timeout": "120s",
    "idle_in_transaction_session_timeout": "30s",
}
#: What a statement means and how a value is written must not depend on what a login, a database or a server is set to.
_LANGUAGE: Mapping[str, str] = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",
    "default_transaction_isolation": "read committed",
}
MINUTE_S = 60.0
LATE_S = 5.0  #: after Postgres itself should have ended a statement, it is not waited for any longer
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_KEEPALIVES: Mapping[str, str] = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "harness",
}
#: Arrives with the other options of a session or not at all: a pooler drops them all.
_DIRECT = "harness.direct"
_FILES = ("sslcert", "sslcrl", "sslkey", "sslrootcert")  #: that libpq opens for a DSN


def session_dsn(dsn: str, *, role: str | None) -> str:
    """Return *dsn* with the timeouts and, if given, the role set for every session that is opened with it.

    Timeouts in the ``options`` that libpq takes for *dsn* win over the harness's. The role and what statements and
    values are read by, such as the time zone and the encoding, are never the user's. Raises: UsageError for a file that
    has no end, for one of authorities that is missing where libpq would then check nothing, and for a variable that
    changes how values are written.
    """
    known = in_force(dsn)
    roots = known.get("sslrootcert")
    if roots and roots != "system" and not known.get("sslmode", "").startswith("verify") and not Path(roots).exists():
        raise UsageError(
            f"{origin('sslrootcert', dsn)}: the file {roots} is not there, and the server's certificate would not be "
            "checked, without a word: correct the path, remove the setting, or write sslmode=verify-full"
        )
    made = session_settings(dsn, role=role)
    if roots and roots != "system" and known.get("sslmode") == "require":
        made["sslmode"] = "verify-ca"  # what libpq makes of it, as long as the file is there: it may go missing later
    return make_conninfo("", **made)


def session_settings(dsn: str, *, role: str | None) -> dict[str, str]:
    """The same as settings by libpq's names, for a driver that may run on another machine and find its files there.

    Raises: UsageError, as `session_dsn` does, but for authorities.
    """
    check_environment()
    known = in_force(dsn)
    for name in _FILES:
        if (file := known.get(name)) and (why := endless(file)) is not None:
            raise UsageError(f"{origin(name, dsn)}: the file {file} {why}")
    ours = {**_LANGUAGE, _DIRECT: "on"} | ({"role": role} if role else {})
    # Of two options, the later counts.
    options = " ".join(filter(None, (_flags(SESSION_OPTIONS), known.get("options", ""), _flags(ours))))
    kept = {name: known.get(name) or value for name, value in _KEEPALIVES.items()}
    return {**own_settings(dsn), **kept, "client_encoding": "UTF8", "options": options}


def _flags(options: Mapping[str, str]) -> str:
    escaped = {name: value.replace(" ", r"\ ") for name, value in options.items()}
    return " ".join(f"-c {name}={value}" for name, value in escaped.items())


def deadline_s(dsn: str) -> float:
    """How long an answer over a session of *dsn* is waited for: a little longer than Postgres lets a statement run."""
    own_s = _limit_s(dsn, "statement_timeout")
    return own_s + LATE_S if own_s else inf  # 0: without a limit, as configured


def pulse_s(dsn: str) -> float:
    """How often a transaction over a session of *dsn* must be asked something so as not to be ended as idle."""
    return _limit_s(dsn, "idle_in_transaction_session_timeout") / 3 or MINUTE_S


def _limit_s(dsn: str, name: str) -> float:
    """The timeout *name* of a session of *dsn*; 0: none."""
    options = f"-c {name}={SESSION_OPTIONS[name]} {in_force(dsn).get('options', '')}"
    found = re.findall(rf"\b{name}\s*=\s*'?(\d+(?:\.\d+)?)\s*(us|ms|s|min|h|d)?", options)
    number, unit = found[-1]  # of several, the last one counts
    return float(number) * _SECONDS[unit or "ms"]
