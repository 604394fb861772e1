"""What may be written as a contract, and how it is said what may not."""

from __future__ import annotations

from typing import Any

import pytest

from harness_pipelines.spec.load import check_rules, dump_spec, load_spec_text
from harness_pipelines.spec.sections.contract import StopAbove, written_checks
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.wording import SpecError

COLUMNS = {
    "id": {"type": "long", "required": True}, "amount": "decimal(12,2)", "total": "decimal(38,0)", "state": "string",
    "ordered_at": "timestamptz", "shipped_at": "timestamptz", "day": "date", "count": "int", "score": "double",
    "flag": "boolean", "tags": "list<string>",
}  # fmt: skip


def spec(contract: Any, **words: Any) -> TableSpec:
    return TableSpec.model_validate({"table": "shop.orders", "columns": COLUMNS, "contract": contract, **words})


def checks(contract: Any) -> dict[str, tuple[str, str]]:
    made = spec(contract)
    assert made.contract is not None
    found, wrong = written_checks(made.contract, made.columns)
    assert not wrong
    return {check.name: (check.severity, check.expected) for check in found}


def trouble(contract: Any, **words: Any) -> dict[str, str]:
    with pytest.raises(SpecError) as raised:
        spec(contract, **words)
    return {one.field: one.message for one in raised.value.problems}


def test_a_contract_has_one_check_for_each_word_in_the_order_in_which_it_is_written():
    assert checks(
        {
            "columns": {"amount": {"ge": 0, "le": "999.99"}, "state": {"isin": ["new", "paid"], "matches": "[a-z]+"}},
            "rows": [{"name": "in_order", "expr": "shipped_at >= ordered_at"}],
        }
    ) == {
        "amount.ge": ("quarantine", ">= 0"),
        "amount.le": ("quarantine", "<= '999.99'"),
        "state.isin": ("quarantine", "one of ['new', 'paid']"),
        "state.matches": ("quarantine", "text that matches [a-z]+"),
        "in_order": ("quarantine", "shipped_at >= ordered_at"),
    }


