"""The `where` of a read and the `expr` of a contract: SQL-like text, read into a typed predicate.

``amount >= 12.5 and (status in ('a', 'b') or note like 'x%') and ordered_at < '2026-01-01' and not (x is null)``.
Names that are not plain words are quoted ``"like this"``; a field of a struct is ``address.city``. Numbers are exact,
dates, times, timestamps and UUIDs are text. (PyIceberg's own parser reads decimals by way of a float.)
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import NoReturn

import numpy as np

from harness_pipelines.errors import UsageError
from harness_pipelines.spec import predicate as p
from harness_pipelines.spec.predicate import Op, Predicate, Ref, Value
from harness_pipelines.spec.types import DecimalType, Primitive, StructType, Type, unstorable
from harness_pipelines.spec.wording import unknown_name

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<word>[^\W\d]\w*)
    | (?P<sign><=|>=|<>|!=|==|[=<>(),.])
    )""",
    re.VERBOSE,
)
_SIGNS = {"=": Op.EQ, "==": Op.EQ, "!=": Op.NE, "<>": Op.NE, "<": Op.LT, "<=": Op.LE, ">": Op.GT, ">=": Op.GE}
CHARS_MAX = 2**20
NESTING_MAX = 100
_BITS = {"int": 31, "long": 63}
_EXPONENT_MAX = 60  #: beyond the digits of every type, 38 on either side of the point
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_FRACTION = re.compile(r"\.\d{7,}")
_STRAY_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\(?![%_\\])")
_MICROSECOND = dt.timedelta(microseconds=1)


class WhereError(UsageError):
    """A `where` that cannot be parsed, or that names an unknown column or value."""


def parse_where(text: str, columns: Mapping[str, Type]) -> Predicate:
    """Read *text* against *columns* (name to type, coordinates among them).

    Raises: WhereError with the place, what was found and what is allowed.
    """
    return _Parser(text, columns).whole()


@dataclass(frozen=True, slots=True)
class Pair:
    """A comparison of two columns of one row: a boolean column that exists while a rule is evaluated."""

    name: str  #: of that column; no column of a table has such a name
    left: Ref
    op: Op
    right: Ref


def parse_row_rule(text: str, columns: Mapping[str, Type]) -> tuple[Predicate, tuple[Pair, ...]]:
    """Read *text* as `parse_where` does; both sides of a comparison may be columns.

    The predicate names each such `Pair` as a column. Raises: WhereError.
    """
    parser = _RowParser(text, columns)
    return parser.whole(), tuple(parser.pairs)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class _Literal:
    value: str | Decimal | bool


