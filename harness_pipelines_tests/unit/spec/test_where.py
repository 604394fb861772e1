"""The text of a `where`: what it may say, and what its errors say."""

from __future__ import annotations

from decimal import Decimal

import pytest

from harness_pipelines.spec import predicate as p
from harness_pipelines.spec.predicate import Op, Ref
from harness_pipelines.spec.types import parse_type
from harness_pipelines.spec.where import WhereError, parse_where

COLUMNS = {
    name: parse_type(text)
    for name, text in {
        "id": "long",
        "n": "int",
        "amount": "decimal(12,2)",
        "wide": "decimal(38,2)",
        "ratio": "double",
        "small": "float",
        "ok": "boolean",
        "status": "string",
        "day": "date",
        "at": "timestamptz",
        "local": "timestamp",
        "clock": "time",
        "key": "uuid",
        "raw": "binary",
        "address": "struct<city: string, zip: int>",
        "two words": "int",
        "tags": "list<string>",
    }.items()
}


def ref(name: str) -> Ref:
    path = tuple(name.split("."))
    return Ref(path, COLUMNS[name] if len(path) == 1 else parse_type("string"))


def parsed(text: str) -> p.Predicate:
    return parse_where(text, COLUMNS)


def one(name: str, op: Op, value: p.Value) -> p.Compare:
    return p.Compare(ref(name), op, value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id = 5", one("id", Op.EQ, 5)),
        ("id == 5", one("id", Op.EQ, 5)),
        ("5 < id", one("id", Op.GT, 5)),
        ("id <> -5", one("id", Op.NE, -5)),
        ('"two words" >= 1', one("two words", Op.GE, 1)),
        ("status = 'it''s'", one("status", Op.EQ, "it's")),
        ("ok", one("ok", Op.EQ, True)),
        ("not ok", one("ok", Op.NE, True)),
        ("ok = FALSE", one("ok", Op.EQ, False)),
        ("true", p.TRUE),
        ("ratio > 1e3", one("ratio", Op.GT, 1000.0)),
        ("ratio is nan", p.IsNaN(ref("ratio"))),
        ("tags is not null", p.IsNull(ref("tags"), negated=True)),
        ("n in (1, 2, 2)", p.OneOf(ref("n"), (1, 2))),
        ("n not in (1)", p.OneOf(ref("n"), (1,), negated=True)),
        ("status like 'a%'", p.Like(ref("status"), "a%")),
        ("status not like '_b'", p.Like(ref("status"), "_b", negated=True)),
        ("address.city = 'x'", one("address.city", Op.EQ, "x")),
        ("n between 1 and 3", p.All((one("n", Op.GE, 1), one("n", Op.LE, 3)))),
        ("n not between 1 and 3", p.AnyOf((one("n", Op.LT, 1), one("n", Op.GT, 3)))),
        ("n = 1 or n = 2 and id = 3", p.AnyOf((one("n", Op.EQ, 1), p.All((one("n", Op.EQ, 2), one("id", Op.EQ, 3)))))),
        ("not (n = 1 or id < 3)", p.All((one("n", Op.NE, 1), one("id", Op.GE, 3)))),
        ("day >= '1970-01-03'", one("day", Op.GE, 2)),
        ("day >= DATE '1969-12-31'", one("day", Op.GE, -1)),
        ("at < '1970-01-01T01:00:00+01:00'", one("at", Op.LT, 0)),
        ("at < TIMESTAMP '1970-01-01 00:00:01'", one("at", Op.LT, 1_000_000)),
        ("local < '0001-01-01'", one("local", Op.LT, -62_135_596_800_000_000)),
        ("clock = '00:00:01.5'", one("clock", Op.EQ, 1_500_000)),
        ("key = '00000000-0000-0000-0000-000000000001'", one("key", Op.EQ, b"\0" * 15 + b"\1")),
        ("raw = '\\x0a0b'", one("raw", Op.EQ, b"\x0a\x0b")),
    ],
)
def test_a_where_reads_as_in_sql(text, expected):
    assert parsed(text) == expected


