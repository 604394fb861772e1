"""Connections to the one Postgres database, the named SQL texts, and the migrations.

Every connection of the harness carries the timeouts of the design, so that a stopped process never holds a table.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from math import inf
from typing import Any, LiteralString, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import DictRow, dict_row
from psycopg_pool import ConnectionPool, PoolTimeout

from harness_pipelines.errors import HarnessError, OutcomeUnknown, TryAgain
from harness_pipelines.spec.settings import redact


class Connection(psycopg.Connection[DictRow]):
    """A session of the pool, which knows when it was given back."""

    used_at = -inf  #: monotonic seconds


TRUSTED_S = 2.0  #: a session that was used so lately is not tried out first

WORKER, READER = "harness_worker", "harness_reader"
SESSION_OPTIONS: Mapping[str, str] = {
    "lock_timeout": "10s",
    "statement_timeout": "120s",
    "idle_in_transaction_session_timeout": "30s",
}
_KEEPALIVES: Mapping[str, str] = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "harness",
}
#: How the driver says that a session is over; the last one is no OperationalError to it.
_SESSION_LOST = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.IdleInTransactionSessionTimeout)
_MIGRATIONS = files("harness_pipelines.stores") / "sql" / "migrations"


class PostgresUnreachable(TryAgain):
    """The database did not answer, or the connection was lost before anything was committed."""


class LedgerBusy(TryAgain):
    """A lock was not granted, in time or because two sessions waited for each other; nothing was written."""


class NotInitialised(HarnessError):
    """The database has no ledger, or one of another harness version."""


class MissingRole(HarnessError):
    """The login may not act as a worker or reader."""


@cache
def sql(name: str) -> LiteralString:
    """The SQL text called *name* (``file/section``): sections begin with ``-- name: section``."""
    source, _, section = name.partition("/")
    text = (files("harness_pipelines.stores") / "sql" / f"{source}.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return cast(LiteralString, dict(zip(parts[1::2], parts[2::2], strict=True))[section].strip())


def session_dsn(dsn: str, *, role: str | None) -> str:
    """Return *dsn* with the timeouts and, if given, the role set for every session that is opened with it.

    Timeouts in the ``options`` of *dsn* itself win over the harness's; role and time zone are never the user's.
    """
    settings = conninfo_to_dict(dsn)
    own = str(settings.pop("options", "") or "")
    ours = {"TimeZone": "UTC"} | ({"role": role} if role else {})
    options = " ".join(filter(None, (_flags(SESSION_OPTIONS), own, _flags(ours))))  # of two, the later counts
    given = {name: str(value) for name, value in settings.items() if value is not None}
    return make_conninfo("", **{**_KEEPALIVES, **given, "options": options})


def _flags(options: Mapping[str, str]) -> str:
    return " ".join(f"-c {name}={value}" for name, value in options.items())


@contextmanager
def explained(dsn: str) -> Iterator[None]:
    """Turn the driver's errors into the harness's own, without secrets."""
    try:
        yield
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled, psycopg.errors.DeadlockDetected) as error:
        raise LedgerBusy(f"another session holds what is needed, try again: {error}; nothing was written") from error
    except psycopg.errors.UndefinedTable as error:
        raise NotInitialised("the database has no ledger (or another version of it): run `harness init`") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise MissingRole(
            f"the database login lacks a right ({error}): GRANT {WORKER} or {READER} to it (`harness init` and "
            "`harness table drop` are for the owner of the database)"
        ) from error
    except (*_SESSION_LOST, PoolTimeout) as error:
        if any(f'role "{role}" does not exist' in str(error) for role in (WORKER, READER)):
            raise NotInitialised("the database has no role of the harness yet: run `harness init`") from error
        if "permission denied to set role" in str(error) or 'invalid value for parameter "role"' in str(error):
            raise MissingRole(f"{redact(str(error))}: run `harness init`, then GRANT {WORKER} or {READER}") from error
        raise _unreachable(dsn, error) from error


def _unreachable(dsn: str, error: Exception) -> PostgresUnreachable:
    place = conninfo_to_dict(dsn)
    return PostgresUnreachable(
        f"Postgres at {place.get('host', 'the local socket')}:{place.get('port', 5432)} is not answering: "
        f"{redact(str(error)).strip()}; nothing was written, check HARNESS_DSN or `harness services status`"
    )


class Database:
    """A pool of sessions of one role."""

    def __init__(self, dsn: str, *, role: str | None = WORKER, size: int = 8) -> None:
        self.dsn = session_dsn(dsn, role=role)
        self._lost_at = -inf
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            self.dsn,
            connection_class=Connection,
            kwargs={"row_factory": dict_row, "prepare_threshold": 3},
            min_size=0,
            max_size=size,
            timeout=15,
            reconnect_timeout=10,
            check=self._try_out,
            reset=_given_back,
            open=False,
        )
        self._opened = False

    def close(self) -> None:
        self._pool.close()

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """A session outside any transaction of the caller's; closed transactions only.

        Raises: NotInitialised, at the first one, when the ledger is not of this harness.
        """
        if not self._opened:
            # The first connection is made here so that a wrong address fails at once and by its own message.
            with (
                explained(self.dsn),
                psycopg.connect(self.dsn, autocommit=True, row_factory=dict_row) as connection,
            ):
                _check_fits(connection)
            self._pool.open()
            self._opened = True
        with explained(self.dsn), self._pool.connection() as connection:
            try:
                yield connection
            finally:
                if connection.closed:  # what ended it may have ended the others
                    self._lost_at = time.monotonic()

    def _try_out(self, connection: Connection) -> None:
        """Let the pool replace a session that ended while it was idle; a round trip, so not after each use."""
        trusted_from = max(time.monotonic() - TRUSTED_S, self._lost_at)
        if connection.used_at <= trusted_from:
            ConnectionPool.check_connection(connection)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One READ COMMITTED transaction. A COMMIT whose answer is lost is told apart from a failure.

        Raises: OutcomeUnknown (RESOLVE) only when COMMIT was sent and no answer came.
        """
        with self.session() as connection:
            try:
                yield connection
            except BaseException:
                if not connection.closed:
                    connection.rollback()
                raise
            try:
                connection.commit()
            except _SESSION_LOST as error:
                raise OutcomeUnknown(f"COMMIT was sent, its answer was lost: {redact(str(error))}") from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that changes nothing, so a lost answer of its COMMIT says no more than that Postgres is away.

        Raises: PostgresUnreachable.
        """
        try:
            with self.transaction() as connection:
                yield connection
        except OutcomeUnknown as lost:
            raise _unreachable(self.dsn, lost) from lost

    def rows(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[DictRow]:
        """Run the query *name*, which changes nothing, in a transaction of its own and return its rows."""
        with self.reading() as connection:
            return connection.execute(sql(name), parameters or {}).fetchall()

    def run(self, name: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Run the statement *name* in a transaction of its own and return how many rows it touched."""
        with self.transaction() as connection:
            return connection.execute(sql(name), parameters or {}).rowcount


