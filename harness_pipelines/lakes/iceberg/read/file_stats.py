"""What a data file and its manifest say beside the rows, compared with the rows.

No engine reads a file to learn that it can skip it: engines believe bounds, counts and statistics, and columns are
found by ids. So what another writer says there is compared once, before its file is published.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.types import PrimitiveType, UUIDType

from harness_pipelines.lakes.iceberg.parquet import ParquetFile, parquet_file

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema

    from harness_pipelines.lakes.iceberg.read.scan import PinnedView
    from harness_pipelines.ports.ledger import TableRow

BATCH_ROWS = 65_536


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
        if (denied := _denied(data, field_id, column)) is not None:
            return f"column {name} has {denied}, which its manifest denies"
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


def false_file(io: FileIO, schema: Schema, data: DataFile) -> str | None:
    """What *data* or its manifest say of the file as a whole, and is not so; None: nothing.

    Engines find columns, and fields inside of them, by the ids of *schema*; they cut files where the manifest says that
    row groups begin, and skip row groups by their statistics. Raises: FileDamaged, OSError, pa.ArrowException.
    """
    source = io.new_input(data.file_path)
    if (size := len(source)) != data.file_size_in_bytes:
        return f"it has {size:,} bytes, its manifest says {data.file_size_in_bytes:,}"
    with source.open() as stream:
        parquet = parquet_file(stream)
        if (rows := parquet.metadata.num_rows) != data.record_count:
            return f"it has {rows:,} rows, its manifest says {data.record_count:,}"
        if data.split_offsets and list(data.split_offsets) != _begin(parquet):
            return "its row groups begin elsewhere than its manifest says"
        return _false_ids(parquet.schema_arrow, schema) or _false_statistics(parquet)


def _denied(data: DataFile, field_id: int, column: pa.ChunkedArray) -> str | None:
    """Values of a column that there are none of, by the counts of the manifest."""
    values, nulls, nans = (
        (counts or {}).get(field_id) for counts in (data.value_counts, data.null_value_counts, data.nan_value_counts)
    )
    if column.null_count and nulls == 0:
        return "NULL"
    if column.null_count < len(column) and values is not None and nulls == values:
        return "values"
    if pa.types.is_floating(column.type):
        found = pc.sum(pc.is_nan(column)).as_py() or 0
        if found and nans == 0:
            return "NaN"
        if found + column.null_count < len(column) and values is not None and nans == values:
            return "numbers"
    return None


def _begin(parquet: ParquetFile) -> list[int]:
    """Where each row group begins."""
    groups = [parquet.metadata.row_group(number).column(0) for number in range(parquet.metadata.num_row_groups)]
    return [
        min(one.dictionary_page_offset, one.data_page_offset) if one.has_dictionary_page else one.data_page_offset
        for one in groups
    ]


def _false_ids(physical: pa.Schema, schema: Schema) -> str | None:
    """A column more than *schema* has would be found by a column that is added later."""
    try:
        found = pyarrow_to_schema(physical)
        ids = set(found.field_ids)
    except (ValueError, TypeError) as error:
        return f"its columns cannot be found by ids: {error}"
    if missing := sorted(set(schema.field_ids) - ids):
        names = ", ".join(str(schema.find_column_name(one)) for one in missing)
        return f"it has no columns with the ids {', '.join(map(str, missing))} ({names})"
    if more := sorted(ids - set(schema.field_ids)):
        names = ", ".join(str(found.find_column_name(one)) for one in more)
        return f"it has columns with ids that the view has not: {', '.join(map(str, more))} ({names})"
    return None


def _false_statistics(parquet: ParquetFile) -> str | None:
    """Of columns that are not nested: others have none that a read goes by."""
    flat = [field.name for field in parquet.schema_arrow if not pa.types.is_nested(field.type)]
    for number in range(parquet.metadata.num_row_groups):
        group = parquet.metadata.row_group(number)
        columns = [group.column(place) for place in range(group.num_columns)]
        told = {one.path_in_schema: one.statistics for one in columns if one.is_stats_set}
        nulls = dict.fromkeys(flat, 0)
        for batch in parquet.iter_batches(batch_size=BATCH_ROWS, row_groups=[number], columns=flat):
            for name, column in zip(flat, batch.columns, strict=True):
                nulls[name] += column.null_count
                if name in told and _is_outside(told[name], pa.chunked_array([column])):
                    return f"column {name} has values outside of the statistics of row group {number}"
        for name, statistics in told.items():
            if name in nulls and statistics.has_null_count and statistics.null_count != nulls[name]:
                return f"column {name} has {nulls[name]:,} NULL in row group {number}, its statistics say otherwise"
    return None


def _is_outside(statistics: Any, column: pa.ChunkedArray) -> bool:
    """Whether values of *column* are outside of the least and the greatest of *statistics*."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    least, most = _extremes(column)
    if least is None or not statistics.has_min_max:
        return False
    if pa.types.is_temporal(column.type):
        low, high = statistics.min_raw, statistics.max_raw
    elif isinstance(least, str | bytes):  # cut off, they need not be texts
        low, high = (_bytes(one) for one in (statistics.min_raw, statistics.max_raw))
        least, most = _bytes(least), _bytes(most)
    else:
        low, high = statistics.min, statistics.max
    return bool(least < low or most > high)  # never of NaN, which engines do not go by


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


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
