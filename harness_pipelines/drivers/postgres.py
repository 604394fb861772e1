"""Connections to the Postgres database, and named SQL statements.

Every connection of the harness carries the timeouts of the design, so that a stopped process never holds a table.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import inf, isinf
from typing import Any, LiteralString, cast

import msgspec
import psycopg
from psycopg.abc import RV, PQGen
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import set_json_loads
from psycopg_pool import ConnectionPool, PoolTimeout

from harness_pipelines.drivers.certificates import CertificateRefused, TlsPlace, why_refused
from harness_pipelines.drivers.postgres_address import in_force
from harness_pipelines.drivers.postgres_session import deadline_s, pulse_s, session_dsn
from harness_pipelines.errors import DatabaseAway, HarnessError, OutcomeUnknown, TryAgain, UsageError
from harness_pipelines.secret import redact


def _json(text: str | bytes) -> Any:
    """A value of JSON: rows of the ledger have vectors, which take most of the time that reading many rows takes."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:  # a number that is larger than any float
        return json.loads(text)


class Connection(psycopg.Connection[DictRow]):
    """A session of the pool, which knows when it was taken and given back."""

    taken_at = used_at = -inf  #: monotonic seconds
    deadline_s = 130.0  #: how long an answer is waited for
    pulse_s = 10.0  #: how often a transaction is kept from being idle

    @classmethod
    def connect(  # type: ignore[override]  # what psycopg takes by name is passed on
        cls, conninfo: str = "", *, refused: Callable[[psycopg.Error], None] | None = None, **settings: Any
    ) -> Connection:
        """*refused* receives the reason of a failure, which a pool only logs."""
        try:
            connection = super().connect(conninfo, **settings)
        except psycopg.Error as error:
            if refused is not None:
                refused(error)
            raise
        set_json_loads(_json, connection)
        return connection

    @classmethod
    def of(cls, dsn: str, *, autocommit: bool = False) -> Connection:
        """A session outside of any pool. Raises: psycopg.Error."""
        connection = cls.connect(dsn, autocommit=autocommit, row_factory=dict_row)
        connection.deadline_s, connection.pulse_s = deadline_s(dsn), pulse_s(dsn)
        return connection

    @contextmanager
    def building(self) -> Iterator[None]:
        """Inside of a transaction, work that asks the database nothing and may take longer than it lets one be idle.

        Meanwhile the session is asked for nothing now and then, by this process: one that is stopped does not do that,
        and blocks nothing for longer than the timeouts. The next statement meets a session that is lost meanwhile.
        """
        over = threading.Event()

        def keep() -> None:
            with suppress(psycopg.Error):
                while not over.wait(self.pulse_s):
                    self.execute("SELECT")

        keeper = threading.Thread(target=keep, name="keep-transaction", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            over.set()
            keeper.join()

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Wait for an answer, and not for ever: a stopped server's kernel continues to acknowledge what it is sent."""
        if timeout is not None:  # a caller waits for news, or has a reason
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, None if isinf(self.deadline_s) else self.deadline_s)
        except psycopg.errors._WaitTimeout as late:
            self.pgconn.finish()
            raise psycopg.errors.ConnectionTimeout(
                f"no answer within {self.deadline_s:.0f} s, the connection was given up"
            ) from late


TRUSTED_S = 2.0  #: a session that was used so lately is not tried out first
WAIT_S = 15.0  #: for a session of the pool, while the server is away or all are in use
STREAMED_ROWS = 2_000  #: that are in memory at a time
LOOK_S = (0.5, 2.0)  #: how often a wait checks why there is no session: at first, and at most
_POOL = "harness"  #: the name of each pool
_LOST_AT: dict[str, float] = {}  #: by server, when this process last found a session lost; monotonic seconds

