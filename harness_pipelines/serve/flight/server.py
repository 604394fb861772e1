"""The server of Flight SQL: each query runs on DuckDB over the tables as they are when it begins.

A ticket holds the query itself, so that any server behind a balancer answers it; prepared statements live in the server
that prepared them. Rows go out as DuckDB makes them: a client that does not read holds them up.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.flight as fl
import structlog

from harness_pipelines.engines.duckdb.database import Limits, QueryTooSlow
from harness_pipelines.errors import HarnessError, TryAgain, UsageError
from harness_pipelines.serve.answers import shown
from harness_pipelines.serve.auth import KnownTokens, Principal
from harness_pipelines.serve.flight import answers, messages
from harness_pipelines.serve.flight.logins import AUTH, FlightLogins, NoHandshake, principal_of
from harness_pipelines.serve.flight.messages import CallNotServed
from harness_pipelines.serve.flight.queries import Interrupt, PreparedStatements, QueryCancelled, Rows, Running

log = structlog.get_logger(__name__)
ID_MAX = 64  #: characters of the number of a query
VALUES_BYTES_MAX = 1 << 20  #: of the parameters of a prepared statement, which it holds
SQL_SHOWN_MAX = 500  #: characters of a query in the log
CANCELLED, NOT_CANCELLABLE = 1, 3
PREPARE, CLOSE = "CreatePreparedStatement", "ClosePreparedStatement"
TICKET = "TicketStatementQuery"
CANCEL, CANCEL_OLD = "CancelFlightInfo", "CancelQuery"


class SqlOf(Protocol):
    """Queries of one login (`app.sql.Sql`)."""

    @property
    def session(self) -> Any: ...

    def __enter__(self) -> SqlOf: ...

    def __exit__(self, *_: object) -> None: ...

    def run(self, text: str, parameters: Sequence[Any] = ...) -> Any: ...

    def schema(self, text: str, parameters: Sequence[Any] = ...) -> pa.Schema: ...

    def tables(self) -> Any: ...


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
        self._looks = Running(threading.BoundedSemaphore(queries_max))  # they wait for no client that takes its rows
        super().__init__(
            location,
            auth_handler=NoHandshake(),
            middleware={AUTH: FlightLogins(tokens)},
            tls_certificates=[tls] if tls else None,
        )

    def stop(self) -> None:
        """End running queries and the server."""
        self._running.end_all(QueryCancelled("the server is stopping"))
        self.shutdown()

    # -- what a client asks -------------------------------------------------------------------------------------------

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        principal = principal_of(context)
        with _as_flight():
            name, command = messages.unpacked(descriptor.command or b"")
            if name == "CommandStatementQuery":
                _check_alone(command)
                with self._looks.slot(), self._open(principal) as sql:
                    schema = sql.schema(command.query)
                handle = {"id": uuid.uuid4().hex, "sql": command.query}
            elif name == "CommandPreparedStatementQuery":
                found = self._prepared.get(principal, command.prepared_statement_handle)
                with self._looks.slot(), self._open(principal) as sql:
                    schema = sql.schema(found.sql, found.values)
                number = command.prepared_statement_handle.decode()  # it is known, so it is one of hexadecimal digits
                handle = {"id": uuid.uuid4().hex, "prepared": number}
            else:
                schema = self._metadata(principal, name, command).schema
                return fl.FlightInfo(schema, descriptor, [fl.FlightEndpoint(descriptor.command, [])], -1, -1)
            ticket = messages.packed(TICKET, statement_handle=json.dumps(handle).encode())
            return fl.FlightInfo(schema, descriptor, [fl.FlightEndpoint(ticket, [])], -1, -1)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        return fl.SchemaResult(self.get_flight_info(context, descriptor).schema)

    def do_get(self, context: Any, ticket: Any) -> Any:
        principal = principal_of(context)
        with _as_flight():
            name, command = messages.unpacked(ticket.ticket)
            if name != TICKET:
                return fl.RecordBatchStream(self._metadata(principal, name, command))
            handle = _handle(command.statement_handle)
            text, values = self._of(principal, handle)
            rows = self._begin(principal, handle["id"], text, values, address=context.peer())
            return fl.GeneratorStream(rows.schema, _told(rows))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Bind the parameters of a prepared statement: one row."""
        principal = principal_of(context)
        with _as_flight():
            name, command = messages.unpacked(descriptor.command or b"")
            if name != "CommandPreparedStatementQuery":
                raise CallNotServed(f"{name} has nothing to send: only parameters of prepared statements are taken")
            found = self._prepared.get(principal, command.prepared_statement_handle)
            found.values = _one_row(reader)

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        principal = principal_of(context)
        with _as_flight():
            body = action.body.to_pybytes()
            if action.type == PREPARE:
                request = messages.expected("ActionCreatePreparedStatementRequest", body)
                _check_alone(request)
                return iter([fl.Result(self._prepare(principal, request.query))])
            if action.type == CLOSE:
                self._prepared.close(
                    principal, messages.expected("ActionClosePreparedStatementRequest", body).prepared_statement_handle
                )
                return iter([])
            if action.type == CANCEL:
                status = self._cancel(principal, messages.cancel_request(body))
                return iter([fl.Result(messages.cancel_result(status))])
            if action.type == CANCEL_OLD:
                status = self._cancel(principal, messages.expected("ActionCancelQueryRequest", body).info)
                return iter([fl.Result(messages.packed("ActionCancelQueryResult", result=status))])
            raise CallNotServed(f"the action {shown(action.type)} is not served: this server only reads, by queries")

    def list_flights(self, context: Any, criteria: bytes) -> Any:
        with _as_flight():
            raise CallNotServed("ListFlights is not served: CommandGetTables lists the tables")

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with _as_flight():
            raise CallNotServed("DoExchange is not served: this server only reads, by queries")

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
            found = self._prepared.get(principal, handle["prepared"].encode(errors="replace"))
            return found.sql, found.values
        return handle["sql"], ()

    def _begin(self, principal: Principal, number: str, text: str, values: Sequence[Any], *, address: str) -> Rows:
        began = time.monotonic()

        def open_(held: ExitStack, interrupted_by: Callable[[Interrupt], None]) -> pa.RecordBatchReader:
            sql = held.enter_context(self._open(principal))
            interrupted_by(sql.session.end)
            return held.enter_context(sql.run(text, values))

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
        with self._looks.slot(), self._open(principal) as sql:
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
        try:
            asked = fl.FlightInfo.deserialize(info)
        except (pa.ArrowException, ValueError) as error:
            raise messages.NotFlightSql("what is to be cancelled is no query of this server") from error
        for endpoint in asked.endpoints:
            name, command = messages.unpacked(endpoint.ticket.ticket)
            if name == TICKET and self._running.cancel(principal, _handle(command.statement_handle)["id"]):
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
        with self._looks.slot(), self._open(principal) as sql:
            found = sql.tables()
        match name:
            case "CommandGetDbSchemas":
                has_pattern = command.HasField("db_schema_filter_pattern")
                return answers.schemas(found, command.db_schema_filter_pattern if has_pattern else None)
            case "CommandGetTables":
                return answers.tables(found, command)
            case "CommandGetPrimaryKeys":
                return answers.primary_keys(found, command)
        raise CallNotServed(f"{name} is no question: this server only reads, by queries")