class _Parser:
    """Recursive descent: or < and < not < comparison."""

    word = "where"  #: how messages call the text

    def __init__(self, text: str, columns: Mapping[str, Type]) -> None:
        self._text, self._columns = text, columns
        self._tokens = list(self._scan(text))
        self._next = 0
        self._depth = 0

    def whole(self) -> Predicate:
        found = self._either()
        if self._peek().kind != "end":
            self._wrong("'and', 'or' or the end")
        return found

    def _scan(self, text: str) -> Sequence[_Token]:
        tokens, at = [], 0
        if len(text) > CHARS_MAX:
            raise WhereError(f"{self.word}: {len(text):,} characters; at most {CHARS_MAX:,} are read")
        if (found := unstorable(text)) is not None:
            raise WhereError(f"{self.word}: {found}; no text of a table has it")
        end = len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                rest = text[at:].lstrip()
                place = len(text) - len(rest) + 1
                raise WhereError(f"{self.word} {text!r}: cannot read {rest[:20]!r} at character {place}")
            tokens.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
            at = match.end()
        return [*tokens, _Token("end", "", len(text))]

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _accept(self, *words: str) -> bool:
        token = self._peek()
        if token.kind in ("word", "sign") and token.text.lower() in words:
            self._next += 1
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._accept(sign):
            self._wrong(repr(sign))

    def _wrong(self, expected: str) -> NoReturn:
        token = self._peek()
        found = repr(token.text) if token.kind != "end" else "the end"
        raise WhereError(f"{self.word} {self._text!r}: expected {expected}, found {found} at character {token.at + 1}")

    def _either(self) -> Predicate:
        parts = [self._both()]
        while self._accept("or"):
            parts.append(self._both())
        return p.any_of(*parts)

    def _both(self) -> Predicate:
        parts = [self._not()]
        while self._accept("and"):
            parts.append(self._not())
        return p.all_of(*parts)

    def _not(self) -> Predicate:
        if self._accept("not"):
            with self._nested():
                return p.negate(self._not())
        if self._accept("("):
            with self._nested():
                inner = self._either()
            self._expect(")")
            return inner
        return self._comparison()

    @contextmanager
    def _nested(self) -> Iterator[None]:
        """One level deeper; engines read the predicate recursively, so its depth is bounded here."""
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise WhereError(f"{self.word}: parentheses and 'not' are nested more than {NESTING_MAX} deep")
        yield
        self._depth -= 1

    def _comparison(self) -> Predicate:
        if self._is_literal():
            literal = self._literal()
            if isinstance(literal.value, bool) and self._peek().text not in _SIGNS:
                return p.Constant(literal.value)
            op = self._op().turned
            return self._against(self._ref(), op, literal.value)
        ref = self._ref()
        if self._peek().text in _SIGNS:
            return self._compared(ref, self._op())
        if self._accept("is"):
            return self._is(ref)
        negated = self._accept("not")
        for word, rest in (("in", self._in), ("like", self._like), ("between", self._between)):
            if self._accept(word):
                found = rest(ref)
                return p.negate(found) if negated else found
        if not negated and ref.type == Primitive("boolean"):
            return p.Compare(ref, Op.EQ, True)
        self._wrong("a comparison, 'is', 'in', 'like' or 'between'")

    def _compared(self, ref: Ref, op: Op) -> Predicate:
        return self._against(ref, op, self._literal().value)

    def _against(self, ref: Ref, op: Op, literal: str | Decimal | bool) -> Predicate:
        return compared(ref, op, literal)

    def _op(self) -> Op:
        if self._peek().text not in _SIGNS:
            self._wrong("a comparison")
        return _SIGNS[self._take().text]

    def _is(self, ref: Ref) -> Predicate:
        negated = self._accept("not")
        if self._accept("null"):
            return p.IsNull(ref, negated)
        if self._accept("nan"):
            if ref.type not in (Primitive("float"), Primitive("double")):
                raise WhereError(f"'is nan' needs a float or double, {_name(ref)} is {ref.type}")
            return p.IsNaN(ref, negated)
        self._wrong("'null', 'nan' or 'not'")

    def _in(self, ref: Ref) -> Predicate:
        self._expect("(")
        parts = [compared(ref, Op.EQ, self._literal().value)]
        while self._accept(","):
            parts.append(compared(ref, Op.EQ, self._literal().value))
        self._expect(")")
        values = tuple(dict.fromkeys(part.value for part in parts if isinstance(part, p.Compare)))
        return p.OneOf(ref, values)

    def _like(self, ref: Ref) -> Predicate:
        pattern = self._literal().value
        if ref.type != Primitive("string") or not isinstance(pattern, str):
            raise WhereError(f"'like' compares a string with a pattern in quotes, {_name(ref)} is {ref.type}")
        if _STRAY_ESCAPE.search(pattern):
            raise WhereError(f"pattern {pattern!r}: a backslash quotes '%', '_' or another backslash, nothing else")
        return p.Like(ref, pattern)

    def _between(self, ref: Ref) -> Predicate:
        low = self._against(ref, Op.GE, self._literal().value)
        self._expect("and")
        return p.all_of(low, self._against(ref, Op.LE, self._literal().value))

    def _is_literal(self) -> bool:
        token = self._peek()
        return token.kind in ("text", "number") or (
            token.kind == "word" and token.text.lower() in ("true", "false") and token.text not in self._columns
        )

    def _literal(self) -> _Literal:
        token = self._peek()
        if token.kind == "word" and token.text.lower() in ("date", "time", "timestamp"):
            self._take()  # DATE '2026-01-01' as in SQL; the column's type decides
            if self._peek().kind != "text":
                self._wrong("text in single quotes")
            token = self._peek()
        if token.kind == "text":
            return _Literal(self._take().text[1:-1].replace("''", "'"))
        if token.kind == "number":
            try:
                number = Decimal(token.text)
            except InvalidOperation:
                self._wrong("a number with an exponent of at most 17 digits")
            self._take()
            return _Literal(number)
        if token.kind == "word" and token.text.lower() in ("true", "false"):
            return _Literal(self._take().text.lower() == "true")
        self._wrong("a number, text in single quotes, true or false")

    def _ref(self) -> Ref:
        path = [self._identifier()]
        while self._accept("."):
            path.append(self._identifier())
        if path[0] not in self._columns and self._peek().text == "(":
            raise WhereError(f"{self.word} {self._text!r}: {path[0]}() is a function, and conditions have none")
        if path[0] not in self._columns:
            raise WhereError(f"{self.word} {self._text!r}: " + unknown_name(path[0], list(self._columns)))
        found = self._columns[path[0]]
        for i, name in enumerate(path[1:], start=1):
            fields = {f.name: f.type for f in found.fields} if isinstance(found, StructType) else {}
            if name not in fields:
                allowed = ", ".join(fields) or "none, it is no struct"
                place = ".".join(path[:i])
                raise WhereError(f"{self.word} {self._text!r}: {place} has no field {name!r} (fields: {allowed})")
            found = fields[name]
        return Ref(tuple(path), found)

    def _identifier(self) -> str:
        token = self._peek()
        if token.kind == "word":
            return self._take().text
        if token.kind == "quoted":
            return self._take().text[1:-1].replace('""', '"')
        self._wrong("a column")


