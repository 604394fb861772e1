"""The setting ``contract`` of a spec: checks of records' values.

Either the name of a pandera schema in the user's Python code, or checks written here. A check tests one
value or one row, never several rows: the result for a record does not depend on other records.
"""

from __future__ import annotations

import math
import operator as op
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema, model_serializer

from harness_pipelines.spec import predicate as p
from harness_pipelines.spec.part import SpecPart
from harness_pipelines.spec.predicate import Op, Predicate, Ref
from harness_pipelines.spec.types import DecimalType, Primitive, Type
from harness_pipelines.spec.where import Pair, WhereError, compared, parse_row_rule
from harness_pipelines.spec.wording import quote, shown, unknown_name

if TYPE_CHECKING:
    from harness_pipelines.spec.columns import Column
    from harness_pipelines.spec.table import TableSpec

Severity = Literal["quarantine", "warn", "stop"]
OF_LAST_DEFAULT, OF_LAST_MAX = 10_000, 10_000_000
TEXT_CHARS_MAX = 2**31 - 1
_PLACES = tuple[str | int, ...]
_OPS: Mapping[str, Op] = {"ge": Op.GE, "gt": Op.GT, "le": Op.LE, "lt": Op.LT, "eq": Op.EQ, "ne": Op.NE}
_FOR_VALUES = frozenset({*_OPS, "isin"})
_COMPARE = {Op.GE: op.ge, Op.GT: op.gt, Op.LE: op.le, Op.LT: op.lt, Op.EQ: op.eq, Op.NE: op.ne}


def _value(value: Any) -> bool | int | float | str:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"write a number, text, true or false, not {quote(value)}; dates and times are text")


def _values(value: Any) -> Any:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"write a list of values, such as [new, paid], not {quote(value)}")
    return tuple(_value(one) for one in value)


def _share(value: Any) -> float:
    share = value
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            share = float(Decimal(value.strip()[:-1].strip()) / 100)
        except InvalidOperation:
            share = None
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ValueError(f"{quote(value)} is not a share; write 0% to 100%, such as 5%, or a number such as 0.05")
    return float(share)


_SCALAR = {"type": ["number", "string", "boolean"]}
Value = Annotated[bool | int | float | str, PlainValidator(_value), WithJsonSchema(_SCALAR)]
Values = Annotated[
    tuple[bool | int | float | str, ...],
    PlainValidator(_values),
    WithJsonSchema({"type": "array", "items": _SCALAR, "minItems": 1}),
]
Length = Annotated[int, Field(ge=0, le=TEXT_CHARS_MAX, strict=True)]
Share = Annotated[
    float,
    BeforeValidator(_share),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": r"^\d+(\.\d+)?\s*%$"}, {"type": "number", "minimum": 0}]}),
]
Says = Annotated[
    Severity | None, Field(description="Overrides the contract's severity: quarantine, warn or stop.")
]  # fmt: skip


class ColumnChecks(SpecPart):
    """Checks of one column's values. NULL passes all but `not_null`; NaN passes no comparison."""

    ge: Annotated[Value | None, Field(description="At least.")] = None
    gt: Annotated[Value | None, Field(description="More than.")] = None
    le: Annotated[Value | None, Field(description="At most.")] = None
    lt: Annotated[Value | None, Field(description="Less than.")] = None
    eq: Annotated[Value | None, Field(description="Exactly.")] = None
    ne: Annotated[Value | None, Field(description="Anything but.")] = None
    isin: Annotated[Values | None, Field(description="One of.")] = None
    notin: Annotated[Values | None, Field(description="None of.")] = None
    matches: Annotated[
        str | None, Field(description="The whole text matches this regular expression (RE2).", strict=True)
    ] = None
    min_length: Annotated[Length | None, Field(description="The text has at least this number of characters.")] = None
    max_length: Annotated[Length | None, Field(description="The text has at most this number of characters.")] = None
    not_null: Annotated[bool, Field(description="The value is not null.", strict=True)] = False
    severity: Says = None

    @property
    def said(self) -> dict[str, Any]:
        """The checks that are written, by their word."""
        found = {word: getattr(self, word) for word in type(self).model_fields if word != "severity"}
        return {word: value for word, value in found.items() if value is not None and (word != "not_null" or value)}

    @model_serializer(mode="plain")
    def _as_written(self) -> dict[str, Any]:
        """Without the many words that say nothing."""
        plain = {word: list(value) if isinstance(value, tuple) else value for word, value in self.said.items()}
        return plain if self.severity is None else {**plain, "severity": self.severity}


