"""All rows of one data file in the table's schema, whatever schema wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.lakes.iceberg.parquet import damage_named, parquet_file
from harness_pipelines.lakes.iceberg.read.field_ids import by_field_ids, has_field_ids
from harness_pipelines.ports.lake import LakeFile

if TYPE_CHECKING:
    from harness_pipelines.lakes.iceberg.read.scan import PinnedView
    from harness_pipelines.layout.files import Positions

BATCH_BYTES = 32 * 2**20
BATCH_ROWS_MAX = 65_536
BATCH_ROWS_MIN = 64


def file_tables(view: PinnedView, file: LakeFile, schema: pa.Schema, ids: Mapping[str, int]) -> Iterator[pa.Table]:
    """What `placed_tables` gives, without the places."""
    return (rows for rows, _ in placed_tables(view, file, schema, ids))


def placed_tables(
    view: PinnedView, file: LakeFile, schema: pa.Schema, ids: Mapping[str, int]
) -> Iterator[tuple[pa.Table, Positions]]:
    """The rows of a data file in *schema* that are not hidden, a bounded batch at a time, and where in it they are.

    Missing columns are NULL. Raises: DeletesBroken.
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
            live = is_live[first : first + len(batch)]
            yield rows if hidden is None else rows.filter(pa.array(live)), first + np.flatnonzero(live)
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
