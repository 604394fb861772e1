"""What DuckDB pushes into a scan, as a predicate of ours.

DuckDB hands a scan its filter as an expression of Arrow, leaves the filter out of its own plan, and so relies on the
scan. Arrow shows the tree of an expression only in the form in which it is pickled: one row of literals, and a list of
pairs that names calls, columns and literals in prefix order. A call that is not known here rules nothing out by
itself; the expression is then evaluated on the rows that are left.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from harness_pipelines.spec.arrow import arrow_type
from harness_pipelines.spec.predicate import (
    FALSE,
    TRUE,
    AnyOf,
    Compare,
    IsNaN,
    IsNull,
    OneOf,
    Op,
    Predicate,
    Ref,
    Value,
    all_of,
    any_of,
    is_float,
)
from harness_pipelines.spec.types import DecimalType, Primitive, StructType, Type

_OPS = {
    "equal": Op.EQ,
    "not_equal": Op.NE,
    "less": Op.LT,
    "less_equal": Op.LE,
    "greater": Op.GT,
    "greater_equal": Op.GE,
}
_COUNTED = frozenset({"date", "time", "timestamp", "timestamptz"})  #: literals are days or microseconds


@dataclass(frozen=True, slots=True)
class Pushed:
    """A filter: *known* holds for every row that it keeps, and says it all if *rest* is None."""

    known: Predicate
    rest: pc.Expression | None


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    arguments: tuple[_Node, ...]


_Node: TypeAlias = _Call | Ref | Any  #: Any: a scalar of Arrow, which has no types


class _Unknown(Exception):
    """A part of the expression that has no predicate of ours."""


def pushed(expression: pc.Expression | None, columns: Mapping[str, Type]) -> Pushed:
    """Read the filter of a scan over *columns*. Raises nothing for what it does not know: it is in `rest`."""
    if expression is None:
        return Pushed(TRUE, None)
    try:
        tree = _tree(expression, columns)
    except _Unknown:
        return Pushed(TRUE, expression)
    known, is_all = _predicate(tree)
    return Pushed(known, None if is_all else expression)


def _predicate(node: _Node) -> tuple[Predicate, bool]:
    """The predicate of *node* and whether it says all of it; true of every row where it is unknown."""
    match node:
        case _Call("and_kleene", parts):
            found = [_predicate(part) for part in parts]
            return all_of(*(one for one, _ in found)), all(is_all for _, is_all in found)
        case _Call("or_kleene", parts):
            found = [_predicate(part) for part in parts]
            return any_of(*(one for one, _ in found)), all(is_all for _, is_all in found)
    try:
        return _leaf(node), True
    except _Unknown:
        return TRUE, False


def _leaf(node: _Node) -> Predicate:
    match node:
        case _Call(name, (Ref() as ref, pa.Scalar() as literal)) if name in _OPS:
            return _compared(ref, _OPS[name], literal)
        case _Call("is_in", (Ref() as ref, pa.Scalar() as options)):
            values = tuple(_value(ref, literal) for literal in options["value_set"].values)
            return OneOf(ref, values) if values else FALSE
        case _Call("is_null", (Ref() as ref, pa.Scalar() as options)) if not options["nan_is_null"].as_py():
            return IsNull(ref)
        case _Call("is_valid", (Ref() as ref,)):
            return IsNull(ref, negated=True)
        case _Call("is_nan", (Ref() as ref,)) if is_float(ref):
            return IsNaN(ref)
        case _Call("invert", (_Call("is_nan", (Ref() as ref,)),)) if is_float(ref):
            return IsNaN(ref, negated=True)
    raise _Unknown


def _compared(ref: Ref, op: Op, literal: pa.Scalar) -> Predicate:
    """DuckDB sorts NaN above all numbers; for Arrow, and so for our predicates, it is above none."""
    found = Compare(ref, op, _value(ref, literal))
    return AnyOf((found, IsNaN(ref))) if is_float(ref) and op in (Op.GT, Op.GE) else found


def _value(ref: Ref, literal: pa.Scalar) -> Value:
    """The literal in the physical form of its column."""
    if not isinstance(ref.type, Primitive | DecimalType) or ref.type == Primitive("uuid") or not literal.is_valid:
        raise _Unknown
    try:
        exact = literal.cast(arrow_type(ref.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise _Unknown from None
    value = exact.value if str(ref.type) in _COUNTED else exact.as_py()
    if isinstance(value, float) and math.isnan(value):  # DuckDB asks `is_nan` where NaN is meant
        raise _Unknown
    assert isinstance(value, bool | int | float | Decimal | str | bytes)
    return value


# -- the tree of an expression ----------------------------------------------------------------------------------------


def _tree(expression: pc.Expression, columns: Mapping[str, Type]) -> _Node:
    _, (pickled,) = expression.__reduce__()
    literals = pa.ipc.open_file(pickled).get_batch(0)
    pairs = _pairs(literals.schema)
    node = _node(pairs, literals, columns)
    if next(pairs, None) is not None:
        raise _Unknown
    return node


def _node(pairs: Iterator[tuple[str, str]], literals: pa.RecordBatch, columns: Mapping[str, Type]) -> _Node:
    kind, value = next(pairs)
    match kind:
        case "literal":
            return literals.column(int(value))[0]
        case "field_ref" | "nested_field_ref":
            return _ref(list(_path(pairs, kind, value)), columns)
        case "call":
            return _Call(value, tuple(_arguments(pairs, value, literals, columns)))
    raise _Unknown


def _path(pairs: Iterator[tuple[str, str]], kind: str, value: str) -> Iterator[str]:
    if kind == "field_ref":
        yield value
    elif kind == "nested_field_ref":
        for _ in range(int(value)):
            yield from _path(pairs, *next(pairs))
    else:
        raise _Unknown


def _ref(path: list[str], columns: Mapping[str, Type]) -> Ref:
    if path[0] not in columns:
        raise _Unknown
    kind = columns[path[0]]
    for name in path[1:]:
        fields = {field.name: field.type for field in kind.fields} if isinstance(kind, StructType) else {}
        if name not in fields:
            raise _Unknown
        kind = fields[name]
    return Ref(tuple(path), kind)


def _arguments(
    pairs: Iterator[tuple[str, str]], name: str, literals: pa.RecordBatch, columns: Mapping[str, Type]
) -> Iterator[_Node]:
    """The arguments of a call; its options, a struct, come last."""
    for kind, value in pairs:
        if kind == "end":
            return
        if kind == "options":
            yield literals.column(int(value))[0]
        else:
            yield _node(chain([(kind, value)], pairs), literals, columns)
    raise _Unknown


class _CSchema(ctypes.Structure):
    """The head of ArrowSchema, as Arrow's C data interface lays it out."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


_POINTER_OF: Any = ctypes.pythonapi.PyCapsule_GetPointer
_POINTER_OF.restype, _POINTER_OF.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _pairs(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """The metadata of *schema* in order: as a mapping, which is all that PyArrow gives, equal keys would be lost."""
    capsule = schema.__arrow_c_schema__()
    at = _CSchema.from_address(_POINTER_OF(capsule, b"arrow_schema")).metadata
    found = []
    if at:
        [count], at = struct.unpack("=i", ctypes.string_at(at, 4)), at + 4
        for _ in range(2 * count):
            [size] = struct.unpack("=i", ctypes.string_at(at, 4))
            found.append(ctypes.string_at(at + 4, size).decode())
            at += 4 + size
    return iter(list(zip(found[::2], found[1::2], strict=True)))
