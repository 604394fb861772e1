"""A predicate for Postgres: it may match more rows but never fewer, so Arrow filters again."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from psycopg import sql

from harness_pipelines.buffers.postgres.types import stored_name
from harness_pipelines.protocol.coordinates import OPERATION, SCHEMA_VERSION, TIMESTAMP
from harness_pipelines.spec.predicate import (
    TRUE,
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
    relaxed,
)
from harness_pipelines.spec.types import INT64_DIGITS, DecimalType, Primitive

Written = Callable[[Any], sql.Composable]  #: how a value stands in a statement for Postgres
#: Microseconds that Python's calendar can write, from year 1 to 9999; one with a zone reaches some hours further.
_CALENDAR = range(-719_162 * 86_400_000_000, 2_932_897 * 86_400_000_000)
_POSTGRES = {Op.EQ: "=", Op.NE: "<>", Op.LT: "<", Op.LE: "<=", Op.GT: ">", Op.GE: ">="}


def to_postgres(predicate: Predicate, literal: Written = sql.Literal) -> sql.Composable | None:
    """A WHERE condition on a segment's own columns that lets through at least the matches; None: all rows.

    *literal* writes its values: into the text, or beside it as the parameters of a statement that is kept prepared.
    """
    kept = relaxed(predicate, _postgres_can)
    return None if kept == TRUE else _postgres(kept, literal)


def _postgres_can(leaf: Leaf) -> bool:
    ref = leaf.ref  # type: ignore[union-attr]  # constants are kept before this is asked
    if ref.is_nested or ref.column in (OPERATION, SCHEMA_VERSION):
        return False
    values = leaf.values if isinstance(leaf, OneOf) else (leaf.value,) if isinstance(leaf, Compare) else ()
    if any(isinstance(value, str) and "\x00" in value for value in values):
        return False
    if ref.column == TIMESTAMP and not all(value in _CALENDAR for value in values):
        return False
    if isinstance(leaf, Like):
        return "\x00" not in leaf.prefix and (leaf.is_prefix or not leaf.negated)
    return True


def _postgres(predicate: Predicate, literal: Written) -> sql.Composable:
    match predicate:
        case Constant(value):
            return sql.SQL("true" if value else "false")
        case All(parts):
            return sql.SQL("({})").format(sql.SQL(" AND ").join(_postgres(part, literal) for part in parts))
        case AnyOf(parts):
            return sql.SQL("({})").format(sql.SQL(" OR ").join(_postgres(part, literal) for part in parts))
        case leaf:
            return _postgres_leaf(leaf, sql.Identifier(stored_name(leaf.ref.column)), literal)


def _postgres_leaf(leaf: Leaf, column: sql.Identifier, literal: Written) -> sql.Composable:
    match leaf:
        case Compare(ref, op, value):
            collated = sql.SQL(' COLLATE "C" ' if ref.type == Primitive("string") else " ")
            written = _postgres_literal(ref, value, literal)
            return sql.SQL("{}{}{} {}").format(column, collated, sql.SQL(_POSTGRES[op]), written)
        case OneOf(_, values, negated) if not values:
            return sql.SQL("{} IS NOT NULL").format(column) if negated else sql.SQL("false")
        case OneOf(ref, values, negated):
            items = sql.SQL(", ").join(_postgres_literal(ref, value, literal) for value in values)
            return sql.SQL("{} {} ({})").format(column, sql.SQL("NOT IN" if negated else "IN"), items)
        case IsNull(_, negated):
            return sql.SQL("{} IS {}").format(column, sql.SQL("NOT NULL" if negated else "NULL"))
        case IsNaN(_, negated):
            return sql.SQL("{} {} 'NaN'").format(column, sql.SQL("<>" if negated else "="))
        case Like(_, _, negated):
            found = sql.SQL("starts_with({}, {})").format(column, literal(leaf.prefix))
            return sql.SQL("NOT {}").format(found) if negated else found
    raise AssertionError(leaf)


def _postgres_literal(ref: Ref, value: Value, literal: Written) -> sql.Composable:
    match ref.type, value:
        case _, int() if ref.column == TIMESTAMP:
            moment = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=value)
            return sql.SQL("{}::timestamptz").format(literal(f"{moment.isoformat()}+00"))
        case Primitive("float"), float():
            return sql.SQL("{}::real").format(literal(repr(value)))
        case _, float():
            return sql.SQL("{}::double precision").format(literal(repr(value)))
        case DecimalType(precision, scale), Decimal() if precision <= INT64_DIGITS:
            return literal(int(value.scaleb(scale)))
        case _, Decimal():
            return sql.SQL("{}::numeric").format(literal(str(value)))
        case Primitive("uuid"), bytes():
            return sql.SQL("{}::uuid").format(literal(str(uuid.UUID(bytes=value))))
        case _, bytes():
            return sql.SQL("{}::bytea").format(literal("\\x" + value.hex()))
    return literal(value)
