"""Every type has one order of values, a next one, and a text without loss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.layout.columns import (
    TEXT_CUT_CHARS,
    ColumnNotIndexable,
    IndexedColumn,
    ShapesDiffer,
    check_columns,
    codes,
    column_values,
)
from harness_pipelines_tests.unit.layout.given import NAN, TYPES, values_of

every_type = pytest.mark.parametrize("column", [IndexedColumn("c", name) for name in TYPES], ids=TYPES)


@every_type
@given(data=st.data())
def test_a_cut_survives_its_text(column, data):
    cut = column.as_cut(data.draw(values_of(column)))

    again = column.from_text(column.to_text(cut))

    assert again == cut
    assert type(again) is type(cut)
    assert column.to_text(again) == column.to_text(cut)


@every_type
@given(data=st.data())
def test_no_cut_lies_between_a_cut_and_its_successor(column, data):
    cut, other = (column.as_cut(data.draw(values_of(column))) for _ in range(2))

    after = column.successor(cut)

    assert after is None or after > cut
    assert other <= cut or (after is not None and other >= after)
    assert after is None or column.checked(after) == after


@every_type
@given(data=st.data())
def test_codes_count_the_cuts_at_or_below_and_tell_nan_and_null_apart(column, data):
    cuts = sorted({column.as_cut(value) for value in data.draw(st.lists(values_of(column), max_size=6))})
    values = data.draw(st.lists(st.one_of(st.none(), values_of(column)), max_size=10))
    lines = column_values(column, cuts).values

    found = codes(column_values(column, values), lines)

    expected = [len(cuts) + 2 if v is None else sum(cut <= v for cut in cuts) for v in values]
    assert found.tolist() == expected
    if column.is_float:
        assert codes(column_values(column, [NAN]), lines).tolist() == [len(cuts) + 1]


@given(st.text(max_size=40), st.text(max_size=40))
def test_text_orders_as_its_utf_8_bytes_do(a, b):
    def as_bytes(text: str) -> bytes:
        return text.encode("utf-8", "surrogatepass")

    assert (a < b) == (as_bytes(a) < as_bytes(b))


def test_the_next_text_skips_what_is_no_character_and_ends_somewhere():
    column, full = IndexedColumn("c", "string"), "a" * (TEXT_CUT_CHARS - 1)

    assert column.successor("a") == "a\0"
    assert column.successor(full + "b") == full + "c"
    assert column.successor(full + "\ud7ff") == full + "\ue000"
    assert column.successor(full + "\U0010ffff") == "a" * (TEXT_CUT_CHARS - 2) + "b"
    assert column.successor("\U0010ffff" * TEXT_CUT_CHARS) is None


@pytest.mark.parametrize("name", ["binary", "list<int>", "decimal(9)", "varchar", "fixed[4]"])
def test_a_type_without_an_order_is_refused_with_column_type_and_the_allowed_ones(name):
    with pytest.raises(ColumnNotIndexable, match=r"'tags'.*boolean, int.*uuid, found.*leave the column out"):
        IndexedColumn("tags", name)


def test_none_ten_or_equal_columns_are_refused():
    column = IndexedColumn("a", "int")
    for columns in ([], [IndexedColumn(f"c{i}", "int") for i in range(10)], [column, column]):
        with pytest.raises(ColumnNotIndexable, match="expected"):
            check_columns(columns)


def test_a_null_mask_of_another_length_is_refused():
    values = column_values(IndexedColumn("a", "int"), [1, None])
    with pytest.raises(ShapesDiffer, match="one null flag per value"):
        type(values)(values.values, np.zeros(3, dtype=bool))
