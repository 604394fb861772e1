"""Files of the batch view for the region tree, from the bounds in the manifests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import BooleanType, DecimalType, NestedField, PrimitiveType, UUIDType

from harness_pipelines.lakes.iceberg.read.file_columns import FileColumns
from harness_pipelines.lakes.iceberg.read.live_files import deletes_in
from harness_pipelines.lakes.iceberg.read.manifests import columns_of, manifests_of
from harness_pipelines.layout.columns import IndexedColumn, unscaled
from harness_pipelines.layout.files import Extent, FileStats
from harness_pipelines.ports.lake import DeleteFile


def region_files(view: Table, columns: Sequence[IndexedColumn]) -> list[FileStats]:
    """The live files of *view*'s main branch, by path. Raises: ForeignDeletes."""
    fields = [view.schema().find_field(column.name) for column in columns]
    manifests = [columns_of(manifest, view.io) for manifest in manifests_of(view.metadata.current_snapshot(), view.io)]
    deletes = deletes_in(manifests)
    found = (
        _stats(
            files,
            number,
            fields,
            sequence=files.sequence(number) or 0,
            written=files.written(number),
            deletes=deletes.get(files.path(number)),
        )
        for files in manifests
        for number in np.flatnonzero(files.is_data).tolist()
    )
    return sorted(found, key=lambda file: file.path)


def staged_files(view: Table, columns: Sequence[IndexedColumn], files: Sequence[DataFile]) -> list[FileStats]:
    """*files* of a branch of *view*, which have no sequence number on main yet."""
    fields = [view.schema().find_field(column.name) for column in columns]
    staged = FileColumns(files)
    return [_stats(staged, number, fields, sequence=0) for number in range(len(staged))]


def _stats(
    files: FileColumns,
    number: int,
    fields: Sequence[NestedField],
    *,
    sequence: int,
    written: int | None = None,
    deletes: DeleteFile | None = None,
) -> FileStats:
    return FileStats(
        path=files.path(number),
        rows=int(files.rows[number]),
        bytes=int(files.bytes[number]),
        sequence=sequence,
        written=written,
        extents=tuple(_extent(files, number, field) for field in fields),
        hidden=deletes.rows if deletes else 0,
        deletes=deletes.path if deletes else None,
    )


def _extent(files: FileColumns, number: int, field: NestedField) -> Extent:
    at, type_ = field.field_id, field.field_type
    assert isinstance(type_, PrimitiveType)
    low, high = files.lower(at, number), files.upper(at, number)
    return Extent(
        lower=None if low is None else _value(from_bytes(type_, low), type_),
        upper=None if high is None else _value(from_bytes(type_, high), type_),
        nulls=files.nulls(at, number),
        nans=files.nans(at, number),
    )


def _value(value: Any, type_: Any) -> Any:
    """A bound in the domain of the tree, see `harness_pipelines.layout.columns`."""
    match type_:
        case DecimalType():
            return unscaled(value, type_.scale)
        case BooleanType():
            return int(value)
        case UUIDType():
            return value if isinstance(value, bytes) else value.bytes
        case _:
            return value
