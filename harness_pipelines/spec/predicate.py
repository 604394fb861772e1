"""Predicates: a tree without NOT, typed by the table's columns, that every engine evaluates alike.

A comparison with NULL is not true, so the row is excluded, also by `!=` and `not in`. NaN is neither equal to, above
nor below any number. Text compares by its bytes in UTF-8.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

from harness_pipelines.spec.types import DecimalType, Primitive, Type

#: A literal in its column's physical form: dates are days and times and timestamps microseconds (int), a UUID is bytes.
Value = bool | int | float | Decimal | str | bytes
PARTITION, OFFSET = "_kafka_partition", "_kafka_offset"


_FLOATS = (Primitive("float"), Primitive("double"))


class Op(StrEnum):
    """How a column is compared."""

    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="

    @property
    def negated(self) -> Op:
        return _NEGATED[self]

    @property
    def turned(self) -> Op:
        """The same comparison with its sides changed over."""
        return _TURNED.get(self, self)


OPERATORS: Mapping[Op, Callable[[Any, Any], Any]] = {
    Op.EQ: operator.eq,
    Op.NE: operator.ne,
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.GT: operator.gt,
    Op.GE: operator.ge,
}


_NEGATED = {Op.EQ: Op.NE, Op.NE: Op.EQ, Op.LT: Op.GE, Op.GE: Op.LT, Op.GT: Op.LE, Op.LE: Op.GT}
_TURNED = {Op.LT: Op.GT, Op.GT: Op.LT, Op.LE: Op.GE, Op.GE: Op.LE}


@dataclass(frozen=True, slots=True)
class Ref:
    """A column, or a field of a struct column."""

    path: tuple[str, ...]
    type: Type

    @property
    def column(self) -> str:
        return self.path[0]

    @property
    def is_nested(self) -> bool:
        return len(self.path) > 1


@dataclass(frozen=True, slots=True)
class Constant:
    """True or false for every row."""

    value: bool


@dataclass(frozen=True, slots=True)
class Compare:
    ref: Ref
    op: Op
    value: Value


@dataclass(frozen=True, slots=True)
class OneOf:
    """``ref in values`` or, negated, ``ref not in values``; without values false or true of all but NULL."""

    ref: Ref
    values: tuple[Value, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNull:
    ref: Ref
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNaN:
    """Negated, it holds for every number that is neither NaN nor NULL."""

    ref: Ref
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Like:
    """SQL's LIKE: ``%`` any text, ``_`` one character, backslash quotes."""

    ref: Ref
    pattern: str
    negated: bool = False

    @property
    def prefix(self) -> str:
        """The text that every match begins with."""
        return "".join(self._prefix())

    @property
    def is_prefix(self) -> bool:
        """True if the pattern says no more than that a text begins with `prefix`."""
        bare = self.prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        return self.pattern.startswith(bare) and set(self.pattern[len(bare) :]) == {"%"}

    def _prefix(self) -> Iterator[str]:
        characters = iter(self.pattern)
        for character in characters:
            if character in "%_":
                return
            yield next(characters, "\\") if character == "\\" else character


@dataclass(frozen=True, slots=True)
class All:
    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    parts: tuple[Predicate, ...]


Leaf = Constant | Compare | OneOf | IsNull | IsNaN | Like
Predicate = Leaf | All | AnyOf
TRUE, FALSE = Constant(True), Constant(False)


def all_of(*parts: Predicate) -> Predicate:
    """Conjunction, simplified."""
    left = [part for part in parts if part != TRUE]
    if FALSE in left:
        return FALSE
    return left[0] if len(left) == 1 else All(tuple(left)) if left else TRUE


def any_of(*parts: Predicate) -> Predicate:
    """Disjunction, simplified."""
    left = [part for part in parts if part != FALSE]
    if TRUE in left:
        return TRUE
    return left[0] if len(left) == 1 else AnyOf(tuple(left)) if left else FALSE


def negate(predicate: Predicate) -> Predicate:
    """NOT, carried down to the leaves: what is unknown stays unknown."""
    match predicate:
        case Constant(value):
            return Constant(not value)
        case Compare(ref, op, value):
            return Compare(ref, op.negated, value)
        case OneOf(ref, values, negated):
            return OneOf(ref, values, not negated)
        case IsNull(ref, negated):
            return IsNull(ref, not negated)
        case IsNaN(ref, negated):
            return IsNaN(ref, not negated)
        case Like(ref, pattern, negated):
            return Like(ref, pattern, not negated)
        case All(parts):
            return any_of(*map(negate, parts))
        case AnyOf(parts):
            return all_of(*map(negate, parts))


def comparisons(predicate: Predicate) -> Predicate:
    """*predicate* without `OneOf`: for engines in which ``in`` is false of NULL, where NULL has to stay unknown."""
    match predicate:
        case All(parts):
            return All(tuple(map(comparisons, parts)))
        case AnyOf(parts):
            return AnyOf(tuple(map(comparisons, parts)))
        case OneOf(ref, values, negated):
            op, join = (Op.NE, All) if negated else (Op.EQ, AnyOf)
            if not values:  # of numbers alone (`spec.where.compared`): none is above and below zero
                scale = ref.type.scale if isinstance(ref.type, DecimalType) else None
                zero = 0 if scale is None else Decimal((0, (0,), -scale))
                low, high = (Op.LE, Op.GE) if negated else (Op.LT, Op.GT)
                return (AnyOf if negated else All)((Compare(ref, low, zero), Compare(ref, high, zero)))
            return join(tuple(Compare(ref, op, value) for value in values))
    return predicate


def relaxed(predicate: Predicate, keep: Callable[[Leaf], bool]) -> Predicate:
    """A predicate that holds wherever *predicate* does and has only leaves that an engine can *keep*."""
    match predicate:
        case All(parts):
            return all_of(*(relaxed(part, keep) for part in parts))
        case AnyOf(parts):
            return any_of(*(relaxed(part, keep) for part in parts))
    return predicate if isinstance(predicate, Constant) or keep(predicate) else TRUE


def refs(predicate: Predicate) -> Iterator[Ref]:
    """Every reference in *predicate*."""
    match predicate:
        case All(parts) | AnyOf(parts):
            for part in parts:
                yield from refs(part)
        case Constant():
            return
        case leaf:
            yield leaf.ref


def is_float(ref: Ref) -> bool:
    return ref.type in _FLOATS
