"""Columns of a spec."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from harness_pipelines.spec.part import SpecPart
from harness_pipelines.spec.predicate import Compare, Op, Ref, Value
from harness_pipelines.spec.sections.about import Description
from harness_pipelines.spec.sections.contract import literal
from harness_pipelines.spec.sources import WHOLE, Source, source_trouble
from harness_pipelines.spec.types import (
    FORMS,
    DecimalType,
    ListType,
    MapType,
    StructType,
    Type,
    TypeSpecError,
    parse_type,
)
from harness_pipelines.spec.where import WhereError, compared
from harness_pipelines.spec.wording import folded, quote, why_same

Default = bool | int | float | str  #: as it is written: dates, times and UUIDs are text, binaries hexadecimal text
RESERVED_PREFIXES = ("_kafka_", "_harness_")  #: coordinates, and what frames in Spark have for a while
RESERVED = frozenset({
    "_op", "_schema_version", "_partition", "_file", "_pos", "_spec_id", "_deleted", "_row_id",
    "_last_updated_sequence_number", "_change_type", "_change_ordinal", "_commit_snapshot_id", "_sample",
})  # fmt: skip
NAME_BYTES_MAX = 63  # Postgres cuts longer identifiers
COLUMNS_MAX = 1_500  # Postgres has 1,600, the coordinates included
_RENAME = "give the field another name in the topic"
_KEEP_ONE = "keep one, or give one of the fields another name in the topic"
#: How a default of a type is written; of the rest it is a number.
_DEFAULTS: Mapping[str, str] = {
    "boolean": "true or false",
    "string": "text in quotes, such as ''",
    "date": "a date such as 2026-01-31",
    "timestamptz": "a time with its zone, such as '2026-01-31T23:59:59Z'",
    "timestamp": "a time without a zone, such as '2026-01-31T23:59:59'",
    "time": "a time such as '23:59:59'",
    "uuid": "a UUID such as '00000000-0000-0000-0000-000000000000'",
    "binary": "hexadecimal bytes in quotes, such as '00ff'",
}
_MAP_KEYS = ("string", "int", "long", "date", "time", "timestamp", "timestamptz", "uuid", "decimal(p,s)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One user column."""

    name: str
    type: Type
    required: bool = False
    source: Source | None = None  #: how a value is written in the record; ``from`` in YAML
    aliases: tuple[str, ...] = ()  #: names that the field has, or had, in records besides ``name``
    default: Default | None = None  #: the value where a record lacks the field, which null does not
    description: str | None = None  #: for people
    exact: bool = False  #: what its type would not tell apart is refused: two keys must not become one

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the field; the first one that a record has wins."""
        return (self.name, *self.aliases)

    def name_in(self, fields: Container[str]) -> str:
        """Which of its names the column has among *fields*, null or not; its own where it has none of them."""
        return next((name for name in self.names if name in fields), self.name)


def list_of_names(value: Any) -> Any:
    """A single name is a list of one."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"write a name or a list of names, such as [a, b], not {quote(value)}")
    return value


def names(at_most: int | None = None) -> BeforeValidator:
    """What lets a single name stand for a list of one, in files and in the schema that editors have."""
    return BeforeValidator(list_of_names, json_schema_input_type=str | Annotated[list[str], Field(max_length=at_most)])


class ColumnWords(SpecPart):
    """The long form of a column."""

    model_config = ConfigDict(populate_by_name=True)

    type: Annotated[str, Field(description=f"Iceberg's type: {', '.join(FORMS)}.", examples=["long", "decimal(12,2)"])]
    required: Annotated[
        bool, Field(strict=True, description="A record without it, or with null, is refused (missing_field).")
    ] = False
    source: Annotated[
        Source | None,
        Field(
            alias="from",
            description="Encoding of a value, or of each list element. Dates and times: iso8601 text (default), or a "
            "whole number since 1970 UTC (epoch_days, epoch_s, ...) or midnight (ms_of_day, ...). Decimals: a number "
            "or text (number, the default), or Kafka Connect's encoding (base64). headers, raw_key, raw_value: all "
            "headers of the record, or the bytes of its key or value.",
        ),
    ] = None
    aliases: Annotated[
        tuple[str, ...],
        names(),
        Field(
            description="Other current or former names of the field in records. The column's own name comes first, "
            "then "
            "the aliases in order; the first one that a record has wins.",
            examples=[["old_name"]],
        ),
    ] = ()
    default: Annotated[
        Default | None,
        BeforeValidator(lambda value: None if value is None else plain_default(value)),
        Field(
            description="The value for records that lack the field; a field that is null stays NULL. Dates and times "
            "are ISO 8601 text, binaries hexadecimal text. Existing rows do not change.",
            examples=[0, "unknown"],
        ),
    ] = None
    description: Description = None


