"""A predicate as an exact Spark column; collation, NaN and NULL behave as in Arrow."""

from __future__ import annotations

import operator
import uuid
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING

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
    Op,
    Predicate,
    Ref,
    Value,
    comparisons,
    is_float,
)
from harness_pipelines.spec.types import DecimalType, Primitive

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn


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
        case OneOf(ref, values) if values and is_float(ref):
            return to_spark(comparisons(predicate))
        case leaf:
            quoted = ".".join("`" + name.replace("`", "``") + "`" for name in leaf.ref.path)
            return _spark_leaf(leaf, f.col(quoted))


def _spark_leaf(leaf: Leaf, column: SparkColumn) -> SparkColumn:
    from pyspark.sql import functions as f

    match leaf:
        case Compare(ref, Op.EQ | Op.GE | Op.LE as op, value) if is_float(ref) and value == 0:
            # Iceberg's Java side sorts -0.0 before 0.0 and holds them for two values, so it is asked for what is
            # between: an `or` of both Spark, to which they are one, would be free to simplify.
            low, high = column >= _spark_literal(ref, -0.0), column <= _spark_literal(ref, 0.0)
            return high if op is Op.LE else low & (high if op is Op.EQ else ~f.isnan(column))
        case Compare(ref, op, value):
            found: SparkColumn = OPERATORS[op](column, _spark_literal(ref, value))
            return found & ~f.isnan(column) if is_float(ref) and op in (Op.GT, Op.GE) else found
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
