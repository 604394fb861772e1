"""What data files of one schema have in common: columns with Iceberg's field ids, and what a manifest has of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    match_metrics_mode,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import TableProperties
from pyiceberg.types import BinaryType, DoubleType, FloatType, IcebergType, NestedField, StringType, StructType

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.protocol.schema.nested_json import null_offsets, unsliced

_DEFAULT_MODE = TableProperties.DEFAULT_WRITE_METRICS_MODE


@dataclass(frozen=True, kw_only=True)
class FileShape:
    """The shape of data files with *schema*; *properties* of the table say what a manifest has of a column."""

    schema: Schema
    properties: Mapping[str, str]

    @cached_property
    def stored(self) -> Schema:
        """The schema with the names that columns have in Parquet files, as PyIceberg and Spark write them."""
        return sanitize_column_names(self.schema)

    @cached_property
    def is_renamed(self) -> bool:
        return bool(self.stored != self.schema)

    @cached_property
    def named(self) -> pa.Schema:
        """The schema of Parquet files with the names of the columns."""
        return schema_to_pyarrow(self.schema, include_field_ids=True)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The schema of Parquet files, with Iceberg's field ids."""
        return schema_to_pyarrow(self.stored, include_field_ids=True)

    @cached_property
    def statistics(self) -> Mapping[int, Any]:
        """What a manifest has of each column."""
        return compute_statistics_plan(self.stored, dict(self.properties))

    @cached_property
    def statistics_as_spark(self) -> Mapping[int, Any]:
        """What Iceberg's writer in Spark keeps: bounds of the fields of structs too, nothing of lists and maps."""
        said = self.properties.get(_DEFAULT_MODE, TableProperties.DEFAULT_WRITE_METRICS_MODE_DEFAULT)
        default = match_metrics_mode(said)
        of_structs = {field.field_id: field.field_type for field in _leaves(self.stored.fields)}
        found = {}
        for field_id, collector in self.statistics.items():
            mode = collector.mode
            if field_id not in of_structs:
                mode = MetricsMode(MetricModeTypes.NONE)
            elif "." in collector.column_name:
                mode = _mode_of(default, of_structs[field_id])
            found[field_id] = replace(collector, mode=mode)
        return found

    @cached_property
    def ids_by_path(self) -> Mapping[str, int]:
        """Field ids by the paths of columns in a Parquet file."""
        return parquet_path_to_id_mapping(self.stored)

    @cached_property
    def floats(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Field ids of numbers that may be NaN, and their places: in the schema, then in each struct around them."""
        return tuple(_floats(self.schema.fields))

    def stored_rows(self, rows: pa.Table) -> pa.Table:
        """*rows*, of all columns in order, in the types and with the names of files."""
        found = conformed(rows, self.named)
        if not self.is_renamed:
            return found
        columns = [_as_type(c, f.type) for c, f in zip(found.columns, self.arrow, strict=True)]
        return pa.table(columns, schema=self.arrow)

    def count_nans(self, rows: pa.Table, counts: dict[int, int]) -> None:
        """Add to *counts*, by field id, how many values of *rows* are NaN."""
        for field_id, (place, *inside) in self.floats:
            found = sum(_nans(chunk, inside) for chunk in rows.column(place).chunks)
            counts[field_id] = counts.get(field_id, 0) + found


def _leaves(fields: Iterable[NestedField]) -> Iterator[NestedField]:
    """Those of no list and no map."""
    for field in fields:
        if isinstance(field.field_type, StructType):
            yield from _leaves(field.field_type.fields)
        elif field.field_type.is_primitive:
            yield field


def _mode_of(default: MetricsMode, kind: IcebergType) -> MetricsMode:
    """Only texts and bytes are cut."""
    if default.type == MetricModeTypes.TRUNCATE and not isinstance(kind, StringType | BinaryType):
        return MetricsMode(MetricModeTypes.FULL)
    return default


def _floats(fields: Iterable[NestedField], above: tuple[int, ...] = ()) -> Iterator[tuple[int, tuple[int, ...]]]:
    for place, field in enumerate(fields):
        if isinstance(field.field_type, FloatType | DoubleType):
            yield field.field_id, (*above, place)
        elif isinstance(field.field_type, StructType):
            yield from _floats(field.field_type.fields, (*above, place))


def _nans(column: pa.Array, inside: Iterable[int]) -> int:
    for place in inside:
        column = pc.struct_field(column, [place])
    return int(pc.sum(pc.is_nan(column)).as_py() or 0)


def _as_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if not pa.types.is_nested(kind):
        return column
    return pa.chunked_array([renamed(chunk, kind) for chunk in column.chunks], type=kind)


def renamed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """*array* with the names that *kind*, else the same type, has for the fields of structs."""
    if pa.types.is_struct(kind):
        array = unsliced(array)
        children = [renamed(array.field(at), field.type) for at, field in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        array = unsliced(array)
        keys, items = renamed(array.keys, kind.key_type), renamed(array.items, kind.item_type)
        return pa.MapArray.from_arrays(null_offsets(array), keys, items, type=kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        array = unsliced(array)
        make = pa.ListArray if pa.types.is_list(kind) else pa.LargeListArray
        return make.from_arrays(null_offsets(array), renamed(array.values, kind.value_type), type=kind)
    return array
