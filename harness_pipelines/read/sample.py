"""A sample of a table's rows, selected by their coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from harness_pipelines.layout.row_hash import COORDINATE, row_hash
from harness_pipelines.protocol.reading.selection import names_of
from harness_pipelines.protocol.shape import view_set_of
from harness_pipelines.spec.table import TableSpec


def sampled(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    *,
    below: int,
    columns: Sequence[str],
    limit: int | None = None,
) -> pa.Table:
    """The rows of *batches* whose hash is below a `threshold`, *limit* at most, with *columns* of *schema*.

    No batch is asked for once *limit* rows are taken.
    """
    taken: list[pa.RecordBatch] = []
    left = limit
    for batch in batches if left != 0 else ():
        partitions, offsets = (np.asarray(batch.column(name)) for name in COORDINATE)
        mask = pa.array(row_hash(partitions, offsets) < below)
        taken.append(batch.filter(mask).select(list(columns)).slice(0, left))
        if left is not None and (left := left - taken[-1].num_rows) == 0:
            break
    return pa.Table.from_batches(taken, pa.schema([schema.field(name) for name in columns]))


def layer_suffices(spec: TableSpec, fraction: float) -> bool:
    """All rows of such a sample that are clustered lie in the sample layer."""
    return view_set_of(spec).clustered and fraction <= spec.layout.sample


def shown_and_needed(spec: TableSpec, columns: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The columns of a sample, and those that are read for it: the coordinate selects its rows."""
    shown = names_of(columns) if columns is not None else [column.name for column in spec.columns]
    return shown, list(dict.fromkeys([*shown, *COORDINATE]))
