"""pandera schemas as contracts: what they mean, what of them is refused, and modules that are not there."""

from __future__ import annotations

import datetime as dt
import re
import sys
import types
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pandas as pd
import pandera.pandas as pandera
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.formats.base import Decoded
from harness_pipelines.formats.contract.pandera import ContractUnusable, rules_of
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.spec.table import TableSpec

MODULE = "contracts_of_a_test"
COLUMNS = {
    "id": {"type": "long", "required": True}, "amount": "decimal(12,2)", "state": "string", "count": "int",
    "day": "date", "score": "double",
}  # fmt: skip
Check, Column = pandera.Check, pandera.Column


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    made = sys.modules[MODULE] = types.ModuleType(MODULE)
    yield made
    del sys.modules[MODULE]


def spec(name: str = "Orders", **words: Any) -> TableSpec:
    contract = {"module": MODULE, "name": name, **words.pop("contract", {})}
    return TableSpec.model_validate({"table": "shop.orders", "columns": COLUMNS, "contract": contract, **words})


def decode(records: list[dict[str, Any]], **words: Any) -> Decoded:
    values = [orjson.dumps({"id": i, **record}) for i, record in enumerate(records)]
    return RecordCodec(spec(**words)).decode(values, [None] * len(values))


def test_a_model_is_kept_record_by_record(module):
    class Orders(pandera.DataFrameModel):
        amount: float = pandera.Field(ge=0, le=1000, nullable=True)
        state: str = pandera.Field(isin=["new", "paid"])
        count: float = pandera.Field(gt=0, nullable=True, raise_warning=True)

        @pandera.check("state", element_wise=True, name="short")
        def is_short(cls, value: str) -> bool:
            return len(value) < 4

        @pandera.dataframe_check(element_wise=True, ignore_na=False)
        def paid_has_amount(cls, row: Any) -> bool:
            return row["state"] != "paid" or row["amount"] is not None

    module.Orders = Orders
    found = decode(
        [{"amount": "1", "state": "new"}, {"amount": "-1", "state": "new"}, {"state": None}, {"state": "void"},
         {"amount": "1000.01", "state": "new"}, {"state": "paid", "amount": "1"}, {"state": "new", "count": -1}],
    )  # fmt: skip
    assert {one.index: one.check for one in found.refused} == {
        1: "amount.ge", 2: "state.not_null", 3: "state.isin", 4: "amount.le", 5: "state.short"
    }  # fmt: skip
    assert found.accepted.tolist() == [0, 6]
    assert dict(found.warned) == {"count.gt": 1}


def test_a_row_check_gets_the_row_and_names_it(module):
    module.Orders = pandera.DataFrameSchema(
        {"amount": Column(nullable=True), "count": Column(nullable=True)},
        checks=[Check(lambda row: row["count"] < 3, element_wise=True, name="few", error="count < 3")],
    )
    found = decode([{"count": 2, "amount": "1"}, {"count": 3, "amount": "1"}, {"count": 9}])
    assert [(one.index, one.detail) for one in found.refused] == [
        (1, "`few`: expected count < 3, got amount 1.00, count 3")
    ]


def test_what_a_function_raises_breaks_the_check(module):
    module.Orders = pandera.DataFrameSchema({"count": Column(checks=Check(lambda v: 1 / v > 0, element_wise=True))})
    assert [one.index for one in decode([{"count": 1}, {"count": 0}]).refused] == [1]


BUILT_IN = [
    ("amount", Check.equal_to(Decimal("1.50")), ["1.50", "1.51"]),
    ("amount", Check.in_range(Decimal(0), Decimal(2), include_max=False), ["-0.01", "0", "1.99", "2"]),
    ("count", Check.in_range(0, 2, include_min=False), [0, 1, 2, 3]),
    ("count", Check.greater_than(0), [-1, 0, 1]),
    ("count", Check.greater_than_or_equal_to(0), [-1, 0, 1]),
    ("count", Check.less_than(0), [-1, 0, 1]),
    ("count", Check.less_than_or_equal_to(0), [-1, 0, 1]),
    ("count", Check.not_equal_to(0), [-1, 0, 1]),
    ("count", Check.isin([1, 2]), [0, 1, 2]),
    ("count", Check.notin([1, 2]), [0, 1, 2]),
    ("score", Check.ge(0.5), [0.4, 0.5, 0.6]),
    ("state", Check.str_matches(r"[a-c]+"), ["abcx", "xabc", "", "a"]),
    ("state", Check.str_matches(re.compile(r"a|b$")), ["ax", "b", "bx"]),
    ("state", Check.str_contains(r"b.d"), ["abcde", "bd", "b d"]),
    ("state", Check.str_startswith("a.("), ["a.(b", "axb", "ba.("]),
    ("state", Check.str_endswith("é."), ["é.", "éx", "é.b"]),
    ("state", Check.str_length(1, 2), ["", "é", "éé", "ééé"]),
    ("state", Check.str_length(min_value=2), ["é", "éé"]),
]


