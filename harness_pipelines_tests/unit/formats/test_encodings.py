"""Values that are written otherwise than as JSON's own: `from` in the spec."""

from __future__ import annotations

import base64
import binascii
import json
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.columns.encodings import Form
from harness_pipelines.formats.json.objects import JsonCodec
from harness_pipelines.spec.table import TableSpec


def codec(type_: str, source: str) -> JsonCodec:
    return JsonCodec(TableSpec(table="a.b", columns={"x": {"type": type_, "from": source}}).columns)


def decode(of: JsonCodec, *values: Any) -> Decoded:
    return of.decode([json.dumps({"x": value}).encode() for value in values])


def connect(number: int) -> str:
    """As `BigInteger.toByteArray`: the fewest bytes that hold the sign."""
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


@pytest.mark.parametrize(
    ("type_", "source", "values", "expected"),
    [
        ("date", "epoch_days", [0, -719162, 2932896], [date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31)]),
        ("list<date>", "epoch_days", [[1, None], []], [[date(1970, 1, 2), None], []]),
        ("time", "ms_of_day", [0, 86399999], [time(), time(23, 59, 59, 999000)]),
        ("time", "us_of_day", [1, 86399999999], [time(0, 0, 0, 1), time(23, 59, 59, 999999)]),
        ("time", "ns_of_day", [1999, 86399999999999], [time(0, 0, 0, 1), time(23, 59, 59, 999999)]),
        ("timestamp", "epoch_ms", [-1], [datetime(1969, 12, 31, 23, 59, 59, 999000)]),
        ("timestamp", "epoch_ns", [1999], [datetime(1970, 1, 1, 0, 0, 0, 1)]),
        ("timestamp", "epoch_ns", [-1], [datetime(1969, 12, 31, 23, 59, 59, 999999)]),
        ("timestamptz", "epoch_ns", [1000], [datetime(1970, 1, 1, 0, 0, 0, 1, UTC)]),
        ("list<timestamptz>", "epoch_us", [[1]], [[datetime(1970, 1, 1, 0, 0, 0, 1, UTC)]]),
        ("decimal(5,2)", "base64", [connect(12345), connect(-1)], [Decimal("123.45"), Decimal("-0.01")]),
        ("list<decimal(5,2)>", "base64", [[connect(5), None]], [[Decimal("0.05"), None]]),
        ("decimal(5,2)", "base64", [{"scale": 1, "value": connect(15)}, None], [Decimal("1.50"), None]),
        ("decimal(5,0)", "base64", [{"scale": -2, "value": connect(123)}], [Decimal(12300)]),
        ("decimal(5,0)", "base64", [{"scale": 2046, "value": connect(12300 * 10**2046)}], [Decimal(12300)]),
        ("decimal(5,2)", "number", [1.5, "1.5"], [Decimal("1.50"), Decimal("1.50")]),
    ],
)  # fmt: skip
def test_a_value_is_read_in_its_form(type_: str, source: str, values: list[Any], expected: list[Any]):
    found = decode(codec(type_, source), *values)
    assert found.refused == []
    assert found.rows.column("x").to_pylist() == expected


@given(texts=st.lists(st.none() | st.text("AEQg/8=", max_size=9) | st.binary(max_size=9).map(base64.b64encode)))
def test_bytes_have_one_text_and_a_verdict_does_not_depend_on_those_beside_it(texts: list[str | bytes | None]):
    texts = [text.decode() if isinstance(text, bytes) else text for text in texts]
    found = decode(JsonCodec(TableSpec(table="a.b", columns={"x": "binary"}).columns), *texts)
    rows = dict(zip(found.accepted.tolist(), found.rows.column("x").to_pylist(), strict=True))
    for place, text in enumerate(texts):
        if place in rows:
            value = rows[place]
            assert text == (value if value is None else base64.b64encode(value).decode())
        else:
            assert text is not None
            with suppress(binascii.Error):
                assert base64.b64encode(base64.b64decode(text, validate=True)).decode() != text
    assert len(rows) + len(found.refused) == len(texts)


