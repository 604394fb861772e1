"""Flight SQL as clients speak it: logins, queries, prepared statements, catalogs, limits and ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from google.protobuf import any_pb2
from structlog.testing import capture_logs

from harness_pipelines.engines.duckdb.database import Limits
from harness_pipelines.engines.duckdb.session import Session
from harness_pipelines.engines.duckdb.tables import TableDataset
from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.reading.selection import ReadColumn, Selection
from harness_pipelines.serve.auth import KnownTokens, Principal
from harness_pipelines.serve.flight import messages
from harness_pipelines.serve.flight.answers import like
from harness_pipelines.serve.flight.logins import STRANGERS_MAX, FlightLogins
from harness_pipelines.serve.flight.server import FlightSqlServer
from harness_pipelines.serve.logins import LoginsFull
from harness_pipelines.serve.strangers import Strangers
from harness_pipelines.spec.arrow import to_arrow
from harness_pipelines.spec.predicate import TRUE
from harness_pipelines_tests.producer import wait_until

COLUMNS = {"id": {"type": "long", "required": True}, "s": "string"}
TYPE_URL = "type.googleapis.com/arrow.flight.protocol.sql."
LONG = "SELECT i FROM range(1000000000000) t(i)"


class Tokens:
    """Two logins; one may see one namespace only."""

    def check(self, secrets: Sequence[str]) -> list[Principal | None]:
        known = {
            "all": Principal(name="all", globs=("*",)),
            "shop": Principal(name="shop", globs=("shop.*",)),
        }
        return [known.get(secret) for secret in secrets]


class FakeSql:
    """Queries over tables in memory, with a thousand rows each."""

    def __init__(self, rows: Sequence[TableRow], principal: Principal, limits: Limits) -> None:
        self._rows = [row for row in rows if principal.may_see(row.name)]
        self.session = Session(limits)

    def __enter__(self) -> FakeSql:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def _datasets(self) -> dict[str, TableDataset]:
        columns = [
            ReadColumn(name=c.name, type=c.type, required=c.required, field_id=i)
            for i, c in enumerate(self._rows[0].spec.columns)
        ]
        return {row.name: TableDataset(columns, _read) for row in self._rows}

    @contextmanager
    def run(self, text: str, parameters: Sequence[Any] = ()) -> Iterator[pa.RecordBatchReader]:
        statement = self.session.read(text)
        with self.session.tables(self._datasets()), self.session.run(statement, parameters) as found:
            yield found

    def schema(self, text: str, parameters: Sequence[Any] = ()) -> pa.Schema:
        with self.session.tables(self._datasets()):
            return self.session.schema(self.session.read(text), parameters)

    def tables(self) -> list[TableRow]:
        return self._rows


def _read(selection: Selection) -> Iterator[pa.RecordBatch]:
    rows = pa.table({"id": pa.array(range(1000), pa.int64()), "s": [f"row {i}" for i in range(1000)]})
    rows = rows if selection.matching == TRUE else rows.filter(to_arrow(selection.matching))
    yield from rows.select(list(selection.columns or ())).to_batches(max_chunksize=100)


def table(name: str, **spec: Any) -> TableRow:
    from harness_pipelines_tests.contract.stores_rig import MemoryRig

    return MemoryRig().table(**{"table": name, "columns": COLUMNS, **spec})


@pytest.fixture(scope="module")
def rows() -> list[TableRow]:
    keyed = table("shop.people", key=["id"], delete={"field": "op", "values": ["d"]})
    return [table("hr.orders"), table("shop.orders"), keyed]


Serve = Callable[..., int]


@pytest.fixture
def serve(rows: list[TableRow]) -> Iterator[Serve]:
    servers = []

    def start(*, queries_max: int = 4, wait_s: float = 10.0, **limits: Any) -> int:
        chosen = Limits(threads=1, **limits)
        server = FlightSqlServer(
            "grpc://127.0.0.1:0",
            lambda principal: FakeSql(rows, principal, chosen),
            KnownTokens(Tokens()),
            queries_max=queries_max,
            limits=chosen,
        )
        server._running.wait_s = wait_s
        servers.append(server)
        return int(server.port)

    yield start
    for one in servers:
        one.shutdown()


class Client:
    """A client that has only PyArrow."""

    def __init__(self, port: int, token: str | None = "all") -> None:
        self.flight = fl.connect(f"grpc://127.0.0.1:{port}")
        self.options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())] if token else [])

    def info(self, name: str, **fields: Any) -> fl.FlightInfo:
        command = messages.packed(name, **fields)
        return self.flight.get_flight_info(fl.FlightDescriptor.for_command(command), self.options)

    def open(self, info: fl.FlightInfo) -> fl.FlightStreamReader:
        [endpoint] = info.endpoints
        return self.flight.do_get(endpoint.ticket, self.options)

    def ask(self, name: str, **fields: Any) -> pa.Table:
        info = self.info(name, **fields)
        found = self.open(info).read_all()
        assert found.schema.equals(info.schema)
        return found

    def act(self, kind: str, body: bytes) -> list[bytes]:
        return [one.body.to_pybytes() for one in self.flight.do_action(fl.Action(kind, body), self.options)]

    def prepare(self, sql: str) -> Any:
        [found] = self.act(
            "CreatePreparedStatement", messages.packed("ActionCreatePreparedStatementRequest", query=sql)
        )
        return messages.unpacked(found)[1]

    def bind(self, handle: bytes, values: pa.Table) -> None:
        command = messages.packed("CommandPreparedStatementQuery", prepared_statement_handle=handle)
        writer, _ = self.flight.do_put(fl.FlightDescriptor.for_command(command), values.schema, self.options)
        writer.write_table(values)
        writer.done_writing()
        writer.close()


def test_a_query_streams_its_rows_with_the_columns_that_were_announced(serve):
    client = Client(serve())
    found = client.ask("CommandStatementQuery", query="SELECT id, s FROM shop.orders WHERE id < 3 ORDER BY id;")
    assert found.to_pydict() == {"id": [0, 1, 2], "s": ["row 0", "row 1", "row 2"]}
    assert client.ask("CommandStatementQuery", query="EXPLAIN SELECT 1").num_rows == 1
    assert client.ask("CommandStatementQuery", query="DESCRIBE shop.orders").num_rows == 2


@pytest.mark.parametrize("token", [None, "wrong", ""])
def test_no_call_is_answered_without_a_token(serve, token):
    client = Client(serve(), token)
    for call in (
        lambda: client.info("CommandStatementQuery", query="SELECT 1"),
        lambda: client.ask("CommandGetTables"),
        lambda: client.prepare("SELECT 1"),
        lambda: client.bind(b"x", pa.table({"a": [1]})),
    ):
        with pytest.raises(fl.FlightUnauthenticatedError):
            call()


def test_strangers_wait_for_each_other_and_hold_up_nobody_whose_token_was_good():
    class Slow(Tokens):
        """Looks up what it does not know for as long as the test wants."""

        def __init__(self) -> None:
            self.go_on, self.asked, self.at_once, self.most = threading.Event(), 0, 0, 0

        def check(self, secrets: Sequence[str]) -> list[Principal | None]:
            if secrets == ["all"]:
                return super().check(secrets)
            self.asked, self.at_once = self.asked + 1, self.at_once + 1
            self.most = max(self.most, self.at_once)
            assert self.go_on.wait(60)
            self.at_once -= 1
            return super().check(secrets)

    slow = Slow()
    logins = FlightLogins(KnownTokens(slow, known_s=0.0))  # no answer is good for the next call
    assert logins._principal("all") is not None
    with ThreadPoolExecutor(2 * STRANGERS_MAX) as pool:
        waiting = [pool.submit(logins._principal, f"wrong-{n}") for n in range(2 * STRANGERS_MAX)]
        wait_until(lambda: sum(one.done() for one in waiting) >= STRANGERS_MAX, "those without a place are refused")
        assert logins._principal("all") is not None, "asked for again at once"
        slow.go_on.set()
    refused = [error for one in waiting if (error := one.exception()) is not None]
    assert [type(error) for error in refused] == [LoginsFull] * STRANGERS_MAX
    assert (slow.asked, slow.most) == (STRANGERS_MAX, 1)


def test_a_name_and_a_token_as_password_give_the_header_of_later_calls(serve):
    client = Client(serve(), None)
    header = client.flight.authenticate_basic_token("any", "all")
    client.options = fl.FlightCallOptions(headers=[header])
    assert client.ask("CommandStatementQuery", query="SELECT 1 AS a").to_pydict() == {"a": [1]}


def test_a_login_sees_its_tables_alone(serve):
    client = Client(serve(), "shop")
    names = client.ask("CommandGetTables").column("db_schema_name").to_pylist()
    assert names == ["shop", "shop"]
    assert client.ask("CommandGetDbSchemas").column("db_schema_name").to_pylist() == ["shop"]
    with pytest.raises(fl.FlightServerError):
        client.ask("CommandStatementQuery", query="SELECT * FROM hr.orders")


def test_the_metadata_has_the_schemas_of_the_protocol(serve):
    client = Client(serve())
    found = client.ask("CommandGetTables", include_schema=True, table_name_filter_pattern="ord%")
    assert [found.column(n).to_pylist() for n in ("catalog_name", "db_schema_name", "table_name", "table_type")] == [
        [None, None], ["hr", "shop"], ["orders", "orders"], ["TABLE", "TABLE"]
    ]  # fmt: skip
    assert pa.ipc.read_schema(pa.py_buffer(found.column("table_schema")[0].as_py())).names == ["id", "s"]
    assert client.ask("CommandGetTables", table_types=["VIEW"]).num_rows == 0
    assert client.ask("CommandGetTables", db_schema_filter_pattern="s_op").num_rows == 2
    assert client.ask("CommandGetCatalogs").num_rows == 0
    assert client.ask("CommandGetTableTypes").to_pydict() == {"table_type": ["TABLE"]}
    keys = client.ask("CommandGetPrimaryKeys", db_schema="shop", table="people").to_pylist()
    assert [(one["column_name"], one["key_sequence"]) for one in keys] == [("id", 1)]
    assert client.ask("CommandGetExportedKeys", table="people").num_rows == 0
    info = {one["info_name"]: one["value"] for one in client.ask("CommandGetSqlInfo").to_pylist()}
    assert (info[0], info[3], info[504]) == ("Harness Pipelines", True, '"')
    assert client.ask("CommandGetSqlInfo", info=[3]).to_pylist() == [{"info_name": 3, "value": True}]
    assert client.ask("CommandGetXdbcTypeInfo", data_type=12).column("type_name").to_pylist() == ["VARCHAR"]
    assert client.ask("CommandGetXdbcTypeInfo").num_rows == 12


def test_a_prepared_statement_takes_parameters_and_belongs_to_its_login(serve):
    port = serve()
    client = Client(port)
    made = client.prepare("SELECT id, ? AS word FROM shop.orders WHERE id = ?")
    handle = made.prepared_statement_handle
    assert pa.ipc.read_schema(pa.py_buffer(made.dataset_schema)).names == ["id", "word"]
    assert pa.ipc.read_schema(pa.py_buffer(made.parameter_schema)).names == ["1", "2"]
    for number in (7, 8):
        client.bind(handle, pa.table({"1": ["'; DROP"], "2": [number]}))
        found = client.ask("CommandPreparedStatementQuery", prepared_statement_handle=handle)
        assert found.to_pydict() == {"id": [number], "word": ["'; DROP"]}
    with pytest.raises(fl.FlightServerError, match="one row"):
        client.bind(handle, pa.table({"1": ["a", "b"], "2": [1, 2]}))
    with pytest.raises(fl.FlightServerError, match="not known"):
        Client(port, "shop").ask("CommandPreparedStatementQuery", prepared_statement_handle=handle)
    client.act(
        "ClosePreparedStatement",
        messages.packed("ActionClosePreparedStatementRequest", prepared_statement_handle=handle),
    )
    with pytest.raises(fl.FlightServerError, match="not known"):
        client.ask("CommandPreparedStatementQuery", prepared_statement_handle=handle)


@pytest.mark.parametrize(
    "sql", ["SELECT nme FROM shop.orders", "DROP TABLE x", "SELECT * FROM read_csv('/etc/passwd')", "SELEC"]
)
def test_wrong_and_hostile_sql_is_refused(serve, sql):
    client = Client(serve())
    with pytest.raises(fl.FlightServerError):
        client.info("CommandStatementQuery", query=sql)
    with pytest.raises(fl.FlightServerError):
        client.prepare(sql)
    ticket = messages.packed("TicketStatementQuery", statement_handle=b'{"id": "1", "sql": "%s"}' % sql.encode())
    with pytest.raises(fl.FlightServerError):
        client.flight.do_get(fl.Ticket(ticket), client.options).read_all()


def command_of(name: str) -> fl.FlightDescriptor:
    """A message of Flight SQL that this server does not have."""
    return fl.FlightDescriptor.for_command(any_pb2.Any(type_url=f"{TYPE_URL}{name}", value=b"").SerializeToString())


def put(client: Client, name: str) -> None:
    writer, _ = client.flight.do_put(command_of(name), pa.schema([("a", pa.int64())]), client.options)
    writer.write_table(pa.table({"a": [1]}))
    writer.close()


def info_of(name: str) -> Callable[[Client], object]:
    return lambda client: client.flight.get_flight_info(command_of(name), client.options)


def put_of(name: str) -> Callable[[Client], object]:
    return lambda client: put(client, name)


def act_of(name: str) -> Callable[[Client], object]:
    return lambda client: client.act(name, b"")


def exchanged(client: Client) -> None:
    writer, reader = client.flight.do_exchange(fl.FlightDescriptor.for_command(b"x"), client.options)
    writer.done_writing()
    reader.read_all()


NOT_SERVED: dict[str, Callable[[Client], object]] = {
    "ListFlights": lambda client: list(client.flight.list_flights(b"", client.options)),
    "DoExchange": exchanged,
    **{
        name: info_of(name)
        for name in ("CommandStatementUpdate", "CommandStatementSubstraitPlan", "CommandPreparedStatementUpdate")
    },
    **{name: put_of(name) for name in ("CommandStatementIngest", "CommandGetTables")},
    **{
        name: act_of(name)
        for name in (
            "BeginTransaction",
            "EndTransaction",
            "BeginSavepoint",
            "EndSavepoint",
            "SetSessionOptions",
            "CreatePreparedSubstraitPlan",
            "RenewFlightEndpoint",
        )
    },
    "TicketStatementQuery": lambda client: client.info("TicketStatementQuery", statement_handle=b"{}"),
    "transactions": lambda client: client.info("CommandStatementQuery", query="SELECT 1", transaction_id=b"x"),
}


@pytest.mark.parametrize("name", NOT_SERVED)
def test_a_call_that_is_not_served_is_unimplemented_by_its_name_without_a_trace(serve, name):
    client = Client(serve())
    with capture_logs() as logs, pytest.raises(NotImplementedError, match=rf"{name}\b.* not served|{name} ") as found:
        NOT_SERVED[name](client)
    assert not [word for word in ("Traceback", "File ", "unexpected") if word in str(found.value)]
    assert logs == []
    assert client.ask("CommandStatementQuery", query="SELECT 1 AS a").num_rows == 1


def test_what_is_no_flight_sql_is_refused(serve):
    client = Client(serve())
    for call in (
        lambda: client.flight.get_flight_info(fl.FlightDescriptor.for_command(b"\xff"), client.options),
        lambda: client.flight.do_get(fl.Ticket(b"nothing"), client.options).read_all(),
    ):
        with pytest.raises(fl.FlightServerError):
            call()


def test_a_query_is_cancelled_by_its_login_alone_and_gives_its_place_back(serve):
    port = serve(queries_max=1)
    client = Client(port)
    info = client.info("CommandStatementQuery", query=LONG)
    stream = client.open(info)
    stream.read_chunk()
    body = b"\x0a" + _varint(len(info.serialize())) + info.serialize()
    assert Client(port, "shop").act("CancelFlightInfo", body) == [b"\x08\x03"]
    assert client.act("CancelFlightInfo", body) == [b"\x08\x01"]
    with pytest.raises(fl.FlightError, match="cancelled"):
        while True:
            stream.read_chunk()
    assert client.act("CancelFlightInfo", body) == [b"\x08\x03"]
    assert client.ask("CommandStatementQuery", query="SELECT 1 AS a").num_rows == 1


def test_a_query_that_has_no_row_yet_is_cancelled_and_ends_with_the_server(serve):
    port = serve(queries_max=1)
    client = Client(port)
    info = client.info("CommandStatementQuery", query="SELECT sum(i) FROM range(1000000000000) t(i)")
    body = b"\x0a" + _varint(len(info.serialize())) + info.serialize()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: Client(port).open(info).read_all())
        wait_until(lambda: client.act("CancelFlightInfo", body) == [b"\x08\x01"], "it runs, and is cancelled")
        with pytest.raises(fl.FlightError, match="cancelled"):
            asked.result(60)
    assert client.ask("CommandStatementQuery", query="SELECT 1 AS a").num_rows == 1


def test_a_ticket_that_is_used_twice_at_once_is_two_queries_that_are_both_cancelled(serve):
    client = Client(serve(queries_max=2))
    info = client.info("CommandStatementQuery", query=LONG)
    streams = [client.open(info), client.open(info)]
    for stream in streams:
        stream.read_chunk()
    body = b"\x0a" + _varint(len(info.serialize())) + info.serialize()
    assert client.act("CancelFlightInfo", body) == [b"\x08\x01"]
    for stream in streams:
        with pytest.raises(fl.FlightError, match="cancelled"):
            while True:
                stream.read_chunk()


def test_looking_for_the_columns_of_a_query_waits_for_no_running_one_and_runs_nothing(serve):
    client = Client(serve(queries_max=1, wait_s=0.2))
    stream = client.open(client.info("CommandStatementQuery", query=LONG))
    stream.read_chunk()
    for sql in (f"EXPLAIN ANALYZE {LONG}", f"SELECT sum(i) FROM ({LONG});;"):
        assert client.info("CommandStatementQuery", query=sql).schema.names
        assert client.prepare(sql).prepared_statement_handle
    stream.cancel()


FORGED = (
    b"", b"[]", b"1", b"null", b"\xff", b"[" * 10_000,
    b'{"id": "a"}', b'{"sql": "SELECT 1"}', b'{"id": [], "sql": "SELECT 1"}', b'{"id": "a", "sql": null}',
    b'{"id": "a", "prepared": 3}', b'{"id": "a", "prepared": "\xc3\xa9!"}', b'{"id": "a", "prepared": "\\ud800"}',
    b'{"id": "a", "sql": "\\ud800"}', b'{"id": "a", "sql": "SELECT 1", "more": "b"}',
    b'{"id": "%s", "sql": "SELECT 1"}' % (b"x" * 1000),
)  # fmt: skip


@pytest.mark.parametrize("handle", FORGED, ids=range(len(FORGED)))
def test_a_forged_ticket_is_refused_and_no_error_shows_what_runs_here(serve, handle):
    client = Client(serve())
    ticket = fl.Ticket(messages.packed("TicketStatementQuery", statement_handle=handle))
    with pytest.raises(fl.FlightServerError) as wrong:
        client.flight.do_get(ticket, client.options).read_all()
    assert not [word for word in ("Traceback", "File ", "unexpected") if word in str(wrong.value)]


def test_no_error_of_a_call_shows_a_trace(serve, monkeypatch):
    client = Client(serve())
    handle = client.prepare("SELECT ?").prepared_statement_handle
    command = messages.packed("CommandPreparedStatementQuery", prepared_statement_handle=handle)
    calls = [
        lambda: client.info("CommandStatementQuery", query="SELEC"),
        lambda: client.prepare("SELECT $a"),
        lambda: client.act("CreatePreparedStatement", messages.packed("CommandGetCatalogs")),
        lambda: client.act("ClosePreparedStatement", messages.packed("CommandGetCatalogs")),
        lambda: client.act("CancelQuery", messages.packed("ActionCancelQueryRequest", info=b"x")),
        lambda: client.act("CancelFlightInfo", b"\x0a\x01x"),
        lambda: client.bind(handle, pa.table({"a": [1, 2]})),
        lambda: client.bind(handle, pa.table({"a": ["x" * (2 << 20)]})),
        lambda: client.flight.get_flight_info(fl.FlightDescriptor.for_path("a"), client.options),
        lambda: client.flight.get_flight_info(fl.FlightDescriptor.for_command(command), client.options),
    ]
    for call in calls:
        with pytest.raises(fl.FlightServerError) as wrong:
            call()
        assert "Traceback" not in str(wrong.value)
        assert "unexpected" not in str(wrong.value)

    def broken(*_: object) -> None:
        raise ValueError("postgresql://reader@10.9.8.7")

    monkeypatch.setattr(FakeSql, "schema", broken)
    with capture_logs() as logs, pytest.raises(fl.FlightServerError, match="unexpected error") as unknown:
        client.info("CommandStatementQuery", query="SELECT 1")
    assert "10.9.8.7" not in str(unknown.value)
    [line] = [line for line in logs if line["event"] == "serve.broken"]
    assert str(line["id"]) in str(unknown.value)


class Away(Tokens):
    """The ledger cannot be asked, and says where it is."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def check(self, secrets: Sequence[str]) -> list[Principal | None]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TryAgain("10.9.8.7:5432 does not answer harness_reader"), fl.FlightUnavailableError),
        (HarnessError("10.9.8.7:5432 has no role harness_reader"), fl.FlightInternalError),
    ],
)
def test_a_stranger_learns_nothing_of_what_is_behind_the_server(error, kind):
    logins = FlightLogins(KnownTokens(Away(error)))
    with pytest.raises(kind) as told:
        logins.start_call(_Call(), {"authorization": ["Bearer x"]})
    assert "10.9.8.7" not in str(told.value)
    assert "harness_reader" not in str(told.value)
    assert told.value.__cause__ is None


