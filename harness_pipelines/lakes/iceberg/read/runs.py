"""Files of the stream view for compaction, from the bounds in the manifests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from harness_pipelines.lakes.iceberg.read.scan import LakeFile, pinned
from harness_pipelines.lakes.iceberg.write.publish import offset_bounds
from harness_pipelines.ports.lake import reachable
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.lake.compaction import StreamFile


def stream_files(table: TableRow, metadata: str) -> list[StreamFile]:
    """The live files of the stream view of *table* that *metadata* fixes.

    Raises: LakeAway.
    """
    with reachable(table.name, "reading the stream view's manifests"):
        return [_live(f) for f in pinned(metadata).files]


def written_files(files: Iterable[DataFile], view: Table) -> list[StreamFile]:
    """What an attempt staged for *view*. Raises: ForeignFiles for a file without bounds."""
    bounds = ((file, offset_bounds(file, view)) for file in files)
    return [_file(file, low=first, high=last + 1) for file, (first, last) in bounds]


def _live(file: LakeFile) -> StreamFile:
    found = _file(file.data, low=file.low, high=file.high)
    return replace(found, rows=file.rows, deletes=file.deletes.file_path if file.deletes else None)


def _file(data: DataFile, *, low: int, high: int) -> StreamFile:
    return StreamFile(
        path=data.file_path,
        partition=int(data.partition[0]),
        low=low,
        high=high,
        rows=data.record_count,
        bytes=data.file_size_in_bytes,
    )