def _columns(value: Any) -> tuple[Column, ...]:
    """Columns from a mapping, from the stored list, or as they are; all errors at once, each with its place."""
    if isinstance(value, dict):
        pairs: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, tuple) and all(isinstance(c, Column) for c in value):
        pairs = [(c.name, c) for c in value]
    elif isinstance(value, list | tuple) and all(isinstance(c, dict) and "name" in c for c in value):
        pairs = [(c["name"], {word: w for word, w in c.items() if word != "name"}) for c in value]
    else:
        raise ValueError(f"write names with their types, such as `order_id: long`, not {quote(value)}")
    if not 1 <= len(pairs) <= COLUMNS_MAX:
        raise ValueError(
            f"a table has 1 to {COLUMNS_MAX:,} columns, not {len(pairs):,}"
            + (
                "; name those to keep, such as `order_id: long`"
                if not pairs
                else "; leave fields out, or take some together as a struct or map"
            )
        )
    found: list[Column] = []
    wrong: list[InitErrorDetails] = []
    seen: dict[str, str] = {}
    for name, words in pairs:
        try:
            if other := seen.get(folded(str(name))):
                raise _Misfit(
                    (), f"the column occurs twice, also as {other!r} ({why_same(str(name), other)}); {_KEEP_ONE}"
                )
            seen[folded(str(name))] = str(name)
            found.append(_column(name, words))
        except _Misfit as why:
            wrong.append(detail((str(name), *why.place), str(why), words))
        except ValidationError as error:
            wrong += [_moved(e, str(name)) for e in error.errors(include_url=False)]
    for column in (c for c in found if c.aliases):
        others = {plain: of for plain, of in seen.items() if of != column.name}
        others |= {folded(a): c.name for c in found if c is not column for a in c.aliases}
        for at, trouble in alias_troubles(column, others):
            wrong.append(detail((column.name, "aliases", at), trouble, column.aliases[at]))
    if wrong:
        raise ValidationError.from_exception_data("columns", wrong)
    return tuple(found)


def alias_troubles(column: Column, others: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """What is wrong with aliases of *column*, each by its position.

    *others*: the names and aliases of other columns, folded, each with the name of its column.
    """
    for at, alias in enumerate(column.aliases):
        if why := _name_trouble(alias, "alias"):
            yield at, why
        elif alias == column.name:
            yield at, f"the alias {alias!r} is the column's own name; remove it"
        elif alias in column.aliases[:at]:
            yield at, f"the alias {alias!r} occurs twice"
        elif other := others.get(folded(alias)):
            yield (
                at,
                f"{alias!r} is a name of column {other!r} ({why_same(alias, other)}); a field belongs to one column",
            )


class _Misfit(Exception):
    """The error of one column; `place` is the setting, if one is to blame."""

    def __init__(self, place: tuple[str, ...], why: str) -> None:
        super().__init__(why)
        self.place = place


def detail(place: tuple[str | int, ...], why: str, found: Any) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError("column", "{why}", {"why": why}), loc=place, input=found)


def _moved(error: Any, name: str) -> InitErrorDetails:
    """The same error of pydantic's, at its place below the column."""
    context = error.get("ctx", {})
    return InitErrorDetails(type=error["type"], loc=(name, *error["loc"]), input=error["input"], ctx=context)


def _column(name: Any, words: Any) -> Column:
    """Raises: _Misfit, ValidationError."""
    if not isinstance(name, str):
        raise _Misfit((), f"the column name {name!r} is not text; put it in quotes")
    if why := _name_trouble(name):
        raise _Misfit((), why)
    if isinstance(words, Column):
        found = ColumnWords.inside(_long_form(words) | {"aliases": words.aliases})  # a text is one
        column = replace(
            words,
            type=_type(found.type),
            aliases=found.aliases,
            default=found.default,
            description=found.description,
        )
    else:
        words = {"type": words} if isinstance(words, str) else words
        if not isinstance(words, dict):
            why = "it has no type" if words is None else f"{quote(words)} is not a type"
            raise _Misfit((), f"{why}; write one, such as `long`, or {{type: long, required: true}}")
        found = ColumnWords.inside(words)
        column = Column(
            name=name,
            type=_type(found.type),
            required=found.required,
            source=found.source,
            aliases=found.aliases,
            default=found.default,
            description=found.description,
        )
    if column.source and (why := source_trouble(column.source, column.type)):
        raise _Misfit(("from",), why)
    if why := _type_trouble(column.type):
        raise _Misfit(("type",), why)
    if column.aliases and column.source in WHOLE:
        raise _Misfit(
            ("aliases",),
            f"`from: {column.source}` reads no field of the record; remove its aliases",
        )
    if column.default is not None and (why := _default_trouble(column, column.default)):
        raise _Misfit(("default",), why)
    return column


