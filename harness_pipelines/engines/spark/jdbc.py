"""The address of Postgres in the words of Spark's JDBC driver: each setting of libpq's means the same, or is refused.

The driver ignores what it does not know. It would then reach another server, or check less than the other connections
of the harness do, and say nothing.
"""

from __future__ import annotations

import os
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, isinf
from pathlib import Path
from urllib.parse import quote, urlencode

from harness_pipelines.drivers.postgres_address import in_force, origin
from harness_pipelines.drivers.postgres_session import deadline_s, session_settings
from harness_pipelines.errors import UsageError
from harness_pipelines.files import SECRET_BYTES_MAX, Unreadable, read_text

DRIVER = "org.postgresql.Driver"
#: libpq's names of settings whose values the JDBC driver reads as libpq does, and its own names of them.
SAME: Mapping[str, str] = {
    "user": "user",
    "password": "password",
    "options": "options",
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "sslpassword": "sslpassword",
    "application_name": "ApplicationName",
    "connect_timeout": "connectTimeout",
    "require_auth": "requireAuth",
    "krbsrvname": "kerberosServerName",
}
#: The same of settings with other words for their values. A value that is not here is the driver's way without one.
TRANSLATED: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "channel_binding": ("channelBinding", {"require": "require", "disable": "disable"}),
    "gssencmode": ("gssEncMode", {"require": "require", "disable": "disable"}),
    "sslnegotiation": ("sslNegotiation", {"direct": "direct"}),
    "load_balance_hosts": ("loadBalanceHosts", {"random": "true"}),
    "target_session_attrs": (
        "targetServerType",
        {
            "read-write": "primary",
            "primary": "primary",
            "read-only": "secondary",
            "standby": "secondary",
            "prefer-standby": "preferSecondary",
        },
    ),
}
#: What the JDBC driver has no word for: the values with which libpq asks for nothing, and another way to what is asked.
LACKING: Mapping[str, tuple[tuple[str, ...], str]] = {
    "sslcrl": ((), "leave lists of revoked certificates to the Java installation of Spark"),
    "sslcrldir": ((), "leave lists of revoked certificates to the Java installation of Spark"),
    "sslcertmode": (("allow",), "let pg_hba.conf ask for the certificate (clientcert=verify-ca)"),
    "ssl_min_protocol_version": (("TLSv1", "TLSv1.1", "TLSv1.2"), "let ssl_min_protocol_version of the server say so"),
    "ssl_max_protocol_version": (("TLSv1.3",), "let ssl_max_protocol_version of the server say so"),
    "min_protocol_version": (("3.0", "latest"), "remove it"),
    "gssdelegation": (("0",), "remove it"),
    "replication": ((), "remove it: tables are not read by replication"),
    "scram_client_key": ((), "give the password"),
    "scram_server_key": ((), "give the password"),
    "oauth_issuer": ((), "give Spark a login with a password or a certificate (HARNESS_SPARK_DSN)"),
}
#: How libpq sends bytes, looks up names or notes what it does: nothing of it is a demand on the server over TCP.
ASIDE = frozenset({
    "client_encoding", "fallback_application_name", "gsslib", "keepalives", "keepalives_count", "keepalives_idle",
    "keepalives_interval", "max_protocol_version", "oauth_client_id", "oauth_client_secret", "oauth_scope",
    "requirepeer", "sslcompression", "sslkeylogfile", "sslsni", "tcp_user_timeout",
})  # fmt: skip
#: Files that libpq looks for in the home of its user where no setting names them; the driver looks for others.
_HOME_FILES: Mapping[str, str] = {"sslcert": "postgresql.crt", "sslkey": "postgresql.key", "sslrootcert": "root.crt"}

_PEM_KEY = re.compile(r"-----BEGIN PRIVATE KEY-----\s+([A-Za-z0-9+/=\s]+)-----END PRIVATE KEY-----")
#: By Java's name the object identifier, in DER, with which a key of the algorithm begins.
_KEY_OIDS: Mapping[str, bytes] = {"EC": bytes.fromhex("06072a8648ce3d0201"), "EdDSA": bytes.fromhex("06032b6570")}


@dataclass(frozen=True, slots=True, kw_only=True)
class JdbcOptions:
    """A Postgres address in JDBC's form; the properties hold the password and are never shown."""

    url: str
    properties: Mapping[str, str] = field(repr=False)


