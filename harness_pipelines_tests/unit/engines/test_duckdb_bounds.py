"""What a hostile statement cannot do: hide what it reads, run while it is looked at, or end as no error of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from harness_pipelines.engines.duckdb.database import NAMESPACES_TAKEN, Limits, QueryTooSlow
from harness_pipelines.engines.duckdb.session import Session
from harness_pipelines.engines.duckdb.statements import TEXT_BYTES_MAX, StatementRefused, ends
from harness_pipelines.engines.duckdb.tables import TableDataset
from harness_pipelines.ports.errors import QueryFailed
from harness_pipelines.protocol.reading.selection import ReadColumn, Selection
from harness_pipelines.spec.types import Primitive

NAMES = ('a"b', "c.d", "Ünï", "select", "x y", "a'b", "a;b")
ENDLESS = "SELECT sum(i) FROM range(1000000000000) t(i)"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session(Limits(memory_bytes=256 << 20, threads=1)) as made:
        yield made


def dataset() -> TableDataset:
    """One row: the columns `NAMES`, each with its number."""
    columns = [ReadColumn(name=n, type=Primitive("long"), required=True, field_id=i) for i, n in enumerate(NAMES)]

    def reads(selection: Selection) -> Iterator[pa.RecordBatch]:
        names = list(selection.columns or ())
        yield pa.record_batch([pa.array([NAMES.index(name)], pa.int64()) for name in names], names=names)

    return TableDataset(columns, reads)


def ask(session: Session, table: str, sql: str) -> list[dict[str, object]]:
    with session.tables({table: dataset()}), session.run(session.read(sql)) as found:
        return list(found.read_all().to_pylist())


@pytest.mark.parametrize(
    "sql",
    [
        # Comments nest: what runs is the second EXPLAIN.
        "/* /* */ explain SELECT 1 -- */ explain analyze SELECT * FROM read_text('/etc/passwd')",
        "/* /* */ explain SELECT 1 -- */ explain analyze CREATE TABLE t AS SELECT 1",
        "EXPLAIN (SELECT * FROM read_text('/etc/passwd'))",
        "EXPLAIN (ANALYZE) SELECT current_setting('temp_directory')",
        "EXPLAIN (FORMAT json) SELECT current_setting('temp_directory')",
        "EXPLAIN ANALYZE (SELECT current_setting('temp_directory'))",
        # A CTE is not seen outside of its query, nor in itself.
        "SELECT * FROM duckdb_tables, (WITH duckdb_tables AS (SELECT 1) SELECT * FROM duckdb_tables)",
        "WITH Duckdb_Views AS (SELECT * FROM duckdb_views) SELECT * FROM duckdb_views",
        "WITH pg_class AS (SELECT * FROM pg_class) SELECT * FROM pg_class",
        "SELECT 'a'\0; DROP TABLE x",
        "SELECT " + "1 + " * 900 + "1",
        "SELECT " + "[" * 900 + "1" + "]" * 900,
        "SELECT " + "(" * 100_000,
        "SELECT 1" + " UNION ALL SELECT 1" * (TEXT_BYTES_MAX // 18),
    ],
    ids=lambda sql: sql[:60],
)
def test_what_a_statement_hides_is_found(session, sql):
    with pytest.raises(StatementRefused):
        session.read(sql)


@pytest.mark.parametrize(
    ("sql", "read"),
    [
        ("EXPLAIN (FROM shop.orders)", ["shop.orders"]),
        ("EXPLAIN (ANALYZE, FORMAT json) SELECT * FROM shop.orders", ["shop.orders"]),
        ("/* a /* b */ */ -- c\n explain/**/(analyze, FORMAT json)(SELECT * FROM shop.orders);", ["shop.orders"]),
        ("EXPLAIN VALUES (1)", []),
    ],
)
def test_the_tables_of_an_explained_query_are_known(session, sql, read):
    assert list(session.read(sql).reads) == read


def test_a_list_of_many_values_and_many_conditions_are_no_depth(session):
    many = range(2000)
    session.read(f"SELECT 1 WHERE 1 IN ({', '.join(map(str, many))})")
    session.read(f"SELECT 1 WHERE {' OR '.join(f'1 = {i}' for i in many)}")
    session.read("SELECT 1" + " UNION ALL SELECT 1" * 500)


def test_a_statement_whose_tree_takes_too_much_memory_is_refused():
    with Session(Limits(memory_bytes=16 << 20, threads=1)) as small, pytest.raises(StatementRefused):
        small.read("SELECT 1" + " UNION ALL SELECT 1" * 20_000)


@pytest.mark.parametrize("sql", [f"EXPLAIN ANALYZE {ENDLESS}", f"{ENDLESS};;", f"{ENDLESS} ; -- the end\n;"])
def test_the_columns_of_a_query_are_found_without_running_it(session, sql):
    names = session.schema(session.read(sql)).names
    assert names == (["explain_key", "explain_value"] if "EXPLAIN" in sql else ["sum(i)"])


def test_the_columns_of_an_explained_query_are_those_that_it_has(session):
    statement = session.read("EXPLAIN SELECT 1")
    told = session.schema(statement)
    with session.run(statement) as found:
        assert found.schema.equals(told)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 AS a, 2 AS a, 'x' AS b",
        'FROM shop.orders a JOIN shop.orders b USING ("a""b")',
        "DESCRIBE shop.orders",
        "SUMMARIZE SELECT 1 AS a, 2 AS b",
        "PIVOT (SELECT 1 AS a, 2 AS b) ON a IN (1)",
        "WITH t AS (SELECT 1 AS x) FROM t LIMIT 5",
        "SELECT 1 AS a_1, 2 AS a, 3 AS A -- the end",
    ],
)
def test_the_columns_that_are_told_are_those_that_come(session, sql):
    statement = session.read(sql)
    with session.tables({"shop.orders": dataset()}), session.run(statement) as found:
        come = found.schema
        found.read_all()
    with session.tables({"shop.orders": dataset()}):
        assert session.schema(statement).names == come.names


def test_reading_a_statement_and_finding_its_columns_take_no_longer_than_a_query_may():
    with Session(Limits(threads=1)) as session:
        statement = session.read("SELECT 1")
        session._limits = Limits(threads=1, time_s=0.001)
        for call in (lambda: session.schema(statement), lambda: session.read(f"SELECT {'(' * 300}1{')' * 300}")):
            session.close()  # another process is started within the time
            with pytest.raises(QueryTooSlow):
                call()


def test_a_namespace_called_as_the_schema_that_every_database_has_is_read(session):
    for _ in range(2):  # what was made for the first query is gone
        assert ask(session, "main.orders", 'SELECT main.orders."c.d" FROM main.orders') == [{"c.d": 1}]
        assert ask(session, "main.people", 'SELECT "c.d" FROM main.people') == [{"c.d": 1}]


@pytest.mark.parametrize("namespace", sorted(NAMESPACES_TAKEN))
def test_a_namespace_that_duckdb_takes_for_its_own_is_refused_by_name(session, namespace):
    with pytest.raises(StatementRefused, match=namespace):
        ask(session, f"{namespace}.orders", f"SELECT * FROM {namespace}.orders")
    assert ask(session, "shop.orders", 'SELECT "c.d" FROM shop.orders') == [{"c.d": 1}]


@pytest.mark.parametrize("name", NAMES)
def test_columns_of_any_name_are_read_and_asked_for(session, name):
    quoted = '"' + name.replace('"', '""') + '"'
    assert ask(session, "shop.orders", f"SELECT {quoted} FROM shop.orders WHERE {quoted} >= 0") == [
        {name: NAMES.index(name)}
    ]


@pytest.mark.parametrize(
    "value",
    ["'101'::BIT", "'1'::UHUGEINT", "TIMETZ '12:00:00+02'", "'1'::BIGNUM", "union_value(a := 1)", "[{'a': '1'::BIT}]"],
)
def test_values_that_arrow_would_change_are_refused_by_their_type(session, value):
    for one in (f"SELECT {value} AS x", f"SELECT map(['a'], [{value}]) AS x"):
        statement = session.read(one)
        with pytest.raises(QueryFailed, match=r"x has values of the type .*VARCHAR"), session.run(statement) as found:
            found.read_all()
        with pytest.raises(QueryFailed, match="VARCHAR"):
            session.schema(statement)


def test_what_is_no_text_has_no_end():
    with pytest.raises(StatementRefused):
        ends("SELECT '\udcff';")
