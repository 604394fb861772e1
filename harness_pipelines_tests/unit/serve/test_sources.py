"""`harness serve sources`: a file that dbt takes, with what is served, and nothing that dbt would run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from harness_pipelines.cli.main import cli
from harness_pipelines.cli.operate import serve_sources
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import TopicIdentity
from harness_pipelines.protocol.coordinates import COORDINATES
from harness_pipelines.protocol.schema.schemas import SchemaRow
from harness_pipelines.serve.sources import dbt_sources, left_out
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.table import TableSpec


def row(name: str, columns: dict[str, Any] | None = None, **words: Any) -> TableRow:
    spec = TableSpec.model_validate({"table": name, "columns": columns or {"id": "long"}, **words})
    identity = TopicIdentity(cluster_id="c", topic=spec.topic, topic_id="t", partitions=(0,))
    first = SchemaRow(schema_version=1, fields=(), spec={}, starts={})
    return TableRow(table_id=1, spec=spec, identity=identity, retained_from=1, stopped=None, history=(first,))


def tables_of(found: Any) -> dict[str, Any]:
    return {f"{one['schema']}.{table['name']}": table for one in found["sources"] for table in one["tables"]}


ORDERS = row("shop.orders", {"id": "long", "amount": "decimal(12,2)", "lines": "list<struct<sku: string, n: int>>"})
CUSTOMERS = row("shop.customers", {"id": "long", "town": "string"}, key="id")


def test_each_namespace_is_a_source_and_each_table_has_its_columns_in_order():
    found = dbt_sources([row("web.clicks"), ORDERS, CUSTOMERS], database="harness")
    assert [(one["name"], one["database"], one["schema"]) for one in found["sources"]] == [
        ("shop", "harness", "shop"),
        ("web", "harness", "web"),
    ]
    tables = tables_of(found)
    assert list(tables) == ["shop.customers", "shop.orders", "web.clicks"]
    columns = {one["name"]: one["data_type"] for one in tables["shop.orders"]["columns"]}
    assert list(columns) == ["id", "amount", "lines", *COORDINATES]
    assert columns["amount"] == "decimal(12, 2)"
    assert columns["lines"] == "list<struct<sku: string, n: int>>"
    assert "topic shop.orders" in tables["shop.orders"]["description"]
    assert "each key (id)" in tables["shop.customers"]["description"]


def test_descriptions_are_those_of_the_spec_and_none_is_run():
    columns = {
        "id": {"type": "long", "description": "Its number"},
        "n": {"type": "int", "description": "{{ env_var('X') }}"},
    }
    told = tables_of(dbt_sources([row("shop.orders", columns, description="Orders of all shops.")], database="harness"))
    assert told["shop.orders"]["description"].startswith("Orders of all shops.\n\nRecords of the topic shop.orders")
    assert told["shop.orders"]["columns"][0] == {"name": "id", "description": "Its number", "data_type": "long"}
    assert told["shop.orders"]["columns"][1] == {"name": "n", "data_type": "int"}
    assert "meta" not in told["shop.orders"]
    told = tables_of(dbt_sources([row("shop.orders", owners="team:shop", tags={"tier": "gold"})], database="harness"))
    assert told["shop.orders"]["meta"] == {"owners": ["team:shop"], "tags": {"tier": "gold"}}
    told = tables_of(dbt_sources([row("shop.orders", description="{% do x %}")], database="harness"))
    assert told["shop.orders"]["description"].startswith("Records of the topic")


def test_a_table_that_is_not_served_is_left_out_by_name():
    changelog = row("shop.changes", key="id", views="stream")
    assert list(tables_of(dbt_sources([changelog, ORDERS], database="harness"))) == ["shop.orders"]
    assert [line.partition(":")[0] for line in left_out([changelog, ORDERS])] == ["shop.changes"]


@pytest.mark.parametrize(
    "columns",
    [
        {"id": "long", "{{ env_var('PASSWORD') }}": "string"},
        {"id": "long", "a {% do x %}": "string"},
        {"id": "long", "nested": "struct<`{# x`: string>"},
    ],
)
def test_a_name_that_dbt_would_run_is_left_out(columns: dict[str, Any]):
    hostile = row("shop.orders", columns)
    text = yaml.safe_dump(dbt_sources([hostile], database="harness"), allow_unicode=True)
    assert not any(mark in text for mark in ("{{", "{%", "{#"))
    assert len(left_out([hostile])) == 1


# -- the command -----------------------------------------------------------------------------------------------


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> list[TableRow]:
    """The tables of the harness that the command opens."""
    found: list[TableRow] = []

    @contextmanager
    def opened(_settings: Settings) -> Iterator[Any]:
        tables: Sequence[Any] = [SimpleNamespace(name=one.name, row=one) for one in found]
        yield SimpleNamespace(survey=lambda: (tables, []))

    monkeypatch.setattr(serve_sources, "opened", opened)
    return found


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["serve", "sources", *words])


def test_standard_output_is_the_file_and_nothing_else(rows: list[TableRow]):
    rows += [ORDERS, row("shop.changes", key="id", views="stream")]
    done = run()
    assert done.exit_code == 0
    assert yaml.safe_load(done.stdout) == dbt_sources([ORDERS], database="harness")
    assert "shop.changes" in done.stderr
    assert json.loads(run("--json").stdout) == yaml.safe_load(done.stdout)


def test_tables_and_the_name_of_the_catalog_are_chosen(rows: list[TableRow]):
    rows += [ORDERS, row("web.clicks")]
    found = yaml.safe_load(run("--tables", "web.*", "--database", "lake").stdout)
    assert list(tables_of(found)) == ["web.clicks"]
    assert found["sources"][0]["database"] == "lake"


def test_without_a_table_it_is_refused_and_no_file_is_printed(rows: list[TableRow]):
    rows += [ORDERS]
    done = run("--tables", "web.*")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "web.*" in done.stderr
