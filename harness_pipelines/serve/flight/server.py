"""The server of Flight SQL: each query runs on DuckDB over the tables as they are when it begins.

A ticket holds the query itself, so that any server behind a balancer answers it; prepared statements live in the server
that prepared them. Rows go out as DuckDB makes them: a client that does not read holds them up.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.flight as fl
import structlog

from harness_pipelines.engines.duckdb.session import Limits, QueryTooSlow
from harness_pipelines.errors import HarnessError, TryAgain, UsageError
from harness_pipelines.serve.auth import KnownTokens, Principal, basic, bearer
from harness_pipelines.serve.flight import answers, messages
from harness_pipelines.serve.flight.queries import PreparedStatements, QueryCancelled, Rows, Running
from harness_pipelines.serve.logins import LOOK_EVERY_S, LoginsFull

log = structlog.get_logger(__name__)
SQL_SHOWN_MAX = 500  #: characters of a query in the log
STRANGERS_MAX = 20  #: logins that wait for the look-up of a token that was never good
CANCELLED, NOT_CANCELLABLE = 1, 3
PREPARE, CLOSE = "CreatePreparedStatement", "ClosePreparedStatement"
CANCEL, CANCEL_OLD = "CancelFlightInfo", "CancelQuery"
_AUTH = "auth"


class SqlOf(Protocol):
    """Queries of one login (`app.sql.Sql`)."""

    @property
    def session(self) -> Any: ...

    def __enter__(self) -> SqlOf: ...

    def __exit__(self, *_: object) -> None: ...

    def run(self, text: str, parameters: Sequence[Any] = ...) -> Any: ...

    def schema(self, text: str, parameters: Sequence[Any] = ...) -> pa.Schema: ...

    def tables(self) -> Any: ...


class _Login(fl.ServerMiddleware):  # type: ignore[misc]  # PyArrow has no types
    """Who calls. A client that logs in by name and password gets its token back, to send with later calls."""

    def __init__(self, principal: Principal, secret: str) -> None:
        self.principal, self._secret = principal, secret

    def sending_headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._secret}"}


class _Logins(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets calls with a token in: as bearer, or as the password of any name."""

    def __init__(self, tokens: KnownTokens) -> None:
        self._tokens = tokens
        self._turn, self._next = threading.Lock(), 0.0
        self._places = threading.BoundedSemaphore(STRANGERS_MAX)

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Login:
        said = next((values[0] for name, values in headers.items() if name.lower() == "authorization" and values), None)
        named = basic(said)
        secret = bearer(said) or (named[1] if named else None)
        try:
            principal = self._principal(secret) if secret else None
        except TryAgain as error:
            raise fl.FlightUnavailableError(str(error)) from error
        if principal is None or secret is None:
            log.info("serve.unknown", table=None, why="flight", method=str(info.method))
            raise fl.FlightUnauthenticatedError("a token is needed that is known, not expired and not revoked")
        return _Login(principal, secret)

    def _principal(self, secret: str) -> Principal | None:
        """Raises: LoginsFull; TryAgain while the ledger is away."""
        is_known, found = self._tokens.known(secret)
        if is_known:
            return found
        if self._tokens.was_good(secret):  # of these there are as many as the ledger has tokens
            return self._tokens.check([secret])[0]
        if not self._places.acquire(blocking=False):
            raise LoginsFull(f"{STRANGERS_MAX} tokens wait for their look-up already; try again")
        try:
            with self._turn:  # whatever strangers send, the ledger gets one question at a time, and few a second
                time.sleep(max(self._next - time.monotonic(), 0.0))
                self._next = time.monotonic() + LOOK_EVERY_S
                return self._tokens.check([secret])[0]
        finally:
            self._places.release()


