"""Which records break the checks that a spec writes, and what is said about them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.contract.checks import judge_of
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.unit.formats.batching import Record, assert_alone_as_together

COLUMNS = {
    "id": {"type": "long", "required": True}, "amount": "decimal(12,2)", "state": "string", "count": "int",
    "ordered_at": "timestamptz", "shipped_at": "timestamptz", "score": "double", "flag": "boolean", "note": "string",
    "place": "struct<city: string, lat: double, lon: double>",
}  # fmt: skip


def spec(contract: Any, **words: Any) -> TableSpec:
    return TableSpec.model_validate({"table": "shop.orders", "columns": COLUMNS, "contract": contract, **words})


def decode(records: list[dict[str, Any]], contract: Any, **words: Any) -> Decoded:
    values = [orjson.dumps({"id": i, **record}) for i, record in enumerate(records)]
    return RecordCodec(spec(contract, **words)).decode(values, [None] * len(values))


def broken(name: str, checks: Any, values: list[Any]) -> list[int]:
    """Positions of the *values* of one column that break its *checks*."""
    found = decode([{name: value} for value in values], {"columns": {name: checks}})
    return [one.index for one in found.refused]


@pytest.mark.parametrize(
    ("name", "checks", "values", "wrong"),
    [
        ("amount", {"ge": 0, "le": "99.99"}, ["0", "-0.01", "99.99", "100", None], [1, 3]),
        ("amount", {"gt": 0.1, "lt": 0.3}, ["0.1", "0.2", "0.3"], [0, 2]),
        ("amount", {"lt": 0.125}, ["0.12", "0.13"], [1]),
        ("amount", {"eq": 0.125}, ["0.12", None], [0]),
        ("count", {"ne": 3, "le": 2**40}, [3, 4, None], [0]),
        ("state", {"isin": ["new", "paid"]}, ["new", "NEW", "", None, "paid"], [1, 2]),
        ("state", {"notin": ["void"]}, ["void", "new", None], [0]),
        ("state", {"matches": "[a-z]{3}|x"}, ["new", "x", "newer", "xnew", "new\n", None, ""], [2, 3, 4, 6]),
        ("state", {"min_length": 2, "max_length": 3}, ["é", "éé", "ééé", "éééé", None], [0, 3]),
        ("state", {"not_null": True}, ["", None], [1]),
        ("flag", {"eq": False}, [True, False, None], [0]),
        ("ordered_at", {"ge": "2026-01-01"}, ["2025-12-31T23:59:59.999999Z", "2026-01-01T00:00:00Z", None], [0]),
        ("score", {"ge": 0, "le": 1}, [0.0, -0.0, 1.0, -1e-300, 1.1, None], [3, 4]),
    ],
)  # fmt: skip
def test_a_value_breaks_a_check_or_does_not(name: str, checks: Any, values: list[Any], wrong: list[int]):
    assert broken(name, checks, values) == wrong


@pytest.mark.parametrize(
    ("expr", "rows", "wrong"),
    [
        ("shipped_at >= ordered_at",
         [{"shipped_at": "2026-01-01T00:00:00Z", "ordered_at": "2026-01-01T01:00:00+01:00"},
          {"shipped_at": "2026-01-01T00:00:00Z", "ordered_at": "2026-01-01T00:00:00.000001Z"},
          {"shipped_at": None, "ordered_at": "2026-01-01T00:00:00Z"}], [1]),
        ("not (count > id) or state = 'x'", 
         [{"count": 9, "state": "y"}, {"count": 9}, {"count": 9, "state": "x"}, {"count": 0}, {}], [0]),
        ("count = 1.5 or count <> 2.5 and id <> 9999999999999999999", [{"count": 1}, {}], []),
        ("not (count <> 1.5) or 1.5 = count", [{"count": 1}, {}], [0]),
        ("state <> 'shipped' or shipped_at is not null",
         [{"state": "shipped"}, {"state": "shipped", "shipped_at": "2026-01-01T00:00:00Z"}, {"state": "new"}, {}], [0]),
        ("ordered_at < timestamp '2026-01-01'", [{"ordered_at": "2026-01-01T00:00:00Z"}, {}], [0]),
        ("place.lat <= place.lon and place.city like 'B%'",
         [{"place": {"lat": 2, "lon": 1, "city": "Berlin"}}, {"place": {"lat": 1, "lon": 1, "city": "Ulm"}},
          {"place": {"lat": 1, "lon": 1, "city": "Bonn"}}, {"place": {"lat": None, "lon": 1, "city": "Bonn"}}, {}],
         [0, 1]),
        ("state in ('a') or count = 1", [{"state": "b", "count": 2}, {"count": 2}, {"state": "b"}], [0]),
        ("flag", [{"flag": False}, {"flag": True}, {}], [0]),
    ],
)  # fmt: skip
def test_a_row_breaks_a_condition_where_it_is_false_and_not_where_it_is_unknown(expr: str, rows: Any, wrong: list[int]):
    found = decode(rows, {"rows": [{"name": "holds", "expr": expr}]})
    assert [one.index for one in found.refused] == wrong


def test_a_nan_passes_no_comparison_and_null_passes_all():
    conditions = {"a": "score < 1 or score >= 1", "b": "place.lat <= place.lon"}
    rows_ = [{"name": name, "expr": expr} for name, expr in conditions.items()]
    made = spec({"columns": {"score": {"ge": 0}}, "rows": rows_})
    judge, nan = judge_of(made), float("nan")
    assert judge is not None
    rows = pa.table(
        {
            field.name: pa.array(
                {"score": [nan, None, 1.0], "place": [{"lat": nan, "lon": 1.0}, None, {"lat": 0.0, "lon": 0.0}]}.get(
                    field.name, [None] * 3
                ),
                field.type,
            )
            for field in arrow_schema(made.columns)
        }
    )
    assert {rule.name: rule.broken(rows).tolist() for rule in judge.rules} == {"score.ge": [0], "a": [0], "b": [0]}


def test_a_refused_record_names_check_expectation_and_value_cut_off():
    found = decode(
        [{"state": "x" * 5_000}, {"shipped_at": "2026-01-01T00:00:00Z", "ordered_at": "2026-01-02T00:00:00Z"},
         {"amount": "-1.50"}, {"state": "a\nb"}],
        {"columns": {"state": {"max_length": 10, "matches": "[a-z]*"}, "amount": {"ge": 0}},
         "rows": [{"name": "in_order", "expr": "shipped_at >= ordered_at"}]},
    )  # fmt: skip
    assert [(one.reason, one.check) for one in found.refused] == [
        (Reason.CONTRACT, "state.max_length"), (Reason.CONTRACT, "in_order"), (Reason.CONTRACT, "amount.ge"),
        (Reason.CONTRACT, "state.matches"),
    ]  # fmt: skip
    assert found.refused[0].detail == (
        f"`state.max_length`: expected at most 10 characters, got {'x' * 60!r}... (5,000 characters)"
    )
    assert found.refused[1].detail == (
        "`in_order`: expected shipped_at >= ordered_at, got shipped_at 2026-01-01 00:00:00+00:00, "
        "ordered_at 2026-01-02 00:00:00+00:00"
    )
    assert found.refused[2].detail == "`amount.ge`: expected >= 0, got -1.50"
    assert found.refused[3].detail == "`state.matches`: expected text that matches [a-z]*, got 'a\\nb'"


def test_a_warning_takes_the_row_and_is_counted_once_for_each_check_and_not_for_records_that_are_refused():
    contract = {
        "columns": {"count": {"ge": 0, "lt": 10, "severity": "warn"}, "state": {"ne": "bad"}},
        "severities": {"count.lt": "warn"},
    }
    found = decode([{"count": -1}, {"count": 10}, {"count": -5, "state": "bad"}, {"count": 3}, {"count": -2}], contract)
    assert found.accepted.tolist() == [0, 1, 3, 4]
    assert dict(found.warned) == {"count.ge": 2, "count.lt": 1}
    assert [one.index for one in found.refused] == [2]
    assert found.rows.column("count").to_pylist() == [-1, 10, 3, -2]


def test_a_check_that_stops_counts_before_one_that_sets_aside():
    contract = {"columns": {"count": {"ge": 0, "gt": -5}}, "severities": {"count.gt": "stop"}}
    found = decode([{"count": -1}, {"count": -7}], contract)
    assert [(one.check, one.stops) for one in found.refused] == [("count.ge", False), ("count.gt", True)]


def test_records_that_do_not_decode_are_refused_as_before_and_the_others_judged():
    codec = RecordCodec(spec({"columns": {"count": {"ge": 0}}}))
    values = [b"{", b'{"id": 1, "count": -1}', b'{"id": 2, "count": 1}', None, b'{"id": 3, "count": "x"}']
    found = codec.decode(values, [None] * 5)
    assert [(one.index, one.reason) for one in found.refused] == [
        (0, Reason.MALFORMED), (1, Reason.CONTRACT), (3, Reason.NULL_VALUE), (4, Reason.WRONG_TYPE)
    ]  # fmt: skip
    assert found.accepted.tolist() == [2]


@pytest.mark.parametrize("delete", ["tombstone", {"field": "op", "values": ["d"]}])
def test_a_delete_is_not_judged_not_even_by_its_key(delete: Any):
    codec = RecordCodec(
        spec(
            {"columns": {"id": {"gt": 5}, "state": {"not_null": True}}, "rows": [{"name": "a", "expr": "id > 5"}]},
            key=["id"], delete=delete,
        )
    )  # fmt: skip
    put, gone = b'{"id": 9, "state": "a"}', (b'{"id": 1}', b'{"id": 1, "op": "d"}' if delete != "tombstone" else None)
    found = codec.decode([put, gone[1], b'{"id": 2, "state": "a"}', b'{"id": 8}'], [None, gone[0], None, None])
    assert [(row["_op"], row["id"]) for row in found.rows.to_pylist()] == [("put", 9), ("delete", 1)]
    assert found.accepted.tolist() == [0, 1]
    assert [(one.index, one.check) for one in found.refused] == [(2, "id.gt"), (3, "state.not_null")]


def test_no_records_break_nothing():
    contract = {"columns": {"state": {"matches": "a"}}, "rows": [{"name": "a", "expr": "shipped_at > ordered_at"}]}
    found = decode([], contract)
    assert (found.rows.num_rows, found.refused, dict(found.warned)) == (0, [], {})


moments = st.datetimes(dt.datetime(2025, 12, 30), dt.datetime(2026, 1, 2)).map(lambda moment: f"{moment.isoformat()}Z")
rows = st.fixed_dictionaries(
    {},
    optional={
        "amount": st.decimals(-5, 5, places=2).map(lambda number: str(Decimal(number))),
        "state": st.sampled_from(["new", "paid", "void", "", "päid"]) | st.none(),
        "count": st.integers(-3, 3) | st.none() | st.just("x"),
        "shipped_at": moments,
        "ordered_at": moments,
        "score": st.floats(-2, 2) | st.none(),
        "place": st.fixed_dictionaries({"lat": st.floats(0, 1) | st.none(), "lon": st.floats(0, 1)}) | st.none(),
    },
)
EVERY_CHECK = {
    "columns": {
        "amount": {"ge": -2, "lt": 4}, "state": {"isin": ["new", "päid"], "matches": "[a-zä]+", "max_length": 4},
        "count": {"not_null": True, "ne": 0, "severity": "warn"}, "score": {"le": 1.5},
    },
    "rows": [
        {"name": "in_order", "expr": "shipped_at >= ordered_at"},
        {"name": "place", "expr": "place.lat < place.lon or count > 0", "severity": "stop"},
    ],
}  # fmt: skip


@given(st.lists(rows, max_size=12), st.data())
def test_a_verdict_never_depends_on_the_records_beside_it(records: list[dict[str, Any]], data: st.DataObject):
    codec = RecordCodec(spec(EVERY_CHECK))
    values: list[Record] = [(None, orjson.dumps({"id": i, **record})) for i, record in enumerate(records)]
    assert_alone_as_together(codec, values)
    cut = data.draw(st.integers(0, len(values)))
    whole, parts = codec.decode([v for _, v in values], [None] * len(values)), [
        codec.decode([v for _, v in part], [None] * len(part)) for part in (values[:cut], values[cut:])
    ]  # fmt: skip
    assert [(one.index, one.detail, one.check, one.stops) for one in whole.refused] == [
        (one.index + first, one.detail, one.check, one.stops)
        for first, part in zip((0, cut), parts, strict=True)
        for one in part.refused
    ]
    warned = dict(parts[0].warned)
    for check, count in parts[1].warned.items():
        warned[check] = warned.get(check, 0) + count
    assert dict(whole.warned) == warned
