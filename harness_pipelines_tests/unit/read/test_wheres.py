"""A `where` means what SQL says, of NULL and under NOT too, whatever number it compares with."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings

from harness_pipelines.spec.arrow import to_arrow
from harness_pipelines.spec.predicate import comparisons, negate
from harness_pipelines.spec.where import parse_where
from harness_pipelines_tests.unit.read.predicates import holds, physical
from harness_pipelines_tests.unit.read.wheres import COLUMNS, Reference, Rendered, rows, table_of, wheres

TABLE = table_of(rows())
REFERENCE = Reference(TABLE)
NUMBERED = TABLE.append_column("row", pa.array(range(TABLE.num_rows)))


@settings(max_examples=300)
@given(wheres())
def test_arrow_gives_the_rows_that_duckdb_gives(where: Rendered):
    text, exact = where
    predicate = parse_where(text, COLUMNS)
    expected = REFERENCE.matches(exact)
    assert NUMBERED.filter(to_arrow(predicate)).column("row").to_pylist() == expected
    values = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*map(physical, TABLE.columns), strict=True)]
    assert [i for i, row in enumerate(values) if holds(predicate, row)] == expected


@settings(max_examples=100)
@given(wheres())
def test_what_is_unknown_is_neither_true_nor_false(where: Rendered):
    """As a contract asks: of comparisons alone Arrow's answer is NULL where SQL's is."""
    text, exact = where
    predicate = comparisons(parse_where(text, COLUMNS))
    false = NUMBERED.filter(~to_arrow(predicate)).column("row").to_pylist()
    assert false == REFERENCE.matches(f"not ({exact})")
    assert NUMBERED.filter(to_arrow(negate(predicate))).column("row").to_pylist() == false


@pytest.mark.parametrize(
    "where",
    [
        "not (n > 3000000000)", "not (n != 1.5)", "not (n < 3e9)", "n not between 0 and 3000000000", "not (n in (1.5))",
        "not (not (amount = 0.001))", "not (id < 1e30 and n = 1)",
    ],
)  # fmt: skip
def test_no_null_comes_through_a_comparison_with_a_number_that_the_column_cannot_hold(where: str):
    predicate = parse_where(where, COLUMNS)
    found = TABLE.filter(to_arrow(predicate))
    if "id" not in where and "amount" not in where:
        assert found.column("n").null_count == 0
    assert found.num_rows == len(REFERENCE.matches(where.replace("1e30", "CAST(1e30 AS DOUBLE)")))
