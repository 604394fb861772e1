"""A driver of Flight SQL, ADBC's, at a running `harness serve --flight`: queries, parameters, names and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from adbc_driver_flightsql import DatabaseOptions, dbapi
from adbc_driver_manager import Error, OperationalError, ProgrammingError

import harness_pipelines as hp
from harness_pipelines_tests.integration.serve.server import Served, serving, token_for
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import TableRig


@pytest.fixture(scope="module")
def served(harness: hp.Harness, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(harness, tmp_path_factory.mktemp("serve"), "--flight", "0", "--flight-timeout", "2m") as found:
        yield found


def connected(served: Served, token: str | None = None) -> Any:
    options = {DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {token or served.token}"}
    assert served.flight is not None
    return closing(dbapi.connect(served.flight, db_kwargs=options, autocommit=True))


@pytest.fixture
def cursor(served: Served) -> Iterator[Any]:
    with connected(served) as connection, connection.cursor() as made:
        yield made


@pytest.fixture
def rig(harness: hp.Harness, kafka: KafkaRig) -> TableRig:
    made = TableRig(harness, kafka)
    made.produce(50)
    made.ingest()
    return made


def test_each_query_sees_what_is_readable_at_its_moment(rig: TableRig, cursor: Any):
    def ids() -> list[tuple[int]]:
        cursor.execute(f"SELECT id FROM {rig.name} ORDER BY id")
        return list(cursor.fetchall())

    assert ids() == [(i,) for i in range(100)]
    rig.produce(10)
    rig.ingest()
    assert ids() == [(i,) for i in range(120)]
    rig.tier()
    rig.produce(5)
    rig.ingest()
    assert ids() == [(i,) for i in range(130)], "some in the lake, some in the buffer"


def test_parameters_are_bound(rig: TableRig, cursor: Any):
    cursor.execute(f"SELECT s FROM {rig.name} WHERE id = ?", [7])
    assert cursor.fetchall() == [("row 7",)]
    cursor.execute(f"SELECT count(*) FROM {rig.name} WHERE id < ? AND n >= ?", [50, 10])
    assert cursor.fetchall() == [(40,)]


def test_a_client_finds_tables_and_columns_by_their_names(rig: TableRig, served: Served):
    with connected(served) as connection:
        namespace, _, short = rig.name.partition(".")
        listed = connection.adbc_get_objects(db_schema_filter=namespace, table_name_filter=short).read_all().to_pylist()
        [schema] = [one for catalog in listed for one in catalog["catalog_db_schemas"]]
        [table] = schema["db_schema_tables"]
        columns = [column["column_name"] for column in table["table_columns"]]
        assert (schema["db_schema_name"], table["table_name"]) == (namespace, short)
        assert columns[:3] == ["id", "n", "s"]
        assert connection.adbc_get_table_schema(short, db_schema_filter=namespace).names == columns
        assert connection.adbc_get_info()["vendor_name"].lower().startswith("harness")


def test_rows_come_as_arrow_as_pandas_and_batch_by_batch(rig: TableRig, cursor: Any):
    cursor.execute(f"SELECT id, s FROM {rig.name}")
    assert cursor.fetch_arrow_table().num_rows == 100
    cursor.execute(f"SELECT id, s FROM {rig.name}")
    assert sorted(cursor.fetch_df()["id"]) == list(range(100))
    cursor.execute("SELECT i FROM range(1000000) t(i)")
    assert sum(batch.num_rows for batch in cursor.fetch_record_batch()) == 1_000_000


@pytest.mark.parametrize(
    "sql",
    ["DROP TABLE {}", "DELETE FROM {}", "INSERT INTO {} VALUES (1)", "CREATE TABLE x AS SELECT 1", "SELECT nme FROM {}",
     "COPY {} TO 'x.csv'", "FROM read_csv('/etc/passwd')", "ATTACH 'x.db'", "SELECT 1; SELECT 2"],
)  # fmt: skip
def test_what_writes_or_is_wrong_is_refused_and_the_connection_stays(rig: TableRig, cursor: Any, sql: str):
    with pytest.raises(Error):
        cursor.execute(sql.format(rig.name))
        cursor.fetchall()
    cursor.execute("SELECT 1")
    assert cursor.fetchall() == [(1,)]


def test_a_token_that_is_none_is_refused_and_one_for_other_tables_sees_none(
    rig: TableRig, served: Served, harness: hp.Harness
):
    with pytest.raises((OperationalError, ProgrammingError), match=r"(?i)token"), connected(served, "nope") as none:
        none.cursor().execute("SELECT 1")
    with connected(served, token_for(harness, ["other.*"])) as other, other.cursor() as cursor:
        with pytest.raises(Error, match=rig.name.partition(".")[2]):
            cursor.execute(f"SELECT count(*) FROM {rig.name}")
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]
