"""Infer the columns of Debezium's change events in JSON, with or without their schema block."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from harness_pipelines.formats.debezium.schema_block import DECIMAL, SCALED, TIMES, ZONED, Field
from harness_pipelines.formats.infer.fields import Draft, Fields, ProposedColumn, fields_of_objects
from harness_pipelines.formats.infer.values import Unclear, example
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.sources import SOURCES, Source
from harness_pipelines.spec.types import (
    DECIMAL_PRECISION_MAX,
    DecimalType,
    FieldType,
    ListType,
    MapType,
    Primitive,
    StructType,
    Type,
)

OPS = frozenset({"c", "r", "u", "d", "t", "m"})
_LITERALS: Mapping[str, str] = {
    "boolean": "boolean", "int8": "int", "int16": "int", "int32": "int", "int64": "long", "float": "float",
    "double": "double", "string": "string", "bytes": "binary",
}  # fmt: skip
_OF_SOURCE: Mapping[Source, str] = {
    "epoch_days": "date", "ms_of_day": "time", "us_of_day": "time", "ns_of_day": "time", "epoch_ms": "timestamp",
    "epoch_us": "timestamp", "epoch_ns": "timestamp",
}  # fmt: skip
_NAMED: Mapping[str, str] = {
    "io.debezium.data.Uuid": "uuid", "io.debezium.time.ZonedTimestamp": "timestamptz",
    "io.debezium.time.ZonedTime": "time",
}  # fmt: skip
_SCALE_DEFAULT = 10  #: of decimals whose values tell their own
_DIGITS = re.compile(r"\d{1,2}")


def body_of(event: Any) -> dict[str, Any] | None:
    """The change that *event* (parsed JSON) is; None: it is no change event."""
    body = event.get("payload", event) if isinstance(event, dict) else None
    if not isinstance(body, dict) or not {"before", "after"} & body.keys():
        return None
    op = body.get("op")
    return body if isinstance(op, str) and op in OPS else None


def is_wrapped(event: Any) -> bool:
    """A value with Kafka Connect's schema block around it."""
    return isinstance(event, dict) and event.keys() == {"schema", "payload"} and isinstance(event["schema"], dict)


def fields_of_events(events: Sequence[Any]) -> Fields:
    """The columns of change *events*: what their schema blocks say, else what the rows in them look like."""
    bodies = [body for event in events if (body := body_of(event)) is not None]
    rows = [row for body in bodies for row in (body.get("after"), body.get("before")) if isinstance(row, dict)]
    blocks = [block for event in events if is_wrapped(event) and (block := _block(event["schema"])) is not None]
    if not blocks:
        return _guessed(rows)
    draft = Draft()
    for name, field in {name: field for block in blocks for name, field in block.items()}.items():
        try:
            column = column_of(name, field)
        except Unclear as why:
            draft.leave_out(name, str(why))
        else:
            draft.add(column, "; ".join(filter(None, (example(row.get(name) for row in rows), field.name or ""))))
    return draft.done()


def _guessed(rows: Sequence[dict[str, Any]]) -> Fields:
    """Without a schema block."""
    found = fields_of_objects(rows)
    columns = [ProposedColumn(column=_as_written(one.column), note=one.note) for one in found.columns]
    return Fields(columns=tuple(columns), left_out=found.left_out)


def _as_written(column: Column) -> Column:
    """*column* as connectors write it: a number that counts time has no zone, and of decimals the spec says how."""
    if _is_decimal(column.type):
        return replace(column, source="number")
    if column.source in _OF_SOURCE and str(column.type) == "timestamptz":
        return replace(column, type=Primitive("timestamp"))
    return column


def _is_decimal(type_: Type) -> bool:
    return _is_decimal(type_.element) if isinstance(type_, ListType) else isinstance(type_, DecimalType)


def _block(schema: dict[str, Any]) -> dict[str, Field] | None:
    """The fields of `after` that a schema block describes; None: it describes none."""
    try:
        root = msgspec.convert(schema, Field, strict=False)
    except msgspec.ValidationError:
        return None
    after = next((f for f in root.fields or () if f.field == "after"), None)
    return None if after is None else {f.field: f for f in after.fields or () if f.field}


def column_of(name: str, field: Field) -> Column:
    """The column that a field of a schema block gives. Raises: Unclear."""
    type_ = _type(field)
    source: Source | None = TIMES.get(field.name or "") or (TIMES.get(_element(field).name or ""))
    if _is_decimal(type_):
        source = "base64" if _element(field).name in {DECIMAL, SCALED} else "number"
    kind = type_
    while isinstance(kind, ListType):
        kind = kind.element
    allowed = SOURCES.get("decimal" if isinstance(kind, DecimalType) else str(kind), ())
    return Column(name=name, type=type_, source=source if source in allowed else None)


def _element(field: Field) -> Field:
    return field if field.items is None else _element(field.items)


def _type(field: Field) -> Type:
    """Raises: Unclear."""
    name = field.name or ""
    if name == SCALED:
        return DecimalType(DECIMAL_PRECISION_MAX, _SCALE_DEFAULT)
    if name == DECIMAL:
        return _decimal(field.parameters or {})
    if name in TIMES and (found := _OF_SOURCE.get(TIMES[name])):
        return Primitive(found)
    if name in _NAMED or name in ZONED:
        return Primitive(_NAMED[name])
    match field.type:
        case "array" if field.items is not None:
            return ListType(_type(field.items))
        case "map" if field.keys is not None and field.values is not None:
            return MapType(_type(field.keys), _type(field.values))
        case "struct" if field.fields:
            return StructType(tuple(FieldType(f.field, _type(f)) for f in field.fields if f.field))
    if field.type not in _LITERALS:
        raise Unclear(f"{field} has no type as a column")
    return Primitive(_LITERALS[field.type])


def _decimal(parameters: Mapping[str, str]) -> Type:
    """Raises: Unclear."""
    scale, precision = parameters.get("scale", ""), parameters.get("connect.decimal.precision", "")
    if not _DIGITS.fullmatch(scale):
        raise Unclear(f"its decimals have {scale or 'an unknown number of'} digits behind the point")
    digits = int(precision) if _DIGITS.fullmatch(precision) else DECIMAL_PRECISION_MAX
    digits = min(max(digits, int(scale), 1), DECIMAL_PRECISION_MAX)
    if int(scale) > digits:
        raise Unclear(f"its decimals have {scale} digits behind the point; a column has at most {digits}")
    return DecimalType(digits, int(scale))