WORKER, READER, SPARK = "harness_worker", "harness_reader", "harness_spark"
BUFFER = "harness_buffer"  #: the schema of the segments
#: How the driver says that a session is over; the last one is no OperationalError to it.
_SESSION_LOST = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.IdleInTransactionSessionTimeout)
#: How poolers refuse a session with options: PgBouncer, and the proxy of Amazon RDS.
_POOLER_REFUSES = ("unsupported startup parameter", "command-line options")
#: How Postgres refuses a login. A session that never began has no SQLSTATE with psycopg.
LOGIN_REFUSED = re.compile(
    r"(?:password|peer|ident|scram|gssapi|ldap|pam|radius|bsd) authentication failed|"
    r"authentication method .* not supported|no pg_hba\.conf entry|no password supplied|pg_hba\.conf rejects|"
    r'is not permitted to log in|FATAL: +(?:role|database) ".*" does not exist|permission denied for database',
    re.IGNORECASE,
)
#: libpq's words for a service that its files lack, or that cannot be read.
_NO_SERVICE = re.compile(r"definition of service .* not found|service file .* not found|in service file")
_LOGIN_STATES = frozenset({"28000", "28P01", "3D000"})
#: Statements lie with the adapter that runs them.
_SQL = tuple(files(f"harness_pipelines.{room}") / "sql" for room in ("ledgers.postgres", "buffers.postgres"))


class PostgresUnreachable(DatabaseAway):
    """The database did not answer, or the connection was lost before anything was committed."""


class PostgresReadOnly(TryAgain):
    """The database takes no writes: a stand-by, a failover that is under way, or a disk that is full."""

    way_on = "make it writable, or let HARNESS_DSN lead to the one that is"


class LedgerBusy(TryAgain):
    """A lock was not granted in time, or two sessions deadlocked; nothing was written."""

    way_on = (
        "run the same command again; workers continue automatically. `harness doctor` names a session that keeps a lock"
    )


class NotInitialised(HarnessError):
    """The database has no ledger, or one of another harness version."""

    way_on = "stop all workers, `harness init`; a ledger of a newer harness: install that version"


class LedgerPromoted(TryAgain):
    """The database was promoted or restored, and the table was not compared with its lake since."""

    way_on = "start a worker, or `harness reconcile TABLE --yes`"


class RowGone(TryAgain):
    """The ledger lacks a row that this process used: it was set back, or the table was dropped."""


class MissingRole(HarnessError):
    """The login may not act as a worker or reader."""

    way_on = (
        "`GRANT harness_worker TO ...`; for `harness init` and `harness table drop` be the owner (HARNESS_OWNER_DSN)"
    )


class PostgresLoginFailed(HarnessError):
    """The database answered and refused the login, or has no database of that name; trying again does not help."""

    way_on = "correct HARNESS_DSN and start the worker again; after the server or PGPASSFILE it continues by itself"


class SessionsPooled(HarnessError):
    """Between the harness and the database is a pooler, which does not pass on what a session asks for."""

    way_on = "give HARNESS_DSN the address of the server itself, not of the pooler"


