"""Segments of the buffer in Spark: raw values of a relation become the user's."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as f

from harness_pipelines.ports.buffer import SqlScan
from harness_pipelines.protocol.coordinates import COORDINATES
from harness_pipelines.spec.arrow import Named, arrow_type
from harness_pipelines.spec.types import INT64_DIGITS

_EPOCH_NTZ = "TIMESTAMP_NTZ '1970-01-01 00:00:00'"


def columns_of(scan: SqlScan, columns: Sequence[Named], coordinates: Sequence[str] = COORDINATES) -> list[SparkColumn]:
    """Spark's values of *columns*, then *coordinates*, from the raw columns of *scan*.

    UUIDs are text and times are microseconds (long) in Spark, which has neither in Iceberg tables.
    """
    user = [f.expr(_spark_value(_spark_name(scan.stored[c.name]), arrow_type(c.type))).alias(c.name) for c in columns]
    return [*user, *(f.col(name) for name in coordinates)]


def _spark_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _spark_value(raw: str, kind: pa.DataType) -> str:
    """Spark SQL that turns the raw value *raw* of a segment into the user's value."""
    if pa.types.is_nested(kind):
        wire = f"from_json({raw}, '{_wire_ddl(kind)}', map('mode', 'FAILFAST'))"
        # A lambda binds the parsed value, so that the text is parsed once however often it is looked into.
        return f"transform(array({wire}), x -> {_spark_nested('x', kind)})[0]"
    if pa.types.is_date32(kind):
        return f"date_from_unix_date({raw})"
    if pa.types.is_timestamp(kind):
        return _spark_timestamp(raw, kind)
    if pa.types.is_decimal(kind) and kind.precision <= INT64_DIGITS:
        unit = f"1e-{kind.scale}BD" if kind.scale else "1BD"
        return f"CAST(CAST({raw} AS DECIMAL(18,0)) * {unit} AS DECIMAL({kind.precision},{kind.scale}))"
    return raw


def _spark_timestamp(raw: str, kind: pa.DataType) -> str:
    if kind.tz is not None:
        return f"timestamp_micros({raw})"
    # Not by way of TIMESTAMP: that would depend on the session's time zone.
    return f"{_EPOCH_NTZ} + make_dt_interval(0, 0, 0, CAST({raw} * 0.000001BD AS DECIMAL(18,6)))"


def _wire_ddl(kind: pa.DataType) -> str:
    """Spark's DDL of `nested_json.wire_type`."""
    if pa.types.is_map(kind):
        return f"array<struct<key: {_wire_ddl(kind.key_type)}, value: {_wire_ddl(kind.item_type)}>>"
    if pa.types.is_list(kind):
        return f"array<{_wire_ddl(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'f{i}: {_wire_ddl(field.type)}' for i, field in enumerate(kind))}>"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_int32(kind) or pa.types.is_date32(kind):
        return "int"
    if pa.types.is_int64(kind) or pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return "bigint"
    return "string"


def _spark_nested(wire: str, kind: pa.DataType, depth: int = 0) -> str:
    item = f"x{depth}"
    if pa.types.is_map(kind):
        key = _spark_nested(f"{item}.key", kind.key_type, depth + 1)
        value = _spark_nested(f"{item}.value", kind.item_type, depth + 1)
        return f"map_from_entries(transform({wire}, {item} -> struct({key} AS key, {value} AS value)))"
    if pa.types.is_list(kind):
        element = _spark_nested(item, kind.value_type, depth + 1)
        return wire if element == item else f"transform({wire}, {item} -> {element})"
    if pa.types.is_struct(kind):
        members = ", ".join(
            f"{_spark_text(field.name)}, {_spark_nested(f'{wire}.f{i}', field.type, depth)}"
            for i, field in enumerate(kind)
        )
        return f"IF({wire} IS NULL, NULL, named_struct({members}))"
    if pa.types.is_date32(kind):
        return f"date_from_unix_date({wire})"
    if pa.types.is_timestamp(kind):
        return _spark_timestamp(wire, kind)
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return f"CAST({wire} AS {'FLOAT' if pa.types.is_float32(kind) else 'DOUBLE'})"
    if pa.types.is_decimal(kind):
        return f"CAST({wire} AS DECIMAL({kind.precision},{kind.scale}))"
    if pa.types.is_binary(kind):
        return f"unhex({wire})"
    return wire


def _spark_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