class _RowParser(_Parser):
    """Takes a column on either side."""

    word = "expr"

    def __init__(self, text: str, columns: Mapping[str, Type]) -> None:
        super().__init__(text, columns)
        self.pairs: list[Pair] = []

    def _compared(self, ref: Ref, op: Op) -> Predicate:
        token = self._peek()
        if token.kind not in ("word", "quoted") or self._is_literal() or self._is_dated():
            return super()._compared(ref, op)
        other = self._ref()
        if why := _not_comparable(ref, other):
            raise WhereError(f"{self.word} {self._text!r}: {why}")
        pair = Pair(f"\x00{len(self.pairs)}", ref, op, other)
        self.pairs.append(pair)
        return p.Compare(Ref((pair.name,), Primitive("boolean")), Op.EQ, True)

    def _is_dated(self) -> bool:
        """DATE '2026-01-01': the word in front of text in quotes is no column."""
        following = self._tokens[self._next + 1]
        return self._peek().text.lower() in ("date", "time", "timestamp") and following.kind == "text"


_ALIKE = ({"int", "long"}, {"float", "double"})
_DIGITS_MAX = 38


def _not_comparable(left: Ref, right: Ref) -> str | None:
    """Why two columns cannot be compared exactly."""
    one, other = left.type, right.type
    if isinstance(one, DecimalType) and isinstance(other, DecimalType):
        whole = max(one.precision - one.scale, other.precision - other.scale)
        if whole + max(one.scale, other.scale) <= _DIGITS_MAX:
            return None
    elif isinstance(one, Primitive) and (one == other or any({str(one), str(other)} <= alike for alike in _ALIKE)):
        return None
    said = f"{_name(left)} is {one}, {_name(right)} is {other}: they cannot be compared exactly"
    return f"{said}; your own pandera schema (`module`) can"


def compared(ref: Ref, op: Op, literal: str | Decimal | bool) -> Predicate:
    """``ref op literal`` with the literal in the column's physical form.

    A number that the column cannot hold (a fraction, too many digits, out of range) is not rounded: the comparison is
    rewritten to an exact one. Where it says the same of every number, it is ``in ()`` or ``not in ()``: unknown for
    NULL, as any comparison is, and under a NOT too. Raises: WhereError.
    """
    match ref.type:
        case Primitive("int" | "long" as name) if isinstance(literal, Decimal):
            limit = 2 ** _BITS[name]
            return _exact(ref, op, literal, scale=0, low=-limit, high=limit - 1)
        case DecimalType(precision, scale) if isinstance(literal, Decimal):
            bound = 10**precision - 1
            return _exact(ref, op, literal, scale=scale, low=-bound, high=bound)
        case Primitive("float") if isinstance(literal, Decimal):
            with np.errstate(over="ignore"):
                return p.Compare(ref, op, float(np.float32(float(literal))))
        case Primitive("double") if isinstance(literal, Decimal):
            return p.Compare(ref, op, float(literal))
        case Primitive("boolean") if isinstance(literal, bool):
            return p.Compare(ref, op, literal)
        case Primitive("string") if isinstance(literal, str):
            return p.Compare(ref, op, literal)
        case Primitive(name) if isinstance(literal, str) and name in _FROM_TEXT:
            return p.Compare(ref, op, _from_text(ref, name, literal))
    found = "text" if isinstance(literal, str) else "a number" if isinstance(literal, Decimal) else "true or false"
    raise WhereError(f"{_name(ref)} is {ref.type}: it cannot be compared with {found} ({literal!s})")


