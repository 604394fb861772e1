"""The types of a user's columns: Iceberg's, as values that need no other library."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness_pipelines.errors import UsageError

if TYPE_CHECKING:
    from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.wording import folded, why_same

PRIMITIVES = (
    "boolean", "int", "long", "float", "double", "date", "time", "timestamp", "timestamptz", "string", "binary", "uuid",
)  # fmt: skip
DECIMAL_PRECISION_MAX = 38
NESTING_MAX = 32
FORMS = (*PRIMITIVES, "decimal(p,s)", "list<type>", "map<key, value>", "struct<name: type, ...>")
_NESTED = ("decimal", "list", "map", "struct")
_EXAMPLES = {
    "decimal": "a decimal names its digits and those behind the point, such as decimal(12,2)",
    "list": "a list names the type of its elements, such as list<string>",
    "map": "a map names the types of its keys and values, such as map<string, long>",
    "struct": "a struct names its fields with their types, such as struct<city: string, zip: string>",
}
_PARTS = ("element", "key", "value")  # of Iceberg's lists and maps
_ELSEWHERE = {  # what other systems call them
    "array": "list<...>", "bigint": "long", "bigserial": "long", "bit": "boolean", "blob": "binary",
    "bool": "boolean", "bpchar": "string", "byte": "int", "bytea": "binary", "bytes": "binary", "char": "string",
    "character": "string", "citext": "string", "clob": "string", "datetime": "timestamp", "datetime2": "timestamp",
    "datetimeoffset": "timestamptz", "dec": "decimal(p,s)", "enum": "string", "fixed": "binary", "float32": "float",
    "float4": "float", "float64": "double", "float8": "double", "guid": "uuid", "instant": "timestamptz",
    "int16": "int", "int2": "int", "int32": "int", "int4": "int", "int64": "long", "int8": "long", "integer": "int",
    "interval": "string", "json": "string", "jsonb": "string", "localdatetime": "timestamp", "mediumint": "int",
    "money": "decimal(p,s)", "nchar": "string", "number": "decimal(p,s)", "numeric": "decimal(p,s)",
    "nvarchar": "string", "object": "struct<...>", "real": "float", "record": "struct<...>", "row": "struct<...>",
    "serial": "int", "short": "int", "smallint": "int", "str": "string", "text": "string",
    "timestamp_ltz": "timestamptz", "timestamp_ntz": "timestamp", "timestamp_tz": "timestamptz",
    "timestampz": "timestamptz", "timetz": "time", "tinyint": "int", "uint16": "int", "uint32": "long",
    "uint64": "decimal(20,0)", "uint8": "int", "varbinary": "binary", "varchar": "string", "varchar2": "string",
    "variant": "string",
    "xml": "string",
}  # fmt: skip

_ZONES = {"with time zone": "timestamptz", "with local time zone": "timestamptz", "without time zone": "timestamp"}
INT64_DIGITS = 18  #: decimals of this many digits fit an unscaled 64-bit integer


class TypeSpecError(UsageError):
    """A type string that cannot be read."""


@dataclass(frozen=True, slots=True)
class Primitive:
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class DecimalType:
    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision}, {self.scale})"


@dataclass(frozen=True, slots=True)
class ListType:
    element: Type

    def __str__(self) -> str:
        return f"list<{self.element}>"


@dataclass(frozen=True, slots=True)
class MapType:
    key: Type
    value: Type

    def __str__(self) -> str:
        return f"map<{self.key}, {self.value}>"


@dataclass(frozen=True, slots=True)
class FieldType:
    """One named field of a struct; nested fields are always optional."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class StructType:
    fields: tuple[FieldType, ...]

    def __str__(self) -> str:
        return "struct<" + ", ".join(f"{_quoted(f.name)}: {f.type}" for f in self.fields) + ">"


