"""Translate a predicate to an exact Arrow filter."""

from __future__ import annotations

import operator
import re
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from harness_pipelines.spec.arrow import arrow_type
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
