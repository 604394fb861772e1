"""The pages of engines: each block, run as it stands there, reads what the tables have at that moment."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path

import duckdb
import pyspark
import pytest
import yaml

from harness_pipelines.cli.operate.demo import attach_lines
from harness_pipelines.serve.attach import blocks as attaching
from harness_pipelines.services.java import java_home
from harness_pipelines_tests.contract.pages_rig import LAKE, NEWEST, ORDERS, Shop, shop_of
from harness_pipelines_tests.contract.stores_rig import RealRig
from harness_pipelines_tests.flink import flink
from harness_pipelines_tests.maven import jars_of, source_command
from harness_pipelines_tests.page_code import ENGINES, ROOT, blocks, languages, statements
from harness_pipelines_tests.trino import trino

#: A batch view names the size of row groups for Spark, which writes its files; here PyIceberg does.
pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option.*not implemented:UserWarning")
JARS = Path(os.environ.get("HARNESS_JARS", ROOT / ".cache" / "jars"))
JDBC = "org.apache.arrow:flight-sql-jdbc-driver:18.3.0"
RUN: Mapping[str, set[str]] = {  #: by page, the languages whose blocks a test below runs, all of them
    "README": {"sh"},
    "clickhouse": {"python"},
    "daft": {"python"},
    "datafusion": {"python"},
    "dbeaver": {"properties", "sql"},
    "dbt": {"sh", "yaml"},
    "duckdb": {"python", "sql"},
    "flink": {"sql"},
    "polars": {"python"},
    "pyiceberg": {"python"},
    "spark": {"properties", "sql"},
    "superset": {"python"},
    "trino": {"properties", "sql"},
}
_DUCKDB = """#!{python}
import sys

import duckdb

option, text = sys.argv[1:]
assert option == "-c"
with duckdb.connect() as connection:
    for statement in duckdb.extract_statements(text):
        print(connection.execute(statement).fetchall())
"""
UNTESTED = {"snowflake", "starrocks"}
ONLY_FRESH = {"dbeaver", "superset"}  #: pages that read by Flight SQL, which has no `lake`


@pytest.fixture(scope="module")
def shop(opened: RealRig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with shop_of(opened, tmp_path_factory.mktemp("shop")) as made:
        yield made


def assert_exact(page: str, said: str) -> None:
    """*said* has the figures of both tables, and that of the lake where the page shows it."""
    for figure in (ORDERS, NEWEST, *(() if page in ONLY_FRESH else (LAKE,))):
        assert re.search(rf"\b{figure}\b", said), f"{page} does not show {figure}: {said}"


def sql_of(shop: Shop, page: str) -> Iterator[str]:
    """The statements of a page, in their order."""
    for block in blocks(ENGINES / f"{page}.md", "sql"):
        yield from statements(shop.filled(block))


def test_each_page_is_run_or_says_that_it_is_not_tested():
    pages = {page.stem: page for page in ENGINES.glob("*.md")}
    assert set(pages) == {*RUN, *UNTESTED}
    assert {name: languages(pages[name]) for name in RUN} == RUN
    said = {name for name, page in pages.items() if "\nNot tested: no artifact could be had." in page.read_text()}
    assert said == UNTESTED


@pytest.mark.parametrize(
    "page",
    [
        "pyiceberg",
        "superset",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("clickhouse", "daft", "datafusion", "polars")),
    ],
)
def test_the_python_of_a_page_reads_both_tables(shop: Shop, page: str):
    assert_exact(page, shop.in_python(page))


def test_the_commands_before_each_page_make_a_token_that_lists_the_tables(shop: Shop):
    said = shop.in_shell("README")
    assert '"name": "orders"' in said
    assert '"name": "customers"' in said


def test_duckdb(shop: Shop):
    with duckdb.connect(config={"extension_directory": str(shop.extensions)}) as connection:
        said = [connection.execute(statement).fetchall() for statement in sql_of(shop, "duckdb")]
    assert_exact("duckdb", str(said))
    assert str(ORDERS) in shop.in_python("duckdb")


@pytest.fixture
def duckdb_program(shop: Shop) -> None:
    """`duckdb -c SQL` by the engine's Python package, which brings no program for a shell."""
    program = shop.folder / "bin" / "duckdb"
    program.write_text(_DUCKDB.format(python=sys.executable))
    program.chmod(0o755)