def test_a_flood_of_strangers_makes_a_line_at_once_and_one_a_minute():
    later: list[Callable[[], None]] = []
    strangers = Strangers(later=lambda seconds, call: later.append(call))
    logins = FlightLogins(KnownTokens(Tokens()), strangers)

    def flood(count: int) -> None:
        for _ in range(count):
            with pytest.raises(fl.FlightUnauthenticatedError):
                logins.start_call(_Call(), {"user-agent": ["a\nb"]})

    with capture_logs() as logs:
        flood(500)
        later.pop()()
        flood(500)
        later.pop()()
        later.pop()()
        flood(1)
    assert [line["event"] for line in logs] == [
        "serve.unknown", "serve.unknown_more", "serve.unknown_more", "serve.unknown"
    ]  # fmt: skip
    assert [line["requests"] for line in logs[1:3]] == [499, 500]
    assert logs[0]["agent"] == "a\\nb"


class _Call:
    method = "DO_GET"


@pytest.mark.parametrize(
    ("name", "pattern", "is_like"),
    [
        ("orders", None, True),
        ("orders", "%", True),
        ("orders", "or%s", True),
        ("orders", "%d_r%", True),
        ("orders", "o%x", False),
        ("orders", "order", False),
        ("orders", "orders_", False),
        ("a_b", "a\\_b", True),
        ("axb", "a\\_b", False),
        ("a%", "a\\%", True),
        ("a\\", "a\\\\", True),
        ("", "", True),
        ("", "%%", True),
        ("a.b", "a_b", True),
        ("a" * 255, "%a" * 200 + "b", False),
        ("a" * 255, "%_" * 200 + "a%", True),
    ],
)
def test_a_pattern_is_that_of_sql_and_takes_no_time(name, pattern, is_like):
    assert like(name, pattern) is is_like


