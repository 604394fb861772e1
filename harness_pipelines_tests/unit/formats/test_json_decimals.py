"""Decimals are exact or refused, whatever their length: judged against Python's own arithmetic."""

from __future__ import annotations

from decimal import Context, Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_pipelines.formats.base import Reason
from harness_pipelines.formats.json.objects import JsonCodec
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import DecimalType, MapType, Primitive

WIDE = Context(prec=1000, Emin=-(10**9), Emax=10**9)
kinds = st.sampled_from([(12, 2), (38, 0), (38, 10), (38, 38), (5, 5), (1, 0), (19, 0), (18, 4)])
digits = st.text("0123456789", min_size=1, max_size=60) | st.sampled_from(["9" * n for n in (37, 38, 39, 40)])


@st.composite
def numbers(draw: st.DrawFn) -> str:
    whole = draw(digits).lstrip("0") or "0"
    part = draw(st.just("") | digits.map(lambda text: f".{text}") | st.integers(1, 50).map(lambda n: "." + "0" * n))
    power = draw(st.just("") | st.integers(-70, 70).map(lambda n: f"e{n}") | st.just("E+00000002"))
    return draw(st.sampled_from(["", "-"])) + whole + part + power


def fitting(text: str, precision: int, scale: int) -> Decimal | None:
    """The value of *text* if decimal(precision, scale) has it."""
    unscaled = WIDE.scaleb(WIDE.create_decimal(text), scale)
    if unscaled != unscaled.to_integral_value(context=WIDE) or len(str(abs(int(unscaled)))) > precision:
        return None
    return WIDE.scaleb(Decimal(int(unscaled)), -scale)


@settings(max_examples=300)
@given(kinds, st.lists(numbers(), min_size=1, max_size=6), st.booleans())
def test_a_decimal_is_kept_exactly_or_refused(kind, texts, in_quotes):
    records = [f'{{"d": "{text}"}}' if in_quotes else f'{{"d": {text}}}' for text in texts]
    meant = [fitting(text, *kind) for text in texts]

    decoded = JsonCodec([Column(name="d", type=DecimalType(*kind))]).decode([r.encode() for r in records])

    assert decoded.rows["d"].to_pylist() == [value for value in meant if value is not None]
    assert [r.index for r in decoded.refused] == [i for i, value in enumerate(meant) if value is None]
    assert {r.reason for r in decoded.refused} <= {Reason.OUT_OF_RANGE}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ((38, 0), "9" * 39),
        ((38, 38), "99.0"),
        ((38, 10), "2399710395241148243642248481481376106"),
        ((12, 2), "-" + "9" * 37 + "." + "9" * 39 + "e-22"),
        ((12, 2), "1e99999999999999999999"),
        ((12, 2), "1e-99999999999999999999"),
        ((12, 2), "1e" + "9" * 5000),
    ],
)
def test_a_number_that_overflows_arrows_own_cast_is_refused(kind, text):
    columns = [
        Column(name="d", type=DecimalType(*kind)),
        Column(name="m", type=MapType(DecimalType(*kind), Primitive("int"))),
    ]

    for record in (f'{{"d": {text}}}', f'{{"d": "{text}"}}', f'{{"m": {{"{text}": 1}}}}'):
        (refused,) = JsonCodec(columns).decode([record.encode()]).refused
        assert refused.reason is Reason.OUT_OF_RANGE
        assert f"does not fit decimal({kind[0]}, {kind[1]}) exactly" in refused.detail


@pytest.mark.parametrize(
    "text", ["NaN", "sNaN", "Infinity", "-inf", "", ".", "-", "1e", "e1", " 1", "1 ", "1_0", "0x1", "\u0661", "null"]
)
def test_text_that_is_no_number_is_no_decimal(text):
    (refused,) = JsonCodec([Column(name="d", type=DecimalType(12, 2))]).decode([f'{{"d": "{text}"}}'.encode()]).refused

    assert refused.reason is Reason.WRONG_TYPE


def test_zeros_never_make_a_number_too_long():
    texts = ["1." + "0" * 90, "1" + "0" * 60 + "e-60", "0e999999999999", "0." + "0" * 60]

    decoded = JsonCodec([Column(name="d", type=DecimalType(3, 1))]).decode([f'{{"d": {t}}}'.encode() for t in texts])

    assert decoded.rows["d"].to_pylist() == [Decimal("1.0"), Decimal("1.0"), Decimal("0.0"), Decimal("0.0")]
