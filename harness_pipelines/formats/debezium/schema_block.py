"""The schema block of Debezium's events: the encoding of each column.

Kafka Connect's JSON converter writes it in front of each payload. A field has a literal type (int64) and often a
semantic one (``io.debezium.time.MicroTimestamp``), which decides. Names and meanings are those of Debezium's
documentation of its Postgres connector, "Data type mappings".
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from harness_pipelines.formats.base import Codec, Reason
from harness_pipelines.formats.columns.encodings import Form
from harness_pipelines.formats.columns.shapes import NULL, Unfit
from harness_pipelines.formats.debezium.puts import OnePass
from harness_pipelines.formats.json.objects import JsonCodec
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.sources import SOURCES, Source
from harness_pipelines.spec.types import DecimalType, ListType, MapType, StructType, Type

_KNOWN_MAX = 256  #: schema blocks that are kept; a table has a few in its life
_KEPT_BYTES_MAX = 2**20
_SCALE = re.compile(r"-?\d{1,5}")
DECIMAL, SCALED = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"
TIMES: Mapping[str, Source] = {
    "org.apache.kafka.connect.data.Date": "epoch_days",
    "org.apache.kafka.connect.data.Time": "ms_of_day",
    "org.apache.kafka.connect.data.Timestamp": "epoch_ms",
    "io.debezium.time.Date": "epoch_days",
    "io.debezium.time.Time": "ms_of_day",
    "io.debezium.time.MicroTime": "us_of_day",
    "io.debezium.time.NanoTime": "ns_of_day",
    "io.debezium.time.Timestamp": "epoch_ms",
    "io.debezium.time.MicroTimestamp": "epoch_us",
    "io.debezium.time.NanoTimestamp": "epoch_ns",
}
ZONED = frozenset({"io.debezium.time.ZonedTime", "io.debezium.time.ZonedTimestamp"})  #: the others are in UTC
_INTEGERS = ("int8", "int16", "int32", "int64")
_NUMBERS = (*_INTEGERS, "float", "double")
_LITERALS: Mapping[str, tuple[str, ...]] = {
    "boolean": ("boolean",),
    "int": _INTEGERS,
    "long": _INTEGERS,
    "float": _NUMBERS,
    "double": _NUMBERS,
    "string": ("string",),
    "uuid": ("string",),
    "binary": ("bytes",),
}  #: what columns can be read from


class Field(msgspec.Struct, gc=False):
    """A field of a schema block, or the elements of one."""

    type: str
    field: str | None = None
    name: str | None = None  #: the semantic type
    parameters: dict[str, str] | None = None
    items: Field | None = None
    keys: Field | None = None  #: of a map
    values: Field | None = None
    fields: list[Field] | None = None
    default: msgspec.Raw = NULL

    def __str__(self) -> str:
        return f"{self.name} ({self.type})" if self.name else self.type


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the columns of an event are read."""

    row: Codec
    key: Codec
    puts: OnePass
    fields: Mapping[str, Field] = field(default_factory=dict)  #: by column; none without a schema block

    def name_in(self, column: Column, block: Container[str]) -> str:
        """By which name *column* is in a *block*: that of the schema block, else the first of its names."""
        told = self.fields.get(column.name)
        return (told.field if told is not None else None) or column.name_in(block)


