"""Replayed rows below the bounds of a view: check that their coordinates are free, and append them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.lakes.iceberg.checked_io import write_data_files
from harness_pipelines.lakes.iceberg.read.scan import located
from harness_pipelines.lakes.iceberg.write import extents
from harness_pipelines.layout.row_hash import row_hash, threshold
from harness_pipelines.layout.tree import LAYER
from harness_pipelines.protocol.changes.corrections import AlreadyThere
from harness_pipelines.protocol.coordinates import OFFSET, PARTITION
from harness_pipelines.protocol.keys import PUT
from harness_pipelines.protocol.reading.queries import LakeColumn, LakeQuery, LakeStats

if TYPE_CHECKING:
    from harness_pipelines.layout.files import Positions
    from harness_pipelines.ports.ledger import TableRow


def check_free(table: TableRow, metadata: str, rows: pa.Table, *, hidden: Mapping[str, Positions]) -> None:
    """No row of the view that *metadata* fixes may stand where *rows* shall: it is read, not concluded from bounds.

    Rows at the positions of *hidden*, by data file, make place.

    Raises: AlreadyThere; LakeFileMissing, LakeUnreadable.
    """
    if not rows.num_rows:
        return
    wanted = {p: np.sort(_offsets(rows, p)) for p in set(rows[PARTITION].to_pylist())}
    query = LakeQuery(
        table=table.name,
        version=0,
        ranges={p: (int(offsets[0]), int(offsets[-1]) + 1) for p, offsets in wanted.items()},
        columns=[LakeColumn(name=PARTITION, field_id=None), LakeColumn(name=OFFSET, field_id=None)],
    )
    for part in located(metadata, query, LakeStats()):
        stays = ~np.isin(part.positions, hidden.get(part.file.path, ()))
        left = part.rows.filter(pa.array(stays))
        for partition, offsets in wanted.items():
            if len(taken := np.intersect1d(_offsets(left, partition), offsets)):
                raise AlreadyThere(
                    f"{table.name}: there is a row at partition {partition}, offset {taken[0]} already; nothing was "
                    f"written. `harness fsck` and `harness audit {table.name}` say how that came about"
                )


def _offsets(rows: pa.Table, partition: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = (
        rows.filter(pc.equal(rows[PARTITION], partition))[OFFSET].to_numpy().astype(np.int64)
    )
    return found


def appendable(table: TableRow, view: Table, rows: pa.Table) -> pa.Table:
    """*rows* (coordinates and user columns, by partition and offset) with all columns of *view*."""
    schema = view.schema().as_arrow()
    constants = {"_op": pa.scalar(PUT), "_schema_version": pa.scalar(table.schema_version, pa.int32())}
    for name, value in constants.items():
        if name not in rows.column_names:  # a record of a keyed table states its operation itself
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    if LAYER.name in schema.names:
        hashed = row_hash(rows[PARTITION].to_numpy(), rows[OFFSET].to_numpy())
        rows = rows.append_column(LAYER.name, pa.array(hashed < threshold(table.spec.layout.sample)))
    return conformed(rows.select(schema.names), schema)


def written(view: Table, rows: pa.Table) -> list[DataFile]:
    """Write *rows* to unpublished files beside those of *view*."""
    if not rows.num_rows:
        return []
    # PyIceberg warns of the size that Spark gives to groups of rows; to silence a warning is not safe between threads.
    known = {k: v for k, v in view.metadata.properties.items() if k != TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES}
    metadata = view.metadata.model_copy(update={"properties": known})
    found = write_data_files(metadata, extents.in_order(view, rows), view.io)
    extents.add_to(view, found)
    return found