def _given_back(connection: Connection) -> None:
    connection.used_at = time.monotonic()


def migrations() -> list[tuple[int, str, str]]:
    """All migrations of this harness as (number, name, SQL text), in order."""
    found = sorted((entry.name, entry.read_text(encoding="utf-8")) for entry in _MIGRATIONS.iterdir())
    return [(int(name[:4]), name.removesuffix(".sql"), text) for name, text in found if name.endswith(".sql")]


def migrate(dsn: str) -> list[str]:
    """Bring the database to this harness's state; returns the names of the migrations that were applied.

    All in one transaction under an advisory lock, so two `harness init` at once do it once.
    Raises: NotInitialised when the database is newer than this harness or a migration was edited.
    """
    with explained(dsn), psycopg.connect(session_dsn(dsn, role=None), row_factory=dict_row) as connection:
        connection.execute(sql("init/lock"))
        connection.execute(sql("init/create_migrations"))
        missing = _not_applied(connection, migrations())
        for number, name, text in missing:  # a number that was left free may come after higher ones
            connection.execute(text)
            connection.execute(sql("init/record"), {"number": number, "name": name, "digest": _digest(text)})
        return [name for _, name, _ in missing]


def _check_fits(connection: psycopg.Connection[DictRow]) -> None:
    """The ledger has the migrations of this harness, all and no others. Raises: NotInitialised; UndefinedTable."""
    try:
        missing = _not_applied(connection, migrations())
    except psycopg.errors.InsufficientPrivilege as error:  # the right to look came with this check
        raise NotInitialised(
            f"the ledger was made by an older harness, or restored without its grants ({error}); nothing was changed. "
            "Stop all workers, then run `harness init`"
        ) from error
    if missing:
        raise NotInitialised(
            f"the ledger was made by an older harness: it lacks migrations {[number for number, _, _ in missing]}; "
            "nothing was changed. Stop all workers, then run `harness init`"
        )


def _not_applied(
    connection: psycopg.Connection[DictRow], known: Sequence[tuple[int, str, str]]
) -> list[tuple[int, str, str]]:
    """Those of *known* that the ledger does not have. Raises: NotInitialised when it has others, or an edited one."""
    done = {row["number"]: row["digest"] for row in connection.execute(sql("init/applied"))}
    if unknown := sorted(set(done) - {number for number, _, _ in known}):
        raise NotInitialised(
            f"the ledger has migrations {unknown} that this harness does not know: it was made by a newer "
            "harness; nothing was changed, install that version"
        )
    for number, name, text in known:
        if done.get(number, _digest(text)) != _digest(text):
            raise NotInitialised(f"migration {name} differs from the one that was applied; nothing was changed")
    return [one for one in known if one[0] not in done]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
