"""Infer the type of JSON values, as a person would choose it.

A type is only inferred if the decoder of `format: json` takes every value as that type: what an inferred column says of
a sample is what a table would make of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from harness_pipelines.formats.json.objects import JsonCodec
from harness_pipelines.spec.columns import Column, letter_trouble
from harness_pipelines.spec.sources import Source
from harness_pipelines.spec.types import (
    DECIMAL_PRECISION_MAX,
    INT64_DIGITS,
    NESTING_MAX,
    DecimalType,
    FieldType,
    ListType,
    MapType,
    Primitive,
    StructType,
    Type,
)
from harness_pipelines.spec.wording import folded

ENUM_VALUES_MAX = 8  #: different texts that are listed
EXAMPLE_CHARS = 40
MAP_KEYS_MIN = 16  #: different field names from which an object may be a map
_LONG_MAX = 2**63 - 1
_SCALE_MAX = 6  #: digits behind the point up to which a number may be an amount of money
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_TIME_WORDS = frozenset({
    "at", "on", "ts", "time", "timestamp", "date", "datetime", "created", "updated", "modified", "deleted", "since",
    "until", "expires", "expiry", "epoch", "ms", "us", "ns", "millis", "micros", "nanos", "seconds", "unixtime",
})  # fmt: skip
_MONEY_WORDS = frozenset({
    "amount", "amt", "price", "cost", "fee", "tax", "vat", "balance", "subtotal", "revenue", "salary", "payment",
    "charge", "gross", "net", "tip", "discount", "refund", "credit", "debit", "wage", "rent",
})  # fmt: skip
_SMALL_UNITS = frozenset({"cents", "cent", "minor", "pence", "pct", "percent", "percentage", "rate", "ratio", "count"})
_EPOCHS: tuple[tuple[int, Source], ...] = (
    (1, "epoch_s"), (10**3, "epoch_ms"), (10**6, "epoch_us"), (10**9, "epoch_ns"),
)  # fmt: skip
_EPOCH_S = (10**9, 4_102_444_800)  #: 2001-09-09 to 2100-01-01
_EPOCH_DAYS = (7_300, 47_482)  #: 1989-12-27 to 2100-01-01
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*")
_TIME = re.compile(r"\d\d:\d\d:\d\d(\.\d+)?")
_AMOUNT = re.compile(r"-?\d{1,20}\.(\d{1,18})")
_MAP_KEY = re.compile(r"\d+|\d{4}-\d\d-\d\d.*|" + _UUID.pattern)
_READ = msgspec.json.Decoder(float_hook=Decimal)
_WRITE = msgspec.json.Encoder(decimal_format="number")


class Unclear(Exception):
    """No type holds all values; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    """The type of some values."""

    type: Type
    source: Source | None = None  #: as of a `Column`
    notes: tuple[str, ...] = ()  #: for people


def parsed(value: bytes) -> Any:
    """The JSON *value*, with exact numbers (`Decimal`). Raises: ValueError."""
    try:
        return _READ.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ArithmeticError) as error:
        raise ValueError(str(error)) from error


def infer(values: Iterable[Any], name: str, *, depth: int = 0) -> Inferred:
    """The type of *values* of the field *name*. *depth*: of nested ones. Raises: Unclear."""
    there = [value for value in values if value is not None]
    if not there:
        return Inferred(type=Primitive("string"), notes=("only null was seen: its type is a guess",))
    kinds = {_kind(value) for value in there}
    if depth > NESTING_MAX - 1:
        raise Unclear(f"it is nested more than {NESTING_MAX} deep")
    match sorted(kinds):
        case ["object"]:
            return _object(there, name, depth)
        case ["list"]:
            return _list(there, name, depth)
        case [only]:
            found = next(_scalars(only, there, name, is_nested=depth > 0 and not name.endswith("]")), None)
        case ["number", "whole"]:
            found = next(_numbers(there, name), None)
        case _:
            raise Unclear(f"it is {_listed(kinds)}, and no type takes all of them")
    if found is None:
        raise Unclear("no type takes all of its values")
    return found