@pytest.mark.parametrize(("column", "check", "values"), BUILT_IN, ids=lambda one: getattr(one, "error", None))
def test_a_check_of_panderas_own_says_what_pandera_says(module, column: str, check: Any, values: list[Any]):
    schema = pandera.DataFrameSchema({column: Column(checks=check, nullable=True)})
    module.Orders = schema
    plain = [Decimal(v) if column == "amount" else v for v in values]
    try:
        schema.validate(pd.DataFrame({column: plain}), lazy=True)
        wrong = []
    except pandera.errors.SchemaErrors as errors:
        wrong = sorted(set(errors.failure_cases["index"]))
    assert [one.index for one in decode([{column: value} for value in values]).refused] == wrong


@given(st.lists(st.text("abé.x\n", max_size=4), max_size=8), st.sampled_from(["a", "a.", "[ab]+", "x|é", "^a"]))
def test_patterns_mean_what_they_mean_in_pandera(texts: list[str], pattern: str):
    made = sys.modules[MODULE] = types.ModuleType(MODULE)
    try:
        for check in (Check.str_matches(pattern), Check.str_contains(pattern)):
            made.Orders = pandera.DataFrameSchema({"state": Column(checks=check)})  # type: ignore[attr-defined]
            whole = pd.Series(texts, dtype=object)
            matched = whole.str.match(pattern) if check.name == "str_matches" else whole.str.contains(pattern)
            found = decode([{"state": text} for text in texts])
            assert [one.index for one in found.refused] == [i for i, yes in enumerate(matched) if not yes]
    finally:
        del sys.modules[MODULE]