class RowCheck(SpecPart):
    """A condition on columns of one row."""

    name: Annotated[
        str,
        Field(
            description="Name of the check.", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$", examples=["shipped_after_order"]
        ),
    ]
    expr: Annotated[
        str,
        Field(
            description="A condition for every row, as in `where`; both sides of a comparison may be columns. A row "
            "for "
            "which it is unknown (NULL) passes.",
            examples=["shipped_at >= ordered_at"],
        ),
    ]
    severity: Says = None


class Contract(SpecPart):
    """Constrain values with a contract."""

    module: Annotated[
        str | None,
        Field(
            description="Python module that holds a pandera schema.",
            pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$",
            examples=["my_contracts"],
        ),
    ] = None
    name: Annotated[
        str | None,
        Field(
            description="The DataFrameModel or DataFrameSchema in `module`.",
            pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$",
            examples=["Orders"],
        ),
    ] = None
    columns: Annotated[
        dict[str, ColumnChecks], Field(description="Checks of single columns: {amount: {ge: 0, le: 1000}}.")
    ] = Field(default_factory=dict)
    rows: Annotated[tuple[RowCheck, ...], Field(description="Checks of several columns of a row.")] = ()
    severity: Annotated[
        Severity,
        Field(
            description="Action for a record that breaks a check. quarantine: the record goes to quarantine; warn: it "
            "is accepted "
            "and counted; stop: the table stops at it."
        ),
    ] = "quarantine"
    severities: Annotated[
        dict[str, Severity],
        Field(
            description="Overrides `severity` per check: `amount.ge`, or the name of a row check.",
            examples=[{"amount.ge": "warn"}],
        ),
    ] = Field(default_factory=dict)

    @property
    def is_code(self) -> bool:
        """Whether the checks come from a pandera schema."""
        return self.module is not None


