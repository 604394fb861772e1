"""Columns, coordinates and predicates of a spec in Arrow."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from harness_pipelines.spec.predicate import (
    OPERATORS,
    All,
    AnyOf,
    Compare,
    Constant,
    IsNaN,
    IsNull,
    Leaf,
    Like,
    OneOf,
    Predicate,
    comparisons,
    is_float,
)
from harness_pipelines.spec.types import DecimalType, ListType, MapType, StructType, Type

if TYPE_CHECKING:
    from harness_pipelines.spec.columns import Column

UUID_BYTES = 16
_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "string": pa.string(),
    "binary": pa.binary(),
    "uuid": pa.binary(UUID_BYTES),
}
COORDINATES = pa.schema(
    [
        pa.field("_kafka_partition", pa.int32(), nullable=False),
        pa.field("_kafka_offset", pa.int64(), nullable=False),
        pa.field("_kafka_timestamp", pa.timestamp("us", "UTC")),
        pa.field("_op", pa.string(), nullable=False),
        pa.field("_schema_version", pa.int32(), nullable=False),
    ]
)


def arrow_type(type_: Type) -> pa.DataType:
    """The Arrow type that holds every value of *type_*."""
    match type_:
        case DecimalType(precision, scale):
            return pa.decimal128(precision, scale)
        case ListType(element):
            return pa.list_(arrow_type(element))
        case MapType(key, value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case StructType(fields):
            return pa.struct([pa.field(f.name, arrow_type(f.type)) for f in fields])
        case _:
            return _PRIMITIVES[type_.name]


def type_name(kind: pa.DataType) -> str:
    """The name that a spec has for *kind*; Arrow's name for a type that no spec has."""
    return next((name for name, known in _PRIMITIVES.items() if known == kind), str(kind))


def arrow_schema(columns: Sequence[Column], *, coordinates: bool = False) -> pa.Schema:
    """The schema of rows: *columns* in their order, then, if asked for, the coordinates."""
    fields = [pa.field(c.name, arrow_type(c.type), nullable=not c.required) for c in columns]
    return pa.schema([*fields, *(COORDINATES if coordinates else ())])


class Named(Protocol):
    """A column: its name and its type."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> Type: ...


def to_arrow(predicate: Predicate) -> pc.Expression:
    """The exact filter for Arrow tables that hold the columns of *predicate* under their own names."""
    match predicate:
        case Constant(value):
            return pc.scalar(value)
        case All(parts):
            return reduce(operator.and_, map(to_arrow, parts))
        case AnyOf(parts):
            return reduce(operator.or_, map(to_arrow, parts))
        case OneOf(ref, values) if values and is_float(ref):  # of two zeros, which a set may tell apart
            return to_arrow(comparisons(predicate))
        case leaf:
            return _arrow_leaf(leaf, pc.field(leaf.ref.path if leaf.ref.is_nested else leaf.ref.column))


def _arrow_leaf(leaf: Leaf, column: pc.Expression) -> pc.Expression:
    match leaf:
        case Compare(ref, op, value):
            return OPERATORS[op](column, pa.scalar(value, type=arrow_type(ref.type)))
        case OneOf(ref, values, negated):
            found = column.isin(pa.array(values, type=arrow_type(ref.type)))
            return ~found & column.is_valid() if negated else found
        case IsNull(_, negated):
            return column.is_valid() if negated else column.is_null()
        case IsNaN(_, negated):
            return ~pc.is_nan(column) if negated else pc.is_nan(column)
        case Like(_, _, negated):
            found = _arrow_like(leaf, column)
            return ~found if negated else found
    raise AssertionError(leaf)


def _arrow_like(leaf: Like, column: pc.Expression) -> pc.Expression:
    if leaf.is_prefix:
        return pc.starts_with(column, leaf.prefix)
    if "\\\\" not in leaf.pattern:
        return pc.match_like(column, leaf.pattern)
    # Arrow's LIKE looks for both backslashes of a quoted one.
    parts = re.findall(r"\\.|.", leaf.pattern, re.DOTALL)
    regex = "".join({"%": ".*", "_": "."}.get(part) or re.escape(part[-1]) for part in parts)
    return pc.match_substring_regex(column, rf"(?s)\A{regex}\z")
