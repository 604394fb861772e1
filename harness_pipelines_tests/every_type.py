"""A column of every type with values of it, as each format writes them: by other means than they are read by."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from harness_pipelines.spec.types import (
    PRIMITIVES,
    DecimalType,
    ListType,
    MapType,
    Primitive,
    StructType,
    Type,
    parse_type,
)
from harness_pipelines_tests.unit.formats import values as json_values
from harness_pipelines_tests.unit.formats.test_avro import EPOCH, avro_of, datum, field, record
from harness_pipelines_tests.unit.read.values import present, values
from harness_pipelines_tests.wire import avro_bytes, framed, proto_field, proto_float

Row = Mapping[str, Any]  #: the values of `COLUMNS`, as Arrow has them in Python
DECIMALS = ("decimal(9, 2)", "decimal(18, 6)", "decimal(19, 4)", "decimal(38, 10)")
LEAVES = (*PRIMITIVES, *DECIMALS)
ALL = "struct<" + ", ".join(f"f{i}: {leaf}" for i, leaf in enumerate(LEAVES)) + ">"
#: Every format can write these.
COMMON = {f"c{i}": leaf for i, leaf in enumerate(LEAVES)} | {
    "s": ALL, "l": f"list<{ALL}>", "longs": "list<long>", "texts": "list<string>", "times": "list<time>",
    "m": "map<string, double>", "m_s": f"map<string, {ALL}>",
}  # fmt: skip
#: Protobuf has neither lists of lists nor lists in maps.
DEEP = {"deep": "map<date, list<list<uuid>>>", "keyed": "map<uuid, map<string, timestamp>>"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a format writes rows of *columns*."""

    columns: Mapping[str, str]
    rows: st.SearchStrategy[tuple[bytes, Row]]  #: a record's value without a header, and the row that it is
    indexes: tuple[int, ...] | None = None  #: of Protobuf's message, in the header
    schema: tuple[str, Any] | None = None  #: kind and text, as a registry has it

    def value(self, payload: bytes, schema_id: int) -> bytes:
        """What is produced."""
        return payload if self.schema is None else framed(payload, schema_id, indexes=self.indexes)


def _typed(columns: Mapping[str, str]) -> dict[str, Type]:
    return {name: parse_type(text) for name, text in columns.items()}


# JSON


def _json(schema: tuple[str, Any] | None) -> Way:
    columns = COMMON | DEEP | {"by_number": "map<int, boolean>"}
    parts = {name: json_values.written(kind) for name, kind in _typed(columns).items()}
    rows = st.fixed_dictionaries(parts).map(
        lambda found: (
            ("{" + ",".join(f"{json.dumps(n)}:{text}" for n, (text, _) in found.items()) + "}").encode(),
            {name: value for name, (_, value) in found.items()},
        )
    )
    return Way(columns=columns, rows=rows, schema=schema)


# Avro


def _avro() -> Way:
    columns = COMMON | DEEP
    types = _typed(columns)
    schema, bare = (record(*(field(n, avro_of(t, n, bare=bare)) for n, t in types.items())) for bare in (False, True))
    rows = st.fixed_dictionaries({name: values(kind) for name, kind in types.items()})
    return Way(
        columns=columns,
        rows=rows.map(lambda row: (avro_bytes(bare, {n: datum(types[n], v) for n, v in row.items()}), row)),
        schema=("AVRO", schema),
    )


# Protobuf

_MESSAGES = {
    "date": "google.type.Date", "time": "google.type.TimeOfDay", "timestamp": "google.protobuf.Timestamp",
    "timestamptz": "google.protobuf.Timestamp",
}  # fmt: skip
_SCALARS = {
    "boolean": "bool", "int": "int32", "long": "int64", "float": "float", "double": "double", "string": "string",
    "binary": "bytes", "uuid": "string",
}  # fmt: skip
_IMPORTS = (
    "confluent/type/decimal.proto", "google/protobuf/timestamp.proto", "google/type/date.proto",
    "google/type/timeofday.proto",
)  # fmt: skip