class StopAbove(SpecPart):
    """The limit of refused records that stops the table."""

    refused: Annotated[Share, Field(description="Stop if more than this share is refused.", examples=["5%"])]
    of_last: Annotated[
        int,
        Field(
            ge=1, le=OF_LAST_MAX, strict=True, description="Length of the sliding window, in offsets of a partition."
        ),
    ] = OF_LAST_DEFAULT

    @property
    def records_max(self) -> int:
        """The highest allowed number of refused records among `of_last` offsets."""
        return math.floor(Decimal(str(self.refused)) * self.of_last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check that a spec writes, read against the table's columns."""

    name: str  #: unique in the contract: ``amount.ge``, or the row check's
    severity: Severity
    expected: str  #: in words, for a message: ``>= 0``
    rule: Predicate | TextRule  #: what must not be false
    pairs: tuple[Pair, ...] = ()  #: comparisons of two columns that *rule* names as columns
    columns: tuple[str, ...]  #: that it reads


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRule:
    """A rule about the text of a column: exactly one of these is given."""

    column: str
    regex: str | None = None  #: RE2, searched for
    min_length: int | None = None  #: characters
    max_length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """An error in a contract, with its place below `contract`."""

    place: _PLACES
    why: str
    found: Any = None


def column_check(word: str, value: Any, column: Ref) -> tuple[str, Predicate | TextRule]:
    """The check *word* of a column: what it expects in words, and its rule. Raises: WhereError."""
    if word in _OPS:
        return f"{_OPS[word]} {shown(value)}", compared(column, _OPS[word], literal(value, column.type))
    if word in ("isin", "notin"):
        parts = [compared(column, Op.EQ, literal(one, column.type)) for one in value]
        known = tuple(dict.fromkeys(part.value for part in parts if isinstance(part, p.Compare)))
        expected = f"{'one' if word == 'isin' else 'none'} of {shown(value)}"
        return expected, p.OneOf(column, known, negated=word == "notin")
    if word == "not_null":
        return "a value", p.IsNull(column, negated=True)
    if column.type != Primitive("string"):
        raise WhereError(f"`{word}` checks text, and {column.column} is {column.type}")
    if word == "matches":
        check_regex(value)
        return f"text that matches {value}", TextRule(column=column.column, regex=rf"\A(?:{value})\z")
    bound = "at least" if word == "min_length" else "at most"
    return f"{bound} {value:,} characters", TextRule(column=column.column, **{word: value})


def literal(value: bool | int | float | str, type_: Type) -> str | Decimal | bool:
    """A value as `compared` takes it; a float is the number that is written, and text is one for a decimal."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Decimal(repr(value))
    if isinstance(value, str) and isinstance(type_, DecimalType):
        try:
            return Decimal(value.strip())
        except InvalidOperation:
            return value  # which `compared` explains
    return value


def check_regex(pattern: str) -> None:
    """Raises: WhereError where RE2 cannot read *pattern*."""
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowInvalid as error:
        raise WhereError(
            f"{pattern!r} is not a regular expression of RE2 ({str(error).splitlines()[0]}); it has no look-around "
            f"and no "
            "back-references"
        ) from error


def written_checks(contract: Contract, columns: Sequence[Column]) -> tuple[list[Check], list[Trouble]]:
    """The checks that *contract* writes, in their order, and what is wrong with the others."""
    types = {c.name: c.type for c in columns}
    checks: list[Check] = []
    troubles: list[Trouble] = []
    for column, words in contract.columns.items():
        for word, value in words.said.items():
            try:
                checks.append(_of_column(contract, column, word, types))
            except WhereError as error:
                troubles.append(Trouble(place=("columns", column, word), why=str(error), found=value))
    for i, row in enumerate(contract.rows):
        try:
            checks.append(_of_row(contract, row, types))
        except WhereError as error:
            troubles.append(Trouble(place=("rows", i, "expr"), why=str(error), found=row.expr))
    return checks, troubles


def _of_column(contract: Contract, column: str, word: str, types: Mapping[str, Type]) -> Check:
    if column not in types:
        raise WhereError(unknown_name(column, list(types)))
    words, name = contract.columns[column], f"{column}.{word}"
    expected, rule = column_check(word, words.said[word], Ref((column,), types[column]))
    severity = contract.severities.get(name, words.severity or contract.severity)
    return Check(name=name, severity=severity, expected=expected, rule=rule, columns=(column,))


def _of_row(contract: Contract, row: RowCheck, types: Mapping[str, Type]) -> Check:
    rule, pairs = parse_row_rule(row.expr, types)
    read = [ref.column for pair in pairs for ref in (pair.left, pair.right)]
    read += [ref.column for ref in p.refs(rule) if ref.column in types]
    severity = contract.severities.get(row.name, row.severity or contract.severity)
    columns = tuple(dict.fromkeys(read))
    return Check(name=row.name, severity=severity, expected=row.expr, rule=rule, pairs=pairs, columns=columns)


def contract_troubles(spec: TableSpec) -> list[Trouble]:
    """Return the errors of *spec*'s contract that show without the user's code."""
    contract = spec.contract
    if contract is None:
        return []
    found = list(_wording(contract))
    checks, wrong = written_checks(contract, spec.columns)
    found += wrong
    names = [row.name for row in contract.rows]
    found += [
        Trouble(place=("rows", i, "name"), why=f"the check {name!r} occurs twice", found=name)
        for i, name in enumerate(names)
        if name in names[:i]
    ]
    if not contract.is_code and not wrong:
        known = [check.name for check in checks]
        found += [
            Trouble(place=("severities", name), why=unknown_name(name, known, what="check"), found=name)
            for name in contract.severities
            if name not in known
        ]
    if spec.buffer_kind == "none" and not found:
        found += _without_buffer(contract, checks)
    return found


def never_holds(spec: TableSpec) -> Iterator[Trouble]:
    """Yield the columns of whose values no one passes all checks: every record with a value would break one.

    Tables that are there keep such a contract: it is asked where a spec is applied, not where one is read back.
    """
    types = {c.name: c.type for c in spec.columns}
    for column, words in (spec.contract.columns if spec.contract else {}).items():
        said = words.said
        rules = {w: column_check(w, said[w], Ref((column,), types[column]))[1] for w in said if w in _FOR_VALUES}
        if together := _excluded(rules, words):
            listed = " and ".join(f"`{word}: {shown(said[word])}`" for word in together)
            why = f"no value of {column} ({types[column]}) passes {listed}, so each record would break it; correct it"
            yield Trouble(place=("columns", column, together[-1]), why=why, found=said)


def _excluded(rules: Mapping[str, Predicate | TextRule], words: ColumnChecks) -> tuple[str, ...]:
    """The checks that leave no value; none if there is one."""
    for word, rule in rules.items():
        if isinstance(rule, p.OneOf) and not rule.negated and not rule.values:
            return (word,)
    limits = {word: rule for word, rule in rules.items() if isinstance(rule, p.Compare)}
    for word, rule in rules.items():
        values = rule.values if isinstance(rule, p.OneOf) and word == "isin" else ()
        values = (rule.value,) if isinstance(rule, p.Compare) and word == "eq" else values
        if values and not any(all(_passes(one, limit) for limit in limits.values()) for one in values):
            return tuple(limits) if word in limits else (word, *limits)
    low = max((word for word in ("ge", "gt") if word in limits), key=lambda w: (limits[w].value, w), default=None)
    high = min(
        (word for word in ("lt", "le") if word in limits), key=lambda w: (limits[w].value, w != "lt"), default=""
    )
    if low and high and (limits[low].value, low == "gt" or high == "lt") > (limits[high].value, False):
        return low, high
    if words.min_length is not None and words.max_length is not None and words.min_length > words.max_length:
        return "min_length", "max_length"
    return ()


def _passes(value: Any, limit: p.Compare) -> bool:
    return bool(_COMPARE[limit.op](value, limit.value))


def _wording(contract: Contract) -> Iterator[Trouble]:
    if (contract.module is None) != (contract.name is None):
        missing, given = ("name", "module") if contract.name is None else ("module", "name")
        yield Trouble(place=(), why=f"`{given}` needs `{missing}`: write {{module: my_contracts, name: Orders}}")
    if contract.is_code and (contract.columns or contract.rows):
        word = "columns" if contract.columns else "rows"
        yield Trouble(place=(word,), why="the checks come from `module`; write them there, or remove `module`")
    if (
        contract.module is contract.name is None
        and not any(checks.said for checks in contract.columns.values())
        and not contract.rows
    ):
        yield Trouble(place=(), why="a contract needs checks: write `columns`, `rows`, or `module` and `name`")


def _without_buffer(contract: Contract, checks: Sequence[Check]) -> Iterator[Trouble]:
    """Spark decodes in separate tasks: no place adds up their counts or stops at one record."""
    said = {check.severity for check in checks} | ({contract.severity} if contract.is_code else set())
    for severity in sorted((said | set(contract.severities.values())) - {"quarantine"}):
        yield Trouble(
            place=("severity",),
            why=f"`{severity}` does not work with `buffer: none` yet; write `quarantine`, or use `buffer: postgres`",
            found=severity,
        )


def stop_above_trouble(spec: TableSpec) -> str | None:
    """Why `stop_above` cannot be kept."""
    if spec.stop_above is None:
        return None
    if spec.buffer_kind == "none":
        return "it does not work with `buffer: none` yet; remove it, or use `buffer: postgres`"
    if spec.on_error == "stop":
        return "the table stops at the first refused record (`on_error: stop`); remove one of them"
    return None
