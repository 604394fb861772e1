"""Values of the tree's domain as people write them."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from harness_pipelines.layout.boxes import Span
from harness_pipelines.layout.columns import IndexedColumn, Value

_EPOCH_DAY = date(1970, 1, 1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def label(column: IndexedColumn, value: Value) -> str:
    """*value* as a SQL literal of the column's type would read, without quotes."""
    match column.type:
        case "date":
            return _day(value)
        case "timestamp" | "timestamptz":
            return _moment(value)
        case "time":
            return str((_EPOCH + timedelta(microseconds=value)).time())
        case "boolean":
            return "true" if value else "false"
        case "uuid":
            return str(uuid.UUID(bytes=value))
        case "float" | "double":
            return f"{value:.6g}"
        case _ if column.type.startswith("decimal"):
            return str(Decimal(value).scaleb(-scale_of(column)))
        case _:
            return str(value)


def scale_of(column: IndexedColumn) -> int:
    """Digits after the point of a decimal column; 0 for every other type."""
    return int(column.type.rpartition(",")[2].rstrip(") ")) if column.type.startswith("decimal") else 0


def span_label(column: IndexedColumn, span: Span) -> str:
    """A side of a box: ``[2026-01-01, 2026-02-01)``, ``below 7``, ``NULL``, ``any``."""
    apart = [name for name, holds in (("NULL", span.null), ("NaN", span.nan and column.is_float)) if holds]
    if not span.values:
        return " or ".join(apart) or "nothing"
    match span.low is None, span.high is None:
        case True, True:
            return "any" if span.null else "not NULL"
        case True, False:
            values = f"below {label(column, span.high)}"
        case False, True:
            values = f"from {label(column, span.low)}"
        case _:
            values = f"[{label(column, span.low)}, {label(column, span.high)})"
    return " or ".join([values, *apart])


def _day(days: int) -> str:
    try:
        return str(_EPOCH_DAY + timedelta(days=days))
    except OverflowError:  # the lake's dates reach further than Python's
        return f"day {days}"


def _moment(micros: int) -> str:
    try:
        return (
            (_EPOCH + timedelta(microseconds=micros))
            .strftime("%Y-%m-%d %H:%M:%S")
            .removesuffix(":00")
            .removesuffix(" 00:00")
        )
    except OverflowError:
        return f"{micros} us"