def _proto_type(kind: Type) -> str:
    match kind:
        case DecimalType():
            return "confluent.type.Decimal"
        case StructType():
            return "All"
        case Primitive(name):
            return _MESSAGES.get(name) or _SCALARS[name]
    raise AssertionError(kind)


def _proto_fields(columns: Mapping[str, Type]) -> str:
    lines = []
    for number, (name, kind) in enumerate(columns.items(), 1):
        match kind:
            case ListType(element):
                lines.append(f"  repeated {_proto_type(element)} {name} = {number};")
            case MapType(key, value):
                lines.append(f"  map<{_proto_type(key)}, {_proto_type(value)}> {name} = {number};")
            case _:
                lines.append(f"  optional {_proto_type(kind)} {name} = {number};")
    return "\n".join(lines)


def _message(columns: Mapping[str, Type], row: Row) -> bytes:
    return b"".join(_proto(n, kind, row[name]) for n, (name, kind) in enumerate(columns.items(), 1))


def _proto(number: int, kind: Type, value: Any) -> bytes:
    """The field *number* with *value*: none where it is None."""
    if value is None:
        return b""
    match kind:
        case ListType(element):
            return b"".join(_proto(number, element, one) for one in value)
        case MapType(key, item):
            return b"".join(proto_field(number, _proto(1, key, k) + _proto(2, item, v)) for k, v in value)
        case StructType(fields):
            return proto_field(number, _message({f.name: f.type for f in fields}, value))
        case DecimalType(precision, scale):
            parts: tuple[Any, ...] = (datum(kind, value), precision, scale)
        case Primitive("float"):
            return proto_float(number, value)
        case Primitive("date"):
            parts = (value.year, value.month, value.day)
        case Primitive("time"):
            parts = (value.hour, value.minute, value.second, value.microsecond * 1_000)
        case Primitive("timestamp" | "timestamptz"):
            epoch = EPOCH if str(kind) == "timestamptz" else EPOCH.replace(tzinfo=None)
            us = (value - epoch) // dt.timedelta(microseconds=1)
            parts = (us // 1_000_000, us % 1_000_000 * 1_000)
        case _:
            return proto_field(number, datum(kind, value) if str(kind) == "uuid" else value)
    return proto_field(number, b"".join(proto_field(n, part) for n, part in enumerate(parts, 1)))


def _there(kind: Type, *, alone: bool = True) -> st.SearchStrategy[Any]:
    """Values of *kind* that Protobuf can write; *alone*: as a field of its own, which may be missing."""
    match kind:
        case ListType(element):
            return st.lists(_there(element, alone=False), max_size=3)
        case MapType(key, value):
            pairs = st.tuples(_there(key, alone=False), _there(value, alone=False))
            return st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0])
        case StructType(fields):
            made: st.SearchStrategy[Any] = st.fixed_dictionaries({f.name: _there(f.type) for f in fields})
        case _:
            made = present(kind, nested=not alone)
    return st.none() | made if alone else made


def _protobuf() -> Way:
    columns = COMMON | {"by_number": "map<int, boolean>"}
    types = _typed(columns)
    text = "\n".join([
        'syntax = "proto3"; package every;', *(f'import "{name}";' for name in _IMPORTS),
        "message Row {", _proto_fields(types), "}",
        "message All {", _proto_fields({f"f{i}": parse_type(leaf) for i, leaf in enumerate(LEAVES)}), "}",
    ])  # fmt: skip
    return Way(
        columns=columns,
        rows=st.fixed_dictionaries({name: _there(kind) for name, kind in types.items()}).map(
            lambda row: (_message(types, row), row)
        ),
        indexes=(0,),
        schema=("PROTOBUF", text),
    )


WAYS: Mapping[str, Callable[[], Way]] = {
    "json": lambda: _json(None),
    "json-schema": lambda: _json(("JSON", '{"type": "object"}')),
    "avro": _avro,
    "protobuf": _protobuf,
}
