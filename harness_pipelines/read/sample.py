"""A share of a table's rows, chosen by their coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from harness_pipelines.layout.row_hash import row_hash, threshold

COORDINATE = ("_kafka_partition", "_kafka_offset")


def sampled(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, fraction: float, columns: Sequence[str]
) -> pa.Table:
    """The rows of *batches* that a sample of *fraction* takes, with *columns* of *schema*. Raises: UsageError."""
    below = threshold(fraction)
    taken = []
    for batch in batches:
        partitions, offsets = (np.asarray(batch.column(name)) for name in COORDINATE)
        mask = pa.array(row_hash(partitions, offsets) < below)
        taken.append(batch.filter(mask).select(list(columns)))
    return pa.Table.from_batches(taken, pa.schema([schema.field(name) for name in columns]))