def example(values: Iterable[Any]) -> str:
    """A value for people, on one line; empty: there is none."""
    first = next((value for value in values if value is not None), None)
    if first is None:
        return ""
    text = _WRITE.encode(first).decode(errors="replace")
    return text if len(text) <= EXAMPLE_CHARS else f"{text[: EXAMPLE_CHARS - 3]}..."


def words_of(name: str) -> list[str]:
    """The words of a field's name: created_at and createdAt have two."""
    return [word.lower() for word in _WORD.findall(name)]


_KINDS: Mapping[type, str] = {
    bool: "boolean", int: "whole", Decimal: "number", str: "text", list: "list", dict: "object",
}  # fmt: skip
_SAID = {"boolean": "true or false", "whole": "a whole number", "number": "a number", "text": "text", "list": "a list",
         "object": "an object"}  # fmt: skip


def _kind(value: Any) -> str:
    return _KINDS[type(value)]


def _listed(kinds: Iterable[str]) -> str:
    said = [_SAID[kind] for kind in sorted(kinds)]
    return " and ".join(f"sometimes {one}" for one in said)


# -- scalars --------------------------------------------------------------------------------------------------


def _scalars(kind: str, values: Sequence[Any], name: str, *, is_nested: bool) -> Iterator[Inferred]:
    match kind:
        case "boolean":
            yield Inferred(type=Primitive("boolean"))
        case "whole":
            yield from _whole(values, name, is_nested=is_nested)
        case "number":
            yield from _numbers(values, name)
        case "text":
            yield from _texts(values, name, is_nested=is_nested)


def _whole(values: Sequence[int], name: str, *, is_nested: bool) -> Iterator[Inferred]:
    words = words_of(name)
    if not is_nested and not _TIME_WORDS.isdisjoint(words) and (source := _epoch(values)):
        yield Inferred(type=Primitive("timestamptz"), source=source)
    if not is_nested and "date" in words and all(_EPOCH_DAYS[0] <= value < _EPOCH_DAYS[1] for value in values):
        yield Inferred(type=Primitive("date"), source="epoch_days")
    if all(-_LONG_MAX <= value <= _LONG_MAX for value in values):
        yield Inferred(type=Primitive("long"))
    yield from _decimal(values, scale=0)


def _epoch(values: Sequence[int]) -> Source | None:
    """The unit in which all *values* are moments of this century; None: in none, or 0 alone."""
    there = [value for value in values if value]
    for factor, source in _EPOCHS:
        if there and all(_EPOCH_S[0] * factor <= value < _EPOCH_S[1] * factor for value in there):
            return source
    return None


def _numbers(values: Sequence[int | Decimal], name: str) -> Iterator[Inferred]:
    """Numbers of which some have a fraction: decimals by their name or their digits, else binary floats."""
    fractions = [value for value in values if isinstance(value, Decimal)]
    scales = {_scale(value) for value in fractions}
    scale = max(scales)
    # Who writes 5.00 has a type with digits behind the point; a binary float would have been written 5.0.
    are_kept = len(scales) == 1 and scale >= 2 and any(value.as_tuple().digits[-1] == 0 for value in fractions)
    if scale <= _SCALE_MAX and (are_kept or _is_money(words_of(name))):
        yield from _decimal(values, scale=max(scale, 2))
    if fits(Primitive("double"), values):
        yield Inferred(type=Primitive("double"))
    yield from _decimal(values, scale=min(scale, DECIMAL_PRECISION_MAX))


