"""Convert Arrow arrays to the exact types of a table, including nested ones."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from harness_pipelines.protocol.schema.nested_json import null_offsets, unsliced
from harness_pipelines.protocol.schema.schemas import Other
from harness_pipelines.spec.arrow import arrow_type
from harness_pipelines.spec.types import parse_type


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """*table* in *schema*, which has the same columns in the same order.

    What a lake holds otherwise: microseconds (long) for a time, narrower numbers from before a column was widened,
    UUIDs as an extension type, other names for the elements of lists and maps.
    """
    if table.schema == schema:
        return table
    columns = [_conformed(column, f.type) for column, f in zip(table.columns, schema, strict=True)]
    return pa.table(columns, schema=schema)


def in_schema(rows: pa.Table, others: Iterable[Other], schema: pa.Schema) -> pa.Table:
    """*rows* of another schema of the same table in *schema*: renamed, widened or narrowed, NULL where it has none.

    Columns of *rows* that *schema* does not name are left out.
    """
    told = {one.name: one for one in others}
    columns = []
    for field in schema:
        there = told.get(field.name) or Other(name=field.name, stored=field.name)
        if there.stored is None:
            columns.append(pa.nulls(rows.num_rows, field.type))
        elif there.type is None or not pa.types.is_nested(field.type):
            columns.append(_conformed(rows.column(there.stored), field.type))
        else:
            named = arrow_type(parse_type(there.type))
            chunks = [_projected(chunk, named, field.type) for chunk in rows.column(there.stored).chunks]
            columns.append(pa.chunked_array(chunks, type=field.type))
    return pa.table(columns, schema=pa.schema([f.with_nullable(True) for f in schema]))


def _conformed(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    return pa.chunked_array([conform_array(chunk, kind) for chunk in column.chunks], type=kind)


def conform_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """*array* as *kind*; members of a struct are matched by name. NULL stays NULL at every depth."""
    if array.type == kind:
        return array
    if isinstance(array, pa.ExtensionArray):
        return conform_array(array.storage, kind)
    if isinstance(kind, pa.ExtensionType):
        return pa.ExtensionArray.from_storage(kind, conform_array(array, kind.storage_type))
    if pa.types.is_map(kind):
        array = unsliced(array)
        keys, items = conform_array(array.keys, kind.key_type), conform_array(array.items, kind.item_type)
        return pa.MapArray.from_arrays(null_offsets(array), keys, items, type=kind)
    if pa.types.is_list(kind):
        array = unsliced(array)
        values = conform_array(array.values, kind.value_type)
        return pa.ListArray.from_arrays(null_offsets(array), values, type=kind)
    if pa.types.is_struct(kind):
        array = unsliced(array)
        children = [conform_array(array.field(f.name), f.type) for f in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if {array.type, kind} == {pa.time64("us"), pa.int64()}:
        return array.view(kind)
    return array.cast(kind)


def _projected(array: pa.Array, named: pa.DataType, kind: pa.DataType) -> pa.Array:
    """*array*, of which structs are read with the names of *named*, as *kind*; NULL where it has no such field."""
    array = unsliced(array)
    if pa.types.is_struct(kind):
        places = {f.name: i for i, f in enumerate(named)}
        children = [
            _projected(array.field(places[f.name]), named.field(places[f.name]).type, f.type)
            if f.name in places
            else pa.nulls(len(array), f.type)
            for f in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        keys = conform_array(array.keys, kind.key_type)
        items = _projected(array.items, named.item_type, kind.item_type)
        return pa.MapArray.from_arrays(null_offsets(array), keys, items, type=kind)
    if pa.types.is_list(kind):
        values = _projected(array.values, named.value_type, kind.value_type)
        return pa.ListArray.from_arrays(null_offsets(array), values, type=kind)
    return conform_array(array, kind)


def unscaled_int64(array: pa.Array) -> pa.Array:
    """The whole numbers (int64) that decimals of at most `INT64_DIGITS` digits are, without a look at each."""
    validity, words = array.buffers()
    low = np.frombuffer(words, dtype="<i8")[: 2 * (array.offset + len(array)) : 2]
    buffers = [validity, pa.py_buffer(np.ascontiguousarray(low))]
    return pa.Array.from_buffers(pa.int64(), len(array), buffers, array.null_count, array.offset)