Type = Primitive | DecimalType | ListType | MapType | StructType
_TOKEN = re.compile(r"\s*(?:([<>(),:])|`((?:[^`]|``)+)`|([^\s<>(),:`]+))")
_PLAIN_NAME = re.compile(r"[^\s<>(),:`]+")


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def parse_type(text: str) -> Type:
    """Read a type string as Iceberg writes it; struct names with other characters stand in backticks.

    Raises: TypeSpecError, naming the allowed forms and the likely one.
    """
    parser = _Parser(text, _tokens(text))
    found = parser.type()
    if parser.rest():
        raise parser.more_than(found)
    return found


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    quoted: bool = False  #: a name in backticks, never a sign or a type


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if not found:
            raise TypeSpecError(f"type {text!r}: cannot be read from {text[at : at + 20].strip()!r} on")
        sign, quoted, word = found.groups()
        tokens.append(_Token(quoted.replace("``", "`"), quoted=True) if quoted else _Token(sign or word))
        at = found.end()
    return tokens


class _Parser:
    def __init__(self, text: str, tokens: list[_Token]) -> None:
        self._text, self._tokens, self._at, self._depth = text, tokens, 0, 0
        self._inside: list[str] = []  # the nested types around the place, such as list

    def rest(self) -> bool:
        return self._at < len(self._tokens)

    def wrong(self, expected: str) -> TypeSpecError:
        if not self._tokens:
            return TypeSpecError(f"the type is empty; allowed: {', '.join(FORMS)}")
        found = repr(self._tokens[self._at].text) if self.rest() else "the end"
        where = "" if self._text.strip() in found else f"type {self._text!r}: "
        if expected != "a type" and self._inside:
            return TypeSpecError(f"{where}expected {expected}, found {found}; {_EXAMPLES[self._inside[-1]]}")
        return TypeSpecError(f"{where}expected {expected}, found {found}{self._hint()}; allowed: {', '.join(FORMS)}")

    def more_than(self, found: Type) -> TypeSpecError:
        """Return the error of a text that continues behind a whole type."""
        rest = " ".join(token.text for token in self._tokens[self._at :]).lower()
        meant = ""
        if rest == "not null":
            meant = f"; write {{type: {found}, required: true}}"
        elif (zone := _ZONES.get(rest)) is not None and str(found) == "timestamp":
            meant = f" (did you mean {zone}?)"
        return TypeSpecError(f"type {self._text!r}: {str(found)!r} is a whole type, and {rest!r} follows it{meant}")

    def _hint(self) -> str:
        word = self._tokens[self._at].text.lower() if self.rest() else ""
        near = difflib.get_close_matches(word, (*PRIMITIVES, *_NESTED), n=1)
        meant = _ELSEWHERE.get(word) or (near[0] if near else None)
        return f" (did you mean {meant}?)" if meant else ""

    def take(self, sign: str | None = None) -> str:
        expected = repr(sign) if sign else "a name"
        if not self.rest():
            raise self.wrong(expected)
        token = self._tokens[self._at]
        is_sign = not token.quoted and token.text in set("<>(),:")
        if (token.text != sign or token.quoted) if sign else is_sign:
            raise self.wrong(expected)
        self._at += 1
        return token.text

    def type(self) -> Type:
        if not self.rest() or self._tokens[self._at].quoted:
            raise self.wrong("a type")
        word = self._tokens[self._at].text.lower()
        if word in PRIMITIVES:
            self.take()
            return Primitive(word)
        if word not in _NESTED:
            raise self.wrong("a type")
        self.take()
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise TypeSpecError(f"type {self._text[:60]!r}...: types are nested at most {NESTING_MAX} deep")
        self._inside.append(word)
        found: Type = getattr(self, f"_{word}")()
        self._inside.pop()
        self._depth -= 1
        return found

    def _decimal(self) -> Type:
        self.take("(")
        precision = self._number()
        self.take(",")
        scale = self._number()
        self.take(")")
        if not (1 <= precision <= DECIMAL_PRECISION_MAX and 0 <= scale <= precision):
            raise TypeSpecError(
                f"type {self._text!r}: a decimal has 1 to {DECIMAL_PRECISION_MAX} digits, and 0 to all of them behind "
                "the point, such as decimal(12,2)"
            )
        return DecimalType(precision, scale)

    def _number(self) -> int:
        token = self._tokens[self._at] if self.rest() else _Token("")
        if token.quoted or not re.fullmatch("[0-9]{1,3}", token.text):
            raise self.wrong("a number")
        return int(self.take())

    def _list(self) -> Type:
        self.take("<")
        element = self.type()
        self.take(">")
        return ListType(element)

    def _map(self) -> Type:
        self.take("<")
        key = self.type()
        self.take(",")
        value = self.type()
        self.take(">")
        return MapType(key, value)

    def _struct(self) -> Type:
        self.take("<")
        fields: list[FieldType] = []
        while not fields or self._tokens[self._at : self._at + 1] == [_Token(",")]:
            if fields:
                self.take(",")
            name = self.take()
            self.take(":")
            fields.append(FieldType(name, self.type()))
        self.take(">")
        seen: dict[str, str] = {}
        for field in fields:
            if (other := seen.setdefault(folded(field.name), field.name)) is not field.name:
                raise TypeSpecError(
                    f"type {self._text!r}: the struct has the field {field.name!r} twice, also as {other!r} "
                    f"({why_same(field.name, other)}); keep one"
                )
        return StructType(tuple(fields))