def column_trouble(column: Column) -> str | None:
    """Why no spec can have *column*, by its name, its type or how it is written."""
    try:
        _column(column.name, {"type": str(column.type)} | ({"from": column.source} if column.source else {}))
    except _Misfit as why:
        return str(why)
    return None


def _type(text: str) -> Type:
    """Raises: _Misfit."""
    try:
        return parse_type(text)
    except TypeSpecError as error:
        raise _Misfit(("type",), str(error)) from error


def _default_trouble(column: Column, default: Default) -> str | None:
    if column.source in WHOLE:
        return f"`from: {column.source}` reads no field of the record, so none can be missing; remove the default"
    try:
        default_value(column.type, default)
    except WhereError as error:
        return str(error)
    return None


def _name_trouble(name: str, what: str = "column name") -> str | None:
    article = "an" if what == "alias" else "a"
    if name and not folded(name):
        return f"{article} {what} has a character that can be seen, and {name!a} has none; {_RENAME}"
    if not name or len(name.encode(errors="replace")) > NAME_BYTES_MAX:
        return f"{article} {what} has 1 to {NAME_BYTES_MAX} bytes, not {len(name.encode(errors='replace'))}; {_RENAME}"
    if why := letter_trouble(name):
        return f"the {what} {name!r} {why}; {_RENAME}"
    if folded(name).startswith(RESERVED_PREFIXES) or folded(name) in RESERVED:
        taken = ", ".join([*(f"{prefix}*" for prefix in RESERVED_PREFIXES), *sorted(RESERVED)])
        return f"the {what} {name!r} is reserved, as are {taken}; {_RENAME}"
    return None


def letter_trouble(name: str) -> str | None:
    """What a column or field name must not have, as the end of a sentence about it."""
    if not name.isprintable():
        return "holds characters that cannot be printed"
    if '"' in name or "\\" in name:
        return 'holds " or \\, which JSON escapes; fields with such names cannot be decoded'
    return None


def _type_trouble(type_: Type) -> str | None:
    """Return why JSON cannot hold *type_*: map keys that are not text, and names that JSON escapes."""
    match type_:
        case ListType(element):
            return _type_trouble(element)
        case StructType(fields):
            for f in fields:
                if why := letter_trouble(f.name):
                    return f"type {str(type_)!r}: the field name {f.name!r} {why}"
            return next(filter(None, (_type_trouble(f.type) for f in fields)), None)
        case MapType(key, value):
            if not isinstance(key, DecimalType) and str(key) not in _MAP_KEYS:
                return f"type {str(type_)!r}: {key} cannot be the key of a JSON map; allowed: {', '.join(_MAP_KEYS)}"
            return _type_trouble(value)
    return None


def _column_words(columns: tuple[Column, ...]) -> list[dict[str, Any]]:
    """The stored form is a list: a jsonb object forgets the order of its keys."""
    return [{"name": c.name, **_long_form(c)} for c in columns]


def _long_form(column: Column) -> dict[str, Any]:
    return (
        {"type": str(column.type), "required": column.required}
        | ({"from": column.source} if column.source else {})
        | ({"aliases": [*column.aliases]} if column.aliases else {})
        | ({} if column.default is None else {"default": column.default})
        | ({} if column.description is None else {"description": column.description})
    )


_COLUMN_SCHEMA = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": COLUMNS_MAX,
    "propertyNames": {"minLength": 1, "maxLength": NAME_BYTES_MAX},
    "additionalProperties": {
        "anyOf": [
            {"type": "string", "description": f"Iceberg's type: {', '.join(FORMS)}."},
            ColumnWords.model_json_schema(),
        ]
    },
    "examples": [{"order_id": {"type": "long", "required": True}, "amount": "decimal(12,2)", "tags": "list<string>"}],
}
Columns = Annotated[
    tuple[Column, ...], PlainValidator(_columns), PlainSerializer(_column_words), WithJsonSchema(_COLUMN_SCHEMA)
]


def plain_default(value: Any) -> Any:
    """*value* as a spec keeps it. Raises: ValueError."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"write a number, text, true or false, not {quote(value)}; dates and times are text")


def default_value(type_: Type, default: Default) -> Value:
    """*default* in the physical form of a column of *type_*. Raises: WhereError when it does not fit exactly."""
    if isinstance(type_, ListType | MapType | StructType):
        raise WhereError(f"a column of type {type_} cannot have a default; only single values can")
    try:
        found = compared(Ref(("the column",), type_), Op.EQ, literal(default, type_))
    except WhereError as error:
        written = next((form for of, form in _DEFAULTS.items() if str(type_).startswith(of)), "a number, such as 0")
        raise WhereError(f"{quote(default)} is no value of type {type_}; write {written}") from error
    value = found.value if isinstance(found, Compare) else None
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise WhereError(f"{default!r} does not fit {type_} exactly")
    if isinstance(value, str) and "\x00" in value:
        raise WhereError("the text holds U+0000, which the buffer cannot store")
    return value