def _exact(ref: Ref, op: Op, literal: Decimal, *, scale: int, low: int, high: int) -> Predicate:
    if not literal.is_finite():
        raise WhereError(f"{_name(ref)} is {ref.type}: it never holds {literal}")
    if literal and abs(literal.adjusted()) > _EXPONENT_MAX:
        # As far from every value of the column, and not a ratio of numbers as long as the exponent says.
        beyond = _EXPONENT_MAX if literal.adjusted() > 0 else -_EXPONENT_MAX
        literal = Decimal((int(literal.is_signed()), (1,), beyond))
    numerator, denominator = literal.as_integer_ratio()
    below, remainder = divmod(numerator * 10**scale, denominator)
    if remainder:
        # Between two values of the column: above it means from the next one on.
        if op in (Op.EQ, Op.NE):
            return p.OneOf(ref, (), negated=op is Op.NE)
        op = Op.LE if op in (Op.LT, Op.LE) else Op.GT
    if low <= below <= high:
        return p.Compare(ref, op, _scaled(below, scale) if isinstance(ref.type, DecimalType) else below)
    holds = op in ((Op.LT, Op.LE, Op.NE) if below > high else (Op.GT, Op.GE, Op.NE))
    return p.OneOf(ref, (), negated=holds)


def _scaled(unscaled: int, scale: int) -> Decimal:
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def _from_text(ref: Ref, name: str, text: str) -> Value:
    try:
        if _FRACTION.search(text):
            raise ValueError("more than 6 digits of a second")
        return _FROM_TEXT[name](text.strip())
    except (ValueError, InvalidOperation) as error:
        raise WhereError(f"{_name(ref)} is {ref.type}: {text!r} is not {_FORMS[name]} ({error})") from error


def _days(text: str) -> int:
    return dt.date.fromisoformat(text).toordinal() - _EPOCH_DAY


def _micros_of_day(text: str) -> int:
    time = dt.time.fromisoformat(text)
    if time.tzinfo is not None:
        raise ValueError("a time has no zone")
    return (dt.datetime.combine(dt.date.min, time) - dt.datetime.min) // _MICROSECOND


def _micros(text: str) -> int:
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        raise ValueError("it has a zone, the column has none")
    return (moment - dt.datetime(1970, 1, 1)) // _MICROSECOND


def _micros_utc(text: str) -> int:
    moment = dt.datetime.fromisoformat(text)
    zone = moment.utcoffset() or dt.timedelta(0)
    return (moment.replace(tzinfo=None) - dt.datetime(1970, 1, 1) - zone) // _MICROSECOND


def _uuid_bytes(text: str) -> bytes:
    return uuid.UUID(text).bytes


def _hex_bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("\\x"))


_FROM_TEXT: Mapping[str, Callable[[str], Value]] = {
    "date": _days,
    "time": _micros_of_day,
    "timestamp": _micros,
    "timestamptz": _micros_utc,
    "uuid": _uuid_bytes,
    "binary": _hex_bytes,
}
_FORMS = {
    "date": "a date like 2026-01-31",
    "time": "a time like 23:59:59.999999",
    "timestamp": "a timestamp like 2026-01-31 23:59:59",
    "timestamptz": "a timestamp like 2026-01-31T23:59:59Z (UTC if it names no zone)",
    "uuid": "a UUID",
    "binary": "hexadecimal bytes",
}


def _name(ref: Ref) -> str:
    return ".".join(ref.path)
