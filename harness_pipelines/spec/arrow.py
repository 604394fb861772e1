"""Arrow types of a user's columns and of the coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

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
