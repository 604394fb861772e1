"""Whatever tables are called, Dagster shows all of them, each by names of its own."""

from itertools import combinations, product
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInvalidDefinitionError, Definitions

from harness_pipelines.defs import build as building
from harness_pipelines.defs.build import build
from harness_pipelines.defs.definitions import TABLES_FOLDER, load
from harness_pipelines.defs.names import TAG_MAX, step_name, table_key, table_tag, topic_key
from harness_pipelines.defs.tables import table_definitions
from harness_pipelines.spec.load import load_spec
from harness_pipelines.spec.table import PART_MAX, TableSpec

FILE = Path(__file__).parent / "tables/orders.yaml"
LONG = "x" * PART_MAX
ALIKE = [
    ("shop.orders",),
    (f"shop.{LONG}", f"{LONG}.{LONG}", f"{LONG}.{LONG[:-1]}y"),  # too long for a tag
    ("kafka.orders", "kafka.kafka", "broken.orders"),  # what the topic, and files that are no spec, are called
    ("a__b.c", "a.b__c"),
    ("a_b.c", "a.b_c"),
    ("a_.b", "a.b", "a.b_", "a.b__"),
    ("a.b_audit", "a.b__audit", "a.b__checks"),  # the end of a step's name
]


def spec(name: str) -> TableSpec:
    return load_spec(FILE).model_copy(update={"table": name})


@pytest.mark.parametrize("names", ALIKE)
def test_tables_with_any_names_load_together(names: tuple[str, ...]) -> None:
    definitions = build([spec(name) for name in names])
    Definitions.validate_loadable(definitions)
    keys = definitions.resolve_asset_graph().get_all_asset_keys()
    assert {table_key(name) for name in names} | {topic_key("orders")} <= keys
    assert not [key for key in keys if key.path[0] == "broken"]


def test_no_two_tables_share_a_name() -> None:
    words = ("".join(word) for size in range(5) for word in product("b_", repeat=size))
    tables = [f"{left}.{right}" for left, right in product([f"a{word}" for word in words], repeat=2)]
    tables += [f"{LONG[:n]}.{LONG[:m]}" for n, m in product(range(1, PART_MAX), repeat=2)]
    tables += ["kafka.orders", "broken.orders", *(name for names in ALIKE for name in names)]
    known = set(tables)
    for named in (lambda name: step_name(name, "take"), table_tag, table_key):
        assert len({named(name) for name in known}) == len(known)
    assert max(len(table_tag(name)) for name in known) == TAG_MAX
    assert not {table_key(name) for name in known} & {topic_key("orders"), AssetKey(["broken", "orders"])}


def test_names_that_are_plain_stay_readable() -> None:
    assert step_name("shop.orders", "take") == "shop__orders__take"
    assert (table_tag("shop.orders"), table_key("shop.orders", "tier")) == (
        "shop.orders",
        AssetKey(["shop", "orders", "tier"]),
    )
    assert all(step_name(a, "x") != step_name(b, "x") for a, b in combinations(["a__b.c", "a.b__c", "a.b_c"], 2))


def test_a_table_that_dagster_refuses_is_shown_with_the_reason_beside_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = table_definitions

    def refused(one: TableSpec) -> Definitions:
        if one.table == "shop.sick":
            raise DagsterInvalidDefinitionError("a word that Dagster does not take")
        return made(one)

    monkeypatch.setattr(building, "table_definitions", refused)
    definitions = build([spec("shop.sick"), spec("shop.orders")])
    Definitions.validate_loadable(definitions)
    graph = definitions.resolve_asset_graph()
    assert graph.get(AssetKey(["broken", "shop.sick"])).description == "a word that Dagster does not take"
    assert {key.path[1] for key in graph.get_all_asset_keys() if key.path[0] == "shop"} == {"orders"}


def test_of_two_files_for_one_table_the_first_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(FILE.read_text())
    monkeypatch.setenv(TABLES_FOLDER, str(tmp_path))
    graph = load().resolve_asset_graph()
    assert table_key("shop.orders") in graph.get_all_asset_keys()
    assert "a.yaml has the table shop.orders already" in (graph.get(AssetKey(["broken", "b"])).description or "")