def test_only_so_many_queries_run_at_once(serve):
    client = Client(serve(queries_max=1, wait_s=0.2))
    stream = client.open(client.info("CommandStatementQuery", query=LONG))
    stream.read_chunk()
    with pytest.raises(fl.FlightUnavailableError, match="all places"):
        client.ask("CommandStatementQuery", query="SELECT 1")
    stream.cancel()
    del stream
    deadline = time.monotonic() + 60
    while True:
        try:
            assert client.ask("CommandStatementQuery", query="SELECT 1 AS a").num_rows == 1
            return
        except fl.FlightUnavailableError:
            assert time.monotonic() < deadline


def test_a_query_ends_after_its_time_also_when_its_client_takes_nothing(serve):
    client = Client(serve(queries_max=1, time_s=3.0))
    stream = client.open(client.info("CommandStatementQuery", query=LONG))
    stream.read_chunk()
    assert client.ask("CommandStatementQuery", query="SELECT 1 AS a").num_rows == 1, "within the wait for a place"
    with pytest.raises(fl.FlightError, match="longer than 3 s"):
        while True:
            stream.read_chunk()


@pytest.mark.parametrize("sql", ["SELECT list(i) FROM range(100000000) t(i)", "SELECT repeat('x', 1000000000) AS x"])
def test_the_memory_of_a_query_is_bounded_and_the_server_goes_on(serve, sql):
    client = Client(serve(memory_bytes=64 << 20))
    with pytest.raises(fl.FlightServerError, match=r"64 MiB.*--flight-memory"):
        client.ask("CommandStatementQuery", query=sql)
    assert client.ask("CommandStatementQuery", query="SELECT 1 AS a").num_rows == 1


def test_wide_rows_come_in_messages_that_clients_take(serve):
    client = Client(serve())
    stream = client.open(client.info("CommandStatementQuery", query="SELECT repeat('x', 10000) AS x FROM range(2000)"))
    sizes = [chunk.data.nbytes for chunk in stream]
    assert sum(sizes) > 20_000_000
    assert max(sizes) < 8 << 20


def _varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])
