"""SQL in this process: what DuckDB pushes into a scan, which statements run, and what a query may take."""

from __future__ import annotations

import math
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from harness_pipelines.engines.duckdb.database import Database, Limits, QueryTooLarge, QueryTooSlow
from harness_pipelines.engines.duckdb.filters import pushed
from harness_pipelines.engines.duckdb.session import Session
from harness_pipelines.engines.duckdb.statements import StatementRefused
from harness_pipelines.engines.duckdb.tables import TableDataset
from harness_pipelines.errors import UsageError
from harness_pipelines.ports.errors import QueryFailed
from harness_pipelines.protocol.reading.selection import ReadColumn, Selection
from harness_pipelines.spec.arrow import to_arrow
from harness_pipelines.spec.predicate import TRUE
from harness_pipelines.spec.types import parse_type

TYPES = {
    "id": "long",
    "price": "double",
    "ratio": "float",
    "cost": "decimal(10,2)",
    "day": "date",
    "at": "timestamptz",
    "then": "timestamp",
    "clock": "time",
    "name": "string",
    "ok": "boolean",
    "raw": "binary",
    "key": "uuid",
    "address": "struct<city: string, key: uuid>",
    "keys": "list<uuid>",
    "by name": "map<string, uuid>",
}
COLUMNS = [
    ReadColumn(name=name, type=parse_type(kind), required=False, field_id=number)
    for number, (name, kind) in enumerate(TYPES.items())
]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEYS = [uuid.UUID(int=number) for number in range(4)]


def row(number: int, price: float | None) -> dict[str, object]:
    key = KEYS[number].bytes
    return {
        "id": number,
        "price": price,
        "ratio": price,
        "cost": Decimal(number) / 4,
        "day": date(2026, 1, 1 + number),
        "at": NOON.replace(hour=number),
        "then": NOON.replace(hour=number, tzinfo=None),
        "clock": NOON.replace(hour=number).time(),
        "name": f"n{number}",
        "ok": number % 2 == 0,
        "raw": bytes([number]),
        "key": key,
        "address": {"city": f"c{number}", "key": key},
        "keys": [key],
        "by name": [("a", key)],
    }


ROWS = pa.Table.from_pylist(
    [row(0, -0.0), row(1, 1.5), row(2, math.nan), row(3, math.inf), dict.fromkeys(TYPES)],
    schema=pa.schema([column.arrow for column in COLUMNS]),
)


