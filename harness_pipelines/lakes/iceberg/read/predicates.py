"""A predicate for Iceberg: it may match more rows but never fewer, so Arrow filters again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import reduce
from typing import Any

from pyiceberg import expressions
from pyiceberg.expressions import BooleanExpression, literals

from harness_pipelines.spec.predicate import (
    All,
    AnyOf,
    Compare,
    Constant,
    IsNaN,
    IsNull,
    Leaf,
    Like,
    OneOf,
    Op,
    Predicate,
    Ref,
    Value,
    comparisons,
    is_float,
    relaxed,
)
from harness_pipelines.spec.types import Primitive

ice: Any = expressions  # its classes take positional arguments, which the pydantic plugin of mypy does not see
_ICEBERG: Mapping[Op, Callable[[Any, Any], BooleanExpression]] = {
    Op.EQ: ice.EqualTo,
    Op.NE: ice.NotEqualTo,
    Op.LT: ice.LessThan,
    Op.LE: ice.LessThanOrEqual,
    Op.GT: ice.GreaterThan,
    Op.GE: ice.GreaterThanOrEqual,
}


def to_iceberg(predicate: Predicate) -> BooleanExpression:
    """A filter for PyIceberg's scans: it prunes files and row groups and lets through at least the matches."""
    found: BooleanExpression = _iceberg(relaxed(predicate, _iceberg_can))
    return found


def _iceberg_can(leaf: Leaf) -> bool:
    # PyIceberg resolves nested names by their last part only, and compares UUIDs with bytes.
    ref = leaf.ref  # type: ignore[union-attr]  # constants are kept before this is asked
    if ref.is_nested or "." in ref.column or ref.type == Primitive("uuid"):
        return False
    return not isinstance(leaf, Like) or (leaf.prefix != "" and (leaf.is_prefix or not leaf.negated))


def _iceberg(predicate: Predicate) -> Any:
    match predicate:
        case Constant(value):
            return ice.AlwaysTrue() if value else ice.AlwaysFalse()
        case All(parts):
            return reduce(ice.And, map(_iceberg, parts))
        case AnyOf(parts):
            return reduce(ice.Or, map(_iceberg, parts))
        case Compare(ref, op, value):
            return _ICEBERG[op](ice.Reference(ref.column), _iceberg_literal(ref, value))
        case OneOf(ref, values, negated) if not values:
            return ice.NotNull(ref.column) if negated else ice.AlwaysFalse()
        case OneOf(ref, _, _) if is_float(ref):
            return _iceberg(comparisons(predicate))
        case OneOf(ref, values, negated):
            kind = ice.NotIn if negated else ice.In
            return kind(ice.Reference(ref.column), {_iceberg_literal(ref, value) for value in values})
        case IsNull(ref, negated):
            return ice.NotNull(ref.column) if negated else ice.IsNull(ref.column)
        case IsNaN(ref, negated):
            return ice.NotNaN(ref.column) if negated else ice.IsNaN(ref.column)
        case Like(ref, _, negated):
            kind = ice.NotStartsWith if negated else ice.StartsWith
            return kind(ice.Reference(ref.column), literals.StringLiteral(predicate.prefix))


def _iceberg_literal(ref: Ref, value: Value) -> literals.Literal[Any]:
    match ref.type, value:
        case Primitive("float"), float():
            return literals.FloatLiteral(value)
        case _, bool():
            return literals.BooleanLiteral(value)
        case _, int():
            return literals.LongLiteral(value)  # becomes a date, time or timestamp when it is bound
        case _, float():
            return literals.DoubleLiteral(value)
        case _, Decimal():
            return literals.DecimalLiteral(value)
        case _, str():
            return literals.StringLiteral(value)
    assert isinstance(value, bytes)
    return literals.BinaryLiteral(value)