@pytest.mark.parametrize(
    ("type_", "source", "value", "reason", "detail"),
    [
        ("date", "epoch_days", 2932897, Reason.OUT_OF_RANGE, "`x`: expected integer <= 2932896, got a larger one"),
        ("date", "epoch_days", "2026-01-31", Reason.WRONG_TYPE, "`x`: expected integer, got string"),
        ("date", "iso8601", 20484, Reason.WRONG_TYPE, "`x`: expected string, got integer"),
        ("time", "ms_of_day", 86400000, Reason.OUT_OF_RANGE, "`x`: expected integer <= 86399999, got a larger one"),
        ("time", "ns_of_day", -1, Reason.OUT_OF_RANGE, "`x`: expected integer >= 0, got a smaller one"),
        ("timestamp", "epoch_ns", 2**63, Reason.OUT_OF_RANGE, "`x`: expected integer <= "),
        ("decimal(5,2)", "base64", "1.5", Reason.WRONG_TYPE, "`x`: invalid base64"),
        ("decimal(5,2)", "base64", 1.5, Reason.WRONG_TYPE, "`x`: expected "),
        ("decimal(5,2)", "base64", "AR==", Reason.WRONG_TYPE, "`x`: base64 whose last letter has bits"),
        ("decimal(38,2)", "base64", "AR==", Reason.WRONG_TYPE, "base64 whose last letter has bits that no byte takes"),
        ("decimal(5,2)", "base64", {"scale": 2, "value": "AR=="}, Reason.WRONG_TYPE, "base64 whose last letter has"),
        ("decimal(5,2)", "base64", "", Reason.WRONG_TYPE, "`x`: expected the bytes of a number for decimal(5, 2)"),
        ("decimal(5,2)", "base64", connect(100000), Reason.OUT_OF_RANGE,
         "`x`: a decimal of scale 2 does not fit decimal(5, 2) exactly"),
        ("decimal(5,2)", "base64", {"scale": 3, "value": connect(1)}, Reason.OUT_OF_RANGE,
         "`x`: a decimal of scale 3 does not fit decimal(5, 2) exactly"),
        ("decimal(5,2)", "base64", {"scale": 10**9, "value": connect(1)}, Reason.OUT_OF_RANGE, "of scale 1000000000"),
        ("decimal(5,2)", "base64", {"scale": -(10**9), "value": connect(1)}, Reason.OUT_OF_RANGE, "of scale -10000000"),
        ("decimal(5,2)", "base64", {"scale": 2, "value": "f" * 4_000_000}, Reason.OUT_OF_RANGE, "of scale 2"),
        ("decimal(5,2)", "base64", {"scale": 2}, Reason.MISSING_FIELD, "`x.value`: required, but missing"),
    ],
)  # fmt: skip
def test_what_is_not_in_its_form_or_does_not_fit_is_refused_alone(
    type_: str, source: str, value: Any, reason: Reason, detail: str
):
    found = decode(codec(type_, source), None, value, None)
    assert [(one.index, one.reason) for one in found.refused] == [(1, reason)]
    assert detail in found.refused[0].detail


@given(
    number=st.integers(-(10**40), 10**40),
    scale=st.integers(-5, 45),
    precision=st.integers(1, 38),
    data=st.data(),
)
def test_a_decimal_is_read_exactly_or_not_at_all(number: int, scale: int, precision: int, data: st.DataObject):
    to_scale = data.draw(st.integers(0, precision))
    columns = TableSpec(
        table="a.b", columns={"x": {"type": f"decimal({precision},{to_scale})", "from": "base64"}}
    ).columns
    with localcontext(prec=100):
        value = Decimal(number).scaleb(-scale)
        fits = value == value.quantize(Decimal(1).scaleb(-to_scale)) and abs(value) < Decimal(10) ** (
            precision - to_scale
        )
    told = JsonCodec(columns, forms={"x": Form("base64", scale)})
    for found in (
        decode(told, connect(number)),
        decode(JsonCodec(columns), {"scale": scale, "value": connect(number)}),
    ):
        assert [one.reason for one in found.refused] == ([] if fits else [Reason.OUT_OF_RANGE])
        assert found.rows.column("x").to_pylist() == ([value] if fits else [])


@given(number=st.integers(-(2**63), 2**63 - 1))
def test_what_is_finer_than_a_microsecond_is_cut_off_before_1970_too(number: int):
    [found] = decode(codec("timestamp", "epoch_ns"), number).rows.column("x").to_pylist()
    assert found == datetime(1970, 1, 1) + timedelta(microseconds=number // 1000)


@pytest.mark.parametrize(("value", "shown"), [("NaN", "nan"), ("-Infinity", "-inf"), (1.5, "1.5"), (None, "None")])
@pytest.mark.parametrize("type_", ["float", "double"])
def test_floats_that_json_has_no_number_for_are_text_in_events(type_: str, value: Any, shown: str):
    columns = TableSpec(table="a.b", columns={"x": type_}).columns
    named = JsonCodec(columns, forms={"x": Form("named_nan")})
    found = decode(named, value, "nan", 1e300)
    assert repr(found.rows.column("x").to_pylist()[0]) == shown
    assert [one.index for one in found.refused] == ([1, 2] if type_ == "float" else [1])
    if isinstance(value, str):
        assert [one.reason for one in decode(JsonCodec(columns), value).refused] == [Reason.WRONG_TYPE]
