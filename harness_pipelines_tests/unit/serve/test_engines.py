"""PyIceberg and DuckDB at a served table, as their users attach it: they list, load, scan, and are refused a write."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError, NoSuchNamespaceError, NoSuchTableError, OAuthError, UnauthorizedError
from pyiceberg.table import Table
from structlog.testing import capture_logs

from harness_pipelines.errors import TryAgain
from harness_pipelines.serve.server import listening, serving, url_of
from harness_pipelines.serve.storage import Storage, handed_out
from harness_pipelines.serve.values import CutAnswer
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.engines import duckdb_with_iceberg
from harness_pipelines_tests.served import ALL, SHOP, MemoryCatalog, application
from harness_pipelines_tests.store import moto_store

TABLE: Any = SimpleNamespace(table_id=1, name="shop.orders")
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})


@dataclass
class Lake:
    """Tables of PyIceberg in a folder, each served as it is now."""

    own: SqlCatalog
    served: MemoryCatalog
    url: str

    def make(self, name: str, rows: pa.Table = ROWS) -> Table:
        self.own.create_namespace_if_not_exists(name.partition(".")[0])
        made = self.own.create_table(name, rows.schema)
        made.append(rows)
        self.serve(name)
        return made

    def append(self, name: str, rows: pa.Table = ROWS) -> None:
        self.own.load_table(name).append(rows)
        self.serve(name)

    def serve(self, name: str) -> None:
        table = self.own.load_table(name)
        snapshot = table.current_snapshot()
        assert snapshot is not None
        place = Path(table.metadata_location.removeprefix("file://"))
        self.served.cuts[name] = CutAnswer(
            snapshot_id=snapshot.snapshot_id, metadata_location=table.metadata_location, metadata=place.read_bytes()
        )


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    own = SqlCatalog("own", uri=f"sqlite:///{tmp_path}/own.db", warehouse=(tmp_path / "lake").as_uri())
    served = MemoryCatalog({})
    with listening("127.0.0.1", 0) as listener, serving(application(served), listener):
        found = Lake(own=own, served=served, url=url_of(listener, host="127.0.0.1", tls=False))
        found.make("shop.orders")
        found.make("shop.payments")
        found.make("bank.ledger")
        yield found
    own.close()


# -- PyIceberg ----------------------------------------------------------------------------------------------------


def iceberg(lake: Lake, **properties: str) -> RestCatalog:
    found = load_catalog("harness", type="rest", uri=lake.url, **(properties or {"token": ALL}))
    assert isinstance(found, RestCatalog)
    return found


def test_pyiceberg_lists_loads_and_scans(lake: Lake):
    catalog = iceberg(lake)
    assert catalog.list_namespaces() == [("bank",), ("shop",)]
    assert catalog.list_namespaces("shop") == []
    assert catalog.namespace_exists("shop")
    assert not catalog.namespace_exists("none")
    assert catalog.list_tables("shop") == [("shop", "orders"), ("shop", "payments")]
    assert catalog.list_views("shop") == []
    assert catalog.table_exists("shop.orders")
    assert not catalog.table_exists("shop.none")
    table = catalog.load_table("shop.orders")
    assert table.scan().to_arrow().to_pylist() == ROWS.to_pylist()
    assert table.scan(row_filter="id > 1").count() == 2


def test_pyiceberg_sees_the_newest_cut_with_each_load(lake: Lake):
    catalog = iceberg(lake)
    table = catalog.load_table("shop.orders")
    lake.append("shop.orders")
    assert table.scan().count() == 3, "what is loaded stays as it is"
    assert table.refresh().scan().count() == 6


def test_pyiceberg_is_refused_a_write(lake: Lake):
    catalog = iceberg(lake)
    for write in (
        lambda: catalog.create_namespace("new"),
        lambda: catalog.create_table("shop.new", ROWS.schema),
        lambda: catalog.drop_table("shop.orders"),
        lambda: catalog.load_table("shop.orders").append(ROWS),
    ):
        with pytest.raises(NotImplementedError, match="does not support endpoint"):  # it asks what is offered first
            write()
    # An older client asks all the same.
    answer = catalog._session.post(f"{lake.url}/v1/namespaces/shop/tables/orders", data=b"{}")
    assert (answer.status_code, "written by its topic" in answer.text) == (403, True)
    assert lake.own.load_table("shop.orders").scan().count() == 3


def test_pyiceberg_names_what_is_not_there_or_not_allowed(lake: Lake):
    with pytest.raises(NoSuchTableError, match=r"shop\.none"):
        iceberg(lake).load_table("shop.none")
    with pytest.raises(NoSuchNamespaceError):
        iceberg(lake).list_tables("none")
    with pytest.raises(NoSuchTableError):
        iceberg(lake, token=SHOP).load_table("bank.ledger")
    with pytest.raises((UnauthorizedError, ForbiddenError)):
        iceberg(lake, token="wrong")


@pytest.mark.filterwarnings("ignore:Deprecated in 0.8.0:DeprecationWarning")
def test_pyiceberg_logs_in_with_the_name_of_a_token_and_its_secret(lake: Lake):
    assert iceberg(lake, credential=f"shop:{SHOP}").list_namespaces() == [("shop",)]
    with pytest.raises(OAuthError, match="invalid_client"):
        iceberg(lake, credential=f"other:{SHOP}")


def test_pyiceberg_says_what_the_server_says_of_an_outage(lake: Lake):
    lake.served.cuts["shop.orders"] = TryAgain("the ledger does not answer")
    with pytest.raises(Exception, match="the ledger does not answer"):
        iceberg(lake).load_table("shop.orders")


# -- DuckDB -------------------------------------------------------------------------------------------------------


@pytest.fixture
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb_with_iceberg("") as connection:
        yield connection


def attached(duck: duckdb.DuckDBPyConnection, lake: Lake, token: str = ALL, warehouse: str = "") -> Any:
    duck.execute(f"ATTACH '{warehouse}' AS h (TYPE iceberg, ENDPOINT '{lake.url}', TOKEN '{token}')")
    return lambda query: duck.execute(query).fetchall()


def test_duckdb_lists_loads_and_scans(lake: Lake, duck: duckdb.DuckDBPyConnection):
    query = attached(duck, lake)
    tables = query("SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = 'h' ORDER BY ALL")
    assert tables == [("bank", "ledger"), ("shop", "orders"), ("shop", "payments")]
    assert query("FROM h.shop.orders ORDER BY id") == [(1, "a"), (2, "b"), (3, "c")]
    joined = "SELECT count(*) FROM h.shop.orders JOIN h.bank.ledger USING (id) WHERE id > 1"
    assert query(joined) == [(2,)]


def test_duckdb_sees_the_newest_cut_with_each_query(lake: Lake, duck: duckdb.DuckDBPyConnection):
    query = attached(duck, lake)
    assert query("SELECT count(*) FROM h.shop.orders") == [(3,)]
    lake.append("shop.orders")
    snapshot = lake.own.load_table("shop.orders").current_snapshot()
    assert snapshot is not None
    while time.time() * 1000 <= snapshot.timestamp_ms:  # it reads as of the start of its transaction
        pass
    assert query("SELECT count(*) FROM h.shop.orders") == [(6,)]


def test_duckdb_is_refused_a_write_and_shows_why(lake: Lake, duck: duckdb.DuckDBPyConnection):
    query = attached(duck, lake)
    refused = []
    for write in (
        "INSERT INTO h.shop.orders VALUES (4, 'd')", "CREATE TABLE h.shop.new (id BIGINT)", "DROP TABLE h.shop.orders",
        "CREATE SCHEMA h.new", "DELETE FROM h.shop.orders",
    ):  # fmt: skip
        with pytest.raises(duckdb.Error) as raised:
            query(write)
        refused.append(str(raised.value))
    assert lake.own.load_table("shop.orders").scan().count() == 3
    assert [one for one in refused if "written by its topic" not in one] == []


def test_duckdb_sees_what_its_token_allows(lake: Lake, duck: duckdb.DuckDBPyConnection):
    query = attached(duck, lake, SHOP)
    assert query("SELECT count(*) FROM h.shop.orders") == [(3,)]
    with pytest.raises(duckdb.Error):
        query("FROM h.bank.ledger")


def test_duckdb_is_refused_with_a_wrong_token_or_an_unknown_state(lake: Lake, duck: duckdb.DuckDBPyConnection):
    with pytest.raises(duckdb.Error, match="401|wrong, expired or revoked"):
        attached(duck, lake, "wrong")("FROM h.shop.orders")
    with pytest.raises(duckdb.Error, match="400|is not offered"):
        attached(duck, lake, warehouse="my_warehouse")("FROM h.shop.orders")


def test_duckdb_logs_in_by_oauth(lake: Lake, duck: duckdb.DuckDBPyConnection):
    duck.execute(
        f"CREATE SECRET s (TYPE iceberg, CLIENT_ID 'shop', CLIENT_SECRET '{SHOP}', "
        f"OAUTH2_SERVER_URI '{lake.url}/v1/oauth/tokens')"
    )
    duck.execute(f"ATTACH '' AS h (TYPE iceberg, ENDPOINT '{lake.url}', SECRET s)")
    with capture_logs() as logged:
        assert duck.execute("SELECT count(*) FROM h.shop.orders").fetchall() == [(3,)]
    assert {one["reader"] for one in logged if one["event"] == "serve.loaded"} == {"shop"}


# -- a store ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [{"reading_keys": ("reader", "r-secret")}, {"reading_role": "arn:aws:iam::123456789012:role/reader"}],
    ids=["keys", "a role"],
)  # fmt: skip
def test_engines_reach_the_store_of_a_table_by_what_the_server_hands_out(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
):
    """They have neither its address nor keys."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with moto_store() as (s3, warehouse):
        settings = Settings(home=tmp_path, warehouse=warehouse, s3=s3, **given)
        storage = handed_out(settings, keep=timedelta(minutes=15), folders=lambda _: [warehouse]).of(TABLE)
        own = SqlCatalog("own", uri=f"sqlite:///{tmp_path}/own.db", warehouse=warehouse, **storage.config)
        own.create_namespace("shop")
        table = own.create_table("shop.orders", ROWS.schema)
        table.append(ROWS)
        snapshot = table.current_snapshot()
        assert snapshot is not None
        with own._load_file_io(location=table.metadata_location).new_input(table.metadata_location).open() as stream:
            metadata = stream.read()
        cut = CutAnswer(
            snapshot_id=snapshot.snapshot_id, metadata_location=table.metadata_location, metadata=metadata
        )  # fmt: skip
        served = MemoryCatalog({"shop.orders": cut})
        served.keys = storage
        with listening("127.0.0.1", 0) as listener, serving(application(served), listener):
            lake = Lake(own=own, served=served, url=url_of(listener, host="127.0.0.1", tls=False))
            assert iceberg(lake).load_table("shop.orders").scan().to_arrow().to_pylist() == ROWS.to_pylist()
            assert attached(duck, lake)("SELECT count(*) FROM h.shop.orders WHERE id > 1") == [(2,)]
            served.keys = Storage()
            with pytest.raises(OSError):
                iceberg(lake).load_table("shop.orders").scan().to_arrow()
        own.close()