class Reads:
    """Gives `ROWS` as a read would, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[Selection] = []

    def __call__(self, selection: Selection) -> Iterator[pa.RecordBatch]:
        self.asked.append(selection)
        found = ROWS if selection.matching == TRUE else ROWS.filter(to_arrow(selection.matching))
        yield from found.select(list(selection.columns or ())).to_batches(max_chunksize=2)


@pytest.fixture
def reads() -> Reads:
    return Reads()


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session(Limits(memory_bytes=256 << 20, threads=2)) as made:
        yield made


def ask(
    session: Session, reads: Callable[[Selection], Iterator[pa.RecordBatch]], sql: str, *parameters: object
) -> list[tuple[object, ...]]:
    statement = session.read(sql)
    with session.tables({"shop.orders": TableDataset(COLUMNS, reads)}), session.run(statement, parameters) as found:
        return [tuple(one.values()) for one in found.read_all().to_pylist()]


# -- pushdown ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("id > 1", [2, 3]),
        ("id BETWEEN 1 AND 2", [1, 2]),
        ("id IN (0, 3)", [0, 3]),
        ("id <> 2", [0, 1, 3]),
        ("id IS NULL", [None]),
        ("price > 1", [1, 2, 3]),  # NaN is above all numbers
        ("price >= 1.5 AND price < 'inf'::DOUBLE", [1]),
        ("price = 0", [0]),
        ("price = 'nan'::DOUBLE", [2]),
        ("price < 'nan'::DOUBLE", [0, 1, 3]),
        ("NOT price <= 1.5", [2, 3]),
        ("ratio > 2", [2, 3]),
        ("cost = 0.25", [1]),
        ("cost > 0.3", [2, 3]),
        ("day <= DATE '2026-01-02'", [0, 1]),
        ("\"at\" > TIMESTAMPTZ '2026-01-01 01:00:00+00'", [2, 3]),
        ("\"then\" = TIMESTAMP '2026-01-01 02:00:00'", [2]),
        ("clock < TIME '01:00:00'", [0]),
        ("name >= 'n2'", [2, 3]),
        ("name LIKE 'n1%'", [1]),
        ("ok", [0, 2]),
        ("raw = '\\x01'::BLOB", [1]),
        (f"key = '{KEYS[3]}'", [3]),
        ("address.city = 'c2'", [2]),
        ("id = 1 OR name = 'n3'", [1, 3]),
        ("id = 1 OR price IS NULL", [1, None]),
        ("id + 1 = 2 AND name LIKE '%1'", [1]),
    ],
)
def test_a_filter_keeps_the_rows_that_duckdb_keeps(session, reads, where, ids):
    found = [one for (one,) in ask(session, reads, f"SELECT id FROM shop.orders WHERE {where}")]
    assert sorted(found, key=str) == sorted(ids, key=str)
    session_rows = [one for (one,) in ask(session, reads, f"SELECT id FROM (FROM shop.orders OFFSET 0) WHERE {where}")]
    assert sorted(session_rows, key=str) == sorted(ids, key=str)


def test_only_the_columns_and_rows_that_a_query_needs_are_read(session, reads):
    ask(session, reads, "SELECT name FROM shop.orders WHERE id > 1 AND price < 2")
    [asked] = reads.asked
    assert set(asked.columns) <= {"name", "id", "price"}
    assert ROWS.filter(to_arrow(asked.matching)).num_rows == 0


def test_every_type_comes_back_as_it_is(session, reads):
    [found] = ask(session, reads, "SELECT * FROM shop.orders WHERE id = 1")
    key = str(KEYS[1])
    expected = {**row(1, 1.5), "key": key, "address": {"city": "c1", "key": key}, "keys": [key]}
    assert dict(zip(TYPES, found, strict=True)) == {**expected, "by name": [("a", key)]}


@pytest.mark.parametrize("name", TYPES)
def test_what_duckdb_learns_while_a_query_runs_can_be_pushed_of_every_type(session, reads, name):
    joined = f'SELECT count(*) FROM shop.orders a JOIN shop.orders b ON a."{name}" = b."{name}" AND b.id = 1'
    assert ask(session, reads, joined) == [(2 if name == "ok" else 1,)]
    first = f'SELECT id FROM shop.orders WHERE id IS NOT NULL ORDER BY "{name}" LIMIT 1'
    assert len(ask(session, reads, first)) == 1


def test_a_call_that_is_not_known_is_left_to_arrow():
    types = {"id": parse_type("long"), "name": parse_type("string")}
    odd = pc.equal(pc.utf8_length(pc.field("name")), 2)
    both = pushed((pc.field("id") > 1) & odd, types)
    assert (both.known == pushed(pc.field("id") > 1, types).known) and both.rest is not None
    either = pushed((pc.field("id") > 1) | odd, types)
    assert either.known == TRUE and either.rest is not None
    assert pushed(pc.field("id").isin([1, None]), types).rest is not None
    assert pushed(None, types).rest is None


# -- what may run -----------------------------------------------------------------------------------------------------

#: What reaches for something outside, or changes what is locked.
OUTSIDE = (
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/hostname')",
    "SELECT * FROM read_blob('/etc/hostname')",
    "SELECT * FROM read_json('/etc/passwd')",
    "SELECT * FROM read_parquet('s3://bucket/x.parquet')",
    "SELECT * FROM parquet_metadata('https://example.com/x.parquet')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "FROM '/etc/passwd'",
    "FROM 'https://example.com/x.csv'",
    'SELECT * FROM "/tmp/x.parquet"',
    "WITH a AS (SELECT * FROM glob('/*')) SELECT * FROM a",
    "SELECT (SELECT count(*) FROM read_csv('/etc/passwd'))",
    "SELECT 1 WHERE EXISTS (FROM read_text('/etc/passwd'))",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM pragma_table_info('x')",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM pandas_scan(1)",
    "SELECT * FROM json_execute_serialized_sql('{}')",
    "SELECT * FROM sqlite_scan('a', 'b')",
    "SELECT * FROM postgres_scan('host=x', 'a', 'b')",
    "SELECT getenv('HOME')",
    "COPY (SELECT 1) TO '/tmp/x.csv'",
    "COPY shop.orders FROM '/etc/passwd'",
    "ATTACH '/tmp/x.db'",
    "DETACH other",
    "USE other",
    "INSTALL httpfs",
    "LOAD httpfs",
    "FORCE INSTALL httpfs FROM 'http://example.com'",
    "SET memory_limit = '100GB'",
    "SET GLOBAL lock_configuration = false",
    "RESET memory_limit",
    "CREATE SECRET (TYPE s3)",
    "INSERT INTO shop.orders VALUES (1)",
    "UPDATE shop.orders SET id = 1",
    "DELETE FROM shop.orders",
    "DROP VIEW shop.orders",
    "ALTER TABLE shop.orders ADD COLUMN x INT",
    "EXPORT DATABASE '/tmp/x'",
    "IMPORT DATABASE '/tmp/x'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '/tmp/x'",
    "SELECT * FROM shop.orders AT (VERSION => 1)",
    "SELEC 1",
)
#: What shows or changes this database alone, or is no query.
INSIDE = (
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('shop.orders')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM enable_logging()",
    "SELECT current_setting('temp_directory')",
    "SELECT write_log('x')",
    "ATTACH ':memory:' AS other",
    "PRAGMA enable_profiling",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "CALL enable_logging()",
    "CREATE TABLE t (a INT)",
    "CREATE TEMP TABLE t AS SELECT 1",
    "CREATE MACRO m() AS TABLE SELECT * FROM glob('/*')",
    "CHECKPOINT",
    "BEGIN",
    "PREPARE p AS SELECT 1",
    "EXPLAIN ANALYZE SELECT * FROM read_csv('/etc/passwd')",
    "SELECT 1; SELECT 2",
    "SHOW TABLES",
    "",
    "SELECT '\ud800'",
)


@pytest.mark.parametrize("sql", OUTSIDE + INSIDE)
def test_nothing_but_a_query_over_our_tables_runs(session, sql):
    with pytest.raises((StatementRefused, UsageError)):
        statement = session.read(sql)
        if unknown := set(statement.reads) - {"shop.orders"}:
            raise StatementRefused(f"{unknown}: names are looked up in the ledger, `app.sql` refuses what is not there")
        pytest.fail(f"{sql} was taken")


@pytest.mark.parametrize("sql", OUTSIDE)
def test_the_database_reaches_nothing_even_without_the_check(tmp_path, sql):
    with pytest.raises((duckdb.Error, RuntimeError)):
        Database(Limits(threads=1), str(tmp_path)).connection.execute(sql).fetchall()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "VALUES (1)",
        "FROM shop.orders",
        "TABLE shop.orders",
        "WITH t AS (SELECT * FROM shop.orders) SELECT * FROM t",
        "WITH RECURSIVE t AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM t WHERE i < 3) SELECT * FROM t",
        "SELECT * FROM range(3), unnest([1])",
        "DESCRIBE shop.orders",
        "SUMMARIZE SELECT id FROM shop.orders",
        "EXPLAIN SELECT * FROM shop.orders",
        "-- a comment\nEXPLAIN ANALYZE SELECT 1",
        "PIVOT shop.orders ON ok IN (true, false) USING count(*)",
        "SELECT * FROM shop.orders USING SAMPLE 1 ROWS;",
    ],
)
def test_queries_run(session, reads, sql):
    assert ask(session, reads, sql)


def test_parameters_are_values(session, reads):
    assert ask(session, reads, "SELECT id FROM shop.orders WHERE name = ? OR id = ? ORDER BY 1", "n1", 3) == [
        (1,),
        (3,),
    ]
    assert ask(session, reads, "SELECT ?", "'; DROP TABLE x") == [("'; DROP TABLE x",)]
    assert session.read("SELECT $2, $1, $10").parameters == ("1", "2", "10")


def test_pivot_without_values_says_what_to_write(session):
    with pytest.raises(StatementRefused, match=r"IN \(1, 2\)"):
        session.read("PIVOT shop.orders ON name USING sum(id)")


# -- limits and ends --------------------------------------------------------------------------------------------------

LONG = "SELECT count(*) FROM range(1000000000000) t(i), range(10) WHERE i % 3 = random()"


def test_a_query_ends_after_its_time(reads):
    with Session(Limits(time_s=1.5)) as session:
        with pytest.raises(QueryTooSlow, match=r"1\.5 s"):
            ask(session, reads, LONG)
        assert ask(session, reads, "SELECT 1") == [(1,)]


def test_a_result_that_nobody_takes_ends_after_its_time(reads):
    with (
        Session(Limits(time_s=0.5)) as session,
        session.run(session.read("SELECT * FROM range(1e12::BIGINT)")) as found,
        pytest.raises(QueryTooSlow),
    ):
        for _ in found:
            pass


def test_what_does_not_fit_is_refused_and_what_can_goes_to_a_folder_that_ends_with_the_session(reads):
    with Session(Limits(memory_bytes=64 << 20, threads=1)) as session:
        with pytest.raises(QueryTooLarge, match="64 MiB"):
            ask(session, reads, "SELECT list(i) FROM range(100000000) t(i)")
        sql = "SELECT max(n) FROM (SELECT row_number() OVER (ORDER BY hash(i)) n FROM range(3000000) t(i))"
        assert ask(session, reads, sql) == [(3_000_000,)]
        assert session._child is not None
        spill = Path(session._child.spill)
        assert spill.is_dir()
    assert not spill.exists()


def test_what_is_wrong_is_said_as_duckdb_says_it(session, reads):
    with pytest.raises(QueryFailed, match='"nme" not found'):
        ask(session, reads, "SELECT nme FROM shop.orders")


@pytest.mark.parametrize("at", ["the first batch", "a later batch", "the end of the scan"])
def test_a_signal_at_any_moment_ends_a_query_and_the_session_answers_the_next_one(session, at):
    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def reads(selection: Selection) -> Iterator[pa.RecordBatch]:
        for number in range(100):
            if (at, number) in (("the first batch", 0), ("a later batch", 50)):
                interrupt()
            yield from ROWS.select(list(selection.columns or ())).to_batches()
        if at == "the end of the scan":  # what follows is DuckDB's alone, and makes no row
            interrupt()

    never = "SELECT i FROM shop.orders, range(1000000000000) t(i) WHERE t.i % 1000003 = -1"
    with pytest.raises(KeyboardInterrupt):
        ask(session, reads, never)
    assert ask(session, reads, "SELECT 1") == [(1,)]


def test_an_error_of_a_read_keeps_its_kind(session):
    class Gone(UsageError):
        """A file is missing."""

    def reads(selection: Selection) -> Iterator[pa.RecordBatch]:
        yield from ROWS.select(list(selection.columns or ())).to_batches()
        raise Gone("the file is not there")

    with pytest.raises(Gone, match="not there"):
        ask(session, reads, "SELECT count(*) FROM shop.orders")


def test_a_read_is_ended_when_the_query_needs_no_more(session):
    ended = []

    def reads(selection: Selection) -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield from ROWS.select(list(selection.columns or ())).to_batches()
        finally:
            ended.append(True)

    assert len(ask(session, reads, "SELECT id FROM shop.orders LIMIT 7")) == 7
    assert ended == [True]
