"""What the files of a wide topic say of each partition: read from them before they are published."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from harness_pipelines.lakes.iceberg.catalog import is_wide
from harness_pipelines.lakes.iceberg.parquet import parquet_file
from harness_pipelines.ports.errors import StagedWrong
from harness_pipelines.protocol.coordinates import OFFSET, PARTITION
from harness_pipelines.protocol.lake.wide import EXTENTS_ID, Extents, NotByOffset

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

AT_ONCE = 8  #: files that are read at once: a store far away answers slowly


def in_order(view: Table, rows: pa.Table) -> pa.Table:
    """*rows* as files of *view* have them: of a wide topic by partition and offset, else as they are."""
    if not is_wide(view.metadata):
        return rows
    return rows.sort_by([(PARTITION, "ascending"), (OFFSET, "ascending")])


def add_to(view: Table, files: Sequence[DataFile]) -> None:
    """Let each of *files*, which were written for *view*, say what it has of each partition, if its topic is wide.

    Raises: StagedWrong for rows in another order; OSError.
    """
    if not is_wide(view.metadata):
        return
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="extents") as pool:
        for file, found in zip(files, pool.map(lambda file: _read(view.io, file.file_path), files), strict=True):
            file.lower_bounds[EXTENTS_ID] = found.packed


def of(file: DataFile) -> Extents | None:
    """What *file* says; None: its view is not wide."""
    found = (file.lower_bounds or {}).get(EXTENTS_ID)
    return None if found is None else Extents(found)


def _read(io: FileIO, path: str) -> Extents:
    with io.new_input(path).open() as stream:
        rows = parquet_file(stream).read(columns=[PARTITION, OFFSET])
    partitions, offsets = (rows.column(name).to_numpy().astype(np.int64) for name in (PARTITION, OFFSET))
    try:
        return Extents.of_rows(partitions, offsets, path=path)
    except NotByOffset as error:
        raise StagedWrong(str(error)) from error