def test_decimals_are_exact_whatever_their_length():
    assert parsed("wide = 123456789012345678901234567890123456.78") == one(
        "wide", Op.EQ, Decimal("123456789012345678901234567890123456.78")
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("amount > 1.005", one("amount", Op.GT, Decimal("1.00"))),
        ("amount >= 1.005", one("amount", Op.GT, Decimal("1.00"))),
        ("amount < 1.005", one("amount", Op.LE, Decimal("1.00"))),
        ("amount > -1.005", one("amount", Op.GT, Decimal("-1.01"))),
        ("amount = 1.005", p.OneOf(ref("amount"), ())),
        ("amount != 1.005", p.OneOf(ref("amount"), (), negated=True)),
        ("n > 2.5", one("n", Op.GT, 2)),
        ("n < 2147483648", p.OneOf(ref("n"), (), negated=True)),
        ("n >= 2147483648", p.OneOf(ref("n"), ())),
        ("n in (1, 1.5)", p.OneOf(ref("n"), (1,))),
        ("n < 1e999999999999", p.OneOf(ref("n"), (), negated=True)),
        ("wide <= -1e999999999999", p.OneOf(ref("wide"), ())),
        ("id > 1e-999999999999", one("id", Op.GT, 0)),
        ("wide < -1e-999999999999", one("wide", Op.LE, Decimal("-0.01"))),
        ("wide = 0e999999999999", one("wide", Op.EQ, Decimal("0.00"))),
    ],
)
def test_a_number_that_the_column_cannot_hold_is_compared_and_not_rounded(text, expected):
    assert parsed(text) == expected


def test_a_number_is_compared_with_a_float_column_in_the_columns_own_width():
    assert parsed("small = 0.1") == one("small", Op.EQ, 0.10000000149011612)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nope = 1", "there is no column 'nope'; columns: id, n, amount"),
        ("ID = 1", "did you mean 'id'?"),
        ("statsu = 'x'", "did you mean 'status'?"),
        ("id = ", "expected a number, text in single quotes, true or false, found the end at character 6"),
        ("id 5", "expected a comparison, 'is', 'in', 'like' or 'between', found '5' at character 4"),
        ("id = 5 status = 'a'", "expected 'and', 'or' or the end, found 'status' at character 8"),
        ("(id = 5", "expected '\\)', found the end"),
        ("id = 5 ; drop table x", "cannot read '; drop table x' at character 8"),
        ("id < 1e9999999999999999999", "expected a number with an exponent of at most 17 digits, found '1e99"),
        ("ratio < 1e-9999999999999999999", "expected a number with an exponent of at most 17 digits"),
        ("id = 'five'", "id is long: it cannot be compared with text"),
        ("status = 5", "status is string: it cannot be compared with a number"),
        ("day = '2026-02-30'", "day is date: '2026-02-30' is not a date like 2026-01-31"),
        ("at = '2026-01-01T00:00:00.1234567Z'", "more than 6 digits of a second"),
        ("local = '2026-01-01T00:00:00Z'", "it has a zone, the column has none"),
        ("tags = 'x'", "tags is list<string>: it cannot be compared with text"),
        ("address.street = 'x'", "address has no field 'street' \\(fields: city, zip\\)"),
        ("id is nan", "'is nan' needs a float or double, id is long"),
        ("status like 'a\\b'", "a backslash quotes '%', '_' or another backslash"),
        ("n like 'a%'", "'like' compares a string with a pattern"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(text, message):
    with pytest.raises(WhereError, match=message):
        parsed(text)


@pytest.mark.parametrize(
    ("pattern", "prefix", "is_prefix"),
    [("ab%", "ab", True), ("a%b", "a", False), ("a_%", "a", False), ("a\\%b%", "a%b", True), ("ab", "ab", False),
     ("%", "", True), ("a\\%", "a%", False), ("a\\\\%", "a\\", True), ("a\\\\\\%", "a\\%", False),
     ("a\\%%", "a%", True)],
)  # fmt: skip
def test_the_fixed_beginning_of_a_pattern_is_known(pattern, prefix, is_prefix):
    like = p.Like(ref("status"), pattern)

    assert (like.prefix, like.is_prefix) == (prefix, is_prefix)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(" * 3000 + "n = 1" + ")" * 3000, "nested more than 100 deep"),
        ("not " * 5000 + "n = 1", "nested more than 100 deep"),
        ("s = '\ud800'", r"half of a surrogate pair \(U\+D800\)"),
        ("s = '\0'", r"U\+0000 at character 6"),
        ("n in (" + "1," * 600_000 + "1)", "at most 1,048,576 are read"),
    ],
)
def test_a_hostile_text_is_refused_by_name(text, message):
    columns = {"n": parse_type("int"), "s": parse_type("string")}
    with pytest.raises(WhereError, match=message):
        parse_where(text, columns)