class Readings:
    """The readings of a table's events, or of its record keys, by the schema block that they come with."""

    def __init__(
        self,
        columns: Sequence[Column],
        key: Sequence[Column],
        *,
        block: Literal["after"] | None,
        unknown_fields: Literal["ignore", "quarantine"] = "ignore",
    ) -> None:
        """*block*: the field of the schema that has the columns; none: the columns are its own fields."""
        self._columns, self._key, self._block, self._unknown_fields = columns, key, block, unknown_fields
        self._plain = self._reading({})
        self._known: dict[bytes, Reading | Unfit] = {}

    def of(self, schema: bytes) -> Reading | Unfit:
        """The reading for *schema* (JSON; ``null``: there is none), or why its columns cannot be read."""
        if schema == b"null":
            return self._plain
        found = self._known.get(schema)
        if found is None:
            found = self._read(schema)
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            if len(schema) <= _KEPT_BYTES_MAX:
                self._known[schema] = found
        return found

    def _read(self, schema: bytes) -> Reading | Unfit:
        try:
            root = msgspec.json.decode(schema, type=Field)
        except msgspec.DecodeError as error:
            return Unfit(Reason.WRONG_TYPE, f"`schema` is no schema block of Kafka Connect: {error}")
        parts = {f.field or "": f for f in root.fields or ()}
        if self._block:
            if self._block not in parts:
                return Unfit(Reason.MISSING_BLOCK, f"`schema` does not describe `{self._block}`")
            parts = {f.field or "": f for f in parts[self._block].fields or ()}
        fields = {c.name: parts[name] for c in self._columns if (name := c.name_in(parts)) in parts}
        for column in self._columns:
            if column.name in fields and not _gives(fields[column.name], column.type, column.source):
                return Unfit(
                    Reason.WRONG_TYPE,
                    f"`{column.name}`: the event's {fields[column.name]} cannot be read as {column.type}; give the "
                    "column another type, or the connector another handling mode",
                )
        return self._reading(fields)

    def _reading(self, fields: Mapping[str, Field]) -> Reading:
        forms = {c.name: _form(fields.get(c.name), c.type, c.source) for c in self._columns}
        columns, others = _as_told(self._columns, fields)
        row = JsonCodec(columns, unknown_fields=self._unknown_fields, forms=forms, no_columns=others)
        return Reading(
            row=row,
            key=JsonCodec(_as_told(self._key, fields)[0], forms={c.name: forms[c.name] for c in self._key}),
            puts=OnePass(row),
            fields=fields,
        )


def _as_told(columns: Sequence[Column], fields: Mapping[str, Field]) -> tuple[list[Column], list[str]]:
    """*columns* by the name that the schema block has of each, and the names that are not read then.

    Fields of several names may be written in several ways, of which the block's first is the column's.
    """
    found, others = list[Column](), list[str]()
    for column in columns:
        told = fields[column.name].field if column.name in fields else None
        kept = column.aliases if told is None else tuple(name for name in column.aliases if name == told)
        found.append(replace(column, aliases=kept))
        others += [name for name in column.aliases if name not in kept]
    return found, others


def _gives(field: Field, type_: Type, source: Source | None) -> bool:
    """Return whether a value as *field* describes it can be one of *type_*."""
    match type_:
        case ListType(element):
            return field.type == "array" and field.items is not None and _gives(field.items, element, source)
        case MapType():
            return field.type == "map"
        case StructType():
            return field.type == "struct" and field.name != SCALED
        case DecimalType():
            if field.name == DECIMAL:
                return _scale(field) is not None
            return field.name == SCALED or (field.type in {*_NUMBERS, "string"} and not field.name)
    if str(type_) not in SOURCES:
        return field.type in _LITERALS[str(type_)] and field.name != DECIMAL
    told = TIMES.get(field.name or "")
    return told in SOURCES[str(type_)] or field.type == "string" or (not told and field.type in _INTEGERS)


def _form(field: Field | None, type_: Type, source: Source | None) -> Form:
    """How a value of *type_* is written: as its *field* tells, else as the spec says (*source*)."""
    match type_:
        case ListType(element):
            return _form(field.items if field else None, element, source)
        case MapType(key, value):
            keys, values = (field.keys, field.values) if field else (None, None)
            return Form("iso_utc", key=_form(keys, key, None), value=_form(values, value, None))
        case StructType(parts):
            told = {part.field: part for part in (field.fields or () if field else ())}
            return Form("iso_utc", fields={part.name: _form(told.get(part.name), part.type, None) for part in parts})
    name = (field.name if field else None) or ""
    if str(type_) in {"float", "double"}:
        return Form("named_nan")
    if name == DECIMAL and field is not None:
        return Form("connect", _scale(field))
    if name == SCALED:
        return Form("base64")
    if name in TIMES and str(type_) in SOURCES:
        return Form(TIMES[name])
    if field is not None and isinstance(type_, DecimalType):
        return Form("number")
    if field is not None and field.type == "string":
        return Form("iso8601" if name in ZONED else "iso_utc")
    return Form("iso_utc" if source in (None, "iso8601") else source)


def _scale(field: Field) -> int | None:
    """The scale that a decimal's field tells, if it does."""
    told = (field.parameters or {}).get("scale", "")
    return int(told) if _SCALE.fullmatch(told) else None
