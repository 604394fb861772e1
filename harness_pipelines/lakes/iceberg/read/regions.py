"""Files of the batch view for the region tree, from the bounds in the manifests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from harness_pipelines.lakes.iceberg.read.deletes import foreign
from harness_pipelines.lakes.iceberg.read.file_columns import FileColumns
from harness_pipelines.lakes.iceberg.read.live_files import deletes_in
from harness_pipelines.lakes.iceberg.read.manifests import columns_of, manifests_of
from harness_pipelines.layout.columns import IndexedColumn, unscaled
from harness_pipelines.layout.files import Extent, FileStats, hiding
from harness_pipelines.ports.lake import DeleteFile
from harness_pipelines.ports.lake_writes import FileList, FileLists

#: Types whose values are the whole numbers that their bounds are.
_WHOLE = (IntegerType, LongType, DateType, TimeType, TimestampType, TimestamptzType)


def region_files(view: Table, columns: Sequence[IndexedColumn]) -> list[FileStats]:
    """The live files of *view*'s main branch, by path. Raises: ForeignDeletes."""
    lists = region_lists(view, columns).lists.values()
    deletes = {path: hides for one in lists for path, hides in one.deletes.items()}
    return sorted(
        (hiding(file, deletes.get(file.path)) for one in lists for file in one.files), key=lambda file: file.path
    )


def region_lists(view: Table, columns: Sequence[IndexedColumn], *, known: FileLists | None = None) -> FileLists:
    """The live files of *view*'s main branch, by manifest; what *known* has is not read. Raises: ForeignDeletes."""
    fields = [view.schema().find_field(column.name) for column in columns]
    told = tuple((field.field_id, str(field.field_type)) for field in fields)
    there = known.lists if known is not None and known.columns == told else {}
    lists = {
        manifest.manifest_path: there.get(manifest.manifest_path) or _list(columns_of(manifest, view.io), fields)
        for manifest in manifests_of(view.metadata.current_snapshot(), view.io)
    }
    _check_once([one for one in lists.values() if one.deletes])
    return FileLists(columns=told, lists=lists)


def _check_once(lists: Iterable[FileList]) -> None:
    """No two delete files hide rows of one data file. Raises: ForeignDeletes."""
    found: dict[str, DeleteFile] = {}
    for one in lists:
        for path, hides in one.deletes.items():
            if path in found:
                raise foreign(hides.path)
            found[path] = hides


def _list(files: FileColumns, fields: Sequence[NestedField]) -> FileList:
    stats = _stats(files, fields)
    data = tuple(stats[number] for number in np.flatnonzero(files.is_data).tolist())
    return FileList(files=data, deletes=deletes_in([files]))


def staged_files(view: Table, columns: Sequence[IndexedColumn], files: Sequence[DataFile]) -> list[FileStats]:
    """*files* of a branch of *view*, which have no sequence number on main yet."""
    fields = [view.schema().find_field(column.name) for column in columns]
    return _stats(FileColumns(files), fields)


def _stats(files: FileColumns, fields: Sequence[NestedField]) -> list[FileStats]:
    """What is known of all *files*, by their number."""
    extents = zip(*(_extents(files, field) for field in fields), strict=True) if fields else repeat((), len(files))
    columns = (files.paths(), files.rows.tolist(), files.bytes.tolist(), files.sequences(), files.written_by(), extents)
    return [
        FileStats(path=path, rows=rows, bytes=size, sequence=sequence or 0, written=written, extents=found)
        for path, rows, size, sequence, written, found in zip(*columns, strict=True)
    ]


def _extents(files: FileColumns, field: NestedField) -> list[Extent]:
    at, type_ = field.field_id, field.field_type
    assert isinstance(type_, PrimitiveType)
    if isinstance(type_, _WHOLE) and (ends := files.whole_bounds(at)) is not None:
        lower, upper = ends
    else:
        lower, upper = ([_value(bound, type_) for bound in side] for side in files.bounds(at))
    return list(map(Extent, lower, upper, files.nulls_of(at), files.nans_of(at)))


def _value(bound: bytes | None, type_: PrimitiveType) -> Any:
    """A bound in the domain of the tree, see `harness_pipelines.layout.columns`."""
    if bound is None:
        return None
    value: Any = from_bytes(type_, bound)
    match type_:
        case DecimalType():
            return unscaled(value, type_.scale)
        case BooleanType():
            return int(value)
        case UUIDType():
            return value if isinstance(value, bytes) else value.bytes
        case _:
            return value