def iceberg_fields(columns: Sequence[Column], first_id: int = 1) -> list[dict[str, Any]]:
    """Iceberg's JSON form of *columns*, with field ids: the columns first, then what is nested in them."""
    outer = list(range(first_id, first_id + len(columns)))
    ids = itertools.count(first_id + len(columns))
    return [
        {"id": i, "name": c.name, "type": _iceberg(c.type, ids), "required": c.required}
        | ({} if c.description is None else {"doc": c.description})
        for i, c in zip(outer, columns, strict=True)
    ]


def _iceberg(type_: Type, ids: Iterator[int]) -> Any:
    match type_:
        case ListType(element):
            return {
                "type": "list", "element-id": next(ids), "element": _iceberg(element, ids), "element-required": False,
            }  # fmt: skip
        case MapType(key, value):
            key_id, value_id = next(ids), next(ids)
            return {
                "type": "map", "key-id": key_id, "key": _iceberg(key, ids), "value-id": value_id,
                "value": _iceberg(value, ids), "value-required": False,
            }  # fmt: skip
        case StructType(fields):
            field_ids = [next(ids) for _ in fields]
            return {
                "type": "struct",
                "fields": [
                    {"id": i, "name": f.name, "type": _iceberg(f.type, ids), "required": False}
                    for i, f in zip(field_ids, fields, strict=True)
                ],
            }
        case _:
            return str(type_)


def type_from_json(value: Any) -> Type:
    """Read a type in Iceberg's JSON form."""
    if isinstance(value, str):
        return parse_type(value)
    match value["type"]:
        case "list":
            return ListType(type_from_json(value["element"]))
        case "map":
            return MapType(type_from_json(value["key"]), type_from_json(value["value"]))
        case _:
            return StructType(tuple(FieldType(f["name"], type_from_json(f["type"])) for f in value["fields"]))


def lake_fields(fields: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """*fields* (Iceberg's JSON form) as views hold them: a time is a long, the microseconds of the day.

    Spark refuses every Iceberg table that has a time field, nested ones too.
    """
    return [{**field, "type": _without_times(field["type"])} for field in fields]


def user_fields(given: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The fields *given* by a view made of ``lake_fields(wanted)``, with its ids and the times of *wanted*."""
    return [{**g, "type": _times_of(g["type"], w["type"])} for g, w in zip(given, wanted, strict=True)]


def _without_times(type_: Any) -> Any:
    if isinstance(type_, str):
        return "long" if type_ == "time" else type_
    if type_["type"] == "struct":
        return {**type_, "fields": lake_fields(type_["fields"])}
    return {**type_, **{part: _without_times(type_[part]) for part in _PARTS if part in type_}}


def _times_of(given: Any, wanted: Any) -> Any:
    if isinstance(wanted, str):
        return wanted if wanted == "time" else given
    if wanted["type"] == "struct":
        return {**given, "fields": user_fields(given["fields"], wanted["fields"])}
    return {**given, **{part: _times_of(given[part], wanted[part]) for part in _PARTS if part in wanted}}


def unstorable(text: str) -> str | None:
    """Say why neither Postgres nor UTF-8 can hold *text*; None when they can."""
    if "\x00" in text:
        return f"U+0000 at character {text.index(chr(0)) + 1}"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"half of a surrogate pair (U+{ord(text[error.start]):04X}) at character {error.start + 1}"
    return None
