"""Random predicates over the columns of a table, and a slow reference that says what they mean."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from harness_pipelines.spec import predicate as p
from harness_pipelines.spec.predicate import Op, Predicate, Ref
from harness_pipelines.spec.types import DecimalType, ListType, MapType, Primitive, StructType, Type
from harness_pipelines_tests.unit.read.values import values

FLOATS = (Primitive("float"), Primitive("double"))


def physical(column: pa.ChunkedArray) -> list[Any]:
    """Values of *column* as predicates hold them."""
    if pa.types.is_date32(column.type):
        return list(column.cast(pa.int32()).to_pylist())
    if pa.types.is_timestamp(column.type) or pa.types.is_time64(column.type):
        return list(column.cast(pa.int64()).to_pylist())
    return list(column.to_pylist())


def predicates(columns: Mapping[str, Type]) -> st.SearchStrategy[Predicate]:
    """Trees of predicates over *columns*."""
    leaves = st.sampled_from(sorted(columns)).flatmap(lambda name: _leaf(Ref((name,), columns[name])))
    return st.recursive(leaves, _joined, max_leaves=5)


def _joined(inner: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Predicate]:
    several = st.lists(inner, min_size=2, max_size=3)
    return several.map(lambda ps: p.all_of(*ps)) | several.map(lambda ps: p.any_of(*ps)) | inner.map(p.negate)


def _leaf(ref: Ref) -> st.SearchStrategy[Predicate]:
    null = st.builds(p.IsNull, st.just(ref), st.booleans())
    if isinstance(ref.type, ListType | MapType | StructType):
        return null
    literal = _literals(ref.type)
    found: st.SearchStrategy[Predicate] = null
    found |= st.builds(p.Compare, st.just(ref), st.sampled_from(_ops(ref.type)), literal)
    found |= st.builds(p.OneOf, st.just(ref), st.lists(literal, max_size=3).map(tuple), st.booleans())
    if ref.type in FLOATS:
        found |= st.builds(p.IsNaN, st.just(ref), st.booleans())
    if ref.type == Primitive("string"):
        pattern = st.text(alphabet="ab%_é\n01", max_size=4).map(lambda t: t.replace("0", "\\%").replace("1", "\\\\"))
        found |= st.builds(p.Like, st.just(ref), pattern, st.booleans())
    return found


def _ops(type_: Type) -> list[Op]:
    return [Op.EQ, Op.NE] if type_ == Primitive("boolean") else list(Op)


def _literals(type_: Type) -> st.SearchStrategy[Any]:
    if type_ in FLOATS:
        return values(type_).filter(lambda v: v is not None and v == v)
    if isinstance(type_, DecimalType) or type_ in (Primitive("boolean"), Primitive("string"), Primitive("binary")):
        return values(type_).filter(lambda v: v is not None)
    if type_ == Primitive("uuid"):
        return st.binary(min_size=16, max_size=16)
    from harness_pipelines.spec.arrow import arrow_type

    made = values(type_).filter(lambda v: v is not None)
    return made.map(lambda v: physical(pa.chunked_array([pa.array([v], type=arrow_type(type_))]))[0])


def holds(predicate: Predicate, row: Mapping[str, Any]) -> bool:
    """True if *predicate* is true (not unknown) of *row*, whose values are `physical`."""
    match predicate:
        case p.Constant(value):
            return value
        case p.All(parts):
            return all(holds(part, row) for part in parts)
        case p.AnyOf(parts):
            return any(holds(part, row) for part in parts)
    value = row[predicate.ref.column]
    if isinstance(predicate, p.IsNull):
        return (value is None) != predicate.negated
    if value is None:
        return False
    match predicate:
        case p.Compare(_, op, literal):
            return _compare(op, value, literal)
        case p.OneOf(_, literals, negated):
            return any(value == literal for literal in literals) != negated
        case p.IsNaN(_, negated):
            return bool((value != value) != negated)
        case p.Like(_, pattern, negated):
            return (re.fullmatch(_regex(pattern), value, re.DOTALL) is not None) != negated
    raise AssertionError(predicate)


def _compare(op: Op, left: Any, right: Any) -> bool:
    compare: Callable[[Any, Any], Any] = {
        Op.EQ: operator.eq,
        Op.NE: operator.ne,
        Op.LT: operator.lt,
        Op.LE: operator.le,
        Op.GT: operator.gt,
        Op.GE: operator.ge,
    }[op]
    return bool(compare(left, right))


def _regex(pattern: str) -> str:
    parts, quoted = [], False
    for character in pattern:
        if quoted or character not in "%_\\":
            parts.append(re.escape(character))
            quoted = False
        else:
            quoted = character == "\\"
            parts.append({"%": ".*", "_": ".", "\\": ""}[character])
    return "".join(parts)