ONE = Column(checks=Check.ge(0))
REFUSED = [
    (pandera.DataFrameSchema({"count": ONE}, coerce=True), "`coerce` of the schema"),
    (pandera.DataFrameSchema({"count": ONE}, unique=["count"]), "`unique` of the schema"),
    (pandera.DataFrameSchema({"count": ONE}, drop_invalid_rows=True), "`drop_invalid_rows` of the schema"),
    (pandera.DataFrameSchema({"count": ONE}, add_missing_columns=True), "`add_missing_columns` of the schema"),
    (pandera.DataFrameSchema({"count": ONE}, index=pandera.Index(int)), "`index` of the schema"),
    (pandera.DataFrameSchema({"count": ONE}, parsers=pandera.Parser(lambda df: df)), "`parsers` of the schema"),
    (pandera.DataFrameSchema({"count": Column(unique=True)}), "`unique` of column 'count'"),
    (pandera.DataFrameSchema({"count": Column(int, coerce=True)}), "`coerce` of column 'count'"),
    (pandera.DataFrameSchema({"count": Column(default=3)}), "`default` of column 'count'"),
    (pandera.DataFrameSchema({"c.*": Column(regex=True)}), "`regex` of column 'c"),
    (pandera.DataFrameSchema({"count": Column(parsers=pandera.Parser(lambda s: s))}), "`parsers` of column 'count'"),
    (pandera.DataFrameSchema({"count": Column(checks=Check(lambda s: s.mean() > 0, name="mean"))}), "'mean' of column"),
    (pandera.DataFrameSchema({"count": Column(checks=Check(lambda s: s > 0, name="isin"))}), "'isin' of column"),
    (pandera.DataFrameSchema({"count": Column(checks=Check.unique_values_eq([1]))}), "'unique_values_eq' of column"),
    (pandera.DataFrameSchema({"count": ONE, "id": Column(checks=Check(lambda g: True, groupby="count"))}), "groups"),
    (pandera.DataFrameSchema({"count": ONE}, checks=Check(lambda df: df["count"] > 0)), "of the whole schema gets"),
    (pandera.DataFrameSchema({"count": ONE}, checks=Check.ge(0)), "write it at its columns"),
    (pandera.DataFrameSchema({"score": Column(checks=pandera.Hypothesis.one_sample_ttest(0))}), "hypothesis test"),
    (pandera.DataFrameSchema({"cuont": ONE}), "no column 'cuont'"),
    (pandera.DataFrameSchema({"state": Column(checks=Check.ge(0))}), "state is string"),
    (pandera.DataFrameSchema({"state": Column(checks=Check.str_matches("(?=a)"))}), "no look-around"),
    (pandera.DataFrameSchema({"state": Column(checks=Check.str_matches(re.compile("a", re.I)))}), "inside it"),
    (pandera.DataFrameSchema({"count": Column(checks=Check.str_matches("a"))}), "`str_matches` is for text"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_depends_on_rows_together_or_changes_values_is_refused_by_name(module, schema: Any, why: str):
    module.Orders = schema
    with pytest.raises(ContractUnusable, match=rf"^shop.orders: the contract {MODULE}.Orders cannot be kept") as raised:
        RecordCodec(spec())
    assert why in str(raised.value)


def test_severities_go_by_the_names_of_the_checks_and_unknown_ones_are_refused(module):
    module.Orders = pandera.DataFrameSchema({"count": Column(checks=[Check.ge(0), Check.ge(1)], nullable=True)})
    rules = rules_of(spec(contract={"severity": "stop", "severities": {"count.ge_2": "warn"}}))
    assert [(rule.name, rule.severity) for rule in rules] == [("count.ge", "stop"), ("count.ge_2", "warn")]
    with pytest.raises(ContractUnusable, match=r"names 'count.le'.*it has: count.ge, count.ge_2"):
        rules_of(spec(contract={"severities": {"count.le": "warn"}}))


def test_without_a_buffer_a_check_that_only_warns_is_refused(module):
    module.Orders = pandera.DataFrameSchema({"count": Column(checks=Check.ge(0, raise_warning=True), nullable=True)})
    with pytest.raises(ContractUnusable, match=r"check count.ge .* is to warn, which does not work"):
        rules_of(spec(buffer="none"))


def test_values_of_python_types_are_those_of_the_columns(module):
    module.Orders = pandera.DataFrameSchema(
        {"day": Column(checks=[Check.ge(dt.date(2026, 1, 1)), Check.lt(pd.Timestamp("2027-01-01").date())])}
    )
    found = decode([{"day": "2025-12-31"}, {"day": "2026-01-01"}, {"day": "2027-01-01"}])
    assert [one.check for one in found.refused] == ["day.ge", "day.lt"]


def test_a_module_that_is_not_there_is_named_with_the_way_on_and_found_once_it_is(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "contracts_to_come"
    made = spec(contract={"module": name})
    with pytest.raises(ContractUnusable, match=rf"^shop.orders: the contract's module '{name}' is not there.*Install"):
        RecordCodec(made)
    text = "import pandera.pandas as pa\nOrders = pa.DataFrameSchema({'count': pa.Column(checks=pa.Check.ge(0))})\n"
    (tmp_path / f"{name}.py").write_text(text)
    try:
        assert RecordCodec(made)
    finally:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import not_there_at_all", r"needs 'not_there_at_all', which is not there"),
        ("1/0", r"cannot be imported: ZeroDivisionError: division by zero"),
        ("def", r"cannot be imported: SyntaxError"),
        ("import sys; sys.exit(3)", r"cannot be imported: SystemExit: 3"),
        ("Other = 1", r"\(.*contracts_bad.*\) has no 'Orders'"),
        ("Orders = 1", r"is int, no pandera DataFrameModel or DataFrameSchema"),
        ("import pandera.pandas as p\nOrders = p.DataFrameSchema({})", r"has no check"),
        ("import pandera.pandas as p\nclass Orders(p.DataFrameModel):\n  x: 5", r"pandera makes no schema"),
    ],
)
def test_a_module_that_holds_no_contract_is_named_with_what_it_is(tmp_path: Path, monkeypatch, text: str, why: str):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "contracts_bad.py").write_text(text)
    monkeypatch.delitem(sys.modules, "contracts_bad", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    try:
        with pytest.raises(ContractUnusable, match=rf"^shop.orders: .*{why}"):
            RecordCodec(spec(contract={"module": "contracts_bad"}))
    finally:
        sys.modules.pop("contracts_bad", None)


def test_a_module_is_found_while_another_thread_forgets_the_finders_too(module, monkeypatch):
    class Racing(dict[str, Any]):
        """Entries go a moment before they are deleted, as if another thread had come first."""

        def __delitem__(self, name: str) -> None:
            super().pop(name)
            self.raced.append(name)
            raise KeyError(name)

        def __init__(self, entries: dict[str, Any]) -> None:
            super().__init__(entries)
            self.raced: list[str] = []

    finders = Racing({**sys.path_importer_cache, "no/folder": None, "none/either": None})
    monkeypatch.setattr(sys, "path_importer_cache", finders)
    module.Orders = pandera.DataFrameSchema({"count": Column(checks=Check.ge(0))})
    assert rules_of(spec())
    assert set(finders.raced) >= {"no/folder", "none/either"}