class _NoHandshake(fl.ServerAuthHandler):  # type: ignore[misc]
    """The older login of Flight, which clients call to get the header of `_Login`."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        pass

    def is_valid(self, token: bytes) -> str:
        return ""


class FlightSqlServer(fl.FlightServerBase):  # type: ignore[misc]
    """Answers Flight SQL. *open_sql* gives the queries of a login, for one query each."""

    def __init__(
        self,
        location: str,
        open_sql: Callable[[Principal], SqlOf],
        tokens: KnownTokens,
        *,
        queries_max: int,
        limits: Limits,
        tls: tuple[bytes, bytes] | None = None,
    ) -> None:
        self._open, self._limits = open_sql, limits
        self._prepared = PreparedStatements()
        self._running = Running(threading.BoundedSemaphore(queries_max))
        super().__init__(
            location,
            auth_handler=_NoHandshake(),
            middleware={_AUTH: _Logins(tokens)},
            tls_certificates=[tls] if tls else None,
        )

    def stop(self) -> None:
        """End running queries and the server."""
        self._running.end_all(QueryCancelled("the server is stopping"))
        self.shutdown()

    # -- what a client asks -------------------------------------------------------------------------------------------

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        principal = _principal(context)
        with _as_flight():
            name, command = messages.unpacked(descriptor.command or b"")
            if name == "CommandStatementQuery":
                with self._open(principal) as sql:
                    schema = sql.schema(command.query)
                handle = {"id": uuid.uuid4().hex, "sql": command.query}
            elif name == "CommandPreparedStatementQuery":
                found = self._prepared.get(principal, command.prepared_statement_handle)
                with self._open(principal) as sql:
                    schema = sql.schema(found.sql, found.values)
                number = base64.b64encode(command.prepared_statement_handle).decode()
                handle = {"id": uuid.uuid4().hex, "prepared": number}
            else:
                schema = self._metadata(principal, name, command).schema
                return fl.FlightInfo(schema, descriptor, [fl.FlightEndpoint(descriptor.command, [])], -1, -1)
            ticket = messages.packed("TicketStatementQuery", statement_handle=json.dumps(handle).encode())
            return fl.FlightInfo(schema, descriptor, [fl.FlightEndpoint(ticket, [])], -1, -1)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        return fl.SchemaResult(self.get_flight_info(context, descriptor).schema)

    def do_get(self, context: Any, ticket: Any) -> Any:
        principal = _principal(context)
        with _as_flight():
            name, command = messages.unpacked(ticket.ticket)
            if name != "TicketStatementQuery":
                return fl.RecordBatchStream(self._metadata(principal, name, command))
            handle = json.loads(command.statement_handle)
            text, values = self._of(principal, handle)
            rows = self._begin(principal, handle["id"], text, values, address=context.peer())
            return fl.GeneratorStream(rows.schema, _told(rows))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Bind the parameters of a prepared statement: one row."""
        principal = _principal(context)
        with _as_flight():
            name, command = messages.unpacked(descriptor.command or b"")
            if name != "CommandPreparedStatementQuery":
                raise UsageError("this server only reads: statements that change tables are refused")
            rows = reader.read_all()
            if rows.num_rows != 1:
                raise UsageError(f"parameters are bound as one row, and there are {rows.num_rows}")
            found = self._prepared.get(principal, command.prepared_statement_handle)
            found.values = [column[0].as_py() for column in rows.columns]

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        principal = _principal(context)
        with _as_flight():
            body = action.body.to_pybytes()
            if action.type == PREPARE:
                return iter([fl.Result(self._prepare(principal, messages.unpacked(body)[1].query))])
            if action.type == CLOSE:
                self._prepared.close(principal, messages.unpacked(body)[1].prepared_statement_handle)
                return iter([])
            if action.type == CANCEL:
                status = self._cancel(principal, messages.cancel_request(body))
                return iter([fl.Result(messages.cancel_result(status))])
            if action.type == CANCEL_OLD:
                status = self._cancel(principal, messages.unpacked(body)[1].info)
                result = 1 if status == CANCELLED else 3
                return iter([fl.Result(messages.packed("ActionCancelQueryResult", result=result))])
            raise UsageError(f"there is no action {action.type!r} here: this server only reads, without transactions")

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return [
            (PREPARE, "prepare a query"),
            (CLOSE, "forget a prepared query"),
            (CANCEL, "end a running query"),
            (CANCEL_OLD, "end a running query"),
        ]

    # -- how it is done -----------------------------------------------------------------------------------------------

    def _of(self, principal: Principal, handle: dict[str, str]) -> tuple[str, Sequence[Any]]:
        if "prepared" in handle:
            found = self._prepared.get(principal, base64.b64decode(handle["prepared"]))
            return found.sql, found.values
        return handle["sql"], ()

    def _begin(self, principal: Principal, number: str, text: str, values: Sequence[Any], *, address: str) -> Rows:
        began = time.monotonic()

        def open_(held: ExitStack) -> tuple[pa.RecordBatchReader, Callable[[HarnessError], None]]:
            sql = held.enter_context(self._open(principal))
            return held.enter_context(sql.run(text, values)), sql.session.end

        said = {"reader": principal.name, "address": address, "sql": text[:SQL_SHOWN_MAX]}
        try:
            rows = self._running.begin(principal, number, open_, place=self._running.slot())
        except HarnessError as error:
            log.info("serve.refused", table=None, why=str(error), **said)
            raise
        log.info("serve.queried", table=None, ms=round((time.monotonic() - began) * 1000, 1), **said)
        if self._limits.time_s is not None:
            late = QueryTooSlow(f"the query took longer than {self._limits.time_s:g} s and was ended")
            rows.end_after(self._limits.time_s, late)
        return rows

    def _prepare(self, principal: Principal, text: str) -> bytes:
        with self._open(principal) as sql:
            statement = sql.session.read(text)
            parameters = statement.parameters
            schema = sql.schema(text, [None] * len(parameters))
        return messages.packed(
            "ActionCreatePreparedStatementResult",
            prepared_statement_handle=self._prepared.add(principal, text),
            dataset_schema=schema.serialize().to_pybytes(),
            parameter_schema=pa.schema([pa.field(name, pa.null()) for name in parameters]).serialize().to_pybytes(),
        )

    def _cancel(self, principal: Principal, info: bytes) -> int:
        for endpoint in fl.FlightInfo.deserialize(info).endpoints:
            name, command = messages.unpacked(endpoint.ticket.ticket)
            if name == "TicketStatementQuery" and self._running.cancel(
                principal, json.loads(command.statement_handle)["id"]
            ):
                return CANCELLED
        return NOT_CANCELLABLE

    def _metadata(self, principal: Principal, name: str, command: Any) -> pa.Table:
        match name:
            case "CommandGetSqlInfo":
                return answers.sql_info(command.info, timeout_s=self._limits.time_s)
            case "CommandGetXdbcTypeInfo":
                return answers.types(command.data_type if command.HasField("data_type") else None)
            case "CommandGetCatalogs":
                return answers.CATALOGS.empty_table()
            case "CommandGetTableTypes":
                return pa.Table.from_pylist([{"table_type": answers.TABLE}], schema=answers.TABLE_TYPES)
            case "CommandGetExportedKeys" | "CommandGetImportedKeys" | "CommandGetCrossReference":
                return answers.FOREIGN_KEYS.empty_table()
        with self._open(principal) as sql:
            found = sql.tables()
        match name:
            case "CommandGetDbSchemas":
                has_pattern = command.HasField("db_schema_filter_pattern")
                return answers.schemas(found, command.db_schema_filter_pattern if has_pattern else None)
            case "CommandGetTables":
                return answers.tables(found, command)
            case "CommandGetPrimaryKeys":
                return answers.primary_keys(found, command)
        raise UsageError(f"{name} is not answered: this server only reads")


def _principal(context: Any) -> Principal:
    login = context.get_middleware(_AUTH)
    assert isinstance(login, _Login)
    return login.principal


def _told(rows: Rows) -> Iterator[pa.RecordBatch]:
    with _as_flight():
        yield from rows


@contextmanager
def _as_flight() -> Iterator[None]:
    """Errors with the status that clients know."""
    try:
        yield
    except TryAgain as error:
        raise fl.FlightUnavailableError(str(error)) from error
    except QueryTooSlow as error:
        raise fl.FlightTimedOutError(str(error)) from error
    except (UsageError, messages.NotFlightSql, json.JSONDecodeError, KeyError) as error:
        raise pa.ArrowInvalid(str(error)) from error
    except HarnessError as error:
        raise fl.FlightServerError(str(error)) from error