@pytest.mark.usefixtures("duckdb_program")
def test_what_serve_prints_for_duckdb_reads_the_table_in_a_shell(shop: Shop):
    block = attaching(shop.served.url, table="shop.orders", warehouse=shop.served.settings.warehouse or "")["DuckDB"]
    assert f"[({ORDERS},)]" in shop.ran("bash", "-euo", "pipefail", "-c", block)


@pytest.mark.usefixtures("duckdb_program")
def test_what_the_demo_prints_starts_a_server_and_reads_the_table_by_duckdb(shop: Shop):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lines = [*takewhile(lambda line: line != "# Trino", attach_lines("shop.orders", "harness", port=port))]
    assert "# DuckDB" in lines
    ended = "trap 'kill $(jobs -p); wait' EXIT"
    assert f"[({ORDERS},)]" in shop.ran("bash", "-uo", "pipefail", "-c", "\n".join([ended, *lines]))


def test_dbt_is_given_the_tables_and_columns_that_its_engine_sees(shop: Shop):
    shop.in_shell("dbt")
    [source] = yaml.safe_load((shop.folder / "models" / "sources.yml").read_text())["sources"]
    [profile] = blocks(ENGINES / "dbt.md", "yaml")
    for name in shop.variables:
        profile = profile.replace(f"{{{{ env_var('{name}') }}}}", f"${name}")
    [attached] = yaml.safe_load(shop.filled(profile))["harness"]["outputs"]["dev"]["attach"]
    options = "".join(f", {name} '{value}'" for name, value in attached["options"].items())
    with duckdb.connect(config={"extension_directory": str(shop.extensions)}) as connection:
        connection.execute("LOAD iceberg")
        connection.execute(f"ATTACH '{attached['path']}' AS {attached['alias']} (TYPE {attached['type']}{options})")
        for table in source["tables"]:
            seen = connection.execute(f"DESCRIBE {source['database']}.{source['schema']}.{table['name']}").fetchall()
            assert [column["name"] for column in table["columns"]] == [row[0] for row in seen]
    assert [table["name"] for table in source["tables"]] == ["customers", "orders"]


@pytest.mark.long
def test_trino(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in shop.variables.items():
        monkeypatch.setenv(name, value)
    files = {}
    for block in blocks(ENGINES / "trino.md", "properties"):
        first, _, text = block.partition("\n")
        files[Path(first.removeprefix("# ")).stem] = text
    with trino(files, tmp_path, jars=JARS) as server:
        said = [server.query(statement).to_pylist() for statement in sql_of(shop, "trino")]
    assert_exact("trino", str(said))


@pytest.mark.long
def test_flink(shop: Shop, tmp_path: Path):
    with flink(tmp_path, jars=JARS) as running:
        said = [running.query(statement).to_pylist() for statement in sql_of(shop, "flink")]
    assert_exact("flink", str(said))


@pytest.mark.long
def test_spark(shop: Shop, tmp_path: Path):
    [settings] = blocks(ENGINES / "spark.md", "properties")
    (tmp_path / "page.conf").write_text(shop.filled(settings))
    (tmp_path / "page.sql").write_text("\n".join(blocks(ENGINES / "spark.md", "sql")))
    jars = ",".join(map(str, (JARS / "spark").glob("*.jar")))
    home = Path(pyspark.__file__).parent
    here = ["--master", "local[1]", "--conf", "spark.sql.catalogImplementation=in-memory", "--jars", jars]
    what = ["--properties-file", str(tmp_path / "page.conf"), "-f", str(tmp_path / "page.sql")]
    java = {"SPARK_HOME": str(home), "JAVA_HOME": str(java_home())}
    assert_exact("spark", shop.ran(str(home / "bin" / "spark-sql"), *here, *what, **java))


@pytest.mark.long
def test_dbeaver(shop: Shop):
    """Its driver: schemas, tables and columns, which it shows as a tree, and the queries of the page."""
    [block] = blocks(ENGINES / "dbeaver.md", "properties")
    words = dict(line.split("=", 1) for line in shop.filled(block).splitlines())
    driver = jars_of([JDBC], JARS.parent / f"flight-sql-jdbc-{JDBC.rpartition(':')[2]}")
    command = source_command("jdbc.java", [driver], "--add-opens=java.base/java.nio=ALL-UNNAMED")
    login = [words[name] for name in ("Class Name", "URL", "User", "Password")]
    said = shop.ran(*command, *login, "shop", text="\n".join(" ".join(one.split()) for one in sql_of(shop, "dbeaver")))
    assert_exact("dbeaver", said)
    assert {"orders\tid", "customers\ts"} <= set(re.findall(r"\tshop\t(\w+\t\w+)", said))
