"""Rows by key: how a key may be given, and that what is found is what a dictionary has."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_pipelines.protocol.reading.selection import ReadColumn, Selection, UnknownColumn
from harness_pipelines.read.point import KeyForm, KeyUnfit, literal_of_text, rows_by_key
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests.unit.read.keyed import Tiers, replay
from harness_pipelines_tests.unit.read.test_fold import cuts

ID = uuid.UUID(int=7)


def form(*kinds: str) -> KeyForm:
    columns = (
        ReadColumn(name=f"k{i}", type=parse_type(kind), required=False, field_id=i) for i, kind in enumerate(kinds)
    )
    return KeyForm(table="t.keyed", columns=tuple(columns))


@settings(max_examples=60)
@given(
    cut=cuts(),
    asked=st.lists(st.tuples(st.sampled_from([None, 0, 1, 2, 3, 9]), st.sampled_from([None, "x", "0", "y0"]))),
)
def test_rows_by_key_are_those_of_a_dictionary(cut: Tiers, asked: list[Any]):
    with cut.reader() as reader:
        found = rows_by_key(reader, cut.plan, asked, check_lease=lambda: None)

    state = {record.key: {"a": record.a, "b": record.b, "v": record.v} for record in replay(cut.log, cut.end)}
    assert found == [state.get(key) for key in asked]


@pytest.mark.parametrize(
    ("kind", "given", "physical"),
    [
        ("long", 7, 7),
        ("long", Decimal("7.0"), 7),
        ("decimal(12,2)", Decimal("7.5"), Decimal("7.50")),
        ("decimal(12,2)", 7, Decimal("7.00")),
        ("boolean", True, True),
        ("string", "7", "7"),
        ("date", dt.date(1970, 1, 8), 7),
        ("time", dt.time(0, 0, 7), 7_000_000),
        ("timestamp", dt.datetime(1970, 1, 1, 0, 0, 7), 7_000_000),
        ("timestamptz", dt.datetime(1970, 1, 1, 0, 0, 7, tzinfo=dt.UTC), 7_000_000),
        ("timestamptz", "1970-01-01T00:00:07Z", 7_000_000),
        ("uuid", ID, ID.bytes),
        ("uuid", ID.bytes, ID.bytes),
        ("uuid", str(ID), ID.bytes),
        ("binary", b"\x07\xff", b"\x07\xff"),
        ("long", None, None),
    ],
)  # fmt: skip
def test_a_value_may_be_pythons_or_its_text(kind: str, given: Any, physical: Any):
    assert form(kind).key(given) == (physical,)
    assert form(kind).key({"k0": given}) == (physical,)
    assert form(kind, "int").key((given, 1)) == (physical, 1)


@pytest.mark.parametrize(
    ("kind", "value"), [("long", Decimal("7.5")), ("int", 2**40), ("decimal(3,1)", Decimal("7.25"))]
)
def test_no_row_has_a_key_that_its_column_cannot_hold(kind: str, value: Any):
    assert form(kind).key(value) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"k0": 1}, r"the key is \(k0, k1\), not \(k0\)"),
        (5, r"the key is \(k0, k1\): 2 values, not 1"),
        ((1, 2, 3), r"the key is \(k0, k1\): 2 values, not 3"),
        (("x", "y"), "k0 is long: it cannot be compared with text"),
        ((1.5, "y"), "k0 is long: 1.5 of Python's type float is none"),
    ],
)
def test_what_is_no_key_is_refused(value: Any, message: str):
    with pytest.raises(KeyUnfit, match=message):
        form("long", "string").key(value)


@pytest.mark.parametrize("value", ["NaN", "sNaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("kind", ["long", "decimal(12, 2)"])
def test_what_is_no_number_is_no_key(kind: str, value: str):
    with pytest.raises(KeyUnfit, match=f"k0 is {re.escape(kind)}: it never holds {value}"):
        form(kind).key(Decimal(value))


def test_words_of_a_command_line_are_read_by_the_type_of_their_column():
    columns = form("long", "decimal(5,2)", "boolean", "string").columns

    assert [literal_of_text(c, t) for c, t in zip(columns, ["7", "1.5", "True", "7"], strict=True)] == [
        7, Decimal("1.5"), True, "7"
    ]  # fmt: skip
    with pytest.raises(KeyUnfit, match="'x' is no number"):
        literal_of_text(columns[0], "x")
    with pytest.raises(KeyUnfit, match="'yes' is neither true nor false"):
        literal_of_text(columns[2], "yes")


@pytest.mark.parametrize(("kind", "one"), [("string", "xy"), ("long", 12), ("uuid", ID), ("binary", b"xy")])
def test_one_value_is_what_keys_begin_with_in_the_first_column(kind: str, one: Any):
    assert form(kind, "string", "string").below(one) == form(kind, "string", "string").below((one,))


@settings(max_examples=1)
@given(cut=cuts())
def test_a_text_is_neither_several_keys_nor_several_columns(cut: Tiers):
    with cut.reader() as reader:
        for one in ("12", b"12", {"a": 1}):
            with pytest.raises(KeyUnfit, match="is one key: give a list"):
                rows_by_key(reader, cut.plan, one, check_lease=lambda: None)
        [row] = rows_by_key(reader, cut.plan, [(0, "x")], columns="v", check_lease=lambda: None)
        assert row is None or set(row) == {"v"}
        with pytest.raises(UnknownColumn, match="no column 'av'"):
            reader.read(cut.plan, Selection(columns="av"), check_lease=lambda: None)