def _scale(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _is_money(words: Sequence[str]) -> bool:
    return not _MONEY_WORDS.isdisjoint(words) and _SMALL_UNITS.isdisjoint(words)


def _decimal(values: Sequence[Any], *, scale: int) -> Iterator[Inferred]:
    for precision in (INT64_DIGITS, DECIMAL_PRECISION_MAX):
        if scale <= precision and fits(type_ := DecimalType(precision, scale), values):
            yield Inferred(type=type_)


def _texts(values: Sequence[str], name: str, *, is_nested: bool) -> Iterator[Inferred]:
    for pattern, types in ((_UUID, ("uuid",)), (_DATE, ("date",)), (_MOMENT, ("timestamptz", "timestamp")),
                           (_TIME, ("time",))):  # fmt: skip
        if all(map(pattern.fullmatch, values)):
            yield from (Inferred(type=Primitive(one)) for one in types if fits(Primitive(one), values))
    found = [_AMOUNT.fullmatch(value) for value in values]
    scales = {len(one[1]) for one in found if one is not None}
    if None not in found and (_is_money(words_of(name)) or (len(scales) == 1 and _is_quantity(name))):
        yield from _decimal(values, scale=max(2, *scales))
    if fits(Primitive("string"), values):
        yield Inferred(type=Primitive("string"), notes=() if is_nested else tuple(_values(values)))


def _is_quantity(name: str) -> bool:
    """Text such as 1.10 is a number here, and no version."""
    return not {"total", "sum", "value", "quantity", "qty", "weight", "volume"}.isdisjoint(words_of(name))


def _values(texts: Sequence[str]) -> Iterator[str]:
    """The texts of an enum."""
    different = sorted(set(texts))
    if 1 < len(different) <= ENUM_VALUES_MAX and len(texts) >= 5 * len(different) and max(map(len, different)) <= 24:
        yield f"{len(different)} values: {', '.join(different)}"


# -- nested ---------------------------------------------------------------------------------------------------


def _list(values: Sequence[list[Any]], name: str, depth: int) -> Inferred:
    elements = [element for value in values for element in value]
    if not elements:
        return Inferred(type=ListType(Primitive("string")), notes=("only empty lists were seen: its type is a guess",))
    inside = infer(elements, f"{name}[]", depth=depth + 1)
    found = Inferred(type=ListType(inside.type), source=inside.source, notes=inside.notes)
    if depth == 0 or inside.source is None:
        return found
    return Inferred(type=ListType(Primitive("long")))  # below a column nothing says what numbers count


def _object(values: Sequence[dict[str, Any]], name: str, depth: int) -> Inferred:
    fields: dict[str, list[Any]] = {}
    for value in values:
        for field, of in value.items():
            fields.setdefault(field, []).append(of)
    if not fields:
        type_: Type = MapType(Primitive("string"), Primitive("string"))
        return Inferred(type=type_, notes=("only empty objects were seen: its type is a guess",))
    if _is_map(values, fields):
        every = [of for some in fields.values() for of in some]
        try:
            inside = infer(every, name, depth=depth + 1)
            return Inferred(type=MapType(Primitive("string"), _plain(inside)), notes=inside.notes)
        except Unclear:
            pass  # as a struct it leaves out less
    return _struct(fields, depth)


def _is_map(values: Sequence[dict[str, Any]], fields: Mapping[str, Sequence[Any]]) -> bool:
    """The names are data: numbers, dates, ids, or many of which each object has few."""
    if all(map(_MAP_KEY.fullmatch, fields)):
        return True
    mean = sum(map(len, values)) / len(values)
    return len(fields) >= MAP_KEYS_MIN and len(fields) > 3 * mean


def _struct(fields: Mapping[str, Sequence[Any]], depth: int) -> Inferred:
    parts: dict[str, FieldType] = {}
    notes: list[str] = []
    for field, of in fields.items():
        try:
            if (why := letter_trouble(field)) or not field:
                raise Unclear(f"its name {why or 'is empty'}")
            if (twin := parts.get(folded(field))) is not None:
                raise Unclear(f"no engine tells its name from {twin.name}")
            parts[folded(field)] = FieldType(field, _plain(infer(of, field, depth=depth + 1)))
        except Unclear as why:
            notes.append(f"without {field}: {why}")
    if not parts:
        raise Unclear(f"none of its fields has a type: {'; '.join(notes)}")
    return Inferred(type=StructType(tuple(parts.values())), notes=tuple(notes))


def _plain(inferred: Inferred) -> Type:
    """The type below a column, where nothing says how a value is written."""
    return inferred.type if inferred.source is None else Primitive("long")


# -- the decoder's word ---------------------------------------------------------------------------------------


def fits(type_: Type, values: Sequence[Any], source: Source | None = None) -> bool:
    """The decoder takes all *values* as *type_*."""
    codec = JsonCodec([Column(name="v", type=type_, source=source)])
    return not codec.decode([_WRITE.encode({"v": value}) for value in values]).refused