class SegmentMissing(HarnessError):
    """A segment that is named is not there: the lease that held it has ended, or it was dropped by hand."""

    way_on = (
        "of a read: read again. Of a worker: stop it, `harness table drop TABLE --yes`, `harness reconcile SPEC "
        "--rebuild --yes`"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The request to Postgres, for the message that explains why it failed."""

    dsn: str
    table: str | None = None
    reading: tuple[str, ...] = ()  #: the segments of a read

    @property
    def about(self) -> str:
        return f"{self.table}: " if self.table else ""

    @property
    def place(self) -> str:
        place = in_force(self.dsn)
        return f"Postgres at {place.get('host', 'the local socket')}:{place.get('port', 5432)}"

    @property
    def outcome(self) -> str:
        return "nothing is returned" if self.reading else "nothing was written"


def sql(name: str) -> LiteralString:
    """The SQL text called *name* (``file/section``)."""
    source, _, section = name.partition("/")
    return sections(source)[section]


@cache
def sections(source: str) -> Mapping[str, LiteralString]:
    """The statements of one SQL file by name: each begins with ``-- name: section``."""
    [file] = [place for folder in _SQL if (place := folder / f"{source}.sql").is_file()]
    text = file.read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return {name: cast(LiteralString, body.strip()) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


@contextmanager
def explained(dsn: str, *, table: str | None = None) -> Iterator[None]:
    """Turn the driver's errors into the harness's own, without secrets."""
    try:
        yield
    except psycopg.Error as error:
        ended_by = error.__context__
        if ended_by is not None and not isinstance(ended_by, Exception):
            raise ended_by from None  # a signal left a pipeline with questions open, which the driver complains of
        if not (error.sqlstate or isinstance(error, _SESSION_LOST)):  # the driver was called in a wrong way
            raise
        found = named(error, Asked(dsn=dsn, table=table))
        if found is None:
            raise
        raise found from error


def named(error: Exception, asked: Asked) -> HarnessError | None:
    """What *error* of a driver, psycopg or ADBC, is to the harness, by its SQLSTATE; ``None``: a defect.

    Without a SQLSTATE the session was lost, or there never was one.
    """
    state: str = (getattr(error, "sqlstate", None) or "").strip("\0")  # ADBC's is a field of five bytes
    said = redact(str(error)).strip()
    # The Arrow driver looks the columns of a table up by itself, and keeps no SQLSTATE of that.
    if state == "42P01" or getattr(getattr(error, "status_code", None), "name", "") == "NOT_FOUND":
        return _missing(said, asked)
    if state == "42501":
        return MissingRole(
            f"{asked.about}the database login lacks a right ({said}): GRANT {WORKER} or {READER} to it (`harness init` "
            f"and `harness table drop` are for the owner of the database: HARNESS_OWNER_DSN); {asked.outcome}"
        )
    if state == "25006":
        return PostgresReadOnly(
            f"{asked.about}{asked.place} may only be read, as a stand-by or with a full disk: {said}; {asked.outcome}, "
            "it is tried again over another connection"
        )
    if state == "HP002":
        return LedgerPromoted(
            f"{asked.about}{said}; {asked.outcome}. The next worker compares them, or `harness reconcile TABLE --yes`"
        )
    if state == "57014" or state[:2] in {"40", "55"}:  # canceled; rolled back, as in a deadlock; held by another one
        return LedgerBusy(
            f"{asked.about}another session holds what is needed, or it took too long, try again: {said}; "
            f"{asked.outcome}"
        )
    if any(words in said for words in _POOLER_REFUSES):
        return _pooled(said, asked)
    if not state or state == "25P03" or state in _LOGIN_STATES or state[:2] in {"08", "53", "57", "58"}:
        return _away(said, asked, state)
    return None


def _missing(said: str, asked: Asked) -> HarnessError:
    """A relation that is not there: of the ledger, or a segment of the buffer."""
    if f"{BUFFER}." not in said:
        return NotInitialised("the database has no ledger (or another version of it): run `harness init`")
    table = asked.table or "TABLE"
    if asked.reading:
        return SegmentMissing(
            f"{table}: a segment of this read is gone ({said}; it named {', '.join(asked.reading)}): its lease has "
            "ended or the segment was dropped by hand; nothing is returned, read again"
        )
    return SegmentMissing(
        f"{table}: a segment of the buffer is gone ({said}): it was dropped by hand; nothing was written. What it held "
        f"and the lake does not have is in Kafka alone, as far as its retention goes; `harness fsck {table}` counts "
        f"it. The way on: stop the workers, `harness table drop {table} --yes`, then `harness reconcile SPEC --rebuild "
        "--yes` takes the lake over and continues from Kafka where it ends"
    )


def _away(said: str, asked: Asked, state: str = "") -> HarnessError:
    """A session that was lost, or that never began."""
    if any(f'role "{role}" does not exist' in said for role in (WORKER, READER, SPARK)):
        return NotInitialised("the database has no role of the harness yet: run `harness init`")
    if "permission denied to set role" in said or 'invalid value for parameter "role"' in said:
        return MissingRole(f"{said}: run `harness init`, then GRANT {WORKER} or {READER}")
    if _NO_SERVICE.search(said):
        return UsageError(f"{said}: correct PGSERVICE, or name the file in PGSERVICEFILE")
    why = why_refused(said, _tls_place(asked))
    if why is not None:
        settings = "sslmode, sslrootcert, sslcert and sslkey of HARNESS_DSN (or PGSSL*) and its host"
        return CertificateRefused(f"{asked.about}{asked.place}", why=why, said=said, settings=settings)
    if state in _LOGIN_STATES or LOGIN_REFUSED.search(said):
        return PostgresLoginFailed(
            f"{asked.about}{asked.place} refused the login: {said}; {asked.outcome}. Check user, password and database "
            "of HARNESS_DSN (or of PGUSER, PGPASSWORD, PGDATABASE), and the server's pg_hba.conf; embedded services "
            "that an older version started get their logins by `harness services up`. A worker tries again by itself; "
            + (
                "another password it takes when it is started again"
                if in_force(asked.dsn).get("password")
                else "it reads the file of passwords (PGPASSFILE) each time"
            )
        )
    return PostgresUnreachable(
        f"{asked.about}{asked.place} is not answering: {said}; {asked.outcome}, check HARNESS_DSN or "
        "`harness services status`"
    )


def _tls_place(asked: Asked) -> TlsPlace | None:
    given = in_force(asked.dsn)
    host, port, roots = given.get("host", ""), given.get("port", "5432"), given.get("sslrootcert")
    if not host or host.startswith(("/", "@")) or "," in host + port:
        return None
    return TlsPlace(host=host, port=int(port), roots=None if roots == "system" else roots, is_postgres=True)


def _pooled(found: str, asked: Asked) -> SessionsPooled:
    return SessionsPooled(
        f"{asked.about}{asked.place} is a pooler, such as PgBouncer, and not the database: a session needs its role, "
        f"time zone and timeouts from its first statement on, and they do not arrive ({found}); {asked.outcome}. Give "
        "HARNESS_DSN the address and port of the server itself; a pooler in session mode drops them too"
    )


def check_direct(connection: psycopg.Connection[DictRow], *, dsn: str, role: str | None) -> None:
    """The session has what it was opened with, so it is the database's own. Raises: SessionsPooled."""
    found = connection.execute(sql("init/session")).fetchone() or {}
    if found["direct"] != "on" or (role is not None and found["role"] != role):
        raise _pooled(", ".join(f"{name} is {value or 'unset'}" for name, value in found.items()), Asked(dsn=dsn))


Check = Callable[[psycopg.Connection[DictRow]], None]


class _WithoutRefusals(logging.Filter):
    """Drops the pool's own reports of failed connections: `Database.session` raises the reason."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (isinstance(record.args, tuple) and record.args[:1] == (_POOL,))


logging.getLogger("psycopg.pool").addFilter(_WithoutRefusals())


class Database:
    """A pool of sessions of one role."""

    def __init__(self, dsn: str, *, role: str | None = WORKER, size: int = 8, check: Check | None = None) -> None:
        """*check* looks at the first session: what it raises is raised by the first use."""
        self.dsn = session_dsn(dsn, role=role)
        self._deadline_s, self._pulse_s = deadline_s(self.dsn), pulse_s(self.dsn)
        self._role, self._check = role, check
        self.connections = 0  #: made so far: another one may lead to another server
        self._server = Asked(dsn=dsn).place
        self._refused_at, self._refusal = -inf, Exception()  #: when the pool got no session last, and why
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            self.dsn,
            connection_class=Connection,
            kwargs={"row_factory": dict_row, "prepare_threshold": 3, "refused": self._note_refusal},
            min_size=0,
            max_size=size,
            name=_POOL,
            reconnect_timeout=0,  # the next request for a session tries again
            configure=self._connected,
            check=self._try_out,
            open=False,
        )
        self._opened = False

    def close(self) -> None:
        self._pool.close()

    @contextmanager
    def session(self, *, table: str | None = None) -> Iterator[Connection]:
        """A session outside any transaction of the caller's; closed transactions only. Messages name *table*.

        Raises, at the first one: SessionsPooled, and what `check` does.
        """
        if not self._opened:
            # The first connection is made here so that a wrong address fails at once and by its own message.
            with (
                explained(self.dsn),
                Connection.of(self.dsn, autocommit=True) as connection,
            ):
                check_direct(connection, dsn=self.dsn, role=self._role)
                if self._check is not None:
                    self._check(connection)
            self._pool.open()
            self._opened = True
        with explained(self.dsn, table=table), self._taken(table) as connection:
            try:
                yield connection
            except psycopg.errors.ReadOnlySqlTransaction:
                connection.close()  # after a failover the address leads to another server
                raise
            finally:
                if connection.closed:
                    self._note_lost()
                elif connection.autocommit:  # the next user counts on a rollback
                    connection.close()
                connection.used_at = time.monotonic()

    @contextmanager
    def _taken(self, table: str | None) -> Iterator[Connection]:
        """A session of the pool. A server that is away is waited for, and one that refuses the session is not.

        Raises: psycopg.OperationalError, or one of the harness's own errors, for why there is none.
        """
        asked_at, (look_s, look_s_max) = time.monotonic(), LOOK_S
        with ExitStack() as kept:
            while True:
                try:
                    connection = kept.enter_context(self._pool.connection(timeout=look_s))
                    break
                except PoolTimeout as late:
                    why = self._refusal if self._refused_at > asked_at else None
                    if why is not None and not self._pool.get_stats()["pool_size"]:  # none is in use, to come back
                        self._check_passes(why, table)
                    if time.monotonic() > asked_at + WAIT_S:
                        reason = f"no session came free within {WAIT_S:.0f} s" if why is None else str(why)
                        raise psycopg.OperationalError(reason) from late
                    look_s = min(2 * look_s, look_s_max)
            yield connection

    def _check_passes(self, why: Exception, table: str | None) -> None:
        """Raise *why* there is no session unless it may pass by itself: a refused login does not."""
        found = named(why, Asked(dsn=self.dsn, table=table)) if isinstance(why, psycopg.Error) else why
        if not isinstance(found, TryAgain):
            raise found or why

    def _note_refusal(self, error: Exception) -> None:
        self._refused_at, self._refusal = time.monotonic(), error

    def _connected(self, connection: Connection) -> None:
        connection.autocommit = True  # one round trip
        try:
            check_direct(connection, dsn=self.dsn, role=self._role)
        except (psycopg.Error, HarnessError) as error:
            self._note_refusal(error)
            raise
        connection.autocommit = False
        self.connections += 1
        connection.deadline_s, connection.pulse_s = self._deadline_s, self._pulse_s

    def _try_out(self, connection: Connection) -> None:
        """Let the pool replace a session that ended while it was idle; a round trip, so not after each use.

        One that was in use while another one was lost may have been given back unaware that it is lost too.
        """
        now = time.monotonic()
        if connection.used_at <= now - TRUSTED_S or connection.taken_at <= _LOST_AT.get(self._server, -inf):
            try:
                ConnectionPool.check_connection(connection)
            except psycopg.Error:
                self._note_lost()
                raise
        connection.taken_at = now

    def _note_lost(self) -> None:
        """What ended a session may have ended the others of its server, those of other pools among them."""
        _LOST_AT[self._server] = time.monotonic()

    @contextmanager
    def transaction(self, *, table: str | None = None) -> Iterator[Connection]:
        """One READ COMMITTED transaction. A COMMIT whose answer is lost is told apart from a failure.

        Raises: OutcomeUnknown (RESOLVE) only when COMMIT was sent and no answer came.
        """
        with self.session(table=table) as connection:
            try:
                yield connection
            except BaseException:
                _give_up(connection)
                raise
            try:
                connection.commit()
            except _SESSION_LOST as error:
                raise OutcomeUnknown(f"COMMIT was sent, its answer was lost: {redact(str(error))}") from error

    @contextmanager
    def reading(self, *, table: str | None = None) -> Iterator[Connection]:
        """A transaction that changes nothing, so a lost answer of its COMMIT says no more than that Postgres is away.

        Raises: PostgresUnreachable.
        """
        try:
            with self.transaction(table=table) as connection:
                yield connection
        except OutcomeUnknown as lost:
            raise _away(str(lost), Asked(dsn=self.dsn, table=table)) from lost

    @contextmanager
    def at_once(self, *, table: str | None = None) -> Iterator[Connection]:
        """A session whose statements are each their own transaction: one round trip, for what changes nothing."""
        with self.session(table=table) as connection:
            connection.autocommit = True
            try:
                yield connection
            except BaseException:
                _give_up(connection)
                raise
            finally:
                if not connection.closed:
                    connection.autocommit = False

    def rows(self, name: str, parameters: Mapping[str, Any] | None = None, *, binary: bool = False) -> list[DictRow]:
        """Run the query *name*, which changes nothing, in its own transaction and return its rows: one round trip.

        *binary*: how values are sent; bytes as text are twice as many.
        """
        with self.at_once() as connection:
            return connection.execute(sql(name), parameters or {}, binary=binary).fetchall()

    def streamed(self, name: str, parameters: Mapping[str, Any]) -> Iterator[DictRow]:
        """As `rows`, but only some of them are in memory at a time. The caller takes them without a pause."""
        with self.reading() as connection, connection.cursor(name="streamed") as cursor:
            cursor.itersize = STREAMED_ROWS
            yield from cursor.execute(sql(name), parameters)

    def run(self, name: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Run the statement *name* in its own transaction and return how many rows it touched."""
        with self.transaction() as connection:
            return connection.execute(sql(name), parameters or {}).rowcount


def _give_up(connection: Connection) -> None:
    """Roll back. A session that cannot is closed, so that the first error is reported and no later one.

    It cannot where a Ctrl-C came between a statement and its answer.
    """
    try:
        if not connection.closed:
            connection.rollback()
    except psycopg.Error:
        connection.close()