def jdbc_options(dsn: str, *, role: str | None) -> JdbcOptions:
    """The JDBC form of the libpq *dsn*, with the session settings of every harness connection and *role*.

    What the DSN leaves out comes from ``PG*``, as libpq has it. Raises: UsageError for a Unix socket and for each
    setting that the JDBC driver cannot keep.
    """
    given = in_force(dsn) | session_settings(dsn, role=role)
    _check(given, dsn)
    for name, file in _HOME_FILES.items():
        if not given.get(name) and (path := Path.home() / ".postgresql" / file).exists():
            given[name] = str(path)
    if given.get("sslrootcert") and given.get("sslmode") == "require":
        given["sslmode"] = "verify-ca"  # libpq checks against authorities that it is given; the driver would not
    properties = {jdbc: given[libpq] for libpq, jdbc in SAME.items() if given.get(libpq)}
    for libpq, (jdbc, values) in TRANSLATED.items():
        if value := values.get(given.get(libpq, "")):
            properties[jdbc] = value
    if algorithm := _key_algorithm(given.get("sslkey")):
        properties["pemKeyAlgorithm"] = algorithm
    # A Postgres that hangs still acknowledges TCP segments, so the driver limits the wait for each answer.
    answer_s = deadline_s(dsn)
    within = {} if isinf(answer_s) else {"socketTimeout": str(ceil(answer_s))}
    properties |= {**within, "driver": DRIVER, "tcpKeepAlive": "true"}
    # A server of Spark Connect makes names of options lower case, and the driver ignores names that it does not know.
    mixed = {name: properties.pop(name) for name in sorted(properties) if not name.islower()}
    database = quote(given.get("dbname") or given["user"], safe="")
    url = f"jdbc:postgresql://{_places(given)}/{database}?{urlencode(mixed, quote_via=quote)}"
    return JdbcOptions(url=url, properties=properties)


def _check(given: Mapping[str, str], dsn: str) -> None:
    """Raises: UsageError for what libpq would heed and the JDBC driver would not."""
    ways = {name: way for name, (harmless, way) in LACKING.items() if given.get(name) and given[name] not in harmless}
    if given.get("passfile") not in (None, os.environ.get("PGPASSFILE")) and not given.get("password"):
        ways["passfile"] = "set PGPASSFILE, which the driver reads too, or PGPASSWORD"
    if given.get("sslrootcert") == "system":
        ways["sslrootcert"] = "name the file of the system's authorities, such as /etc/ssl/certs/ca-certificates.crt"
    if given.get("hostaddr") and given.get("host") and given.get("sslmode") == "verify-full":
        ways["hostaddr"] = "leave the address to the name service, or take sslmode=verify-ca"
    for name, way in ways.items():
        raise UsageError(
            f"{origin(name, dsn)} is {given[name]}, which Spark's JDBC driver cannot keep: it would reach another "
            f"server than the harness does, or check less, without a word. The way on: {way}. Nothing was connected to"
        )


def _places(given: Mapping[str, str]) -> str:
    """The servers, in the order in which they are tried."""
    hosts = (given.get("hostaddr") or given.get("host") or "localhost").split(",")
    for host in hosts:
        if host.startswith(("/", "@")):
            raise UsageError(
                f"Spark cannot reach Postgres by the Unix socket {host}: give a host name or address in HARNESS_DSN"
            )
    ports = (given.get("port") or "5432").split(",")
    return ",".join(
        _place(host or "localhost", ports[min(i, len(ports) - 1)] or "5432") for i, host in enumerate(hosts)
    )


def _place(host: str, port: str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _key_algorithm(path: str | None) -> str | None:
    """The algorithm of the private key in a PEM file: the JDBC driver assumes RSA unless one is set.

    None: it is one, or the file is not there to be looked at (on Spark's machines alone, say).
    """
    try:
        text = read_text(path, SECRET_BYTES_MAX, encoding="ASCII") if path else ""
    except Unreadable:
        return None
    found = _PEM_KEY.search(text)
    der = b64decode("".join(found[1].split())) if found else b""
    return next((name for name, oid in _KEY_OIDS.items() if oid in der[:40]), None)