def _check_alone(request: Any) -> None:
    """Raises: CallNotServed."""
    if request.HasField("transaction_id"):
        raise CallNotServed("transactions are not served: each query reads the tables as they are when it begins")


def _one_row(reader: Any) -> list[Any]:
    """The values of the one row that a client sends; of more, no more is read. Raises: UsageError."""
    rows: list[pa.RecordBatch] = []
    for chunk in reader:
        if chunk.data is not None and chunk.data.num_rows:
            rows.append(chunk.data)
        if sum(batch.num_rows for batch in rows) > 1:
            break
    count = sum(batch.num_rows for batch in rows)
    if count != 1:
        raise UsageError(f"parameters are bound as one row, and there are {count or 'none'}{' or more' * (count > 1)}")
    if rows[0].nbytes > VALUES_BYTES_MAX:
        raise UsageError(f"the values of parameters have {VALUES_BYTES_MAX:,} bytes at most")
    return [column[0].as_py() for column in rows[0].columns]


def _told(rows: Rows) -> Iterator[pa.RecordBatch]:
    with _as_flight():
        yield from rows


def _handle(data: bytes) -> dict[str, str]:
    """What a ticket of a query holds. Raises: NotFlightSql for one that no server of ours made."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise messages.NotFlightSql("the ticket is none of this server") from error
    is_ours = isinstance(found, dict) and set(found) in ({"id", "sql"}, {"id", "prepared"})
    if not is_ours or not all(isinstance(value, str) for value in found.values()) or len(found["id"]) > ID_MAX:
        raise messages.NotFlightSql("the ticket is none of this server")
    return dict(found)


class Unimplemented(NotImplementedError):
    """What clients get as ``UNIMPLEMENTED``. Flight has no exception for it, and PyArrow takes Python's.

    PyArrow adds the trace of an exception that is not Flight's, and only the name of one whose trace cannot be
    written. A trace is written with its causes, so they are asked for first.
    """

    @property
    def __cause__(self) -> None:  # type: ignore[override]  # the base class has an attribute
        raise AttributeError("a client gets no trace")


@contextmanager
def _as_flight() -> Iterator[None]:
    """Errors with the status that clients know.

    Those of PyArrow's Flight alone are passed on by their message. Of all others it sends the trace along, with those
    of their causes: files of this machine, and what drivers say of other servers.
    """
    try:
        yield
    except fl.FlightError:
        raise
    except TryAgain as error:
        raise fl.FlightUnavailableError(_said(error)) from error
    except QueryTooSlow as error:
        raise fl.FlightTimedOutError(_said(error)) from error
    except CallNotServed as error:
        raise Unimplemented(_said(error)) from None
    except HarnessError as error:
        raise fl.FlightServerError(_said(error)) from error
    except messages.NotFlightSql as error:
        raise fl.FlightServerError(str(error)) from error
    except Exception as error:  # a fault of the server: what it says may name files, so only the log has it
        number = secrets.token_hex(8)
        log.exception("serve.broken", table=None, id=number, route="flight")
        raise fl.FlightServerError(f"an unexpected error; the server's log has more under the id {number}") from error


def _said(error: HarnessError) -> str:
    """The message, and what a client may do where that is known."""
    return f"{error}. Way on: {error.way_on}" if error.way_on else str(error)
