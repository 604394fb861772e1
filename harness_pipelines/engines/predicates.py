"""A predicate in the words of each engine.

Arrow and Spark get it exactly. Postgres and Iceberg get one that may hold for more rows and never for fewer: what they
let through is filtered again in Arrow or Spark, so that collation, NaN and NULL mean the same everywhere.
"""

from __future__ import annotations

import datetime as dt
import operator
import re
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyiceberg import expressions
from pyiceberg.expressions import BooleanExpression, literals

from harness_pipelines.buffers.postgres.types import INT64_DIGITS, stored_name
from harness_pipelines.protocol.coordinates import OPERATION, SCHEMA_VERSION, TIMESTAMP
from harness_pipelines.spec.arrow import arrow_type
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
    comparisons,
    relaxed,
)
from harness_pipelines.spec.types import DecimalType, Primitive

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn

Written = Callable[[Any], sql.Composable]  #: how a value stands in a statement for Postgres
ice: Any = expressions  # its classes take positional arguments, which the pydantic plugin of mypy does not see
_FLOATS = (Primitive("float"), Primitive("double"))
_OPERATORS: Mapping[Op, Callable[[Any, Any], Any]] = {
    Op.EQ: operator.eq,
    Op.NE: operator.ne,
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.GT: operator.gt,
    Op.GE: operator.ge,
}


#: Microseconds that Python's calendar can write, from year 1 to 9999; one with a zone reaches some hours further.
_CALENDAR = range(-719_162 * 86_400_000_000, 2_932_897 * 86_400_000_000)


def _is_float(ref: Ref) -> bool:
    return ref.type in _FLOATS


def to_arrow(predicate: Predicate) -> pc.Expression:
    """The exact filter for Arrow tables that hold the columns of *predicate* under their own names."""
    match predicate:
        case Constant(value):
            return pc.scalar(value)
        case All(parts):
            return reduce(operator.and_, map(to_arrow, parts))
        case AnyOf(parts):
            return reduce(operator.or_, map(to_arrow, parts))
        case OneOf(ref, values) if values and _is_float(ref):  # of two zeros, which a set may tell apart
            return to_arrow(comparisons(predicate))
        case leaf:
            return _arrow_leaf(leaf, pc.field(leaf.ref.path if leaf.ref.is_nested else leaf.ref.column))


def _arrow_leaf(leaf: Leaf, column: pc.Expression) -> pc.Expression:
    match leaf:
        case Compare(ref, op, value):
            return _OPERATORS[op](column, pa.scalar(value, type=arrow_type(ref.type)))
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
        case OneOf(ref, _, _) if _is_float(ref):
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


_ICEBERG: Mapping[Op, Callable[[Any, Any], BooleanExpression]] = {
    Op.EQ: ice.EqualTo,
    Op.NE: ice.NotEqualTo,
    Op.LT: ice.LessThan,
    Op.LE: ice.LessThanOrEqual,
    Op.GT: ice.GreaterThan,
    Op.GE: ice.GreaterThanOrEqual,
}


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


_POSTGRES = {Op.EQ: "=", Op.NE: "<>", Op.LT: "<", Op.LE: "<=", Op.GT: ">", Op.GE: ">="}


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


def to_spark(predicate: Predicate) -> SparkColumn:
    """The exact filter for Spark frames that hold the columns of *predicate* under their own names."""
    from pyspark.sql import functions as f

    match predicate:
        case Constant(value):
            return f.lit(value)
        case All(parts):
            return reduce(operator.and_, map(to_spark, parts))
        case AnyOf(parts):
            return reduce(operator.or_, map(to_spark, parts))
        case OneOf(ref, values) if values and _is_float(ref):
            return to_spark(comparisons(predicate))
        case leaf:
            quoted = ".".join("`" + name.replace("`", "``") + "`" for name in leaf.ref.path)
            return _spark_leaf(leaf, f.col(quoted))


def _spark_leaf(leaf: Leaf, column: SparkColumn) -> SparkColumn:
    from pyspark.sql import functions as f

    match leaf:
        case Compare(ref, Op.EQ | Op.GE | Op.LE as op, value) if _is_float(ref) and value == 0:
            # Iceberg's Java side sorts -0.0 before 0.0 and holds them for two values, so it is asked for what is
            # between: an `or` of both Spark, to which they are one, would be free to simplify.
            low, high = column >= _spark_literal(ref, -0.0), column <= _spark_literal(ref, 0.0)
            return high if op is Op.LE else low & (high if op is Op.EQ else ~f.isnan(column))
        case Compare(ref, op, value):
            found: SparkColumn = _OPERATORS[op](column, _spark_literal(ref, value))
            return found & ~f.isnan(column) if _is_float(ref) and op in (Op.GT, Op.GE) else found
        case OneOf(_, values, negated) if not values:
            return column.isNotNull() if negated else f.lit(False)
        case OneOf(ref, values, negated):
            found = column.isin([_spark_literal(ref, value) for value in values])
            return ~found if negated else found
        case IsNull(_, negated):
            return column.isNotNull() if negated else column.isNull()
        case IsNaN(_, negated):
            # Spark's isnan of NULL is false.
            return ~f.isnan(column) & column.isNotNull() if negated else f.isnan(column)
        case Like(_, pattern, negated):
            found = column.startswith(leaf.prefix) if leaf.is_prefix else column.like(pattern)
            return ~found if negated else found
    raise AssertionError(leaf)


def _spark_literal(ref: Ref, value: Value) -> SparkColumn:
    from pyspark.sql import functions as f

    match ref.type, value:
        case Primitive("date"), int():
            return f.expr(f"date_from_unix_date({value})")
        case Primitive("timestamptz"), int():
            return f.expr(f"timestamp_micros({value}L)")
        case Primitive("timestamp"), int():
            seconds, micros = divmod(value, 1_000_000)
            return f.expr(
                "TIMESTAMP_NTZ '1970-01-01 00:00:00' + make_dt_interval(0, 0, 0, "
                f"CAST({seconds}L * 1BD + {micros}L * 0.000001BD AS DECIMAL(18,6)))"
            )
        case DecimalType(precision, scale), Decimal():
            return f.lit(value).cast(f"decimal({precision},{scale})")
        case Primitive("float"), float():
            return f.lit(value).cast("float")
        case Primitive("uuid"), bytes():
            return f.lit(str(uuid.UUID(bytes=value)))
        case _, bytes():
            return f.expr(f"X'{value.hex()}'")
        case _, int() if not isinstance(value, bool):
            return f.lit(value)
    return f.lit(value)
