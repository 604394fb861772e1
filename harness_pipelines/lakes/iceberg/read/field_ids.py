"""Read nested columns of data files by Iceberg's field ids, which writers keep in the types."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from harness_pipelines.protocol.schema.nested_json import null_offsets, unsliced

FIELD_ID = b"PARQUET:field_id"  #: where Arrow shows the field ids that Iceberg's writers leave in a file


def by_field_ids(array: pa.Array, type_: IcebergType) -> pa.Array:
    """*array* of a data file with its structs as *type_* has them: files may hold other names, more or fewer fields.

    (Iceberg's writers put ``_x20`` where a name has a space.)
    """
    if not _differs(array.type, type_):
        return array
    array = unsliced(array)
    match type_:
        case StructType():
            places = {_field_id(f): i for i, f in enumerate(array.type)}
            children = [_child(array, places.get(f.field_id), f.field_type) for f in type_.fields]
            return pa.StructArray.from_arrays(children, names=[f.name for f in type_.fields], mask=array.is_null())
        case ListType():
            values = by_field_ids(array.values, type_.element_type)
            return pa.ListArray.from_arrays(null_offsets(array), values)
        case MapType():
            keys, items = by_field_ids(array.keys, type_.key_type), by_field_ids(array.items, type_.value_type)
            return pa.MapArray.from_arrays(null_offsets(array), keys, items)
    return array


def _child(array: pa.StructArray, place: int | None, type_: IcebergType) -> pa.Array:
    if place is None:
        return pa.nulls(len(array), type=schema_to_pyarrow(type_, include_field_ids=False))
    return by_field_ids(array.field(place), type_)


def _differs(kind: pa.DataType, type_: IcebergType) -> bool:
    match type_:
        case StructType():
            if [(f.name, _field_id(f)) for f in kind] != [(f.name, f.field_id) for f in type_.fields]:
                return True
            return any(_differs(a.type, b.field_type) for a, b in zip(kind, type_.fields, strict=True))
        case ListType():
            return _differs(kind.value_type, type_.element_type)
        case MapType():
            return _differs(kind.key_type, type_.key_type) or _differs(kind.item_type, type_.value_type)
    return False


def has_field_ids(kind: pa.DataType) -> bool:
    """Return whether a writer left ids inside of the nested type *kind*."""
    parts = (
        [kind.key_field, kind.item_field] if pa.types.is_map(kind) else [kind.field(i) for i in range(kind.num_fields)]
    )
    return any(_field_id(part) is not None for part in parts)


def _field_id(field: pa.Field) -> int | None:
    found = (field.metadata or {}).get(FIELD_ID)
    return None if found is None else int(found)
