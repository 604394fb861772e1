"""Files of the batch view for the region tree, from the bounds in the manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.types import BooleanType, DecimalType, NestedField, PrimitiveType, UUIDType

from harness_pipelines.drivers.by_path import ByPath
from harness_pipelines.lakes.iceberg.read.deletes import split
from harness_pipelines.lakes.iceberg.read.manifests import entries_of, manifests_of
from harness_pipelines.layout.columns import IndexedColumn, unscaled
from harness_pipelines.layout.files import Extent, FileStats

_entries_of: ByPath[tuple[ManifestEntry, ...]] = ByPath(20_000)


def region_files(view: Table, columns: Sequence[IndexedColumn]) -> list[FileStats]:
    """The live files of *view*'s main branch, by path. Raises: ForeignDeletes."""
    fields = [view.schema().find_field(column.name) for column in columns]
    entries = list(live_entries(view))
    _, deletes = split(e.data_file for e in entries)
    found = (
        _stats(
            e.data_file,
            fields,
            sequence=e.sequence_number or 0,
            written=e.file_sequence_number,
            deletes=deletes.get(e.data_file.file_path),
        )
        for e in entries
        if e.data_file.content is DataFileContent.DATA
    )
    return sorted(found, key=lambda file: file.path)


def staged_files(view: Table, columns: Sequence[IndexedColumn], files: Iterable[DataFile]) -> list[FileStats]:
    """*files* of a branch of *view*, which have no sequence number on main yet."""
    fields = [view.schema().find_field(column.name) for column in columns]
    return [_stats(file, fields, sequence=0) for file in files]


def live_entries(view: Table) -> Iterator[ManifestEntry]:
    """What the manifests of *view*'s main branch hold; each manifest is read once."""
    for manifest in manifests_of(view.metadata.current_snapshot(), view.io):
        yield from _entries_of.get(
            manifest.manifest_path,
            lambda m=manifest: tuple(entries_of(m, view.io)),  # type: ignore[misc]
        )


def _stats(
    data: DataFile,
    fields: Sequence[NestedField],
    *,
    sequence: int,
    written: int | None = None,
    deletes: DataFile | None = None,
) -> FileStats:
    return FileStats(
        path=data.file_path,
        rows=data.record_count,
        bytes=data.file_size_in_bytes,
        sequence=sequence,
        written=written,
        extents=tuple(_extent(data, field) for field in fields),
        hidden=deletes.record_count if deletes else 0,
        deletes=deletes.file_path if deletes else None,
    )


def _extent(data: DataFile, field: NestedField) -> Extent:
    at, type_ = field.field_id, field.field_type
    assert isinstance(type_, PrimitiveType)
    low, high = (data.lower_bounds or {}).get(at), (data.upper_bounds or {}).get(at)
    return Extent(
        lower=None if low is None else _value(from_bytes(type_, low), type_),
        upper=None if high is None else _value(from_bytes(type_, high), type_),
        nulls=(data.null_value_counts or {}).get(at),
        nans=(data.nan_value_counts or {}).get(at),
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