def test_the_severity_of_a_check_is_the_nearest_that_is_said():
    contract = {
        "severity": "warn",
        "columns": {"amount": {"ge": 0, "le": 9, "severity": "stop"}, "count": {"eq": 1}, "flag": {"eq": False}},
        "rows": [{"name": "a", "expr": "count > 0", "severity": "quarantine"}, {"name": "b", "expr": "count > 0"}],
        "severities": {"amount.le": "quarantine"},
    }
    assert {name: severity for name, (severity, _) in checks(contract).items()} == {
        "amount.ge": "stop", "amount.le": "quarantine", "count.eq": "warn", "flag.eq": "warn", "a": "quarantine",
        "b": "warn",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("contract", "place", "why"),
    [
        ({"columns": {"amuont": {"ge": 0}}}, "contract.columns.amuont.ge", "(did you mean 'amount'?)"),
        ({"columns": {"amount": {"ge": "much"}}}, "contract.columns.amount.ge", "it cannot be compared with text"),
        ({"columns": {"state": {"lt": 3}}}, "contract.columns.state.lt", "state is string"),
        ({"columns": {"flag": {"eq": 1}}}, "contract.columns.flag.eq", "flag is boolean"),
        ({"columns": {"day": {"ge": "2026-13-01"}}}, "contract.columns.day.ge", "is not a date like"),
        ({"columns": {"tags": {"eq": "x"}}}, "contract.columns.tags.eq", "tags is list<string>"),
        ({"columns": {"count": {"matches": "1"}}}, "contract.columns.count.matches", "`matches` checks text"),
        ({"columns": {"state": {"matches": "(?=a)"}}}, "contract.columns.state.matches", "no look-around"),
        ({"columns": {"state": {"isin": []}}}, "contract.columns.state.isin", "write a list of values"),
        ({"columns": {"state": {"isin": ["a", None]}}}, "contract.columns.state.isin", "write a number, text"),
        ({"columns": {"count": {"ge": float("nan")}}}, "contract.columns.count.ge", "write a number, text"),
        ({"columns": {"state": {"min_length": -1}}}, "contract.columns.state.min_length", "a number of at least 0"),
        ({"rows": [{"name": "a", "expr": "amount >"}]}, "contract.rows.0.expr", "found the end at character 9"),
        ({"rows": [{"name": "a", "expr": "amuont > 1"}]}, "contract.rows.0.expr", "did you mean 'amount'?"),
        ({"rows": [{"name": "a", "expr": "amount > state"}]}, "contract.rows.0.expr", "cannot be compared exactly"),
        ({"rows": [{"name": "a", "expr": "amount > total"}]}, "contract.rows.0.expr", "cannot be compared exactly"),
        ({"rows": [{"name": "a", "expr": "count > score"}]}, "contract.rows.0.expr", "cannot be compared exactly"),
        ({"rows": [{"name": "a", "expr": "sum(amount) > 1"}]}, "contract.rows.0.expr", "sum() is a function"),
        ({"rows": [{"name": "a.b", "expr": "count > 1"}]}, "contract.rows.0.name", "does not have the form"),
        ({"rows": [{"name": "a", "expr": "count > 1"}] * 2}, "contract.rows.1.name", "'a' occurs twice"),
        (
            {"columns": {"count": {"ge": 1}}, "severities": {"count.le": "warn"}},
            "contract.severities.count.le",
            "no check",
        ),
        ({"module": "m"}, "contract", "`module` needs `name`"),
        ({"name": "Orders"}, "contract", "`name` needs `module`"),
        ({"module": "m", "name": "N", "columns": {"count": {"ge": 1}}}, "contract.columns", "come from `module`"),
        ({"module": "../m", "name": "N"}, "contract.module", "does not have the form"),
        ({}, "contract", "a contract needs checks"),
        ({"columns": {"count": {}}}, "contract", "a contract needs checks"),
        ({"columns": {"count": {"ge": 1}}, "severity": "drop"}, "contract.severity", "quarantine"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_contract_is_said_at_its_place(contract: Any, place: str, why: str):
    found = trouble(contract)
    assert list(found) == [place]
    assert why in found[place]


def test_all_that_is_wrong_is_said_at_once_with_its_lines():
    text = """\
table: shop.orders
columns: {amount: "decimal(12,2)", state: string}
contract:
  columns:
    amount:
      ge: zero
    state: {isim: [a]}
  rows:
    - {name: a, exp: "amount > 1"}
"""
    with pytest.raises(SpecError) as raised:
        load_spec_text(text, source="orders.yaml")
    said = str(raised.value)
    assert "orders.yaml:7: contract.columns.state.isim: unknown setting `isim` (did you mean `isin`?)" in said
    assert "orders.yaml:9: contract.rows.0.exp: unknown setting `exp` (did you mean `expr`?)" in said
    with pytest.raises(SpecError, match=r"orders.yaml:6: contract.columns.amount.ge: amount is decimal\(12, ?2\)"):
        load_spec_text(text.replace("isim", "isin").replace("exp:", "expr:"), source="orders.yaml")


def test_a_contract_is_stored_and_read_back_as_it_is():
    made = spec(
        {
            "columns": {"amount": {"ge": 0.1}, "flag": {"eq": False}, "state": {"isin": ["a", "1"], "not_null": True}},
            "rows": [{"name": "a", "expr": "count > 0", "severity": "warn"}],
            "severities": {"a": "stop"},
        },
        stop_above={"refused": "5%"},
    )
    assert TableSpec.model_validate(dump_spec(made)) == made


@pytest.mark.parametrize("contract", [
    {"columns": {"count": {"ge": 1}}, "severity": "warn"},
    {"columns": {"count": {"ge": 1, "severity": "stop"}}},
    {"columns": {"count": {"ge": 1}}, "severities": {"count.ge": "warn"}},
    {"module": "m", "name": "N", "severity": "stop"},
])  # fmt: skip
def test_without_a_buffer_a_check_can_only_quarantine_yet(contract: Any):
    assert "does not work with `buffer: none` yet" in trouble(contract, buffer="none")["contract.severity"]
    assert spec({"columns": {"count": {"ge": 1}}}, buffer="none").contract


@pytest.mark.parametrize(
    ("words", "records_max"),
    [({"refused": "5%"}, 500), ({"refused": 0.05, "of_last": 100}, 5), ({"refused": "0%", "of_last": 10}, 0),
     ({"refused": "2.5 %", "of_last": 100}, 2), ({"refused": 0.29, "of_last": 100}, 29)],
)  # fmt: skip
def test_so_many_refused_records_are_not_too_many(words: Any, records_max: int):
    assert StopAbove.model_validate(words).records_max == records_max


@pytest.mark.parametrize(
    ("column", "checks", "together"),
    [
        ("count", {"ge": 5, "le": 1}, "`ge: 5` and `le: 1`"),
        ("count", {"gt": 5, "ge": 1, "le": 5}, "`gt: 5` and `le: 5`"),
        ("count", {"ge": 5, "lt": 5, "le": 5}, "`ge: 5` and `lt: 5`"),
        ("count", {"ge": 2**63}, "`ge: 9223372036854775808`"),
        ("count", {"eq": 1.5}, "`eq: 1.5`"),
        ("count", {"isin": [1, 2], "gt": 2}, "`isin: [1, 2]` and `gt: 2`"),
        ("amount", {"eq": 1, "ne": 1}, "`eq: 1` and `ne: 1`"),
        ("state", {"isin": ["a"], "ne": "a"}, "`isin: ['a']` and `ne: 'a'`"),
        ("state", {"min_length": 3, "max_length": 2}, "`min_length: 3` and `max_length: 2`"),
        (
            "ordered_at",
            {"ge": "2026-01-02T00:00:00Z", "lt": "2026-01-01T00:00:00Z"},
            "`ge: '2026-01-02T00:00:00Z'` and",
        ),
    ],
)
def test_checks_that_no_value_passes_are_refused_where_a_spec_is_applied(column: str, checks: Any, together: str):
    made = spec({"columns": {column: checks}})  # a table that is there keeps it
    with pytest.raises(SpecError) as refused:
        check_rules(made, source="orders.yaml")
    [problem] = refused.value.problems
    assert problem.field.startswith(f"contract.columns.{column}.")
    assert f"no value of {column} (" in problem.message and together in problem.message


@pytest.mark.parametrize(
    ("column", "checks"),
    [
        ("count", {"ge": 5, "le": 5}), ("count", {"gt": 4, "ge": 5, "le": 5}), ("count", {"isin": [1, 9], "ge": 9}),
        ("count", {"eq": 3, "ne": 4}), ("state", {"isin": ["a", "b"], "ne": "a"}), ("amount", {"ge": 0, "lt": "0.01"}),
        ("state", {"min_length": 2, "max_length": 2}), ("flag", {"ne": True}),
    ],
)  # fmt: skip
def test_checks_that_a_value_passes_are_taken(column: str, checks: Any):
    check_rules(spec({"columns": {column: checks}}), source="orders.yaml")


@pytest.mark.parametrize("refused", ["5", "101%", 1.01, -0.1, True, "x%", None])
def test_a_share_is_a_percentage_or_a_number_up_to_one(refused: Any):
    with pytest.raises(SpecError, match="is not a share; write 0% to 100%"):
        TableSpec.model_validate({"table": "a.b", "columns": {"id": "long"}, "stop_above": {"refused": refused}})


@pytest.mark.parametrize("words", [{"on_error": "stop"}, {"buffer": "none"}])
def test_a_limit_that_could_not_be_kept_is_refused(words: Any):
    with pytest.raises(SpecError, match=r"stop_above"):
        TableSpec.model_validate({"table": "a.b", "columns": {"id": "long"}, "stop_above": {"refused": "5%"}, **words})
