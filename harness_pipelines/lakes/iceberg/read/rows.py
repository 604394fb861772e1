"""All rows of one data file in the table's schema, whatever schema wrote them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.types import PrimitiveType, UUIDType

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.lakes.iceberg.parquet import damage_named, parquet_file
from harness_pipelines.lakes.iceberg.read.field_ids import by_field_ids, has_field_ids
from harness_pipelines.ports.lake import LakeFile

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

    from harness_pipelines.lakes.iceberg.read.scan import PinnedView
    from harness_pipelines.ports.ledger import TableRow

BATCH_BYTES = 32 * 2**20
BATCH_ROWS_MAX = 65_536
BATCH_ROWS_MIN = 64


def file_tables(view: PinnedView, file: LakeFile, schema: pa.Schema, ids: Mapping[str, int]) -> Iterator[pa.Table]:
    """The rows of a data file in *schema* that are not hidden, a bounded batch at a time; missing columns are NULL.

    Raises: DeletesBroken.
    """
    size = BATCH_BYTES * max(file.stored, 1) // max(file.bytes, 1) // 4
    path = file.path
    with damage_named(view.io, path), view.io.new_input(path).open() as stream:
        parquet = parquet_file(stream)
        places = _places(parquet.schema_arrow, ids)
        held = {f.name: parquet.schema_arrow.field(places[f.name]).name for f in schema if f.name in places}
        is_live = np.ones(parquet.metadata.num_rows, np.bool_)
        if (hidden := view.hidden(file)) is not None:
            is_live[hidden] = False
        first = 0
        for batch in parquet.iter_batches(
            batch_size=min(max(size, BATCH_ROWS_MIN), BATCH_ROWS_MAX), columns=list(held.values())
        ):
            columns = [
                _inside(batch.column(held[f.name]), view, ids[f.name])
                if f.name in held
                else pa.nulls(len(batch), f.type)
                for f in schema
            ]
            rows = conformed(pa.table(columns, names=schema.names), schema)
            yield rows if hidden is None else rows.filter(pa.array(is_live[first : first + len(batch)]))
            first += len(batch)


def _inside(column: pa.Array, view: PinnedView, field_id: int) -> pa.Array:
    """*column* of a file with the fields of *view* inside of it, by their ids where the file has any."""
    if not pa.types.is_nested(column.type) or not has_field_ids(column.type):
        return column
    return by_field_ids(column, view.schema.find_field(field_id).field_type)


def _places(schema: pa.Schema, ids: Mapping[str, int]) -> dict[str, int]:
    """Where each column is in a file: by Iceberg's field id, or by name in a file without ids."""
    by_id = {int((f.metadata or {}).get(b"PARQUET:field_id", b"-1")): i for i, f in enumerate(schema)}
    # In a file with ids a name says nothing: another column may have had it.
    by_name = {f.name: i for i, f in enumerate(schema)} if by_id.keys() == {-1} else {}
    found = {name: by_id.get(field_id, by_name.get(name)) for name, field_id in ids.items()}
    return {name: place for name, place in found.items() if place is not None}


def false_bounds(table: TableRow, view: PinnedView, data: DataFile, rows: pa.Table) -> str | None:
    """What the manifest says of a column of *data* and its *rows*, of `PinnedView.rows`, contradict; None: nothing.

    A read leaves a file out by what its manifest says, so rows that it does not allow for would be lost in silence.
    Bounds of texts and bytes may be cut off, the upper one to a value above. Columns inside of others have no bounds
    that a read goes by.
    """
    for name, field_id in view.field_ids(table).items():
        kind = view.schema.find_field(field_id).field_type
        if name not in rows.column_names or not isinstance(kind, PrimitiveType):
            continue
        column = rows.column(name)
        if column.null_count and (data.null_value_counts or {}).get(field_id) == 0:
            return f"column {name} has NULL, which its manifest denies"
        least, most = _extremes(column)
        if least is None:
            continue
        low, high = (data.lower_bounds or {}).get(field_id), (data.upper_bounds or {}).get(field_id)
        try:
            is_below = low is not None and least < _of_bound(kind, low)
            is_above = high is not None and most > _of_bound(kind, high)
        except (ValueError, struct.error) as error:
            return f"the bounds of column {name} are no values of {kind}: {error}"
        if is_below or is_above:
            bound = "below the lower" if is_below else "above the upper"
            return f"column {name} has values {bound} bound of its manifest"
    return None


def _extremes(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """The least and the greatest value, as Iceberg's bounds have it; None: there is none but NULL and NaN."""
    kind = column.type
    if pa.types.is_floating(kind):
        column = column.filter(pc.invert(pc.is_nan(column)))
    elif pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    found = pc.min_max(column).as_py()
    return found["min"], found["max"]


def _of_bound(kind: PrimitiveType, bound: bytes) -> Any:
    return bound if isinstance(kind, UUIDType) else from_bytes(kind, bound)
